//! Objects that are used through another context of the same process. See [`shared`].

use core::ffi::c_int;
use std::os::fd::{FromRawFd, OwnedFd};

use super::context::Context;
use super::dm::Dm;
use super::mr::Mr;
use super::object::Object;
use super::pd::Pd;
use super::shared::{self, Registered};
use super::table;
use crate::abi::*;
use crate::errno::{Errno, pointer};
use crate::memory;

pub(crate) unsafe extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    pointer(memory::admit().and_then(|()| shared::find(cmd_fd)).and_then(|(device, exports)| {
        // SAFETY: ibv_import_device(3): the library takes over the descriptor, which `find` has
        // found open.
        let cmd_fd = unsafe { OwnedFd::from_raw_fd(cmd_fd) };
        Context::import(&device, cmd_fd, exports, table::calls())
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
    let import = |shared| memory::admit().map(|()| Pd::import(shared, context, handle));
    pointer(found.and_then(import))
}

pub(crate) unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    // SAFETY: ibv_unimport_pd(3): `pd` is a live imported protection domain, which the program does
    // not use after this call.
    drop(unsafe { Pd::take(pd) });
}

pub(crate) unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    // SAFETY: ibv_import_mr(3): `pd` is a live protection domain.
    let context = unsafe { Context::of_object(pd) };
    let found = context.exports.lock().mrs.get(&handle).copied();
    let import = |mr: Registered| memory::admit().map(|()| Mr::import(handle, mr.length, pd));
    pointer(found.ok_or(Errno::INVALID).and_then(import))
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
    let import = |dm| memory::admit().map(|()| Dm::publish(dm, context, handle));
    pointer(found.ok_or(Errno::INVALID).and_then(import))
}

pub(crate) unsafe extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    // SAFETY: ibv_unimport_dm(3): `dm` is live imported device memory, which the program does not
    // use after this call.
    drop(unsafe { Dm::take(dm) });
}
