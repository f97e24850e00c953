//! The driver joins an engine and a link.
//!
//! The thread that needs progress drives the engine. The link has one owner at a time, behind a
//! lock that no thread waits for on the data path: a posting thread transmits; a polling thread
//! that finds its completion queue empty receives; the driver thread sleeps on the link and on the
//! timers, and drives when no other thread does. A thread that releases the link looks at the
//! doorbells once more, because another thread may have rung one meanwhile and left the work to the
//! owner of the link.
//!
//! The engine has a lock of its own, which the owner of the link takes while the engine computes,
//! and not while the link sends or waits for a packet (see [`turn`]). Operations that neither
//! transmit nor end a right take only that lock. The order is link, then engine.
//!
//! Consumers are woken after both are released; see [`wakes`].

mod agent;
mod backoff;
pub(crate) mod clock;
mod dispatch;
mod fork;
mod link_side;
mod locks;
mod naps;
mod poll;
mod pollers;
mod post;
mod resumed;
mod revocation;
mod shards;
mod state;
mod stream_order;
mod stream_turn;
mod streams;
mod thread;
mod turn;
mod wakes;
mod watchers;

use std::hint::cold_path;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use feroce_engine::Engine;
use feroce_link::LinkCounters;
use feroce_local::HostCarrier;
use feroce_mem::HostMemory;
use feroce_ring::{Arming, DoorbellSet, Sleeper};
use feroce_train::Instant;
use feroce_wire::Qpn;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;

use crate::device::Device;
use crate::device::monitor::Monitor;
use crate::watch::Listener;

pub(crate) use agent::Agent;
use backoff::Backoff;
pub(crate) use clock::Clock;
pub(crate) use dispatch::{AsyncQueue, ChannelQueue, Dispatch, EventQueue, Object};
pub(crate) use link_side::LinkSide;
use link_side::OwnedLink;
use locks::{Locks, Parking, StateGuard};
pub(crate) use poll::Looked;
use pollers::Pollers;
use revocation::Looks;
pub(crate) use shards::{Shards, Siblings};
pub(crate) use state::State;
pub(crate) use stream_order::{StreamInput, StreamOrder};
pub(crate) use streams::Streams;
use turn::Turn;
pub(crate) use wakes::{Signal, WakeOnDrop, Wakes};
pub(crate) use watchers::add_counters;

/// If a consumer has polled within this time, the driver thread leaves the link to it. A packet
/// that arrives after its last poll waits at most this long, which is a quarter of the time after
/// which a peer probes for a lost acknowledgement (2 ms).
const IDLE_NS: u64 = 500_000;

/// The same limit, if another thread holds the lock: the consumer may be busy sending. At 10 Gb/s
/// it sends 25 MB within this time without polling.
const BUSY_NS: u64 = 20_000_000;

/// If a consumer has asked for an event within this time, the driver thread does not leave the link
/// to consumers, because that consumer may sleep. A consumer that waits for events asks again after
/// each, so only one that has turned to polling without [saying so](Driver::expect_poll), or that
/// waits for longer than this without an event, is beyond the limit; the completion wakes the
/// latter.
const ARMED_NS: u64 = 20_000_000;

/// How often a process that exits tries to take the lock before it exits without telling its peers.
/// It yields in between: another thread that owns the link releases it within a few turns, but this
/// thread may own it itself, below a signal handler that exits.
const LEAVE_TRIES: u32 = 10_000;

/// How long a process that exits waits for its peers to confirm that their connections have ended:
/// connection management repeats a lost message after 0.2 and 1 s. A peer that never learns of the
/// end may wait for ever, and no process is left to tell it. The kernel's adapters repeat the
/// message after the process has gone.
const FAREWELL_NS: u64 = 1_100_000_000;

/// How long it sleeps at most in between, so that it notices when the time is up.
const FAREWELL_LOOK: std::time::Duration = std::time::Duration::from_millis(20);

/// A consumer that has polled within this time is likely to answer a message itself. Beyond it, a
/// peer probes for the acknowledgement that waits for the answer.
const ABOUT_NS: u64 = 2_000_000;

/// No wake-up is planned.
const NEVER: u64 = u64::MAX;

