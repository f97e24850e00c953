//! Completion events, from a channel to their acknowledgement.

use core::ffi::{c_int, c_uint, c_void};

use super::channel::Channel;
use super::context::Context;
use super::cq::Cq;
use super::object::Object;
use super::wait;
use crate::abi::*;
use crate::errno::status;

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
            let cq: &Cq = unsafe { listed.get() };
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
