//! The functions that the interposed ones call.

use core::ffi::{CStr, c_int, c_void};
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, Ordering};

/// A function of the next library in the search order: the C library, or another preloaded one.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    /// The one called `name`, which ends with a zero.
    pub(crate) const fn new(name: &'static str) -> Self {
        match CStr::from_bytes_with_nul(name.as_bytes()) {
            Ok(name) => Self { name, found: AtomicPtr::new(ptr::null_mut()) },
            Err(_) => panic!("a name that is no string"),
        }
    }

    /// The function, if [`Next::find`] has found it. Looks nothing up, so that it may be called
    /// from signal handlers, and from whatever runs before this library is initialised.
    #[inline]
    pub(crate) fn get(&self) -> Option<NonNull<c_void>> {
        NonNull::new(self.found.load(Ordering::Relaxed))
    }

    /// Looks the function up.
    pub(crate) fn find(&self) -> Option<NonNull<c_void>> {
        // SAFETY: dlsym(3): the name is a string that ends with a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Relaxed);
        NonNull::new(found)
    }
}

/// What a call returns that could not be made.
pub(crate) trait Failed {
    const FAILED: Self;
}

impl Failed for c_int {
    const FAILED: Self = -1;
}

impl Failed for isize {
    const FAILED: Self = -1;
}

impl<T> Failed for *mut T {
    const FAILED: Self = ptr::null_mut();
}
