//! Devices as connections use them.
//!
//! An id shows the program a context and a protection domain of its device. Both are made when an
//! address first needs the device, are the same for all ids, and stay until the process ends:
//! programs make objects from them, which this library does not count.

use core::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

use feroce::cm::Manager;
use feroce::wire::Gid;
use feroce_lint::{self as lint, Kind};

use crate::abi::*;
use crate::errno::{Errno, pointer};
use crate::verbs::adapter;
use crate::verbs::device::Device;
use crate::verbs::object::Object;
use crate::verbs::pd::ibv_alloc_pd;
use crate::verbs::table::ibv_open_device;

/// A device as ids show it.
#[derive(Clone, Copy)]
pub(crate) struct Opened {
    device: &'static Device,
    pub(crate) verbs: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
}

// SAFETY: threads may share contexts and protection domains, and this process never frees these
// two.
unsafe impl Send for Opened {}

/// What this process has opened.
struct Process {
    id: u32,
    manager: Manager,
    opened: Vec<Opened>,
}

static PROCESS: Mutex<Option<Process>> = Mutex::new(None);

/// A child of a process that used connections has none of its threads, and begins anew.
fn process(slot: &mut MutexGuard<'_, Option<Process>>) -> (Manager, Vec<Opened>) {
    let id = std::process::id();
    if slot.as_ref().is_none_or(|process| process.id != id) {
        let manager = Manager::opening(adapter::open);
        // What the parent had cannot be taken down here: it is still in use there.
        std::mem::forget(slot.replace(Process { id, manager, opened: Vec::new() }));
    }
    let process = slot.as_ref().map(|process| (process.manager.clone(), process.opened.clone()));
    process.unwrap_or_else(|| unreachable!("it was just put there"))
}

fn lock() -> MutexGuard<'static, Option<Process>> {
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The connection manager of this process.
pub(crate) fn manager() -> Manager {
    process(&mut lock()).0
}

/// What ids of an adapter show.
pub(crate) fn of(adapter: &feroce::Context) -> Result<Opened, Errno> {
    open(Device::of_facts(adapter.device()))
}

fn open(device: &'static Device) -> Result<Opened, Errno> {
    let mut slot = lock();
    let (_, opened) = process(&mut slot);
    if let Some(known) = opened.iter().find(|known| core::ptr::eq(known.device, device)) {
        return Ok(*known);
    }
    // SAFETY: `device` is a device of this library, which never frees devices.
    let verbs = unsafe { ibv_open_device(device.public()) };
    if verbs.is_null() {
        return Err(Errno::last());
    }
    lint::kept(Kind::Device);
    // SAFETY: `verbs` was opened above, and is never closed.
    let pd = unsafe { ibv_alloc_pd(verbs) };
    if pd.is_null() {
        return Err(Errno::last());
    }
    lint::kept(Kind::Pd);
    let made = Opened { device, verbs, pd };
    if let Some(process) = slot.as_mut() {
        process.opened.push(made);
    }
    Ok(made)
}

/// The address of a device, as the header has it.
pub(crate) fn gid(gid: Gid) -> ibv_gid {
    ibv_gid { raw: gid.0 }
}

pub(crate) unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    if !count.is_null() {
        // SAFETY: rdma_get_devices(3): `count`, which is not NULL here, points to room for the
        // number.
        unsafe { *count = 0 };
    }
    let devices = Device::list()
        .and_then(|devices| devices.into_iter().map(open).collect::<Result<Vec<_>, _>>());
    let array = devices.and_then(|devices| {
        // SAFETY: calloc(3) has no preconditions. The memory is zeroed, so the last pointer is
        // NULL.
        let array = unsafe { libc::calloc(devices.len() + 1, size_of::<*mut ibv_context>()) };
        let array: *mut *mut ibv_context = array.cast();
        if array.is_null() {
            return Err(Errno::NO_MEMORY);
        }
        for (i, device) in devices.iter().enumerate() {
            // SAFETY: `i` is less than the number of devices, and the array has one element more
            // than that.
            let place = unsafe { array.add(i) };
            // SAFETY: `place` points to element `i` of the array.
            unsafe { *place = device.verbs };
        }
        if !count.is_null() {
            // SAFETY: rdma_get_devices(3): `count`, which is not NULL here, points to room for the
            // number.
            unsafe { *count = devices.len() as c_int };
        }
        Ok(array)
    });
    pointer(array)
}

pub(crate) unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: rdma_free_devices(3): `list` is NULL or the array that rdma_get_devices(3) allocated
    // with calloc(3).
    unsafe { libc::free(list.cast()) };
}
