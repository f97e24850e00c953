//! The driver joins an engine and a link.
//!
//! The thread that needs progress drives the engine. The engine has one owner at a time, behind a
//! lock that no thread waits for on the data path: a posting thread transmits; a polling thread
//! that finds its completion queue empty receives; the driver thread sleeps on the link and on the
//! timers, and drives when no other thread does. A thread that releases the lock looks at the
//! doorbells once more, because another thread may have rung one meanwhile and left the work to the
//! owner of the lock.
//!
//! Consumers are woken after the lock is released; see [`wakes`].

mod backoff;
mod clock;
mod dispatch;
mod fork;
mod link_side;
mod naps;
mod revocation;
mod state;
mod thread;
mod wakes;

use std::hint::cold_path;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;

use feroce_engine::{CqId, Engine, SendWr};
use feroce_link::Control;
use feroce_local::HostCarrier;
use feroce_mem::HostMemory;
use feroce_ring::{DoorbellSet, Sleeper};
use feroce_train::Instant;
use feroce_wire::Qpn;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;

use crate::device::Device;
use crate::device::watch::Watch;

use backoff::Backoff;
pub(crate) use clock::Clock;
pub(crate) use dispatch::{AsyncQueue, ChannelQueue, Dispatch, EventQueue, Object};
use link_side::LinkSide;
use revocation::Looks;
pub(crate) use state::State;
use state::{Owned, Turn};
pub(crate) use wakes::{Signal, WakeOnDrop, Wakes};

/// If a consumer has polled within this time, the driver thread leaves the link to it.
const IDLE_NS: u64 = 500_000;

/// The same limit, if another thread holds the lock: the consumer may be busy sending.
const BUSY_NS: u64 = 20_000_000;

/// If a consumer has asked for an event within this time, the driver thread does not leave the link
/// to consumers, because that consumer may sleep.
const ARMED_NS: u64 = 20_000_000;

/// How often a process that exits tries to take the lock before it exits without telling its peers.
const LEAVE_TRIES: u32 = 10_000;

/// A consumer that has polled within this time is likely to answer a message itself.
const ABOUT_NS: u64 = 2_000_000;

/// No wake-up is planned.
const NEVER: u64 = u64::MAX;

