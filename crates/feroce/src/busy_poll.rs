//! How long a task looks for a completion before it lets its thread go.
//!
//! A task that sleeps needs two wake-ups: the driver thread, which receives the packet, wakes the
//! runtime, which runs the task. That takes several times as long as the answer of a peer that
//! polls. So a task first looks for a while itself. A task that looks in vain again and again stops
//! looking, apart from one wait in 32; a task that looks successfully again and again lets the
//! other tasks of its thread run in between.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use feroce_train::Instant;

/// How long a task looks: twice as long as its last wait took, between these, and briefly if that
/// took longer than a look may. If two tasks send to
/// each other in turn and one has gone to sleep, the other must still be awake when the answer
/// comes, or both would go on sleeping and waking each other. How long the answer takes then
/// depends on the machine: on one with 16 idle processors it takes more than 50 us.
const LEAST_LOOK_NS: u64 = 50_000;
const MOST_LOOK_NS: u64 = 250_000;

/// After this many vain looks in a row, a task looks in one of `1 << MOST_VAIN` waits.
const MOST_VAIN: u32 = 5;

/// How long a task whose looks succeed may keep its thread before other tasks run. Runtimes with
/// several threads wake another one when a task gives way, so that must be rare.
const MOST_NS: u64 = 500_000;

/// What the waits of the tasks at a queue have come to. Tasks that wait at the same time may
/// overwrite each other's counts; approximate counts are enough.
#[derive(Debug, Default)]
pub(crate) struct BusyPoll {
    /// Vain looks since the last that was not.
    vain: AtomicU32,
    /// Waits that do without a look.
    skips: AtomicU32,
    /// When the thread last ran other tasks; 0 if it may have since.
    since: AtomicU64,
    /// When a task began to wait; 0 if none waits.
    waits_since: AtomicU64,
    /// How long the last wait took.
    waited_ns: AtomicU64,
}

/// What a task that finds no completion does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Looks for a while.
    Look,
    /// Lets the other tasks of the thread run, and looks then.
    GiveWay,
    /// Waits for an event.
    Wait,
}

impl BusyPoll {
    /// A task has found no completion.
    pub(crate) fn next_step(&self, now: Instant) -> Step {
        let skips = self.skips.load(Ordering::Relaxed);
        if skips > 0 {
            self.skips.store(skips - 1, Ordering::Relaxed);
            self.waits_since.store(now.as_nanos(), Ordering::Relaxed);
            return Step::Wait;
        }
        let (now, since) = (now.as_nanos(), self.since.load(Ordering::Relaxed));
        if since == 0 {
            self.since.store(now, Ordering::Relaxed);
        } else if now.saturating_sub(since) > MOST_NS {
            self.since.store(0, Ordering::Relaxed);
            return Step::GiveWay;
        }
        Step::Look
    }

    /// How long to look.
    pub(crate) fn look_ns(&self) -> u64 {
        match self.waited_ns.load(Ordering::Relaxed) {
            waited_ns @ 0..=MOST_LOOK_NS => (2 * waited_ns).clamp(LEAST_LOOK_NS, MOST_LOOK_NS),
            _ => LEAST_LOOK_NS,
        }
    }

    /// There is a completion, for which a task may have waited.
    #[inline]
    pub(crate) fn came(&self, now: impl FnOnce() -> Instant) {
        let since = self.waits_since.load(Ordering::Relaxed);
        if since != 0 {
            self.waits_since.store(0, Ordering::Relaxed);
            self.waited_ns.store(now().as_nanos().saturating_sub(since), Ordering::Relaxed);
        }
    }

    /// A look has found a completion.
    pub(crate) fn found(&self) {
        self.vain.store(0, Ordering::Relaxed);
    }

    /// A look was in vain; the task waits.
    pub(crate) fn missed(&self, now: Instant) {
        self.waits_since.store(now.as_nanos(), Ordering::Relaxed);
        let vain = (self.vain.load(Ordering::Relaxed) + 1).min(MOST_VAIN);
        self.vain.store(vain, Ordering::Relaxed);
        self.skips.store((1 << vain) - 1, Ordering::Relaxed);
        self.since.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::from_nanos(1 + us * 1000)
    }

    #[test]
    fn a_task_that_looks_in_vain_soon_does_not() {
        let busy_poll = BusyPoll::default();
        let mut looks = 0;
        for us in 0..6400 {
            if busy_poll.next_step(at(us)) == Step::Look {
                looks += 1;
                busy_poll.missed(at(us));
            }
        }
        assert!((200..=206).contains(&looks), "{looks} looks");
        // One that finds something brings the looks back.
        while busy_poll.next_step(at(6400)) != Step::Look {}
        busy_poll.found();
        assert_eq!(busy_poll.next_step(at(6400)), Step::Look);
    }

    #[test]
    fn a_task_looks_twice_as_long_as_it_last_waited() {
        let busy_poll = BusyPoll::default();
        assert_eq!(busy_poll.look_ns(), LEAST_LOOK_NS);
        busy_poll.missed(at(100));
        busy_poll.came(|| at(170));
        assert_eq!(busy_poll.look_ns(), 140_000);
        // A completion that no task has waited for says nothing.
        busy_poll.came(|| at(9000));
        assert_eq!(busy_poll.look_ns(), 140_000);
        assert_eq!(busy_poll.next_step(at(9000)), Step::Wait);
        busy_poll.came(|| at(19_000));
        assert_eq!(busy_poll.look_ns(), LEAST_LOOK_NS);
    }

    #[test]
    fn other_tasks_run_between_looks() {
        let busy_poll = BusyPoll::default();
        let steps = (0..1010).map(|us| busy_poll.next_step(at(us)));
        let ways = steps.enumerate().filter(|&(_, step)| step == Step::GiveWay);
        assert_eq!(ways.map(|(us, _)| us).collect::<Vec<_>>(), [501, 1003]);
    }
}
