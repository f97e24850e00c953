//! An open device.

mod affinity;
mod shard;

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use feroce_engine::{AsyncEvent, Config, Counters, DropCounters, Engine, TransportKind};
use feroce_link::{Carrier, Control, Logger};
use feroce_local::{Lease, Opening, Registry};
use feroce_train::{Framing, GidEntry, Instant};
use feroce_wire::{Gid, Lid};

use crate::attr::{DeviceAttr, PortAttr};
use crate::backend::kernel::KernelAdapter;
use crate::backend::soft::{SoftAdapter, device_attr, port_attr};
use crate::backend::{Adapter, Either, either};
use crate::config::congestion;
use crate::device::interface_monitor::InterfaceMonitor;
use crate::device::monitor::Monitor;
use crate::device::{Device, DeviceKind};
use crate::driver::{AsyncQueue, Clock, Driver, Shards, Wakes};
use crate::fabric_port::FabricPort;
use crate::stack::Faults;
use crate::subnet_port::{self, Joined};
use crate::summary::Summary;
use crate::{Backend, Error, Settings, stack, sys};
use shard::Started;

/// Directory of the registry through which processes of the host find each other.
const SHARED_ROOT: &str = "/dev/shm";

/// How often to retry while another process joins or leaves the registry, how often while a process
/// that has just ended still holds the port, and how long to wait in between.
const SETUP_LOOKS: u32 = 400;
const BIND_LOOKS: u32 = 40;
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Queue pair numbers of each process, if several share an address.
const SHARED_QPNS: u32 = 1 << 16;

/// An open device. Cheap to clone; the device closes when the last object made from it is gone.
/// Clones share one queue of asynchronous events; [`Context::reopen`] gives another.
///
/// ```
/// let context = feroce::Device::at(["127.0.0.21".parse()?]).open()?;
/// assert_eq!(context.port().gids.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ibv_context")]
#[doc(alias = "ibv_close_device")]
#[derive(Clone, Debug)]
pub struct Context {
    pub(crate) inner: Arc<ContextInner>,
    events: Arc<AsyncQueue>,
}

/// A weak reference to a running adapter: it does not keep the adapter open.
///
/// ```
/// let context = feroce::Device::at(["127.0.0.32".parse()?]).open()?;
/// let weak = context.downgrade();
/// assert!(weak.reopen()?.is_some());
/// drop(context);
/// assert!(weak.reopen()?.is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct WeakContext {
    inner: Weak<ContextInner>,
}

impl WeakContext {
    /// Opens the adapter once more if it still runs, and runs in this process; see
    /// [`Context::reopen`] and [`Context::is_cut_off`].
    pub fn reopen(&self) -> Result<Option<Context>, Error> {
        let running = self.inner.upgrade().filter(|inner| !inner.is_cut_off());
        running.map(Context::listening).transpose()
    }

    /// Transmits what still waits, ends connections and completes captures: for a process that is
    /// about to exit without closing its devices.
    pub fn prepare_exit(&self) {
        if let Some(inner) = self.inner.upgrade() {
            either!(&inner.adapter, adapter => adapter.prepare_exit());
        }
    }
}

#[derive(Debug)]
pub(crate) struct ContextInner {
    adapter: Adapter,
    device: Device,
}

impl ContextInner {
    fn is_cut_off(&self) -> bool {
        either!(&self.adapter, adapter => adapter.is_cut_off())
    }
}

impl Device {
    /// Opens it with the settings of the user.
    #[doc(alias = "ibv_open_device")]
    pub fn open(&self) -> Result<Context, Error> {
        self.open_with(Settings::load()?)
    }

    /// Opens it. If the settings ask for another backend than that of the device, the device of
    /// that backend which has its addresses is opened.
    pub fn open_with(&self, settings: Settings) -> Result<Context, Error> {
        let device = match (self.kind(), settings.backend) {
            (DeviceKind::Kernel, _) | (_, Backend::Feroce) => self.clone(),
            (_, Backend::RdmaCore) => {
                let has_all = |device: &Self| self.gids().iter().all(|g| device.gids().contains(g));
                let found = Self::of_kernel(&settings)?.into_iter().find(has_all);
                found.ok_or_else(|| Error::NoDevice(self.name().to_owned()))?
            }
        };
        let context = Context::open(device, settings)?;
        tracing::info!("device {} is open, with {}", self.name(), addresses(self.gids()));
        Ok(context)
    }
}

