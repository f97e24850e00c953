//! Objects of the C library.

use std::ffi::c_int;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{PoisonError, RwLock};

use crate::{Error, checked, failed};

/// An object of the C library. Destroying it waits until no thread is in a call on it.
pub(crate) struct Handle<T> {
    object: RwLock<Option<NonNull<T>>>,
}

// SAFETY: the pointer is only passed to calls of the library, which any thread may make.
unsafe impl<T> Send for Handle<T> {}

// SAFETY: the library may be called from several threads at once; the lock orders the last call.
unsafe impl<T> Sync for Handle<T> {}

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.object)
    }
}

impl<T> Handle<T> {
    /// The object that `call` returned; NULL is an error.
    ///
    /// # Safety
    /// If it is not NULL, `object` is an object of the library that only this handle destroys.
    pub(crate) unsafe fn new(call: &'static str, object: *mut T) -> Result<Self, Error> {
        match NonNull::new(object) {
            Some(object) => Ok(Self { object: RwLock::new(Some(object)) }),
            None => Err(failed(call)),
        }
    }

    /// Runs a call on the object, which lives until the call returns; `None` if it is destroyed.
    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(*mut T) -> R) -> Option<R> {
        let object = self.object.read().unwrap_or_else(PoisonError::into_inner);
        object.map(|object| f(object.as_ptr()))
    }

    /// Runs a call that returns an error number on the object.
    pub(crate) fn call(
        &self,
        call: &'static str,
        f: impl FnOnce(*mut T) -> c_int,
    ) -> Result<(), Error> {
        // The library answers EINVAL for objects that it does not know.
        checked(call, self.with(f).unwrap_or(libc::EINVAL))
    }

    /// Destroys the object, unless it is destroyed already or the library refuses.
    pub(crate) fn end(
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
