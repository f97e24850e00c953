//! Devices of the kernel's drivers, listed and open.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int};
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use feroce_abi::*;
use feroce_engine::AhId;

use super::describe;
use super::events::Watcher;
use super::failed;
use super::handle::Handle;
use super::library::{Verbs, verbs};
use super::memory::Window;
use crate::attr::{DeviceAttr, PortAttr};
use crate::device::Device;
use crate::driver::{Clock, Dispatch};
use crate::{Error, Settings};

const NO_DRIVERS: &str = "the kernel has no RDMA drivers: load that of the adapter, or `rdma_rxe`";

/// The devices that the library knows.
struct List {
    verbs: &'static Verbs,
    array: NonNull<*mut ibv_device>,
    count: usize,
}

impl List {
    fn new(verbs: &'static Verbs) -> Result<Self, Error> {
        let mut count: c_int = 0;
        // SAFETY: the number is written to a place of ours.
        let array = unsafe { (verbs.ibv_get_device_list)(&raw mut count) };
        let count = usize::try_from(count).unwrap_or(0);
        let array = NonNull::new(array).ok_or_else(|| match failed("ibv_get_device_list") {
            Error::Verbs { error, .. } if error.raw_os_error() == Some(libc::ENOSYS) => {
                Error::Library(NO_DRIVERS.to_owned())
            }
            e => e,
        })?;
        Ok(Self { verbs, array, count })
    }

    /// The devices with their names. The pointers are good as long as the list.
    fn iter(&self) -> impl Iterator<Item = (String, *mut ibv_device)> {
        // SAFETY: the library says that there are so many, and frees them with the list.
        let devices = unsafe { slice::from_raw_parts(self.array.as_ptr(), self.count) };
        devices.iter().map(|&device| {
            // SAFETY: a device of the list.
            let name = unsafe { &raw const (*device).name };
            // SAFETY: the name ends with a zero.
            let name = unsafe { CStr::from_ptr(name.cast()) };
            (name.to_string_lossy().into_owned(), device)
        })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: made by the function that belongs to it. Devices that are open stay.
        unsafe { (self.verbs.ibv_free_device_list)(self.array.as_ptr()) };
    }
}

/// The devices of the kernel's drivers. One that cannot be opened is left out, aloud.
pub(crate) fn list(settings: &Settings) -> Result<Vec<Device>, Error> {
    let verbs = verbs(settings.rdma_core.as_deref())?;
    let list = List::new(verbs)?;
    let mut devices = Vec::new();
    for (name, device) in list.iter() {
        match Open::new(verbs, device).and_then(|open| describe::device(&open, &name)) {
            Ok(found) => devices.push(found),
            Err(e) => tracing::warn!("{name}: {e}"),
        }
    }
    Ok(devices)
}

/// An open context of the library.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) verbs: &'static Verbs,
    context: NonNull<ibv_context>,
}

// SAFETY: the library is safe to call from any thread.
unsafe impl Send for Open {}

// SAFETY: as above.
unsafe impl Sync for Open {}

impl Open {
    /// Opens a device of a list that is still there.
    fn new(verbs: &'static Verbs, device: *mut ibv_device) -> Result<Self, Error> {
        // SAFETY: as the caller says, it is a device of the library.
        let context = unsafe { (verbs.ibv_open_device)(device) };
        let context = NonNull::new(context).ok_or_else(|| failed("ibv_open_device"))?;
        Ok(Self { verbs, context })
    }

    /// What C calls it.
    #[inline]
    pub(super) fn as_ptr(&self) -> *mut ibv_context {
        self.context.as_ptr()
    }

    /// What the header's inline functions call.
    #[inline]
    pub(super) fn ops(&self) -> &ibv_context_ops {
        // SAFETY: the context is open as long as this, and its table does not change.
        unsafe { &(*self.as_ptr()).ops }
    }

