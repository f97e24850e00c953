//! System calls that no crate of ours wraps.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Sets a socket option that takes an integer.
pub(crate) fn set_int(socket: impl AsFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    let (fd, len) = (socket.as_fd().as_raw_fd(), size_of::<i32>() as libc::socklen_t);
    let value: *const i32 = &raw const value;
    // SAFETY: the descriptor is borrowed for the call, and the pointer leads to `len` bytes that
    // live as long.
    let rc = unsafe { libc::setsockopt(fd, level, name, value.cast(), len) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Lets go of what a descriptor leads to: from now on it leads to `/dev/null`. For descriptors that
/// a child of a fork has in common with its parent, and that something in the child still owns.
pub(crate) fn let_go(fd: BorrowedFd<'_>) -> io::Result<()> {
    let nowhere = File::options().read(true).write(true).open("/dev/null")?;
    // SAFETY: both are open. The number stays open and its owner's, who closes it as before.
    let rc = unsafe { libc::dup3(nowhere.as_raw_fd(), fd.as_raw_fd(), libc::O_CLOEXEC) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
