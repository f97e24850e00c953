//! Deadlines of many streams, of which the earliest is found at once.

use std::collections::{BTreeMap, BTreeSet};

use feroce_train::Instant;

/// One deadline for each of any number of keys. Setting, removing and finding the earliest take
/// time in the logarithm of their number.
#[derive(Clone, Debug)]
pub struct Deadlines<K> {
    of: BTreeMap<K, Instant>,
    order: BTreeSet<(Instant, K)>,
}

impl<K: Copy + Ord> Default for Deadlines<K> {
    fn default() -> Self {
        Self { of: BTreeMap::new(), order: BTreeSet::new() }
    }
}

impl<K: Copy + Ord> Deadlines<K> {
    /// Sets the deadline of a key, in place of another that it may have.
    pub fn set(&mut self, key: K, at: Instant) {
        self.remove(key);
        self.of.insert(key, at);
        self.order.insert((at, key));
    }

    /// A key has no deadline any more.
    pub fn remove(&mut self, key: K) {
        if let Some(at) = self.of.remove(&key) {
            self.order.remove(&(at, key));
        }
    }

    /// How many keys have a deadline.
    pub fn count(&self) -> usize {
        self.of.len()
    }

    /// Whether a key has a deadline.
    pub fn contains(&self, key: K) -> bool {
        self.of.contains_key(&key)
    }

    /// The earliest.
    pub fn first(&self) -> Option<Instant> {
        self.order.first().map(|(at, _)| *at)
    }

    /// Takes the earliest one that has passed.
    pub fn pop(&mut self, now: Instant) -> Option<K> {
        let (_, key) = *self.order.first().filter(|(at, _)| *at <= now)?;
        self.remove(key);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_is_first_whatever_the_order() {
        let at = |ns| Instant::ZERO.plus_nanos(ns);
        let mut all = Deadlines::default();
        for key in 0..1000_u64 {
            all.set(key, at(key * 7919 % 1000));
        }
        all.set(3, at(5000));
        all.remove(0);
        assert!(all.contains(3) && !all.contains(0));
        assert_eq!((all.first(), all.pop(at(0))), (Some(at(1)), None));
        let (mut taken, mut last) = (0, 0);
        while let Some(key) = all.pop(at(999)) {
            assert!(key * 7919 % 1000 >= last);
            (taken, last) = (taken + 1, key * 7919 % 1000);
        }
        assert_eq!((taken, all.first()), (998, Some(at(5000))));
        assert_eq!((all.pop(at(5000)), all.first()), (Some(3), None));
    }
}
