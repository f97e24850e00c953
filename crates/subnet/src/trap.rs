//! Traps that the subnet manager has not repressed.

use alloc::collections::VecDeque;

use feroce_train::Instant;
use feroce_wire::mad::Notice;

/// Notices that wait at a node; older ones are forgotten.
const MAX_PENDING: usize = 16;
/// The traps of a node that the subnet manager has not repressed.
#[derive(Debug, Default)]
pub(crate) struct Traps {
    pending: VecDeque<Pending>,
    /// Tells traps apart.
    transaction: u64,
}

/// A trap that waits.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) transaction: u64,
    pub(crate) notice: Notice,
    /// When it is sent, or sent again.
    pub(crate) next_at: Instant,
}

impl Traps {
    /// When the next one is sent again.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.pending.iter().map(|pending| pending.next_at).min()
    }

    /// The subnet manager has heard of one.
    pub(crate) fn repress(&mut self, transaction: u64) {
        self.pending.retain(|pending| pending.transaction != transaction);
    }

    /// The first one that is due.
    pub(crate) fn due(&mut self, now: Instant) -> Option<&mut Pending> {
        self.pending.iter_mut().find(|pending| pending.next_at <= now)
    }

    /// Adds one, unless it waits already.
    pub(crate) fn add(&mut self, now: Instant, notice: Notice) {
        if self.pending.iter().any(|pending| pending.notice == notice) {
            return;
        }
        if self.pending.len() == MAX_PENDING {
            self.pending.pop_front();
        }
        self.transaction += 1;
        let transaction = self.transaction;
        self.pending.push_back(Pending { transaction, notice, next_at: now });
    }
}
