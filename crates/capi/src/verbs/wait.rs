//! Sleeping until there is an event.
//!
//! Programs end threads that wait for events with `pthread_cancel`, which unwinds their stack. So
//! the wait is a call that may unwind, and no value that needs dropping may be alive across it.
//!
//! Others let a timer interrupt the wait. Whether a signal does that is up to its handler
//! (`SA_RESTART`), and of all the ways to wait only reading asks it: it is what libibverbs does.

use core::ffi::{c_int, c_void};

use crate::errno::Errno;

unsafe extern "C-unwind" {
    fn pause() -> c_int;
    fn read(fd: c_int, bytes: *mut c_void, len: usize) -> isize;
}

/// Waits until the descriptor of a queue of events is readable. It may not be so afterwards; the
/// next look at the queue makes it right again. Fails with `EAGAIN` if the program has made the
/// descriptor non-blocking, and with `EINTR` if a signal came that ends the wait.
pub(crate) fn until_readable(fd: c_int) -> Result<(), Errno> {
    let mut byte = 0_u8;
    // SAFETY: read(2) writes at most one byte, to which the pointer leads.
    match unsafe { read(fd, (&raw mut byte).cast(), 1) } {
        // Another thread has destroyed the queue. The kernel's drivers leave this one asleep.
        0 => {
            until_signal();
            Err(Errno(libc::EINTR))
        }
        1.. => Ok(()),
        _ => Err(Errno::last()),
    }
}

/// Waits until a signal arrives or the process exits.
pub(crate) fn until_signal() {
    // SAFETY: the call has no preconditions.
    unsafe { pause() };
}
