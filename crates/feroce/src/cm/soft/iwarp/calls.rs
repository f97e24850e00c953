//! What consumers do with ids on a device that speaks iWARP.

use std::net::SocketAddr;
use std::sync::Arc;

use feroce_cm::rdma::{BindError, ConnParam, TooLong, ip_of};
use feroce_cm::{Accepts, CallError};
use feroce_engine::iwarp::{Begin, HandshakeError};
use feroce_engine::{Engine, QpAttr, QpState};
use feroce_link::tcp::{StreamId, TcpConnect, TcpListenId};
use feroce_mem::Access;
use feroce_train::Instant;
use feroce_wire::{Gid, Qpn};

use super::conn::{Asking, Conn, Listening, Phase};
use super::{IwarpService, LEAVE_NS, MAX_LEAVING, PATIENCE_NS, REPLY_NS, attach, event_of};
use crate::Error;
use crate::cm::CmError;
use crate::cm::soft::id::SoftId;
use crate::cm::soft::manager::LISTEN_PATIENCE_NS;
use crate::cm::soft::queued::Queued;
use crate::cm::soft::service::{tell, with_scope};
use crate::cm::soft::shared::{Inner, Shared, Stage};
use crate::context::Context;
use crate::driver::StreamOrder;

impl IwarpService {
    /// An id asks for a connection on a stream that is being opened.
    fn ask(&mut self, now: Instant, id: &Arc<Shared>, stream: StreamId, asking: Asking) {
        let phase = Phase::Connecting(asking);
        self.conns.insert(stream, Conn { id: Arc::clone(id), phase, reminders: 0 });
        self.due.set(stream, now.plus_nanos(REPLY_NS));
    }

    /// Accepts a request.
    fn accept(
        &mut self,
        engine: &mut Engine,
        now: Instant,
        (stream, qpn): (StreamId, Qpn),
        param: &ConnParam,
    ) -> Result<(), Error> {
        let conn = self.conns.get_mut(&stream).ok_or(CmError::WrongState)?;
        let Phase::Requested(request, _) = &mut conn.phase else {
            return Err(CmError::WrongState.into());
        };
        request.limit_reads(param.responder_resources.into(), param.initiator_depth.into());
        let is_enhanced = request.reads().is_some();
        let accepted = request.accept(&param.private_data).map_err(too_long);
        let (setup, reply) = match accepted {
            Ok(accepted) => accepted,
            Err(e) => {
                // As Linux does: the peer would wait for an answer that will not come.
                let _ = self.reject(now, stream, &[]);
                return Err(e.into());
            }
        };
        attach(engine, now, qpn, &setup)?;
        self.orders.push(StreamOrder::Send(stream, reply));
        self.orders.push(StreamOrder::Read(stream, true));
        if let Some(conn) = self.conns.get_mut(&stream) {
            let phase = std::mem::replace(&mut conn.phase, Phase::Connected(qpn));
            self.answered(&phase);
        }
        self.connected(now, (stream, qpn), &setup, Vec::new());
        if is_enhanced && setup.begin == Begin::Await(None) {
            self.due.set(stream, now.plus_nanos(PATIENCE_NS));
        }
        Ok(())
    }

    /// Rejects a request. The peer closes the stream when it has read that.
    fn reject(
        &mut self,
        now: Instant,
        stream: StreamId,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let conn = self.conns.get(&stream).ok_or(CmError::WrongState)?;
        let Phase::Requested(request, _) = &conn.phase else { return Err(CmError::WrongState) };
        let reply = request.reject(private_data).map_err(too_long)?;
        let conn = self.take_conn(stream);
        self.orders.push(StreamOrder::Send(stream, reply));
        if self.leaving.len() < MAX_LEAVING {
            self.orders.push(StreamOrder::Read(stream, true));
            self.leaving.insert(stream);
            self.due.set(stream, now.plus_nanos(LEAVE_NS));
        } else {
            self.orders.push(StreamOrder::Finish(stream));
        }
        if let Some(conn) = conn {
            self.answered(&conn.phase);
            let mut inner = conn.id.lock();
            (inner.stage, inner.stream) = (Stage::Over, None);
        }
        Ok(())
    }

