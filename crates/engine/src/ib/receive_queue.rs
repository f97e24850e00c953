//! The receives of a queue pair: taking, flushing and discarding them.

use feroce_mem::PdId;
use feroce_train::Instant;
use feroce_wire::Srqn;

use super::port::Port;
use super::qp::Qp;
use super::receive::Receive;
use crate::hca::cqe::{Cqe, WcOpcode, WcStatus};
use crate::hca::id::{CqId, SrqId};
use crate::hca::qp::RecvSource;

/// Why there is no receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoReceive {
    /// None is posted now.
    NotReady,
    /// There will never be one: an XRC packet names no queue of the domain, or a dead one.
    BadSrq,
}

impl Qp {
    /// Takes the next receive; `srqn` is what an XRC packet names.
    #[inline]
    pub(super) fn take_receive(
        &mut self,
        port: &mut Port,
        srqn: Option<Srqn>,
    ) -> Result<Receive, NoReceive> {
        let (pd, recv_cq) = (self.common.init.pd, self.common.init.recv_cq);
        let (wr, cq, pd, srq) = match &mut self.common.rq {
            RecvSource::Own(ring) => (ring.pop(), recv_cq, pd, None),
            RecvSource::Srq(id) => {
                // Its receives were posted in its own protection domain, which need not be ours.
                let pd = port.hca.srqs.get(id.0).map_or(pd, |srq| srq.attr.pd);
                (port.hca.take_from_srq(*id), recv_cq, pd, Some(*id))
            }
            RecvSource::Xrc(_) => {
                let (id, pd, cq) = self.xrc_srq(port, srqn).ok_or(NoReceive::BadSrq)?;
                if port.hca.cqs.get(cq.0).is_none_or(|cq| cq.overrun) {
                    return Err(NoReceive::BadSrq);
                }
                (port.hca.take_from_srq(id), cq, pd, Some(id))
            }
            RecvSource::None => (None, recv_cq, pd, None),
        };
        let wr = wr.ok_or(NoReceive::NotReady)?;
        Ok(Receive { wr, filled: 0, cq, pd, srq })
    }

    /// The shared receive queue that an XRC packet names, if it is in our domain.
    pub(super) fn xrc_srq(&self, port: &Port, srqn: Option<Srqn>) -> Option<(SrqId, PdId, CqId)> {
        let RecvSource::Xrc(domain) = self.common.rq else {
            return None;
        };
        let id = SrqId::from_number(srqn?)?;
        let srq = port.hca.srqs.get(id.0)?;
        let (xrcd, cq) = srq.attr.xrc?;
        (xrcd == domain).then_some((id, srq.attr.pd, cq))
    }

    /// How many receives are posted, if the queue pair has a receive queue of its own.
    #[inline]
    pub(super) fn receives_posted(&self) -> Option<u32> {
        match &self.common.rq {
            RecvSource::Own(ring) => Some(ring.len() as u32),
            _ => None,
        }
    }

    /// Completes every posted receive as flushed, oldest first.
    pub(super) fn flush_receives(&mut self, port: &mut Port, now: Instant) {
        if let Some(receive) = self.rsp.take_receive() {
            let cqe = receive.completion(self.common.qpn, WcOpcode::Recv, WcStatus::Flushed, now);
            port.hca.complete_recv(receive.cq(), Cqe { byte_len: 0, ..cqe });
        }
        let (qpn, cq) = (self.common.qpn, self.common.init.recv_cq);
        if let RecvSource::Own(ring) = &mut self.common.rq {
            while let Some(wr) = ring.pop() {
                let cqe = Cqe::new(wr.wr_id, qpn, WcOpcode::Recv, WcStatus::Flushed, now);
                port.hca.complete_recv(cq, cqe);
            }
        }
    }

    /// A shared receive queue goes away, and with it a receive that a message had begun to fill.
    pub(crate) fn forget_receive_of(&mut self, srq: SrqId) {
        if self.rsp.receive.as_ref().is_some_and(|receive| receive.srq == Some(srq)) {
            self.rsp.receive = None;
        }
    }

    /// Drops every posted receive without a completion: the queue pair goes back to RESET.
    pub(super) fn discard_receives(&mut self) {
        if let RecvSource::Own(ring) = &mut self.common.rq {
            while ring.pop().is_some() {}
        }
    }
}
