//! Devices that rdma-core lists, and open ones.

use std::collections::BTreeMap;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use feroce_abi::*;
use feroce_engine::AhId;
use feroce_mem::MwType;

use crate::Error;
use crate::describe::{self, DeviceInfo, Listed, PortInfo};
use crate::events::{Sink, Watcher};
use crate::handle::Handle;
use crate::library::verbs;
use crate::open::{List, Open};

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
    windows: Mutex<BTreeMap<u32, AllocatedMw>>,
}

/// The address handle of a table entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AhPtr(pub(crate) NonNull<ibv_ah>);

// SAFETY: rdma-core lets any thread use an address handle; the table's lock orders its end.
unsafe impl Send for AhPtr {}

// SAFETY: rdma-core lets several threads post with one address handle at the same time.
unsafe impl Sync for AhPtr {}

/// A window as work requests find it.
#[derive(Clone, Debug)]
pub(crate) struct AllocatedMw {
    pub(crate) handle: Weak<Handle<ibv_mw>>,
    pub(crate) kind: MwType,
}

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
    pub(crate) fn windows(&self) -> MutexGuard<'_, BTreeMap<u32, AllocatedMw>> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number that no other object of the device has.
    pub(crate) fn number(&self) -> u32 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }
}
