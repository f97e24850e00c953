//! Sleeping until a descriptor is readable.
//!
//! Programs end threads that wait for events with `pthread_cancel`, which unwinds their stack. So
//! the wait is a call that may unwind, and no value that needs dropping may be alive across it.

use core::ffi::{c_int, c_short, c_ulong};

use crate::verbs::fault::Fault;

unsafe extern "C-unwind" {
    fn poll(fds: *mut libc::pollfd, count: c_ulong, timeout_ms: c_int) -> c_int;
}

/// Waits until `fd` is readable. A descriptor that was made non-blocking does not wait but fails
/// with `EAGAIN`.
pub(crate) fn until_readable(fd: c_int) -> Result<(), Fault> {
    // SAFETY: F_GETFL takes nothing; a descriptor that is not open is an error.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 {
        return Err(Fault(libc::EBADF));
    }
    if flags & libc::O_NONBLOCK != 0 {
        return Err(Fault(libc::EAGAIN));
    }
    let events: c_short = libc::POLLIN;
    let mut waiting = libc::pollfd { fd, events, revents: 0 };
    // An interrupted wait is a short one: reading would have been restarted, mostly.
    // SAFETY: one descriptor, which lives on this frame.
    unsafe { poll(&raw mut waiting, 1, -1) };
    Ok(())
}
