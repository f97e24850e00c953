//! When the engine wants to be called again.
//!
//! One heap of (deadline, slot). Deadlines of queue pairs mostly move later (every
//! acknowledgement pushes the retransmission timer out), so an entry is not moved: when it comes
//! up early, its owner looks at the real deadline and is entered again. A slot therefore has at
//! most one live entry, plus stale ones when a deadline moved earlier.

use alloc::collections::BinaryHeap;
use core::cmp::Reverse;

use feroce_train::Instant;

/// The heap of deadlines.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, u32)>>,
}

impl Timers {
    /// Enters `slot` at `at`. `armed` is the slot's own record of its earliest live entry.
    #[inline]
    pub(crate) fn arm(&mut self, slot: u32, armed: &mut Option<Instant>, at: Instant) {
        if armed.is_none_or(|old| at < old) {
            *armed = Some(at);
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
        let mut armed = None;
        timers.arm(7, &mut armed, Instant::from_nanos(10));
        timers.arm(7, &mut armed, Instant::from_nanos(20));
        assert_eq!(timers.heap.len(), 1);
        timers.arm(7, &mut armed, Instant::from_nanos(5));
        assert_eq!(timers.next(), Some(Instant::from_nanos(5)));
        assert_eq!(timers.pop_due(Instant::from_nanos(4)), None);
        assert_eq!(timers.pop_due(Instant::from_nanos(5)), Some((Instant::from_nanos(5), 7)));
    }
}
