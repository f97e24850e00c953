//! Memory regions.
//!
//! Memory is not locked and not touched by registering it, however large it is: the adapter uses
//! it as any thread of the process would, when it is needed.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_uint, c_void};
use core::{ptr, slice};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feroce::{Access, Iova, Qpn, Region, Rereg};
use feroce_lint::{self as lint, Kind, Memory};

use super::buf::Buf;
use super::context::Context;
use super::mapped;
use super::object::Object;
use super::pd::Pd;
use super::qp;
use super::shared::Registered;
use crate::abi::*;
use crate::errno::{self, Errno, code, pointer};
use crate::memory;

/// A memory region.
#[repr(C)]
pub(crate) struct Mr {
    public: UnsafeCell<ibv_mr>,
    /// Locked, because it may be registered again while others look; none if it was imported.
    mr: Option<Mutex<Own>>,
}

/// A registration and the rights it was made with.
struct Own {
    mr: feroce::Mr,
    access: Access,
}

// SAFETY: the type is `repr(C)`, and its first field is the `UnsafeCell` of the public part.
unsafe impl Object for Mr {
    type C = ibv_mr;

    const KIND: Option<Kind> = Some(Kind::Mr);
}

impl Mr {
    /// Gives a registration to the program. `addr` is what the program calls its beginning.
    pub(crate) fn publish(
        mr: feroce::Mr,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        access: Access,
    ) -> *mut ibv_mr {
        // SAFETY: `pd` is a live protection domain.
        let context = unsafe { Context::of_object(pd) };
        let (lkey, rkey, length) = (mr.lkey().0, mr.rkey().0, mr.len());
        // SAFETY: `pd` points to a live object, whose `handle` does not change after it was made.
        let registered = Registered { length, pd: unsafe { (*pd).handle } };
        context.exports.lock().mrs.insert(lkey, registered);
        let context = context.as_ptr();
        if lint::is_on() {
            let (context, addr) = (context.addr(), addr.addr());
            lint::mr_made(Memory { context, lkey, addr, access });
        }
        let public = ibv_mr { context, pd, addr, length, handle: lkey, lkey, rkey };
        Self { public: UnsafeCell::new(public), mr: Some(Mutex::new(Own { mr, access })) }.give()
    }

    /// Gives another context a memory region. Where it begins is the affair of its owner.
    pub(crate) fn import(handle: u32, length: usize, pd: *mut ibv_pd) -> *mut ibv_mr {
        // SAFETY: `pd` is a live protection domain, whose context does not change.
        let context = unsafe { (*pd).context };
        let (lkey, rkey, addr) = (handle, handle, ptr::null_mut());
        let public = ibv_mr { context, pd, addr, length, handle, lkey, rkey };
        Self { public: UnsafeCell::new(public), mr: None }.give()
    }

    /// The registration, unless it is another's.
    fn own(&self) -> Result<MutexGuard<'_, Own>, Errno> {
        let mr = self.mr.as_ref().ok_or(Errno::INVALID)?;
        Ok(mr.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The rights that a program requests. Unknown optional rights are ignored, other unknown rights
/// are refused.
pub(crate) fn access(flags: c_uint) -> Result<Access, Errno> {
    let known = Access::from_bits_truncate(flags);
    let unknown = flags & !known.bits() & !IBV_ACCESS_OPTIONAL_RANGE;
    if unknown != 0 {
        return Err(Errno::UNSUPPORTED);
    }
    Ok(known)
}

/// Rights with which the kernel wants pages that can be written.
const WRITING: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);

/// Whether the program may do with its memory what it wants the adapter to do. Memory that is used
/// on demand need not be there yet.
fn check(addr: *mut c_void, len: usize, access: Access) -> Result<(), Errno> {
    let end = addr.addr().checked_add(len);
    if end.is_none() && len != usize::MAX {
        return Err(Errno::INVALID);
    }
    let range = addr.addr()..end.unwrap_or(usize::MAX);
    let is_there = || mapped::is_accessible(range, access.intersects(WRITING));
    if access.contains(Access::ON_DEMAND) || is_there() {
        return Ok(());
    }
    Err(Errno(libc::EFAULT))
}

/// The memory that a program names, to be registered in `pd`, unless it is there already.
fn region(
    pd: Option<&feroce::Pd>,
    addr: *mut c_void,
    len: usize,
    access: Access,
) -> Result<Arc<Region>, Errno> {
    check(addr, len, access)?;
    let addr = addr.cast();
    // SAFETY: ibv_reg_mr(3): the memory stays until it is deregistered; with access on demand,
    // until the last request that names it has completed. No Rust reference to memory of the
    // program exists.
    let as_it_is = || unsafe { Region::from_raw(addr, len, None) };
    Ok(pd.filter(|_| !access.contains(Access::ON_DEMAND)).map_or_else(as_it_is, |pd| {
        // SAFETY: ibv_reg_mr(3): the memory stays until it is deregistered. A user who sets
        // `convert` promises that the program accepts what that does to its pages.
        unsafe { pd.raw_region(addr, len) }
    }))
}

/// Registers memory of the program.
///
/// # Safety
/// `pd` is a live protection domain.
unsafe fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    iova: Option<u64>,
    flags: c_uint,
) -> Result<*mut ibv_mr, Errno> {
    memory::admit()?;
    let access = access(flags)?;
    // Zero and the greatest length mean the whole address space; no other mapping costs nothing.
    let whole = addr.is_null() && len == usize::MAX;
    if whole && !access.contains(Access::ON_DEMAND) {
        return Err(Errno::INVALID);
    }
    // SAFETY: by this function's contract, `pd` is a live protection domain.
    let domain = &unsafe { Pd::of(pd) }.pd;
    let region = region(Some(domain), addr, len, access)?;
    let iova = match iova {
        Some(iova) if !access.contains(Access::ZERO_BASED) => Iova::At(iova),
        _ => Iova::Natural,
    };
    let mr = domain.register(region, iova, access)?;
    Ok(Mr::publish(mr, pd, addr, access))
}

pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: ibv_reg_mr(3): `pd` is a live protection domain.
    pointer(unsafe { register(pd, addr, length, None, access.cast_unsigned()) })
}

pub(crate) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: ibv_reg_mr_iova(3): `pd` is a live protection domain.
    pointer(unsafe { register(pd, addr, length, Some(iova), access.cast_unsigned()) })
}

pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: ibv_reg_mr_iova2(3): `pd` is a live protection domain.
    pointer(unsafe { register(pd, addr, length, Some(iova), access) })
}

pub(crate) unsafe extern "C" fn ibv_dereg_mr(public: *mut ibv_mr) -> c_int {
    // SAFETY: ibv_dereg_mr(3): `public` is a live memory region.
    let mr = unsafe { Mr::of(public) };
    // SAFETY: `public` is live, and its context stays open as long as it.
    let context = unsafe { Context::of_object(public) };
    let watched = lint::is_on().then(|| context.as_ptr().addr());
    if let Some((addr, own)) = watched.zip(mr.own().ok()) {
        lint::pulled(addr, own.mr.lkey().0, |qp| qp::is_at_work(context, Qpn::new(qp.qpn)));
    }
    let ended = mr.own().and_then(|own| {
        own.mr.dereg()?;
        Ok(own.mr.lkey().0)
    });
    match ended {
        Ok(key) => {
            watched.into_iter().for_each(|context| lint::mr_gone(context, key));
            context.exports.lock().mrs.remove(&key);
        }
        Err(errno) => return code(Err(errno)),
    }
    // SAFETY: the caller may not use the object after this call, and the tables do not refer to it
    // any more.
    drop(unsafe { Mr::take(public) });
    0
}

pub(crate) unsafe extern "C" fn ibv_rereg_mr(
    public: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let flags = flags.cast_unsigned();
    // SAFETY: ibv_rereg_mr(3): `public` is a live memory region, and `pd` is live if the flags ask
    // for a new one.
    let done = unsafe { rereg(public, flags, pd, addr, length, access.cast_unsigned()) };
    match done {
        Ok(()) => 0,
        Err(errno) => {
            errno::set(errno.0);
            IBV_REREG_MR_ERR_INPUT
        }
    }
}

/// # Safety
/// `public` is a live memory region, and `pd` a live protection domain if the flags ask for a new
/// one.
unsafe fn rereg(
    public: *mut ibv_mr,
    flags: c_uint,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    wanted: c_uint,
) -> Result<(), Errno> {
    let has = |flag| flags & flag != 0;
    if flags == 0 || flags & !IBV_REREG_MR_FLAGS_SUPPORTED != 0 {
        return Err(Errno::INVALID);
    }
    let translation = has(IBV_REREG_MR_CHANGE_TRANSLATION);
    if translation && (length == 0 || addr.is_null()) || has(IBV_REREG_MR_CHANGE_PD) && pd.is_null()
    {
        return Err(Errno::INVALID);
    }
    let access = has(IBV_REREG_MR_CHANGE_ACCESS).then(|| access(wanted)).transpose()?;
    let new_pd = has(IBV_REREG_MR_CHANGE_PD).then(|| {
        // SAFETY: by this function's contract, `public` is a live memory region, and `pd` a live
        // protection domain if the flags ask for a new one.
        unsafe { Pd::of(pd) }.pd.clone()
    });
    // SAFETY: by this function's contract, `public` is a live memory region, and `pd` a live
    // protection domain if the flags ask for a new one.
    let mr = unsafe { Mr::of(public) };
    let mut own = mr.own()?;
    let rights = access.unwrap_or(own.access);
    let memory = if translation {
        Some((region(None, addr, length, rights)?, Iova::Natural))
    } else {
        // SAFETY: `public` points to a live object, of which this library changes `addr` only under
        // the lock that this thread holds.
        let addr = unsafe { (*public).addr };
        if !addr.is_null() {
            check(addr, own.mr.len(), rights)?;
        }
        None
    };
    own.mr.rereg(Rereg { pd: new_pd, memory, access })?;
    own.access = rights;
    // SAFETY: `public` is a live memory region, and its context stays open as long as it.
    let context = unsafe { Context::of_object(public) };
    if let Some(registered) = context.exports.lock().mrs.get_mut(&own.mr.lkey().0) {
        registered.length = own.mr.len();
        if has(IBV_REREG_MR_CHANGE_PD) {
            // SAFETY: by this function's contract `pd` is live if the flags ask for a new one; its
            // `handle` does not change after it was made.
            registered.pd = unsafe { (*pd).handle };
        }
    }
    if lint::is_on() {
        // SAFETY: by this function's contract `public` points to a live object, whose `context`
        // does not change after it was made.
        let context = unsafe { (*public).context }.addr();
        let addr = translation.then(|| addr.addr());
        lint::mr_changed(context, own.mr.lkey().0, addr, access);
    }
    if translation {
        // SAFETY: `public` points to a live object. This library sets `addr` through the raw
        // pointer, without a reference to the public part.
        unsafe { (*public).addr = addr };
        // SAFETY: `public` points to a live object. This library sets `length` through the raw
        // pointer, without a reference to the public part.
        unsafe { (*public).length = length };
    }
    if has(IBV_REREG_MR_CHANGE_PD) {
        // SAFETY: `public` points to a live object. This library sets `pd` through the raw pointer,
        // without a reference to the public part.
        unsafe { (*public).pd = pd };
    }
    Ok(())
}

