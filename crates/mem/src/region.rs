//! Ranges of memory. All `unsafe` code of the crate is here and in the copies that hash.
#![allow(unsafe_code, reason = "the one audited module: everything else in the crate is safe")]

use alloc::alloc::{Layout, alloc_zeroed, dealloc};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::ptr;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

mod covered;
#[cfg(all(target_arch = "x86_64", any(test, feature = "std")))]
mod fold;

use crate::{AccessError, FetchError, OutOfBounds, OutOfMemory};

/// Alignment of memory that a region allocates.
const PAGE: usize = 4096;

/// A range of memory that may be registered.
///
/// # Memory model
///
/// Registered memory is shared memory: a peer, other threads and, for raw regions, code in other
/// languages may change it at any moment. So no Rust reference to its bytes is ever made, other
/// than to atomics: bytes are copied in and out through raw pointers, words are loaded, stored and
/// operated on as [`AtomicU64`] and its smaller kin. Accesses that race give what hardware gives,
/// a mix of old and new bytes; they never break a promise that a reference makes to the compiler.
/// What holds even when they race:
///
/// * One, two, four or eight bytes at a multiple of their length move whole, in one load (acquire)
///   or one store (release).
/// * In a longer copy in, the last byte is stored after all the others, with release ordering,
///   in one word with as many before it as alignment allows (eight bytes in all at most). In a
///   longer copy out, that word is loaded first, with acquire ordering: a reader that sees the
///   last byte of what one copy wrote sees all of it.
/// * The `u64` operations are atomic, towards each other and towards the words above.
///
/// The bulk of a longer copy is `memmove`, because copying with atomics costs a large part of
/// memory bandwidth. Rust's memory model has no name yet for such a copy racing with a write, nor
/// for atomics of different sizes that overlap; like all code that shares memory with a device or
/// another process, we rely on the compiler not seeing both sides and on the hardware having no
/// undefined behaviour. Programs that need whole values order their accesses with completions, or
/// with a flag as above.
///
/// # Invariant
///
/// Unless the region is null, `base` is an address with exposed provenance over `len` bytes (or,
/// for a raw region, over those of them that are touched) which stay valid for reads and writes
/// from any thread as long as the region lives, and which no Rust reference in use overlaps.
///
/// ```
/// # use feroce_mem::Region;
/// let region = Region::alloc(4096)?;
/// region.store_u64(8, 41)?;
/// assert_eq!(region.fetch_add_u64(8, 1)?, 41);
/// let mut bytes = [0; 8];
/// region.read_at(8, &mut bytes)?;
/// assert_eq!(u64::from_ne_bytes(bytes), 42);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Region {
    base: usize,
    len: usize,
    kind: Kind,
}

/// Has a tag of its own, because every access checks whether there is memory.
#[repr(u8)]
enum Kind {
    /// Allocated here: the address and layout to free.
    Owned(usize, Layout),
    /// Memory of another owner, whose guard is dropped with the region.
    Raw(#[expect(dead_code, reason = "held only to be dropped")] Option<Box<dyn Send + Sync>>),
    /// No memory at all.
    Null,
}

impl Region {
    /// Allocates `len` zeroed bytes, aligned to pages.
    ///
    /// Pages are not touched, so that a large region costs memory only as it is used.
    pub fn alloc(len: usize) -> Result<Arc<Self>, OutOfMemory> {
        // Over-allocating and aligning by hand keeps the allocator on its lazily zeroed path;
        // asked for page alignment it would write every byte.
        let size = len.checked_add(PAGE).ok_or(OutOfMemory)?;
        let layout = Layout::from_size_align(size, 16).map_err(|_| OutOfMemory)?;
        // SAFETY: the layout has a size of at least PAGE, which is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            return Err(OutOfMemory);
        }
        let start = start.expose_provenance();
        // Skips less than PAGE bytes, so that `len` remain.
        let base = start.next_multiple_of(PAGE);
        Ok(Arc::new(Self { base, len, kind: Kind::Owned(start, layout) }))
    }

    /// Memory that the caller owns. `keep` is dropped with the region.
    ///
    /// A null `ptr` and a length of `usize::MAX` name the whole address space.
    ///
    /// # Safety
    ///
    /// The range must not pass the end of the address space. While the region lives, which is
    /// until the last [`Arc`] of it, the last registration and the last grant are gone, every byte
    /// of it that is touched must be valid for reads and writes from any thread, and no Rust
    /// reference to it may be in use, other than to atomics. Bytes are touched by operations on
    /// keys for the region, whether local or remote, and by the methods of the region. If not all
    /// of the range is valid, the caller must ensure that holders of the keys and of the region
    /// name valid bytes only.
    pub unsafe fn from_raw(
        ptr: *mut u8,
        len: usize,
        keep: Option<Box<dyn Send + Sync>>,
    ) -> Arc<Self> {
        Arc::new(Self { base: ptr.expose_provenance(), len, kind: Kind::Raw(keep) })
    }