/// Addresses, for people.
fn addresses(gids: &[Gid]) -> String {
    let all: Vec<String> = gids.iter().map(|gid| gid.to_ip().to_string()).collect();
    if all.is_empty() { "no address".to_owned() } else { all.join(", ") }
}

/// Attributes that can be read without opening the device, even while another process uses it.
impl Device {
    /// Limits and identity that it would have if it were opened.
    pub fn attr(&self) -> Result<DeviceAttr, Error> {
        if self.kind() == DeviceKind::Kernel {
            return Ok(self.open()?.attr());
        }
        let settings = Settings::load()?;
        let mut config = engine_config(&settings);
        if let Some(port) = self.adapter().and_then(|adapter| adapter.ports.first()) {
            config.pkeys.clone_from(&port.pkeys);
        }
        Ok(device_attr(self, &config, shard::count(&settings)))
    }

    /// Its port as it was when the device was listed.
    pub fn port(&self) -> Result<PortAttr, Error> {
        if self.kind() == DeviceKind::Kernel {
            return Ok(self.open()?.port());
        }
        if let Some(port) = self.adapter().and_then(|adapter| adapter.ports.first()) {
            return Ok(PortAttr::of_subnet(port));
        }
        let config = Config { port_mtu: self.path_mtu(), ..engine_config(&Settings::load()?) };
        let has_v1 = self.rocev1(&Settings::load()?).is_ok();
        let gids = table(self.gids(), has_v1);
        let addresses = (&*gids, Lid::default());
        Ok(port_attr(self, &config, self.is_up(), addresses, &DropCounters::default()))
    }
}

impl Context {
    pub(crate) fn open(device: Device, settings: Settings) -> Result<Self, Error> {
        if device.kind() == DeviceKind::Kernel {
            let adapter = Either::Kernel(KernelAdapter::open(&device, &settings)?);
            return Self::listening(Arc::new(ContextInner { adapter, device }));
        }
        if device.kind() == DeviceKind::Subnet {
            return Self::open_in_subnet(device, &settings);
        }
        let mut config = engine_config(&settings);
        congestion::check(&config)?;
        if config.seed == 0 {
            config.seed = sys::random_u64()?;
        }
        config.port_mtu = device.path_mtu();
        let Started { shards, registry, fabric, iwarp, has_v1 } =
            shard::start(&device, &settings, &config)?;
        has_spare_descriptors()?;
        let (name, converts) = (device.name(), settings.convert);
        let summary = settings.stats.then(|| Summary::new(name));
        let cm_framing = if has_v1 { settings.cm_framing } else { Framing::RoceV2 };
        let driver = Arc::clone(shards.first());
        let soft =
            SoftAdapter { driver, shards, registry, fabric, iwarp, cm_framing, converts, summary };
        let adapter = Either::Soft(Arc::new(soft));
        Self::listening(Arc::new(ContextInner { adapter, device }))
    }

