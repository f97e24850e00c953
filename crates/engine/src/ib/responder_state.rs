//! State of the responder.

use feroce_wire::{Msn, Psn, Rkey};

use super::receive::Receive;
use super::reorder_queue::ReorderQueue;
use super::replay::Replay;
use super::reply_queue::Replies;

/// A message of several packets that has begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Inbound {
    /// A send; its receive is in [`Responder::receive`].
    Send,
    /// A write: where the next byte goes and how many are to come.
    Write { va: u64, rkey: Rkey, left: u32, len: u32 },
}

/// What keeps a responder from going on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Missing {
    #[default]
    Nothing,
    /// The expected packet. Those behind it are kept, or dropped silently.
    Packet,
    /// A receive for it. Those behind it are dropped silently.
    Receive,
}

/// State of the responder.
#[derive(Debug, Default)]
pub(crate) struct Responder {
    /// PSN expected next.
    pub(super) expected: Psn,
    /// Messages completed.
    pub(super) msn: Msn,
    pub(super) inbound: Option<Inbound>,
    /// The receive that the message in progress fills.
    pub(super) receive: Option<Receive>,
    /// What the peer was told is missing, and has not come since.
    pub(super) missing: Missing,
    /// What arrived behind a missing packet.
    pub(super) early: ReorderQueue,
    /// Something was executed whose acknowledgement has not been sent.
    pub(super) owes_ack: bool,
    /// The first packet has been seen.
    pub(super) established: bool,
    pub(super) replies: Replies,
    pub(super) replay: Replay,
    pub(super) opened: Opened,
}

impl Responder {
    pub(super) fn new(expected: Psn) -> Self {
        Self { expected, ..Self::default() }
    }

    #[inline]
    pub(super) fn has_replies(&self) -> bool {
        !self.replies.is_empty()
    }

    pub(super) fn take_receive(&mut self) -> Option<Receive> {
        self.receive.take()
    }
}

/// Which direct access was opened last, under which revocation epoch, and how many messages came
/// since.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Opened {
    pub(super) last: Option<(Rkey, u32)>,
    pub(super) since: u32,
}
