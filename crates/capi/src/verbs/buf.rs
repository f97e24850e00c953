//! Buffers that the library allocates for the program, and hints for direct memory access, both of
//! the newest releases of rdma-core.
//!
//! An adapter in software has no memory of its own kind, so a buffer is whole pages of ordinary
//! memory. Nor does it send hints over a bus: a handle for them is accepted and has no effect.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::mem::zeroed;
use core::ptr;

use super::object::Object;
use crate::abi::*;
use crate::errno::{Errno, code, pointer};
use crate::memory;

/// A buffer. The program has an opaque pointer to it, and sees none of its fields.
pub(crate) struct Buf {
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
}

impl Buf {
    /// The buffer behind the pointer of the program.
    ///
    /// # Safety
    /// `opaque` is a buffer of [`ibv_alloc_buf`] that is not freed for `'a`.
    pub(crate) unsafe fn of<'a>(opaque: *mut ibv_buf) -> &'a Self {
        // SAFETY: by this function's contract, `ibv_alloc_buf` has leaked a `Buf` there, of which
        // only shared references are made until it is freed.
        unsafe { &*opaque.cast::<Self>() }
    }

    /// Whether a range is in the buffer, which belongs to this domain.
    pub(crate) fn has(&self, pd: *mut ibv_pd, addr: *mut c_void, len: usize) -> bool {
        let offset = addr.addr().checked_sub(self.addr.addr());
        let end = offset.and_then(|offset| offset.checked_add(len));
        self.pd == pd && end.is_some_and(|end| end <= self.len)
    }
}

pub(crate) unsafe extern "C" fn ibv_alloc_buf(
    pd: *mut ibv_pd,
    len: usize,
    place: *mut *mut ibv_buf,
) -> *mut c_void {
    if len == 0 {
        return pointer(Err(Errno::INVALID));
    }
    if let Err(errno) = memory::admit() {
        return pointer(Err(errno));
    }
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: mmap(2) of new memory at an address that the kernel chooses has no preconditions.
    let addr = unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, -1, 0) };
    if addr == libc::MAP_FAILED {
        return pointer(Err(Errno::last()));
    }
    let made = Box::into_raw(Box::new(Buf { pd, addr, len }));
    // SAFETY: ibv_alloc_buf(3): `place` points to room for the handle.
    unsafe { *place = made.cast() };
    addr
}

pub(crate) unsafe extern "C" fn ibv_free_buf(public: *mut ibv_buf) {
    // SAFETY: ibv_free_buf(3): `public` is a live buffer, which the program does not use after this
    // call.
    let buf = unsafe { Box::from_raw(public.cast::<Buf>()) };
    // SAFETY: the memory was mapped with this length, and the program does not use it any more.
    unsafe { libc::munmap(buf.addr, buf.len) };
}

/// A handle for hints.
#[repr(C)]
pub(crate) struct Dmah {
    public: UnsafeCell<ibv_dmah>,
}

// SAFETY: the type is `repr(C)`, and its first field is the `UnsafeCell` of the public part.
unsafe impl Object for Dmah {
    type C = ibv_dmah;
}

/// All hints that there are.
const HINTS: u32 = IBV_DMAH_INIT_ATTR_MASK_CPU_ID
    | IBV_DMAH_INIT_ATTR_MASK_PH
    | IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE;

pub(crate) unsafe extern "C" fn ibv_alloc_dmah(
    context: *mut ibv_context,
    attr: *mut ibv_dmah_init_attr,
) -> *mut ibv_dmah {
    // SAFETY: ibv_alloc_dmah(3): `attr` points to attributes.
    let attr = unsafe { attr.read() };
    let make = |()| Dmah { public: UnsafeCell::new(ibv_dmah { context }) }.give();
    pointer(check_hints(&attr).and_then(|()| memory::admit()).map(make))
}

/// The two bits of a processing hint that PCI Express defines.
const PROCESSING_HINTS: u8 = 0x3;

/// Refuses hints that the kernel refuses; the adapter itself needs none.
fn check_hints(attr: &ibv_dmah_init_attr) -> Result<(), Errno> {
    let has = |hint| attr.comp_mask & hint != 0;
    if attr.comp_mask & !HINTS != 0 {
        return Err(Errno::UNSUPPORTED);
    }
    if has(IBV_DMAH_INIT_ATTR_MASK_CPU_ID) && !is_allowed(attr.cpu_id) {
        return Err(Errno(libc::EPERM));
    }
    let bad_type = u32::from(attr.tph_mem_type) > IBV_TPH_MEM_TYPE_PM;
    let bad_hint = attr.ph & !PROCESSING_HINTS != 0;
    if has(IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE) && bad_type
        || has(IBV_DMAH_INIT_ATTR_MASK_PH) && bad_hint
    {
        return Err(Errno::INVALID);
    }
    Ok(())
}

/// Whether this thread may run on a processor.
fn is_allowed(cpu: u32) -> bool {
    // SAFETY: the structure is an array of integers, for which zero is a value.
    let mut set: libc::cpu_set_t = unsafe { zeroed() };
    // SAFETY: sched_getaffinity(2) writes at most this many bytes to the set.
    let status = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    let cpu = cpu as usize;
    // SAFETY: the number is less than that of the bits in the set.
    status == 0 && cpu < 8 * size_of_val(&set) && unsafe { libc::CPU_ISSET(cpu, &set) }
}

pub(crate) unsafe extern "C" fn ibv_dealloc_dmah(public: *mut ibv_dmah) -> c_int {
    // SAFETY: ibv_dealloc_dmah(3): `public` is a live handle, which the program does not use after
    // this call.
    drop(unsafe { Dmah::take(public) });
    code(Ok(()))
}