    /// Opens the device of a host of an InfiniBand fabric.
    fn open_in_subnet(device: Device, settings: &Settings) -> Result<Self, Error> {
        let mut config = engine_config(settings);
        let absent = if config.transport == TransportKind::Iwarp {
            Some("iWARP needs TCP, and an InfiniBand fabric has none: set `transport` to `roce`")
        } else {
            shard::refusal(settings)
        };
        if let Some(text) = absent {
            return Err(io::Error::new(io::ErrorKind::Unsupported, text).into());
        }
        if config.seed == 0 {
            config.seed = sys::random_u64()?;
        }
        let wakes = Arc::<Wakes>::default();
        let log = Logger::new(Arc::<Wakes>::clone(&wakes));
        let clock = Clock::start();
        let Joined { slot, place, link, monitor } =
            subnet_port::join(settings, clock.origin_ns(), &log)
                .transpose()
                .ok_or_else(|| Error::NoDevice(device.name().to_owned()))??;
        restrict_qpns(&mut config, slot);
        monitor.first().fit(&mut config);
        let mut engine = Engine::new(config);
        monitor.first().apply(&mut engine, None);
        // No consumer listens yet, and this is how the port is, not a change of it.
        while engine.poll_event().is_some() {}
        let (name, faults) = (device.name(), Faults::new(settings));
        let link = stack::build(Box::new(link), false, settings, &faults, &clock, name, &log)?;
        let monitor = Some(Monitor::Subnet(monitor));
        let driver = Driver::start(engine, link, clock, &device, monitor, wakes, true)?;
        driver.set_faults(faults);
        has_spare_descriptors()?;
        let summary = settings.stats.then(|| Summary::new(device.name()));
        let (registry, iwarp, converts) = (None, None, false);
        let fabric = Some(FabricPort::in_subnet(slot, place));
        let cm_framing = Framing::InfiniBand;
        let shards = Arc::new(Shards::new(Arc::clone(&driver), Vec::new()));
        let soft =
            SoftAdapter { driver, shards, registry, fabric, iwarp, cm_framing, converts, summary };
        let adapter = Either::Soft(Arc::new(soft));
        Self::listening(Arc::new(ContextInner { adapter, device }))
    }

    /// Opens a device of a simulated world, on a carrier of that world.
    #[cfg(feature = "sim")]
    pub(crate) fn in_world(
        device: Device,
        config: Config,
        link: Box<dyn feroce_local::HostCarrier>,
    ) -> Result<Self, Error> {
        let mut engine = Engine::new(Config { port_mtu: device.path_mtu(), ..config });
        for (i, gid) in (0..).zip(device.gids()) {
            engine.set_gid(i, GidEntry::roce_v2(*gid));
        }
        while engine.poll_event().is_some() {}
        let wakes = Arc::<Wakes>::default();
        let driver = Driver::start(engine, link, Clock::start(), &device, None, wakes, true)?;
        let (registry, fabric, iwarp, converts, summary) = (None, None, None, false, None);
        let cm_framing = Framing::RoceV2;
        let shards = Arc::new(Shards::new(Arc::clone(&driver), Vec::new()));
        let soft =
            SoftAdapter { driver, shards, registry, fabric, iwarp, cm_framing, converts, summary };
        let adapter = Either::Soft(Arc::new(soft));
        Self::listening(Arc::new(ContextInner { adapter, device }))
    }

    fn listening(inner: Arc<ContextInner>) -> Result<Self, Error> {
        let events = Arc::new(AsyncQueue::without_descriptor());
        either!(&inner.adapter, adapter => adapter.listen(&events));
        Ok(Self { inner, events })
    }

    /// Opens the same running adapter once more. Both contexts receive the events of the port;
    /// events of queues and queue pairs go to the context that they were created from.
    pub fn reopen(&self) -> Result<Self, Error> {
        Self::listening(Arc::clone(&self.inner))
    }

    /// Whether this is the copy in a forked child of the process that opened the device. The child
    /// can query and destroy its objects, but the adapter sends and receives nothing; the child has
    /// to open the device again.
    pub fn is_cut_off(&self) -> bool {
        self.inner.is_cut_off()
    }

    /// A weak reference to the adapter, which does not keep it open.
    pub fn downgrade(&self) -> WeakContext {
        WeakContext { inner: Arc::downgrade(&self.inner) }
    }

    /// The queue that events of objects created from this context go to.
    pub(crate) fn events(&self) -> &Arc<AsyncQueue> {
        &self.events
    }

