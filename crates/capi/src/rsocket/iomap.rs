//! Memory of the program that its peer writes to directly.

use core::ffi::{c_int, c_void};

use feroce_rsocket::find;

use super::program::bytes;
use crate::errno::{self, status};

pub(crate) unsafe extern "C" fn riomap(
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    prot: c_int,
    _flags: c_int,
    offset: libc::off_t,
) -> libc::off_t {
    let mapped = find(fd).and_then(|socket| {
        // SAFETY: riomap(3): `buf` points to `len` bytes, which the program keeps until riounmap
        // or rclose; it expects the peer to write there.
        unsafe { socket.map(buf, len, prot, offset) }
    });
    mapped.unwrap_or_else(|errno| {
        errno::set(errno.0);
        -1
    })
}

pub(crate) extern "C" fn riounmap(fd: c_int, buf: *mut c_void, len: usize) -> c_int {
    status(find(fd).and_then(|socket| socket.unmap(buf.addr() as u64, len)))
}

pub(crate) unsafe extern "C" fn riowrite(
    fd: c_int,
    buf: *const c_void,
    count: usize,
    offset: libc::off_t,
    flags: c_int,
) -> usize {
    // SAFETY: riowrite(3): `buf` points to `count` bytes, which stay unchanged during the call.
    let bytes = unsafe { bytes(buf, count) };
    let offset = offset.cast_unsigned();
    let written = find(fd).and_then(|socket| socket.write_mapped(bytes, offset, flags));
    written.unwrap_or_else(|errno| {
        errno::set(errno.0);
        usize::MAX
    })
}
