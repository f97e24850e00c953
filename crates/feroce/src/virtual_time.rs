//! Time and random numbers of a simulated world, for the thread that runs it.
//!
//! Everything in a world happens on one thread, so a thread-local variable says whether there is
//! one. Without the feature `sim` there is none, and the functions here cost nothing.

#[cfg(feature = "sim")]
use std::{
    cell::RefCell,
    sync::Arc,
    sync::atomic::{AtomicU64, Ordering},
};

/// The time of a world in nanoseconds, which its clocks share. A world begins at one second, as
/// clocks do: code that stores times uses zero for "never".
#[cfg(feature = "sim")]
#[derive(Clone, Debug)]
pub(crate) struct VirtualTime(Arc<AtomicU64>);

#[cfg(feature = "sim")]
impl VirtualTime {
    /// When worlds begin.
    pub(crate) const START_NS: u64 = 1_000_000_000;

    pub(crate) fn ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, ns: u64) {
        self.0.store(ns, Ordering::Relaxed);
    }
}

#[cfg(feature = "sim")]
struct Entered {
    time: VirtualTime,
    random: fastrand::Rng,
}

#[cfg(feature = "sim")]
thread_local! {
    static WORLD: RefCell<Option<Entered>> = const { RefCell::new(None) };
}

/// While it lives, this thread is inside a world.
#[cfg(feature = "sim")]
#[derive(Debug)]
pub(crate) struct Inside(());

#[cfg(feature = "sim")]
impl Inside {
    /// Enters a world; `None` if the thread is inside one already.
    pub(crate) fn enter(seed: u64) -> Option<(Self, VirtualTime)> {
        let time = VirtualTime(Arc::new(AtomicU64::new(VirtualTime::START_NS)));
        let random = fastrand::Rng::with_seed(seed);
        WORLD.with_borrow_mut(|world| {
            if world.is_some() {
                return None;
            }
            *world = Some(Entered { time: time.clone(), random });
            Some((Self(()), time.clone()))
        })
    }
}

#[cfg(feature = "sim")]
impl Drop for Inside {
    fn drop(&mut self) {
        WORLD.with_borrow_mut(|world| *world = None);
    }
}

/// The time of the world that this thread is inside, if any.
#[cfg(feature = "sim")]
pub(crate) fn time() -> Option<VirtualTime> {
    WORLD.with_borrow(|world| world.as_ref().map(|world| world.time.clone()))
}

/// Random bits of the world that this thread is inside, if any.
pub(crate) fn random_u64() -> Option<u64> {
    #[cfg(feature = "sim")]
    return WORLD.with_borrow_mut(|world| world.as_mut().map(|world| world.random.u64(..)));
    #[cfg(not(feature = "sim"))]
    None
}

/// Whether this thread is inside a world.
pub(crate) fn is_inside() -> bool {
    #[cfg(feature = "sim")]
    return WORLD.with_borrow(Option::is_some);
    #[cfg(not(feature = "sim"))]
    false
}

/// A call is about to block the thread.
///
/// # Panics
/// If this thread is inside a world: nothing would end the wait.
pub(crate) fn refuse_to_wait() {
    assert!(
        !is_inside(),
        "a call that blocks, inside a simulated world: nothing would end the wait; use the \
         asynchronous call"
    );
}
