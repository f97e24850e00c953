//! Future events in the order of their times.
//!
//! A simulation spends much of its time here, and nearly all events are due within microseconds.
//! Such events wait in a wheel of slots, unsorted; only those of the slot whose time has come are
//! sorted. A heap has the events beyond the wheel.

use alloc::collections::BinaryHeap;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::{Ordering, Reverse};

use crate::Time;

/// Picoseconds of a slot, as a power of two: 1 ns, in which few events are due even in a fabric of
/// fast links.
const SLOT_SHIFT: u32 = 10;
/// Slots of the wheel, which turns once in 4 us: 64 words of 64 bits.
const SLOTS: usize = 64 * 64;
/// No event.
const NONE: u32 = u32::MAX;

/// Future events in the order of their times; those of one time in the order of their entry.
///
/// An event may be entered for a time that is past: it is the next one then.
#[derive(Debug)]
pub struct Agenda<T, E> {
    /// Events of the current slot, the next one last.
    due: Vec<Entry<T, E>>,
    /// Events that were entered for the current slot or an earlier time. This and `due` are empty
    /// only if there is no event at all.
    late: BinaryHeap<Reverse<Entry<T, E>>>,
    /// The number of the current slot, counted from the origin of time.
    slot: u64,
    wheel: Wheel<T, E>,
    /// Events that were beyond the wheel when they were entered.
    far: BinaryHeap<Reverse<Entry<T, E>>>,
    entered: u64,
}

#[derive(Clone, Copy, Debug)]
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

    // A heap asks this.
    #[inline]
    fn le(&self, other: &Self) -> bool {
        self.at < other.at || self.at == other.at && self.number <= other.number
    }

    // A sort asks this.
    #[inline]
    fn lt(&self, other: &Self) -> bool {
        self.at < other.at || self.at == other.at && self.number < other.number
    }
}

impl<T: Ord, E> Ord for Entry<T, E> {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        self.at.cmp(&other.at).then(self.number.cmp(&other.number))
    }
}

/// Lists of events, one for each of the slots behind the current one.
#[derive(Debug)]
struct Wheel<T, E> {
    /// The first event of each slot.
    first: Vec<u32>,
    /// Slots with events, a bit each, and words of those that are not zero.
    words: [u64; 64],
    summary: u64,
    /// Events, each with the next one of its slot; or the next vacant entry.
    nodes: Vec<(Option<Entry<T, E>>, u32)>,
    vacant: u32,
}

impl<T, E> Wheel<T, E> {
    #[inline]
    fn push(&mut self, slot: u64, entry: Entry<T, E>) {
        let slot = slot as usize % SLOTS;
        let (word, bit) = (slot / 64, slot % 64);
        self.words[word] |= 1 << bit;
        self.summary |= 1 << word;
        let next = self.first[slot];
        let id = self.vacant;
        if id == NONE {
            self.first[slot] = self.nodes.len() as u32;
            return self.nodes.push((Some(entry), next));
        }
        self.first[slot] = id;
        let node = &mut self.nodes[id as usize];
        self.vacant = node.1;
        *node = (Some(entry), next);
    }

    /// The first slot behind `slot` that has events.
    #[inline]
    fn next_slot(&self, slot: u64) -> Option<u64> {
        let start = (slot as usize + 1) % SLOTS;
        let (word, bit) = (start / 64, start % 64);
        let here = self.words[word] >> bit << bit;
        let found = if here != 0 {
            word * 64 + here.trailing_zeros() as usize
        } else if self.summary != 0 {
            // From the next word on, round to the beginning of this one.
            let turned = self.summary.rotate_right(word as u32 + 1);
            let word = (word + 1 + turned.trailing_zeros() as usize) % 64;
            word * 64 + self.words[word].trailing_zeros() as usize
        } else {
            return None;
        };
        Some(slot + 1 + ((found + SLOTS - start) % SLOTS) as u64)
    }

    /// Moves the events of a slot to `due`.
    #[inline]
    fn drain(&mut self, slot: u64, due: &mut Vec<Entry<T, E>>) {
        let slot = slot as usize % SLOTS;
        let (word, bit) = (slot / 64, slot % 64);
        self.words[word] &= !(1 << bit);
        if self.words[word] == 0 {
            self.summary &= !(1 << word);
        }
        let mut id = core::mem::replace(&mut self.first[slot], NONE);
        while id != NONE {
            let (entry, next) = &mut self.nodes[id as usize];
            if let Some(entry) = entry.take() {
                due.push(entry);
            }
            let next = core::mem::replace(next, self.vacant);
            self.vacant = core::mem::replace(&mut id, next);
        }
    }
}

