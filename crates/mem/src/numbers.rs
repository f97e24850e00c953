//! Numbers that name slots and cannot be predicted.

use alloc::vec::Vec;
use core::num::NonZeroU32;

use feroce_wire::Permutation;

/// Numbers of a range, each of which names a slot of a table.
///
/// Numbers are drawn in the order of a keyed permutation of the range, so that a peer that knows
/// some of them cannot tell the others, and a number that is released is drawn again only after all
/// others. They are found by open addressing: numbers are as good as random, so the lower bits of a
/// number are its hash, and a peer cannot choose numbers that collide.
///
/// ```
/// # use feroce_mem::Numbers;
/// let mut numbers = Numbers::new(42, 1, 0x100, 0x1000);
/// let number = numbers.draw(7).expect("the range is not used up");
/// assert!((0x100..0x1100).contains(&number));
/// assert_eq!(numbers.slot_of(number), Some(7));
/// numbers.release(number);
/// assert_eq!(numbers.slot_of(number), None);
/// ```
#[derive(Debug)]
pub struct Numbers {
    order: Permutation,
    first: NonZeroU32,
    /// How many numbers were drawn so far, modulo the size of the range.
    drawn: u32,
    live: u32,
    /// As many as a power of two, at most half of them taken; a number is at the place of its lower
    /// bits or behind it, with no empty place between.
    places: Vec<Option<Place>>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    number: NonZeroU32,
    slot: u32,
}

impl Numbers {
    /// `count` numbers from `first` on, in an order that follows from `seed` and `purpose`. The
    /// first number is at least 1, and the last below `u32::MAX`.
    pub fn new(seed: u64, purpose: u64, first: u32, count: u32) -> Self {
        let first = NonZeroU32::new(first).unwrap_or(NonZeroU32::MIN);
        let order = Permutation::new(seed, purpose, count.min(u32::MAX - first.get()));
        Self { order, first, drawn: 0, live: 0, places: Vec::new() }
    }

    /// The next number, which names `slot` from now on; `None` if all are in use, or if there is no
    /// memory.
    pub fn draw(&mut self, slot: u32) -> Option<u32> {
        if self.live >= self.order.count() {
            return None;
        }
        self.make_room()?;
        loop {
            let number = self.first.saturating_add(self.order.at(self.drawn));
            self.drawn = (self.drawn + 1) % self.order.count();
            if self.slot_of(number.get()).is_none() {
                self.live += 1;
                self.put(Place { number, slot });
                return Some(number.get());
            }
        }
    }

    /// Lets `number` name `slot`, as another table has drawn it. `None` if it is not of the range,
    /// is in use, or if there is no memory.
    pub fn claim(&mut self, number: u32, slot: u32) -> Option<()> {
        let offset = number.checked_sub(self.first.get())?;
        if offset >= self.order.count() || self.slot_of(number).is_some() {
            return None;
        }
        self.make_room()?;
        self.live += 1;
        self.put(Place { number: NonZeroU32::new(number)?, slot });
        Some(())
    }

    /// The slot that a number names.
    #[inline]
    pub fn slot_of(&self, number: u32) -> Option<u32> {
        self.find(number).map(|(_, slot)| slot)
    }

    /// The place of a number, and its slot.
    #[inline]
    fn find(&self, number: u32) -> Option<(usize, u32)> {
        let mask = self.places.len().wrapping_sub(1);
        let mut at = number as usize & mask;
        loop {
            // A table without places has none here either.
            let place = (*self.places.get(at)?)?;
            if place.number.get() == number {
                return Some((at, place.slot));
            }
            at = (at + 1) & mask;
        }
    }

    /// The number names nothing any more.
    pub fn release(&mut self, number: u32) {
        let Some((mut at, _)) = self.find(number) else { return };
        let mask = self.places.len().wrapping_sub(1);
        self.live -= 1;
        let _ = self.places.get_mut(at).and_then(Option::take);
        // Numbers behind it, up to the next empty place, move into the gap if they belong there.
        loop {
            at = (at + 1) & mask;
            let Some(place) = self.places.get_mut(at).and_then(Option::take) else { return };
            self.put(place);
        }
    }

    /// Puts a number at the first empty place from its own on.
    fn put(&mut self, new: Place) {
        let mask = self.places.len().wrapping_sub(1);
        let mut at = new.number.get() as usize & mask;
        while let Some(place) = self.places.get_mut(at) {
            if place.is_none() {
                *place = Some(new);
                return;
            }
            at = (at + 1) & mask;
        }
    }

    /// Doubles the places if half of them are taken.
    fn make_room(&mut self) -> Option<()> {
        if (self.live as usize + 1) * 2 <= self.places.len() {
            return Some(());
        }
        let mut places = Vec::new();
        let len = (self.places.len() * 2).max(8);
        places.try_reserve_exact(len).ok()?;
        places.resize(len, None);
        let old = core::mem::replace(&mut self.places, places);
        old.into_iter().flatten().for_each(|place| self.put(place));
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use super::*;

    #[test]
    fn every_number_is_drawn_once_before_one_returns() {
        for count in [1, 2, 40, 1000] {
            let mut numbers = Numbers::new(3, 1, 10, count);
            let mut all: Vec<u32> = (0..count).map(|slot| numbers.draw(slot).unwrap()).collect();
            assert_eq!(numbers.draw(0), None);
            let (first, last) = (all[0], all[count as usize - 1]);
            numbers.release(last);
            assert_eq!(numbers.draw(9), Some(last), "the only one that is free");
            all.sort_unstable();
            assert!(all.into_iter().eq(10..10 + count));
            numbers.release(first);
            assert_eq!((numbers.slot_of(first), numbers.slot_of(9)), (None, None));
        }
    }

    #[test]
    fn a_number_that_was_claimed_is_not_drawn() {
        let mut numbers = Numbers::new(3, 1, 10, 4);
        assert_eq!(numbers.claim(12, 7), Some(()));
        assert_eq!((numbers.slot_of(12), numbers.claim(12, 8)), (Some(7), None));
        assert_eq!((numbers.claim(9, 8), numbers.claim(14, 8)), (None, None), "out of range");
        let mut drawn: Vec<u32> = (0..3).map(|slot| numbers.draw(slot).unwrap()).collect();
        drawn.sort_unstable();
        assert_eq!((drawn, numbers.draw(3)), (alloc::vec![10, 11, 13], None));
    }

    #[test]
    fn numbers_lead_to_their_slots_whatever_is_released() {
        let mut numbers = Numbers::new(5, 1, 1, 3000);
        let mut model = BTreeMap::new();
        let mut random = fastrand::Rng::with_seed(5);
        for slot in 0..20_000 {
            if random.bool()
                && let Some(number) = numbers.draw(slot)
            {
                assert_eq!(model.insert(number, slot), None);
            } else if let Some((&number, _)) = model.range(random.u32(..3000)..).next() {
                model.remove(&number);
                numbers.release(number);
                numbers.release(number);
            }
            let number = random.u32(..3002);
            assert_eq!(numbers.slot_of(number), model.get(&number).copied());
        }
        assert!(model.iter().all(|(&number, &slot)| numbers.slot_of(number) == Some(slot)));
    }
}
