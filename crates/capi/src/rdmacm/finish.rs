//! The end of calls that lead to an event.

use core::ffi::c_int;

use super::event::rdma_get_cm_event;
use super::id::Id;
use super::taken;
use crate::abi::*;
use crate::errno::{Errno, status};
use crate::verbs::object::Object;

/// Ends a call that leads to an event: if calls of the id wait, it waits for the event and keeps
/// it. May be cancelled, so nothing that needs dropping may be alive.
///
/// # Safety
/// `public` is a live id.
pub(crate) unsafe fn finish(public: *mut rdma_cm_id, started: Result<(), Errno>) -> c_int {
    // SAFETY: by this function's contract, `public` is a live id.
    let is_sync = unsafe { Id::of(public) }.private().is_sync;
    if started.is_err() || !is_sync {
        return status(started);
    }
    // SAFETY: by this function's contract, `public` is a live id.
    unsafe { taken::forget(public) };
    // SAFETY: by this function's contract `public` points to a live object; only the field
    // `channel` is read, without a reference.
    let channel = unsafe { (*public).channel };
    // SAFETY: by this function's contract `public` points to a live object; only the field `event`
    // is read, without a reference.
    let place = unsafe { &raw mut (*public).event };
    // SAFETY: the channel of a live id is live, and `place` points to a field of the id.
    if unsafe { rdma_get_cm_event(channel, place) } != 0 {
        return -1;
    }
    // SAFETY: `place` points to a field of a live id.
    let event = unsafe { place.read() };
    // SAFETY: the call succeeded, so it has set the pointer to an event.
    let event = unsafe { event.read() };
    status(match (event.event, event.status) {
        (_, 0) => Ok(()),
        (RDMA_CM_EVENT_REJECTED, _) => Err(Errno(libc::ECONNREFUSED)),
        (_, code) => Err(Errno(code.saturating_abs())),
    })
}
