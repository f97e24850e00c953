//! Calls that move data.

use core::ffi::{c_int, c_void};
use std::net::SocketAddr;

use feroce_rsocket::find;

use super::program::{bytes, fill_address, gather, optional_address, room, scatter};
use crate::errno::{self, Errno};

/// For calls that return a number of bytes, or -1 with the reason in `errno`.
fn count(moved: Result<usize, Errno>) -> isize {
    moved.map_or_else(
        |errno| {
            errno::set(errno.0);
            -1
        },
        // No buffer is longer than `isize::MAX`.
        usize::cast_signed,
    )
}

fn send(fd: c_int, parts: &[&[u8]], flags: c_int, to: Result<Option<SocketAddr>, Errno>) -> isize {
    count(to.and_then(|to| find(fd)?.send(parts, flags, to)))
}

fn receive(
    fd: c_int,
    parts: &mut [&mut [u8]],
    flags: c_int,
) -> Result<(usize, Option<SocketAddr>), Errno> {
    find(fd)?.receive(parts, flags)
}

pub(crate) unsafe extern "C" fn rsend(
    fd: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
) -> isize {
    // SAFETY: send(2): `buf` points to `len` bytes, which stay unchanged during the call.
    let bytes = unsafe { bytes(buf, len) };
    send(fd, &[bytes], flags, Ok(None))
}

pub(crate) unsafe extern "C" fn rwrite(fd: c_int, buf: *const c_void, len: usize) -> isize {
    // SAFETY: write(2) has the contract of send(2).
    unsafe { rsend(fd, buf, len, 0) }
}

pub(crate) unsafe extern "C" fn rsendto(
    fd: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
    addr: *const libc::sockaddr,
    addr_len: libc::socklen_t,
) -> isize {
    // SAFETY: sendto(2): `addr` is NULL or points to an address of `addr_len` bytes.
    let to = unsafe { optional_address(addr, addr_len) };
    // SAFETY: sendto(2): `buf` points to `len` bytes, which stay unchanged during the call.
    let bytes = unsafe { bytes(buf, len) };
    send(fd, &[bytes], flags, to)
}

pub(crate) unsafe extern "C" fn rwritev(
    fd: c_int,
    iov: *const libc::iovec,
    iov_count: c_int,
) -> isize {
    // SAFETY: writev(2): `iov` points to `iov_count` elements that describe readable memory, all
    // of which stays unchanged during the call.
    let parts = unsafe { gather(iov, usize::try_from(iov_count).unwrap_or(0)) };
    send(fd, &parts, 0, Ok(None))
}

pub(crate) unsafe extern "C" fn rsendmsg(
    fd: c_int,
    msg: *const libc::msghdr,
    flags: c_int,
) -> isize {
    // SAFETY: sendmsg(2): `msg` points to a message header.
    let msg = unsafe { msg.read() };
    if !msg.msg_control.is_null() && msg.msg_controllen != 0 {
        return count(Err(Errno::UNSUPPORTED));
    }
    // SAFETY: sendmsg(2): the header's list has `msg_iovlen` elements that describe readable
    // memory, all of which stays unchanged during the call.
    let parts = unsafe { gather(msg.msg_iov, msg.msg_iovlen) };
    // SAFETY: sendmsg(2): `msg_name` is NULL or points to an address of `msg_namelen` bytes.
    let to = unsafe { optional_address(msg.msg_name.cast(), msg.msg_namelen) };
    send(fd, &parts, flags, to)
}

pub(crate) unsafe extern "C" fn rrecv(
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
) -> isize {
    // SAFETY: recv(2): `buf` points to `len` bytes that the program does not touch meanwhile.
    let room = unsafe { room(buf, len) };
    count(receive(fd, &mut [room], flags).map(|(len, _)| len))
}

pub(crate) unsafe extern "C" fn rread(fd: c_int, buf: *mut c_void, len: usize) -> isize {
    // SAFETY: read(2) has the contract of recv(2).
    unsafe { rrecv(fd, buf, len, 0) }
}

pub(crate) unsafe extern "C" fn rrecvfrom(
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
    addr: *mut libc::sockaddr,
    addr_len: *mut libc::socklen_t,
) -> isize {
    // SAFETY: recvfrom(2): `buf` points to `len` bytes that the program does not touch meanwhile.
    let room = unsafe { room(buf, len) };
    let received = receive(fd, &mut [room], flags);
    if let Ok((_, Some(from))) = received
        && !addr_len.is_null()
    {
        // SAFETY: recvfrom(2): `addr_len`, which is not NULL, says how many bytes `addr` has.
        unsafe { fill_address((from, false), addr, addr_len) };
    }
    count(received.map(|(len, _)| len))
}

pub(crate) unsafe extern "C" fn rreadv(
    fd: c_int,
    iov: *const libc::iovec,
    iov_count: c_int,
) -> isize {
    // SAFETY: readv(2): `iov` points to `iov_count` elements that describe memory which the
    // program does not touch meanwhile.
    let mut parts = unsafe { scatter(iov, usize::try_from(iov_count).unwrap_or(0)) };
    count(receive(fd, &mut parts, 0).map(|(len, _)| len))
}

pub(crate) unsafe extern "C" fn rrecvmsg(fd: c_int, msg: *mut libc::msghdr, flags: c_int) -> isize {
    // SAFETY: recvmsg(2): `msg` points to a message header.
    let given = unsafe { msg.read() };
    if !given.msg_control.is_null() && given.msg_controllen != 0 {
        return count(Err(Errno::UNSUPPORTED));
    }
    // SAFETY: recvmsg(2): the header's list has `msg_iovlen` elements that describe memory which
    // the program does not touch meanwhile.
    let mut parts = unsafe { scatter(given.msg_iov, given.msg_iovlen) };
    let received = receive(fd, &mut parts, flags);
    if let Ok((_, from)) = received {
        // SAFETY: recvmsg(2): the call sets the flags of the header that `msg` points to.
        unsafe { (*msg).msg_flags = 0 };
        if let Some(from) = from.filter(|_| !given.msg_name.is_null()) {
            // SAFETY: `msg` points to a message header, of which this is a field.
            let len = unsafe { &raw mut (*msg).msg_namelen };
            // SAFETY: recvmsg(2): `msg_namelen` says how many bytes `msg_name` has.
            unsafe { fill_address((from, false), given.msg_name.cast(), len) };
        }
    }
    count(received.map(|(len, _)| len))
}
