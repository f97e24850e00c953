//! Which paths are led elsewhere, and where.

use core::ffi::{CStr, c_char};
use core::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;

use super::{counters, directory};
use crate::errno;

/// The longest path that the kernel takes, with the zero at its end.
const MAX: usize = libc::PATH_MAX as usize;

/// Whether a path is one of `/sys/class/infiniband`, the same with `_verbs` or `_mad` behind it,
/// and `/dev/infiniband`, or under one of them. Reads no byte behind the first that differs.
///
/// # Safety
/// `path` is NULL or points to a string that ends with a zero.
#[inline]
pub(super) unsafe fn is_ours(path: *const c_char) -> bool {
    if path.is_null() {
        return false;
    }
    // SAFETY: by this function's contract, `path` is NULL or points to a string that ends with a
    // zero.
    if let Some(rest) = unsafe { behind(path, b"/sys/class/infiniband") } {
        // SAFETY: `rest` points into the string, at most at its final zero, which is a string as
        // well.
        let other = unsafe { behind(rest, b"_verbs") };
        // SAFETY: as above.
        let other = other.or_else(|| unsafe { behind(rest, b"_mad") });
        let rest = other.unwrap_or(rest);
        // SAFETY: `behind` returns a pointer into the string, at most at its final zero.
        return unsafe { ends_a_name(rest) };
    }
    // SAFETY: by this function's contract, `path` is NULL or points to a string that ends with a
    // zero.
    let rest = unsafe { behind(path, b"/dev/infiniband") };
    // SAFETY: `behind` returns a pointer into the string, at most at its final zero.
    rest.is_some_and(|rest| unsafe { ends_a_name(rest) })
}

/// The rest of a string behind `prefix`, if it begins with it.
///
/// # Safety
/// `string` points to a string that ends with a zero.
#[inline]
unsafe fn behind(string: *const c_char, prefix: &[u8]) -> Option<*const c_char> {
    let mut at = string;
    for byte in prefix {
        // SAFETY: not behind the end: everything before it was equal to a byte that is not zero.
        if unsafe { *at }.cast_unsigned() != *byte {
            return None;
        }
        // SAFETY: the byte at `at` is not zero, so the next one belongs to the string, too.
        at = unsafe { at.add(1) };
    }
    Some(at)
}

/// # Safety
/// `at` points into a string that ends with a zero, at most at the zero.
#[inline]
unsafe fn ends_a_name(at: *const c_char) -> bool {
    // SAFETY: by this function's contract, `at` points into a string that ends with a zero, at most
    // at the zero.
    matches!(unsafe { *at }.cast_unsigned(), 0 | b'/')
}

/// Calls `call`, which opens a file, with a path that leads to a counter of a port, if `path` is
/// that of one; otherwise as [`with_real`].
///
/// # Safety
/// `path` points to a string that ends with a zero.
#[cold]
pub(super) unsafe fn with_opened<R>(
    path: *const c_char,
    call: impl FnOnce(*const c_char) -> R,
) -> R {
    let before = errno::get();
    // SAFETY: by this function's contract, `path` points to a string that ends with a zero.
    let counter = counters::open(unsafe { CStr::from_ptr(path) }.to_bytes());
    errno::set(before);
    match counter {
        Some((_file, link)) => call(link.as_ptr()),
        // SAFETY: by this function's contract, `path` points to a string that ends with a zero.
        None => unsafe { with_real(path, call) },
    }
}

/// Calls `call` with the path of the replacement file, or with `path` itself if there is none.
///
/// # Safety
/// `path` points to a string that ends with a zero.
#[cold]
pub(super) unsafe fn with_real<R>(path: *const c_char, call: impl FnOnce(*const c_char) -> R) -> R {
    let before = errno::get();
    let root = directory::root().map_or(&[][..], |root| root.as_os_str().as_bytes());
    errno::set(before);
    // SAFETY: by this function's contract, `path` points to a string that ends with a zero.
    let path_bytes = unsafe { CStr::from_ptr(path) }.to_bytes_with_nul();
    let mut buffer = [const { MaybeUninit::<u8>::uninit() }; MAX];
    if root.len() + path_bytes.len() > MAX {
        return call(path);
    }
    for (to, from) in buffer.iter_mut().zip(root.iter().chain(path_bytes)) {
        to.write(*from);
    }
    call(buffer.as_ptr().cast())
}
