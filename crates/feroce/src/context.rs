//! An open device.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use feroce_backend_rdma_core as rdma_core;
use feroce_engine::{AsyncEvent, Config, Counters, DropCounters, Engine, Event};
use feroce_link::{Link, UdpConfig};
use feroce_local::Member;
use feroce_train::Instant;
use feroce_wire::Gid;

use crate::attr::{DeviceAttr, PortAttr};
use crate::channel::CompChannel;
use crate::cq::Cq;
use crate::device::watch::Watch;
use crate::device::{Device, DeviceKind};
use crate::driver::{AsyncQueue, Clock, Dispatch, Driver, Object};
use crate::pd::Pd;
use crate::sigbus::{self, Sigbus};
use crate::xrc::Xrcd;
use crate::{Error, Settings, stack, sys};

/// Where processes find each other.
const SHARED_ROOT: &str = "/dev/shm";

/// Queue pair numbers of one process among several.
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

/// A way back to a running adapter that does not keep it open.
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

    /// Sends what still waits, ends connections and completes captures: for a process that is
    /// about to end without closing what it opened.
    pub fn take_leave(&self) {
        if let Some(inner) = self.inner.upgrade()
            && let Adapter::Soft(soft) = &inner.adapter
        {
            soft.driver.take_leave();
        }
    }
}

#[derive(Debug)]
pub(crate) struct ContextInner {
    adapter: Adapter,
    device: Device,
}

/// What does the work.
#[derive(Debug)]
pub(crate) enum Adapter {
    /// Our own.
    Soft(Arc<Soft>),
    /// That of one of the kernel's drivers.
    Hard(Arc<Hard>),
}

/// Our own adapter: the engine and its links, driven.
#[derive(Debug)]
pub(crate) struct Soft {
    pub(crate) driver: Arc<Driver>,
    /// Its place among the processes that share its addresses.
    pub(crate) member: Option<Arc<Member>>,
    /// Memory that is registered is made shareable.
    pub(crate) converts: bool,
}

/// An adapter of one of the kernel's drivers.
#[derive(Debug)]
pub(crate) struct Hard {
    // Declared first, so that its thread ends before the table that it delivers to.
    pub(crate) adapter: Arc<rdma_core::Adapter>,
    dispatch: Arc<Mutex<Dispatch>>,
    clock: Clock,
}

impl Hard {
    fn open(device: &Device, settings: &Settings) -> Result<Arc<Self>, Error> {
        refuse_layers(settings)?;
        let dispatch = Arc::new(Mutex::new(Dispatch::default()));
        let table = Arc::clone(&dispatch);
        let deliver = move |event| {
            let table = table.lock().unwrap_or_else(PoisonError::into_inner);
            table.deliver(Event::Async(event));
            let wakes = Arc::clone(table.wakes());
            drop(table);
            wakes.run();
        };
        let directory = settings.rdma_core.as_deref();
        let adapter = rdma_core::Adapter::open(device.name(), directory, Box::new(deliver))?;
        Ok(Arc::new(Self { adapter, dispatch, clock: Clock::start() }))
    }

    fn dispatch(&self) -> MutexGuard<'_, Dispatch> {
        self.dispatch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ContextInner {
    fn is_cut_off(&self) -> bool {
        match &self.adapter {
            Adapter::Soft(soft) => soft.driver.is_cut_off(),
            Adapter::Hard(_) => false,
        }
    }
}

impl Drop for Soft {
    fn drop(&mut self) {
        self.driver.shut_down();
    }
}

/// What can be known without opening it, even while another process has it.
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
        Ok(PortAttr::of(self, &config, self.is_up(), self.gids(), &DropCounters::default()))
    }
}

