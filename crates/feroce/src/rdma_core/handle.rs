//! Objects of C.

use std::ffi::c_int;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{PoisonError, RwLock};

use super::{checked, failed};
use crate::Error;

/// An object of C: there until it is destroyed, which waits until nobody is in a call on it.
pub(super) struct Handle<T> {
    object: RwLock<Option<NonNull<T>>>,
}

// SAFETY: the library is safe to call from any thread, and the pointer is used for nothing else.
unsafe impl<T> Send for Handle<T> {}

// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.object)
    }
}

impl<T> Handle<T> {
    /// What `call` has returned; NULL is an error.
    ///
    /// # Safety
    /// If it is not NULL, it is an object that nobody destroys but the handle.
    pub(super) unsafe fn new(call: &'static str, object: *mut T) -> Result<Self, Error> {
        match NonNull::new(object) {
            Some(object) => Ok(Self { object: RwLock::new(Some(object)) }),
            None => Err(failed(call)),
        }
    }

    /// Runs a call on the object, which lives as long as it takes; `None` if it is destroyed.
    #[inline]
    pub(super) fn with<R>(&self, f: impl FnOnce(*mut T) -> R) -> Option<R> {
        let object = self.object.read().unwrap_or_else(PoisonError::into_inner);
        object.map(|object| f(object.as_ptr()))
    }

    /// The same for a call that returns the number of an error.
    pub(super) fn call(
        &self,
        call: &'static str,
        f: impl FnOnce(*mut T) -> c_int,
    ) -> Result<(), Error> {
        // A destroyed object is as good as one of another device.
        checked(call, self.with(f).unwrap_or(libc::EINVAL))
    }

    /// Destroys the object, unless it is or the library refuses.
    pub(super) fn end(
        &self,
        call: &'static str,
        destroy: impl FnOnce(*mut T) -> c_int,
    ) -> Result<(), Error> {
        let mut object = self.object.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = *object {
            checked(call, destroy(there.as_ptr()))?;
            *object = None;
        }
        Ok(())
    }
}