    /// Identity of the device.
    pub(super) fn guid(&self) -> u64 {
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

/// An open device of the kernel's drivers.
#[derive(Debug)]
pub(crate) struct Adapter {
    // First, so that its thread is gone before the device is closed.
    _watcher: Watcher,
    pub(super) open: Arc<Open>,
    name: String,
    attr: DeviceAttr,
    /// As it was when it was last asked for.
    port: Mutex<PortAttr>,
    clock: Clock,
    dispatch: Arc<Mutex<Dispatch>>,
    /// Numbers for objects that have none in C.
    numbers: AtomicU32,
    /// Work requests name address handles by number, regions and windows by key.
    pub(super) ahs: RwLock<BTreeMap<AhId, NonNull<ibv_ah>>>,
    regions: Mutex<BTreeMap<u32, Weak<Handle<ibv_mr>>>>,
    windows: Mutex<BTreeMap<u32, Window>>,
}

// SAFETY: the library is safe to call from any thread; the tables are behind locks.
unsafe impl Send for Adapter {}

// SAFETY: as above.
unsafe impl Sync for Adapter {}

impl Adapter {
    /// Opens the device with this name.
    pub(crate) fn open(name: &str, settings: &Settings) -> Result<Arc<Self>, Error> {
        refuse_layers(settings)?;
        let verbs = verbs(settings.rdma_core.as_deref())?;
        let list = List::new(verbs)?;
        let found = list.iter().find(|(listed, _)| listed == name);
        let (_, device) = found.ok_or_else(|| Error::NoDevice(name.to_owned()))?;
        let open = Arc::new(Open::new(verbs, device)?);
        let attr = describe::device_attr(&open, name)?;
        let port = describe::port_attr(&open)?;
        let dispatch = Arc::new(Mutex::new(Dispatch::default()));
        let watcher = Watcher::start(&open, name, &dispatch, port.gids.clone())?;
        Ok(Arc::new(Self {
            _watcher: watcher,
            open,
            name: name.to_owned(),
            attr,
            port: Mutex::new(port),
            clock: Clock::start(),
            dispatch,
            numbers: AtomicU32::new(1),
            ahs: RwLock::default(),
            regions: Mutex::default(),
            windows: Mutex::default(),
        }))
    }

    /// Limits and identity.
    pub(crate) fn attr(&self) -> &DeviceAttr {
        &self.attr
    }

    /// The port; as it was before if it cannot be asked now.
    pub(crate) fn port(&self) -> PortAttr {
        let mut known = self.port.lock().unwrap_or_else(PoisonError::into_inner);
        match describe::port_attr(&self.open) {
            Ok(port) => *known = port,
            Err(e) => tracing::warn!("{}: {e}", self.name),
        }
        known.clone()
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Who hears of what.
    pub(crate) fn dispatch(&self) -> MutexGuard<'_, Dispatch> {
        self.dispatch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory regions by their local keys.
    pub(super) fn regions(&self) -> MutexGuard<'_, BTreeMap<u32, Weak<Handle<ibv_mr>>>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Windows by the part of their keys that stays the same.
    pub(super) fn windows(&self) -> MutexGuard<'_, BTreeMap<u32, Window>> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number that no other object of the device has.
    pub(super) fn number(&self) -> u32 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }
}

/// Packets of a device that is not ours are not to be seen, and even less to be lost.
fn refuse_layers(settings: &Settings) -> Result<(), Error> {
    let asked = [
        (settings.pcap.is_some(), "capturing packets (`pcap`)"),
        (settings.trace.is_some(), "tracing packets (`trace`)"),
        (settings.fault.is_some(), "injecting faults (`fault`)"),
        (settings.tap.is_some(), "a tap on packets"),
    ];
    match asked.iter().find(|(is_asked, _)| *is_asked) {
        Some((_, what)) => Err(Error::Unsupported(what)),
        None => Ok(()),
    }
}
