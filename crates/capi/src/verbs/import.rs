//! Objects that are used through another context of the same process.
//!
//! A context is found by a duplicate of its command descriptor, objects in it by their handles.
//! Other processes have adapters of their own, so they cannot import anything.
//!
//! A command descriptor has to be a character device, as programs check, and there are no character
//! devices of ours. So it is the null device, opened once per context and marked: with the process
//! that owns it, and with the number of a signal that the kernel would send to that process about
//! it, and never does, because no file asks for signals by itself. Duplicates have the same marks.

use core::ffi::c_int;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::context::Context;
use super::dm::{Dm, Reserved};
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

/// The marks that contexts can have: the numbers of signals.
const MARKS: core::ops::RangeInclusive<c_int> = 1..=64;

/// A context that can be imported.
struct Offer {
    mark: c_int,
    device: String,
    exports: Weak<Exports>,
}

/// Contexts that are open. Those that are closed are swept out when another is opened.
static OFFERS: Mutex<Vec<Offer>> = Mutex::new(Vec::new());

/// Opens the command descriptor of a context, with which it can be imported. When there are as many
/// contexts as marks, the next one cannot be imported.
pub(crate) fn offer(device: &str, exports: &Arc<Exports>) -> Result<OwnedFd, Errno> {
    let null = File::options().read(true).write(true).open("/dev/null");
    let fd = OwnedFd::from(null.map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::ENOENT)))?);
    let mut offers = OFFERS.lock().unwrap_or_else(PoisonError::into_inner);
    offers.retain(|offer| offer.exports.strong_count() > 0);
    let is_free = |mark: &c_int| offers.iter().all(|offer| offer.mark != *mark);
    let Some(mark) = MARKS.into_iter().find(is_free) else { return Ok(fd) };
    let owner = c_int::try_from(process::id()).map_err(|_| Errno::INVALID)?;
    let set = |command, value: c_int| {
        // SAFETY: fcntl(2) with a command that takes a number and touches no memory.
        let status = unsafe { libc::fcntl(fd.as_raw_fd(), command, value) };
        status == 0
    };
    if set(libc::F_SETOWN, owner) && set(F_SETSIG, mark) {
        offers.push(Offer { mark, device: device.to_owned(), exports: Arc::downgrade(exports) });
    }
    drop(offers);
    Ok(fd)
}

/// Commands of fcntl(2) that the C library declares for programs, in `bits/fcntl-linux.h`.
const F_SETSIG: c_int = 10;
const F_GETSIG: c_int = 11;

/// The context that a descriptor names: its device and what it has.
fn find(fd: c_int) -> Result<(String, Arc<Exports>), Errno> {
    // SAFETY: fcntl(2) with a command that takes no argument and touches no memory.
    let ask = |command| match unsafe { libc::fcntl(fd, command) } {
        -1 => Err(Errno::last()),
        answer => Ok(answer),
    };
    let (owner, mark) = (ask(libc::F_GETOWN)?, ask(F_GETSIG)?);
    // A descriptor that is not from here may be from another process.
    if u32::try_from(owner) != Ok(process::id()) {
        return Err(Errno::UNSUPPORTED);
    }
    let offers = OFFERS.lock().unwrap_or_else(PoisonError::into_inner);
    let found = offers.iter().find(|offer| offer.mark == mark);
    let found = found.and_then(|offer| Some((offer.device.clone(), offer.exports.upgrade()?)));
    drop(offers);
    found.ok_or(Errno::UNSUPPORTED)
}

pub(crate) unsafe extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    pointer(find(cmd_fd).and_then(|(device, exports)| {
        // SAFETY: ibv_import_device(3): the library takes over the descriptor, which `find` has
        // found open.
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
