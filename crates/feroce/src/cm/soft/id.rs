//! Ids: one end of a connection, from address to disconnection.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, PoisonError};

use feroce_cm::rdma::{self, EventKind, PortSpace, UDP_QKEY, gid_of};
use feroce_cm::{Accepts, ConnId};
use feroce_engine::{QpAttr, QpState};
use feroce_train::Instant;
use feroce_wire::Psn;
use feroce_wire::cm::ServiceId;

use super::channel::SoftChannel;
use super::claim::Claim;
use super::manager::SoftManager;
use super::queued::Queued;
use super::service::{Service, tell};
use super::shared::{Owner, Shared, Stage};
use super::{attr, mcast};
use crate::cm::UdParam;
use crate::cm::{CmError, IdOption};
use crate::context::Context;
use crate::driver::State;
use crate::{Error, sys};

/// Backlog of a listener, if the caller gives none.
const DEFAULT_BACKLOG: u32 = 1024;

/// One end of a connection, a listener, or a client of datagram services. Cheap to clone; dropping
/// the last clone destroys the id and notifies the peer.
#[derive(Clone, Debug)]
pub(crate) struct SoftId {
    pub(super) owner: Arc<Owner>,
}

/// Queries.
impl SoftId {
    /// A number that no other id of the process has.
    pub(crate) fn number(&self) -> u64 {
        self.owner.shared.number
    }

    /// Its port space.
    pub(crate) fn port_space(&self) -> PortSpace {
        self.owner.shared.space
    }

    /// The channel that its events go to.
    pub(crate) fn channel(&self) -> SoftChannel {
        let channel = self.owner.channel.lock().unwrap_or_else(PoisonError::into_inner);
        SoftChannel { owner: Arc::clone(&channel) }
    }

    /// A new channel.
    pub(crate) fn another_channel(&self) -> Result<SoftChannel, Error> {
        SoftChannel::new(&SoftManager { inner: Arc::clone(&self.owner.manager) })
    }

    /// The local address, once it is bound.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        self.shared().lock().local
    }

    /// The peer's address, once it is known.
    pub(crate) fn peer_addr(&self) -> Option<SocketAddr> {
        self.shared().lock().peer
    }

    /// The device, once an address has chosen one.
    pub(crate) fn context(&self) -> Option<&Context> {
        self.owner.context.get()
    }

    /// The attributes that a queue pair of this connection needs to get into a state.
    pub(crate) fn qp_attr(&self, state: QpState) -> Result<QpAttr, Error> {
        let (conn, is_datagrams) = {
            let inner = self.shared().lock();
            (inner.conn, self.is_datagrams())
        };
        let known = self.with_service(|s, _, _| {
            let most = s.engine.config().limits.max_rd_atomic;
            let plan = conn.and_then(|conn| s.cm.as_ref()?.manager.plan(conn).copied());
            Ok(match (is_datagrams, state, plan) {
                (true, QpState::Init, _) => Some(QpAttr::init_ud(UDP_QKEY)),
                (true, QpState::Rtr, _) => Some(QpAttr::to(QpState::Rtr)),
                (true, QpState::Rts, _) => Some(QpAttr::rts_unreliable(Psn::new(0))),
                (false, QpState::Init, None) => Some(QpAttr::init(Default::default())),
                (false, _, Some(plan)) => attr::connected(&plan, s.engine.gids(), most, state),
                _ => None,
            })
        })?;
        known.ok_or_else(|| CmError::WrongState.into())
    }
}

