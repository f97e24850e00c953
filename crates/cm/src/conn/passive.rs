//! The passive side: it receives REQ.

use alloc::boxed::Box;

use feroce_train::Instant;
use feroce_wire::cm::{CmMessage, Mra, Rej, RejReason, Rep, Stage};

use super::{Answered, BoxedEnds, DreqSent, Established, Kind, Times};
use crate::event::Event;
use crate::out::Out;
use crate::params::Accept;
use crate::retry::{Retry, code_ns};

/// REQ is received; the consumer decides whether to accept or to reject it.
#[derive(Debug)]
pub(crate) struct ReqRcvd {
    pub(crate) ends: BoxedEnds,
    /// Whether the peer wants end-to-end credits.
    pub(crate) flow_control: bool,
    /// How long the peer may take to answer a REP, as its REQ says.
    pub(crate) response_ns: u64,
    /// MRA was sent: the peer waits that much longer, so the duplicate of REQ that follows a lost
    /// REJ may come late.
    pub(crate) asked_for_time: bool,
}

impl ReqRcvd {
    /// The consumer accepts: the manager sends REP.
    pub(crate) fn accept(
        self,
        now: Instant,
        accept: &Accept,
        identity: (u64, u8),
        times: &Times,
        out: &mut Out,
    ) -> RepSent {
        let mut ends = self.ends;
        ends.answers_left = ends.answers_left.map(|_| times.max_answers.saturating_sub(1));
        ends.qpn = Some(accept.qpn);
        let plan = &mut ends.plan;
        plan.max_dest_rd_atomic = accept.responder_resources;
        plan.max_rd_atomic = accept.initiator_depth;
        let (ca_guid, target_ack_delay) = identity;
        let rep = CmMessage::Rep(Rep {
            local_id: ends.id,
            remote_id: ends.remote_id,
            qkey: feroce_wire::Qkey(0),
            qpn: accept.qpn,
            eecn: 0,
            psn: ends.plan.rq_psn,
            responder_resources: accept.responder_resources,
            initiator_depth: accept.initiator_depth,
            target_ack_delay,
            failover: 0,
            flow_control: accept.flow_control && self.flow_control,
            rnr_retry: accept.rnr_retry & 7,
            srq: accept.srq,
            ca_guid,
            private_data: accept.private_data,
        });
        let bytes = out.send(ends.peer, ends.transaction, &rep);
        let retry =
            Retry::new(now, bytes, self.response_ns, times.retries).probing(now, times.probe_ns);
        RepSent { ends, retry }
    }

    /// The consumer rejects: the manager sends REJ.
    pub(crate) fn reject(self, now: Instant, rej: Rej, times: &Times, out: &mut Out) -> Answered {
        let bytes = out.send(self.ends.peer, self.ends.transaction, &CmMessage::Rej(rej));
        let patience_ns = if self.asked_for_time { code_ns(times.mra_timeout) } else { 0 };
        Answered {
            id: self.ends.id,
            peer: self.ends.peer,
            key: (Kind::Connection, self.ends.peer.remote, self.ends.remote_id),
            bytes: Box::new(bytes),
            until: now.plus_nanos(times.remember_ns + patience_ns),
        }
    }

    /// A duplicate of REQ arrives while the consumer decides: the manager answers MRA, which asks
    /// the peer for more time.
    pub(crate) fn on_duplicate_req(mut self, times: &Times, out: &mut Out) -> Self {
        self.asked_for_time = true;
        let mra = Mra {
            local_id: self.ends.id,
            remote_id: self.ends.remote_id,
            stage: Stage::Req,
            service_timeout: times.mra_timeout,
            private_data: [0; 222],
        };
        out.counters.duplicate += 1;
        out.send(self.ends.peer, self.ends.transaction, &CmMessage::Mra(mra));
        self
    }
}

/// REP is sent; the manager waits for RTU.
#[derive(Debug)]
pub(crate) struct RepSent {
    pub(crate) ends: BoxedEnds,
    pub(crate) retry: Retry,
}

impl RepSent {
    /// RTU, or the first packet on the queue pair, shows that the peer is ready.
    pub(crate) fn establish(mut self, out: &mut Out) -> Established {
        self.ends.confirm();
        out.tell(self.ends.is_silent, Event::Established { conn: self.ends.conn() });
        Established { ends: self.ends, rtu: None }
    }

    /// The consumer disconnects before RTU arrives. A peer that has received REP gets the DREQ; the
    /// next REQ of a peer that has not is refused as stale.
    pub(crate) fn disconnect(self, now: Instant, times: &Times, out: &mut Out) -> DreqSent {
        Established { ends: self.ends, rtu: None }.disconnect(now, times, out)
    }

    /// A duplicate of REQ arrives, so the REP was probably lost: the manager sends it again.
    pub(crate) fn on_duplicate_req(self, out: &mut Out) -> Self {
        out.counters.duplicate += 1;
        out.repeat(self.ends.peer, &self.retry.bytes);
        self
    }

    /// MRA arrives: the peer asks for more time.
    pub(crate) fn on_mra(mut self, now: Instant, mra: &Mra) -> Self {
        self.ends.confirm();
        self.retry.extend(now, mra.service_timeout);
        self
    }

    /// Makes room for another request.
    pub(crate) fn evict(self, out: &mut Out) {
        out.counters.half_open_evicted += 1;
        out.tell(self.ends.is_silent, Event::Unreachable { conn: self.ends.conn() });
    }

    /// No RTU arrives in time: the manager sends REP again, or gives up with REJ (timeout).
    pub(crate) fn on_timeout(mut self, now: Instant, out: &mut Out) -> Option<Self> {
        if self.retry.again(now) {
            self.ends.repeat(&self.retry, out);
            return Some(self);
        }
        self.ends.refuse(Stage::Rep, RejReason::TIMEOUT, out);
        out.tell(self.ends.is_silent, Event::Unreachable { conn: self.ends.conn() });
        None
    }
}