/// An engine and its link, shared by every object of a device.
#[derive(Debug)]
pub(crate) struct Driver {
    state: Mutex<State>,
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
    /// When a peer process last kicked this one, because no consumer polled to serve it at once.
    kicked_at: AtomicU64,
    backoff: Backoff,
    stop: AtomicBool,
    /// This is the copy in a forked child of the process that owns the link.
    cut_off: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Driver {
    /// Joins the engine and the link, and starts the driver thread, which also applies the
    /// interface changes that `watch` reports. The link logs to `wakes`.
    pub(crate) fn start(
        engine: Engine,
        link: Box<dyn HostCarrier>,
        clock: Clock,
        device: &Device,
        watch: Option<Watch>,
        wakes: Arc<Wakes>,
    ) -> io::Result<Arc<Self>> {
        let doorbells = Arc::clone(engine.doorbells());
        let host_memory = engine.host_memory().cloned();
        let is_up = device.is_up();
        let backoff = Backoff::new(link.wait_fd().try_clone_to_owned()?);
        let (mut dispatch, link) = (Dispatch::with(Arc::clone(&wakes)), LinkSide::new(link));
        dispatch.end_naps(Arc::clone(backoff.naps()));
        let revocations = Looks::default();
        let state = State { engine, link, dispatch, cm: None, is_up, revocations };
        let driver = Arc::new(Self {
            state: Mutex::new(state),
            host_memory,
            wakes,
            doorbells,
            clock,
            wake: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
            sleeper: Sleeper::new(),
            polled_at: AtomicU64::new(0),
            kicked_at: AtomicU64::new(0),
            backoff,
            stop: AtomicBool::new(false),
            cut_off: AtomicBool::new(false),
            thread: Mutex::new(None),
        });
        fork::watch(&driver);
        let handle = thread::spawn(Arc::clone(&driver), device.name(), watch)?;
        *driver.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle);
        Ok(driver)
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

    /// Runs a control operation: waits for the lock, and afterwards drives the engine for the work
    /// that the operation caused. The caller holds no lock that a waker might take.
    pub(crate) fn control<R>(&self, f: impl FnOnce(&mut State, Instant) -> R) -> R {
        self.control_then(f).0
    }

    /// Runs a control operation for a caller that holds a lock of its own: it releases that lock
    /// before it drops the second result, which wakes consumers.
    pub(crate) fn control_then<R>(
        &self,
        f: impl FnOnce(&mut State, Instant) -> R,
    ) -> (R, WakeOnDrop<'_>) {
        let mut state = self.lock();
        let now = self.now();
        let result = f(&mut state, now);
        (result, self.drive(state, now, Turn::Send).1)
    }

    /// Reads the state: waits for the lock, and transmits only what another thread posted meanwhile
    /// and left to the owner of the lock.
    pub(crate) fn read<R>(&self, f: impl FnOnce(&State) -> R) -> R {
        let state = self.lock();
        let result = f(&state);
        let wakes = state.unlock();
        self.answer_bell();
        drop(wakes);
        result
    }

    /// Transmits posted work whose doorbell was rung. If another thread holds the lock, it answers
    /// the doorbell instead.
    #[inline]
    pub(crate) fn kick(&self) {
        if let Some(state) = self.try_lock() {
            let now = self.now();
            if self.finish(state, now, Turn::Send) {
                // The peer may answer at once.
                self.backoff.reset();
            }
        }
    }

    /// Executes a request at once, if [`Engine::try_direct`] can and no other thread holds the
    /// lock.
    #[inline]
    pub(crate) fn try_direct(&self, qpn: Qpn, wr: &SendWr) -> bool {
        let Some(mut state) = self.try_lock() else { return false };
        let is_done = state.engine.try_direct(|| self.now(), qpn, wr);
        state.tell();
        let wakes = state.unlock();
        self.answer_bell();
        drop(wakes);
        is_done
    }

    /// Sends the single waiting request of a queue pair, if [`Engine::try_fast_path`] can and no
    /// other thread holds the lock.
    #[inline(never)]
    pub(crate) fn fast_path(&self, qpn: Qpn) -> bool {
        let Some(mut state) = self.try_lock() else { return false };
        let (is_sent, deadline) = state.fast_path(|| self.now(), qpn);
        let wakes = state.unlock();
        if is_sent {
            self.plan(deadline);
            self.backoff.reset();
        }
        self.answer_bell();
        drop(wakes);
        is_sent
    }

    /// A thread that releases the lock without [`Driver::finish`] calls this: if another thread
    /// rang a doorbell meanwhile, this transmits its work. Returns whether one did.
    #[inline]
    fn answer_bell(&self) -> bool {
        let is_rung = self.doorbells.is_rung_meanwhile();
        if is_rung {
            self.kick();
        }
        is_rung
    }

    /// Receives what has arrived, unless another thread holds the lock and does so. The thread,
    /// which polls `cq`, backs off if it has received nothing for a while. Before it naps it calls
    /// `begin_nap`: true if the queue is empty, and a completion there will be an event.
    #[inline]
    pub(crate) fn progress(&self, cq: CqId, begin_nap: impl FnOnce() -> bool) {
        let state = self.try_lock();
        if self.backoff.is_fresh() && state.as_ref().is_some_and(|state| state.is_quiet()) {
            drop(state);
            self.answer_bell();
            self.backoff.spin();
            return;
        }
        let now = self.now();
        self.polled_at.store(now.as_nanos(), Ordering::Relaxed);
        // `Turn::Poll` may hold acknowledgements back until the consumer answers or polls again. If
        // the consumer does neither, the idle driver thread sends them. The driver thread holds the
        // lock when it ends its idle state.
        let turn = if self.sleeper.is_idle() { Turn::Poll } else { Turn::Receive };
        let busy = state.is_some_and(|state| self.finish(state, now, turn));
        if busy {
            self.backoff.reset();
        } else {
            // If another thread holds the lock, it looks at the link. This thread answers the
            // doorbells before it backs off, because backing off may take long.
            let kick = || {
                if let Some(mut state) = self.try_lock() {
                    state.link.kick();
                }
                self.answer_bell();
            };
            let arm = || {
                if !begin_nap() {
                    return false;
                }
                let may_sleep = self.try_lock().is_none_or(|mut state| {
                    state.link.set_looks(true);
                    state.link.arm(now)
                });
                !self.answer_bell() && may_sleep
            };
            self.backoff.back_off(&self.clock, cq, kick, arm);
        }
    }

    /// A consumer asks for an event and may go to sleep: from now on the driver thread watches the
    /// link, even if other consumers poll.
    pub(crate) fn expect_event(&self) {
        if self.doorbells.is_rung() {
            // Coalesced sends are transmitted now, because the consumer may not poll again soon.
            self.kick();
        }
        if self.sleeper.arm(self.now().as_nanos()) {
            self.wake_thread();
        }
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
            IDLE_NS..BUSY_NS if self.try_lock().is_none() => Some(IDLE_NS),
            _ => None,
        }
    }