    /// An id goes away: ends its connection, and rejects a request that it has not answered.
    pub(in crate::cm::soft) fn destroy(
        &mut self,
        engine: &mut Engine,
        now: Instant,
        stream: StreamId,
    ) {
        let _ = self.reject(now, stream, &[]);
        let Some(conn) = self.take_conn(stream) else { return };
        match conn.phase {
            Phase::Connected(qpn) => {
                self.of_qp.remove(&qpn);
                let _ = engine.modify_qp(now, qpn, &QpAttr::to(QpState::Err));
            }
            _ => self.orders.push(StreamOrder::Finish(stream)),
        }
    }

    /// An id does not listen any more.
    pub(in crate::cm::soft) fn unlisten(&mut self, listener: TcpListenId) {
        self.listeners.remove(&listener);
        let of_it = self.half_open.iter().filter(|(_, peer)| peer.listener == listener);
        let streams: Vec<StreamId> = of_it.map(|(stream, _)| *stream).collect();
        for stream in streams {
            self.take_half_open(stream);
            self.orders.push(StreamOrder::Finish(stream));
        }
    }
}

fn too_long(error: HandshakeError) -> CmError {
    match error {
        HandshakeError::PrivateDataTooLong { most } => CmError::PrivateData(TooLong { most }),
        _ => CmError::WrongState,
    }
}

/// What the calls of an id do if its device speaks iWARP.
impl SoftId {
    pub(in crate::cm::soft) fn is_iwarp(&self) -> bool {
        self.context().is_some_and(is_iwarp)
    }

    /// The attributes of a queue pair: those that iWARP has are set when it is connected.
    pub(in crate::cm::soft) fn qp_attr_iwarp(&self, state: QpState) -> Result<QpAttr, Error> {
        match state {
            QpState::Init => Ok(QpAttr::init(Access::REMOTE_WRITE | Access::REMOTE_READ)),
            // The connection brings it there: nothing is left to a program, as with Linux.
            QpState::Rtr | QpState::Rts => Ok(QpAttr::default()),
            _ => Err(CmError::WrongState.into()),
        }
    }

    pub(in crate::cm::soft) fn connect_iwarp(&self, param: &ConnParam) -> Result<(), Error> {
        let context = self.context().ok_or(CmError::WrongState)?;
        let id = self.shared();
        let failed = context.driver()?.control_link(|s, link, now| {
            let most = u16::from(s.engine.config().limits.max_rd_atomic);
            let (cm, engine) = IwarpService::of(s).ok_or(CmError::DeviceGone)?;
            let streams = link.streams().ok_or(CmError::DeviceGone)?;
            let mut inner = id.lock();
            let (Stage::RouteResolved, Some(local), Some(peer)) =
                (inner.stage, inner.local, inner.peer)
            else {
                return Err(Error::from(CmError::WrongState));
            };
            let qpn = inner.qp.map_or(param.qpn, |qp| qp.qpn);
            if engine.query_qp(qpn).is_none() {
                return Err(CmError::NoQp.into());
            }
            let room = cm.config.max_private_data();
            if param.private_data.len() > room {
                return Err(CmError::PrivateData(TooLong { most: room }).into());
            }
            let local = from(&inner, local);
            let tos = inner.options.tos;
            let how = TcpConnect { local, peer, tos, patience_ns: LISTEN_PATIENCE_NS };
            inner.stage = Stage::Connecting;
            match streams.connect(now, &how) {
                Ok(stream) => {
                    inner.stream = Some(stream);
                    drop(inner);
                    let asking = Asking {
                        qpn,
                        ird: most.min(param.responder_resources.into()),
                        ord: most.min(param.initiator_depth.into()),
                        private_data: param.private_data.clone(),
                    };
                    cm.ask(now, id, stream, asking);
                    Ok(None)
                }
                Err(e) => {
                    inner.stage = Stage::Over;
                    Ok(Some(event_of(&e)))
                }
            }
        })?;
        if let Some((kind, status)) = failed {
            tell(Queued::new(kind, id, status));
        }
        Ok(())
    }

    pub(in crate::cm::soft) fn accept_iwarp(&self, param: &ConnParam) -> Result<(), Error> {
        self.with_service(|s, now, id| {
            let (stream, qpn) = {
                let inner = id.lock();
                match (inner.stage, inner.stream) {
                    (Stage::Requested, Some(stream)) => {
                        (stream, inner.qp.map_or(param.qpn, |qp| qp.qpn))
                    }
                    _ => return Err(CmError::WrongState.into()),
                }
            };
            let (cm, engine) = IwarpService::of(s).ok_or(CmError::DeviceGone)?;
            cm.accept(engine, now, (stream, qpn), param)
        })
    }

