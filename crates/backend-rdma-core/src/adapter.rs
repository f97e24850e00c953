//! Devices that rdma-core lists, and open ones.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int};
use std::path::Path;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use feroce_abi::*;
use feroce_engine::AhId;

use crate::describe::{self, DeviceInfo, PortInfo};
use crate::events::{Sink, Watcher};
use crate::handle::Handle;
use crate::library::{Verbs, verbs};
use crate::memory::Window;
use crate::{Error, LibraryError, failed};

/// The devices that the library knows.
struct List {
    verbs: &'static Verbs,
    array: NonNull<*mut ibv_device>,
    count: usize,
}

impl List {
    fn new(verbs: &'static Verbs) -> Result<Self, Error> {
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
    fn iter(&self) -> impl Iterator<Item = (String, *mut ibv_device)> {
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

/// A device that the library lists.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Name.
    pub name: String,
    /// Node GUID.
    pub guid: u64,
    /// Indices of the network interfaces of its GIDs, in the order of the GIDs.
    pub interfaces: Vec<u32>,
    /// Its port.
    pub port: PortInfo,
}

/// The devices that the library lists; it is loaded from `directory` if given, else from where the
/// dynamic linker looks. A device that cannot be opened is left out, with a warning in the log.
pub fn list(directory: Option<&Path>) -> Result<Vec<Listed>, Error> {
    let verbs = verbs(directory)?;
    let list = List::new(verbs)?;
    let mut devices = Vec::new();
    for (name, device) in list.iter() {
        match Open::new(verbs, device).and_then(|open| describe::listed(&open, &name)) {
            Ok(found) => devices.push(found),
            Err(e) => tracing::warn!("{name}: {e}"),
        }
    }
    Ok(devices)
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
    fn new(verbs: &'static Verbs, device: *mut ibv_device) -> Result<Self, Error> {
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
}

impl Drop for Open {
    fn drop(&mut self) {
        // SAFETY: opened by the function that belongs to it, and everything made from it is gone.
        unsafe { (self.verbs.ibv_close_device)(self.as_ptr()) };
    }
}

/// An open device.
#[derive(Debug)]
pub struct Adapter {
    // Declared first, so that its thread ends before the device is closed.
    _watcher: Watcher,
    pub(crate) open: Arc<Open>,
    name: String,
    info: DeviceInfo,
    /// The answer to the last successful query.
    port: Mutex<PortInfo>,
    /// Numbers for objects that have none in C.
    numbers: AtomicU32,
    /// Work requests name address handles by number, regions and windows by key.
    pub(crate) ahs: RwLock<BTreeMap<AhId, AhPtr>>,
    regions: Mutex<BTreeMap<u32, Weak<Handle<ibv_mr>>>>,
    windows: Mutex<BTreeMap<u32, Window>>,
}

/// The address handle of a table entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AhPtr(pub(crate) NonNull<ibv_ah>);

// SAFETY: rdma-core lets any thread use an address handle; the table's lock orders its end.
unsafe impl Send for AhPtr {}

// SAFETY: rdma-core lets several threads post with one address handle at the same time.
unsafe impl Sync for AhPtr {}

impl Adapter {
    /// Opens the device with this name. A thread of the adapter passes asynchronous events to
    /// `events`.
    pub fn open(name: &str, directory: Option<&Path>, events: Sink) -> Result<Arc<Self>, Error> {
        let verbs = verbs(directory)?;
        let list = List::new(verbs)?;
        let found = list.iter().find(|(listed, _)| listed == name);
        let (_, device) = found.ok_or_else(|| Error::NoDevice(name.to_owned()))?;
        let open = Arc::new(Open::new(verbs, device)?);
        let info = describe::device_info(&open)?;
        let port = describe::port_info(&open)?;
        let watcher = Watcher::start(&open, name, events, port.gids.clone())?;
        Ok(Arc::new(Self {
            _watcher: watcher,
            open,
            name: name.to_owned(),
            info,
            port: Mutex::new(port),
            numbers: AtomicU32::new(1),
            ahs: RwLock::default(),
            regions: Mutex::default(),
            windows: Mutex::default(),
        }))
    }

    /// Limits and identity.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// The port. If the query fails, this is the answer to the last successful one.
    pub fn port(&self) -> PortInfo {
        let mut known = self.port.lock().unwrap_or_else(PoisonError::into_inner);
        match describe::port_info(&self.open) {
            Ok(port) => *known = port,
            Err(e) => tracing::warn!("{}: {e}", self.name),
        }
        known.clone()
    }

    /// Memory regions by their local keys.
    pub(crate) fn regions(&self) -> MutexGuard<'_, BTreeMap<u32, Weak<Handle<ibv_mr>>>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Windows by the part of their keys that stays the same.
    pub(crate) fn windows(&self) -> MutexGuard<'_, BTreeMap<u32, Window>> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number that no other object of the device has.
    pub(crate) fn number(&self) -> u32 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }
}
