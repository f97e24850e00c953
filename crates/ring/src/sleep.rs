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
//! beside it, and `armed_at` is what it was before, unless another consumer has armed since. No two
//! arm at the same time: a later one has a later time.

use core::fmt;

use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// No deadline.
const NEVER: u64 = u64::MAX;

/// The plan of a thread that is awake: no deadline is earlier.
const AWAKE: u64 = 0;

/// What a consumer has told a [`Sleeper`].
pub struct Arming {
    /// When it last armed; 0 if it has withdrawn.
    at: AtomicU64,
    /// When another one had last armed before.
    before: AtomicU64,
}

impl Arming {
    /// That of a consumer that has not armed.
    pub fn new() -> Self {
        Self { at: AtomicU64::new(0), before: AtomicU64::new(0) }
    }
}

impl Default for Arming {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Arming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arming").field("at", &self.at.load(Ordering::Relaxed)).finish()
    }
}

/// What the thread of an owner says about its sleep. Times are in nanoseconds, later than 0.
pub struct Sleeper {
    /// When the thread will look again; [`AWAKE`], or [`NEVER`] if only when woken.
    planned: AtomicU64,
    /// The thread leaves the work to a consumer that polls.
    idle: AtomicBool,
    /// Consumers that want to be woken.
    armed: AtomicU32,
    /// When one of them last said so, or one that has withdrawn.
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

    /// A consumer wants to be woken and may sleep. True: the caller must wake the thread.
    pub fn arm(&self, now: u64, arming: &Arming) -> bool {
        let later = |before: u64| Some(now.max(before + 1));
        let (Ok(before) | Err(before)) =
            self.armed_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
        if arming.at.swap(now.max(before + 1), Ordering::Relaxed) == 0 {
            arming.before.store(before, Ordering::Relaxed);
            self.armed.fetch_add(1, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
        self.idle.load(Ordering::Relaxed)
    }

    /// A consumer polls, or is no more: it does not want to be woken.
    #[inline]
    pub fn withdraw(&self, arming: &Arming) {
        if arming.at.load(Ordering::Relaxed) == 0 {
            return;
        }
        let at = arming.at.swap(0, Ordering::Relaxed);
        if at == 0 {
            // Another thread has withdrawn for the same consumer.
            return;
        }
        let before = arming.before.load(Ordering::Relaxed);
        // It fails if another consumer has armed since.
        let _ = self.armed_at.compare_exchange(at, before, Ordering::Relaxed, Ordering::Relaxed);
        // The count may wrap for a moment, if another thread is about to arm for this consumer.
        self.armed.fetch_sub(1, Ordering::Relaxed);
    }

    /// When one of the consumers that want to be woken last armed, or later; 0 if there is none.
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