    /// No memory, at every address: reads give zeros, writes vanish, atomics return 0.
    #[doc(alias = "ibv_alloc_null_mr")]
    pub fn null() -> Arc<Self> {
        Arc::new(Self { base: 0, len: usize::MAX, kind: Kind::Null })
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte: where a key for it starts unless told otherwise.
    #[inline]
    pub fn addr(&self) -> u64 {
        self.base as u64
    }

    /// Where its bytes are in this process; a null region has none.
    pub(crate) fn place(&self) -> Option<u64> {
        (!matches!(self.kind, Kind::Null)).then(|| self.addr())
    }

    /// Whether the byte at `offset` starts an aligned 64-bit word.
    #[inline]
    pub(crate) fn is_aligned(&self, offset: usize) -> bool {
        self.base.wrapping_add(offset).is_multiple_of(8)
    }

    /// Fills `out` from the bytes at `offset`.
    #[inline]
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), OutOfBounds> {
        match self.pointer(offset, out.len())? {
            // SAFETY: `pointer` gave `out.len()` bytes of this region; its invariant holds.
            Some(src) => unsafe { copy_out(src, out) },
            None => out.fill(0),
        }
        Ok(())
    }

    /// As [`Region::read_at`], and returns the CRC-32 of the prefix, extended by what was
    /// read. `None`, and nothing is read, unless that can be done in one pass: it takes a processor
    /// that can, and at least 512 bytes, a multiple of 16, that end at a multiple of eight.
    #[inline]
    pub fn read_hashed_at(&self, offset: usize, out: &mut [u8], prefix: CrcPrefix) -> Option<u32> {
        let src = self.pointer(offset, out.len()).ok()??;
        // SAFETY: `pointer` gave `out.len()` bytes of this region; its invariant holds.
        unsafe { copy_out_hashed(src, out, prefix) }
    }

    /// Copies `data` to `offset`. The last byte is stored last; see the memory model above.
    #[inline]
    pub fn write_at(&self, offset: usize, data: &[u8]) -> Result<(), OutOfBounds> {
        if let Some(dst) = self.pointer(offset, data.len())? {
            // SAFETY: `pointer` gave `data.len()` bytes of this region; its invariant holds.
            unsafe { copy_in(dst, data) };
        }
        Ok(())
    }

    /// Fills `len` bytes at `offset` from the bytes at `from` of a source. The last byte is stored
    /// last, as by [`Region::write_at`], and only if the source had all of them.
    #[inline]
    pub fn write_from(
        &self,
        offset: usize,
        len: usize,
        source: &dyn Source,
        from: usize,
    ) -> Result<(), FetchError> {
        let Some(dst) = self.pointer(offset, len)? else { return Ok(()) };
        if let Some(bytes) = source.bytes() {
            let bytes = from.checked_add(len).and_then(|end| bytes.get(from..end));
            let bytes = bytes.ok_or(FetchError::Gone)?;
            // SAFETY: `pointer` gave `len` bytes of this region; its invariant holds.
            unsafe { copy_in(dst, bytes) };
            return Ok(());
        }
        // SAFETY: `pointer` gave `len` bytes of this region; its invariant holds.
        unsafe { fetch_to(dst, len, source, from) }
    }

    /// Appends `len` bytes at `offset` to a landing, or as many as that has room for.
    pub fn land(
        &self,
        offset: usize,
        len: usize,
        landing: &mut Landing<'_>,
    ) -> Result<(), OutOfBounds> {
        match self.pointer(offset, len)? {
            // SAFETY: `pointer` gave `len` bytes of this region; its invariant holds.
            Some(src) => unsafe { landing.put_raw(src, len) },
            None => landing.put_zeros(len),
        }
        Ok(())
    }

    /// Reads the word at `offset`, with acquire ordering.
    pub fn load_u64(&self, offset: usize) -> Result<u64, AccessError> {
        Ok(self.word(offset)?.map_or(0, |word| word.load(Ordering::Acquire)))
    }

    /// Writes the word at `offset`, with release ordering.
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<(), AccessError> {
        if let Some(word) = self.word(offset)? {
            word.store(value, Ordering::Release);
        }
        Ok(())
    }

