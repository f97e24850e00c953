//! An open device.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use feroce_engine::{AsyncEvent, Config, Counters, DropCounters, Engine};
use feroce_link::{Carrier, Control, Logger, UdpConfig};
use feroce_local::Member;
use feroce_train::{GidEntry, Instant};
use feroce_wire::{Gid, Lid};

use crate::attr::{DeviceAttr, PortAttr};
use crate::backend::kernel::KernelAdapter;
use crate::backend::soft::SoftAdapter;
use crate::backend::{Either, either};
use crate::channel::CompChannel;
use crate::cq::Cq;
use crate::device::watch::Watch;
use crate::device::{Device, DeviceKind};
use crate::driver::{AsyncQueue, Clock, Driver, Wakes};
use crate::pd::Pd;
use crate::sigbus::{self, Sigbus};
use crate::xrc::Xrcd;
use crate::{Error, Settings, stack, sys};

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
    pub fn take_leave(&self) {
        if let Some(inner) = self.inner.upgrade() {
            either!(&inner.adapter, adapter => adapter.take_leave());
        }
    }
}

#[derive(Debug)]
pub(crate) struct ContextInner {
    adapter: Adapter,
    device: Device,
}

/// The adapter of either backend.
pub(crate) type Adapter = Either<Arc<SoftAdapter>, Arc<KernelAdapter>>;

impl ContextInner {
    fn is_cut_off(&self) -> bool {
        either!(&self.adapter, adapter => adapter.is_cut_off())
    }
}

/// Attributes that can be read without opening the device, even while another process uses it.
impl Device {
    /// Limits and identity that it would have if it were opened.
    pub fn attr(&self) -> Result<DeviceAttr, Error> {
        if self.kind() == DeviceKind::Kernel {
            return Ok(self.open()?.attr());
        }
        Ok(DeviceAttr::of(self, &engine_config(&Settings::load()?)))
    }

    /// Its port as it was when the device was listed.
    pub fn port(&self) -> Result<PortAttr, Error> {
        if self.kind() == DeviceKind::Kernel {
            return Ok(self.open()?.port());
        }
        let config = Config { port_mtu: self.path_mtu(), ..Settings::load()?.engine };
        let gids: Vec<GidEntry> = self.gids().iter().copied().map(GidEntry::roce_v2).collect();
        let addresses = (&*gids, Lid::default());
        Ok(PortAttr::of(self, &config, self.is_up(), addresses, &DropCounters::default()))
    }
}

impl Context {
    pub(crate) fn open(device: Device, settings: Settings) -> Result<Self, Error> {
        if device.kind() == DeviceKind::Kernel {
            let adapter = Either::Kernel(KernelAdapter::open(&device, &settings)?);
            return Self::listening(Arc::new(ContextInner { adapter, device }));
        }
        let mut config = engine_config(&settings);
        if config.seed == 0 {
            config.seed = sys::random_u64()?;
        }
        config.port_mtu = device.path_mtu();
        let member = join(&settings, config.seed);
        if let Some(member) = &member {
            restrict_qpns(&mut config, member);
            if !sigbus::is_blocked() {
                member.guard_with(&Sigbus);
            }
            if settings.readable {
                member.let_all_read();
            }
        }
        let mut engine = Engine::new(config);
        if let Some(member) = &member {
            engine.set_lender(Arc::<Member>::clone(member));
        }
        let wakes = Arc::<Wakes>::default();
        let log = Logger::new(Arc::<Wakes>::clone(&wakes));
        let udp = UdpConfig {
            interface: device.interface().cloned(),
            gso: settings.gso,
            gro: settings.gro,
            ecn: settings.ecn,
            rcvbuf: settings.rcvbuf,
            log: log.clone(),
            ..UdpConfig::default()
        };
        let mut link = stack::carrier(udp, member.as_ref(), &settings)?;
        for (i, gid) in (0..).zip(bind(&device, &mut *link, member.is_some())?) {
            engine.set_gid(i, GidEntry::roce_v2(gid));
        }
        // Setting the initial GIDs raises events. No consumer listens yet, and they are not
        // changes, so they are discarded.
        while engine.poll_event().is_some() {}
        let watch = device.interface().and_then(|(name, _)| {
            Watch::new(name)
                .inspect_err(|e| tracing::warn!("changes of {name} will not be seen: {e}"))
                .ok()
        });
        let clock = Clock::start();
        let link = stack::build(link, member.is_some(), &settings, &clock, device.name(), &log)?;
        let driver = Driver::start(engine, link, clock, &device, watch, wakes)?;
        let soft = SoftAdapter { driver, member, converts: settings.convert };
        let adapter = Either::Soft(Arc::new(soft));
        Self::listening(Arc::new(ContextInner { adapter, device }))
    }

    fn listening(inner: Arc<ContextInner>) -> Result<Self, Error> {
        let events = Arc::new(AsyncQueue::new()?);
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

    /// The adapter of the backend.
    pub(crate) fn adapter(&self) -> &Adapter {
        &self.inner.adapter
    }

    /// The software adapter, if the device is one.
    pub(crate) fn soft(&self) -> Result<&Arc<SoftAdapter>, Error> {
        self.inner.adapter.soft().ok_or(Error::Unsupported("objects of the other backend"))
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

    /// Makes a protection domain.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn alloc_pd(&self) -> Result<Pd, Error> {
        Pd::alloc(self)
    }

    /// Makes an XRC domain.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn open_xrcd(&self) -> Result<Xrcd, Error> {
        Xrcd::open(self)
    }

    /// Makes a completion queue of `depth` entries.
    #[doc(alias = "ibv_create_cq")]
    pub fn create_cq(&self, depth: u32) -> Result<Cq, Error> {
        Cq::create(self, depth, None)
    }

    /// Makes a completion queue whose events go to `channel`.
    pub fn create_cq_with(&self, depth: u32, channel: &CompChannel) -> Result<Cq, Error> {
        Cq::create(self, depth, Some(channel))
    }

    /// Makes a completion channel.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn create_comp_channel(&self) -> Result<CompChannel, Error> {
        CompChannel::new(self)
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

    /// Readable while an asynchronous event waits.
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        self.events.fd()
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

/// Joins the registry of the processes of the host, if the settings ask for it and it is possible.
fn join(settings: &Settings, seed: u64) -> Option<Arc<Member>> {
    if !settings.shared {
        return None;
    }
    let join = || Member::join(Path::new(SHARED_ROOT), seed);
    try_again(SETUP_LOOKS, io::ErrorKind::WouldBlock, join)
        .inspect_err(|e| tracing::warn!("addresses are not shared with other processes: {e}"))
        .ok()
        .map(Arc::new)
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
    if settings.shared {
        config.limits.max_qp = config.limits.max_qp.min(SHARED_QPNS - 2);
    }
    config
}

/// Restricts queue pair numbers to those of a member.
fn restrict_qpns(config: &mut Config, member: &Member) {
    config.qpn_first = u32::from(member.prefix()) << 16;
    config.qpn_count = SHARED_QPNS;
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
