//! Connecting, accepting, rejecting and disconnecting.

use feroce_cm::rdma::{
    self, ConnParam, UDP_QKEY, connect_data, fill, flow_label, gid_of, sidr_data,
};
use feroce_cm::{Ask, CallError, ConnId, Connect, PathParams, Reply, Transport};
use feroce_engine::{QpAttr, QpState, QpType};
use feroce_train::{Framing, Instant};
use feroce_wire::cm::RejReason;
use feroce_wire::mad::PathRecord;
use feroce_wire::{Psn, Qpn};

use super::id::SoftId;
use super::service::Service;
use super::shared::{IdQp, Inner, Stage};
use super::{attr, subnet};
use crate::cm::CmError;
use crate::driver::State;
use crate::{Context, Error, Qp, sys};

/// Connecting and disconnecting.
impl SoftId {
    /// Gives the id a queue pair, which it brings up and down from now on: a connected one gets to
    /// INIT now, a datagram one to RTS. A caller that drops the queue pair before the id calls
    /// [`SoftId::release_qp`] first.
    pub(crate) fn use_qp(&self, qp: &Qp) -> Result<(), Error> {
        self.use_qpn(qp.qpn(), qp.qp_type(), qp.handle().srq().is_some())
    }

    /// The same for a queue pair of which the caller has only the number.
    pub(crate) fn use_qpn(&self, qpn: Qpn, qp_type: QpType, srq: bool) -> Result<(), Error> {
        if (qp_type == QpType::Ud) != self.is_datagrams() {
            return Err(CmError::NoQp.into());
        }
        let psn = Psn::new(sys::random_u64()? as u32);
        let qkey = if qp_type == QpType::Ud { self.qkey()? } else { UDP_QKEY };
        self.with_service(|s, now, _| {
            if qp_type == QpType::Ud {
                attr::bring_up_datagrams(&mut s.engine, now, qpn, qkey, psn)?;
            } else {
                Service::modify_qp(s, now, qpn, &QpAttr::init(Default::default()))?;
            }
            Ok(())
        })?;
        self.adopt_qpn(qpn, qp_type, srq)
    }

    /// Gives the id a queue pair, perhaps of another id, and leaves it in its state.
    pub(crate) fn adopt_qpn(&self, qpn: Qpn, qp_type: QpType, srq: bool) -> Result<(), Error> {
        self.with_service(|s, _, id| {
            let qp = Some(IdQp { qpn, qp_type, srq });
            let old = std::mem::replace(&mut id.lock().qp, qp);
            if let Some(cm) = Service::of(s).filter(|_| old != qp) {
                old.into_iter().for_each(|old| cm.forget_qp(old.qpn, id));
                cm.use_qp(qpn, id);
            }
            Ok(())
        })
    }

    /// Detaches the queue pair from the id; from then on, its owner changes its state.
    pub(crate) fn release_qp(&self) {
        let Some(qp) = self.shared().lock().qp.take() else { return };
        if let Some(Ok(driver)) = self.context().map(Context::driver) {
            driver.control(|s, _| {
                if let Some(cm) = Service::of(s) {
                    cm.forget_qp(qp.qpn, self.shared());
                }
            });
        }
    }

