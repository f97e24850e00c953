//! Options and flags of sockets.

use core::ffi::{c_int, c_void};

use feroce_rsocket::find;

use super::program::{bytes, room};
use crate::errno::{Errno, number, status};

pub(crate) unsafe extern "C" fn rsetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: libc::socklen_t,
) -> c_int {
    status(find(fd).and_then(|socket| {
        if value.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: setsockopt(2): `value` points to `len` bytes.
        let value = unsafe { bytes(value, len as usize) };
        socket.set_option(level, name, value)
    }))
}

pub(crate) unsafe extern "C" fn rgetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut libc::socklen_t,
) -> c_int {
    if value.is_null() || len.is_null() {
        return status(Err(Errno(libc::EFAULT)));
    }
    status(find(fd).and_then(|socket| {
        // SAFETY: getsockopt(2): `len`, which is not NULL, points to the length of the buffer.
        let size = unsafe { *len } as usize;
        // SAFETY: getsockopt(2): `value` points to so many bytes, which are for the answer.
        let room = unsafe { room(value, size) };
        let filled = socket.option(level, name, room)?;
        // SAFETY: getsockopt(2): the call updates the length that `len` points to.
        unsafe { *len = filled as libc::socklen_t };
        Ok(())
    }))
}

/// Only two commands have the third argument; the calling convention lets callers of the others
/// omit it.
pub(crate) extern "C" fn rfcntl(fd: c_int, command: c_int, value: c_int) -> c_int {
    number(find(fd).and_then(|socket| socket.control(command, value)))
}
