//! The end of a connection, and what is remembered of it.

use alloc::boxed::Box;

use feroce_train::Instant;
use feroce_wire::cm::{CmMessage, CommId, Drep, Dreq};
use feroce_wire::mad::MAD_LEN;

use super::{BoxedEnds, Conn, RemoteKey, Times};
use crate::event::{Cause, Event};
use crate::out::Out;
use crate::params::Peer;
use crate::retry::{Retry, code_ns};

/// DREQ is on its way.
#[derive(Debug)]
pub(crate) struct DreqSent {
    pub(crate) ends: BoxedEnds,
    pub(crate) retry: Retry,
}

impl DreqSent {
    /// The peer agrees.
    pub(crate) fn on_drep(self, now: Instant, out: &mut Out) -> TimeWait {
        TimeWait::enter(self.ends, now, Cause::Agreed, out)
    }

    /// The peer did not answer in time.
    pub(crate) fn on_timeout(mut self, now: Instant, out: &mut Out) -> Conn {
        if self.retry.again(now) {
            out.repeat(self.ends.peer, &self.retry.bytes);
            return Conn::DreqSent(self);
        }
        Conn::TimeWait(TimeWait::enter(self.ends, now, Cause::NoAnswer, out))
    }
}

/// Packets of the connection may still be on their way, so its queue pair should not be used for
/// another, and its identifiers are not given out again.
#[derive(Debug)]
pub(crate) struct TimeWait {
    pub(crate) ends: BoxedEnds,
    pub(crate) until: Instant,
}

impl TimeWait {
    pub(crate) fn enter(ends: BoxedEnds, now: Instant, cause: Cause, out: &mut Out) -> Self {
        out.tell(ends.is_silent, Event::Disconnected { conn: ends.conn(), cause });
        let until = now.plus_nanos(code_ns(ends.plan.timeout));
        Self { ends, until }
    }

    /// Answers the DREQ of a peer that ends the connection.
    pub(crate) fn after_dreq(
        ends: BoxedEnds,
        now: Instant,
        transaction: u64,
        dreq: &Dreq,
        out: &mut Out,
    ) -> Self {
        answer_dreq(ends.peer, transaction, dreq, out);
        Self::enter(ends, now, Cause::Peer, out)
    }

    /// The DREP was lost, and the peer repeats its DREQ.
    pub(crate) fn on_duplicate_dreq(self, transaction: u64, dreq: &Dreq, out: &mut Out) -> Self {
        out.counters.duplicate += 1;
        answer_dreq(self.ends.peer, transaction, dreq, out);
        self
    }

    /// Time has passed.
    pub(crate) fn end(self, out: &mut Out) {
        out.tell(self.ends.is_silent, Event::TimewaitExit { conn: self.ends.conn() });
    }
}

/// Agrees to the end of a connection, known or not.
pub(crate) fn answer_dreq(peer: Peer, transaction: u64, dreq: &Dreq, out: &mut Out) {
    let drep = CmMessage::Drep(Drep {
        local_id: dreq.remote_id,
        remote_id: dreq.local_id,
        private_data: [0; 224],
    });
    out.send(peer, transaction, &drep);
}

/// An answer that was the last word, remembered for duplicates of the question.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) id: CommId,
    pub(crate) peer: Peer,
    pub(crate) key: RemoteKey,
    pub(crate) bytes: Box<[u8; MAD_LEN]>,
    pub(crate) until: Instant,
}

impl Answered {
    /// The answer was lost.
    pub(crate) fn on_duplicate(mut self, now: Instant, times: &Times, out: &mut Out) -> Self {
        out.counters.duplicate += 1;
        out.repeat(self.peer, &self.bytes);
        self.until = now.plus_nanos(times.remember_ns);
        self
    }
}