    /// Adds to the word at `offset`, wrapping, and returns what was there before.
    pub fn fetch_add_u64(&self, offset: usize, add: u64) -> Result<u64, AccessError> {
        Ok(self.word(offset)?.map_or(0, |word| word.fetch_add(add, Ordering::AcqRel)))
    }

    /// Stores `new` in the word at `offset` if it is `current`. Gives what was there before, as
    /// `Ok` if the store was made and `Err` if not. A null region takes every store.
    pub fn compare_exchange_u64(
        &self,
        offset: usize,
        current: u64,
        new: u64,
    ) -> Result<Result<u64, u64>, AccessError> {
        Ok(match self.word(offset)? {
            Some(word) => word.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire),
            None => Ok(0),
        })
    }

    /// Where `len` bytes at `offset` are, if they are all in the region; `Ok(None)` if the region
    /// is null or `len` is 0.
    #[inline]
    fn pointer(&self, offset: usize, len: usize) -> Result<Option<*mut u8>, OutOfBounds> {
        if len > self.len || offset > self.len - len {
            return Err(OutOfBounds);
        }
        if len == 0 || matches!(self.kind, Kind::Null) {
            return Ok(None);
        }
        Ok(Some(ptr::with_exposed_provenance_mut(self.base + offset)))
    }

    fn word(&self, offset: usize) -> Result<Option<&AtomicU64>, AccessError> {
        let pointer = self.pointer(offset, 8)?;
        if !self.is_aligned(offset) {
            return Err(AccessError::Misaligned);
        }
        let Some(pointer) = pointer else {
            return Ok(None);
        };
        // SAFETY: aligned as just checked, and eight bytes of this region, whose invariant holds
        // for as long as `self` is borrowed.
        Ok(Some(unsafe { AtomicU64::from_ptr(pointer.cast()) }))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Kind::Owned(start, layout) = self.kind {
            let start = ptr::with_exposed_provenance_mut(start);
            // SAFETY: `alloc` got this address with this layout, and this is the only place that
            // frees it.
            unsafe { dealloc(start, layout) };
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Owned(..) => "owned",
            Kind::Raw(_) => "raw",
            Kind::Null => "null",
        };
        write!(f, "Region({kind}, {:#x} + {:#x})", self.base, self.len)
    }
}

/// Bytes that are elsewhere, say in another process, and can be copied to a region in one go.
pub trait Source: fmt::Debug {
    /// All of the bytes, if they are at hand in memory that no other thread changes: then they need
    /// no landing.
    fn bytes(&self) -> Option<&[u8]> {
        None
    }

    /// Fills all of `landing` with the bytes from `offset` on. False: they cannot be had, or were
    /// no longer the source's to give while they were copied.
    fn fetch(&self, offset: usize, landing: &mut Landing<'_>) -> bool;
}

/// What precedes the bytes of a hashed copy: a CRC-32, and bytes that it does not cover yet.
///
/// The hash works on lanes of 16 bytes. The CRC takes 4 of the lane before the copy, so the other
/// 12 cost nothing if they are passed here instead of being hashed by themselves.
#[derive(Clone, Copy, Debug)]
pub struct CrcPrefix {
    /// The CRC-32 of everything before `bytes`.
    pub crc: u32,
    /// The bytes right before the copy.
    pub bytes: [u8; 12],
}

/// Where the bytes of a [`Source`] go: a part of a region, but for its last word, which comes
/// later.
///
/// Invariant: `head` leads to `head_len` bytes of a region that is borrowed meanwhile.
pub struct Landing<'a> {
    head: *mut u8,
    head_len: usize,
    tail: &'a mut [u8],
    /// Bytes that [`Landing::put`] wrote.
    filled: usize,
}

