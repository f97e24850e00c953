//! A bounded queue from one producer to one consumer.
//!
//! This module owns the question of whose a slot is. It never touches slot memory itself, which
//! is in [`slots`](crate::slots), and never waits: a full or an empty ring is an answer.
//!
//! # Who holds a slot, and why that is enough
//!
//! `tail` counts items published by the producer, `head` items removed by the consumer. Slots in
//! `head..tail` are full and held by the consumer, the others are held by the producer (and empty
//! but for those staged). A slot changes hands only by these two stores:
//!
//! * The producer fills slots, then stores `tail` with *release*; the consumer reads a slot only
//!   below a `tail` loaded with *acquire*. So it sees the item, and the segment around it.
//! * The consumer empties a slot, then stores `head` with *release*; the producer fills a slot
//!   only within `capacity` of a `head` loaded with *acquire*. So the item is gone by then.
//!
//! Each side keeps its own counter in plain memory along with the last value it saw of the other.
//! A stale value is safe: it shows the ring fuller to the producer, emptier to the consumer, than
//! it is. The shared word is read only when the stale value gives a reason to stop.
//!
//! Counters wrap around at 2^32, far beyond any capacity, so that how far they are apart is one
//! subtraction. As the capacity need not be a power of two, a counter does not tell its slot: each
//! side also keeps the slot that it is at.

use core::{cell::Cell, fmt};

use crate::{
    slots::{Slot, Slots},
    sync::{Arc, AtomicBool, AtomicU32, Ordering},
};

/// The largest capacity of a ring.
pub const MAX_CAPACITY: usize = 1 << 24;

/// Makes a ring that holds up to `capacity` items, exactly.
///
/// A ring of capacity 0 is always full. Memory for the items is allocated by the producer in
/// segments of up to 16, each when it is first reached.
///
/// Items left when both halves are gone are dropped then.
///
/// ```
/// let (mut posts, mut engine) = feroce_ring::spsc(2);
/// posts.stage("write").unwrap();
/// posts.stage("read").unwrap();
/// assert_eq!(posts.stage("send"), Err("send"));
/// assert_eq!(engine.peek(0), None);
///
/// posts.publish();
/// assert_eq!(engine.peek(1), Some(&"read"));
/// assert_eq!(engine.pop(), Some("write"));
/// assert_eq!(posts.free(), 1);
/// ```
///
/// The halves may be sent to other threads but not be cloned. The producer may also be shared,
/// because whatever changes it takes it exclusively. The consumer may not be shared, because it
/// remembers what it has seen whenever it is asked:
///
/// ```compile_fail,E0277
/// fn share(_: impl Sync) {}
/// share(feroce_ring::spsc::<u8>(1).1);
/// ```
///
/// # Panics
///
/// If `capacity` exceeds [`MAX_CAPACITY`], or there is no memory for the ring.
pub fn spsc<T: Send>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    try_spsc(capacity).expect("memory for a ring")
}

/// As [`spsc()`], and `None` if there is no memory for the ring.
///
/// # Panics
///
/// If `capacity` exceeds [`MAX_CAPACITY`].
pub fn try_spsc<T: Send>(capacity: usize) -> Option<(Producer<T>, Consumer<T>)> {
    assert!(capacity <= MAX_CAPACITY, "a ring of {capacity} slots is too large");
    let shared = Arc::new(Shared {
        slots: Slots::new(capacity)?,
        capacity: capacity as u32,
        oldest: AtomicU32::new(0),
        closed: AtomicBool::new(false),
        _head_apart: [0; 63],
        head: AtomicU32::new(0),
        _tail_apart: [0; 60],
        tail: AtomicU32::new(0),
    });
    let producer = Producer { shared: shared.clone(), tail: 0, slot: 0, published: 0, head: 0 };
    let consumer = Consumer { shared, head: 0, slot: 0, tail: Cell::new(0) };
    Some((producer, consumer))
}

/// What both halves share. What is written while running is kept a cache line away from what is
/// only read, and `head` from `tail`, without asking the allocator for an alignment.
#[repr(C)]
struct Shared<T> {
    slots: Slots<T>,
    /// The number of slots.
    capacity: u32,
    /// The slot of the oldest item, once the consumer is dropped.
    oldest: AtomicU32,
    /// Set when the consumer is dropped.
    closed: AtomicBool,
    _head_apart: [u8; 63],
    /// Items removed. Written by the consumer.
    head: AtomicU32,
    _tail_apart: [u8; 60],
    /// Items published. Written by the producer.
    tail: AtomicU32,
}

