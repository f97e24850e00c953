//! Completion channels.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_uint, c_void};
use std::os::fd::AsRawFd;

use feroce_lint::Kind;

use super::context::Context;
use super::cq::Cq;
use super::object::Object;
use super::wait;
use crate::abi::*;
use crate::errno::{Errno, code, pointer, status};

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
    let made = behind.adapter().create_comp_channel().map(|channel| {
        let fd = channel.as_raw_fd();
        let public = UnsafeCell::new(ibv_comp_channel { context, fd, refcnt: 0 });
        Channel { public, channel }.give()
    });
    pointer(made.map_err(Errno::from))
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

/// May be cancelled while it waits: see [`wait`].
pub(crate) unsafe extern "C-unwind" fn ibv_get_cq_event(
    public: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    loop {
        // SAFETY: ibv_get_cq_event(3): `public` is a live channel.
        if let Some(found) = unsafe { next_event(public) } {
            // SAFETY: ibv_get_cq_event(3): `cq` points to room for the queue.
            unsafe { *cq = found };
            // SAFETY: ibv_destroy_cq(3) waits until the events of the queue are acknowledged, so
            // the queue is live.
            let value = unsafe { (*found).cq_context };
            // SAFETY: ibv_get_cq_event(3): `cq_context` points to room for the answer.
            unsafe { *cq_context = value };
            return 0;
        }
        // SAFETY: ibv_get_cq_event(3): `public` is a live channel, whose descriptor does not
        // change.
        let fd = unsafe { (*public).fd };
        if let Err(errno) = wait::until_readable(fd) {
            return status(Err(errno));
        }
    }
}

/// The queue of the next event that still exists.
///
/// # Safety
/// `public` is a live channel.
unsafe fn next_event(public: *mut ibv_comp_channel) -> Option<*mut ibv_cq> {
    // SAFETY: by this function's contract, `public` is a live channel.
    let channel = unsafe { Channel::of(public) };
    // SAFETY: the object is live, and ibv_close_device(3) may not be called before it is destroyed,
    // so its context is open.
    let context = unsafe { Context::of_object(public) };
    loop {
        let id = channel.channel.try_event()?;
        let tables = context.registry.lock();
        if let Some(listed) = tables.cqs.get(&id) {
            // SAFETY: the object is in the tables, which this thread has locked; its destructor
            // removes it from there before it frees it.
            let cq = unsafe { listed.get() };
            cq.comp_acks.deliver();
            return Some(cq.as_ptr());
        }
    }
}

pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint) {
    // SAFETY: ibv_ack_cq_events(3): `cq` is a live completion queue.
    let cq = unsafe { Cq::behind(cq) };
    cq.comp_acks.ack(count.into());
}
