//! System calls that no crate of ours wraps.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Sets a socket option that takes an integer.
pub(crate) fn set_int(socket: impl AsFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    let (fd, len) = (socket.as_fd().as_raw_fd(), size_of::<i32>() as libc::socklen_t);
    let value: *const i32 = &raw const value;
    // SAFETY: the descriptor is borrowed for the call, and the pointer leads to `len` bytes that
    // live as long.
    let rc = unsafe { libc::setsockopt(fd, level, name, value.cast(), len) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