/// An engine and its link, shared by every object of a device.
#[derive(Debug)]
pub(crate) struct Driver {
    /// The link, and inside its lock that of the engine. While a thread waits for the link,
    /// [`Driver::try_link`] refuses the others.
    locks: Locks,
    /// The device has other shards; see [`Driver::claim_link`].
    has_siblings: AtomicBool,
    /// The other shards, if this is the first.
    siblings: OnceLock<Siblings>,
    /// The numbers of its queue pairs.
    qpns: Range<u32>,
    /// Knows which processes of the host may still copy under rights that were revoked.
    host_memory: Option<Arc<dyn HostMemory>>,
    /// Consumers to wake after the lock is released.
    wakes: Arc<Wakes>,
    doorbells: Arc<DoorbellSet>,
    clock: Clock,
    /// Wakes the driver thread.
    wake: EventFd,
    /// Whether the driver thread sleeps, and whether it leaves the link to a polling consumer.
    sleeper: Sleeper,
    /// When a consumer last drove reception.
    polled_at: AtomicU64,
    /// Which of the threads that poll drives.
    pollers: Pollers,
    /// When a peer process last kicked this one, because no consumer polled to serve it at once.
    kicked_at: AtomicU64,
    backoff: Backoff,
    stop: AtomicBool,
    /// Through which other processes look into the device.
    watch: Option<Listener>,
    /// This is the copy in a forked child of the process that owns the link.
    cut_off: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Driver {
    /// Joins the engine and the link, and starts the driver thread, which also applies the
    /// changes that `monitor` reports. The link logs to `wakes`. Other processes look into the
    /// device through its first shard.
    pub(crate) fn start(
        engine: Engine,
        link: Box<dyn HostCarrier>,
        clock: Clock,
        device: &Device,
        monitor: Option<Monitor>,
        wakes: Arc<Wakes>,
        is_first: bool,
    ) -> io::Result<Arc<Self>> {
        let doorbells = Arc::clone(engine.doorbells());
        let (first_qpn, count) = (engine.config().qpn_first, engine.config().qpn_count);
        let qpns = first_qpn..first_qpn.saturating_add(count);
        let host_memory = engine.host_memory().cloned();
        let subnet = monitor.as_ref().and_then(Monitor::subnet).cloned();
        let is_up = subnet.as_ref().map_or_else(|| device.is_up(), |port| port.is_active());
        let backoff = Backoff::new(link.wait_fd().try_clone_to_owned()?);
        let (mut dispatch, link) = (Dispatch::with(Arc::clone(&wakes)), LinkSide::new(link));
        dispatch.end_naps(Arc::clone(backoff.naps()));
        let revocations = Looks::default();
        let watch = (is_first && !clock.is_virtual()).then(Listener::new).and_then(|made| {
            made.inspect_err(|e| tracing::warn!("`feroce stat` will not see this device: {e}")).ok()
        });
        let first = None;
        let state = State { engine, dispatch, agent: None, is_up, subnet, revocations, first };
        let driver = Arc::new(Self {
            locks: Locks::new(link, state, Parking::default()),
            has_siblings: AtomicBool::new(false),
            siblings: OnceLock::new(),
            qpns,
            host_memory,
            wakes,
            doorbells,
            clock,
            wake: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
            sleeper: Sleeper::new(),
            polled_at: AtomicU64::new(0),
            pollers: Pollers::default(),
            kicked_at: AtomicU64::new(0),
            backoff,
            stop: AtomicBool::new(false),
            watch,
            cut_off: AtomicBool::new(false),
            thread: Mutex::new(None),
        });
        // In a simulated world the world drives.
        if !driver.clock.is_virtual() {
            fork::watch(&driver);
            let handle = thread::spawn(Arc::clone(&driver), device.name(), monitor)?;
            *driver.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle);
        }
        Ok(driver)
    }

    /// Does all there is to do, as the driver thread would, and says when there is more, if neither
    /// a packet arrives nor the link has room again before.
    #[cfg(feature = "sim")]
    pub(crate) fn drive_in_world(&self) -> Option<Instant> {
        let now = self.now();
        while self.finish(self.link(), now, Turn::Receive) {}
        let link = self.link();
        // What is due although it was driven waits for room in the link, and the world knows when
        // there is some.
        let of_engine = self.read(State::deadline).filter(|&at| at > now);
        of_engine.into_iter().chain(link.poll_timeout()).min()
    }

