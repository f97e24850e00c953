//! Event channels.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use std::os::fd::AsRawFd;

use feroce::cm::EventChannel;

use super::{devices, event, table};
use crate::abi::*;
use crate::verbs::fault::{Fault, pointer, status};
use crate::verbs::object::Object;
use crate::verbs::wait;

/// An event channel.
#[repr(C)]
pub(crate) struct Channel {
    public: UnsafeCell<rdma_event_channel>,
    pub(crate) channel: EventChannel,
}

// SAFETY: `repr(C)`, and the first field is the public part.
unsafe impl Object for Channel {
    type C = rdma_event_channel;
}

impl Channel {
    /// Makes one.
    pub(crate) fn create() -> Result<*mut rdma_event_channel, Fault> {
        let channel = devices::manager().event_channel()?;
        let public = UnsafeCell::new(rdma_event_channel { fd: channel.as_raw_fd() });
        Ok(Self { public, channel }.give())
    }
}

pub(crate) extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    pointer(Channel::create())
}

pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(public: *mut rdma_event_channel) {
    // SAFETY: a channel of the program, which it uses no more.
    drop(unsafe { Channel::take(public) });
}

/// May be cancelled while it waits: see [`wait`].
pub(crate) unsafe extern "C-unwind" fn rdma_get_cm_event(
    public: *mut rdma_event_channel,
    place: *mut *mut rdma_cm_event,
) -> c_int {
    if place.is_null() {
        return status(Err(Fault::INVALID));
    }
    loop {
        // SAFETY: a channel of the program.
        if let Some(event) = unsafe { next(public) } {
            // SAFETY: the program gives a place for the event.
            unsafe { *place = event };
            return 0;
        }
        // SAFETY: a channel of the program, whose descriptor never changes.
        let fd = unsafe { (*public).fd };
        if let Err(fault) = wait::until_readable(fd) {
            return status(Err(fault));
        }
    }
}

/// The next event whose id still exists.
///
/// # Safety
/// `public` is a channel of the program.
unsafe fn next(public: *mut rdma_event_channel) -> Option<*mut rdma_cm_event> {
    // SAFETY: as the caller says.
    let channel = unsafe { Channel::of(public) };
    // First, so that no id goes away between its event being taken and being counted.
    let mut ids = table::lock();
    loop {
        let event = channel.channel.try_event()?;
        if let Some(event) = event::publish(&mut ids, event) {
            return Some(event);
        }
    }
}
