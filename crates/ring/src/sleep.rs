//! When the thread of an owner sleeps, and which thread must wake it.
//!
//! An owner behind a lock has a thread of its own, which sleeps until a deadline and steps in when
//! no other thread takes the lock. This module owns what the thread says about its sleep. It does
//! not sleep, and it wakes nothing: [`Sleeper::must_wake_at`] and [`Sleeper::arm`] say whether the
//! caller must.
//!
//! # Why no deadline is missed
//!
//! The thread reads the deadline and calls [`Sleeper::plan`] under the lock, and sleeps after it
//! has released the lock. Another thread that sets an earlier deadline does so under the lock:
//!
//! * Before the thread: the thread reads the earlier deadline.
//! * After the thread: the lock orders the store in `plan` before the load in `must_wake_at`,
//!   which sees that plan, or that the thread has woken since ([`Sleeper::woke`]). A thread that
//!   has woken takes the lock and plans again before it sleeps again.
//!
//! # Why no armed consumer waits for a thread that leaves the work to it
//!
//! While a consumer polls, the thread is idle: the consumer does the work. A consumer that wants to
//! be woken instead arms. The thread sets `idle` and then reads `armed_at`; the consumer sets
//! `armed_at` and then reads `idle`. A sequentially consistent fence stands between the two steps
//! of each, so that at least one of them sees what the other has set: the thread does not sleep, or
//! the consumer wakes it. A consumer that polls again withdraws: the thread need not stay awake
//! beside it.

use core::fmt;

use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// No deadline.
const NEVER: u64 = u64::MAX;

/// The plan of a thread that is awake: no deadline is earlier.
const AWAKE: u64 = 0;

/// What the thread of an owner says about its sleep. Times are in nanoseconds, later than 0.
pub struct Sleeper {
    /// When the thread will look again; [`AWAKE`], or [`NEVER`] if only when woken.
    planned: AtomicU64,
    /// The thread leaves the work to a consumer that polls.
    idle: AtomicBool,
    /// Consumers that want to be woken.
    armed: AtomicU32,
    /// When one of them last said so.
    armed_at: AtomicU64,
}

impl Sleeper {
    /// The state before the thread runs: it has to be woken for every deadline.
    pub fn new() -> Self {
        Self {
            planned: AtomicU64::new(NEVER),
            idle: AtomicBool::new(false),
            armed: AtomicU32::new(0),
            armed_at: AtomicU64::new(0),
        }
    }

    /// The thread will sleep until `deadline`. The caller is the thread and has the lock.
    pub fn plan(&self, deadline: Option<u64>) {
        self.planned.store(deadline.unwrap_or(NEVER), Ordering::Relaxed);
    }

    /// The thread does not sleep any more, and will look at the deadline before it sleeps again.
    pub fn woke(&self) {
        self.planned.store(AWAKE, Ordering::Relaxed);
    }

    /// Whether the thread may sleep, so that it may have to be woken. The caller has the lock.
    #[inline]
    pub fn may_sleep(&self) -> bool {
        self.planned.load(Ordering::Relaxed) != AWAKE
    }

    /// Whether the caller, which has had the lock since `deadline` was set, must wake the thread.
    #[inline]
    pub fn must_wake_at(&self, deadline: u64) -> bool {
        deadline < self.planned.load(Ordering::Relaxed)
    }

    /// The thread leaves the work to a consumer. It must look at [`Sleeper::armed_at`] afterwards.
    pub fn begin_idle(&self) {
        self.idle.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The thread does the work again.
    pub fn end_idle(&self) {
        self.idle.store(false, Ordering::Relaxed);
    }

    /// Whether the thread leaves the work to a consumer.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.idle.load(Ordering::Relaxed)
    }

    /// A consumer wants to be woken and may sleep; `is_new` unless it has not withdrawn since it
    /// armed before. True: the caller must wake the thread.
    pub fn arm(&self, now: u64, is_new: bool) -> bool {
        if is_new {
            self.armed.fetch_add(1, Ordering::Relaxed);
        }
        self.armed_at.store(now, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.idle.load(Ordering::Relaxed)
    }

    /// A consumer that has armed polls again, or is no more. If one thread withdraws for a consumer
    /// for which another is about to arm, the count wraps for a moment.
    pub fn withdraw(&self) {
        self.armed.fetch_sub(1, Ordering::Relaxed);
    }

    /// When a consumer last armed; 0 if all have withdrawn.
    pub fn armed_at(&self) -> u64 {
        match self.armed.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.armed_at.load(Ordering::Relaxed),
        }
    }
}

impl Default for Sleeper {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Sleeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleeper")
            .field("planned", &self.planned.load(Ordering::Relaxed))
            .field("is_idle", &self.is_idle())
            .field("armed_at", &self.armed_at())
            .finish()
    }
}
