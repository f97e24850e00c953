//! Keys and the slots they name.
//!
//! A key is `index << 8 | tag`. The tag is random when a slot is first used and changes each time
//! the slot is used again, by a step that visits all 256 values before it repeats. Free slots wait
//! in a queue, and the table reuses the oldest only if at least [`REST`] slots wait, so that a
//! retired key does not come back for a long time: see [`REST`]. Only a table at its limit reuses
//! slots sooner.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use fastrand::Rng;
use feroce_wire::{Lkey, Rkey};

/// How many free slots must wait before the oldest is used again.
///
/// A slot taken from the queue leaves at least `REST - 1` others there, so each later use of it is
/// at least `REST` insertions after the one before. A key returns with the 256th reuse of its
/// slot: after at least `1 + 255 * REST` insertions, which is more than 256 * 1024.
const REST: usize = 1029;

/// Bits of an index; index 0 is never used, so that keys below 256 name nothing.
const INDEX_MAX: u32 = 0x00ff_ffff;

/// A key of either kind. The local and the remote key of a memory region are one number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Key(pub u32);

impl Key {
    const fn new(index: u32, tag: u8) -> Self {
        Self(index << 8 | tag as u32)
    }

    /// The slot it names.
    #[inline]
    pub const fn index(self) -> u32 {
        self.0 >> 8
    }

    /// The tag, which distinguishes it from earlier and later keys of the same slot.
    #[inline]
    pub const fn tag(self) -> u8 {
        (self.0 & 0xff) as u8
    }
}

impl From<Lkey> for Key {
    #[inline]
    fn from(key: Lkey) -> Self {
        Self(key.0)
    }
}

impl From<Rkey> for Key {
    #[inline]
    fn from(key: Rkey) -> Self {
        Self(key.0)
    }
}

impl From<Key> for Lkey {
    #[inline]
    fn from(key: Key) -> Self {
        Self(key.0)
    }
}

impl From<Key> for Rkey {
    #[inline]
    fn from(key: Key) -> Self {
        Self(key.0)
    }
}

#[derive(Debug)]
struct Slot<T> {
    tag: u8,
    /// Odd, so that adding it walks through all tags.
    step: u8,
    value: Option<T>,
}

/// Values named by keys.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    /// Slot `n` is that of index `n + 1`.
    slots: Vec<Slot<T>>,
    /// Indices of free slots, longest free first.
    free: VecDeque<u32>,
    max: u32,
    rng: Rng,
}

impl<T> Slots<T> {
    pub(crate) fn new(seed: u64, max: u32) -> Self {
        Self {
            slots: Vec::new(),
            free: VecDeque::new(),
            max: max.min(INDEX_MAX),
            rng: Rng::with_seed(seed),
        }
    }

    /// How many values there are.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Stores `value` under a new key; `None` when there is no room.
    pub(crate) fn insert(&mut self, value: T) -> Option<Key> {
        let full = self.slots.len() >= self.max as usize;
        if full || self.free.len() >= REST {
            let index = self.free.pop_front()?;
            let slot = self.slots.get_mut(index as usize - 1)?;
            slot.tag = slot.tag.wrapping_add(slot.step);
            slot.value = Some(value);
            return Some(Key::new(index, slot.tag));
        }
        self.slots.try_reserve(1).ok()?;
        // Room for every slot to be free, so that `remove` never allocates.
        self.free.try_reserve(self.slots.len() + 1 - self.free.len()).ok()?;
        let (tag, step) = (self.rng.u8(..), self.rng.u8(..) | 1);
        self.slots.push(Slot { tag, step, value: Some(value) });
        let index = u32::try_from(self.slots.len()).ok()?;
        Some(Key::new(index, tag))
    }

