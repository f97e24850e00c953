//! Keys and the slots they name.
//!
//! A key is `index << 8 | tag`, both unpredictable: a peer that knows some keys cannot tell others,
//! and guesses one of `n` keys with `n` in 2^32 attempts. The index of a retired key is used again
//! only after all others, 2^24 - 2 of them, so the key does not come back for a long time.

use alloc::vec::Vec;

use feroce_wire::{Lkey, Prf, Rkey};

use crate::numbers::Numbers;

/// Index 0 is never used, so that keys below 256 name nothing.
const INDICES: u32 = 0x00ff_ffff;

/// What the numbers drawn from the seed are for.
const INDEX: u64 = u64::from_be_bytes(*b"keyindex");
const TAG: u64 = u64::from_be_bytes(*b"key  tag");

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
    key: Key,
    value: Option<T>,
}

/// Values named by keys.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    slots: Vec<Slot<T>>,
    /// Slots without a value.
    free: Vec<u32>,
    indices: Numbers,
    tags: Prf,
    /// How many keys there have been.
    inserted: u64,
    max: u32,
}

impl<T> Slots<T> {
    pub(crate) fn new(seed: u64, max: u32) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            indices: Numbers::new(seed, INDEX, 1, INDICES),
            tags: Prf::new(seed, TAG),
            inserted: 0,
            max: max.min(INDICES),
        }
    }

    /// How many values there are.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// All values.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.value.as_ref())
    }

    /// Stores `value` under a new key; `None` when there is no room.
    pub(crate) fn insert(&mut self, value: T) -> Option<Key> {
        if self.len() >= self.max as usize {
            return None;
        }
        if self.free.is_empty() {
            self.add_slot()?;
        }
        let &at = self.free.last()?;
        let slot = self.slots.get_mut(at as usize)?;
        let tag = self.tags.at(self.inserted) as u8;
        let key = Key::new(self.indices.draw(at)?, tag);
        self.inserted += 1;
        self.free.pop();
        *slot = Slot { key, value: Some(value) };
        Some(key)
    }

    /// Stores `value` under the key that it has in another table; `None` when the key is in use, or
    /// when there is no room.
    pub(crate) fn insert_as(&mut self, key: Key, value: T) -> Option<()> {
        if self.len() >= self.max as usize {
            return None;
        }
        if self.free.is_empty() {
            self.add_slot()?;
        }
        let &at = self.free.last()?;
        self.indices.claim(key.index(), at)?;
        self.free.pop();
        *self.slots.get_mut(at as usize)? = Slot { key, value: Some(value) };
        Some(())
    }

    /// Adds a free slot; `None` when there is no memory.
    fn add_slot(&mut self) -> Option<()> {
        let at = u32::try_from(self.slots.len()).ok()?;
        self.slots.try_reserve(1).ok()?;
        // Room for every slot to be free, so that `remove` never allocates.
        self.free.try_reserve(self.slots.len() + 1 - self.free.len()).ok()?;
        self.slots.push(Slot { key: Key(0), value: None });
        self.free.push(at);
        Some(())
    }

    /// The value with this key.
    #[inline]
    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let slot = self.slots.get(self.indices.slot_of(key.index())? as usize)?;
        if slot.key != key {
            return None;
        }
        slot.value.as_ref()
    }

    /// The value with this key, to change.
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let slot = self.slot_mut(key.index())?;
        if slot.key != key {
            return None;
        }
        slot.value.as_mut()
    }

    fn slot_mut(&mut self, index: u32) -> Option<&mut Slot<T>> {
        self.slots.get_mut(self.indices.slot_of(index)? as usize)
    }

    /// The key with this index, whatever its tag is now.
    pub(crate) fn current(&self, index: u32) -> Option<Key> {
        self.slots.get(self.indices.slot_of(index)? as usize).map(|slot| slot.key)
    }

    /// Gives the value with the index of `key` that key, whatever tag it had.
    pub(crate) fn retag(&mut self, key: Key) {
        if let Some(slot) = self.slot_mut(key.index()) {
            slot.key = key;
        }
    }

    /// Takes the value out; the key names nothing from now on.
    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let at = self.indices.slot_of(key.index())?;
        let slot = self.slots.get_mut(at as usize)?;
        if slot.key != key {
            return None;
        }
        let value = slot.value.take()?;
        self.indices.release(key.index());
        self.free.push(at);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_key_stays_stale_for_long() {
        // One slot is used again and again.
        let mut slots = Slots::new(1, 1);
        let stale = slots.insert(()).unwrap();
        slots.remove(stale).unwrap();
        for _ in 0..20_000 {
            let key = slots.insert(()).unwrap();
            assert_eq!(slots.insert(()), None, "at the limit");
            assert_ne!(key.index(), stale.index());
            assert!(slots.get(stale).is_none());
            slots.remove(key).unwrap();
        }
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
    fn a_key_of_another_table_is_taken_over_once() {
        let (mut first, mut second) = (Slots::new(1, 10), Slots::new(2, 10));
        let key = first.insert(5).unwrap();
        assert_eq!(second.insert_as(key, 6), Some(()));
        assert_eq!(second.insert_as(key, 7), None);
        assert_eq!(second.get(key), Some(&6));
        assert_eq!(second.remove(key), Some(6));
        assert_eq!((second.get(key), second.len()), (None, 0));
        assert_eq!(second.insert_as(key, 8), Some(()));
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
