//! How calls report errors: by `errno` of the calling thread, by their return value, or by both.

use core::ffi::c_int;
use core::ptr;

pub(crate) use feroce::Errno;

/// Sets `errno`.
pub(crate) fn set(code: c_int) {
    // SAFETY: the call has no preconditions.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: `errno` points to the thread-local variable of the calling thread, which the C
    // library keeps valid as long as the thread runs.
    unsafe { *errno = code };
}

/// Reads `errno`.
pub(crate) fn get() -> c_int {
    Errno::last().0
}

/// For calls that return a pointer, or NULL with the reason in `errno`.
pub(crate) fn pointer<T>(made: Result<*mut T, Errno>) -> *mut T {
    made.unwrap_or_else(|errno| {
        set(errno.0);
        ptr::null_mut()
    })
}

/// For verbs that return the error itself. They set `errno` as well, because some programs check
/// the one and some the other.
pub(crate) fn code(done: Result<(), Errno>) -> c_int {
    done.map_or_else(
        |errno| {
            set(errno.0);
            errno.0
        },
        |()| 0,
    )
}

/// For calls that return 0, or -1 with the reason in `errno`.
pub(crate) fn status(done: Result<(), Errno>) -> c_int {
    number(done.map(|()| 0))
}

/// For calls that return a number (a descriptor, a count), or -1 with the reason in `errno`.
pub(crate) fn number(found: Result<c_int, Errno>) -> c_int {
    found.unwrap_or_else(|errno| {
        set(errno.0);
        -1
    })
}
