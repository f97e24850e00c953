//! Completion channels.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use std::os::fd::AsRawFd;

use feroce_lint::Kind;

use super::context::Context;
use super::object::Object;
use crate::abi::*;
use crate::errno::{Errno, code, pointer};
use crate::memory;

/// A completion channel. How many queues report to it is counted in the public part, under the
/// lock of the context's registry.
#[repr(C)]
pub(crate) struct Channel {
    public: UnsafeCell<ibv_comp_channel>,
    pub(crate) channel: feroce::CompChannel,
}

// SAFETY: the type is `repr(C)`, and its first field is the `UnsafeCell` of the public part.
unsafe impl Object for Channel {
    type C = ibv_comp_channel;

    const KIND: Option<Kind> = Some(Kind::Channel);
}

impl Channel {
    /// Counts a completion queue that starts or stops reporting to the channel.
    ///
    /// # Safety
    /// `public` is a live channel.
    pub(crate) unsafe fn count(public: *mut ibv_comp_channel, change: c_int) {
        // SAFETY: the object is live, and ibv_close_device(3) may not be called before it is
        // destroyed, so its context is open.
        let context = unsafe { Context::of_object(public) };
        let tables = context.registry.lock();
        // SAFETY: all calls access the counter under the lock that this thread holds.
        unsafe { (*public).refcnt += change };
        drop(tables);
    }
}

pub(crate) unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    // SAFETY: ibv_create_comp_channel(3): `context` is a live context.
    let behind = unsafe { Context::behind(context) };
    pointer(memory::admit().and_then(|()| {
        let channel = behind.adapter().create_comp_channel()?;
        let fd = channel.as_raw_fd();
        let public = UnsafeCell::new(ibv_comp_channel { context, fd, refcnt: 0 });
        Ok(Channel { public, channel }.give())
    }))
}

pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(public: *mut ibv_comp_channel) -> c_int {
    // SAFETY: the object is live, and ibv_close_device(3) may not be called before it is destroyed,
    // so its context is open.
    let context = unsafe { Context::of_object(public) };
    let tables = context.registry.lock();
    // SAFETY: all calls access the counter under the lock that this thread holds.
    let users = unsafe { (*public).refcnt };
    drop(tables);
    if users > 0 {
        return code(Err(Errno::BUSY));
    }
    // SAFETY: no completion queue reports to the channel, and the program does not use it after
    // this call.
    drop(unsafe { Channel::take(public) });
    0
}
