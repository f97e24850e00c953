//! Asks peers whether they still have a connection.
//!
//! A REQ or REP that names a queue pair of the peer which is in a connection here means that the
//! peer has lost that connection, for example because it was restarted: the connection is stale
//! (IBTA vol1 12.9.8.3). But anyone can send a REQ with the peer's address. Therefore the manager
//! holds the message and asks the peer, at the address and under the communication IDs of the
//! connection, before it ends anything.
//!
//! The question is a DREQ that names a queue pair which is never in a connection. A peer that has
//! the connection discards it, because DREQ must name the queue pair of the connection; Linux does
//! so too. A peer that does not have the connection answers DREP, as it does to any DREQ.

use alloc::collections::BTreeMap;

use feroce_train::Instant;
use feroce_wire::Qpn;
use feroce_wire::cm::{CmMessage, CommId, Dreq};

use crate::conn::{Ends, Times};
use crate::out::Out;
use crate::params::Peer;
use crate::retry::Retry;

/// How often a question without an answer is repeated.
const RETRIES: u8 = 2;
/// Most questions at a time.
const MOST: usize = 64;

/// The message that raised a question.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) from: Peer,
    pub(crate) transaction: u64,
    pub(crate) message: CmMessage,
}

#[derive(Debug)]
struct Question {
    peer: Peer,
    retry: Retry,
    held: Held,
}

/// Questions, by the connection that they are about.
#[derive(Debug, Default)]
pub(crate) struct Questions {
    open: BTreeMap<CommId, Question>,
}

impl Questions {
    /// Asks the peer for its side of a connection, and holds the message that raised the question.
    /// Gives the message back if a question is open already, or too many are.
    pub(crate) fn ask(
        &mut self,
        now: Instant,
        ends: &Ends,
        held: Held,
        times: &Times,
        out: &mut Out,
    ) -> Option<Held> {
        if self.open.len() >= MOST || self.open.contains_key(&ends.id) {
            return Some(held);
        }
        let is_none = |qpn: &Qpn| ends.plan.remote_qpn != Some(*qpn);
        let dreq = CmMessage::Dreq(Dreq {
            local_id: ends.id,
            remote_id: ends.remote_id,
            // Queue pairs 0 and 1 are for management; a program that connects without a queue pair
            // calls it 0.
            remote_qpn: Some(Qpn::QP0).filter(is_none).unwrap_or(Qpn::QP1),
            private_data: [0; 220],
        });
        let bytes = out.send(ends.peer, ends.own_transaction, &dreq);
        let retry = Retry::new(now, bytes, times.request_ns, RETRIES).probing(now, times.probe_ns);
        self.open.insert(ends.id, Question { peer: ends.peer, retry, held });
        None
    }

    /// The earliest deadline.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.open.values().map(|question| question.retry.deadline).min()
    }

    /// Whether a question about a connection is open.
    pub(crate) fn is_about(&self, id: CommId) -> bool {
        self.open.contains_key(&id)
    }

    /// Ends the question about a connection.
    pub(crate) fn answered(&mut self, id: CommId) -> Option<Held> {
        self.open.remove(&id).map(|question| question.held)
    }

    /// A question whose deadline has passed.
    pub(crate) fn due(&self, now: Instant) -> Option<CommId> {
        self.open.iter().find(|(_, question)| question.retry.deadline <= now).map(|(&id, _)| id)
    }

    /// Repeats a question. The held message if it was repeated often enough: the peer discards the
    /// question, so it has the connection.
    pub(crate) fn repeat(&mut self, now: Instant, id: CommId, out: &mut Out) -> Option<Held> {
        let question = self.open.get_mut(&id)?;
        if question.retry.again(now) {
            out.repeat(question.peer, &question.retry.bytes);
            return None;
        }
        self.answered(id)
    }
}