    /// Asks the peer for a connection, or for its datagram service. Events: established, or connect
    /// response if the id has no queue pair; rejected, unreachable, connect error.
    pub(crate) fn connect(&self, param: &ConnParam) -> Result<(), Error> {
        let (src, dst, service, is_native) = {
            let inner = self.shared().lock();
            let service = inner.service(self.port_space());
            match (inner.stage, inner.local, inner.peer, service) {
                (Stage::RouteResolved, Some(src), Some(dst), Some(service)) => {
                    (src, dst, service, inner.ib.is_some())
                }
                _ => return Err(CmError::WrongState.into()),
            }
        };
        if self.is_iwarp() {
            return self.connect_iwarp(param);
        }
        let path = self.shared().lock().path;
        let peer = match &path {
            Some(path) => subnet::peer(path),
            None => self.peer_at(gid_of(src.ip()), gid_of(dst.ip()))?,
        };
        if self.is_datagrams() {
            let private_data = match is_native {
                true => fill(&param.private_data),
                false => sidr_data(src, dst, &param.private_data),
            };
            let private_data = private_data.map_err(CmError::from)?;
            return self.ask(&Ask { peer, service, private_data }, path);
        }
        let private_data = match is_native {
            true => fill(&param.private_data),
            false => connect_data(src, dst, &param.private_data),
        };
        let private_data = private_data.map_err(CmError::from)?;
        self.start(|s, now, inner| {
            let limits = s.engine.config().limits;
            let cap = |n: u8| n.min(limits.max_rd_atomic);
            let (qpn, srq) = inner.qp.map_or((param.qpn, param.srq), |qp| (qp.qpn, qp.srq));
            let transport = match inner.qp {
                Some(IdQp { qp_type: QpType::Uc, .. }) => Transport::Uc,
                _ => Transport::Rc,
            };
            let params = match &path {
                Some(path) => subnet::params(path),
                None => PathParams {
                    mtu: s.engine.config().port_mtu,
                    flow_label: flow_label(src.port(), dst.port()),
                    traffic_class: inner.options.tos,
                    sl: attr::priority(peer.framing, inner.options.tos),
                    hop_limit: if peer.framing == Framing::RoceV1 { 1 } else { 64 },
                    ..PathParams::default()
                },
            };
            let chosen = inner.options.ack_timeout.map(|t| t.saturating_sub(1));
            let packet_life_time = chosen.or(params.packet_life_time);
            let connect = Connect {
                peer,
                service,
                transport,
                path: PathParams { packet_life_time, ..params },
                qpn,
                srq,
                responder_resources: cap(param.responder_resources),
                initiator_depth: cap(param.initiator_depth),
                flow_control: param.flow_control,
                retry_count: param.retry_count.min(7),
                rnr_retry: param.rnr_retry_count.min(7),
                private_data,
            };
            let cm = Service::of(s).ok_or(CmError::DeviceGone)?;
            path.iter().for_each(|path| cm.learn(path.dlid, path.sl));
            Ok(cm.manager.connect(now, &connect))
        })
    }

    /// Asks the peer for its datagram service.
    fn ask(&self, ask: &Ask, path: Option<PathRecord>) -> Result<(), Error> {
        self.start(|s, now, _| {
            let cm = Service::of(s).ok_or(CmError::DeviceGone)?;
            path.iter().for_each(|path| cm.learn(path.dlid, path.sl));
            Ok(cm.manager.ask(now, ask))
        })
    }

    /// Starts an exchange that ends with an event of this id.
    fn start(
        &self,
        f: impl FnOnce(&mut State, Instant, &mut Inner) -> Result<ConnId, Error>,
    ) -> Result<(), Error> {
        self.with_service(|s, now, id| {
            let mut inner = id.lock();
            let conn = f(s, now, &mut inner)?;
            inner.conn = Some(conn);
            inner.stage = Stage::Connecting;
            drop(inner);
            if let Some(cm) = Service::of(s) {
                cm.attach(conn, id);
            }
            Ok(())
        })
    }

