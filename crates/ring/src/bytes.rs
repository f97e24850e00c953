//! A queue of byte records from one producer to one consumer, in memory that two processes share.
//!
//! It follows the same argument as [`spsc`](crate::spsc()): `tail` counts bytes published, `head`
//! bytes removed, each is stored with *release* by its one writer and loaded with *acquire* by the
//! other side, so a byte is touched by one side at a time. What differs is trust. The other side
//! is another process: it may have crashed in the middle of anything, or be hostile. So every
//! number that comes from it is checked before it is used, each is read once, and a record is
//! copied out before it is looked at. A side that finds nonsense says [`Corrupt`] and the ring
//! is of no use any more; nothing is read or written outside of it, whatever the other side does.
//!
//! A record is a header of eight bytes, of which four are its length, and its bytes, padded to a
//! multiple of eight. Records do not wrap: one that does not fit before the end of the memory
//! starts at its beginning, and a header of [`SKIP`] says so.

use crate::sync::{AtomicU32, Ordering, fence};

/// Bytes in front of a record, and the alignment of records.
const HEADER: usize = 8;

/// In place of a length: the next record is at the beginning of the memory.
const SKIP: u32 = u32::MAX;

/// The largest capacity of a ring of bytes.
pub const MAX_BYTES: usize = 1 << 30;

/// The memory of a ring of bytes.
///
/// # Safety
///
/// `capacity` is constant, a power of two, at least 16 and at most [`MAX_BYTES`], and there is as
/// much memory. `fill` and `copy_out` touch exactly the bytes they are asked for. `head` and `tail`
/// are the same two words each time and not among these bytes.
pub unsafe trait RingMemory {
    /// Bytes removed. Written by the consumer.
    fn head(&self) -> &AtomicU32;

    /// Bytes published. Written by the producer.
    fn tail(&self) -> &AtomicU32;

    /// How many bytes there are.
    fn capacity(&self) -> usize;

    /// Lends `len` bytes at `at` for writing.
    ///
    /// # Safety
    ///
    /// They lie within the capacity, and the caller is the producer and holds them.
    unsafe fn fill(&self, at: usize, len: usize, write: impl FnOnce(&mut [u8]));

    /// Copies the bytes at `at`.
    ///
    /// # Safety
    ///
    /// They lie within the capacity, and the caller is the consumer and holds them.
    unsafe fn copy_out(&self, at: usize, out: &mut [u8]);

    /// Bytes at `at` may be copied in a moment: where that helps, they are brought near.
    #[inline]
    fn expect(&self, _at: usize) {}
}

/// The other side of a ring broke its rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Corrupt;

impl core::fmt::Display for Corrupt {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the other side of a ring broke its rules")
    }
}

impl core::error::Error for Corrupt {}

/// Bytes between two counters, if that is possible.
#[inline]
fn distance(head: u32, tail: u32, capacity: usize) -> Result<usize, Corrupt> {
    let distance = tail.wrapping_sub(head) as usize;
    if distance > capacity || !distance.is_multiple_of(HEADER) {
        Err(Corrupt)
    } else {
        Ok(distance)
    }
}

/// What a record of `len` bytes takes.
#[inline]
const fn space(len: usize) -> usize {
    HEADER + len.next_multiple_of(HEADER)
}

/// The half of a ring of bytes that puts records in.
///
/// # Invariant
///
/// `head..published` are bytes that the consumer may hold, the others are held by the producer.
#[derive(Debug)]
pub struct ByteProducer<M> {
    memory: M,
    capacity: usize,
    /// Bytes published or staged.
    tail: u32,
    /// Bytes published.
    published: u32,
    /// Bytes removed by the consumer, when last looked at.
    head: u32,
}

impl<M: RingMemory> ByteProducer<M> {
    /// The producer of a ring that nothing was put into yet.
    ///
    /// # Safety
    ///
    /// There is no other producer on this memory.
    pub unsafe fn new(memory: M) -> Self {
        let capacity = memory.capacity();
        memory.head().store(0, Ordering::Relaxed);
        memory.tail().store(0, Ordering::Release);
        Self { memory, capacity, tail: 0, published: 0, head: 0 }
    }

    /// Its memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// The longest record that is sure to find room one day.
    pub fn max_record(&self) -> usize {
        self.capacity / 2 - HEADER
    }

    /// Puts a record of `len` bytes in, written by `write`, without showing it to the consumer.
    /// False: there is no room for it now.
    #[inline]
    pub fn stage(&mut self, len: usize, write: impl FnOnce(&mut [u8])) -> Result<bool, Corrupt> {
        if len > self.max_record() {
            return Ok(false);
        }
        let at = self.tail as usize & (self.capacity - 1);
        let to_end = self.capacity - at;
        let skipped = if space(len) > to_end { to_end } else { 0 };
        if !self.has_room(skipped + space(len))? {
            return Ok(false);
        }
        let start = if skipped > 0 {
            self.put_header(at, SKIP);
            0
        } else {
            at
        };
        self.put_header(start, len as u32);
        // SAFETY: there is room for header and record between `start` and the end of the memory,
        // and it is held by this half: it is within `capacity` of `head`.
        unsafe { self.memory.fill(start + HEADER, len, write) };
        self.tail = self.tail.wrapping_add((skipped + space(len)) as u32);
        Ok(true)
    }

    /// Shows everything staged to the consumer, with one store.
    #[inline]
    pub fn publish(&mut self) {
        if self.published != self.tail {
            self.memory.tail().store(self.tail, Ordering::Release);
            self.published = self.tail;
        }
    }

