//! Ids: one end of a connection, from address to disconnection.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use feroce_cm::rdma::{self, EventKind, PortSpace, UDP_QKEY, gid_of};
use feroce_cm::{Accepts, ConnId, Peer};
use feroce_engine::{QpAttr, QpState};
use feroce_link::tcp::ReservedPort;
use feroce_train::{Framing, Instant};
use feroce_wire::cm::ServiceId;
use feroce_wire::mad::PathRecord;
use feroce_wire::{Gid, Psn, Qpn};

use super::claim::Claim;
use super::iwarp::is_iwarp;
use super::neighbour::Neighbour;
use super::queued::Queued;
use super::service::{Service, tell};
use super::shared::{Membership, Owner, Shared, Stage};
use super::{attr, mcast, resolver, subnet};
use crate::cm::UdParam;
use crate::cm::{CmError, IdOption, IdState};
use crate::context::Context;
use crate::driver::{LinkSide, State};
use crate::{Error, sys, virtual_time};

/// Backlog of a listener, if the caller gives none.
const DEFAULT_BACKLOG: u32 = 1024;

/// Ports of TCP that are tried before the id takes one that is free in the process only.
const PORT_TRIES: usize = 16;

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

    /// Whether it is for datagrams.
    pub(crate) fn is_datagrams(&self) -> bool {
        self.owner.shared.is_datagrams
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

    /// How far it is.
    pub(crate) fn state(&self) -> IdState {
        match self.shared().lock().stage {
            Stage::Idle => IdState::Idle,
            Stage::Bound => IdState::AddrBound,
            Stage::AddrQuery => IdState::AddrQuery,
            Stage::AddrResolved => IdState::AddrResolved,
            Stage::RouteQuery => IdState::RouteQuery,
            Stage::RouteResolved => IdState::RouteResolved,
            Stage::Listening => IdState::Listen,
            Stage::Connecting
            | Stage::Responded
            | Stage::Requested
            | Stage::Accepted
            | Stage::Connected => IdState::Connect,
            Stage::Over => IdState::Disconnect,
        }
    }

    /// Its queue pair.
    pub(crate) fn qpn(&self) -> Option<Qpn> {
        self.shared().lock().qp.map(|qp| qp.qpn)
    }

    /// The attributes that a queue pair of this connection needs to get into a state.
    pub(crate) fn qp_attr(&self, state: QpState) -> Result<QpAttr, Error> {
        if self.is_iwarp() {
            return self.qp_attr_iwarp(state);
        }
        let (conn, is_datagrams) = {
            let inner = self.shared().lock();
            (inner.conn, self.is_datagrams())
        };
        let qkey = if is_datagrams { self.qkey()? } else { UDP_QKEY };
        let known = self.with_service(|s, _, _| {
            let most = s.engine.config().limits.max_rd_atomic;
            let plan = conn.and_then(|conn| s.agent::<Service>()?.manager.plan(conn).copied());
            Ok(match (is_datagrams, state, plan) {
                (true, QpState::Init, _) => Some(QpAttr::init_ud(qkey)),
                (true, QpState::Rtr, _) => Some(QpAttr::to(QpState::Rtr)),
                (true, QpState::Rts, _) => Some(QpAttr::rts_unreliable(Psn::new(0))),
                (false, QpState::Init, None) => Some(QpAttr::init(Default::default())),
                (false, _, Some(plan)) => attr::connected(&plan, &s.engine, most, state),
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
        if addr.port() == 0 && !self.is_datagrams() && self.is_iwarp_at(addr.ip()) {
            // The port is one of TCP, so TCP chooses it. Other ids of the process may have it.
            for _ in 0..PORT_TRIES {
                let Ok((reserved, port)) = ReservedPort::at(addr) else { break };
                let mut chosen = addr;
                chosen.set_port(port);
                match self.bind_to(chosen, false) {
                    Err(Error::Cm(CmError::Port(_))) => {}
                    Err(e) => return Err(e),
                    Ok(()) => {
                        self.shared().lock().reserved = Some(reserved);
                        return Ok(());
                    }
                }
            }
        }
        self.bind_to(addr, addr.port() != 0)
    }

    /// Whether the device of an address speaks iWARP, or one that is open if that is any address.
    fn is_iwarp_at(&self, ip: IpAddr) -> bool {
        match ip.is_unspecified() {
            true => self.owner.manager.open().iter().any(is_iwarp),
            false => self.owner.manager.context_for(ip).is_ok_and(|context| is_iwarp(&context)),
        }
    }

    /// The same, at a port that the consumer may have chosen.
    fn bind_to(&self, addr: SocketAddr, has_port: bool) -> Result<(), Error> {
        if self.shared().lock().stage != Stage::Idle {
            return Err(CmError::WrongState.into());
        }
        let is_anywhere = addr.ip().is_unspecified();
        let context =
            (!is_anywhere).then(|| self.owner.manager.context_for(addr.ip())).transpose()?;
        let is_ethernet = |context: &Context| subnet::place(context).is_none();
        if self.port_space() == PortSpace::Ipoib && context.as_ref().is_some_and(is_ethernet) {
            return Err(CmError::Route(std::io::Error::from_raw_os_error(libc::EINVAL)).into());
        }
        self.hold(self.port_space(), addr, has_port, context).map(drop)
    }

    /// Has the id hold a port, which is returned, and use a device if there is one.
    pub(super) fn hold(
        &self,
        space: PortSpace,
        addr: SocketAddr,
        has_port: bool,
        context: Option<Context>,
    ) -> Result<u16, Error> {
        let random = sys::random_u64()? as u32;
        let mut inner = self.shared().lock();
        let how = (inner.options.reuse_addr, inner.options.af_only);
        let mut ports = self.owner.manager.ports();
        let binding =
            ports.bind(space, addr.ip(), addr.port(), how, random).map_err(CmError::from)?;
        // The device is chosen only after the port is bound: an id whose bind fails may still bind
        // another address, on another device.
        context.into_iter().for_each(|context| self.choose(context));
        let mut local = addr;
        local.set_port(binding.port());
        inner.binding = Some(binding);
        inner.has_port = has_port;
        inner.local = Some(local);
        inner.stage = Stage::Bound;
        Ok(local.port())
    }

    /// Chooses the device, unless one was chosen before.
    pub(super) fn choose(&self, context: Context) {
        let _ = self.owner.context.set(context);
    }

    /// Finds the device with a route to a peer, and whether the next host on the route answers
    /// within the time limit, unless that is zero. Event: address resolved, or address error.
    pub(crate) fn resolve_addr(
        &self,
        src: Option<SocketAddr>,
        dst: SocketAddr,
        timeout_ms: u32,
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
            Ok(_) if self.context().is_some_and(|context| subnet::place(context).is_some()) => {
                self.find_port(dst)
            }
            Ok(ip) => {
                // The neighbours of a simulated world are all there.
                let asks = timeout_ms != 0 && !virtual_time::is_inside();
                let neighbour = if asks { Neighbour::ask(ip, dst) } else { None };
                match neighbour {
                    Some(neighbour) => resolver::wait(&self.owner, neighbour, timeout_ms)?,
                    None => resolver::resolved(self.shared()),
                }
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

    /// Finds the port of an InfiniBand subnet that has an address, or the group.
    fn find_port(&self, dst: SocketAddr) -> Result<(), Error> {
        let place = self.context().and_then(subnet::place).ok_or(CmError::WrongState)?;
        if !dst.ip().is_multicast() {
            match subnet::find(place, dst.ip()) {
                Ok(gid) => self.shared().lock().gid = Some(gid),
                Err(e) => {
                    tracing::debug!("no port of the fabric has the address {}: {e}", dst.ip());
                    resolver::unresolved(self.shared(), -libc::EHOSTUNREACH);
                    return Ok(());
                }
            }
        }
        resolver::resolved(self.shared());
        Ok(())
    }

    /// Chooses the device with a route to a peer; gives its address on that route.
    fn find_path(
        &self,
        stage: Stage,
        src: Option<SocketAddr>,
        fixed: Option<SocketAddr>,
        dst: SocketAddr,
    ) -> Result<IpAddr, Error> {
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
            self.bind_to(local, local.port() != 0)?;
        } else {
            self.choose(self.owner.manager.context_for(ip)?);
        }
        let mut inner = self.shared().lock();
        let port = inner.binding.map_or(0, |binding| binding.port());
        local.set_port(port);
        inner.local = Some(local);
        inner.peer = Some(dst);
        inner.stage = Stage::AddrQuery;
        Ok(ip)
    }

    /// Resolves the route; on Ethernet this needs no query, on InfiniBand the subnet administration
    /// is asked. Event: route resolved, or route error.
    pub(crate) fn resolve_route(&self, timeout_ms: u32) -> Result<(), Error> {
        let mut inner = self.shared().lock();
        if inner.stage != Stage::AddrResolved {
            return Err(CmError::WrongState.into());
        }
        if let Some(place) = self.context().and_then(subnet::place) {
            let (Some(gid), Some(service)) = (inner.gid, inner.service(self.port_space())) else {
                return Err(CmError::WrongState.into());
            };
            drop(inner);
            return self.ask_for_path(place, (gid, service), timeout_ms);
        }
        if inner.ib.is_some() {
            // As on Linux, which looks for a network interface.
            return Err(CmError::Route(std::io::Error::from_raw_os_error(libc::ENODEV)).into());
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
        let (local, binding, af_only, native) = {
            let inner = self.shared().lock();
            let (Stage::Bound, Some(local), Some(binding)) =
                (inner.stage, inner.local, inner.binding)
            else {
                return Err(CmError::WrongState.into());
            };
            (local, binding, inner.options.af_only, inner.native_service())
        };
        self.owner.manager.ports().listen(binding).map_err(CmError::from)?;
        let (accepts, fixed) = match (local.ip(), self.context()) {
            (ip, Some(context)) => (Accepts::Only(gid_of(ip)), Some(context)),
            (IpAddr::V4(_), None) => (Accepts::Ipv4, None),
            (IpAddr::V6(_), None) if af_only => (Accepts::Ipv6, None),
            (IpAddr::V6(_), None) => (Accepts::Any, None),
        };
        let backlog = if backlog == 0 { DEFAULT_BACKLOG } else { backlog };
        let by_ip = (ServiceId::ip(self.port_space(), local.port()), accepts);
        let (service, accepts) = native.unwrap_or(by_ip);
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
        let (streams, contexts): (Vec<&Context>, Vec<&Context>) =
            contexts.iter().partition(|context| is_iwarp(context));
        for context in streams.into_iter().filter(|_| accepts != Accepts::Native) {
            if self.is_datagrams() {
                return Err(CmError::NoQp.into());
            }
            self.listen_iwarp(context, accepts, backlog)?;
        }
        let claims = contexts.iter().map(|context| Claim::all(context, service, accepts));
        let claims: Vec<Vec<Claim>> = claims.collect::<Result<_, _>>()?;
        {
            let mut inner = id.lock();
            inner.stage = Stage::Listening;
            inner.claims.extend(claims.into_iter().flatten());
        }
        for context in contexts {
            // A port of InfiniBand has one address, and requests name it by its LID.
            let accepts = match accepts {
                Accepts::Native => accepts,
                _ if subnet::place(context).is_some() => Accepts::Any,
                _ => accepts,
            };
            let listener = context.driver()?.control(|s, now| match Service::of(s) {
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

    /// Joins a multicast group; with `send_only`, only to send to it. Event: multicast join.
    pub(crate) fn join_multicast(&self, group: IpAddr, send_only: bool) -> Result<(), Error> {
        let mgid = self.group_gid(group).ok_or(CmError::NotMulticast(group))?;
        self.join_group(mgid, send_only)
    }

    /// The same by the GID of the group.
    pub(crate) fn join_group(&self, mgid: Gid, send_only: bool) -> Result<(), Error> {
        if let Some(place) = self.context().and_then(subnet::place) {
            return self.join_in_subnet(place, mgid, send_only);
        }
        let framing = self.framing()?;
        let ud = self.with_port(|s, link, id| {
            let (qp, local, tos) = {
                let inner = id.lock();
                (inner.qp.map(|qp| qp.qpn), inner.local, inner.options.tos)
            };
            let local = local.ok_or(CmError::WrongState)?;
            if !send_only {
                mcast::join(s, link, qp, mgid)?;
            }
            let membership = Membership { group: mgid, receives: !send_only, hold: None };
            id.lock().groups.push(membership);
            let peer = Peer { framing, ..Peer::new(gid_of(local.ip()), mgid) };
            let av = attr::datagram_path(s.engine.gids(), peer, tos);
            Ok(UdParam { av, qpn: rdma::MULTICAST_QPN, qkey: UDP_QKEY })
        })?;
        let event = Queued::new(EventKind::MulticastJoin, self.shared(), 0);
        tell(Queued { ud: Some(ud), ..event });
        Ok(())
    }

    /// Leaves a multicast group.
    pub(crate) fn leave_multicast(&self, group: IpAddr) -> Result<(), Error> {
        let mgid = self.group_gid(group).ok_or(CmError::NotMulticast(group))?;
        self.leave_group(mgid)
    }

    /// The same by the GID of the group.
    pub(crate) fn leave_group(&self, mgid: Gid) -> Result<(), Error> {
        let membership = self.with_port(|s, link, id| {
            let mut inner = id.lock();
            let at = inner.groups.iter().position(|joined| joined.group == mgid);
            let membership = inner.groups.remove(at.ok_or(CmError::WrongState)?);
            let qp = inner.qp.map(|qp| qp.qpn);
            drop(inner);
            if membership.receives {
                mcast::leave(s, link, qp, mgid);
            }
            Ok(membership)
        })?;
        // Without the locks: the fabric has the port leave the group, unless others are in it.
        drop(membership.hold);
        Ok(())
    }

    /// The path to the peer, on InfiniBand.
    pub(crate) fn path(&self) -> Option<PathRecord> {
        self.shared().lock().path
    }

    /// The GID of a multicast group on the device of the id; `None` if the address is of no group.
    pub(crate) fn group_gid(&self, group: IpAddr) -> Option<Gid> {
        match self.context().and_then(subnet::place) {
            Some(_) => subnet::group_gid(group, self.port_space()),
            None => rdma::mgid(group, self.framing().unwrap_or_default()),
        }
    }

    /// How packets of the connection manager on the device of the id are framed.
    pub(super) fn framing(&self) -> Result<Framing, Error> {
        let context = self.context().ok_or(CmError::WrongState)?;
        Ok(context.soft()?.cm_framing)
    }

    /// The ends of a connection by its addresses.
    pub(super) fn peer_at(&self, local: Gid, remote: Gid) -> Result<Peer, Error> {
        let framing = self.framing()?;
        self.shared().lock().framing = framing;
        Ok(Peer { framing, ..Peer::new(local, remote) })
    }

    /// Runs `f` under the locks of the device.
    pub(super) fn with_service<R>(
        &self,
        f: impl FnOnce(&mut State, Instant, &Arc<Shared>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let context = self.context().ok_or(CmError::WrongState)?;
        context.driver()?.control(|s, now| f(s, now, self.shared()))
    }

    /// Runs `f` under the locks of the device, with its link.
    pub(super) fn with_port<R>(
        &self,
        f: impl FnOnce(&mut State, &mut LinkSide, &Arc<Shared>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let context = self.context().ok_or(CmError::WrongState)?;
        context.driver()?.control_link(|s, link, _| f(s, link, self.shared()))
    }

    /// Runs `f` under the locks of the device, on the connection of the id.
    pub(super) fn with_conn<R>(
        &self,
        f: impl FnOnce(&mut Service, Instant, ConnId, &Arc<Shared>) -> Result<R, CmError>,
    ) -> Result<R, Error> {
        self.with_service(|s, now, id| {
            let conn = id.lock().conn.ok_or(CmError::WrongState)?;
            let cm = Service::of(s).ok_or(CmError::DeviceGone)?;
            Ok(f(cm, now, conn, id)?)
        })
    }
}
