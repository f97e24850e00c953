//! What a thread does that polls in vain.
//!
//! It spins briefly, because an answer is mostly a few microseconds away. Then it offers the
//! processor to others between polls, which costs next to nothing if nobody wants it. If somebody
//! does, spinning would only keep the peer from answering, and offering gives away whole time
//! slices: then it sleeps on the link for a moment, and an arriving packet wakes it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use super::Clock;

/// Polls in vain, after something came, during which nobody looks at the clock: to look takes as
/// long as such a poll.
const FRESH: u32 = 12;

/// Polls in vain before the processor is offered to others.
const SPINS: u32 = 32;

/// Polls in vain before whoever does not take what was sent to it is nudged.
const NUDGE_AT: u32 = SPINS + 16;

/// Whoever offers the processor and gets it back later than this has competition.
const CROWDED_NS: u64 = 30_000;

/// How long competition is remembered at first. Whoever offers the processor pays with time that it
/// is not given back soon, so where competition stays, it is remembered twice as long each time.
const REMEMBER_NS: u64 = 20_000_000;
/// The longest.
const REMEMBER_MOST_NS: u64 = 640_000_000;

/// Longest sleep: what another thread completes for us does not wake us.
const NAP: Duration = Duration::from_micros(100);

/// How often polling led to nothing, and whether others want the processor.
#[derive(Debug)]
pub(super) struct Patience {
    /// Readable when something has arrived.
    link: OwnedFd,
    in_vain: AtomicU32,
    crowded_until: AtomicU64,
    /// How long it was remembered last.
    remembered_ns: AtomicU64,
}

impl Patience {
    pub(super) fn new(link: OwnedFd) -> Self {
        Self {
            link,
            in_vain: AtomicU32::new(0),
            crowded_until: AtomicU64::new(0),
            remembered_ns: AtomicU64::new(0),
        }
    }

    /// Polling led to something.
    #[inline]
    pub(super) fn reset(&self) {
        self.in_vain.store(0, Ordering::Relaxed);
    }

    /// Whether polling has led to something not long ago, so that the next answer is close.
    #[inline]
    pub(super) fn is_fresh(&self) -> bool {
        self.in_vain.load(Ordering::Relaxed) < FRESH
    }

    /// Polling led to nothing, but [it is early](Patience::is_fresh).
    #[inline]
    pub(super) fn spin(&self) {
        self.in_vain.store(self.in_vain.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Polling led to nothing. `nudge` is called once, when that has been so for a while; `arm` is
    /// asked before a sleep whether the link is quiet.
    #[inline]
    pub(super) fn lose(&self, clock: &Clock, nudge: impl FnOnce(), arm: impl FnOnce() -> bool) {
        // A count that two threads spoil for each other is still a count.
        let in_vain = self.in_vain.load(Ordering::Relaxed);
        if in_vain < SPINS {
            self.in_vain.store(in_vain + 1, Ordering::Relaxed);
        } else {
            self.give_way(in_vain, clock, nudge, arm);
        }
    }

    #[cold]
    fn give_way(
        &self,
        in_vain: u32,
        clock: &Clock,
        nudge: impl FnOnce(),
        arm: impl FnOnce() -> bool,
    ) {
        let is_offered = self.offer(clock);
        // Whoever was woken on a crowded machine may take as long as a nap.
        if in_vain == NUDGE_AT || (!is_offered && (SPINS + 1..NUDGE_AT).contains(&in_vain)) {
            // First, since what is done besides may lead to something.
            self.in_vain.store(NUDGE_AT + 1, Ordering::Relaxed);
            nudge();
        } else if in_vain < NUDGE_AT {
            self.in_vain.store(in_vain + 1, Ordering::Relaxed);
        }
        if !is_offered && arm() {
            let mut fds = [PollFd::new(self.link.as_fd(), PollFlags::POLLIN)];
            // An interrupted nap is a short one.
            let _ = ppoll(&mut fds, Some(TimeSpec::from(NAP)), None);
        }
    }

    /// Offers the processor to others. False: they were seen to take it for long, so that it is
    /// not offered, and whoever waits should sleep.
    pub(super) fn offer(&self, clock: &Clock) -> bool {
        let now = clock.now();
        let crowded_until = self.crowded_until.load(Ordering::Relaxed);
        if now.as_nanos() < crowded_until {
            return false;
        }
        std::thread::yield_now();
        let after = clock.now();
        if after.nanos_since(now) > CROWDED_NS {
            // It stays if it is still there soon after it was forgotten.
            let before = self.remembered_ns.load(Ordering::Relaxed);
            let stays = now.as_nanos() < crowded_until + before;
            let ns = if stays { (2 * before).min(REMEMBER_MOST_NS) } else { REMEMBER_NS };
            self.remembered_ns.store(ns, Ordering::Relaxed);
            self.crowded_until.store(after.plus_nanos(ns).as_nanos(), Ordering::Relaxed);
        }
        true
    }
}