impl Landing<'_> {
    /// How many bytes it takes.
    pub fn len(&self) -> usize {
        self.head_len + self.tail.len()
    }

    /// Whether it takes none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends bytes, as many as there is room for.
    pub fn put(&mut self, bytes: &[u8]) {
        // SAFETY: a slice is as many readable bytes as it has.
        unsafe { self.put_raw(bytes.as_ptr(), bytes.len()) };
    }

    /// Appends `len` bytes from `from` on, or as many as there is room for.
    ///
    /// # Safety
    ///
    /// They are readable. Others may change them meanwhile; see the memory model of [`Region`].
    pub unsafe fn put_raw(&mut self, from: *const u8, len: usize) {
        let len = len.min(self.len() - self.filled);
        let in_head = self.head_len.saturating_sub(self.filled).min(len);
        // SAFETY: the caller says that they are readable; `filled` and `in_head` together are at
        // most `head_len`, by the invariant.
        unsafe { ptr::copy(from, self.head.wrapping_add(self.filled), in_head) };
        self.filled += in_head;
        let in_tail = len - in_head;
        let place = &mut self.tail[self.filled - self.head_len.min(self.filled)..][..in_tail];
        // SAFETY: as above; the slice has room for them.
        unsafe { ptr::copy(from.wrapping_add(in_head), place.as_mut_ptr(), in_tail) };
        self.filled += in_tail;
    }

    /// Forgets what was appended: the next bytes go to the beginning again.
    pub fn restart(&mut self) {
        self.filled = 0;
    }

    /// Appends zeros, as many as there is room for.
    fn put_zeros(&mut self, mut len: usize) {
        const ZEROS: [u8; 256] = [0; 256];
        while len > 0 && self.filled < self.len() {
            let some = len.min(ZEROS.len());
            self.put(&ZEROS[..some]);
            len -= some;
        }
    }

    /// The two pieces, as addresses and lengths, for a system call that writes to both at once. The
    /// caller may write to these bytes while the landing is borrowed, and to no others.
    pub fn pieces(&mut self) -> [(*mut u8, usize); 2] {
        [(self.head, self.head_len), (self.tail.as_mut_ptr(), self.tail.len())]
    }
}

impl fmt::Debug for Landing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Landing({} bytes)", self.len())
    }
}

/// Fills `len` bytes at `dst` from the bytes at `from` of a source, the last aligned word of them
/// last and in one store. Out of line, to keep the code for bytes at hand short.
///
/// # Safety
///
/// As for [`copy_in`].
#[inline(never)]
unsafe fn fetch_to(
    dst: *mut u8,
    len: usize,
    source: &dyn Source,
    from: usize,
) -> Result<(), FetchError> {
    let (mut word, last) = ([0; 8], last_word(dst.addr(), len));
    let tail = &mut word[..last];
    // The landing writes to these bytes alone: the caller says that they may be written.
    let mut landing = Landing { head: dst, head_len: len - last, tail, filled: 0 };
    if !source.fetch(from, &mut landing) {
        return Err(FetchError::Gone);
    }
    // SAFETY: `last_word` made the place of the last word a multiple of its length, and it is the
    // end of the bytes that the caller has given.
    unsafe { store(dst.wrapping_add(len - last), &word[..last]) };
    Ok(())
}

/// Copies `data` to `dst`, the last aligned word of it last and in one store.
///
/// # Safety
///
/// `dst` must be valid for writes of `data.len()` bytes that meet the invariant of [`Region`].
#[inline]
unsafe fn copy_in(dst: *mut u8, data: &[u8]) {
    if data.len() == 8 && dst.addr().is_multiple_of(8) {
        // SAFETY: eight valid bytes at a multiple of eight, by contract.
        return unsafe { store(dst, data) };
    }
    let tail = last_word(dst.addr(), data.len());
    let (head, tail) = data.split_at(data.len() - tail);
    if !head.is_empty() {
        // SAFETY: `head` is no longer than `data`.
        unsafe { ptr::copy(head.as_ptr(), dst, head.len()) };
    }
    let dst = dst.wrapping_add(head.len());
    // The store releases the copy above to a thread that acquires the word.
    // SAFETY: `tail` is the rest of `data`, and `last_word` made `dst` a multiple of its length.
    unsafe { store(dst, tail) };
}

/// How many bytes before the end of `len` bytes at `addr` make one naturally aligned word.
#[inline]
fn last_word(addr: usize, len: usize) -> usize {
    let end = addr.wrapping_add(len);
    if len >= 8 && end.is_multiple_of(8) {
        8
    } else if len >= 4 && end.is_multiple_of(4) {
        4
    } else if len >= 2 && end.is_multiple_of(2) {
        2
    } else {
        len.min(1)
    }
}

