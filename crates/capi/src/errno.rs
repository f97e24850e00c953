//! The `errno` of the calling thread.

use core::ffi::c_int;

/// Sets it.
pub(crate) fn set(code: c_int) {
    // SAFETY: the call has no preconditions.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the C library gives every thread a place for its errno, valid while it lives.
    unsafe { *errno = code };
}

/// Reads it.
pub(crate) fn get() -> c_int {
    // SAFETY: the call has no preconditions.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as in `set`.
    unsafe { *errno }
}