    /// Whether both are of one running adapter.
    pub(crate) fn is_same_device(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// The adapter of the backend.
    pub(crate) fn adapter(&self) -> &Adapter {
        &self.inner.adapter
    }

    /// The software adapter, if the device is one.
    pub(crate) fn soft(&self) -> Result<&Arc<SoftAdapter>, Error> {
        self.inner.adapter.soft().ok_or(Error::OtherDevice)
    }

    /// The driver of the software adapter, if the device is one.
    pub(crate) fn driver(&self) -> Result<&Arc<Driver>, Error> {
        Ok(&self.soft()?.driver)
    }

    /// The device that was opened.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Limits and identity.
    #[doc(alias = "ibv_query_device")]
    #[doc(alias = "ibv_query_device_ex")]
    pub fn attr(&self) -> DeviceAttr {
        either!(self.adapter(), adapter => adapter.attr(&self.inner.device))
    }

    /// The port.
    #[doc(alias = "ibv_query_port")]
    pub fn port(&self) -> PortAttr {
        either!(self.adapter(), adapter => adapter.port(&self.inner.device))
    }

    /// The next asynchronous event, if there is one.
    #[doc(alias = "ibv_get_async_event")]
    pub fn try_async_event(&self) -> Option<AsyncEvent> {
        self.events.try_pop()
    }

    /// Waits for the next asynchronous event, at most `timeout_ms`; for ever if `None`.
    pub fn wait_async_event(&self, timeout_ms: Option<u16>) -> io::Result<Option<AsyncEvent>> {
        self.events.pop_wait(timeout_ms)
    }

    /// Readable while an asynchronous event waits. The descriptor is made when it is first asked
    /// for, which fails if the process may have no more.
    pub fn async_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.events.try_fd()
    }

    /// The current time, on the clock that stamps completions.
    #[doc(alias = "ibv_query_rt_values_ex")]
    pub fn now(&self) -> Instant {
        self.clock().now()
    }

    /// Time zero of that clock, in nanoseconds since 1970.
    pub fn epoch_ns(&self) -> u64 {
        self.clock().epoch_ns()
    }

    fn clock(&self) -> &Clock {
        either!(self.adapter(), adapter => adapter.clock())
    }

    /// Counters of the adapter. Drivers of the kernel count elsewhere.
    pub fn counters(&self) -> Counters {
        either!(self.adapter(), adapter => adapter.counters())
    }

    /// Packets that the adapter dropped so far, by reason. Drivers of the kernel count elsewhere.
    pub fn drops(&self) -> DropCounters {
        either!(self.adapter(), adapter => adapter.drops())
    }

    /// Counters of the link, by name. Devices of the kernel's drivers have no such link.
    pub fn link_counters(&self) -> Vec<(&'static str, u64)> {
        either!(self.adapter(), adapter => adapter.link_counters())
    }
}

/// Joins the registry of the processes of the host, if the settings ask for it and it is possible,
/// and has portd receive for this process, if there is one.
/// Packets of a fabric's hosts pass its switches, and processes that speak iWARP have TCP
/// connections with each other, so they have no use for it.
fn join(settings: &Settings, seed: u64, device: &Device) -> (Option<Arc<Registry>>, Option<Lease>) {
    let is_iwarp = settings.engine.transport == TransportKind::Iwarp;
    if !settings.shared || settings.fabric.is_some() || is_iwarp {
        return (None, None);
    }
    let root = Path::new(SHARED_ROOT);
    let join = || match &settings.portd {
        Some(trusted) => {
            let scope = device.interface().map_or(0, |(_, index)| *index);
            let opening = Opening { addresses: device.gids(), scope, trusted };
            Registry::join_with_portd(root, seed, opening)
        }
        None => Ok((Registry::join(root, seed)?, None)),
    };
    match try_again(SETUP_LOOKS, io::ErrorKind::WouldBlock, join) {
        Ok((registry, lease)) => (Some(Arc::new(registry)), lease),
        Err(e) => {
            tracing::warn!(
                "cannot share addresses with other processes through {SHARED_ROOT}, so no second \
                 process can use them: {e}"
            );
            (None, None)
        }
    }
}

/// Descriptors that a device needs beside its own as soon as it is used: for a peer process (3), a
/// completion channel (2), a polling thread that sleeps, another sending socket, shared memory, and
/// files and directories that are open for a moment.
const SPARE_DESCRIPTORS: usize = 12;

