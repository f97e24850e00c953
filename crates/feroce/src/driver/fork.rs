//! Processes that fork.
//!
//! A child has a copy of every adapter but none of its threads, and it shares the descriptors with
//! the parent: every operation of the child on them would affect the parent. Therefore the child
//! cuts its adapters off from their links: it can query and destroy objects, but the adapters send
//! and receive nothing, and opening the device creates a new adapter. The parent continues
//! unaffected.
//!
//! The forking thread holds the lock of every adapter while the process forks, so that the child's
//! copies are consistent.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};

use feroce_link::{Carrier, Control, LinkCounters};
use feroce_local::RemoteCarrier;
use feroce_train::{Instant, LinkCaps, Path, RxMeta, RxTrain, Single, Train};
use nix::sys::eventfd::EventFd;

use super::locks::{LinkGuard, StateGuard};
use super::wakes::HeldWakes;
use super::{Dispatch, Driver, Streams};

/// Every running driver. Entries of drivers that have ended are removed when another starts.
static DRIVERS: Mutex<Vec<Weak<Driver>>> = Mutex::new(Vec::new());

/// A driver whose locks the forking thread holds. The guards are dropped before the driver.
struct Held {
    // The first to be dropped: to release a lock may mean to wake those that wait for it.
    parking: MutexGuard<'static, ()>,
    state: StateGuard<'static>,
    link: LinkGuard<'static>,
    wakes: HeldWakes<'static>,
    driver: Arc<Driver>,
}

/// All locks that the forking thread holds.
struct AllHeld {
    held: Vec<Held>,
    _drivers: MutexGuard<'static, Vec<Weak<Driver>>>,
}

thread_local! {
    /// The locks that this thread holds while it forks.
    static HELD: RefCell<Option<AllHeld>> = const { RefCell::new(None) };
}

/// Registers a driver with the fork handlers.
pub(super) fn watch(driver: &Arc<Driver>) {
    static HANDLERS: Once = Once::new();
    HANDLERS.call_once(|| {
        // SAFETY: functions without preconditions, which stay as long as the process does.
        let refused =
            unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
        if refused != 0 {
            tracing::warn!("children of this process must not use its devices: out of memory");
        }
    });
    let mut drivers = DRIVERS.lock().unwrap_or_else(PoisonError::into_inner);
    drivers.retain(|driver| driver.strong_count() > 0);
    drivers.push(Arc::downgrade(driver));
}

fn hold(driver: Arc<Driver>) -> Held {
    let link = driver.locks.lock_outer();
    // SAFETY: the guard borrows from the driver, which `Held` keeps alive and drops after it.
    let link = unsafe { std::mem::transmute::<LinkGuard<'_>, LinkGuard<'static>>(link) };
    let state = driver.state();
    // SAFETY: the guard borrows from the driver, which `Held` keeps alive and drops after it.
    let state = unsafe { std::mem::transmute::<StateGuard<'_>, StateGuard<'static>>(state) };
    let wakes = driver.wakes.hold();
    // SAFETY: the guard borrows from the driver, which `Held` keeps alive and drops after it.
    let wakes = unsafe { std::mem::transmute::<HeldWakes<'_>, HeldWakes<'static>>(wakes) };
    let parking = driver.locks.park().hold();
    // SAFETY: the guard borrows from the driver, which `Held` keeps alive and drops after it.
    let parking =
        unsafe { std::mem::transmute::<MutexGuard<'_, ()>, MutexGuard<'static, ()>>(parking) };
    Held { parking, state, link, wakes, driver }
}

extern "C" fn before() {
    let drivers = DRIVERS.lock().unwrap_or_else(PoisonError::into_inner);
    let held = drivers.iter().filter_map(Weak::upgrade).map(hold).collect();
    // If this thread is already destroying its thread-local storage, the guards are dropped, and
    // no lock stays held.
    let _ = HELD.try_with(|place| place.replace(Some(AllHeld { held, _drivers: drivers })));
}

extern "C" fn in_parent() {
    let held = HELD.try_with(|place| place.replace(None)).ok().flatten();
    for Held { parking, state, link, wakes, driver } in held.into_iter().flat_map(|all| all.held) {
        drop(parking);
        drop((wakes, state, link));
        // Forking takes long, and a thread that rang a doorbell meanwhile may sleep now. A fork
        // handler must not transmit, so the driver thread answers the doorbell.
        if driver.doorbells.is_rung_meanwhile() {
            driver.wake_thread();
        }
    }
}

extern "C" fn in_child() {
    let held = HELD.try_with(|place| place.replace(None)).ok().flatten();
    for held in held.into_iter().flat_map(|all| all.held) {
        held.cut_off();
    }
}

impl Held {
    fn cut_off(mut self) {
        // The threads that waited for a lock are in the parent.
        self.driver.locks.forget_waiters();
        // In the child of a child nothing is left to cut off, and the first child may have closed
        // every descriptor and opened its own with the same numbers: nothing may be closed here.
        if self.driver.cut_off.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Ok(severed) = Severed::new(self.link.caps()) {
            let mut link = self.link.replace(Box::new(severed));
            // Otherwise dropping the link would undo what the parent still needs.
            let _ = link.control(Control::Fork);
        }
        if let Some(watch) = &self.driver.watch {
            // The socket is the parent's, and must end with it.
            watch.abandon();
        }
        // The epoll instance is the parent's, too. To close descriptors of the child changes
        // nothing there.
        self.link.streams().into_iter().for_each(Streams::abandon);
        self.link.streams = None;
        // The consumers of these queues are in the parent, and their descriptors are shared: the
        // child must not write to them, nor run the wakers.
        let dispatch = Dispatch::with(Arc::clone(&self.driver.wakes));
        std::mem::forget(std::mem::replace(&mut self.state.dispatch, dispatch));
        self.driver.wakes.leave_to_parent(self.wakes);
        if let Ok(mut thread) = self.driver.thread.try_lock() {
            // The driver thread does not exist in the child, so it cannot be joined.
            std::mem::forget(thread.take());
        }
    }
}

/// A link that discards what is sent and never receives.
struct Severed {
    caps: LinkCaps,
    /// Never readable.
    silence: EventFd,
}

impl Severed {
    fn new(caps: LinkCaps) -> io::Result<Self> {
        Ok(Self { caps, silence: EventFd::new()? })
    }
}

impl Carrier for Severed {
    fn caps(&self) -> LinkCaps {
        self.caps
    }

    fn headers(&self, path: &Path) -> RxMeta {
        path.into()
    }

    fn send(&mut self, _: Instant, trains: &[Train]) -> io::Result<usize> {
        Ok(trains.len())
    }

    fn send_single(&mut self, _: Single<'_>) -> bool {
        false
    }

    fn arm(&mut self, _: Instant) -> bool {
        true
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn receive(
        &mut self,
        _: Instant,
        _: usize,
        _: &mut dyn FnMut(&RxTrain<'_>),
    ) -> io::Result<usize> {
        Ok(0)
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.silence.as_fd()
    }

    fn control(&mut self, _: Control<'_>) -> io::Result<()> {
        Ok(())
    }

    fn counters(&self) -> LinkCounters {
        LinkCounters::default()
    }
}

impl RemoteCarrier for Severed {
    fn wants_more(&self, _: &[Train]) -> bool {
        false
    }
}