/// Stores one word of 1, 2, 4 or 8 bytes, or nothing if `word` is empty.
///
/// # Safety
///
/// `dst` must be a multiple of `word.len()` and valid for writes of as many bytes that meet the
/// invariant of [`Region`].
#[inline]
unsafe fn store(dst: *mut u8, word: &[u8]) {
    if let Ok(bytes) = <[u8; 8]>::try_from(word) {
        // SAFETY: eight valid bytes at a multiple of eight, by contract.
        let cell = unsafe { AtomicU64::from_ptr(dst.cast()) };
        cell.store(u64::from_ne_bytes(bytes), Ordering::Release);
    } else if let Ok(bytes) = <[u8; 4]>::try_from(word) {
        // SAFETY: four valid bytes at a multiple of four, by contract.
        let cell = unsafe { AtomicU32::from_ptr(dst.cast()) };
        cell.store(u32::from_ne_bytes(bytes), Ordering::Release);
    } else if let Ok(bytes) = <[u8; 2]>::try_from(word) {
        // SAFETY: two valid bytes at a multiple of two, by contract.
        let cell = unsafe { AtomicU16::from_ptr(dst.cast()) };
        cell.store(u16::from_ne_bytes(bytes), Ordering::Release);
    } else if let [byte] = *word {
        // SAFETY: one valid byte, by contract.
        let cell = unsafe { AtomicU8::from_ptr(dst) };
        cell.store(byte, Ordering::Release);
    }
}

/// Copies from `src` to fill `out`, the last aligned word of it first and in one load: a reader
/// that sees the end of what [`copy_in`] wrote also sees the rest.
///
/// # Safety
///
/// `src` must be valid for reads of `out.len()` bytes that meet the invariant of [`Region`].
#[inline]
unsafe fn copy_out(src: *mut u8, out: &mut [u8]) {
    if out.len() == 8 && src.addr().is_multiple_of(8) {
        // SAFETY: eight valid bytes at a multiple of eight, by contract.
        return unsafe { load(src, out) };
    }
    let tail = last_word(src.addr(), out.len());
    let (head, tail) = out.split_at_mut(out.len() - tail);
    let end = src.wrapping_add(head.len());
    // SAFETY: `tail` is the end of `out`, and `last_word` made `end` a multiple of its length.
    unsafe { load(end, tail) };
    if !head.is_empty() {
        // SAFETY: `head` is no longer than `out`.
        unsafe { ptr::copy(src, head.as_mut_ptr(), head.len()) };
    }
}

/// As [`copy_out`], and returns the CRC-32 of the prefix, extended by it; `None`,
/// and nothing is copied, where that takes more than one pass.
///
/// # Safety
///
/// As for [`copy_out`].
#[cfg(all(target_arch = "x86_64", any(test, feature = "std")))]
#[inline]
unsafe fn copy_out_hashed(src: *mut u8, out: &mut [u8], prefix: CrcPrefix) -> Option<u32> {
    let len = out.len();
    if !fold::takes(len) || last_word(src.addr(), len) != 8 {
        return None;
    }
    let way = fold::way()?;
    let mut last = [0; 8];
    // SAFETY: these are the last eight bytes, and `last_word` says that they are aligned.
    unsafe { load(src.wrapping_add(len - 8), &mut last) };
    // SAFETY: the bytes are valid by contract; the rest was just checked.
    Some(unsafe { fold::copy_out(way, src, out, u64::from_ne_bytes(last), prefix) })
}

#[cfg(not(all(target_arch = "x86_64", any(test, feature = "std"))))]
unsafe fn copy_out_hashed(_: *mut u8, _: &mut [u8], _: CrcPrefix) -> Option<u32> {
    None
}

/// Loads one word of 1, 2, 4 or 8 bytes, or nothing if `word` is empty.
///
/// # Safety
///
/// `src` must be a multiple of `word.len()` and valid for reads of as many bytes that meet the
/// invariant of [`Region`].
#[inline]
unsafe fn load(src: *mut u8, word: &mut [u8]) {
    match word.len() {
        8 => {
            // SAFETY: eight valid bytes at a multiple of eight, by contract.
            let cell = unsafe { AtomicU64::from_ptr(src.cast()) };
            word.copy_from_slice(&cell.load(Ordering::Acquire).to_ne_bytes());
        }
        4 => {
            // SAFETY: four valid bytes at a multiple of four, by contract.
            let cell = unsafe { AtomicU32::from_ptr(src.cast()) };
            word.copy_from_slice(&cell.load(Ordering::Acquire).to_ne_bytes());
        }
        2 => {
            // SAFETY: two valid bytes at a multiple of two, by contract.
            let cell = unsafe { AtomicU16::from_ptr(src.cast()) };
            word.copy_from_slice(&cell.load(Ordering::Acquire).to_ne_bytes());
        }
        1 => {
            // SAFETY: one valid byte, by contract.
            let cell = unsafe { AtomicU8::from_ptr(src) };
            word.copy_from_slice(&[cell.load(Ordering::Acquire)]);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