impl Context {
    pub(crate) fn open(device: Device, settings: Settings) -> Result<Self, Error> {
        if device.kind() == DeviceKind::Kernel {
            let adapter = Adapter::Hard(Hard::open(&device, &settings)?);
            return Self::listening(Arc::new(ContextInner { adapter, device }));
        }
        let mut config = engine_config(&settings);
        if config.seed == 0 {
            config.seed = sys::random_u64()?;
        }
        config.port_mtu = device.path_mtu();
        let member = join(&settings, config.seed);
        if let Some(member) = &member {
            lease(&mut config, member);
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
        let udp = UdpConfig {
            interface: device.interface().cloned(),
            gso: settings.gso,
            gro: settings.gro,
            ecn: settings.ecn,
            rcvbuf: settings.rcvbuf,
            ..UdpConfig::default()
        };
        let mut link = stack::carrier(udp, member.as_ref(), &settings)?;
        for (i, gid) in (0..).zip(bind(&device, &mut *link)?) {
            engine.set_gid(i, gid);
        }
        // Nobody listens yet: these are not changes.
        while engine.poll_event().is_some() {}
        let watch = device.interface().and_then(|(name, _)| {
            Watch::new(name)
                .inspect_err(|e| tracing::warn!("changes of {name} will not be seen: {e}"))
                .ok()
        });
        let clock = Clock::start();
        let link = stack::build(link, member.is_some(), &settings, &clock, device.name())?;
        let driver = Driver::start(engine, link, clock, &device, watch)?;
        let adapter = Adapter::Soft(Arc::new(Soft { driver, member, converts: settings.convert }));
        Self::listening(Arc::new(ContextInner { adapter, device }))
    }

    fn listening(inner: Arc<ContextInner>) -> Result<Self, Error> {
        let events = Arc::new(AsyncQueue::new()?);
        match &inner.adapter {
            Adapter::Soft(soft) => {
                soft.driver.control(|state, _| state.dispatch.listen(&events));
            }
            Adapter::Hard(hard) => hard.dispatch().listen(&events),
        }
        Ok(Self { inner, events })
    }

    /// Opens the same running adapter once more: events of the port come to both, events of
    /// queues and queue pairs to the one that they were made from.
    pub fn reopen(&self) -> Result<Self, Error> {
        Self::listening(Arc::clone(&self.inner))
    }

    /// Whether this is a copy that a child got when its parent forked. Its objects can be looked at
    /// and destroyed, but nothing goes out or comes in; open the device again.
    pub fn is_cut_off(&self) -> bool {
        self.inner.is_cut_off()
    }

    /// A way back to the adapter that does not keep it open.
    pub fn downgrade(&self) -> WeakContext {
        WeakContext { inner: Arc::downgrade(&self.inner) }
    }

    /// Where events of the objects made from it go.
    pub(crate) fn events(&self) -> &Arc<AsyncQueue> {
        &self.events
    }

    /// What does the work.
    pub(crate) fn adapter(&self) -> &Adapter {
        &self.inner.adapter
    }

    /// Our own adapter, if it is that.
    pub(crate) fn soft(&self) -> Result<&Arc<Soft>, Error> {
        match &self.inner.adapter {
            Adapter::Soft(soft) => Ok(soft),
            Adapter::Hard(_) => Err(Error::Unsupported("objects of the other backend")),
        }
    }

    /// The driver of our own adapter, if it is that.
    pub(crate) fn driver(&self) -> Result<&Arc<Driver>, Error> {
        Ok(&self.soft()?.driver)
    }

    /// Asynchronous events about an object of one of the kernel's drivers come here.
    pub(crate) fn own(&self, object: Object) {
        if let Adapter::Hard(hard) = &self.inner.adapter {
            hard.dispatch().own(object, &self.events);
        }
    }

    /// An object of one of the kernel's drivers is gone, and its events with it.
    pub(crate) fn disown(&self, object: Object) {
        if let Adapter::Hard(hard) = &self.inner.adapter {
            let mut dispatch = hard.dispatch();
            dispatch.disown(object);
            let wakes = Arc::clone(dispatch.wakes());
            drop(dispatch);
            wakes.run();
        }
    }

    /// The device that was opened.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Limits and identity.
    #[doc(alias = "ibv_query_device")]
    #[doc(alias = "ibv_query_device_ex")]
    pub fn attr(&self) -> DeviceAttr {
        match &self.inner.adapter {
            Adapter::Soft(soft) => {
                soft.driver.read(|s| DeviceAttr::of(&self.inner.device, s.engine.config()))
            }
            Adapter::Hard(hard) => {
                DeviceAttr::of_kernel(self.inner.device.name(), hard.adapter.info())
            }
        }
    }

    /// The port.
    #[doc(alias = "ibv_query_port")]
    pub fn port(&self) -> PortAttr {
        match &self.inner.adapter {
            Adapter::Soft(soft) => soft.driver.read(|s| {
                let (config, gids) = (s.engine.config(), s.engine.gids());
                PortAttr::of(&self.inner.device, config, s.is_up, gids, s.engine.drops())
            }),
            Adapter::Hard(hard) => PortAttr::of_kernel(&hard.adapter.port()),
        }
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

    /// The time as the timestamps of completions count it.
    #[doc(alias = "ibv_query_rt_values_ex")]
    pub fn now(&self) -> Instant {
        self.clock().now()
    }

    /// What the beginning of that time is in nanoseconds since 1970.
    pub fn epoch_ns(&self) -> u64 {
        self.clock().epoch_ns()
    }

    fn clock(&self) -> &Clock {
        match &self.inner.adapter {
            Adapter::Soft(soft) => soft.driver.clock(),
            Adapter::Hard(hard) => &hard.clock,
        }
    }

    /// What the adapter did so far. Drivers of the kernel count elsewhere.
    pub fn counters(&self) -> Counters {
        match &self.inner.adapter {
            Adapter::Soft(soft) => soft.driver.read(|s| s.engine.counters()),
            Adapter::Hard(_) => Counters::default(),
        }
    }

    /// Packets that the adapter dropped so far, by reason. Drivers of the kernel count elsewhere.
    pub fn drops(&self) -> DropCounters {
        match &self.inner.adapter {
            Adapter::Soft(soft) => soft.driver.read(|s| *s.engine.drops()),
            Adapter::Hard(_) => DropCounters::default(),
        }
    }

    /// What the link did so far, by name. Drivers of the kernel have none of ours.
    pub fn link_counters(&self) -> Vec<(&'static str, u64)> {
        match &self.inner.adapter {
            Adapter::Soft(soft) => soft.driver.read(|s| s.link.counters()),
            Adapter::Hard(_) => Vec::new(),
        }
    }
}

/// Packets of a hardware device do not pass through `feroce`, so no layer can see them.
fn refuse_layers(settings: &Settings) -> Result<(), Error> {
    let asked = [
        (settings.pcap.is_some(), "capturing packets (`pcap`)"),
        (settings.trace.is_some(), "tracing packets (`trace`)"),
        (settings.fault.is_some(), "injecting faults (`fault`)"),
        (settings.tap.is_some(), "a tap on packets"),
    ];
    match asked.iter().find(|(is_asked, _)| *is_asked) {
        Some((_, what)) => Err(Error::Unsupported(what)),
        None => Ok(()),
    }
}

/// Joins the other processes of the host, if that is wanted and possible.
fn join(settings: &Settings, seed: u64) -> Option<Arc<Member>> {
    if !settings.shared {
        return None;
    }
    Member::join(Path::new(SHARED_ROOT), seed)
        .inspect_err(|e| tracing::warn!("addresses are not shared with other processes: {e}"))
        .ok()
        .map(Arc::new)
}

/// What the engine is made with: a device that shares its addresses has fewer queue pair numbers.
fn engine_config(settings: &Settings) -> Config {
    let mut config = settings.engine.clone();
    if settings.shared {
        config.limits.max_qp = config.limits.max_qp.min(SHARED_QPNS - 2);
    }
    config
}

/// Restricts queue pair numbers to those of a member.
fn lease(config: &mut Config, member: &Member) {
    config.qpn_first = u32::from(member.prefix()) << 16;
    config.qpn_count = SHARED_QPNS;
}

/// Binds the addresses of a device and returns those that could be. An IPv6 address of an interface
/// that just came up cannot, for a second or two; the device takes it when it hears that it can.
fn bind(device: &Device, link: &mut dyn Link) -> io::Result<Vec<Gid>> {
    let mut table = Vec::new();
    let mut refused = None;
    for &gid in device.gids() {
        table.push(gid);
        match link.set_addresses(&table) {
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
