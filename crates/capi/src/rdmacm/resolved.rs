//! Events that a program puts into a channel itself, and names that are looked up with one.

use core::ffi::{c_char, c_int};
use core::ptr;

use feroce::cm::EventKind;

use super::addrinfo::{Resolved, rdma_getaddrinfo};
use super::finish::finish;
use super::id::Id;
use crate::abi::*;
use crate::errno::{Errno, status};
use crate::verbs::object::Object;

pub(crate) unsafe extern "C" fn rdma_write_cm_event(
    public: *mut rdma_cm_id,
    event: rdma_cm_event_type,
    code: c_int,
    arg: u64,
) -> c_int {
    if public.is_null() || event != RDMA_CM_EVENT_USER {
        return status(Err(Errno::INVALID));
    }
    // SAFETY: rdma_write_cm_event(3): `public` is a live id.
    let id = unsafe { Id::of(public) };
    let written = id.id.write_event(EventKind::User, code, &arg.to_ne_bytes());
    status(written.map_err(Errno::from))
}

/// Calls getaddrinfo(3), which may wait, and then queues the event.
pub(crate) unsafe extern "C-unwind" fn rdma_resolve_addrinfo(
    public: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    if public.is_null() {
        return status(Err(Errno::INVALID));
    }
    // SAFETY: rdma_resolve_addrinfo(3): `public` is a live id, the names are NULL or strings, and
    // `hints` is NULL or points to hints.
    let started = unsafe { resolve(public, node, service, hints) };
    // SAFETY: rdma_resolve_addrinfo(3): `public` is a live id.
    unsafe { finish(public, started) }
}

/// # Safety
/// `public` is a live id, `node` and `service` are NULL or point to strings that end with a zero,
/// and `hints` is NULL or points to hints.
unsafe fn resolve(
    public: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> Result<(), Errno> {
    // SAFETY: by this function's contract, `public` is a live id, `node` and `service` are NULL or
    // point to strings that end with a zero, and `hints` is NULL or points to hints.
    let id = unsafe { Id::of(public) };
    if id.private().resolved.is_some() {
        return Err(Errno::BUSY);
    }
    let mut info = ptr::null_mut();
    // SAFETY: by this function's contract, `public` is a live id, `node` and `service` are NULL or
    // point to strings that end with a zero, and `hints` is NULL or points to hints; there is a
    // place for what is found.
    match unsafe { rdma_getaddrinfo(node, service, hints, &raw mut info) } {
        0 => {}
        -1 => return Err(Errno::last()),
        // Not an error number, but one of the resolver's own kind.
        _ => return Err(Errno(libc::ENODATA)),
    }
    id.private().resolved = Some(Resolved(info));
    Ok(id.id.write_event(EventKind::AddrInfoResolved, 0, &[])?)
}

pub(crate) unsafe extern "C" fn rdma_query_addrinfo(
    public: *mut rdma_cm_id,
    place: *mut *mut rdma_addrinfo,
) -> c_int {
    if public.is_null() || place.is_null() {
        return status(Err(Errno::INVALID));
    }
    // SAFETY: rdma_query_addrinfo(3): `public` is a live id.
    let resolved = unsafe { Id::of(public) }.private().resolved.take();
    status(resolved.ok_or(Errno(libc::ENOENT)).map(|resolved| {
        // SAFETY: rdma_query_addrinfo(3): `place` points to room for the list, which the program
        // frees.
        unsafe { *place = resolved.0 };
        core::mem::forget(resolved);
    }))
}
