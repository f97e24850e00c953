//! Processes that fork.
//!
//! A child has a copy of every adapter, but none of the threads, and descriptors that are still the
//! parent's as well: whatever it did with them, it would do to the parent. So in the child adapters
//! are cut off from their links: objects can be looked at and destroyed, but nothing goes out or
//! comes in, and opening the device gives a new adapter. The parent goes on as if nothing had been.
//!
//! While the process forks, every adapter is locked, so that the child's copies are whole.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};

use feroce_link::{Carrier, Close, LinkCounters};
use feroce_local::HostCarrier;
use feroce_train::{Instant, LinkCaps, Path, RxTrain, Single, Train};
use feroce_wire::{Gid, Qpn};
use nix::sys::eventfd::EventFd;

use super::wakes::HeldWakes;
use super::{Dispatch, Driver, State};

/// Every driver that runs. Those that have ended are swept out when another starts.
static DRIVERS: Mutex<Vec<Weak<Driver>>> = Mutex::new(Vec::new());

/// A driver that is locked while the process forks. The guards are dropped before the driver.
struct Held {
    state: MutexGuard<'static, State>,
    wakes: HeldWakes<'static>,
    driver: Arc<Driver>,
}

/// Everything that is locked while the process forks.
struct AllHeld {
    held: Vec<Held>,
    _drivers: MutexGuard<'static, Vec<Weak<Driver>>>,
}

thread_local! {
    /// What this thread, which forks, has locked.
    static HELD: RefCell<Option<AllHeld>> = const { RefCell::new(None) };
}

/// Makes a driver survive forks.
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
    let state = driver.state.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the guard borrows from the driver, which `Held` keeps alive and drops after it.
    let state =
        unsafe { std::mem::transmute::<MutexGuard<'_, State>, MutexGuard<'static, State>>(state) };
    let wakes = driver.wakes.hold();
    // SAFETY: the guard borrows from the driver, which `Held` keeps alive and drops after it.
    let wakes = unsafe { std::mem::transmute::<HeldWakes<'_>, HeldWakes<'static>>(wakes) };
    Held { state, wakes, driver }
}

extern "C" fn before() {
    let drivers = DRIVERS.lock().unwrap_or_else(PoisonError::into_inner);
    let held = drivers.iter().filter_map(Weak::upgrade).map(hold).collect();
    // A thread that ends while it forks has no place for it, and then nothing stays locked.
    let _ = HELD.try_with(|place| place.replace(Some(AllHeld { held, _drivers: drivers })));
}

extern "C" fn in_parent() {
    let held = HELD.try_with(|place| place.replace(None)).ok().flatten();
    for Held { state, wakes, driver } in held.into_iter().flat_map(|all| all.held) {
        drop((wakes, state));
        // To fork takes long, and who rang meanwhile may sleep. This is no place to send anything.
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
        self.driver.cut_off.store(true, Ordering::Release);
        if let Ok(severed) = Severed::new(self.state.link.caps()) {
            let mut link = self.state.link.replace(Box::new(severed));
            // Without this, to drop it would undo what the parent still needs.
            link.close(Close::Fork);
        }
        // The consumers of events are in the parent, and have the same descriptors.
        let dispatch = Dispatch::with(Arc::clone(&self.driver.wakes));
        std::mem::forget(std::mem::replace(&mut self.state.dispatch, dispatch));
        self.driver.wakes.leave_to_parent(self.wakes);
        if let Ok(mut thread) = self.driver.thread.try_lock() {
            // There is no such thread here that could be waited for.
            std::mem::forget(thread.take());
        }
    }
}

/// A link that leads nowhere.
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

    fn actual_path(&self, path: &Path) -> Path {
        *path
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

    fn close(&mut self, _: Close) {}

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

    fn set_addresses(&mut self, _: &[Gid]) -> io::Result<()> {
        Ok(())
    }

    fn join(&mut self, _: Gid) -> io::Result<()> {
        Ok(())
    }

    fn leave(&mut self, _: Gid) -> io::Result<()> {
        Ok(())
    }

    fn counters(&self) -> LinkCounters {
        LinkCounters::default()
    }
}

impl HostCarrier for Severed {
    fn is_quiet(&self) -> bool {
        false
    }

    fn wants_more(&self, _: &[Train]) -> bool {
        false
    }

    fn set_looks(&mut self, _: bool) {}

    fn kick(&mut self) {}

    fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn peer_has_unread(&self, _: &Path, _: Qpn) -> bool {
        false
    }
}
