//! The devices that connections may use, and the ports that ids are bound to.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feroce_cm::rdma::{PortTable, gid_of, ip_of};
use feroce_cm::{Config, ListenId};
use feroce_engine::iwarp::HandshakeConfig;
use feroce_wire::Psn;

use super::channel::ChannelOwner;
use super::iwarp::IwarpService;
use super::queued::Queued;
use super::service::Service;
use super::shared::{Owner, Shared};
use super::subnet;
use crate::cm::{CmError, Opener, Timing};
use crate::context::Context;
use crate::device::Device;
use crate::{Error, Settings, fabric_port, subnet_port, sys, virtual_time};

/// How long a request may arrive before its listener listens: long enough for a process that waits
/// for a core of a busy machine, too short to matter to a peer that is rejected.
pub(super) const LISTEN_PATIENCE_NS: u64 = 100_000_000;

/// When the manager first repeats a message: later than [`LISTEN_PATIENCE_NS`], so that a peer is
/// rejected only once, and much sooner than Linux, which waits six seconds.
const PROBE_NS: u64 = 2 * LISTEN_PATIENCE_NS;

/// Finds devices for addresses, and keeps them open. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct SoftManager {
    pub(super) inner: Arc<ManagerInner>,
}

#[derive(Debug)]
pub(super) struct ManagerInner {
    contexts: Mutex<Vec<Context>>,
    ports: Mutex<PortTable>,
    /// Opens devices when an address needs them; `None` if the caller gave the devices.
    opener: Option<Opener>,
    timing: Timing,
}

impl SoftManager {
    /// Opens devices as addresses need them, with the caller's function: a program that keeps a
    /// table of open devices can return them from there.
    pub(crate) fn opening(open: Opener) -> Self {
        Self::make(Vec::new(), Some(open), Timing::default())
    }

    /// Uses these devices and no others, and waits for peers as long as `timing` says. If several
    /// managers share a device, the first decides.
    pub(crate) fn with_timing(
        contexts: impl IntoIterator<Item = Context>,
        timing: Timing,
    ) -> Result<Self, Error> {
        let contexts: Vec<Context> = contexts.into_iter().collect();
        contexts.iter().try_for_each(|context| serve(context, timing))?;
        Ok(Self::make(contexts, None, timing))
    }

    fn make(contexts: Vec<Context>, opener: Option<Opener>, timing: Timing) -> Self {
        let (contexts, ports) = (Mutex::new(contexts), Mutex::new(PortTable::default()));
        Self { inner: Arc::new(ManagerInner { contexts, ports, opener, timing }) }
    }

    /// The device with this address, opened if need be.
    pub(crate) fn context_for(&self, ip: IpAddr) -> Result<Context, Error> {
        self.inner.context_for(ip)
    }

    /// The devices that are open.
    pub(crate) fn contexts(&self) -> Vec<Context> {
        self.inner.open()
    }
}

impl ManagerInner {
    fn contexts(&self) -> MutexGuard<'_, Vec<Context>> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ports(&self) -> MutexGuard<'_, PortTable> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn context_for(&self, ip: IpAddr) -> Result<Context, Error> {
        let gid = gid_of(ip);
        // Held while a device is opened, so that two threads do not open it twice.
        let mut contexts = self.contexts();
        let has = |context: &&Context| {
            context.port().gid_index(gid).is_some() || subnet::has_address(context, ip)
        };
        if let Some(context) = contexts.iter().find(has) {
            return Ok(context.clone());
        }
        let Some(open) = self.opener else {
            return Err(CmError::NoDevice(ip).into());
        };
        let names = |device: &Device| {
            let adapter = device.adapter().and_then(|adapter| adapter.ports.first());
            adapter.is_some_and(|port| port.address == Some(ip))
        };
        let mut devices = Device::list()?;
        if let [device] = &devices[..]
            && device.adapter().is_some()
            && !names(device)
            && !device.gids().contains(&gid)
        {
            // A host of an InfiniBand fabric has the addresses of its port, and no other.
            return Err(
                CmError::Route(std::io::Error::from_raw_os_error(libc::EADDRNOTAVAIL)).into()
            );
        }
        let at = devices.iter().position(|d| d.gids().contains(&gid) || names(d));
        let listed = at.map(|at| devices.swap_remove(at));
        let device = match listed {
            Some(device) => device,
            None => {
                // Before a device is opened in vain, which is reported: whether the address is one
                // of this machine.
                UdpSocket::bind((ip, 0)).map_err(CmError::Route)?;
                Device::at([ip])
            }
        };
        let context = open(&device)?;
        serve(&context, self.timing)?;
        contexts.push(context.clone());
        Ok(context)
    }

