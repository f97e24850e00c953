//! Timers: when the caller must call the engine again.
//!
//! One heap of (deadline, slot). Deadlines of queue pairs mostly move later (every acknowledgement
//! postpones the retransmission timer), so the engine does not move an entry: when an entry comes
//! up before the real deadline of its queue pair, the engine enters that deadline instead. A slot
//! remembers its two earliest entries. Paced sending again and again sets an early deadline while
//! the later one of the retransmission timer stays; the second entry saves entering that one anew
//! each time. An entry that no slot remembers is stale.

use alloc::collections::BinaryHeap;
use core::cmp::Reverse;

use feroce_train::Instant;

/// The entries of one slot that count.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Armed {
    first: Option<Instant>,
    /// What was the first before.
    then: Option<Instant>,
}

impl Armed {
    /// The entry at `at` came up. False: it is stale.
    pub(crate) fn take(&mut self, at: Instant) -> bool {
        if self.first != Some(at) {
            return false;
        }
        self.first = self.then.take();
        true
    }
}

/// The heap of deadlines.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, u32)>>,
}

impl Timers {
    /// Enters `slot` at `at`, if it has no earlier entry.
    #[inline]
    pub(crate) fn arm(&mut self, slot: u32, armed: &mut Armed, at: Instant) {
        if armed.first.is_none_or(|old| at < old) {
            *armed = Armed { first: Some(at), then: armed.first };
            self.heap.push(Reverse((at, slot)));
        }
    }

    /// The earliest entry.
    #[inline]
    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|&Reverse((at, _))| at)
    }

    /// Takes the earliest entry if it is due.
    #[inline]
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<(Instant, u32)> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_deadline_is_not_entered_twice() {
        let mut timers = Timers::default();
        let mut armed = Armed::default();
        timers.arm(7, &mut armed, Instant::from_nanos(10));
        timers.arm(7, &mut armed, Instant::from_nanos(20));
        assert_eq!(timers.heap.len(), 1);
        timers.arm(7, &mut armed, Instant::from_nanos(5));
        assert_eq!(timers.next(), Some(Instant::from_nanos(5)));
        assert_eq!(timers.pop_due(Instant::from_nanos(4)), None);
        assert_eq!(timers.pop_due(Instant::from_nanos(5)), Some((Instant::from_nanos(5), 7)));
    }

    #[test]
    fn a_deadline_that_comes_and_goes_does_not_fill_the_heap() {
        let mut timers = Timers::default();
        let mut armed = Armed::default();
        for us in 0..10_000 {
            // A train is due in a microsecond, an answer in a second.
            let now = Instant::from_nanos(us * 1000);
            timers.arm(7, &mut armed, now.plus_nanos(1_000_000_000));
            timers.arm(7, &mut armed, now.plus_nanos(1000));
            let (at, _) = timers.pop_due(now.plus_nanos(1000)).expect("it is due");
            assert!(armed.take(at));
        }
        assert_eq!(timers.heap.len(), 1);
        assert_eq!(armed.first, Some(Instant::from_nanos(1_000_000_000)));
    }
}
