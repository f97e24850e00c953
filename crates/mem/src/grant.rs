//! The right to touch memory, as a value.

use alloc::sync::Arc;
use core::fmt;
use core::marker::PhantomData;
use core::mem;
use core::sync::atomic::{Ordering, fence};

use feroce_wire::iwarp::Crc32c;

use crate::{
    AccessError, Atomic, Bytewise, CrcPrefix, FetchError, Landing, OutOfBounds, Read, Region,
    Right, Source, Write,
};

/// One registration of a region. The table holds it while the key lives and every grant holds it
/// while it lives, so its reference count says who may still touch the memory on its behalf.
#[derive(Debug)]
pub(crate) struct Registration {
    region: Arc<Region>,
}

impl Registration {
    pub(crate) fn new(region: Arc<Region>) -> Arc<Self> {
        Arc::new(Self { region })
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }
}

/// A checked right to touch a range of registered memory.
///
/// Only [`MrTable`](crate::MrTable) makes grants, after all checks; from there on the right can be
/// divided, copied and dropped but never widened. While a grant lives its memory does too, and
/// deregistration is not quiet ([`Dereg::is_quiet`]); hold grants no longer than the work needs.
///
/// A right to read is not a right to write, and the compiler enforces that:
///
/// ```compile_fail,E0599
/// fn write(grant: feroce_mem::Grant<feroce_mem::Read>) {
///     grant.copy_in(0, b"no");
/// }
/// ```
///
/// Invariants: without a registration the length is 0; otherwise the range lies in the region, and
/// if `R` is [`Atomic`] it is eight bytes at an address that is a multiple of eight.
pub struct Grant<R: Right> {
    registration: Option<Arc<Registration>>,
    /// First byte, counted from the start of the region.
    start: usize,
    len: usize,
    right: PhantomData<R>,
}

impl<R: Right> Grant<R> {
    /// How many bytes may be touched.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no byte may be touched.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The region and the place in it of `len` bytes at `offset` of the grant. `Ok(None)` for
    /// the empty range of an empty grant.
    #[inline]
    fn locate(&self, offset: usize, len: usize) -> Result<Option<(&Region, usize)>, OutOfBounds> {
        if len > self.len || offset > self.len - len {
            return Err(OutOfBounds);
        }
        let start = self.start + offset;
        Ok(self.registration.as_deref().map(|registration| (&*registration.region, start)))
    }
}

impl<R: Bytewise> Grant<R> {
    /// A right to nothing: what an operation of length 0 needs. It holds no region.
    #[inline]
    pub const fn empty() -> Self {
        Self { registration: None, start: 0, len: 0, right: PhantomData }
    }

    /// Where its bytes are in this process: address and length. `None` if they have none. For
    /// code that lets the kernel or another process access them as the right says, and that ends
    /// the access when the right ends.
    pub fn place(&self) -> Option<(u64, usize)> {
        let region = self.registration.as_deref()?.region();
        Some((region.place()?.checked_add(self.start as u64)?, self.len))
    }

    /// Takes the first `n` bytes off, or all there are if they are fewer.
    #[must_use]
    pub fn split_to(&mut self, n: usize) -> Self {
        if n >= self.len {
            return mem::replace(self, Self::empty());
        }
        let head = self.piece(0, n);
        self.start += n;
        self.len -= n;
        head
    }

    /// A right to `len` of the bytes from `offset`; `None` if they are not all in this one.
    pub fn sub(&self, offset: usize, len: usize) -> Option<Self> {
        if len > self.len || offset > self.len - len {
            return None;
        }
        Some(self.piece(offset, len))
    }

    /// The caller has checked the range.
    fn piece(&self, offset: usize, len: usize) -> Self {
        if len == 0 {
            return Self::empty();
        }
        Self {
            registration: self.registration.clone(),
            start: self.start + offset,
            len,
            right: PhantomData,
        }
    }
}