    /// The devices that are open.
    pub(super) fn open(&self) -> Vec<Context> {
        self.contexts().clone()
    }

    /// Every device, for an id that listens at all addresses.
    pub(super) fn all(&self) -> Result<Vec<Context>, Error> {
        if self.opener.is_some() {
            let mut failure = None;
            for device in Device::list()? {
                let Some(&gid) = device.gids().first() else { continue };
                if let Err(e) = self.context_for(ip_of(gid)) {
                    tracing::warn!("{}: {e}", device.name());
                    failure = Some(e);
                }
            }
            if let (Some(e), true) = (failure, self.contexts().is_empty()) {
                return Err(e);
            }
        }
        Ok(self.contexts().clone())
    }

    /// The local address on the route to a peer. If the address that the kernel selects is not on a
    /// device that may be used, this tries the addresses of those devices. A host of a fabric has
    /// one address, of which the kernel knows nothing.
    pub(super) fn source_for(
        &self,
        src: Option<SocketAddr>,
        dst: SocketAddr,
    ) -> Result<IpAddr, Error> {
        if virtual_time::is_inside() {
            return self.source_in_world(src, dst);
        }
        if let Some(ip) = self.source_in_subnet(src, dst)? {
            return Ok(ip);
        }
        if src.is_none()
            && self.opener.is_some()
            && let Some(ip) = fabric_port::own_address(dst.is_ipv4())?
        {
            return Ok(ip);
        }
        let ip = Self::route(src, dst)?;
        if self.opener.is_some() || src.is_some() || self.context_for(ip).is_ok() {
            return Ok(ip);
        }
        let contexts = self.contexts().clone();
        let own = contexts.iter().flat_map(|context| context.port().gids).map(|entry| entry.gid);
        let mut same_family = own.map(ip_of).filter(|ip| ip.is_ipv4() == dst.is_ipv4());
        let leads_there = |ip: &IpAddr| Self::route(Some((*ip, 0).into()), dst).is_ok();
        let none = || CmError::Route(std::io::ErrorKind::NetworkUnreachable.into()).into();
        same_family.find(leads_there).ok_or_else(none)
    }

    /// On a host of an InfiniBand fabric, the address of its port.
    fn source_in_subnet(
        &self,
        src: Option<SocketAddr>,
        dst: SocketAddr,
    ) -> Result<Option<IpAddr>, Error> {
        if self.opener.is_some() && subnet_port::host(&Settings::load()?).is_some() {
            self.all()?;
        }
        let contexts = self.contexts();
        let mut own = contexts.iter().filter_map(|context| subnet::source(context, dst.ip()));
        let own = own.next();
        Ok(own.map(|own| src.map_or(own, |src| src.ip())))
    }

    /// In a simulated world every host is reached from the first address of its device.
    fn source_in_world(&self, src: Option<SocketAddr>, dst: SocketAddr) -> Result<IpAddr, Error> {
        let own = self.contexts().iter().flat_map(|context| context.port().gids).next();
        let own = src.map(|src| src.ip()).or_else(|| own.map(|entry| ip_of(entry.gid)));
        own.ok_or_else(|| CmError::NoDevice(dst.ip()).into())
    }

    /// The local address that the kernel selects on the route to a peer.
    fn route(src: Option<SocketAddr>, dst: SocketAddr) -> Result<IpAddr, Error> {
        let any: IpAddr = match dst {
            SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
        };
        let mut from = src.unwrap_or_else(|| (any, 0).into());
        from.set_port(0);
        if let (SocketAddr::V6(from), SocketAddr::V6(dst)) = (&mut from, dst)
            && from.scope_id() == 0
            && from.ip().is_unicast_link_local()
        {
            from.set_scope_id(dst.scope_id());
        }
        let ask = || -> std::io::Result<IpAddr> {
            let socket = UdpSocket::bind(from)?;
            // Connecting a UDP socket sends nothing, but it needs a port that is not zero.
            let mut to = dst;
            to.set_port(dst.port().max(1));
            socket.connect(to)?;
            Ok(socket.local_addr()?.ip())
        };
        ask().map_err(|e| CmError::Route(e).into())
    }

