//! The side that asks.

use alloc::boxed::Box;

use feroce_train::Instant;
use feroce_wire::cm::{CmMessage, Mra, Rej, RejReason, Rep, Rtu, Stage};

use super::{BoxedEnds, Established, Times};
use crate::event::Event;
use crate::out::Out;
use crate::retry::{Retry, ack_timeout};

/// REQ is on its way.
#[derive(Debug)]
pub(crate) struct ReqSent {
    pub(crate) ends: BoxedEnds,
    pub(crate) retry: Retry,
    /// GUID of our adapter: how a peer that has not answered yet knows the request.
    pub(crate) ca_guid: u64,
}

impl ReqSent {
    /// The peer accepts.
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

    /// The peer asks for time.
    pub(crate) fn on_mra(mut self, now: Instant, mra: &Mra) -> Self {
        self.retry.extend(now, mra.service_timeout);
        self
    }

    /// The peer did not answer in time.
    pub(crate) fn on_timeout(mut self, now: Instant, out: &mut Out) -> Option<Self> {
        if self.retry.again(now) {
            out.repeat(self.ends.peer, &self.retry.bytes);
            return Some(self);
        }
        out.tell(self.ends.is_silent, Event::Unreachable { conn: self.ends.conn() });
        self.give_up(out);
        None
    }

    /// Tells a peer that may have heard us that we do not wait any longer. We know no identifier of
    /// its own that we could name, so the GUID of our adapter goes along (IBTA vol1 12.6.7.2).
    pub(crate) fn give_up(self, out: &mut Out) {
        let mut rej = self.ends.rej(Stage::Req, RejReason::TIMEOUT);
        let guid = self.ca_guid.to_be_bytes();
        rej.info_len = guid.len() as u8;
        rej.info[..guid.len()].copy_from_slice(&guid);
        out.send(self.ends.peer, self.ends.transaction, &CmMessage::Rej(rej));
    }
}

/// REP has come; the consumer brings its queue pair up.
#[derive(Debug)]
pub(crate) struct RepRcvd {
    pub(crate) ends: BoxedEnds,
    pub(crate) rep_transaction: u64,
}

impl RepRcvd {
    /// The queue pair is up.
    pub(crate) fn ready(self, out: &mut Out) -> Established {
        let (local_id, remote_id) = (self.ends.id, self.ends.remote_id);
        let rtu = CmMessage::Rtu(Rtu { local_id, remote_id, private_data: [0; 224] });
        let rtu = out.send(self.ends.peer, self.rep_transaction, &rtu);
        Established { ends: self.ends, rtu: Some(Box::new(rtu)) }
    }

    /// The peer repeats itself: it should be patient.
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

    /// The consumer does not want it after all.
    pub(crate) fn reject(self, rej: &Rej, out: &mut Out) {
        out.send(self.ends.peer, self.rep_transaction, &CmMessage::Rej(*rej));
    }
}