impl<T> Shared<T> {
    /// The slot `by` steps after `slot`, for `by` up to the capacity.
    #[inline]
    fn forward(&self, slot: u32, by: u32) -> u32 {
        let sum = slot + by;
        if sum >= self.capacity { sum - self.capacity } else { sum }
    }

    /// A counter and the slot that it is at, one item later.
    #[inline]
    fn after(&self, count: u32, slot: u32) -> (u32, u32) {
        (count.wrapping_add(1), self.forward(slot, 1))
    }

    /// The slot before `slot`.
    #[inline]
    fn back(&self, slot: u32) -> u32 {
        if slot == 0 { self.capacity - 1 } else { slot - 1 }
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        let tail = self.tail.load(Ordering::Relaxed);
        let mut head = self.head.load(Ordering::Relaxed);
        let mut slot = self.oldest.load(Ordering::Relaxed);
        while head != tail {
            // SAFETY: both halves are gone, so all slots are held here; up to `tail` they are full.
            drop(unsafe { self.slots.take(slot as usize) });
            head = head.wrapping_add(1);
            slot = self.forward(slot, 1);
        }
    }
}

/// The half of a ring that puts items in. Made by [`spsc()`].
///
/// Items are *staged* and then *published*, many at a time; [`Producer::push`] does both for one
/// item. Staged items take up room in the ring but the consumer does not see them. Dropping the
/// producer publishes what is staged.
///
/// # Invariant
///
/// `published` is what this half last stored to the shared `tail`. Slots in `published..tail` are
/// full and held by the producer, those in `tail..head + capacity` are empty and held by it. `slot`
/// is below the capacity, unless that is 0.
pub struct Producer<T> {
    shared: Arc<Shared<T>>,
    /// Items published or staged.
    tail: u32,
    /// The slot that `tail` is at.
    slot: u32,
    /// Items published.
    published: u32,
    /// Items removed by the consumer, when last looked at.
    head: u32,
}

impl<T> Producer<T> {
    /// Puts an item in and publishes it, along with any that are staged.
    ///
    /// # Errors
    ///
    /// Gives the item back if the ring is full or memory is short; staged items then stay staged.
    #[inline]
    pub fn push(&mut self, item: T) -> Result<(), T> {
        self.stage(item)?;
        self.publish();
        Ok(())
    }

    /// Puts an item in without showing it to the consumer yet.
    ///
    /// # Errors
    ///
    /// Gives the item back if the ring is full or memory is short.
    #[inline]
    pub fn stage(&mut self, item: T) -> Result<(), T> {
        match self.vacant() {
            Some(slot) => {
                slot.stage(item);
                Ok(())
            }
            None => Err(item),
        }
    }

