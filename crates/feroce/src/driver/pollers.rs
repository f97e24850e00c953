//! Which of several polling threads drives the engine.
//!
//! The state of an engine is in the cache of the processor that drove it last. If threads that poll
//! drove it in turn, it would move from cache to cache with each message. So the thread that drove
//! it last goes on as long as it polls, and the others look at their own completion queues only. A
//! thread that posts leaves its doorbell to the polling thread in the same way, for a moment.

use std::cell::Cell;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use feroce_train::Instant;

use super::Driver;

/// A thread that has driven the engine within this time goes on: the turn of a message takes about
/// half as long.
const DRIVES_NS: u64 = 3_000;

/// How often a poll that leaves the engine to another thread looks at its completion queue: for
/// less than a microsecond, because the thread may poll other queues in turn.
const LOOKS: u32 = 16;

/// Polls after which a thread polls as one that drives, although another one drives: it backs off
/// then, and gives way to threads that want the processor.
const MOST_LEFT: u32 = 256;

/// How often a thread that has posted looks whether its doorbell was taken.
const BELL_LOOKS: u32 = 48;

thread_local! {
    /// The number of this thread; 0 if it has none yet.
    static NUMBER: Cell<u32> = const { Cell::new(0) };
    /// Polls since this thread last polled as one that drives.
    static LEFT: Cell<u32> = const { Cell::new(0) };
}

/// The thread that drives.
#[derive(Debug, Default)]
pub(super) struct Pollers {
    /// Its number; 0 if no thread has polled yet.
    driving: AtomicU32,
    /// When a thread last drove.
    at: AtomicU64,
}

impl Pollers {
    /// A thread drives.
    #[inline]
    pub(super) fn note(&self, now: Instant) {
        self.at.store(now.as_nanos(), Ordering::Relaxed);
    }
}

/// The number of this thread.
#[inline]
fn number() -> u32 {
    match NUMBER.get() {
        0 => first_number(),
        known => known,
    }
}

#[cold]
fn first_number() -> u32 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    // Threads with the same number, of which there are some after 2^32 threads, drive in turn.
    let number = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
    NUMBER.set(number);
    number
}

impl Driver {
    /// Whether another thread polls and drives the engine, so that this one, which polls a queue
    /// that `is_empty` tells of, need not.
    #[inline]
    pub(super) fn is_driven_for(&self, is_empty: impl Fn() -> bool) -> bool {
        let (me, driving) = (number(), &self.pollers.driving);
        driving.load(Ordering::Relaxed) != me && self.waits_for_other(me, is_empty)
    }

    fn waits_for_other(&self, me: u32, is_empty: impl Fn() -> bool) -> bool {
        let left = LEFT.replace(0);
        if left == MOST_LEFT {
            return false;
        }
        if !self.has_driven() {
            // Of several threads that take over at the same time, one is the last to say so.
            self.pollers.driving.store(me, Ordering::Relaxed);
            return false;
        }
        let is_complete = (0..LOOKS).any(|_| {
            spin_loop();
            !is_empty()
        });
        if !is_complete {
            LEFT.set(left + 1);
        }
        true
    }

    /// Whether a thread drives now. In a simulated world it is the world that does.
    #[inline]
    fn has_driven(&self) -> bool {
        let at = self.pollers.at.load(Ordering::Relaxed);
        !self.clock.is_virtual() && self.now().as_nanos().saturating_sub(at) < DRIVES_NS
    }

    /// Whether another thread polls and drives the engine, so that it takes doorbells soon.
    #[inline]
    pub(crate) fn is_driven_by_other(&self) -> bool {
        let driving = self.pollers.driving.load(Ordering::Relaxed);
        driving != 0 && driving != number() && self.has_driven()
    }

    /// Waits a moment until another thread that polls has taken the doorbells. Returns whether it
    /// has.
    #[inline]
    pub(super) fn is_bell_taken(&self) -> bool {
        self.is_driven_by_other()
            && (0..BELL_LOOKS).any(|_| {
                spin_loop();
                !self.doorbells.is_rung()
            })
    }
}
