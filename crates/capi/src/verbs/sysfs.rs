//! Files of the kernel that libibverbs reads on behalf of programs.

use core::ffi::{CStr, c_char, c_int};
use core::ptr;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::errno::{Errno, status};
pub(crate) extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Reads a file into `buf`, without the line's end; says how many bytes.
pub(crate) unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: ibv_read_sysfs_file(3): `dir` and `file` point to strings that end with a zero.
    let [dir, file] = [dir, file].map(|name| unsafe { CStr::from_ptr(name) });
    let [dir, file] = [dir, file].map(|name| OsStr::from_bytes(name.to_bytes()));
    let Ok(mut text) = fs::read(Path::new(dir).join(file)) else {
        return status(Err(Errno(libc::ENOENT)));
    };
    text.truncate(size);
    if text.last() == Some(&b'\n') {
        text.pop();
    }
    let len = text.len();
    // SAFETY: `buf` has room for `size` bytes, and `text` was cut to at most so many.
    unsafe { ptr::copy_nonoverlapping(text.as_ptr(), buf.cast(), len) };
    if len < size {
        // SAFETY: `len` is less than `size`, the length of `buf`.
        let end = unsafe { buf.add(len) };
        // SAFETY: `end` points into `buf`, because `len` is less than its length.
        unsafe { *end = 0 };
    }
    c_int::try_from(len).unwrap_or(c_int::MAX)
}