    /// Whether a queue pair with this number would be in this shard.
    fn is_home_of(&self, qpn: Qpn) -> bool {
        self.qpns.contains(&qpn.get())
    }

    /// Whether this is the copy in a forked child of the process that owns the link.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.cut_off.load(Ordering::Acquire)
    }

    /// The clock of the device.
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// When a consumer last found its completion queue empty and drove reception.
    #[inline]
    pub(crate) fn polled_at(&self) -> u64 {
        self.polled_at.load(Ordering::Relaxed)
    }

    /// The time as the engine sees it.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Runs a control operation: waits for the link and the engine, and afterwards drives the
    /// engine for the work that the operation caused. The caller holds no lock that a waker might
    /// take.
    pub(crate) fn control<R>(&self, f: impl FnOnce(&mut State, Instant) -> R) -> R {
        self.control_then(f).0
    }

    /// Does what was posted before now, as far as the link and the peers let it, before an
    /// operation that asks what is complete. The caller holds no lock that a waker might take.
    pub(crate) fn catch_up(&self) {
        self.control(|_, _| ());
    }

    /// Runs a control operation for a caller that holds a lock of its own: it releases that lock
    /// before it drops the second result, which wakes consumers.
    pub(crate) fn control_then<R>(
        &self,
        f: impl FnOnce(&mut State, Instant) -> R,
    ) -> (R, WakeOnDrop<'_>) {
        self.control_link_then(|state, _, now| f(state, now))
    }

    /// Runs a control operation that changes the port: the engine's view of it and the link.
    pub(crate) fn control_link<R>(
        &self,
        f: impl FnOnce(&mut State, &mut LinkSide, Instant) -> R,
    ) -> R {
        self.control_link_then(f).0
    }

    fn control_link_then<R>(
        &self,
        f: impl FnOnce(&mut State, &mut LinkSide, Instant) -> R,
    ) -> (R, WakeOnDrop<'_>) {
        let mut link = self.link();
        let now = self.now();
        let result = f(&mut self.state(), &mut link, now);
        (result, self.drive(link, now, Turn::Send).1)
    }

    /// Creates an object: waits for the engine only. `f` gives the engine nothing to transmit and
    /// ends no right.
    pub(crate) fn create<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let wakes = WakeOnDrop::new(&self.wakes);
        let result = f(&mut self.state());
        drop(wakes);
        result
    }

    /// Reads the state: waits for the engine only.
    pub(crate) fn read<R>(&self, f: impl FnOnce(&State) -> R) -> R {
        f(&self.state())
    }

    /// What happened to the link so far.
    pub(crate) fn link_counters(&self) -> LinkCounters {
        self.at_link(|link| self.counters_of(link))
    }

    fn counters_of(&self, link: &LinkSide) -> LinkCounters {
        let mut counters = link.counters();
        counters.extend(link.streams.iter().flat_map(|streams| streams.counters(&self.state())));
        counters
    }

    /// Waits for the link, for an operation that gives it nothing to send.
    fn at_link<R>(&self, f: impl FnOnce(&mut LinkSide) -> R) -> R {
        let mut link = self.link();
        let result = f(&mut link);
        let wakes = link.unlock(None);
        self.answer_bell();
        drop(wakes);
        result
    }

    /// A thread that releases the link without [`Driver::finish`] calls this: if another thread
    /// rang a doorbell meanwhile, this transmits its work. Returns whether one did.
    #[inline]
    fn answer_bell(&self) -> bool {
        let is_rung = self.doorbells.is_rung_meanwhile();
        if is_rung {
            self.kick();
        }
        is_rung
    }

    /// A consumer asks for an event and may go to sleep: from now on the driver thread watches the
    /// link, even if other consumers poll.
    pub(crate) fn expect_event(&self, consumer: &Arming) {
        if self.doorbells.is_rung() {
            // Coalesced sends are transmitted now, because the consumer may not poll again soon.
            self.kick();
        }
        if self.sleeper.arm(self.now().as_nanos(), consumer) {
            self.wake_thread();
        }
    }

    /// A consumer polls from now on, or is no more: it may have asked for an event before.
    #[inline]
    pub(crate) fn expect_poll(&self, consumer: &Arming) {
        self.sleeper.withdraw(consumer);
    }

    /// Whether the driver thread may leave the link to a consumer, and for how long.
    fn idle_ns(&self, now: Instant) -> Option<u64> {
        let since = |at: u64| match at {
            0 => NEVER,
            at => now.as_nanos().saturating_sub(at),
        };
        let since_poll_ns = since(self.polled_at());
        let kicked_at = self.kicked_at.load(Ordering::Relaxed);
        if since_poll_ns >= since(kicked_at) || since(self.sleeper.armed_at()) <= ARMED_NS {
            return None;
        }
        match since_poll_ns {
            0..IDLE_NS => Some(IDLE_NS - since_poll_ns),
            // The consumer may not have polled for a while because it has much to send.
            IDLE_NS..BUSY_NS if self.try_link().is_none() => Some(IDLE_NS),
            _ => None,
        }
    }

    /// Whether a consumer has polled recently.
    fn is_consumer_about(&self, now: Instant) -> bool {
        let polled_at = self.polled_at.load(Ordering::Relaxed);
        polled_at != 0 && now.as_nanos().saturating_sub(polled_at) < ABOUT_NS
    }

    /// Drives the engine, releases the link, answers doorbells that were rung in between, and wakes
    /// consumers. Returns whether there was anything to do.
    fn finish<'a>(&'a self, link: OwnedLink<'a>, now: Instant, turn: Turn) -> bool {
        self.drive(link, now, turn).0
    }

    /// Does the same as [`Driver::finish`], except that consumers are woken when the caller drops
    /// the second result.
    fn drive<'a>(
        &'a self,
        mut link: OwnedLink<'a>,
        mut now: Instant,
        mut turn: Turn,
    ) -> (bool, WakeOnDrop<'a>) {
        let mut busy = false;
        loop {
            let driven = self.turn(&mut link, now, turn);
            busy |= driven.busy == Some(true);
            turn = Turn::Send;
            let sleeps = self.sleeper.may_sleep();
            let of_link = driven.busy.filter(|_| sleeps).and_then(|_| link.deadline(now));
            let is_full = !link.is_clear();
            let wakes = link.unlock(driven.state);
            self.plan(driven.deadline.into_iter().chain(of_link).min());
            // Either this thread sees the doorbell, or the thread that rang it gets the link.
            if !self.doorbells.is_rung_meanwhile() {
                return (busy, wakes);
            }
            cold_path();
            if is_full {
                // What was posted waits behind the trains that wait for room, and leaves with them.
                return (busy, wakes);
            }
            if !self.wakes.is_empty() {
                // Consumers must not wait while other threads keep posting, and a posting thread
                // must not wait for foreign wakers. Therefore the driver thread answers the
                // doorbell.
                self.wake_thread();
                return (busy, wakes);
            }
            drop(wakes);
            match self.try_link() {
                Some(again) => link = again,
                None => return (busy, WakeOnDrop::new(&self.wakes)),
            }
            now = self.now();
        }
    }

    /// Makes sure that the driver thread drives again at `deadline`: wakes it if it would sleep
    /// longer.
    #[inline]
    fn plan(&self, deadline: Option<Instant>) {
        if let Some(at) = deadline
            && self.sleeper.must_wake_at(at.as_nanos())
        {
            self.wake_thread();
        }
    }

    fn wake_thread(&self) {
        // The write fails only if the counter is at its maximum, and then it wakes the thread, too.
        let _ = self.wake.write(1);
    }

    /// Waits for the link.
    fn link(&self) -> OwnedLink<'_> {
        OwnedLink::new(self.locks.lock_outer(), &self.wakes)
    }

    /// Takes the link, if no other thread has it or waits for it. `None`: that thread answers the
    /// doorbells when it releases the link (see `feroce_ring::doorbell`).
    #[inline]
    fn try_link(&self) -> Option<OwnedLink<'_>> {
        Some(OwnedLink::new(self.locks.try_outer()?, &self.wakes))
    }

    /// Takes the link on the same terms, and waits for the engine.
    #[inline]
    fn try_both(&self) -> Option<(OwnedLink<'_>, StateGuard<'_>)> {
        let (link, state) = self.locks.try_both().or_else(|| {
            let link = self.locks.try_outer()?;
            Some((link, self.state()))
        })?;
        Some((OwnedLink::new(link, &self.wakes), state))
    }

    /// Waits for the engine, which other threads have only while it computes.
    #[inline]
    fn state(&self) -> StateGuard<'_> {
        self.locks.lock_inner()
    }

    #[inline]
    fn try_state(&self) -> Option<StateGuard<'_>> {
        self.locks.try_inner()
    }

    /// The process is about to exit: ends its connections, transmits what is due and closes the
    /// link, which completes captures. Does nothing if the lock stays taken, because this thread
    /// may be the one that holds it.
    pub(crate) fn prepare_exit(&self) {
        if self.is_cut_off() {
            return;
        }
        // From now on the driver thread does not claim the link.
        self.has_siblings.store(false, Ordering::Relaxed);
        let lock = |_| {
            let link = self.try_link();
            // Another thread may have the engine without the link for a moment.
            let both = link.and_then(|link| self.try_state().map(|state| (link, state)));
            both.or_else(|| {
                std::thread::yield_now();
                None
            })
        };
        let Some((mut link, mut state)) = (0..LEAVE_TRIES).find_map(lock) else { return };
        let now = self.now();
        if let Some(agent) = &mut state.agent {
            agent.leave(now);
        }
        state.engine.acknowledge_all();
        drop(state);
        drop(self.turn(&mut link, now, Turn::Send));
        self.await_farewells(&mut link, now);
        link.prepare_exit();
    }

    /// Drives the engine until the peers have confirmed that their connections have ended, or
    /// [`FAREWELL_NS`] have passed.
    fn await_farewells(&self, link: &mut LinkSide, since: Instant) {
        let awaits = || self.read(|s| s.agent.as_ref().is_some_and(|a| a.awaits_confirmation()));
        while awaits() && self.now().nanos_since(since) < FAREWELL_NS {
            if link.arm(self.now()) {
                let mut fds = [PollFd::new(link.wait_fd(), PollFlags::POLLIN)];
                // If a signal interrupts the wait, the loop looks again early.
                let _ = ppoll(&mut fds, Some(TimeSpec::from(FAREWELL_LOOK)), None);
            }
            drop(self.turn(link, self.now(), Turn::Receive));
        }
    }

    /// Ends the driver thread.
    pub(crate) fn shut_down(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.wake_thread();
        let handle = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(handle) = handle
            && handle.thread().id() != std::thread::current().id()
        {
            // A panic of the driver thread has been printed already.
            let _ = handle.join();
        }
    }

    /// Blocks until a descriptor is readable, `timeout_ns` pass, or a thread wakes this one.
    /// Says what happened.
    fn sleep(
        &self,
        monitor: Option<BorrowedFd<'_>>,
        other: Option<&OwnedFd>,
        timeout_ns: u64,
    ) -> Woken {
        let timeout = (timeout_ns != NEVER)
            .then(|| TimeSpec::from(std::time::Duration::from_nanos(timeout_ns)));
        let mut fds = vec![PollFd::new(self.wake.as_fd(), PollFlags::POLLIN)];
        fds.extend(monitor.map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        let watch_at = fds.len();
        let watch = self.watch.iter().flat_map(Listener::fds);
        fds.extend(watch.map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        fds.extend(other.map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN)));
        // If a signal interrupts the wait, the caller looks again early, which does no harm.
        let _ = ppoll(&mut fds, timeout, None);
        let _ = self.wake.read();
        let is_readable = |at: usize| fds[at].any() == Some(true);
        Woken {
            by_interface: monitor.is_some() && is_readable(1),
            by_watcher: self.watch.is_some()
                && (is_readable(watch_at) || is_readable(watch_at + 1)),
        }
    }
}

/// What ended a sleep of the driver thread, beside the link and other threads.
struct Woken {
    by_interface: bool,
    by_watcher: bool,
}

#[cfg(test)]
mod tests;
