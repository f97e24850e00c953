//! Calls that make, connect and end sockets.

use core::ffi::c_int;
use std::net::SocketAddr;

use feroce_rsocket::{Socket, find};

use super::program::{address, fill_address};
use crate::errno::{Errno, number, status};
use crate::memory;
use crate::rdmacm::devices;

pub(crate) extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let open = |()| Socket::open(domain, kind, protocol, devices::manager);
    number(memory::admit().and_then(open))
}

pub(crate) unsafe extern "C" fn rbind(
    fd: c_int,
    addr: *const libc::sockaddr,
    len: libc::socklen_t,
) -> c_int {
    // SAFETY: bind(2): `addr` points to an address of `len` bytes.
    let addr = unsafe { address(addr, len) };
    status(find(fd).and_then(|socket| socket.bind(addr?)))
}

pub(crate) extern "C" fn rlisten(fd: c_int, backlog: c_int) -> c_int {
    let backlog = u32::try_from(backlog).unwrap_or(0);
    status(find(fd).and_then(|socket| socket.listen(backlog)))
}

pub(crate) unsafe extern "C" fn raccept(
    fd: c_int,
    addr: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> c_int {
    let listener = find(fd);
    let is_native = listener.as_ref().is_ok_and(Socket::is_native);
    let accepted = listener.and_then(|listener| listener.accept());
    number(accepted.map(|(fd, peer)| {
        if let Some(peer) = peer.filter(|_| !len.is_null()) {
            // SAFETY: accept(2): `len`, which is not NULL, says how many bytes `addr` has.
            unsafe { fill_address((peer, is_native), addr, len) };
        }
        fd
    }))
}

pub(crate) unsafe extern "C" fn rconnect(
    fd: c_int,
    addr: *const libc::sockaddr,
    len: libc::socklen_t,
) -> c_int {
    // SAFETY: connect(2): `addr` points to an address of `len` bytes.
    let addr = unsafe { address(addr, len) };
    status(find(fd).and_then(|socket| socket.connect(addr?)))
}

pub(crate) extern "C" fn rshutdown(fd: c_int, how: c_int) -> c_int {
    status(find(fd).and_then(|socket| socket.shut_down(how)))
}

pub(crate) extern "C" fn rclose(fd: c_int) -> c_int {
    status(feroce_rsocket::close(fd))
}

/// Answers with an address of a socket.
///
/// # Safety
/// `len` is NULL, or points to the number of bytes that `addr` has.
unsafe fn name(
    found: Result<(SocketAddr, bool), Errno>,
    addr: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> c_int {
    if len.is_null() {
        return status(Err(Errno(libc::EFAULT)));
    }
    status(found.map(|found| {
        // SAFETY: `len` is not NULL, so this function's contract covers both pointers.
        unsafe { fill_address(found, addr, len) };
    }))
}

pub(crate) unsafe extern "C" fn rgetpeername(
    fd: c_int,
    addr: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> c_int {
    let found = find(fd).and_then(|socket| Ok((socket.peer_addr()?, socket.is_native())));
    // SAFETY: getpeername(2): `len` says how many bytes `addr` has.
    unsafe { name(found, addr, len) }
}

pub(crate) unsafe extern "C" fn rgetsockname(
    fd: c_int,
    addr: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> c_int {
    let found = find(fd).map(|socket| (socket.local_addr(), socket.is_native()));
    // SAFETY: getsockname(2): `len` says how many bytes `addr` has.
    unsafe { name(found, addr, len) }
}