impl<T: Copy + Ord + Into<Time>, E> Default for Agenda<T, E> {
    fn default() -> Self {
        let (first, nodes) = (vec![NONE; SLOTS], Vec::new());
        Self {
            due: Vec::new(),
            late: BinaryHeap::new(),
            slot: 0,
            wheel: Wheel { first, words: [0; 64], summary: 0, nodes, vacant: NONE },
            far: BinaryHeap::new(),
            entered: 0,
        }
    }
}

impl<T: Copy + Ord + Into<Time>, E> Agenda<T, E> {
    /// Enters an event.
    #[inline]
    pub fn push(&mut self, at: T, event: E) {
        self.entered += 1;
        let entry = Entry { at, number: self.entered, event };
        let slot = slot_of(at);
        if slot <= self.slot {
            self.late.push(Reverse(entry));
        } else if self.due.is_empty() && self.late.is_empty() {
            self.slot = slot;
            self.due.push(entry);
        } else if slot - self.slot < SLOTS as u64 {
            self.wheel.push(slot, entry);
        } else {
            self.far.push(Reverse(entry));
        }
    }

    /// Takes the next event.
    #[inline]
    pub fn pop(&mut self) -> Option<(T, E)> {
        let is_late = match (self.due.last(), self.late.peek()) {
            (Some(due), Some(Reverse(late))) => late < due,
            (due, _) => due.is_none(),
        };
        let entry = match is_late {
            true => self.late.pop()?.0,
            false => self.due.pop()?,
        };
        if self.due.is_empty() && self.late.is_empty() {
            self.turn();
        }
        Some((entry.at, entry.event))
    }

    /// Goes on to the next slot that has events.
    fn turn(&mut self) {
        let near = self.wheel.next_slot(self.slot);
        let far = self.far.peek().map(|Reverse(entry)| slot_of(entry.at));
        let Some(slot) = near.into_iter().chain(far).min() else { return };
        self.slot = slot;
        if near == Some(slot) {
            self.wheel.drain(slot, &mut self.due);
        }
        while let Some(Reverse(entry)) = self.far.peek()
            && slot_of(entry.at) == slot
        {
            self.due.extend(self.far.pop().map(|Reverse(entry)| entry));
        }
        self.due.sort_unstable_by(|a, b| b.cmp(a));
    }

    /// When the next event is due.
    #[inline]
    pub fn next_at(&self) -> Option<T> {
        match (self.due.last(), self.late.peek()) {
            (Some(due), Some(Reverse(late))) => Some(due.at.min(late.at)),
            (Some(due), None) => Some(due.at),
            (None, late) => late.map(|Reverse(late)| late.at),
        }
    }
}

#[inline]
fn slot_of(at: impl Into<Time>) -> u64 {
    at.into().as_ps() >> SLOT_SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Events that one round enters, and the range of their distances in picoseconds.
    fn compare(seed: u64, reach_ps: u64) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut agenda, mut sorted) = (Agenda::default(), BinaryHeap::new());
        let (mut now, mut number) = (0u64, 0);
        for _ in 0..20_000 {
            // The agenda runs empty at times, and some events are past.
            for _ in 0..rng.u32(0..3) {
                let ps = rng.u64(0..reach_ps) >> rng.u32(0..30);
                let at = if rng.u8(0..50) == 0 { now.saturating_sub(ps) } else { now + ps };
                number += 1;
                agenda.push(Time::from_ps(at), number);
                sorted.push(Reverse((at, number)));
            }
            for _ in 0..rng.u32(0..3) {
                let next = sorted.pop().map(|Reverse(next)| next);
                let at = next.map(|(at, _)| Time::from_ps(at));
                assert_eq!(agenda.next_at(), at);
                assert_eq!(agenda.pop(), next.map(|(at, number)| (Time::from_ps(at), number)));
                now = next.map_or(now, |(at, _)| at.max(now));
            }
        }
        while let Some(Reverse((at, number))) = sorted.pop() {
            assert_eq!(agenda.pop(), Some((Time::from_ps(at), number)));
        }
        assert_eq!((agenda.next_at(), agenda.pop()), (None, None));
    }

    #[test]
    fn events_come_in_the_order_of_a_sorted_list() {
        for (seed, reach_ps) in [(1, 1 << 14), (2, 1 << 24), (3, 1 << 26), (4, 1 << 40)] {
            compare(seed, reach_ps);
        }
    }

    #[test]
    fn the_end_of_time_is_a_time() {
        let mut agenda = Agenda::default();
        let (end, start) = (Time::from_ps(u64::MAX), Time::ZERO);
        for (at, event) in [(end, 1), (start, 2), (end, 3)] {
            agenda.push(at, event);
        }
        let order: Vec<_> = core::iter::from_fn(|| agenda.pop()).collect();
        assert_eq!(order, [(start, 2), (end, 1), (end, 3)]);
    }
}