/// Registers no memory: what is written to it vanishes, what is read from it is zero.
pub(crate) unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    // SAFETY: ibv_alloc_null_mr(3): `pd` is a live protection domain.
    let pd_behind = unsafe { Pd::of(pd) };
    let access = Access::LOCAL_WRITE;
    pointer(memory::admit().and_then(|()| {
        let mr = pd_behind.pd.register(Region::null(), Iova::Natural, access)?;
        Ok(Mr::publish(mr, pd, ptr::null_mut(), access))
    }))
}

/// Handles advice about memory that will be used soon: prefetches it if the program requests that.
pub(crate) unsafe extern "C" fn advise_mr(
    _pd: *mut ibv_pd,
    advice: ib_uverbs_advise_mr_advice,
    flags: u32,
    sg_list: *mut ibv_sge,
    num_sge: u32,
) -> c_int {
    if flags & !IBV_ADVISE_MR_FLAG_FLUSH != 0 {
        return code(Err(Errno::INVALID));
    }
    match advice {
        IBV_ADVISE_MR_ADVICE_PREFETCH
        | IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE
        | IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => {}
        _ => return code(Err(Errno::UNSUPPORTED)),
    }
    let list: &[ibv_sge] = if num_sge == 0 {
        &[]
    } else {
        // SAFETY: ibv_advise_mr(3): `sg_list` points to `num_sge` elements.
        unsafe { slice::from_raw_parts(sg_list, num_sge as usize) }
    };
    for sge in list {
        let start: *mut c_void = ptr::with_exposed_provenance_mut(sge.addr as usize);
        let before = start.addr() % 4096;
        let len = sge.length as usize + before;
        // A range that is not there is not worth an error: it is advice.
        // SAFETY: madvise(2) with MADV_WILLNEED changes no memory, and fails for a range that is
        // not mapped.
        unsafe { libc::madvise(start.wrapping_byte_sub(before), len, libc::MADV_WILLNEED) };
    }
    0
}

/// Registers by a list of what is known, the newest of all ways.
pub(crate) unsafe extern "C" fn ibv_reg_mr_ex(
    pd: *mut ibv_pd,
    attr: *mut ibv_mr_init_attr,
) -> *mut ibv_mr {
    // SAFETY: ibv_reg_mr_ex(3): `attr` points to attributes.
    let attr = unsafe { attr.read() };
    let has = |flag: c_uint| attr.comp_mask & u64::from(flag) != 0;
    let known =
        IBV_REG_MR_MASK_IOVA | IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_DMAH | IBV_REG_MR_MASK_BUF;
    if attr.comp_mask & !u64::from(known) != 0 {
        return pointer(Err(Errno::UNSUPPORTED));
    }
    if !has(IBV_REG_MR_MASK_ADDR) {
        return pointer(Err(Errno::INVALID));
    }
    // SAFETY: ibv_reg_mr_ex(3): the buffer is live if the mask says that there is one.
    let is_inside = || unsafe { Buf::of(attr.buf) }.has(pd, attr.addr, attr.length);
    if has(IBV_REG_MR_MASK_BUF) && (attr.buf.is_null() || !is_inside()) {
        return pointer(Err(Errno::INVALID));
    }
    if has(IBV_REG_MR_MASK_DMAH) && attr.access.cast_unsigned() & IBV_ACCESS_ON_DEMAND != 0 {
        // Hints are for memory that an adapter has pinned.
        return pointer(Err(Errno::UNSUPPORTED));
    }
    let iova = has(IBV_REG_MR_MASK_IOVA).then_some(attr.iova);
    // SAFETY: ibv_reg_mr_ex(3): `pd` is a live protection domain.
    pointer(unsafe { register(pd, attr.addr, attr.length, iova, attr.access.cast_unsigned()) })
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
