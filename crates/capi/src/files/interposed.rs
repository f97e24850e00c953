//! Calls of the C library that are led to our files when they name one of the kernel's.
//!
//! They may be called from signal handlers, from threads that are cancelled, and before anything
//! of this library was initialised. So they do nothing before they have looked at the path; they
//! hand over to the next function by a pointer that was found when the library was loaded; and
//! until then, those that are system calls are made as such.

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::mem::transmute;

use libc::mode_t;

use super::path::{is_ours, with_opened, with_real};
use super::{ioctl, raw};
use crate::errno;
use crate::next::{Failed, Next};

/// Whether a call opens a file, by its name.
const fn opens(call: &str) -> bool {
    matches!(
        call.as_bytes(),
        b"open"
            | b"open64"
            | b"openat"
            | b"openat64"
            | b"__open_2"
            | b"__open64_2"
            | b"__openat_2"
            | b"__openat64_2"
            | b"fopen"
            | b"fopen64"
    )
}

/// Defines the calls. Each line is a call with its arguments before and behind the path, and what
/// to call while the next function is not known. Calls without that look for it.
///
/// Unwinding passes through: that is how a thread is cancelled in a call that may wait.
macro_rules! interposed {
    ($($name:ident(
        $($before:ident: $before_type:ty,)* @path $(, $after:ident: $after_type:ty)*
    ) -> $result:ty $(, $raw:path)?;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(
                $($before: $before_type,)*
                path: *const c_char,
                $($after: $after_type,)*
            ) -> $result {
                type Call = unsafe extern "C-unwind" fn(
                    $($before_type,)* *const c_char $(, $after_type)*
                ) -> $result;
                // SAFETY: dlsym(3) found the function of the C library under this name, which has
                // the type `Call`.
                let typed = |next| unsafe { transmute::<_, Call>(next) };
                let known = next::$name.get().map(typed);
                $(let known = known.or(Some($raw));)?
                let Some(next) = known.or_else(|| next::$name.find().map(typed)) else {
                    errno::set(libc::ENOSYS);
                    return Failed::FAILED;
                };
                // SAFETY: the arguments are those that the caller passed for this function, with a
                // path in place of its path.
                let call = |path| unsafe { next($($before,)* path $(, $after)*) };
                // SAFETY: the interposed calls take NULL, which the kernel refuses, or a string
                // that ends with a zero.
                if unsafe { is_ours(path) } {
                    if const { opens(stringify!($name)) } {
                        // SAFETY: `is_ours` is true for no NULL, so `path` points to a string that
                        // ends with a zero.
                        return unsafe { with_opened(path, call) };
                    }
                    // SAFETY: `is_ours` is true for no NULL, so `path` points to a string that ends
                    // with a zero.
                    return unsafe { with_real(path, call) };
                }
                call(path)
            }
        )*

        /// The next function in the search order, for each interposed one.
        #[allow(non_upper_case_globals, reason = "the names of the functions")]
        mod next {
            use super::Next;

            $(pub(super) static $name: Next = Next::new(concat!(stringify!($name), "\0"));)*
        }

        /// Called by the dynamic linker when the library is loaded.
        extern "C" fn find_all() {
            $(next::$name.find();)*
            ioctl::NEXT.find();
        }
    };
}

#[used]
#[unsafe(link_section = ".init_array")]
static FIND_ALL: extern "C" fn() = find_all;

// The mode of `open` is optional, which makes no difference to where it is: in the same register.
interposed! {
    open(@path, flags: c_int, mode: mode_t) -> c_int, raw::open;
    open64(@path, flags: c_int, mode: mode_t) -> c_int, raw::open;
    openat(folder: c_int, @path, flags: c_int, mode: mode_t) -> c_int, raw::openat;
    openat64(folder: c_int, @path, flags: c_int, mode: mode_t) -> c_int, raw::openat;
    __open_2(@path, flags: c_int) -> c_int, raw::open_2;
    __open64_2(@path, flags: c_int) -> c_int, raw::open_2;
    __openat_2(folder: c_int, @path, flags: c_int) -> c_int, raw::openat_2;
    __openat64_2(folder: c_int, @path, flags: c_int) -> c_int, raw::openat_2;
    fopen(@path, mode: *const c_char) -> *mut libc::FILE;
    fopen64(@path, mode: *const c_char) -> *mut libc::FILE;
    chdir(@path) -> c_int, raw::chdir;
    opendir(@path) -> *mut libc::DIR;
    scandir(@path, list: *mut c_void, filter: *mut c_void, order: *mut c_void) -> c_int;
    scandir64(@path, list: *mut c_void, filter: *mut c_void, order: *mut c_void) -> c_int;
    stat(@path, stat: *mut c_void) -> c_int, raw::stat;
    stat64(@path, stat: *mut c_void) -> c_int, raw::stat;
    lstat(@path, stat: *mut c_void) -> c_int, raw::lstat;
    lstat64(@path, stat: *mut c_void) -> c_int, raw::lstat;
    fstatat(folder: c_int, @path, stat: *mut c_void, flags: c_int) -> c_int, raw::fstatat;
    fstatat64(folder: c_int, @path, stat: *mut c_void, flags: c_int) -> c_int, raw::fstatat;
    statx(
        folder: c_int, @path, flags: c_int, mask: c_uint, stat: *mut c_void
    ) -> c_int, raw::statx;
    __xstat(version: c_int, @path, stat: *mut c_void) -> c_int, raw::xstat;
    __xstat64(version: c_int, @path, stat: *mut c_void) -> c_int, raw::xstat;
    __lxstat(version: c_int, @path, stat: *mut c_void) -> c_int, raw::lxstat;
    __lxstat64(version: c_int, @path, stat: *mut c_void) -> c_int, raw::lxstat;
    __fxstatat(
        version: c_int, folder: c_int, @path, stat: *mut c_void, flags: c_int
    ) -> c_int, raw::fxstatat;
    __fxstatat64(
        version: c_int, folder: c_int, @path, stat: *mut c_void, flags: c_int
    ) -> c_int, raw::fxstatat;
    access(@path, mode: c_int) -> c_int, raw::access;
    faccessat(folder: c_int, @path, mode: c_int, flags: c_int) -> c_int, raw::faccessat;
    eaccess(@path, mode: c_int) -> c_int;
    euidaccess(@path, mode: c_int) -> c_int;
    readlink(@path, buffer: *mut c_char, len: usize) -> isize, raw::readlink;
    readlinkat(
        folder: c_int, @path, buffer: *mut c_char, len: usize
    ) -> isize, raw::readlinkat;
    __readlink_chk(@path, buffer: *mut c_char, len: usize, room: usize) -> isize;
    realpath(@path, resolved: *mut c_char) -> *mut c_char;
    __realpath_chk(@path, resolved: *mut c_char, room: usize) -> *mut c_char;
    canonicalize_file_name(@path) -> *mut c_char;
    getxattr(@path, name: *const c_char, value: *mut c_void, len: usize) -> isize;
    lgetxattr(@path, name: *const c_char, value: *mut c_void, len: usize) -> isize;
    listxattr(@path, list: *mut c_char, len: usize) -> isize;
    llistxattr(@path, list: *mut c_char, len: usize) -> isize;
}
