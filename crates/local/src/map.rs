//! Mapped files: the only module of this crate that touches memory shared with other processes.
//!
//! Two rules make that sound whatever the other processes do. Only atomic words are accessed in
//! place. All other bytes are copied out before any code examines them, except by the one side of a
//! ring that writes them.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use feroce_mem::{Landing, Region};
use feroce_ring::RingMemory;
use nix::sys::mman::{MRemapFlags, MapFlags, ProtFlags, mmap, mmap_anonymous, mremap, munmap};

use super::guard::{Guard, Watched};

/// Types that consist of atomic words only, in a layout that is the same in every process.
///
/// # Safety
///
/// `repr(C)`, valid for any bytes, and without anything that is not atomic but padding.
pub(super) unsafe trait Atomics {}

/// A mapped file, shared with every process that has mapped it.
///
/// Invariant: `base` points to `len` bytes that stay mapped, readable and writable, while this
/// lives.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: other processes access this memory at any time, so other threads may as well; every
// access is atomic, or unsafe with its own rules.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of a file, which has as many.
    pub(super) fn new(file: impl AsFd, len: NonZeroUsize) -> io::Result<Self> {
        let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: the kernel chooses the address, so the new mapping replaces no other memory.
        let base = unsafe { mmap(None, len, prot, MapFlags::MAP_SHARED, file, 0) }?;
        Ok(Self { base: base.cast(), len: len.get() })
    }

    /// The words at `offset`.
    ///
    /// # Panics
    /// If they are not all in the mapping, or not aligned.
    #[inline]
    pub(super) fn view<T: Atomics>(&self, offset: usize) -> &T {
        let fits = offset <= self.len && size_of::<T>() <= self.len - offset;
        assert!(fits && offset.is_multiple_of(align_of::<T>()), "a view outside of its mapping");
        // SAFETY: `offset` lies in the mapping.
        let at = unsafe { self.base.add(offset) };
        // SAFETY: the mapping is page-aligned, so `at` is aligned for `T`; it has room for one; any
        // bytes are a valid `T`, and its words are atomic, so other processes may change them.
        unsafe { at.cast().as_ref() }
    }
}

/// For memory that peers may map.
impl Mapping {
    /// Its address in this process.
    pub(super) fn address(&self) -> u64 {
        self.base.addr().get() as u64
    }

    /// All of it as a region; `keep` is dropped with the region, while the memory is still mapped.
    pub(super) fn into_region(self, keep: impl Send + Sync + 'static) -> Arc<Region> {
        let (base, len) = (self.base.as_ptr(), self.len);
        // SAFETY: it stays mapped, readable and writable as long as `self` lives, which the region
        // owns, and nothing here makes a reference to it.
        unsafe { Region::from_raw(base, len, Some(Box::new((keep, self)))) }
    }
}

/// A file of another process, mapped for reading.
///
/// Invariant: `base` points to `len` bytes that stay mapped and readable while this lives: either
/// no process can truncate the file, or a guard watches the mapping.
#[derive(Debug)]
pub(super) struct ReadMap {
    base: NonNull<u8>,
    len: usize,
    watched: Watched,
}

// SAFETY: other processes write this memory at any time, so any thread may read it as well.
unsafe impl Send for ReadMap {}

impl ReadMap {
    /// Maps the first `len` bytes of a file, which has as many. A file that may be truncated needs
    /// a guard.
    pub(super) fn new(
        file: File,
        len: NonZeroUsize,
        guard: Option<&'static dyn Guard>,
    ) -> io::Result<Self> {
        let prot = ProtFlags::PROT_READ;
        // SAFETY: the kernel chooses the address, so the new mapping replaces no other memory.
        let base = unsafe { mmap(None, len, prot, MapFlags::MAP_SHARED, &file, 0) }?;
        let watched =
            Watched::new(guard, file, base.addr().get() as u64, len).inspect_err(|_| {
                // SAFETY: it was just mapped, and no other code refers to it.
                let _ = unsafe { munmap(base, len.get()) };
            })?;
        Ok(Self { base: base.cast(), len: len.get(), watched })
    }

    /// Whether the guard has replaced a page, so that not all of the mapping shows the file.
    pub(super) fn is_torn(&self) -> bool {
        self.watched.is_torn()
    }

