//! Memory of the program: buffers and addresses that it passes to calls.

use core::ffi::{c_int, c_void};
use std::net::SocketAddr;

use feroce::cm::{IbAddr, PortSpace};

use crate::abi::{AF_IB, sockaddr_ib};
use crate::errno::Errno;
use crate::rdmacm::address::{self, Address};

/// The bytes that a program passes to a call; empty if the pointer is NULL.
///
/// # Safety
/// `buf` is NULL or points to `len` initialised bytes that no thread changes for `'a`.
pub(super) unsafe fn bytes<'a>(buf: *const c_void, len: usize) -> &'a [u8] {
    if buf.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: `buf` is not NULL, so this function's contract gives `len` readable bytes for `'a`;
    // bytes have no alignment.
    unsafe { core::slice::from_raw_parts(buf.cast(), len) }
}

/// The buffer that a program passes to a call to fill; empty if the pointer is NULL.
///
/// # Safety
/// `buf` is NULL or points to `len` bytes that only the called function accesses for `'a`.
pub(super) unsafe fn room<'a>(buf: *mut c_void, len: usize) -> &'a mut [u8] {
    if buf.is_null() || len == 0 {
        return &mut [];
    }
    // SAFETY: `buf` is not NULL, so this function's contract gives `len` bytes for exclusive use
    // during `'a`; bytes have no alignment.
    unsafe { core::slice::from_raw_parts_mut(buf.cast(), len) }
}

/// The elements of a scatter/gather list.
///
/// # Safety
/// `iov` is NULL or points to `count` elements that no thread changes for `'a`.
unsafe fn elements<'a>(iov: *const libc::iovec, count: usize) -> &'a [libc::iovec] {
    if iov.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: `iov` is not NULL, so this function's contract gives `count` elements for `'a`.
    unsafe { core::slice::from_raw_parts(iov, count) }
}

/// The bytes of a scatter/gather list, without empty elements.
///
/// # Safety
/// `iov` is NULL or points to `count` elements, and each to memory as for [`bytes`].
pub(super) unsafe fn gather<'a>(iov: *const libc::iovec, count: usize) -> Vec<&'a [u8]> {
    // SAFETY: this function's contract covers the list itself.
    let elements = unsafe { elements(iov, count) };
    // SAFETY: this function's contract covers the memory of each element.
    let part = |element: &libc::iovec| unsafe { bytes(element.iov_base, element.iov_len) };
    elements.iter().map(part).filter(|part| !part.is_empty()).collect()
}

/// The buffers of a scatter/gather list.
///
/// # Safety
/// `iov` is NULL or points to `count` elements, and each to memory as for [`room`].
pub(super) unsafe fn scatter<'a>(iov: *const libc::iovec, count: usize) -> Vec<&'a mut [u8]> {
    // SAFETY: this function's contract covers the list itself.
    let elements = unsafe { elements(iov, count) };
    // SAFETY: this function's contract covers the memory of each element.
    let part = |element: &libc::iovec| unsafe { room(element.iov_base, element.iov_len) };
    elements.iter().map(part).collect()
}

/// The address that a program passes with its length.
///
/// # Safety
/// `addr` is NULL or points to `len` bytes.
pub(super) unsafe fn address(
    addr: *const libc::sockaddr,
    len: libc::socklen_t,
) -> Result<SocketAddr, Errno> {
    if addr.is_null() || (len as usize) < size_of::<libc::sa_family_t>() {
        return Err(Errno::INVALID);
    }
    // SAFETY: `addr` is not NULL, and its `len` bytes include the family, which comes first.
    let family = unsafe { (*addr).sa_family };
    let least = match c_int::from(family) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        family if family == c_int::from(AF_IB) => size_of::<sockaddr_ib>(),
        _ => return Err(Errno(libc::EAFNOSUPPORT)),
    };
    if (len as usize) < least {
        return Err(Errno::INVALID);
    }
    // SAFETY: the `len` bytes are at least as many as an address of this family has.
    match unsafe { address::read_any(addr) }? {
        Address::Ip(addr) => Ok(addr),
        Address::Ib(addr) => Ok((addr.gid.0, addr.port()).into()),
    }
}

/// The address that a program passes, if it passes one.
///
/// # Safety
/// `addr` is NULL or points to `len` bytes.
pub(super) unsafe fn optional_address(
    addr: *const libc::sockaddr,
    len: libc::socklen_t,
) -> Result<Option<SocketAddr>, Errno> {
    if addr.is_null() && len == 0 {
        return Ok(None);
    }
    // SAFETY: `address` has the contract of this function.
    unsafe { address(addr, len) }.map(Some)
}

/// Copies an address to the program, cut to the room it has, and sets `len` to the whole length.
///
/// # Safety
/// `len` points to a length, and `addr` is NULL or points to as many bytes as `len` says.
pub(super) unsafe fn fill_address(
    (from, is_native): (SocketAddr, bool),
    addr: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) {
    let native = IbAddr::of_ip(PortSpace::Tcp, from);
    let storage = match is_native {
        true => address::storage_ib(native),
        false => address::storage(from),
    };
    let whole = match from {
        _ if is_native => size_of::<sockaddr_ib>(),
        SocketAddr::V4(_) => size_of::<libc::sockaddr_in>(),
        SocketAddr::V6(_) => size_of::<libc::sockaddr_in6>(),
    };
    // SAFETY: this function's contract: `len` points to a length.
    let room = unsafe { *len } as usize;
    if !addr.is_null() {
        let bytes = (&raw const storage).cast::<u8>();
        // SAFETY: `storage` has at least `whole` bytes and `addr` at least `room`; they do not
        // overlap, because `storage` is a local variable.
        unsafe { core::ptr::copy_nonoverlapping(bytes, addr.cast(), room.min(whole)) };
    }
    // SAFETY: this function's contract: `len` points to a length, which the call updates.
    unsafe { *len = whole as libc::socklen_t };
}
