//! Future events in the order of their times.

use alloc::collections::BinaryHeap;
use core::cmp::{Ordering, Reverse};

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

impl<T: Eq, E> PartialEq for Entry<T, E> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<T: Eq, E> Eq for Entry<T, E> {}

impl<T: Ord, E> PartialOrd for Entry<T, E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }

    // The heap asks this, and a simulation spends a fifth of its time in the heap.
    #[inline]
    fn le(&self, other: &Self) -> bool {
        self.at < other.at || self.at == other.at && self.number <= other.number
    }
}

impl<T: Ord, E> Ord for Entry<T, E> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at.cmp(&other.at).then(self.number.cmp(&other.number))
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