    /// Appends `len` bytes at `offset` to a landing: zeros for the part that a truncated file no
    /// longer has. False: the bytes are not mapped although the file has them, or the file never
    /// may have had them.
    ///
    /// If the mapping becomes [torn](ReadMap::is_torn) meanwhile, zeros may have been appended for
    /// bytes that the file has. The next call reads the file instead.
    pub(super) fn append(&self, offset: u64, len: usize, landing: &mut Landing<'_>) -> bool {
        let is_mapped = len <= self.len && offset <= (self.len - len) as u64;
        let is_missing = || self.watched.is_shorter_than(offset.saturating_add(len as u64));
        if self.is_torn() || (!is_mapped && is_missing()) {
            let bytes = self.watched.read(offset, len);
            return bytes.is_ok_and(|bytes| {
                landing.put(&bytes);
                true
            });
        }
        let Some(offset) = usize::try_from(offset).ok().filter(|_| is_mapped) else { return false };
        // SAFETY: `offset` lies in the mapping.
        let from = unsafe { self.base.add(offset) };
        // SAFETY: the bytes are mapped. Their owner may change them meanwhile, which is allowed.
        unsafe { landing.put_raw(from.as_ptr(), len) };
        true
    }
}

impl Drop for ReadMap {
    fn drop(&mut self) {
        self.watched.end();
        // SAFETY: it is our mapping, and nothing is borrowed from it.
        let _ = unsafe { munmap(self.base.cast(), self.len) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it is our mapping, and everything borrowed from it is gone.
        let _ = unsafe { munmap(self.base.cast(), self.len) };
    }
}

/// Replaces memory of this process by that of a file, from `offset` on. The bytes stay the same;
/// what another thread writes during the call is lost.
///
/// # Safety
/// `at` points to `len` bytes in whole pages of private memory, which the caller owns. The file has
/// as many bytes.
pub(super) unsafe fn exchange(
    at: *mut u8,
    len: usize,
    file: &File,
    offset: usize,
) -> io::Result<()> {
    let fd = file.as_raw_fd();
    let mut done = 0;
    while done < len {
        let from = at.wrapping_add(done).cast();
        let to = (offset + done) as libc::off_t;
        // SAFETY: the kernel reads bytes that the caller owns.
        let written = unsafe { libc::pwrite(fd, from, len - done, to) };
        done += match usize::try_from(written) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => written,
            Err(_) => return Err(io::Error::last_os_error()),
        };
    }
    let wanted = NonZeroUsize::new(at.addr()).zip(NonZeroUsize::new(len));
    let (addr, len) = wanted.ok_or(io::ErrorKind::InvalidInput)?;
    let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED;
    // SAFETY: the caller owns the replaced pages, and the new ones have the same bytes.
    unsafe { mmap(Some(addr), len, prot, flags, file, offset as libc::off_t) }?;
    Ok(())
}

/// Replaces memory of this process, in a file or not, by private memory with the same bytes. What
/// another thread or process writes during the call is lost.
///
/// # Safety
/// `at` points to `len` bytes in whole pages that can be read and written, which the caller owns.
pub(super) unsafe fn make_private(at: *mut u8, len: usize) -> io::Result<()> {
    let wanted = NonNull::new(at).zip(NonZeroUsize::new(len));
    let (at, all) = wanted.ok_or(io::ErrorKind::InvalidInput)?;
    let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: the kernel chooses the address, so the new mapping replaces no other memory.
    let new = unsafe { mmap_anonymous(None, all, prot, MapFlags::MAP_PRIVATE) }?;
    // SAFETY: both sides have `len` bytes, as the caller says and as was just mapped. Other
    // processes may write to the first meanwhile, which is allowed for.
    unsafe { at.copy_to_nonoverlapping(new.cast(), len) };
    let flags = MRemapFlags::MREMAP_MAYMOVE | MRemapFlags::MREMAP_FIXED;
    // SAFETY: the caller owns the replaced pages, and the new ones have the same bytes.
    unsafe { mremap(new, len, len, flags, Some(at.cast())) }?;
    Ok(())
}

