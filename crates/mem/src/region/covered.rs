//! Copies that a CRC-32C covers, which protects the FPDUs of iWARP.
//!
//! The CRC is that of the bytes that were copied, even if other threads or processes change the
//! registered memory meanwhile: it is computed from registers, or from the side of the copy that is
//! not registered.

use core::ptr;

use feroce_wire::iwarp::Crc32c;

use super::{Region, last_word, load, store};
use crate::OutOfBounds;

/// Bytes that are copied and then hashed, where that takes two passes: they stay in the first
/// cache.
const BLOCK: usize = 4096;

impl Region {
    /// As [`Region::read_at`], and extends `crc` by what was read.
    pub fn read_covered_at(
        &self,
        offset: usize,
        out: &mut [u8],
        crc: &mut Crc32c,
    ) -> Result<(), OutOfBounds> {
        match self.pointer(offset, out.len())? {
            // SAFETY: `pointer` gave `out.len()` bytes of this region; its invariant holds.
            Some(src) => unsafe { copy_out(src, out, crc) },
            None => {
                out.fill(0);
                crc.update(out);
            }
        }
        Ok(())
    }

    /// As [`Region::write_at`], and extends `crc` by `data`.
    pub fn write_covered_at(
        &self,
        offset: usize,
        data: &[u8],
        crc: &mut Crc32c,
    ) -> Result<(), OutOfBounds> {
        match self.pointer(offset, data.len())? {
            // SAFETY: `pointer` gave `data.len()` bytes of this region; its invariant holds.
            Some(dst) => unsafe { copy_in(dst, data, crc) },
            None => crc.update(data),
        }
        Ok(())
    }
}

/// Copies from `src` to fill `out`, the last aligned word of it first.
///
/// # Safety
///
/// `src` must be valid for reads of `out.len()` bytes that meet the invariant of [`Region`].
unsafe fn copy_out(src: *mut u8, out: &mut [u8], crc: &mut Crc32c) {
    let (head, tail) = out.split_at_mut(out.len() - last_word(src.addr(), out.len()));
    // SAFETY: `tail` is the end of `out`, and `last_word` made its place a multiple of its length.
    unsafe { load(src.wrapping_add(head.len()), tail) };
    // SAFETY: `head` is no longer than `out`.
    let folded = unsafe { fold(src, head.as_mut_ptr(), head.len(), crc) };
    let mut at = folded;
    for block in head[folded..].chunks_mut(BLOCK) {
        // SAFETY: the block is a part of `out`, as `at` and its length say.
        unsafe { ptr::copy(src.wrapping_add(at), block.as_mut_ptr(), block.len()) };
        crc.update(block);
        at += block.len();
    }
    crc.update(tail);
}

/// Copies `data` to `dst`, the last aligned word of it last and in one store.
///
/// # Safety
///
/// `dst` must be valid for writes of `data.len()` bytes that meet the invariant of [`Region`].
unsafe fn copy_in(dst: *mut u8, data: &[u8], crc: &mut Crc32c) {
    let (head, tail) = data.split_at(data.len() - last_word(dst.addr(), data.len()));
    // SAFETY: `head` is no longer than `data`.
    let folded = unsafe { fold(head.as_ptr(), dst, head.len(), crc) };
    let mut at = folded;
    for block in head[folded..].chunks(BLOCK) {
        crc.update(block);
        // SAFETY: the block is a part of `data`, as `at` and its length say.
        unsafe { ptr::copy(block.as_ptr(), dst.wrapping_add(at), block.len()) };
        at += block.len();
    }
    crc.update(tail);
    // SAFETY: `tail` is the rest of `data`; `last_word` made its place a multiple of its length.
    unsafe { store(dst.wrapping_add(head.len()), tail) };
}

/// Copies and hashes in one pass as many of the first `len` bytes as it can. Returns how many.
///
/// # Safety
///
/// `src` is valid for reads and `dst` for writes of `len` bytes. One of them may be registered
/// memory that meets the invariant of [`Region`].
#[cfg(all(target_arch = "x86_64", any(test, feature = "std")))]
#[inline]
unsafe fn fold(src: *const u8, dst: *mut u8, len: usize, crc: &mut Crc32c) -> usize {
    let len = len & !15;
    let Some(way) = super::fold::way().filter(|_| super::fold::takes(len)) else { return 0 };
    // SAFETY: the bytes are valid by contract; the rest was just checked.
    *crc = Crc32c::resume(unsafe { super::fold::copy_crc32c(way, src, dst, len, crc.finish()) });
    len
}

#[cfg(not(all(target_arch = "x86_64", any(test, feature = "std"))))]
unsafe fn fold(_: *const u8, _: *mut u8, _: usize, _: &mut Crc32c) -> usize {
    0
}

#[cfg(test)]
mod tests;