    pub(in crate::cm::soft) fn reject_iwarp(&self, private_data: &[u8]) -> Result<(), Error> {
        self.with_service(|s, now, id| {
            let stream = id.lock().stream.ok_or(CmError::WrongState)?;
            let (cm, _) = IwarpService::of(s).ok_or(CmError::DeviceGone)?;
            Ok(cm.reject(now, stream, private_data)?)
        })
    }

    /// There is no message that completes a connection: the peer's first one does.
    pub(in crate::cm::soft) fn establish_iwarp(&self) -> Result<(), Error> {
        match self.shared().lock().stage {
            Stage::Connected => Err(CmError::from(CallError::Established).into()),
            _ => Err(CmError::WrongState.into()),
        }
    }

    pub(in crate::cm::soft) fn disconnect_iwarp(&self) -> Result<(), Error> {
        self.with_service(|s, now, id| {
            let (stage, qp) = {
                let inner = id.lock();
                (inner.stage, inner.qp)
            };
            let (cm, engine) = IwarpService::of(s).ok_or(CmError::DeviceGone)?;
            let stream = id.lock().stream;
            let qpn = match stream.and_then(|stream| cm.conns.get(&stream)) {
                Some(Conn { phase: Phase::Connected(qpn), .. }) => Some(*qpn),
                _ if stage == Stage::Over => qp.map(|qp| qp.qpn),
                _ => return Err(CmError::WrongState.into()),
            };
            // The end of the stream is an event of the engine, and makes that of the id.
            qpn.into_iter().for_each(|qpn| {
                let _ = engine.modify_qp(now, qpn, &QpAttr::to(QpState::Err));
            });
            Ok(())
        })
    }

    /// Listens on a device, at each of its addresses that the id accepts requests at. If that fails
    /// at one of them, the id listens at none, and may try again.
    pub(in crate::cm::soft) fn listen_iwarp(
        &self,
        context: &Context,
        accepts: Accepts,
        backlog: u32,
    ) -> Result<(), Error> {
        let listened = self.listen_at_all(context, accepts, backlog);
        if listened.is_err() {
            self.owner.end_iwarp();
            let queue = {
                let mut inner = self.shared().lock();
                inner.stage = Stage::Bound;
                Arc::clone(&inner.queue)
            };
            queue.forget(&self.owner.manager, self.shared());
        }
        listened
    }

    fn listen_at_all(
        &self,
        context: &Context,
        accepts: Accepts,
        backlog: u32,
    ) -> Result<(), Error> {
        let id = self.shared();
        let port = id.lock().local.map_or(0, |local| local.port());
        let scope = context.device().interface_index().unwrap_or(0);
        let own = context.port().gids.into_iter().map(|entry| entry.gid);
        let addresses: Vec<Gid> = own.filter(|gid| !gid.is_zero() && accepts.takes(*gid)).collect();
        for gid in addresses {
            let address = with_scope((ip_of(gid), port).into(), scope);
            let listener = context.driver()?.control_link(|s, link, _| {
                let streams = link.streams().ok_or(CmError::DeviceGone)?;
                let (listener, _) = streams.listen(address, backlog).map_err(bind_error)?;
                let (cm, _) = IwarpService::of(s).ok_or(CmError::DeviceGone)?;
                let listening =
                    Listening { id: Arc::clone(id), backlog: backlog.max(1), unanswered: 0 };
                cm.listeners.insert(listener, listening);
                Ok::<_, Error>(listener)
            })?;
            let mut inner = id.lock();
            inner.stage = Stage::Listening;
            inner.tcp_listens.push((Arc::downgrade(context.soft()?), listener));
        }
        let mut inner = id.lock();
        inner.stage = Stage::Listening;
        // The listeners hold it now.
        inner.reserved = None;
        Ok(())
    }
}

/// Whether a device speaks iWARP.
pub(in crate::cm::soft) fn is_iwarp(context: &Context) -> bool {
    context.soft().is_ok_and(|soft| soft.iwarp.is_some())
}

/// The address to connect from: the port is the kernel's choice unless the consumer has one.
fn from(inner: &Inner, mut local: SocketAddr) -> SocketAddr {
    if !inner.has_port {
        local.set_port(0);
    }
    local
}

fn bind_error(e: std::io::Error) -> Error {
    match e.kind() {
        std::io::ErrorKind::AddrInUse => CmError::Port(BindError::InUse).into(),
        _ => e.into(),
    }
}
