//! Back-off of a polling thread that finds nothing: spin, yield, sleep briefly.
//!
//! The thread spins briefly, because an answer is mostly a few microseconds away. Then it yields
//! the processor between polls, which costs next to nothing if no other thread wants it. If another
//! thread does, spinning would only keep the peer from answering, and yielding gives away whole
//! time slices: then the polling thread sleeps on the link's descriptor (a nap), and an arriving
//! packet wakes it. A completion that another thread of the process causes wakes it as well.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use feroce_engine::CqId;
use feroce_train::Instant;
use nix::sys::resource::{UsageWho, getrusage};

use super::Clock;
use super::naps::Naps;

/// Empty polls, after one that found something, during which the thread checks the link only and
/// leaves the engine alone: a turn of the engine takes longer than an answer may be away.
const FRESH: u32 = 12;

/// Empty polls before the thread yields: about as long as an answer over loopback takes.
const SPINS: u32 = 32;

/// Empty polls before the thread kicks a peer process that has not read what was sent to it: later
/// than the yields within which a peer that polls has read it.
const KICK_AT: u32 = SPINS + 16;

/// A thread that yields and runs again later than this has competition for its processor. Another
/// thread that computes keeps it for a time slice, which is 0.7 ms or more. Interrupts and
/// hypervisors take it for tens of microseconds, and so does a peer that polls and yields in turn:
/// naps would only make that exchange slower.
const CROWDED_NS: u64 = 500_000;

/// Of so many yields after a slow one, another must be slow as well to show competition.
const DOUBT: u32 = 8;

/// How long the thread naps instead of yielding, after it has first seen competition. A yield costs
/// the competitor's time slice, so where competition stays, the time doubles each time.
const REMEMBER_NS: u64 = 20_000_000;
/// The most that [`REMEMBER_NS`] grows to: a competitor that has gone costs at most this long.
const REMEMBER_MOST_NS: u64 = 640_000_000;

/// The longest nap: the driver thread leaves the timers to a thread that polls, and the shortest
/// timer, a probe after a NAK, is 250 us.
const NAP_NS: u64 = 100_000;

/// How often the system has taken the processor from this thread for another one.
fn involuntary_switches() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.involuntary_context_switches())
}

/// How many polls found nothing, and whether other threads compete for the processor.
#[derive(Debug)]
pub(super) struct Backoff {
    /// Readable when packets have arrived.
    link: OwnedFd,
    naps: Arc<Naps>,
    /// The longest nap in nanoseconds.
    nap_ns: AtomicU64,
    empty_polls: AtomicU32,
    crowded_until: AtomicU64,
    /// Yields that are still watched after a slow one.
    doubt: AtomicU32,
    /// How long the last competition was remembered.
    remembered_ns: AtomicU64,
}

impl Backoff {
    pub(super) fn new(link: OwnedFd) -> Self {
        Self {
            link,
            naps: Arc::default(),
            nap_ns: AtomicU64::new(NAP_NS),
            empty_polls: AtomicU32::new(0),
            crowded_until: AtomicU64::new(0),
            doubt: AtomicU32::new(0),
            remembered_ns: AtomicU64::new(0),
        }
    }

    /// Readable when packets have arrived: a copy of the link's descriptor, for threads that sleep
    /// without the lock.
    pub(super) fn link(&self) -> &OwnedFd {
        &self.link
    }

    /// The threads that nap.
    pub(super) fn naps(&self) -> &Arc<Naps> {
        &self.naps
    }

    /// A poll found something, or an answer is expected soon.
    #[inline]
    pub(super) fn reset(&self) {
        self.empty_polls.store(0, Ordering::Relaxed);
    }

    /// Whether a poll has found something recently, so that the next answer is probably close.
    #[inline]
    pub(super) fn is_fresh(&self) -> bool {
        self.empty_polls.load(Ordering::Relaxed) < FRESH
    }

