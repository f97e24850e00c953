//! Future events in the order of their times.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use feroce_train::Instant;

/// Future events in the order of their times; those of one time in the order of their entry.
#[derive(Debug)]
pub struct Agenda<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    entered: u64,
}

#[derive(Debug)]
struct Entry<E> {
    at: Instant,
    number: u64,
    event: E,
}

impl<E> Entry<E> {
    fn key(&self) -> (Instant, u64) {
        (self.at, self.number)
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl<E> Default for Agenda<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), entered: 0 }
    }
}

impl<E> Agenda<E> {
    /// Enters an event.
    pub fn push(&mut self, at: Instant, event: E) {
        self.entered += 1;
        self.heap.push(Reverse(Entry { at, number: self.entered, event }));
    }

    /// Takes the next event.
    pub fn pop(&mut self) -> Option<(Instant, E)> {
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.event))
    }

    /// When the next event is due.
    pub fn next_at(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse(entry)| entry.at)
    }
}