    /// The value with this key.
    #[inline]
    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        // Index 0 wraps to a slot that no table is large enough to have.
        let slot = self.slots.get(key.index().wrapping_sub(1) as usize)?;
        if slot.tag != key.tag() {
            return None;
        }
        slot.value.as_ref()
    }

    /// The value with this key, to change.
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index().wrapping_sub(1) as usize)?;
        if slot.tag != key.tag() {
            return None;
        }
        slot.value.as_mut()
    }

    /// The key that names slot `index` now.
    pub(crate) fn current(&self, index: u32) -> Option<Key> {
        let slot = self.slots.get(index.wrapping_sub(1) as usize)?;
        slot.value.as_ref().map(|_| Key::new(index, slot.tag))
    }

    /// Gives the value in the slot of `key` that key, whatever tag it had.
    pub(crate) fn retag(&mut self, key: Key) {
        if let Some(slot) = self.slots.get_mut(key.index().wrapping_sub(1) as usize) {
            slot.tag = key.tag();
        }
    }

    /// Takes the value out; the key names nothing from now on.
    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let slot = self.slots.get_mut(key.index().wrapping_sub(1) as usize)?;
        if slot.tag != key.tag() {
            return None;
        }
        let value = slot.value.take()?;
        self.free.push_back(key.index());
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Inserts and removes until `stale` matches again; returns how many insertions it took.
    fn insertions_until_match(slots: &mut Slots<()>, stale: Key) -> usize {
        for n in 1.. {
            let key = slots.insert(()).expect("room");
            if key == stale {
                return n;
            }
            assert!(slots.get(stale).is_none());
            assert!(slots.remove(key).is_some());
        }
        unreachable!("the key space is finite")
    }

    #[test]
    fn a_stale_key_stays_stale_for_long() {
        let mut slots = Slots::new(1, u32::MAX);
        let stale = slots.insert(()).unwrap();
        slots.remove(stale).unwrap();
        assert!(insertions_until_match(&mut slots, stale) >= 256 * 1024);
    }

    #[test]
    fn a_stale_key_stays_stale_for_long_with_many_free() {
        // The slot is first in the queue and the queue long enough: the earliest it can return.
        let mut slots = Slots::new(2, u32::MAX);
        let keys: Vec<Key> = (0..REST).map(|_| slots.insert(()).unwrap()).collect();
        for &key in &keys {
            slots.remove(key).unwrap();
        }
        let taken = insertions_until_match(&mut slots, keys[0]);
        assert_eq!(taken, 1 + 255 * REST);
        assert!(taken >= 256 * 1024);
    }

    #[test]
    fn tags_walk_through_all_values() {
        let mut slots = Slots::new(3, 1);
        let mut seen = [false; 256];
        for _ in 0..256 {
            let key = slots.insert(()).unwrap();
            assert_eq!(key.index(), 1);
            assert!(!core::mem::replace(&mut seen[usize::from(key.tag())], true));
            assert_eq!(slots.insert(()), None, "at the limit");
            slots.remove(key).unwrap();
        }
        assert_eq!(seen, [true; 256]);
    }

    #[test]
    fn keys_follow_the_seed_and_never_use_index_0() {
        let keys = |seed| {
            let mut slots = Slots::new(seed, 100);
            (0..100).map(|_| slots.insert(()).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(keys(7), keys(7));
        assert_ne!(keys(7), keys(8));
        assert!(keys(7).iter().all(|key| key.index() > 0));
        let slots = Slots::<()>::new(7, 100);
        assert!((0..=255).all(|key| slots.get(Key(key)).is_none()));
        assert!(slots.get(Key(u32::MAX)).is_none());
    }

    #[test]
    fn a_key_changes_with_retag_and_ends_with_remove() {
        let mut slots = Slots::new(4, 10);
        let old = slots.insert(5).unwrap();
        let new = Key::new(old.index(), old.tag().wrapping_add(1));
        assert_ne!(old, new);
        slots.retag(new);
        assert_eq!((slots.get(old), slots.get(new)), (None, Some(&5)));
        assert_eq!(slots.current(new.index()), Some(new));
        assert_eq!(slots.remove(old), None);
        assert_eq!(slots.remove(new), Some(5));
        assert!(slots.get(new).is_none() && slots.get_mut(new).is_none());
        assert_eq!((slots.current(new.index()), slots.len()), (None, 0));
    }
}