/// The control words in front of the bytes of a ring, on a page of their own.
#[repr(C, align(64))]
#[derive(Debug)]
struct Control {
    head: AtomicU32,
    _apart: [AtomicU32; 31],
    tail: AtomicU32,
    /// The consumer can read the memory of the producer.
    may_send_remote: AtomicU32,
    /// The consumer sleeps, if it does not say so elsewhere.
    sleeping: AtomicU32,
    /// The producer waits for room, if it waits.
    starving: AtomicU32,
}

// SAFETY: atomic words, in `repr(C)`.
unsafe impl Atomics for Control {}

/// Where the bytes of a ring begin in its file.
const RING_START: usize = 4096;

/// The memory of one ring.
#[derive(Debug)]
pub(super) struct RingMap {
    mapping: Mapping,
    capacity: usize,
    /// Open as long as the ring, if its receiver opens it through this descriptor.
    _file: Option<File>,
}

impl RingMap {
    /// Length of the file of a ring with this capacity.
    pub(super) const fn file_len(capacity: usize) -> usize {
        RING_START + capacity
    }

    /// Maps a ring with this capacity, a power of two, from a file of [`RingMap::file_len`].
    pub(super) fn new(file: impl AsFd, capacity: usize) -> io::Result<Self> {
        let is_good =
            capacity.is_power_of_two() && (16..=feroce_ring::MAX_BYTES).contains(&capacity);
        let len = NonZeroUsize::new(Self::file_len(capacity)).filter(|_| is_good);
        let mapping = Mapping::new(file, len.ok_or(io::ErrorKind::InvalidInput)?)?;
        Ok(Self { mapping, capacity, _file: None })
    }

    /// Keeps the file open as long as the ring.
    pub(super) fn keeping(mut self, file: File) -> Self {
        self._file = Some(file);
        self
    }

    /// Whether the consumer can read the memory of the producer, as the consumer has published.
    pub(super) fn may_send_remote(&self) -> bool {
        self.control().may_send_remote.load(Ordering::Relaxed) != 0
    }

    /// Publishes whether the consumer can read the memory of the producer.
    pub(super) fn set_may_send_remote(&self, may: bool) {
        self.control().may_send_remote.store(may.into(), Ordering::Relaxed);
    }

    /// Where the consumer of a [`PortRings`](crate::PortRings) says that it sleeps.
    pub(super) fn sleeping(&self) -> &AtomicU32 {
        &self.control().sleeping
    }

    /// Where its producer says that it waits for room.
    pub(super) fn starving(&self) -> &AtomicU32 {
        &self.control().starving
    }

    fn control(&self) -> &Control {
        self.mapping.view(0)
    }
}

// SAFETY: the capacity never changes and was checked when this was made; the bytes follow the
// control words.
unsafe impl RingMemory for RingMap {
    #[inline]
    fn head(&self) -> &AtomicU32 {
        &self.control().head
    }

    #[inline]
    fn tail(&self) -> &AtomicU32 {
        &self.control().tail
    }

    #[inline]
    fn capacity(&self) -> usize {
        self.capacity
    }

    #[inline]
    unsafe fn fill(&self, at: usize, len: usize, write: impl FnOnce(&mut [u8])) {
        // SAFETY: the bytes lie within the capacity, so in the mapping.
        let start = unsafe { self.mapping.base.add(RING_START + at) };
        // SAFETY: the caller owns these bytes, so a consumer that follows the protocol does not
        // touch them. A consumer that does not is a process of the same user; it can only make this
        // process send it other bytes than intended, because no code here decides by what it reads
        // back.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) };
        write(bytes);
    }

    #[inline]
    unsafe fn copy_out(&self, at: usize, out: &mut [u8]) {
        // SAFETY: the bytes lie within the capacity, so in the mapping.
        let start = unsafe { self.mapping.base.add(RING_START + at) };
        // SAFETY: both sides are as long as `out`, which no other code can access. A producer that
        // breaks the protocol may write meanwhile; then the copy has arbitrary bytes, which is
        // allowed for.
        unsafe { start.as_ptr().copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) };
    }

    #[inline]
    fn expect(&self, at: usize) {
        #[cfg(target_arch = "x86_64")]
        for at in [at, at + 64] {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let line = self.mapping.base.as_ptr().wrapping_add(RING_START + at);
            // SAFETY: a prefetch is a hint; it accesses no memory, whatever the address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }
}
