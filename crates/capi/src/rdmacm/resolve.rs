//! From an address to a device, or to a listener.

use core::ffi::c_int;

use super::address::{Address, read_any, read_optional};
use super::finish::finish;
use super::id::Id;
use crate::abi::*;
use crate::errno::{Errno, status};
use crate::memory;
use crate::verbs::object::Object;

pub(crate) unsafe extern "C" fn rdma_bind_addr(
    public: *mut rdma_cm_id,
    addr: *mut libc::sockaddr,
) -> c_int {
    // SAFETY: rdma_bind_addr(3): `public` is a live id.
    let id = unsafe { Id::of(public) };
    // SAFETY: rdma_bind_addr(3): `addr` points to a socket address.
    let addr = unsafe { read_any(addr) };
    let bind = |addr| {
        memory::admit()?;
        match addr {
            Address::Ip(addr) => id.id.bind(addr)?,
            Address::Ib(addr) => id.id.bind_ib(addr)?,
        }
        id.show()
    };
    status(addr.and_then(bind))
}

pub(crate) unsafe extern "C-unwind" fn rdma_resolve_addr(
    public: *mut rdma_cm_id,
    src: *mut libc::sockaddr,
    dst: *mut libc::sockaddr,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: rdma_resolve_addr(3): `public` is a live id, `dst` points to a socket address, and so
    // does `src` unless it is NULL.
    let started = unsafe { resolve_addr(public, src, dst, timeout_ms) };
    // SAFETY: rdma_resolve_addr(3): `public` is a live id.
    unsafe { finish(public, started) }
}

/// # Safety
/// `public` is a live id, `src` and `dst` are NULL or point to addresses that are as long as their
/// families say.
unsafe fn resolve_addr(
    public: *mut rdma_cm_id,
    src: *mut libc::sockaddr,
    dst: *mut libc::sockaddr,
    timeout_ms: c_int,
) -> Result<(), Errno> {
    // SAFETY: by this function's contract, `public` is a live id, `src` and `dst` are NULL or point
    // to addresses that are as long as their families say.
    let id = unsafe { Id::of(public) };
    // SAFETY: by this function's contract, `public` is a live id, `src` and `dst` are NULL or point
    // to addresses that are as long as their families say.
    let dst = unsafe { read_any(dst) }?;
    memory::admit()?;
    let timeout_ms = u32::try_from(timeout_ms).unwrap_or(0);
    // SAFETY: by this function's contract, `public` is a live id, `src` and `dst` are NULL or point
    // to addresses that are as long as their families say.
    let src = unsafe { read_optional(src) }?;
    match (src, dst) {
        (None, Address::Ib(dst)) => Ok(id.id.resolve_ib(None, dst)?),
        (Some(Address::Ib(src)), Address::Ib(dst)) => Ok(id.id.resolve_ib(Some(src), dst)?),
        (None, Address::Ip(dst)) => Ok(id.id.resolve_addr(None, dst, timeout_ms)?),
        (Some(Address::Ip(src)), Address::Ip(dst)) => {
            Ok(id.id.resolve_addr(Some(src), dst, timeout_ms)?)
        }
        // Both are of one family.
        _ => Err(Errno::INVALID),
    }
}

pub(crate) unsafe extern "C-unwind" fn rdma_resolve_route(
    public: *mut rdma_cm_id,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: rdma_resolve_route(3): `public` is a live id.
    let id = unsafe { Id::of(public) };
    let started = id.id.resolve_route(u32::try_from(timeout_ms).unwrap_or(0));
    // SAFETY: `public` is still live: this call has not destroyed it.
    unsafe { finish(public, started.map_err(Errno::from)) }
}

pub(crate) unsafe extern "C" fn rdma_listen(public: *mut rdma_cm_id, backlog: c_int) -> c_int {
    // SAFETY: rdma_listen(3): `public` is a live id.
    let id = unsafe { Id::of(public) };
    let listen = |()| {
        id.id.listen(u32::try_from(backlog).unwrap_or(0))?;
        id.show()
    };
    status(memory::admit().and_then(listen))
}
