//! The active side: it sends REQ.

use alloc::boxed::Box;

use feroce_train::Instant;
use feroce_wire::cm::{CmMessage, Mra, Rej, RejReason, Rep, Rtu, Stage};

use super::{BoxedEnds, Established, Times};
use crate::event::Event;
use crate::out::Out;
use crate::retry::{Retry, ack_timeout};

/// REQ is sent; the manager waits for REP.
#[derive(Debug)]
pub(crate) struct ReqSent {
    pub(crate) ends: BoxedEnds,
    pub(crate) retry: Retry,
    /// GUID of our adapter; with it, a peer that has not answered yet identifies the request.
    pub(crate) ca_guid: u64,
}

impl ReqSent {
    /// REP arrives: the peer accepts.
    pub(crate) fn on_rep(self, transaction: u64, rep: &Rep, out: &mut Out) -> RepRcvd {
        let mut ends = self.ends;
        ends.remote_id = rep.local_id;
        let plan = &mut ends.plan;
        plan.remote_qpn = Some(rep.qpn);
        plan.sq_psn = rep.psn;
        plan.max_rd_atomic = plan.max_rd_atomic.min(rep.responder_resources);
        plan.max_dest_rd_atomic = rep.initiator_depth;
        plan.rnr_retry = rep.rnr_retry;
        plan.remote_srq = rep.srq;
        plan.timeout = ack_timeout(rep.target_ack_delay, plan.timeout.saturating_sub(1));
        out.tell(ends.is_silent, Event::Replied { conn: ends.conn(), rep: Box::new(*rep) });
        RepRcvd { ends, rep_transaction: transaction }
    }

    /// MRA arrives: the peer asks for more time.
    pub(crate) fn on_mra(mut self, now: Instant, mra: &Mra) -> Self {
        self.retry.extend(now, mra.service_timeout);
        self
    }

    /// No REP arrives in time: the manager sends REQ again, or gives up.
    pub(crate) fn on_timeout(mut self, now: Instant, out: &mut Out) -> Option<Self> {
        if self.retry.again(now) {
            out.repeat(self.ends.peer, &self.retry.bytes);
            if self.retry.is_silent_for_long(now) {
                out.note_silence(self.ends.peer);
            }
            return Some(self);
        }
        out.tell(self.ends.is_silent, Event::Unreachable { conn: self.ends.conn() });
        self.give_up(out);
        None
    }

    /// Sends REJ (timeout) to a peer that may have received the REQ. The peer's communication ID is
    /// not known, so the REJ carries the GUID of our adapter (IBTA vol1 12.6.7.2).
    pub(crate) fn give_up(self, out: &mut Out) {
        let mut rej = self.ends.rej(Stage::Req, RejReason::TIMEOUT);
        let guid = self.ca_guid.to_be_bytes();
        rej.info_len = guid.len() as u8;
        rej.info[..guid.len()].copy_from_slice(&guid);
        out.send(self.ends.peer, self.ends.transaction, &CmMessage::Rej(rej));
    }
}

/// REP is received; the consumer brings its queue pair up.
#[derive(Debug)]
pub(crate) struct RepRcvd {
    pub(crate) ends: BoxedEnds,
    pub(crate) rep_transaction: u64,
}

impl RepRcvd {
    /// The consumer's queue pair is up: the manager sends RTU.
    pub(crate) fn ready(self, out: &mut Out) -> Established {
        let (local_id, remote_id) = (self.ends.id, self.ends.remote_id);
        let rtu = CmMessage::Rtu(Rtu { local_id, remote_id, private_data: [0; 224] });
        let rtu = out.send(self.ends.peer, self.rep_transaction, &rtu);
        Established { ends: self.ends, rtu: Some(Box::new(rtu)) }
    }

    /// A duplicate of REP arrives while the consumer is busy: the manager answers MRA, which asks
    /// the peer for more time.
    pub(crate) fn on_duplicate_rep(self, times: &Times, out: &mut Out) -> Self {
        let mra = Mra {
            local_id: self.ends.id,
            remote_id: self.ends.remote_id,
            stage: Stage::Rep,
            service_timeout: times.mra_timeout,
            private_data: [0; 222],
        };
        out.counters.duplicate += 1;
        out.send(self.ends.peer, self.rep_transaction, &CmMessage::Mra(mra));
        self
    }

    /// The consumer rejects the connection after REP.
    pub(crate) fn reject(self, rej: &Rej, out: &mut Out) {
        out.send(self.ends.peer, self.rep_transaction, &CmMessage::Rej(*rej));
    }
}