impl Grant<Read> {
    /// Fills `out` from the bytes at `offset`. Two, four or eight bytes at a multiple of their
    /// length are read in one load.
    #[inline]
    pub fn copy_out(&self, offset: usize, out: &mut [u8]) -> Result<(), OutOfBounds> {
        match self.locate(offset, out.len())? {
            Some((region, start)) => region.read_at(start, out),
            None => Ok(()),
        }
    }

    /// As [`Grant::copy_out`], and returns the CRC-32 of the prefix, extended by the
    /// copy. `None`, and nothing is copied, unless that can be done in one pass; see
    /// [`Region::read_hashed_at`].
    #[inline]
    pub fn copy_out_hashed(&self, offset: usize, out: &mut [u8], prefix: CrcPrefix) -> Option<u32> {
        let (region, start) = self.locate(offset, out.len()).ok()??;
        region.read_hashed_at(start, out, prefix)
    }
}

impl Grant<Write> {
    /// Copies `data` to `offset`. The last bytes become visible after all others, so that a
    /// program may wait for the last byte of a message; see [`Region::write_at`].
    #[inline]
    pub fn copy_in(&self, offset: usize, data: &[u8]) -> Result<(), OutOfBounds> {
        match self.locate(offset, data.len())? {
            Some((region, start)) => region.write_at(start, data),
            None => Ok(()),
        }
    }
}

/// Operations on the word, in host byte order; each returns what was there before.
impl Grant<Atomic> {
    /// Adds, wrapping.
    pub fn fetch_add(&self, add: u64) -> u64 {
        self.word(|region, at| region.fetch_add_u64(at, add))
    }

    /// Stores `swap` if the word is `compare`.
    pub fn compare_swap(&self, compare: u64, swap: u64) -> u64 {
        self.word(|region, at| {
            Ok(match region.compare_exchange_u64(at, compare, swap)? {
                Ok(before) | Err(before) => before,
            })
        })
    }

    /// Replaces the word whole, as ATOMIC WRITE does.
    pub fn store(&self, value: u64) {
        self.word(|region, at| region.store_u64(at, value).map(|()| 0));
    }

    fn word(&self, op: impl FnOnce(&Region, usize) -> Result<u64, AccessError>) -> u64 {
        let Some(registration) = &self.registration else {
            return 0;
        };
        let result = op(&registration.region, self.start);
        debug_assert!(result.is_ok(), "an atomic grant is an aligned word of its region");
        result.unwrap_or(0)
    }
}

impl<R: Right> Clone for Grant<R> {
    fn clone(&self) -> Self {
        Self {
            registration: self.registration.clone(),
            start: self.start,
            len: self.len,
            right: PhantomData,
        }
    }
}

impl<R: Right> fmt::Debug for Grant<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant").field("start", &self.start).field("len", &self.len).finish()
    }
}

/// A checked right that is used at once, while the table cannot change.
///
/// It does what a [`Grant`] does without a reference count. On the receiving side, the atomic
/// operation on a count would have to wait until the stores of the bytes just copied have reached
/// the cache.
///
/// The invariants are those of a grant.
#[derive(Debug)]
pub struct Loan<'a, R: Right> {
    registration: Option<&'a Arc<Registration>>,
    start: usize,
    len: usize,
    right: PhantomData<R>,
}

impl<'a, R: Right> Loan<'a, R> {
    /// A right to `len` bytes at `start` of the region. The caller has checked permission and
    /// range; alignment is checked here.
    #[inline]
    pub(crate) fn new(
        registration: &'a Arc<Registration>,
        start: usize,
        len: usize,
    ) -> Result<Self, AccessError> {
        let region = registration.region();
        debug_assert!(len <= region.len() && start <= region.len() - len, "range was checked");
        if R::WORD && (len != 8 || !region.is_aligned(start)) {
            return Err(AccessError::Misaligned);
        }
        Ok(Self { registration: Some(registration), start, len, right: PhantomData })
    }

    /// The right that an operation of length 0 needs: empty, and no error unless a word is needed.
    #[inline]
    pub(crate) fn nothing() -> Result<Self, AccessError> {
        if R::WORD {
            return Err(AccessError::Misaligned);
        }
        Ok(Self { registration: None, start: 0, len: 0, right: PhantomData })
    }

