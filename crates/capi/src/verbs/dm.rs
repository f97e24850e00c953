//! Device memory. There is no device, so it is memory that programs cannot point to.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_uint, c_void};
use core::{ptr, slice};
use std::sync::Arc;

use feroce::{Access, Iova};
use feroce_lint::Kind;

use super::context::Context;
use super::mr::{self, Mr};
use super::object::Object;
use super::pd::Pd;
use super::shared::Reserved;
use crate::abi::*;
use crate::errno::{Errno, code, pointer};
use crate::memory;

/// Device memory. Registrations of it hold the region, and keep it.
#[repr(C)]
pub(crate) struct Dm {
    public: UnsafeCell<ibv_dm>,
    memory: Arc<Reserved>,
}

// SAFETY: the type is `repr(C)`, and its first field is the `UnsafeCell` of the public part.
unsafe impl Object for Dm {
    type C = ibv_dm;

    const KIND: Option<Kind> = Some(Kind::Dm);
}

impl Dm {
    /// Gives memory to the program.
    pub(crate) fn publish(
        memory: Arc<Reserved>,
        context: *mut ibv_context,
        handle: u32,
    ) -> *mut ibv_dm {
        let public = ibv_dm {
            context,
            memcpy_to_dm: Some(memcpy_to_dm),
            memcpy_from_dm: Some(memcpy_from_dm),
            comp_mask: IBV_DM_MASK_HANDLE,
            handle,
        };
        Self { public: UnsafeCell::new(public), memory }.give()
    }
}

pub(crate) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    // SAFETY: ibv_alloc_dm(3): `context` is a live context.
    let behind = unsafe { Context::behind(context) };
    // SAFETY: ibv_alloc_dm(3): `attr` points to attributes.
    let attr = unsafe { attr.read() };
    if attr.comp_mask != 0 {
        return pointer(Err(Errno::UNSUPPORTED));
    }
    // Regions are aligned to pages.
    if attr.length == 0 || attr.log_align_req > 12 {
        return pointer(Err(Errno::INVALID));
    }
    pointer(memory::admit().and_then(|()| Reserved::new(attr.length)).map(|memory| {
        let handle = behind.exports.handle();
        behind.exports.lock().dms.insert(handle, Arc::clone(&memory));
        Dm::publish(memory, context, handle)
    }))
}

pub(crate) unsafe extern "C" fn free_dm(public: *mut ibv_dm) -> c_int {
    // SAFETY: ibv_free_dm(3): `public` is live device memory.
    let context = unsafe { Context::of_object(public) };
    // SAFETY: `public` points to a live object, whose `handle` does not change after it was made.
    context.exports.lock().dms.remove(&unsafe { (*public).handle });
    // SAFETY: the caller may not use the object after this call, and the tables do not refer to it
    // any more.
    drop(unsafe { Dm::take(public) });
    0
}

/// Where in the memory something is, if it is moved in words.
fn place(offset: u64, len: usize) -> Result<usize, Errno> {
    // Memory of devices is reached in words of four bytes.
    if !offset.is_multiple_of(4) || !len.is_multiple_of(4) {
        return Err(Errno::INVALID);
    }
    usize::try_from(offset).map_err(|_| Errno::INVALID)
}

unsafe extern "C" fn memcpy_to_dm(
    dm: *mut ibv_dm,
    offset: u64,
    from: *const c_void,
    len: usize,
) -> c_int {
    // SAFETY: ibv_memcpy_to_dm(3): `dm` is live device memory.
    let dm = unsafe { Dm::of(dm) };
    let bytes = if len == 0 {
        &[]
    } else {
        // SAFETY: ibv_memcpy_to_dm(3): `from` points to `len` bytes.
        unsafe { slice::from_raw_parts(from.cast::<u8>(), len) }
    };
    let copy = |at| dm.memory.region.write_at(at, bytes).map_err(|_| Errno::INVALID);
    code(place(offset, len).and_then(copy))
}

unsafe extern "C" fn memcpy_from_dm(
    to: *mut c_void,
    dm: *mut ibv_dm,
    offset: u64,
    len: usize,
) -> c_int {
    // SAFETY: ibv_memcpy_from_dm(3): `dm` is live device memory.
    let dm = unsafe { Dm::of(dm) };
    let bytes = if len == 0 {
        &mut []
    } else {
        // SAFETY: ibv_memcpy_from_dm(3): `to` points to room for `len` bytes, which only this call
        // uses meanwhile.
        unsafe { slice::from_raw_parts_mut(to.cast::<u8>(), len) }
    };
    let copy = |at| dm.memory.region.read_at(at, bytes).map_err(|_| Errno::INVALID);
    code(place(offset, len).and_then(copy))
}

pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    len: usize,
    flags: c_uint,
) -> *mut ibv_mr {
    // SAFETY: ibv_reg_dm_mr(3): `dm` is live device memory.
    let dm = unsafe { Dm::of(dm) };
    // SAFETY: ibv_reg_dm_mr(3): `pd` is a live protection domain.
    let pd_behind = unsafe { Pd::of(pd) };
    pointer(mr::access(flags).and_then(|access| {
        memory::admit()?;
        // There is no address that it could have.
        if !access.contains(Access::ZERO_BASED) {
            return Err(Errno::INVALID);
        }
        let start = usize::try_from(offset).map_err(|_| Errno::INVALID)?;
        let end = start.checked_add(len).ok_or(Errno::INVALID)?;
        let mr = pd_behind.pd.register_part(
            Arc::clone(&dm.memory.region),
            start..end,
            Iova::ZeroBased,
            access,
        )?;
        Ok(Mr::publish(mr, pd, ptr::null_mut(), access))
    }))
}
