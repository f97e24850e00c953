//! The storage of a ring: numbered slots in segments that are allocated when first needed.
//!
//! This module owns the memory and every access to it, and knows nothing of who may touch which
//! slot when; that is the business of [`spsc`](crate::spsc). All its operations are therefore
//! `unsafe`, with one rule stated on [`Slots`].

use alloc::{boxed::Box, vec::Vec};
use core::hint::black_box;
use core::mem::{ManuallyDrop, MaybeUninit};
use core::ptr;

use crate::sync::{SEGMENT_SLOTS, UnsafeCell};

/// One place for an item. Whether it holds one is known only to the ring.
pub(crate) type Slot<T> = UnsafeCell<MaybeUninit<T>>;

/// A run of up to [`SEGMENT_SLOTS`] slots, once something was written to one of them.
type Segment<T> = Option<Box<[Slot<T>]>>;

/// A fixed number of slots, none of which takes memory (beyond 16 bytes per segment) until its
/// segment is written to.
///
/// # Invariant: the holder
///
/// At any moment each slot has at most one *holder*, a thread that alone may touch it, and two
/// holders of a slot follow each other with a happens-before edge between them. Only one thread,
/// the *writer*, ever calls [`Slots::prepare`] and [`Slots::write`]. A slot is *full* from a
/// `write` to the `take` or `discard` that follows. Callers promise to be the holder, and for all
/// but `prepare` and `write` that the slot is full.
///
/// From this follows the rule for the segment cells: a segment is installed by the writer before
/// it first writes a slot in it, and never changes again. Every other thread that reads the cell
/// holds a slot that was full after that moment, and so sees it installed.
///
/// Items still in the slots when this is dropped are leaked: the ring takes them out first.
pub(crate) struct Slots<T> {
    segments: Box<[UnsafeCell<Segment<T>>]>,
    count: usize,
}

// SAFETY: a shared `Slots` lets items be moved in by one thread and out by another, never be
// seen by two threads at once (the holder invariant). That is sending them, so `T: Send` is enough.
unsafe impl<T: Send> Sync for Slots<T> {}

impl<T> Slots<T> {
    /// Makes `count` empty slots; `None` without memory for them.
    pub(crate) fn new(count: usize) -> Option<Self> {
        let segments = boxed(count.div_ceil(SEGMENT_SLOTS), || UnsafeCell::new(None))?;
        Some(Self { segments, count })
    }

    /// Slot `index`, after making sure that it has memory. `None`: there is none, or too little to
    /// leave `spare` bytes to others.
    ///
    /// # Safety
    ///
    /// The caller is the writer, and the holder of slot `index`.
    #[inline]
    pub(crate) unsafe fn prepare(&self, index: usize, spare: usize) -> Option<&Slot<T>> {
        let cell = &self.segments[index / SEGMENT_SLOTS];
        // SAFETY: the cell is only ever written by the writer, which is the caller.
        if !cell.with(|segment| unsafe { (*segment).is_some() }) {
            let fresh = self.new_segment(index / SEGMENT_SLOTS, spare)?;
            // SAFETY: no other thread looks at the cell before a slot in it was full, and none was.
            cell.with_mut(|segment| unsafe { *segment = Some(fresh) });
        }
        // SAFETY: the segment is installed, and never changes from now on.
        let segment = cell.with(|segment| unsafe { &*segment });
        segment.as_ref()?.get(index % SEGMENT_SLOTS)
    }

    /// Fills a slot, which must be empty (an item in it would be leaked).
    ///
    /// # Safety
    ///
    /// The caller is the writer, and the holder of the slot, which it has prepared.
    #[inline]
    pub(crate) unsafe fn write(slot: &Slot<T>, item: T) {
        // Copied once: a closure that owned the item would copy it twice.
        let item = ManuallyDrop::new(item);
        slot.with_mut(|slot| {
            // SAFETY: the caller holds the slot, which has the size and alignment of an item; the
            // item is not dropped here and so moves.
            unsafe { ptr::copy_nonoverlapping(&raw const *item, slot.cast(), 1) };
        });
    }

    /// Moves the item out of slot `index`.
    ///
    /// # Safety
    ///
    /// The caller is the holder of slot `index`, and the slot is full.
    #[inline]
    pub(crate) unsafe fn take(&self, index: usize) -> T {
        self.slot(index).with_mut(|slot| {
            // SAFETY: the caller holds the slot.
            let slot = unsafe { &*slot };
            // SAFETY: the slot is full, and counts as empty from here on.
            unsafe { slot.assume_init_read() }
        })
    }

    /// Drops an item that [`Slots::get_mut`] lent, where it is.
    ///
    /// # Safety
    ///
    /// The caller is still the holder of its slot, which counts as empty from here on, and does not
    /// use the reference again.
    #[inline]
    pub(crate) unsafe fn discard(item: &mut T) {
        // SAFETY: it is one item, and no thread will take it for one again.
        unsafe { ptr::drop_in_place(item) };
    }

    /// Lends the item in slot `index`.
    ///
    /// # Safety
    ///
    /// The caller is the holder of slot `index` for as long as the reference lives, makes no
    /// other reference to the item that is mutable meanwhile, and the slot is full.
    #[inline]
    pub(crate) unsafe fn get(&self, index: usize) -> &T {
        self.slot(index).with(|slot| {
            // SAFETY: the caller holds the slot.
            let slot = unsafe { &*slot };
            // SAFETY: the slot is full.
            unsafe { slot.assume_init_ref() }
        })
    }

    /// Lends the item in slot `index` for changing.
    ///
    /// # Safety
    ///
    /// The caller is the holder of slot `index` for as long as the reference lives, makes no
    /// other reference to the item meanwhile, and the slot is full.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "the holder of a slot has it to itself")]
    pub(crate) unsafe fn get_mut(&self, index: usize) -> &mut T {
        self.slot(index).with_mut(|slot| {
            // SAFETY: the caller holds the slot.
            let slot = unsafe { &mut *slot };
            // SAFETY: the slot is full.
            unsafe { slot.assume_init_mut() }
        })
    }

    /// Finds slot `index`, for a caller that holds it and knows that its segment is installed.
    #[inline]
    fn slot(&self, index: usize) -> &Slot<T> {
        // SAFETY: the segment is installed before a thread gets here, and never changes after.
        let segment = self.segments[index / SEGMENT_SLOTS].with(|segment| unsafe { &*segment });
        match segment {
            Some(slots) => &slots[index % SEGMENT_SLOTS],
            None => unreachable!("slot {index} was never prepared"),
        }
    }

    /// Allocates segment `number`; the last one is only as long as the slots that remain.
    #[cold]
    fn new_segment(&self, number: usize, spare: usize) -> Option<Box<[Slot<T>]>> {
        // Kept until the segment is there.
        let mut spared = Vec::<u8>::new();
        spared.try_reserve_exact(spare).ok()?;
        black_box(spared.as_ptr());
        let len = SEGMENT_SLOTS.min(self.count - number * SEGMENT_SLOTS);
        boxed(len, || UnsafeCell::new(MaybeUninit::uninit()))
    }
}

/// `len` values in memory of their own; `None` if there is none.
fn boxed<T>(len: usize, value: impl FnMut() -> T) -> Option<Box<[T]>> {
    let mut values = Vec::new();
    values.try_reserve_exact(len).ok()?;
    values.resize_with(len, value);
    Some(values.into_boxed_slice())
}