    /// How many bytes it is to.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "no caller needs it")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The same right, to keep while the table changes.
    #[inline]
    pub fn keep(self) -> Grant<R> {
        let registration = self.registration.map(Arc::clone);
        Grant { registration, start: self.start, len: self.len, right: PhantomData }
    }
}

impl Loan<'_, Read> {
    /// Copies from the start; see [`Grant::<Read>::copy_out`].
    #[inline]
    pub fn copy_out(&self, out: &mut [u8]) -> Result<(), OutOfBounds> {
        if out.len() > self.len {
            return Err(OutOfBounds);
        }
        match self.registration {
            Some(registration) => registration.region().read_at(self.start, out),
            None => Ok(()),
        }
    }
}

impl Loan<'_, Read> {
    /// As [`Loan::copy_out`], and extends `crc`; see [`Region::read_covered_at`].
    #[inline]
    pub fn copy_out_covered(&self, out: &mut [u8], crc: &mut Crc32c) -> Result<(), OutOfBounds> {
        if out.len() > self.len {
            return Err(OutOfBounds);
        }
        match self.registration {
            Some(registration) => registration.region().read_covered_at(self.start, out, crc),
            None => Ok(()),
        }
    }

    /// Appends the bytes to a landing, or as many as that has room for.
    #[inline]
    pub fn land(&self, landing: &mut Landing<'_>) -> Result<(), OutOfBounds> {
        match self.registration {
            Some(registration) => registration.region().land(self.start, self.len, landing),
            None => Ok(()),
        }
    }
}

impl Loan<'_, Write> {
    /// Copies `data` to the start; see [`Grant::<Write>::copy_in`].
    #[inline]
    pub fn copy_in(&self, data: &[u8]) -> Result<(), OutOfBounds> {
        if data.len() > self.len {
            return Err(OutOfBounds);
        }
        match self.registration {
            Some(registration) => registration.region().write_at(self.start, data),
            None => Ok(()),
        }
    }

    /// As [`Loan::copy_in`], and extends `crc`; see [`Region::write_covered_at`].
    #[inline]
    pub fn copy_in_covered(&self, data: &[u8], crc: &mut Crc32c) -> Result<(), OutOfBounds> {
        if data.len() > self.len {
            return Err(OutOfBounds);
        }
        match self.registration {
            Some(registration) => registration.region().write_covered_at(self.start, data, crc),
            None => Ok(()),
        }
    }

    /// Copies `len` bytes from `from` of a source to the start; see [`Region::write_from`].
    #[inline]
    pub fn fetch(&self, source: &dyn Source, from: usize, len: usize) -> Result<(), FetchError> {
        if len > self.len {
            return Err(FetchError::OutOfBounds);
        }
        match self.registration {
            Some(registration) => registration.region().write_from(self.start, len, source, from),
            None => Ok(()),
        }
    }
}

/// A registration that has ended: its key matches nothing any more, but grants made before may
/// still be in use. The memory may be given back when it is quiet.
#[must_use = "grants may still be in use; wait until the registration is quiet"]
#[derive(Debug)]
pub struct Dereg {
    registration: Arc<Registration>,
}

impl Dereg {
    /// The table has given up `registration`.
    pub(crate) fn new(registration: Arc<Registration>) -> Self {
        Self { registration }
    }

    /// Whether every grant made from the registration is gone. Once true it stays true.
    pub fn is_quiet(&self) -> bool {
        // Only grants could clone it now, and if this is the only reference there are none.
        let quiet = Arc::strong_count(&self.registration) == 1;
        if quiet {
            // Pairs with the release in the drop of the last grant: its copies happened before.
            fence(Ordering::Acquire);
        }
        quiet
    }

    /// Waits until it is quiet, calling `relax` between looks.
    pub fn wait(self, mut relax: impl FnMut()) {
        while !self.is_quiet() {
            relax();
        }
    }
}

#[cfg(test)]
mod tests;