    /// The consumer has taken a request: its place in the backlog is free again.
    pub(super) fn taken(&self, id: &Shared, listener: ListenId) {
        if let Some(device) = id.device.upgrade() {
            device.driver.control(|s, _| {
                if let Some(cm) = Service::of(s) {
                    cm.taken(listener);
                }
            });
        }
    }

    /// Gives the id of a request to a consumer.
    pub(super) fn adopt(
        self: &Arc<Self>,
        id: &Arc<Shared>,
        channel: &Arc<ChannelOwner>,
    ) -> Option<Arc<Owner>> {
        let device = id.device.upgrade()?;
        let is_on = |c: &&Context| c.soft().is_ok_and(|soft| Arc::ptr_eq(soft, &device));
        let context = self.contexts().iter().find(is_on).cloned()?;
        let owner = Owner::new(Arc::clone(id), Arc::clone(self), Arc::clone(channel));
        // The owner was just created, so no device was chosen before.
        let _ = owner.context.set(context);
        Some(owner)
    }

    /// No consumer will take an event. If it is a request, this rejects it, so that the peer does
    /// not wait for an answer.
    pub(super) fn refuse(&self, event: &Queued) {
        if event.listener.is_none() || event.id.owner().is_some() {
            return;
        }
        let (conn, stream) = {
            let mut inner = event.id.lock();
            (inner.conn.take(), inner.stream.take())
        };
        if let (Some(device), Some(stream)) = (event.id.device.upgrade(), stream) {
            device.driver.control(|s, now| {
                if let Some((cm, engine)) = IwarpService::of(s) {
                    cm.destroy(engine, now, stream);
                }
            });
        }
        if let (Some(device), Some(conn)) = (event.id.device.upgrade(), conn) {
            device.driver.control(|s, now| {
                if let Some(cm) = Service::of(s) {
                    cm.destroy(now, conn);
                }
            });
        }
    }
}

/// Creates the connection manager of a device that speaks iWARP, unless it has one.
fn serve_iwarp(context: &Context, config: HandshakeConfig) -> Result<(), Error> {
    let device = Arc::downgrade(context.soft()?);
    context.driver()?.control(|s, _| {
        if s.agent::<IwarpService>().is_none() {
            let wakes = Arc::clone(s.dispatch.wakes());
            s.set_agent(IwarpService::new(config, device, wakes));
        }
    });
    Ok(())
}

/// Creates queue pair 1 and the connection manager of a device, unless it has them.
fn serve(context: &Context, timing: Timing) -> Result<(), Error> {
    let soft = context.soft()?;
    if let Some(config) = soft.iwarp {
        return serve_iwarp(context, config);
    }
    let (seed, psn) = (sys::random_u64()?, sys::random_u64()?);
    let config = Config {
        seed,
        ca_guid: context.device().guid(),
        // Other processes at these addresses have other prefixes.
        id_prefix: soft.prefix(),
        response_timeout: timing.response_timeout,
        packet_life_time: timing.packet_life_time,
        max_retries: timing.max_retries,
        probe_ns: PROBE_NS,
        patience_ns: LISTEN_PATIENCE_NS,
        ..Config::default()
    };
    let (scope, registry) =
        (context.device().interface_index().unwrap_or(0), soft.registry.clone());
    let (device, siblings) = (Arc::downgrade(soft), soft.shards.siblings());
    context.driver()?.control(|s, now| {
        if s.agent::<Service>().is_none() {
            let psn = Psn::new(psn as u32);
            let around = (Arc::clone(s.dispatch.wakes()), siblings);
            let service = Service::new(&mut s.engine, now, psn, config, (device, scope), around)?;
            s.set_agent(service.among(registry));
        }
        Ok(())
    })
}
