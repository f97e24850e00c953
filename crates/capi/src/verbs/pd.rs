//! Protection domains; thread domains, by which a program promises to serialise its own calls; and
//! parent domains, which combine both.

use core::cell::UnsafeCell;
use core::ffi::c_int;

use feroce_lint::Kind;

use super::context::Context;
use super::object::Object;
use super::shared::{SharedPd, Use, Users};
use crate::abi::*;
use crate::errno::{Errno, code, pointer};
use crate::memory;

/// A protection domain, or a parent domain or an import on top of one.
#[repr(C)]
pub(crate) struct Pd {
    public: UnsafeCell<ibv_pd>,
    pub(crate) pd: feroce::Pd,
    users: Users,
    /// The objects that a parent domain or an import refers to.
    on_top_of: Option<(Use, Option<Use>)>,
}

impl Pd {
    /// Gives another context a protection domain.
    pub(crate) fn import(shared: &SharedPd, context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
        let public = UnsafeCell::new(ibv_pd { context, handle });
        let on_top_of = Some((shared.users.enter(), None));
        Self { public, pd: shared.pd.clone(), users: Users::default(), on_top_of }.give()
    }
}

// SAFETY: the type is `repr(C)`, and its first field is the `UnsafeCell` of the public part.
unsafe impl Object for Pd {
    type C = ibv_pd;

    const KIND: Option<Kind> = Some(Kind::Pd);
}

pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: ibv_alloc_pd(3): `context` is a live context.
    let behind = unsafe { Context::behind(context) };
    pointer(memory::admit().and_then(|()| {
        let pd = behind.adapter().alloc_pd()?;
        let (handle, users) = (behind.exports.handle(), Users::default());
        let shared = SharedPd { pd: pd.clone(), users: users.clone() };
        behind.exports.lock().pds.insert(handle, shared);
        let public = UnsafeCell::new(ibv_pd { context, handle });
        Ok(Pd { public, pd, users, on_top_of: None }.give())
    }))
}

pub(crate) unsafe extern "C" fn ibv_dealloc_pd(public: *mut ibv_pd) -> c_int {
    // SAFETY: ibv_dealloc_pd(3): `public` is a live protection domain.
    let pd = unsafe { Pd::of(public) };
    if pd.users.count() > 0 {
        return code(Err(Errno::BUSY));
    }
    // The objects that a parent domain refers to stay.
    if pd.on_top_of.is_none() {
        if let Err(e) = pd.pd.dealloc() {
            return code(Err(e.into()));
        }
        // SAFETY: ibv_dealloc_pd(3): `public` is a live protection domain.
        let context = unsafe { Context::of_object(public) };
        // SAFETY: `public` points to a live object, whose `handle` does not change after it was
        // made.
        context.exports.lock().pds.remove(&unsafe { (*public).handle });
    }
    // SAFETY: no object is left in the domain, and the program does not use it after this call.
    drop(unsafe { Pd::take(public) });
    0
}

/// A thread domain. Queues lock themselves all the same: the locks are never contended then.
#[repr(C)]
struct Td {
    public: UnsafeCell<ibv_td>,
    users: Users,
}

// SAFETY: the type is `repr(C)`, and its first field is the `UnsafeCell` of the public part.
unsafe impl Object for Td {
    type C = ibv_td;

    const KIND: Option<Kind> = Some(Kind::Td);
}

pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    // SAFETY: ibv_alloc_td(3): `attr` points to attributes.
    let attr = unsafe { attr.read() };
    if attr.comp_mask != 0 {
        return pointer(Err(Errno::INVALID));
    }
    pointer(memory::admit().map(|()| {
        Td { public: UnsafeCell::new(ibv_td { context }), users: Users::default() }.give()
    }))
}

pub(crate) unsafe extern "C" fn dealloc_td(public: *mut ibv_td) -> c_int {
    // SAFETY: ibv_dealloc_td(3): `public` is a live thread domain.
    let td = unsafe { Td::of(public) };
    if td.users.count() > 0 {
        return code(Err(Errno::BUSY));
    }
    // SAFETY: no parent domain refers to it, and the program does not use it after this call.
    drop(unsafe { Td::take(public) });
    0
}

/// Makes a parent domain. Allocators that come with it are not called: queues are not memory that
/// a program could provide.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    const KNOWN: u32 = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
        | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
        | IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC;
    // SAFETY: ibv_alloc_parent_domain(3): `attr` points to attributes.
    let attr = unsafe { attr.read() };
    if attr.pd.is_null() {
        return pointer(Err(Errno::INVALID));
    }
    if attr.comp_mask & !KNOWN != 0 {
        return pointer(Err(Errno::UNSUPPORTED));
    }
    if let Err(errno) = memory::admit() {
        return pointer(Err(errno));
    }
    let td = (!attr.td.is_null()).then(|| {
        // SAFETY: ibv_alloc_parent_domain(3): `attr.td` is a live thread domain.
        unsafe { Td::of(attr.td) }.users.enter()
    });
    // SAFETY: ibv_alloc_parent_domain(3): `attr.pd` is a live protection domain.
    let below = unsafe { Pd::of(attr.pd) };
    // SAFETY: `attr.pd` points to a live object, whose `handle` does not change after it was made.
    let handle = unsafe { (*attr.pd).handle };
    let public = UnsafeCell::new(ibv_pd { context, handle });
    let on_top_of = Some((below.users.enter(), td));
    Pd { public, pd: below.pd.clone(), users: Users::default(), on_top_of }.give()
}