    /// The slot for the next item, if the ring is not full and there is memory for the slot. A
    /// caller that needs nothing back otherwise stages large items this way, which copies them
    /// once.
    #[inline]
    pub fn vacant(&mut self) -> Option<Vacant<'_, T>> {
        self.vacant_sparing(0)
    }

    /// As [`Producer::vacant`], but memory for the slot is allocated only if there are `spare`
    /// bytes more. A producer that can wait leaves these to those that cannot.
    #[inline]
    pub fn vacant_sparing(&mut self, spare: usize) -> Option<Vacant<'_, T>> {
        let is_full = self.tail.wrapping_sub(self.head) == self.shared.capacity && self.free() == 0;
        if is_full {
            return None;
        }
        let Self { shared, tail, slot, .. } = self;
        let shared: &Shared<T> = shared;
        // SAFETY: `tail` is within `capacity` of `head`, so this half holds the slot; there is one
        // producer, so it is the one writer.
        let place = unsafe { shared.slots.prepare(*slot as usize, spare) }?;
        Some(Vacant { shared, tail, slot, place })
    }

    /// Allocates memory for the next `count` items, so that staging them does not fail. False if
    /// there is too little memory, or the ring has not as many free slots.
    pub fn reserve(&mut self, count: usize) -> bool {
        if count > self.free() {
            return false;
        }
        let mut slots = (0..count as u32).map(|i| self.shared.forward(self.slot, i) as usize);
        // SAFETY: the slots are free, so this half holds them; there is one producer, so it is the
        // one writer.
        slots.all(|slot| unsafe { self.shared.slots.prepare(slot, 0) }.is_some())
    }

    /// Shows everything staged to the consumer, with one store.
    #[inline]
    pub fn publish(&mut self) {
        if self.published != self.tail {
            self.shared.tail.store(self.tail, Ordering::Release);
            self.published = self.tail;
        }
    }

    /// Drops everything staged and not published, newest first.
    pub fn unstage_all(&mut self) {
        while self.tail != self.published {
            self.tail = self.tail.wrapping_sub(1);
            self.slot = self.shared.back(self.slot);
            // SAFETY: the slot was staged and not published, so it is full and held by this half.
            drop(unsafe { self.shared.slots.take(self.slot as usize) });
        }
    }

    /// How many items are staged and not published.
    #[inline]
    pub fn staged(&self) -> usize {
        self.tail.wrapping_sub(self.published) as usize
    }

    /// How many items the ring can hold.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.shared.capacity as usize
    }

    /// How many more items can be staged now. Only this half can make it less.
    #[inline]
    pub fn free(&mut self) -> usize {
        self.head = self.shared.head.load(Ordering::Acquire);
        (self.shared.capacity - self.tail.wrapping_sub(self.head)) as usize
    }

    /// How many items are in the ring, those staged included.
    #[inline]
    pub fn len(&self) -> usize {
        let head = self.shared.head.load(Ordering::Acquire);
        self.tail.wrapping_sub(head) as usize
    }

    /// Whether nothing is in the ring, staged or published.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the consumer is gone, so that no item will be removed any more.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Acquire)
    }
}

/// A free slot of a ring. Made by [`Producer::vacant`].
///
/// # Invariant
///
/// `tail` and `slot` are those of the producer, which is borrowed meanwhile; `tail` is within the
/// capacity of `head`, and `place` is its slot.
pub struct Vacant<'a, T> {
    shared: &'a Shared<T>,
    tail: &'a mut u32,
    slot: &'a mut u32,
    place: &'a Slot<T>,
}

impl<T> Vacant<'_, T> {
    /// Puts an item in without showing it to the consumer yet.
    #[inline]
    pub fn stage(self, item: T) {
        let Self { shared, tail, slot, place } = self;
        // SAFETY: `tail` is within `capacity` of `head`, so the slot is empty and held by this
        // half; there is one producer, so it is the one writer. `prepare` gave the slot.
        unsafe { Slots::write(place, item) };
        (*tail, *slot) = shared.after(*tail, *slot);
    }
}

impl<T> fmt::Debug for Vacant<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vacant").field("slot", &self.slot).finish_non_exhaustive()
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        self.publish();
    }
}

impl<T> fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer")
            .field("capacity", &self.capacity())
            .field("len", &self.len())
            .field("staged", &self.staged())
            .finish()
    }
}

/// The half of a ring that takes items out, oldest first. Made by [`spsc()`].
///
/// # Invariant
///
/// `head` is what this half last stored to the shared `head`. Slots in `head..tail` are full and
/// held by the consumer. `slot` is below the capacity, unless that is 0.
pub struct Consumer<T> {
    shared: Arc<Shared<T>>,
    /// Items removed.
    head: u32,
    /// The slot that `head` is at.
    slot: u32,
    /// Items published by the producer, when last looked at.
    tail: Cell<u32>,
}

impl<T> Consumer<T> {
    /// The item that `i` older ones are in front of, left where it is.
    #[inline]
    pub fn peek(&self, i: usize) -> Option<&T> {
        let slot = self.find(i)?;
        // SAFETY: the slot is full and held by this half, which stays borrowed with the item, so
        // that it is neither removed nor changed.
        Some(unsafe { self.shared.slots.get(slot) })
    }

    /// The item that `i` older ones are in front of, left where it is, for changing.
    #[inline]
    pub fn peek_mut(&mut self, i: usize) -> Option<&mut T> {
        let slot = self.find(i)?;
        // SAFETY: the slot is full and held by this half, which is mutably borrowed with the item.
        Some(unsafe { self.shared.slots.get_mut(slot) })
    }