    /// Counts a poll that found nothing while the count [is low](Backoff::is_fresh).
    #[inline]
    pub(super) fn spin(&self) {
        self.empty_polls.store(self.empty_polls.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Counts a poll of `cq` that found nothing, and spins, yields or naps. It calls `kick` once,
    /// when polls have found nothing for a while, and calls `arm` before a nap: true if queue and
    /// link are quiet and the thread may sleep.
    #[inline]
    pub(super) fn back_off(
        &self,
        clock: &Clock,
        cq: CqId,
        kick: impl FnOnce(),
        arm: impl FnOnce() -> bool,
    ) {
        // Two polling threads may overwrite each other's count; an approximate count is enough.
        let empty_polls = self.empty_polls.load(Ordering::Relaxed);
        if empty_polls < SPINS {
            self.empty_polls.store(empty_polls + 1, Ordering::Relaxed);
        } else {
            self.give_way(empty_polls, clock, cq, kick, arm);
        }
    }

    #[cold]
    fn give_way(
        &self,
        empty_polls: u32,
        clock: &Clock,
        cq: CqId,
        kick: impl FnOnce(),
        arm: impl FnOnce() -> bool,
    ) {
        if !self.yield_or_kick(empty_polls, clock, kick) {
            let longest = Duration::from_nanos(self.nap_ns.load(Ordering::Relaxed));
            self.naps.sleep(cq, self.link.as_fd(), longest, arm);
        }
    }

    /// Counts a poll that found nothing, and spins or yields, for a thread that must not nap. It
    /// calls `kick` as [`Backoff::back_off`] does. Returns false if other threads want the
    /// processor, so that the thread should rather wait for an event.
    #[inline]
    pub(super) fn stay_awake(&self, clock: &Clock, kick: impl FnOnce()) -> bool {
        let empty_polls = self.empty_polls.load(Ordering::Relaxed);
        if empty_polls < SPINS {
            self.empty_polls.store(empty_polls + 1, Ordering::Relaxed);
            return true;
        }
        self.yield_or_kick(empty_polls, clock, kick)
    }

    /// Yields, and kicks the peer when it is time to. Returns false, without having yielded, if
    /// other threads want the processor.
    fn yield_or_kick(&self, empty_polls: u32, clock: &Clock, kick: impl FnOnce()) -> bool {
        let has_yielded = self.yield_processor(clock);
        // Under competition for processors, a peer that was woken may take as long as a nap, so the
        // thread kicks it before the first nap.
        if empty_polls == KICK_AT || (!has_yielded && (SPINS + 1..KICK_AT).contains(&empty_polls)) {
            // The count is stored first, because `kick` may find something and reset it.
            self.empty_polls.store(KICK_AT + 1, Ordering::Relaxed);
            kick();
        } else if empty_polls < KICK_AT {
            self.empty_polls.store(empty_polls + 1, Ordering::Relaxed);
        }
        has_yielded
    }

    /// Threads that poll in vain nap as soon as they have spun, for a day if nothing wakes them.
    #[cfg(test)]
    pub(super) fn nap_always(&self) {
        self.nap_ns.store(86_400_000_000_000, Ordering::Relaxed);
        self.crowded_until.store(u64::MAX, Ordering::Relaxed);
    }

    /// Yields the processor. Returns false, without yielding, if another thread has recently kept
    /// the processor for long: the caller should sleep instead.
    pub(super) fn yield_processor(&self, clock: &Clock) -> bool {
        let now = clock.now();
        let crowded_until = self.crowded_until.load(Ordering::Relaxed);
        if now.as_nanos() < crowded_until {
            return false;
        }
        let doubt = self.doubt.load(Ordering::Relaxed);
        let may_return = crowded_until + self.remembered_ns.load(Ordering::Relaxed);
        let is_watched = doubt > 0 || now.as_nanos() < may_return;
        let switches = is_watched.then(involuntary_switches);
        std::thread::yield_now();
        let after = clock.now();
        if after.nanos_since(now) > CROWDED_NS {
            let is_crowded = switches.is_some_and(|before| involuntary_switches() != before);
            self.note_slow_yield(now, after, is_crowded);
        } else if doubt > 0 {
            self.doubt.store(doubt - 1, Ordering::Relaxed);
        }
        true
    }

    /// A yield has taken from `now` to `after`. One alone may have been a short task of the system,
    /// or the hypervisor has taken the processor away; so the next ones are watched, as those soon
    /// after a competition are, and `is_crowded` if this is one of them and other threads ran
    /// meanwhile.
    #[cold]
    fn note_slow_yield(&self, now: Instant, after: Instant, is_crowded: bool) {
        self.doubt.store(DOUBT, Ordering::Relaxed);
        if !is_crowded {
            return;
        }
        // Competition that is seen again soon after the time ran out is taken to stay.
        let crowded_until = self.crowded_until.load(Ordering::Relaxed);
        let before = self.remembered_ns.load(Ordering::Relaxed);
        let stays = now.as_nanos() < crowded_until + before;
        let ns = if stays { (2 * before).min(REMEMBER_MOST_NS) } else { REMEMBER_NS };
        self.remembered_ns.store(ns, Ordering::Relaxed);
        self.crowded_until.store(after.plus_nanos(ns).as_nanos(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::eventfd::EventFd;

    use super::*;

    #[test]
    fn one_slow_yield_is_no_competition() {
        let clock = Clock::start();
        let backoff = Backoff::new(OwnedFd::from(EventFd::new().expect("a descriptor")));
        let (now, after) = (clock.now(), clock.now().plus_nanos(2 * CROWDED_NS));
        backoff.note_slow_yield(now, after, false);
        assert!(backoff.yield_processor(&clock), "it has napped for one");
        backoff.note_slow_yield(now, after, true);
        assert!(!backoff.yield_processor(&clock), "it has not napped for two");
    }
}
