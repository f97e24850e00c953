//! The clock of a fabric in real time: the system's, slowed down where the fabric cannot keep up.

use feroce_fabric::Time;
use nix::time::{ClockId, clock_gettime};

/// How far the fabric may be behind the system's clock before its time is stretched: longer than a
/// scheduler of a machine that is not overloaded lets a process wait.
const MAX_LAG_NS: u64 = 2_000_000;

/// The system's monotonic clock, in nanoseconds.
pub(super) fn monotonic_ns() -> u64 {
    // Every Linux has this clock, so the call does not fail.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |t| {
        t.tv_sec().cast_unsigned().wrapping_mul(1_000_000_000) + t.tv_nsec().cast_unsigned()
    })
}

/// Translates between the system's clock and the time of the fabric.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    started_ns: u64,
    /// Nanoseconds of the system's clock that are none in the fabric.
    slowed_ns: u64,
    /// How often time was stretched.
    slowdowns: u64,
}

impl Pace {
    /// The fabric's time begins at `now_ns`.
    pub(super) fn new(now_ns: u64) -> Self {
        Self { started_ns: now_ns, slowed_ns: 0, slowdowns: 0 }
    }

    /// The time of the fabric at a time of the system.
    pub(super) fn fabric(&self, system_ns: u64) -> Time {
        Time::from_ns(system_ns.saturating_sub(self.started_ns + self.slowed_ns))
    }

    /// The time of the system at a time of the fabric, as far as that is known.
    pub(super) fn system(&self, at: Time) -> u64 {
        at.as_ns() + self.started_ns + self.slowed_ns
    }

    /// The fabric has got to `reached` and has more to do. If that is too far behind the system's
    /// clock, the fabric goes on from there, later. Returns whether this is the first time.
    pub(super) fn keep(&mut self, reached: Time, now_ns: u64) -> bool {
        let lag_ns = self.fabric(now_ns).as_ns().saturating_sub(reached.as_ns());
        if lag_ns <= MAX_LAG_NS {
            return false;
        }
        self.slowed_ns += lag_ns;
        self.slowdowns += 1;
        self.slowdowns == 1
    }

    /// Nanoseconds since the start, and how many of them are none in the fabric.
    pub(super) fn elapsed(&self, now_ns: u64) -> (u64, u64) {
        (now_ns.saturating_sub(self.started_ns), self.slowed_ns)
    }

    /// How often time was stretched.
    pub(super) fn slowdowns(&self) -> u64 {
        self.slowdowns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fabric_that_is_behind_slows_its_time_down_and_never_turns_it_back() {
        let mut pace = Pace::new(1000);
        assert_eq!(pace.fabric(1500), Time::from_ns(500));
        assert_eq!(pace.system(Time::from_ns(500)), 1500);
        // A little late: it catches up.
        assert!(!pace.keep(Time::from_ns(500), 1500 + MAX_LAG_NS));
        assert_eq!(pace.elapsed(1500), (500, 0));
        // Too late: what was missed is left out.
        let now = 1500 + 3 * MAX_LAG_NS;
        assert!(pace.keep(Time::from_ns(500), now));
        assert_eq!(pace.fabric(now), Time::from_ns(500));
        assert_eq!(pace.fabric(now + 7), Time::from_ns(507));
        assert_eq!((pace.elapsed(now).1, pace.slowdowns()), (3 * MAX_LAG_NS, 1));
        assert!(!pace.keep(Time::from_ns(500), now + 2 * MAX_LAG_NS));
        assert_eq!(pace.slowdowns(), 2);
    }
}
