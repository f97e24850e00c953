//! Objects that are used through another context of the same process.
//!
//! A context is found by a duplicate of its command descriptor, objects in it by their handles.
//! Other processes have adapters of their own, so they cannot import anything.

use core::ffi::c_int;
use std::collections::BTreeMap;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::context::Context;
use super::dm::{Dm, Reserved};
use super::identity::FileId;
use super::mr::Mr;
use super::object::Object;
use super::pd::{Pd, Shared};
use crate::abi::*;
use crate::errno::{Errno, pointer};

/// What a context has that can be imported, by handle.
#[derive(Default)]
pub(crate) struct Exports {
    tables: Mutex<Tables>,
    last: AtomicU32,
}

#[derive(Default)]
pub(crate) struct Tables {
    pub(crate) pds: BTreeMap<u32, Shared>,
    /// Keys and length of memory regions; both keys are the same number.
    pub(crate) mrs: BTreeMap<u32, usize>,
    pub(crate) dms: BTreeMap<u32, Arc<Reserved>>,
}

impl Tables {
    /// Whether there is nothing in them.
    pub(crate) fn is_empty(&self) -> bool {
        self.pds.is_empty() && self.mrs.is_empty() && self.dms.is_empty()
    }
}

impl Exports {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A handle that nothing in the context has had.
    pub(crate) fn handle(&self) -> u32 {
        self.last.fetch_add(1, Ordering::Relaxed)
    }
}

/// Contexts that are open, by their command descriptors. Those that are closed are swept out when
/// another is opened.
static CONTEXTS: Mutex<Vec<(FileId, String, Weak<Exports>)>> = Mutex::new(Vec::new());

/// Lets a context be imported.
pub(crate) fn offer(id: FileId, device: &str, exports: &Arc<Exports>) {
    let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    contexts.retain(|(.., exports)| exports.strong_count() > 0);
    contexts.push((id, device.to_owned(), Arc::downgrade(exports)));
}

/// The context that a descriptor names: its device and what it has.
fn find(fd: c_int) -> Result<(String, Arc<Exports>), Errno> {
    let id = FileId::of(fd)?;
    let contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    let found = contexts.iter().find(|(known, ..)| *known == id);
    let found = found.and_then(|(_, device, exports)| Some((device.clone(), exports.upgrade()?)));
    // A descriptor that is not from here may be from another process.
    found.ok_or(Errno::UNSUPPORTED)
}

pub(crate) unsafe extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    pointer(find(cmd_fd).and_then(|(device, exports)| {
        // SAFETY: ibv_import_device(3): the library takes over the descriptor, which `Identity::of`
        // has found open.
        let cmd_fd = unsafe { OwnedFd::from_raw_fd(cmd_fd) };
        Context::import(&device, cmd_fd, exports)
    }))
}

pub(crate) unsafe extern "C" fn ibv_import_pd(
    context: *mut ibv_context,
    handle: u32,
) -> *mut ibv_pd {
    // SAFETY: ibv_import_pd(3): `context` is a live context.
    let behind = unsafe { Context::behind(context) };
    let tables = behind.exports.lock();
    let found = tables.pds.get(&handle).ok_or(Errno::INVALID);
    pointer(found.map(|shared| Pd::import(shared, context, handle)))
}

pub(crate) unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    // SAFETY: ibv_unimport_pd(3): `pd` is a live imported protection domain, which the program does
    // not use after this call.
    drop(unsafe { Pd::take(pd) });
}

pub(crate) unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    // SAFETY: ibv_import_mr(3): `pd` is a live protection domain.
    let context = unsafe { Context::of_object(pd) };
    let length = context.exports.lock().mrs.get(&handle).copied();
    pointer(length.ok_or(Errno::INVALID).map(|length| Mr::import(handle, length, pd)))
}

pub(crate) unsafe extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    // SAFETY: ibv_unimport_mr(3): `mr` is a live imported memory region, which the program does not
    // use after this call.
    drop(unsafe { Mr::take(mr) });
}

pub(crate) unsafe extern "C" fn ibv_import_dm(
    context: *mut ibv_context,
    handle: u32,
) -> *mut ibv_dm {
    // SAFETY: ibv_import_dm(3): `context` is a live context.
    let behind = unsafe { Context::behind(context) };
    let found = behind.exports.lock().dms.get(&handle).cloned();
    pointer(found.ok_or(Errno::INVALID).map(|memory| Dm::publish(memory, context, handle)))
}

pub(crate) unsafe extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    // SAFETY: ibv_unimport_dm(3): `dm` is live imported device memory, which the program does not
    // use after this call.
    drop(unsafe { Dm::take(dm) });
}