/// Fails unless the process may have some more descriptors. Without them the device could be opened
/// but not used, and its peers would learn of that by timeouts.
fn has_spare_descriptors() -> io::Result<()> {
    let pipes: io::Result<Vec<_>> = (0..SPARE_DESCRIPTORS / 2).map(|_| io::pipe()).collect();
    pipes.map(drop).map_err(|e| {
        let text = format!(
            "{e}: a device needs {SPARE_DESCRIPTORS} free descriptors when it is used; raise the \
             limit (`ulimit -n`)"
        );
        feroce_link::annotate(e, text)
    })
}

/// Calls `attempt` until it returns anything but an error of the transient kind `passing`, at most
/// `looks` times.
#[expect(clippy::disallowed_methods, reason = "a device is opened before anything is driven")]
fn try_again<T>(
    looks: u32,
    passing: io::ErrorKind,
    mut attempt: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    for _ in 1..looks {
        match attempt() {
            Err(e) if e.kind() == passing => std::thread::sleep(LOOK_AGAIN),
            outcome => return outcome,
        }
    }
    attempt()
}

/// Configuration of the engine: a device that shares its addresses has fewer queue pair numbers.
fn engine_config(settings: &Settings) -> Config {
    let mut config = settings.engine.clone();
    if config.transport == TransportKind::Iwarp {
        config.limits.max_ah = 0;
        config.limits.max_mcast_grp = 0;
        config.limits.max_mcast_qp_attach = 0;
        // The kernel's driver has as many.
        config.limits.max_rd_atomic = 128;
    } else if settings.shared || settings.fabric.is_some() || settings.subnet.is_some() {
        config.limits.max_qp = config.limits.max_qp.min(SHARED_QPNS - 2);
    }
    // A switch does not send a packet back to the port that it came from.
    let is_switched = settings.fabric.is_some() || settings.subnet.is_some();
    config.loops_back &= is_switched || !stack::wants_packets(settings);
    config
}

/// What reports changes of the interface of a device.
fn monitor_of(device: &Device, has_v1: bool) -> Option<Monitor> {
    let (name, _) = device.interface()?;
    InterfaceMonitor::new(name, has_v1)
        .inspect_err(|e| tracing::warn!("changes of {name} will not be seen: {e}"))
        .ok()
        .map(Monitor::Interface)
}

/// Restricts queue pair numbers to those of this process's slot.
fn restrict_qpns(config: &mut Config, prefix: u8) {
    config.qpn_first = u32::from(prefix) << 16;
    config.qpn_count = SHARED_QPNS;
}

/// The GID table of a port with these addresses: first the entries of RoCEv2, so that their indices
/// are the same with and without RoCEv1.
fn table(gids: &[Gid], has_v1: bool) -> Vec<GidEntry> {
    let v1 = gids.iter().copied().filter(|_| has_v1).map(GidEntry::roce_v1);
    gids.iter().copied().map(GidEntry::roce_v2).chain(v1).collect()
}

/// Binds the addresses of a device and returns those that could be bound. An IPv6 address of an
/// interface that just came up cannot be bound for a second or two (duplicate address detection);
/// the device binds it when the kernel announces it.
fn bind(device: &Device, link: &mut dyn Carrier, is_shared: bool) -> io::Result<Vec<Gid>> {
    let mut table = Vec::new();
    let mut refused = None;
    for &gid in device.gids() {
        table.push(gid);
        // A process that shares the address and has just ended may hold the port for a moment.
        let looks = if is_shared { BIND_LOOKS } else { 1 };
        let bound =
            try_again(looks, io::ErrorKind::AddrInUse, || link.control(Control::Addresses(&table)));
        match bound {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::AddrNotAvailable => {
                tracing::debug!("{gid} is not usable yet: {e}");
                table.pop();
                refused = Some(e);
            }
            Err(e) => return Err(e),
        }
    }
    match refused {
        Some(e) if table.is_empty() || device.interface().is_none() => Err(e),
        _ => Ok(table),
    }
}