    /// Takes out the oldest item. Its slot is free for the producer once this returns.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let slot = self.oldest()?;
        // SAFETY: the slot is full and held by this half; it is given up by the store below.
        let item = unsafe { self.shared.slots.take(slot) };
        (self.head, self.slot) = self.shared.after(self.head, self.slot);
        self.shared.head.store(self.head, Ordering::Release);
        Some(item)
    }

    /// Takes out the oldest item, if `look` makes something of it, without moving it: gives what
    /// that is, and drops the item where it is. Its slot is free for the producer once this
    /// returns.
    #[inline]
    pub fn pop_if<R>(&mut self, look: impl FnOnce(&T) -> Option<R>) -> Option<R> {
        let slot = self.oldest()?;
        // SAFETY: the slot is full and held by this half, and nothing else here touches it.
        let item = unsafe { self.shared.slots.get_mut(slot) };
        let seen = look(item)?;
        (self.head, self.slot) = self.shared.after(self.head, self.slot);
        let _given_up = GiveUp { head: &self.shared.head, to: self.head };
        // SAFETY: the item is in a slot that is full, and given up when this returns.
        unsafe { Slots::discard(item) };
        Some(seen)
    }

    /// Takes out the oldest items as long as `look` says so, without moving them: drops each where
    /// it is. Their slots become free together, when this returns. Returns how many.
    #[inline]
    pub fn pop_while(&mut self, mut look: impl FnMut(&T) -> bool) -> usize {
        let first = self.head;
        let popping = GiveUpAll(self);
        let consumer = &mut *popping.0;
        while let Some(slot) = consumer.oldest() {
            // SAFETY: the slot is full and held by this half, and nothing else here touches it.
            let item = unsafe { consumer.shared.slots.get_mut(slot) };
            if !look(item) {
                break;
            }
            (consumer.head, consumer.slot) = consumer.shared.after(consumer.head, consumer.slot);
            // SAFETY: the item is in a slot that is full, and given up when this returns.
            unsafe { Slots::discard(item) };
        }
        consumer.head.wrapping_sub(first) as usize
    }

    /// How many items are published and not removed.
    #[inline]
    pub fn len(&self) -> usize {
        self.tail.set(self.shared.tail.load(Ordering::Acquire));
        self.tail.get().wrapping_sub(self.head) as usize
    }

    /// Whether there is nothing to take out.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many items the ring can hold.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.shared.capacity as usize
    }

    /// Whether more than `i` items are published and not removed.
    #[inline]
    fn has(&self, i: usize) -> bool {
        if i < self.tail.get().wrapping_sub(self.head) as usize {
            return true;
        }
        self.tail.set(self.shared.tail.load(Ordering::Acquire));
        i < self.tail.get().wrapping_sub(self.head) as usize
    }

    /// The slot of the `i`-th oldest item: one that is full and held by this half.
    #[inline]
    fn find(&self, i: usize) -> Option<usize> {
        self.has(i).then(|| self.shared.forward(self.slot, i as u32) as usize)
    }

    /// The slot of the oldest item: one that is full and held by this half.
    #[inline]
    fn oldest(&self) -> Option<usize> {
        self.has(0).then_some(self.slot as usize)
    }
}

/// Gives up the slots before `to` when it is dropped. If the drop of an item panics this still
/// happens, so that the item is not dropped again.
struct GiveUp<'a> {
    head: &'a AtomicU32,
    to: u32,
}

impl Drop for GiveUp<'_> {
    #[inline]
    fn drop(&mut self) {
        self.head.store(self.to, Ordering::Release);
    }
}

/// Gives up the slots before the `head` of a consumer when it is dropped, even if the drop of an
/// item panics.
struct GiveUpAll<'a, T>(&'a mut Consumer<T>);

impl<T> Drop for GiveUpAll<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.shared.head.store(self.0.head, Ordering::Release);
    }
}

impl<T> Drop for Consumer<T> {
    fn drop(&mut self) {
        self.shared.oldest.store(self.slot, Ordering::Relaxed);
        self.shared.closed.store(true, Ordering::Release);
    }
}

impl<T> fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("capacity", &self.capacity())
            .field("len", &self.len())
            .finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
