//! Revocation: completions that wait until no peer process copies under a revoked key.
//!
//! A process of the same host that has direct access to registered memory may be in the middle of a
//! copy when a key is invalidated. The engine revokes the key at once, but holds the completion of
//! the invalidation until the copy has ended, because the consumer may reuse the memory after that
//! completion. Later completions of the same queue pair wait behind it, and its send queue stops
//! meanwhile; other queue pairs are not affected.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use feroce_mem::Revocation;
use feroce_wire::Qpn;

use crate::hca::cqe::Cqe;
use crate::hca::id::CqId;

/// Queue pairs that wait for a revocation to end.
#[derive(Debug, Default)]
pub(crate) struct Revocations {
    waiting: Vec<Waiting>,
}

/// A queue pair that waits, and its completions in the order in which they were reported.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) qpn: Qpn,
    revocation: Revocation,
    pub(crate) held: VecDeque<(CqId, Cqe)>,
}

impl Revocations {
    /// Completions of a queue pair wait from now on until a revocation is over.
    #[cold]
    pub(crate) fn wait(&mut self, qpn: Qpn, newer: Revocation) {
        match self.waiting.iter_mut().find(|waiting| waiting.qpn == qpn) {
            Some(Waiting { revocation, .. }) => {
                let is_same = revocation.peer == newer.peer;
                let peer = if is_same { newer.peer } else { None };
                *revocation = Revocation { peer, ..newer };
            }
            None => {
                self.waiting.push(Waiting { qpn, revocation: newer, held: VecDeque::new() });
            }
        }
    }

    /// Whether no queue pair waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether a queue pair waits.
    #[inline]
    pub(crate) fn concern(&self, qpn: Qpn) -> bool {
        !self.is_empty() && self.waiting.iter().any(|waiting| waiting.qpn == qpn)
    }

    /// Keeps a completion if its queue pair waits. False: it may be reported.
    #[inline]
    pub(crate) fn hold(&mut self, cq: CqId, cqe: Cqe) -> bool {
        !self.is_empty() && self.hold_behind(cq, cqe)
    }

    #[cold]
    fn hold_behind(&mut self, cq: CqId, cqe: Cqe) -> bool {
        let Some(waiting) = self.waiting.iter_mut().find(|waiting| waiting.qpn == cqe.qpn) else {
            return false;
        };
        waiting.held.push_back((cq, cqe));
        true
    }

    /// Takes a queue pair that waits no longer.
    pub(crate) fn end(&mut self, is_over: &mut dyn FnMut(Revocation) -> bool) -> Option<Waiting> {
        let at = self.waiting.iter().position(|waiting| is_over(waiting.revocation))?;
        Some(self.waiting.remove(at))
    }

    /// Forgets completions to a completion queue that is destroyed, or those of one queue pair in
    /// it.
    pub(crate) fn forget(&mut self, id: CqId, of: Option<Qpn>) {
        for Waiting { qpn, held, .. } in &mut self.waiting {
            if of.is_none_or(|of| of == *qpn) {
                held.retain(|(cq, _)| *cq != id);
            }
        }
    }
}
