//! Memory that is known by a descriptor.

use core::ffi::{c_int, c_void};
use core::ptr;
use std::sync::Arc;

use feroce::{Iova, Region};

use super::mr::{self, Mr};
use super::object::Object;
use super::pd::Pd;
use crate::abi::*;
use crate::errno::{Errno, pointer};
use crate::memory;

/// Memory that was mapped, until it is dropped.
struct Mapping {
    start: *mut c_void,
    len: usize,
}

// SAFETY: munmap(2) may be called in any thread, and only `drop` calls it.
unsafe impl Send for Mapping {}
// SAFETY: no method takes a shared reference.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `map` mapped this range, and the region that used it is gone.
        unsafe { libc::munmap(self.start, self.len) };
    }
}

/// Maps `len` bytes at `offset`, and says where in the region they begin.
fn map(fd: c_int, offset: u64, len: usize) -> Result<(Arc<Region>, usize), Errno> {
    let before = (offset % 4096) as usize;
    let all = len.checked_add(before).filter(|_| len > 0).ok_or(Errno::UNSUPPORTED)?;
    let page = i64::try_from(offset - before as u64).map_err(|_| Errno::INVALID)?;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: mmap(2) without an address places the mapping where nothing else is, and refuses what
    // it cannot map.
    let start = unsafe { libc::mmap(ptr::null_mut(), all, rights, libc::MAP_SHARED, fd, page) };
    if start == libc::MAP_FAILED {
        return Err(Errno::UNSUPPORTED);
    }
    let mapping = Box::new(Mapping { start, len: all });
    // SAFETY: the memory stays mapped until the region drops `mapping`, and no Rust reference to it
    // exists.
    Ok((unsafe { Region::from_raw(start.cast(), all, Some(mapping)) }, before))
}

/// Registers memory that a descriptor leads to, if processes can map it: memory of accelerators
/// mostly cannot be. Descriptor -1 is how programs ask whether there is a point in trying.
pub(crate) unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: ibv_reg_dmabuf_mr(3): `pd` is a live protection domain.
    let behind = unsafe { Pd::of(pd) };
    pointer(mr::access(access.cast_unsigned()).and_then(|access| {
        memory::admit()?;
        let (region, start) = map(fd, offset, length)?;
        let part = start..start + length;
        let iova = Iova::At(iova);
        let mr = behind.pd.register_part(region, part, iova, access)?;
        Ok(Mr::publish(mr, pd, ptr::null_mut(), access))
    }))
}
