//! The end of a connection, and the state that is kept for late packets and duplicates.

use alloc::boxed::Box;

use feroce_train::Instant;
use feroce_wire::cm::{CmMessage, CommId, Drep, Dreq};
use feroce_wire::mad::MAD_LEN;

use super::{BoxedEnds, Conn, RemoteKey, Times};
use crate::event::{Cause, Event};
use crate::out::Out;
use crate::params::Peer;
use crate::retry::{Retry, code_ns};

/// DREQ is sent; the manager waits for DREP.
#[derive(Debug)]
pub(crate) struct DreqSent {
    pub(crate) ends: BoxedEnds,
    pub(crate) retry: Retry,
}

impl DreqSent {
    /// DREP arrives.
    pub(crate) fn on_drep(self, now: Instant, out: &mut Out) -> TimeWait {
        TimeWait::enter(self.ends, now, Cause::Agreed, out)
    }

    /// No DREP arrives in time: the manager sends DREQ again, or enters time-wait without it.
    pub(crate) fn on_timeout(mut self, now: Instant, out: &mut Out) -> Conn {
        if self.retry.again(now) {
            self.ends.repeat(&self.retry, out);
            return Conn::DreqSent(self);
        }
        Conn::TimeWait(TimeWait::enter(self.ends, now, Cause::NoAnswer, out))
    }
}

/// Packets of the connection may still be in the network. Until `until`, the consumer should not
/// use the queue pair for another connection, and the manager does not reuse the communication ID.
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

    /// Answers the DREQ of the peer with DREP, and enters time-wait.
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

    /// A duplicate of DREQ arrives, so the DREP was probably lost: the manager sends it again.
    pub(crate) fn on_duplicate_dreq(self, transaction: u64, dreq: &Dreq, out: &mut Out) -> Self {
        out.counters.duplicate += 1;
        answer_dreq(self.ends.peer, transaction, dreq, out);
        self
    }

    /// Time-wait is over.
    pub(crate) fn end(self, out: &mut Out) {
        out.tell(self.ends.is_silent, Event::TimewaitExit { conn: self.ends.conn() });
    }
}

/// Sends DREP for a DREQ, whether or not the manager knows the connection.
pub(crate) fn answer_dreq(peer: Peer, transaction: u64, dreq: &Dreq, out: &mut Out) {
    let drep = CmMessage::Drep(Drep {
        local_id: dreq.remote_id,
        remote_id: dreq.local_id,
        private_data: [0; 224],
    });
    out.send(peer, transaction, &drep);
}

/// A final answer (REJ or SIDR_REP), kept so that duplicates of the request get the same answer.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) id: CommId,
    pub(crate) peer: Peer,
    pub(crate) key: RemoteKey,
    pub(crate) bytes: Box<[u8; MAD_LEN]>,
    pub(crate) until: Instant,
}

impl Answered {
    /// A duplicate of the request arrives, so the answer was probably lost: the manager sends it
    /// again and keeps it for as long as before.
    pub(crate) fn on_duplicate(mut self, now: Instant, times: &Times, out: &mut Out) -> Self {
        out.counters.duplicate += 1;
        out.repeat(self.peer, &self.bytes);
        self.until = now.plus_nanos(times.remember_ns);
        self
    }
}
