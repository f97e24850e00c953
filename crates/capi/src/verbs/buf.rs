//! Buffers that the library allocates for the program, and hints for direct memory access, both of
//! the newest releases of rdma-core.
//!
//! An adapter in software has no memory of its own kind, so a buffer is whole pages of ordinary
//! memory. Nor does it send hints over a bus: a handle for them is accepted and has no effect.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::ptr;

use super::mr::ibv_reg_mr_ex;
use super::object::Object;
use crate::abi::*;
use crate::errno::{Errno, code, pointer};

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

pub(crate) unsafe extern "C" fn ibv_reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let comp_mask = u64::from(IBV_REG_MR_MASK_BUF | IBV_REG_MR_MASK_ADDR);
    let (iova, fd, fd_offset, dmah) = (0, -1, 0, ptr::null_mut());
    let mut attr =
        ibv_mr_init_attr { length, access, comp_mask, iova, addr, fd, fd_offset, dmah, buf };
    // SAFETY: ibv_reg_buf_mr(3): `pd` is a live protection domain and `buf` a live buffer.
    unsafe { ibv_reg_mr_ex(pd, &raw mut attr) }
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
    let mask = unsafe { (*attr).comp_mask };
    if mask & !HINTS != 0 {
        return pointer(Err(Errno::UNSUPPORTED));
    }
    Dmah { public: UnsafeCell::new(ibv_dmah { context }) }.give()
}

pub(crate) unsafe extern "C" fn ibv_dealloc_dmah(public: *mut ibv_dmah) -> c_int {
    // SAFETY: ibv_dealloc_dmah(3): `public` is a live handle, which the program does not use after
    // this call.
    drop(unsafe { Dmah::take(public) });
    code(Ok(()))
}