    /// How many bytes the consumer has removed so far, modulo 2^32: a producer that waits for
    /// room sees from it whether the consumer does anything.
    pub fn removed(&self) -> u32 {
        self.memory.head().load(Ordering::Relaxed)
    }

    /// Whether the consumer has removed everything that it was shown.
    pub fn is_empty(&self) -> bool {
        self.removed() == self.published
    }

    /// Whether `bytes` more fit.
    #[inline]
    fn has_room(&mut self, bytes: usize) -> Result<bool, Corrupt> {
        let used = distance(self.head, self.tail, self.capacity)?;
        if used + bytes <= self.capacity {
            return Ok(true);
        }
        let head = self.memory.head().load(Ordering::Acquire);
        let used = distance(head, self.tail, self.capacity)?;
        self.head = head;
        Ok(used + bytes <= self.capacity)
    }

    /// Writes a header at `at`, which is a multiple of eight below the capacity and held.
    #[inline]
    fn put_header(&self, at: usize, word: u32) {
        let write = |out: &mut [u8]| out.copy_from_slice(&word.to_ne_bytes());
        // SAFETY: as the caller says; the capacity is a multiple of eight.
        unsafe { self.memory.fill(at, 4, write) };
    }
}

/// The half of a ring of bytes that takes records out, oldest first.
///
/// # Invariant
///
/// `head` is what this half last stored to the shared `head`.
#[derive(Debug)]
pub struct ByteConsumer<M> {
    memory: M,
    capacity: usize,
    head: u32,
    /// Bytes published by the producer, when last looked at.
    tail: u32,
}

impl<M: RingMemory> ByteConsumer<M> {
    /// The consumer of a ring that nothing was taken from yet.
    ///
    /// # Safety
    ///
    /// There is no other consumer on this memory.
    pub unsafe fn new(memory: M) -> Self {
        Self { capacity: memory.capacity(), memory, head: 0, tail: 0 }
    }

    /// Its memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Whether there is nothing to take out.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.memory.tail().load(Ordering::Acquire) == self.head
    }

    /// Whether there is nothing to take out, for a thread that will take it if there is.
    #[inline]
    pub fn is_still_empty(&self) -> bool {
        self.expect();
        self.is_empty()
    }

    /// If there is a record, it comes from the cache of another processor as `tail` does: so both
    /// are on their way at the same time.
    #[inline]
    fn expect(&self) {
        self.memory.expect(self.head as usize & (self.capacity - 1));
    }

    /// Copies the oldest record to the start of `out` and takes it out of the ring; says how long
    /// it is. A record that `out` is too short for is not one of ours.
    #[inline]
    pub fn pop(&mut self, out: &mut [u8]) -> Result<Option<usize>, Corrupt> {
        let mut available = self.available()?;
        if available == 0 {
            return Ok(None);
        }
        let mut at = self.head as usize & (self.capacity - 1);
        let mut len = self.header(at);
        if len == SKIP {
            let to_end = self.capacity - at;
            // Behind a skip there is a record, published with it.
            if available <= to_end || at == 0 {
                return Err(Corrupt);
            }
            available -= to_end;
            self.head = self.head.wrapping_add(to_end as u32);
            at = 0;
            len = self.header(at);
        }
        let len = len as usize;
        // A length near the end of its type must not come around.
        if len > self.capacity || space(len) > available || space(len) > self.capacity - at {
            return Err(Corrupt);
        }
        let out = out.get_mut(..len).ok_or(Corrupt)?;
        // SAFETY: the record lies before the end of the memory and below `tail`, as was checked.
        unsafe { self.memory.copy_out(at + HEADER, out) };
        self.head = self.head.wrapping_add(space(len) as u32);
        self.memory.head().store(self.head, Ordering::Release);
        Ok(Some(len))
    }

    /// Bytes that are published and not removed.
    #[inline]
    fn available(&mut self) -> Result<usize, Corrupt> {
        if self.tail == self.head {
            self.expect();
            self.tail = self.memory.tail().load(Ordering::Acquire);
        }
        distance(self.head, self.tail, self.capacity)
    }

    /// The header at `at`, which is a multiple of eight below the capacity.
    #[inline]
    fn header(&self, at: usize) -> u32 {
        let mut word = [0; 4];
        // SAFETY: the four bytes are below the capacity, which is a multiple of eight, and
        // something was published from here on.
        unsafe { self.memory.copy_out(at, &mut word) };
        u32::from_ne_bytes(word)
    }
}

/// Says that this side goes to sleep. It must look once more, afterwards, whether there is
/// something for it; if not, it will be told by the producer that [`must_wake`] says so to.
#[inline]
pub fn fall_asleep(sleeping: &AtomicU32) {
    sleeping.store(1, Ordering::Relaxed);
    // Pairs with the fence below: either the sleeper sees what was published, or its publisher
    // sees it sleep.
    fence(Ordering::SeqCst);
}

/// Whether the other side must be woken for what was just published. True only once for each time
/// it fell asleep: the thread that gets it does the waking.
#[inline]
pub fn must_wake(sleeping: &AtomicU32) -> bool {
    fence(Ordering::SeqCst);
    sleeping.load(Ordering::Relaxed) != 0 && sleeping.swap(0, Ordering::Relaxed) != 0
}

#[cfg(all(test, not(loom)))]
mod tests;
