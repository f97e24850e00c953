//! Interposed calls as plain system calls: programs may call them before this library has found the
//! functions of the C library.

use core::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};

use libc::{AT_FDCWD, AT_SYMLINK_NOFOLLOW, mode_t};

/// The C library's way to make any system call; it sets `errno`.
macro_rules! system_call {
    ($number:ident $(, $argument:expr)*) => {
        // SAFETY: the caller of the macro passes the arguments of this system call, of which the
        // kernel checks the pointers.
        unsafe { libc::syscall(libc::$number $(, $argument)*) }
    };
}

/// Descriptors and statuses fit.
fn int(result: c_long) -> c_int {
    result as c_int
}

pub(super) unsafe extern "C-unwind" fn openat(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> c_int {
    int(system_call!(SYS_openat, folder, path, flags, mode))
}

pub(super) unsafe extern "C-unwind" fn open(
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> c_int {
    int(system_call!(SYS_openat, AT_FDCWD, path, flags, mode))
}

pub(super) unsafe extern "C-unwind" fn chdir(path: *const c_char) -> c_int {
    int(system_call!(SYS_chdir, path))
}

pub(super) unsafe extern "C-unwind" fn open_2(path: *const c_char, flags: c_int) -> c_int {
    int(system_call!(SYS_openat, AT_FDCWD, path, flags, 0))
}

pub(super) unsafe extern "C-unwind" fn openat_2(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
) -> c_int {
    int(system_call!(SYS_openat, folder, path, flags, 0))
}

pub(super) unsafe extern "C-unwind" fn fstatat(
    folder: c_int,
    path: *const c_char,
    stat: *mut c_void,
    flags: c_int,
) -> c_int {
    int(system_call!(SYS_newfstatat, folder, path, stat, flags))
}

pub(super) unsafe extern "C-unwind" fn stat(path: *const c_char, stat: *mut c_void) -> c_int {
    int(system_call!(SYS_newfstatat, AT_FDCWD, path, stat, 0))
}

pub(super) unsafe extern "C-unwind" fn lstat(path: *const c_char, stat: *mut c_void) -> c_int {
    int(system_call!(SYS_newfstatat, AT_FDCWD, path, stat, AT_SYMLINK_NOFOLLOW))
}

// On 64-bit machines there is but one version of the structure, and it is the kernel's.
pub(super) unsafe extern "C-unwind" fn xstat(
    _version: c_int,
    path: *const c_char,
    stat: *mut c_void,
) -> c_int {
    int(system_call!(SYS_newfstatat, AT_FDCWD, path, stat, 0))
}

pub(super) unsafe extern "C-unwind" fn lxstat(
    _version: c_int,
    path: *const c_char,
    stat: *mut c_void,
) -> c_int {
    int(system_call!(SYS_newfstatat, AT_FDCWD, path, stat, AT_SYMLINK_NOFOLLOW))
}

pub(super) unsafe extern "C-unwind" fn fxstatat(
    _version: c_int,
    folder: c_int,
    path: *const c_char,
    stat: *mut c_void,
    flags: c_int,
) -> c_int {
    int(system_call!(SYS_newfstatat, folder, path, stat, flags))
}

pub(super) unsafe extern "C-unwind" fn statx(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    stat: *mut c_void,
) -> c_int {
    int(system_call!(SYS_statx, folder, path, flags, mask, stat))
}

pub(super) unsafe extern "C-unwind" fn access(path: *const c_char, mode: c_int) -> c_int {
    int(system_call!(SYS_faccessat, AT_FDCWD, path, mode))
}

pub(super) unsafe extern "C-unwind" fn faccessat(
    folder: c_int,
    path: *const c_char,
    mode: c_int,
    flags: c_int,
) -> c_int {
    if flags == 0 {
        return int(system_call!(SYS_faccessat, folder, path, mode));
    }
    int(system_call!(SYS_faccessat2, folder, path, mode, flags))
}

pub(super) unsafe extern "C-unwind" fn readlinkat(
    folder: c_int,
    path: *const c_char,
    buffer: *mut c_char,
    len: usize,
) -> isize {
    system_call!(SYS_readlinkat, folder, path, buffer, len) as isize
}

pub(super) unsafe extern "C-unwind" fn readlink(
    path: *const c_char,
    buffer: *mut c_char,
    len: usize,
) -> isize {
    system_call!(SYS_readlinkat, AT_FDCWD, path, buffer, len) as isize
}

pub(super) unsafe extern "C-unwind" fn ioctl(
    fd: c_int,
    request: c_ulong,
    argument: *mut c_void,
) -> c_int {
    int(system_call!(SYS_ioctl, fd, request, argument))
}
