//! What calls answer that the adapter does not have. The field's convention for "not supported"
//! is `EOPNOTSUPP`, which callers take as a reason to go without; any other number they take as a
//! failure.
//!
//! A stub takes no arguments unless it has to: the C calling convention lets a function ignore the
//! ones it is given.

use core::ffi::{c_int, c_void};
use core::ptr;

use crate::errno;

/// For calls that return a pointer: NULL, the reason in `errno`.
pub(crate) extern "C" fn null() -> *mut c_void {
    errno::set(libc::EOPNOTSUPP);
    ptr::null_mut()
}

/// For verbs that return the error itself.
pub(crate) extern "C" fn code() -> c_int {
    errno::set(libc::EOPNOTSUPP);
    libc::EOPNOTSUPP
}

/// For calls that return -1, the reason in `errno`.
pub(crate) extern "C" fn minus_one() -> c_int {
    errno::set(libc::EOPNOTSUPP);
    -1
}

/// For calls that return nothing, or something of which nothing is 0.
pub(crate) extern "C" fn zero() -> usize {
    0
}
