//! Time that the hypervisor under this machine took from it.
//!
//! A program of the guest gives up on a peer that is silent for half a second, and its timeouts are
//! compiled in. If the processors of this machine stand still that long, a cell can fail although
//! both ends are right. The share that was taken does not prove that this was the cause, so the run
//! prints both.

use core::fmt;
use std::fs;

/// A cell that had less than this share of its time taken away is judged.
const TOLERATED: f64 = 0.05;

/// What the processors have done so far, in ticks of the kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticks {
    all: u64,
    stolen: u64,
}

impl Ticks {
    pub(super) fn now() -> Self {
        // Where the kernel has no such file it counts nothing as taken away.
        Self::parse(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// The first line: user, nice, system, idle, iowait, irq, softirq, steal, and guests, whose
    /// time is in that of the user already.
    fn parse(stat: &str) -> Self {
        let line = stat.lines().next().unwrap_or_default();
        let ticks: Vec<u64> =
            line.split_whitespace().skip(1).take(8).filter_map(|word| word.parse().ok()).collect();
        Self { all: ticks.iter().sum(), stolen: ticks.get(7).copied().unwrap_or_default() }
    }

    /// The share that was taken away since then, if it was too much.
    pub(super) fn since(self, begun: Self) -> Option<Stolen> {
        let all = self.all.saturating_sub(begun.all).max(1);
        let share = self.stolen.saturating_sub(begun.stolen) as f64 / all as f64;
        (share > TOLERATED).then_some(Stolen(share))
    }
}

/// A share of the time of all processors.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Stolen(f64);

impl fmt::Display for Stolen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the hypervisor took {:.0} % of the processors' time", self.0 * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_guests_is_not_counted_twice() {
        let begun = Ticks::parse("cpu  10 0 10 70 0 0 0 10 5 5\ncpu0 1 2 3\n");
        assert_eq!((begun.all, begun.stolen), (100, 10));
        let quiet = Ticks::parse("cpu  20 0 20 140 0 0 0 14 9 9\n");
        assert_eq!(quiet.since(begun), None);
        let taken = Ticks::parse("cpu  20 0 20 100 0 0 0 60 9 9\n");
        assert_eq!(taken.since(begun), Some(Stolen(0.5)));
    }

    #[test]
    fn nothing_is_stolen_where_the_kernel_does_not_say() {
        let none = Ticks::parse("");
        assert_eq!(none.since(none), None);
    }
}