    /// Accepts a request. Event: established, on connections; a datagram service needs none.
    pub(crate) fn accept(&self, param: &ConnParam) -> Result<(), Error> {
        if self.is_iwarp() {
            return self.accept_iwarp(param);
        }
        let qkey = if self.is_datagrams() { self.qkey()? } else { UDP_QKEY };
        self.with_service(|s, now, id| {
            let (conn, qp) = {
                let inner = id.lock();
                match (inner.stage, inner.conn) {
                    (Stage::Requested, Some(conn)) => (conn, inner.qp),
                    _ => return Err(CmError::WrongState.into()),
                }
            };
            let most = s.engine.config().limits.max_rd_atomic;
            let cm = Service::of(s).ok_or(CmError::DeviceGone)?;
            let qpn = qp.map_or(param.qpn, |qp| qp.qpn);
            let is_too_long = match id.is_datagrams {
                true => fill::<136>(&param.private_data).err(),
                false => rdma::accept(param).err(),
            };
            if let Some(e) = is_too_long {
                // As Linux does: the peer would wait for an answer that will not come.
                let _ = cm.manager.reject(now, conn, RejReason::CONSUMER, &[0; 148]);
                id.lock().stage = Stage::Over;
                if let Some(qp) = qp.filter(|qp| qp.qp_type != QpType::Ud) {
                    let _ = Service::modify_qp(s, now, qp.qpn, &QpAttr::to(QpState::Err));
                }
                return Err(CmError::from(e).into());
            }
            if id.is_datagrams {
                let private_data = fill(&param.private_data).map_err(CmError::from)?;
                let reply = Reply { qpn, qkey, private_data };
                cm.manager.reply(now, conn, &reply).map_err(CmError::from)?;
                id.lock().stage = Stage::Connected;
                return Ok(());
            }
            let mut accept = rdma::accept(param).map_err(CmError::from)?;
            accept.qpn = qpn;
            accept.srq = qp.map_or(param.srq, |qp| qp.srq);
            accept.responder_resources = accept.responder_resources.min(most);
            accept.initiator_depth = accept.initiator_depth.min(most);
            if let (Some(qp), Some(mut plan)) = (qp, cm.manager.plan(conn).copied()) {
                plan.max_dest_rd_atomic = accept.responder_resources;
                plan.max_rd_atomic = accept.initiator_depth;
                Service::bring_up(s, now, qp.qpn, &plan)?;
            }
            let cm = Service::of(s).ok_or(CmError::DeviceGone)?;
            cm.manager.accept(now, conn, &accept).map_err(CmError::from)?;
            id.lock().stage = Stage::Accepted;
            Ok(())
        })
    }

    /// The parameters that accept a request exactly as the peer asks.
    pub(crate) fn offered(&self) -> Option<ConnParam> {
        let offer = self.shared().lock().offer.clone()?;
        Some(ConnParam { private_data: Vec::new(), qpn: Qpn::default(), srq: false, ..offer })
    }

    /// Rejects a connect request, or a reply.
    pub(crate) fn reject(&self, private_data: &[u8]) -> Result<(), Error> {
        if self.is_iwarp() {
            return self.reject_iwarp(private_data);
        }
        let private_data = fill(private_data).map_err(CmError::from)?;
        self.with_conn(|cm, now, conn, id| {
            cm.manager.reject(now, conn, RejReason::CONSUMER, &private_data)?;
            id.lock().stage = Stage::Over;
            Ok(())
        })
    }

    /// Completes a connection on an id without queue pair, after a connect response; or reports
    /// that data arrived before the peer's message that it is ready to use (RTU).
    pub(crate) fn establish(&self) -> Result<(), Error> {
        if self.is_iwarp() {
            return self.establish_iwarp();
        }
        self.with_conn(|cm, _, conn, id| {
            if id.lock().stage == Stage::Responded {
                cm.manager.ready(conn)?;
                id.lock().stage = Stage::Connected;
                return Ok(());
            }
            Ok(cm.manager.establish(conn)?)
        })
    }

    /// Ends the connection; the requests posted on the queue pair are flushed. Event: disconnected.
    /// A datagram service has no connection to end, and no event follows.
    pub(crate) fn disconnect(&self) -> Result<(), Error> {
        if self.is_iwarp() {
            return self.disconnect_iwarp();
        }
        self.with_service(|s, now, id| {
            let (conn, qp, stage) = {
                let inner = id.lock();
                (inner.conn, inner.qp, inner.stage)
            };
            let has_begun = matches!(
                stage,
                Stage::Connecting | Stage::Requested | Stage::Connected | Stage::Over
            );
            let is_datagrams = id.is_datagrams && has_begun;
            if conn.is_none() && !is_datagrams {
                return Err(CmError::WrongState.into());
            }
            if let Some(qp) = qp {
                let _ = Service::modify_qp(s, now, qp.qpn, &QpAttr::to(QpState::Err));
            }
            let Some(conn) = conn.filter(|_| !is_datagrams) else { return Ok(()) };
            let cm = Service::of(s).ok_or(CmError::DeviceGone)?;
            match cm.manager.disconnect(now, conn) {
                // The connection has ended, and the manager has removed it already.
                Err(CallError::Unknown) => Ok(()),
                result => Ok(result.map_err(CmError::from)?),
            }
        })
    }
}
