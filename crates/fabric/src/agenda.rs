//! Future events in the order of their times.

use alloc::collections::BinaryHeap;
use core::cmp::Reverse;

/// Future events in the order of their times; those of one time in the order of their entry.
#[derive(Debug)]
pub struct Agenda<T, E> {
    heap: BinaryHeap<Reverse<Entry<T, E>>>,
    entered: u64,
}

#[derive(Debug)]
struct Entry<T, E> {
    at: T,
    number: u64,
    event: E,
}

impl<T: Copy, E> Entry<T, E> {
    fn key(&self) -> (T, u64) {
        (self.at, self.number)
    }
}

impl<T: Copy + Eq, E> PartialEq for Entry<T, E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<T: Copy + Eq, E> Eq for Entry<T, E> {}

impl<T: Copy + Ord, E> PartialOrd for Entry<T, E> {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: Copy + Ord, E> Ord for Entry<T, E> {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl<T: Copy + Ord, E> Default for Agenda<T, E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), entered: 0 }
    }
}

impl<T: Copy + Ord, E> Agenda<T, E> {
    /// Enters an event.
    #[inline]
    pub fn push(&mut self, at: T, event: E) {
        self.entered += 1;
        self.heap.push(Reverse(Entry { at, number: self.entered, event }));
    }

    /// Takes the next event.
    #[inline]
    pub fn pop(&mut self) -> Option<(T, E)> {
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.event))
    }

    /// When the next event is due.
    #[inline]
    pub fn next_at(&self) -> Option<T> {
        self.heap.peek().map(|Reverse(entry)| entry.at)
    }
}
