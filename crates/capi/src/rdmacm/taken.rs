//! Events that the program has taken and not acknowledged.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::ptr;
use std::sync::Arc;

use crate::abi::*;
use crate::errno::{Errno, status};
use crate::verbs::ack::Acks;
use crate::verbs::object::Object;

/// An event that the program has.
#[repr(C)]
pub(super) struct Event {
    pub(super) public: UnsafeCell<rdma_cm_event>,
    /// What the parameters lead to.
    pub(super) private_data: Vec<u8>,
    /// Events of the id that waits for the acknowledgement: of a request, the listener.
    pub(super) id: Arc<Acks>,
    /// Events of the group that waits as well.
    pub(super) group: Option<Arc<Acks>>,
}

// SAFETY: the type is `repr(C)`, and its first field is the `UnsafeCell` of the public part.
unsafe impl Object for Event {
    type C = rdma_cm_event;
}

pub(crate) unsafe extern "C" fn rdma_ack_cm_event(public: *mut rdma_cm_event) -> c_int {
    if public.is_null() {
        return status(Err(Errno::INVALID));
    }
    // SAFETY: rdma_ack_cm_event(3): `public` is a live event, which the program does not use any
    // more.
    let event = unsafe { Event::take(public) };
    if let Some(acks) = &event.group {
        acks.ack(1);
    }
    event.id.ack(1);
    0
}

/// Acknowledges the event that an id keeps for the program, if there is one.
///
/// # Safety
/// `id` is a live id.
pub(crate) unsafe fn forget(id: *mut rdma_cm_id) {
    // SAFETY: by this function's contract `id` points to a live object; only the field `event` is
    // read, without a reference.
    let kept = unsafe { (*id).event };
    if kept.is_null() {
        return;
    }
    // SAFETY: by this function's contract `id` points to a live object. This library sets `event`
    // through the raw pointer, without a reference to the public part.
    unsafe { (*id).event = ptr::null_mut() };
    // SAFETY: `kept` is an event that the id kept for the program, which may not use it after
    // another call on the id.
    unsafe { rdma_ack_cm_event(kept) };
}
