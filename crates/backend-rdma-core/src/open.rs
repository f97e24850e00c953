//! The list of devices of the library, and contexts that are opened from it.

use std::ffi::{CStr, c_int};
use std::ptr::NonNull;
use std::slice;

use feroce_abi::*;

use crate::library::Verbs;
use crate::{Error, LibraryError, failed};

/// The devices that the library knows.
pub(crate) struct List {
    verbs: &'static Verbs,
    array: NonNull<*mut ibv_device>,
    count: usize,
}

impl List {
    pub(crate) fn new(verbs: &'static Verbs) -> Result<Self, Error> {
        let mut count: c_int = 0;
        // SAFETY: `count` is a valid place for the number of devices.
        let array = unsafe { (verbs.ibv_get_device_list)(&raw mut count) };
        let count = usize::try_from(count).unwrap_or(0);
        let array = NonNull::new(array).ok_or_else(|| match failed("ibv_get_device_list") {
            e if e.errno() == Some(libc::ENOSYS) => LibraryError::NoDrivers.into(),
            e => e,
        })?;
        Ok(Self { verbs, array, count })
    }

    /// The devices with their names. The pointers are good as long as the list.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (String, *mut ibv_device)> {
        // SAFETY: the array has `count` elements and lives until `drop` frees the list.
        let devices = unsafe { slice::from_raw_parts(self.array.as_ptr(), self.count) };
        devices.iter().map(|&device| {
            // SAFETY: the device lives as long as the list.
            let name = unsafe { &raw const (*device).name };
            // SAFETY: the library terminates the name with a zero.
            let name = unsafe { CStr::from_ptr(name.cast()) };
            (name.to_string_lossy().into_owned(), device)
        })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: `ibv_get_device_list` returned the array. Open devices keep their entries.
        unsafe { (self.verbs.ibv_free_device_list)(self.array.as_ptr()) };
    }
}

/// An open context of the library.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) verbs: &'static Verbs,
    context: NonNull<ibv_context>,
}

// SAFETY: rdma-core lets any thread use a context.
unsafe impl Send for Open {}

// SAFETY: rdma-core lets several threads use a context at the same time.
unsafe impl Sync for Open {}

impl Open {
    /// Opens a device of a list that is still there.
    pub(crate) fn new(verbs: &'static Verbs, device: *mut ibv_device) -> Result<Self, Error> {
        // SAFETY: the caller passes a device of a list that it holds.
        let context = unsafe { (verbs.ibv_open_device)(device) };
        let context = NonNull::new(context).ok_or_else(|| failed("ibv_open_device"))?;
        Ok(Self { verbs, context })
    }

    /// The context of the library.
    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut ibv_context {
        self.context.as_ptr()
    }

    /// The table of functions that the inline functions of the C header call.
    #[inline]
    pub(crate) fn ops(&self) -> &ibv_context_ops {
        // SAFETY: the context is open as long as this, and its table does not change.
        unsafe { &(*self.as_ptr()).ops }
    }

    /// Identity of the device.
    pub(crate) fn guid(&self) -> u64 {
        // SAFETY: the context is open as long as this.
        let device = unsafe { (*self.as_ptr()).device };
        // SAFETY: an open context keeps its device.
        u64::from_be(unsafe { (self.verbs.ibv_get_device_guid)(device) })
    }

    /// Whether the device speaks iWARP.
    pub(crate) fn is_iwarp(&self) -> bool {
        // SAFETY: the context is open as long as this.
        let device = unsafe { (*self.as_ptr()).device };
        // SAFETY: an open context keeps its device, which does not change.
        let transport = unsafe { (*device).transport_type };
        transport == IBV_TRANSPORT_IWARP
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // SAFETY: opened by the function that belongs to it, and everything made from it is gone.
        unsafe { (self.verbs.ibv_close_device)(self.as_ptr()) };
    }
}