    /// Whether a consumer has polled recently.
    fn is_consumer_about(&self, now: Instant) -> bool {
        let polled_at = self.polled_at.load(Ordering::Relaxed);
        polled_at != 0 && now.as_nanos().saturating_sub(polled_at) < ABOUT_NS
    }

    /// Drives the engine, releases the lock, answers doorbells that were rung in between, and wakes
    /// consumers. Returns whether there was anything to do.
    fn finish<'a>(&'a self, state: Owned<'a>, now: Instant, turn: Turn) -> bool {
        self.drive(state, now, turn).0
    }

    /// Does the same as [`Driver::finish`], except that consumers are woken when the caller drops
    /// the second result.
    fn drive<'a>(
        &'a self,
        mut state: Owned<'a>,
        mut now: Instant,
        mut turn: Turn,
    ) -> (bool, WakeOnDrop<'a>) {
        let mut busy = false;
        loop {
            let driven = match state.drive(now, turn) {
                Ok(driven) => driven,
                Err(e) => {
                    warn_of_link(&self.wakes, &e);
                    Some(false)
                }
            };
            busy |= driven == Some(true);
            turn = Turn::Send;
            // If nothing was driven, no deadline has changed. A driver thread that is awake or idle
            // reads the deadline under the lock before it sleeps.
            let sleeps = self.sleeper.may_sleep();
            let deadline = driven.filter(|_| sleeps).and_then(|_| state.deadline(now));
            let wakes = state.unlock();
            self.plan(deadline);
            // Either this thread sees the doorbell, or the thread that rang it gets the lock.
            if !self.doorbells.is_rung_meanwhile() {
                return (busy, wakes);
            }
            cold_path();
            if !self.wakes.is_empty() {
                // Consumers must not wait while other threads keep posting, and a posting thread
                // must not wait for foreign wakers. Therefore the driver thread answers the
                // doorbell.
                self.wake_thread();
                return (busy, wakes);
            }
            drop(wakes);
            match self.try_lock() {
                Some(again) => state = again,
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

    fn lock(&self) -> Owned<'_> {
        self.own(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn try_lock(&self) -> Option<Owned<'_>> {
        match self.state.try_lock() {
            Ok(state) => Some(self.own(state)),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(e)) => Some(self.own(e.into_inner())),
        }
    }

    fn own<'a>(&'a self, state: MutexGuard<'a, State>) -> Owned<'a> {
        Owned { state, wakes: WakeOnDrop::new(&self.wakes) }
    }

    /// The process is about to exit: ends its connections, transmits what is due and closes the
    /// link, which completes captures. Does nothing if the lock stays taken, because this thread
    /// may be the one that holds it.
    pub(crate) fn take_leave(&self) {
        if self.is_cut_off() {
            return;
        }
        let lock = |_| {
            self.try_lock().or_else(|| {
                std::thread::yield_now();
                None
            })
        };
        let Some(mut state) = (0..LEAVE_TRIES).find_map(lock) else { return };
        let now = self.now();
        if let Some(cm) = &mut state.cm {
            cm.leave(now);
        }
        state.engine.take_leave();
        if let Err(e) = state.drive(now, Turn::Send) {
            warn_of_link(&self.wakes, &e);
        }
        let _ = state.link.control(Control::Exit);
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
    /// Says whether `watch` is readable.
    fn sleep(
        &self,
        watch: Option<BorrowedFd<'_>>,
        other: Option<&OwnedFd>,
        timeout_ns: u64,
    ) -> bool {
        let timeout = (timeout_ns != NEVER)
            .then(|| TimeSpec::from(std::time::Duration::from_nanos(timeout_ns)));
        let mut fds = vec![PollFd::new(self.wake.as_fd(), PollFlags::POLLIN)];
        fds.extend(watch.map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        fds.extend(other.map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN)));
        // If a signal interrupts the wait, the caller looks again early, which does no harm.
        let _ = ppoll(&mut fds, timeout, None);
        let _ = self.wake.read();
        watch.is_some() && fds[1].any() == Some(true)
    }
}

/// Logs an error of the link. The packets that it hit count as lost.
#[cold]
fn warn_of_link(wakes: &Wakes, e: &io::Error) {
    wakes.warn(format_args!("link: {e}"));
}

#[cfg(test)]
mod tests;