/// Operations.
impl SoftId {
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.owner.shared
    }

    pub(super) fn is_datagrams(&self) -> bool {
        self.owner.shared.space == PortSpace::Udp
    }

    /// Sets an option, before the call that uses it. Linux says when: the reuse of an address can
    /// be allowed until the id listens, and forbidden until it is bound; the restriction to one
    /// address family can be set on an id that is at most bound.
    pub(crate) fn set_option(&self, option: IdOption) -> Result<(), Error> {
        let mut inner = self.shared().lock();
        let (is_idle, stage) = (inner.stage == Stage::Idle, inner.stage);
        match option {
            IdOption::Tos(tos) => inner.options.tos = tos,
            IdOption::AckTimeout(code) => inner.options.ack_timeout = Some(code & 31),
            IdOption::ReuseAddr(on) if is_idle || on && stage != Stage::Listening => {
                inner.options.reuse_addr = on;
            }
            IdOption::AfOnly(on) if is_idle || stage == Stage::Bound => inner.options.af_only = on,
            IdOption::ReuseAddr(_) | IdOption::AfOnly(_) => return Err(CmError::WrongState.into()),
        }
        let (binding, options) = (inner.binding, inner.options);
        // The lock of an id is the last one that a thread takes.
        drop(inner);
        if let Some(binding) = binding {
            self.owner.manager.ports().set(binding, (options.reuse_addr, options.af_only));
        }
        Ok(())
    }

    /// Binds the id to an address. Port 0 selects a free port; the unspecified address selects all
    /// addresses.
    pub(crate) fn bind(&self, addr: SocketAddr) -> Result<(), Error> {
        if self.shared().lock().stage != Stage::Idle {
            return Err(CmError::WrongState.into());
        }
        let is_anywhere = addr.ip().is_unspecified();
        let context =
            (!is_anywhere).then(|| self.owner.manager.context_for(addr.ip())).transpose()?;
        let random = sys::random_u64()? as u32;
        let mut inner = self.shared().lock();
        let how = (inner.options.reuse_addr, inner.options.af_only);
        let space = self.port_space();
        let mut ports = self.owner.manager.ports();
        let binding =
            ports.bind(space, addr.ip(), addr.port(), how, random).map_err(CmError::from)?;
        // The device is chosen only after the port is bound: an id whose bind fails may still bind
        // another address, on another device.
        context.into_iter().for_each(|context| self.choose(context));
        let mut local = addr;
        local.set_port(binding.port());
        inner.binding = Some(binding);
        inner.local = Some(local);
        inner.stage = Stage::Bound;
        Ok(())
    }

    /// Chooses the device, unless one was chosen before.
    fn choose(&self, context: Context) {
        let _ = self.owner.context.set(context);
    }

    /// Finds the device with a route to a peer. Event: address resolved, or address error. The
    /// kernel answers a route lookup at once, so the call never reaches the time limit.
    pub(crate) fn resolve_addr(
        &self,
        src: Option<SocketAddr>,
        dst: SocketAddr,
        _timeout_ms: u32,
    ) -> Result<(), Error> {
        let (stage, local) = {
            let inner = self.shared().lock();
            (inner.stage, inner.local)
        };
        if !matches!(stage, Stage::Idle | Stage::Bound) {
            return Err(CmError::WrongState.into());
        }
        let src = local.or(src).filter(|src| !src.ip().is_unspecified() || src.port() != 0);
        let fixed = src.filter(|src| !src.ip().is_unspecified());
        match self.find_path(stage, src, fixed, dst) {
            Ok(()) => {
                tell(Queued::new(EventKind::AddrResolved, self.shared(), 0));
                Ok(())
            }
            // The source is not an address of this machine, which Linux finds before it starts.
            Err(Error::Cm(CmError::Route(e))) if e.kind() == ErrorKind::AddrNotAvailable => {
                Err(CmError::Route(e).into())
            }
            Err(Error::Cm(CmError::Route(e))) => {
                let errno = e.raw_os_error().unwrap_or(libc::EHOSTUNREACH);
                tell(Queued::new(EventKind::AddrError, self.shared(), -errno));
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    fn find_path(
        &self,
        stage: Stage,
        src: Option<SocketAddr>,
        fixed: Option<SocketAddr>,
        dst: SocketAddr,
    ) -> Result<(), Error> {
        // For a multicast group there is no port to ask the kernel about; the bound address is
        // used.
        let ip = match fixed {
            Some(fixed) if dst.ip().is_multicast() => fixed.ip(),
            _ => self.owner.manager.source_for(fixed, dst)?,
        };
        let mut local = SocketAddr::new(ip, src.map_or(0, |src| src.port()));
        if let (SocketAddr::V6(local), SocketAddr::V6(dst)) = (&mut local, dst)
            && local.ip().is_unicast_link_local()
        {
            local.set_scope_id(dst.scope_id());
        }
        if stage == Stage::Idle {
            self.bind(local)?;
        } else {
            self.choose(self.owner.manager.context_for(ip)?);
        }
        let mut inner = self.shared().lock();
        let port = inner.binding.map_or(0, |binding| binding.port());
        local.set_port(port);
        inner.local = Some(local);
        inner.peer = Some(dst);
        inner.stage = Stage::AddrResolved;
        Ok(())
    }

    /// Resolves the route; on Ethernet this needs no query. Event: route resolved.
    pub(crate) fn resolve_route(&self, _timeout_ms: u32) -> Result<(), Error> {
        let mut inner = self.shared().lock();
        if inner.stage != Stage::AddrResolved {
            return Err(CmError::WrongState.into());
        }
        inner.stage = Stage::RouteResolved;
        drop(inner);
        tell(Queued::new(EventKind::RouteResolved, self.shared(), 0));
        Ok(())
    }

    /// Listens. At most `backlog` requests wait in the channel for the consumer; zero selects a
    /// large default. Events: connect requests.
    pub(crate) fn listen(&self, backlog: u32) -> Result<(), Error> {
        if self.shared().lock().stage == Stage::Idle {
            self.bind((Ipv4Addr::UNSPECIFIED, 0).into())?;
        }
        let (local, binding, af_only) = {
            let inner = self.shared().lock();
            let (Stage::Bound, Some(local), Some(binding)) =
                (inner.stage, inner.local, inner.binding)
            else {
                return Err(CmError::WrongState.into());
            };
            (local, binding, inner.options.af_only)
        };
        self.owner.manager.ports().listen(binding).map_err(CmError::from)?;
        let (accepts, fixed) = match (local.ip(), self.context()) {
            (ip, Some(context)) => (Accepts::Only(gid_of(ip)), Some(context)),
            (IpAddr::V4(_), None) => (Accepts::Ipv4, None),
            (IpAddr::V6(_), None) if af_only => (Accepts::Ipv6, None),
            (IpAddr::V6(_), None) => (Accepts::Any, None),
        };
        let backlog = if backlog == 0 { DEFAULT_BACKLOG } else { backlog };
        let service = ServiceId::ip(self.port_space(), local.port());
        let listen = |contexts: &[Context]| self.listen_on(contexts, service, accepts, backlog);
        if let Some(context) = fixed {
            return listen(std::slice::from_ref(context));
        }
        // The id listens on open devices first, because a peer may already have sent a request
        // there, and finding the other devices takes time.
        let open = self.owner.manager.open();
        listen(&open)?;
        let mut others = self.owner.manager.all()?;
        others.retain(|other| !open.iter().any(|known| Arc::ptr_eq(&known.inner, &other.inner)));
        listen(&others)
    }

    /// Listens on these devices.
    fn listen_on(
        &self,
        contexts: &[Context],
        service: ServiceId,
        accepts: Accepts,
        backlog: u32,
    ) -> Result<(), Error> {
        let id = self.shared();
        let claims = contexts.iter().map(|context| Claim::all(context, service, accepts));
        let claims: Vec<Vec<Claim>> = claims.collect::<Result<_, _>>()?;
        {
            let mut inner = id.lock();
            inner.stage = Stage::Listening;
            inner.claims.extend(claims.into_iter().flatten());
        }
        for context in contexts {
            let listener = context.driver()?.control(|s, now| match &mut s.cm {
                Some(cm) => cm.listen(now, id, service, accepts, backlog).map_err(CmError::from),
                None => Err(CmError::DeviceGone),
            })?;
            id.lock().listens.push((Arc::downgrade(context.soft()?), listener));
        }
        Ok(())
    }

    /// Appends an event of the caller to the channel, behind those that wait.
    pub(crate) fn write_event(&self, kind: EventKind, status: i32, data: &[u8]) {
        let private_data = data.to_vec();
        tell(Queued { private_data, ..Queued::new(kind, self.shared(), status) });
    }

    /// Moves the id to another channel: events that wait, and all later ones, go there.
    pub(crate) fn migrate(&self, channel: &SoftChannel) -> Result<(), Error> {
        let to = Arc::clone(&channel.owner.queue);
        let from = std::mem::replace(&mut self.shared().lock().queue, Arc::clone(&to));
        if !Arc::ptr_eq(&from, &to) {
            from.migrate(self.shared(), &to);
        }
        let mut owner = self.owner.channel.lock().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *owner, Arc::clone(&channel.owner));
        drop(owner);
        drop(old);
        Ok(())
    }

    /// Joins a multicast group; with `send_only`, only to send to it. Event: multicast join.
    pub(crate) fn join_multicast(&self, group: IpAddr, send_only: bool) -> Result<(), Error> {
        let not_a_group = CmError::Address("not a multicast address");
        let mgid = rdma::mgid(group).ok_or(not_a_group)?;
        let ud = self.with_service(|s, _, id| {
            let (qp, local, tos) = {
                let inner = id.lock();
                (inner.qp, inner.local, inner.options.tos)
            };
            let local = local.ok_or(CmError::WrongState)?;
            if !send_only {
                mcast::join(s, qp, mgid)?;
            }
            id.lock().groups.push((mgid, !send_only));
            let av = attr::datagram_path(s.engine.gids(), gid_of(local.ip()), mgid, tos);
            Ok(UdParam { av, qpn: rdma::MULTICAST_QPN, qkey: UDP_QKEY })
        })?;
        let event = Queued::new(EventKind::MulticastJoin, self.shared(), 0);
        tell(Queued { ud: Some(ud), ..event });
        Ok(())
    }

    /// Leaves a multicast group.
    pub(crate) fn leave_multicast(&self, group: IpAddr) -> Result<(), Error> {
        let not_a_group = CmError::Address("not a multicast address");
        let mgid = rdma::mgid(group).ok_or(not_a_group)?;
        self.with_service(|s, _, id| {
            let mut inner = id.lock();
            let at = inner.groups.iter().position(|(gid, _)| *gid == mgid);
            let (_, receives) = inner.groups.remove(at.ok_or(CmError::WrongState)?);
            let qp = inner.qp;
            drop(inner);
            if receives {
                mcast::leave(s, qp, mgid);
            }
            Ok(())
        })
    }

    /// Runs `f` under the lock of the device.
    pub(super) fn with_service<R>(
        &self,
        f: impl FnOnce(&mut State, Instant, &Arc<Shared>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let context = self.context().ok_or(CmError::WrongState)?;
        context.driver()?.control(|s, now| f(s, now, self.shared()))
    }

    /// Runs `f` under the lock of the device, on the connection of the id.
    pub(super) fn with_conn<R>(
        &self,
        f: impl FnOnce(&mut Service, Instant, ConnId, &Arc<Shared>) -> Result<R, CmError>,
    ) -> Result<R, Error> {
        self.with_service(|s, now, id| {
            let conn = id.lock().conn.ok_or(CmError::WrongState)?;
            let cm = s.cm.as_mut().ok_or(CmError::DeviceGone)?;
            Ok(f(cm, now, conn, id)?)
        })
    }
}
