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

// SAFETY: `repr(C)`, and the first field is the public part.
unsafe impl Object for Channel {
    type C = ibv_comp_channel;

    const KIND: Option<Kind> = Some(Kind::Channel);
}

impl Channel {
    /// A queue reports here from now on, or no more.
    ///
    /// # Safety
    /// `public` is a channel of the program.
    pub(crate) unsafe fn count(public: *mut ibv_comp_channel, change: c_int) {
        // SAFETY: the context of an object is open.
        let context = unsafe { Context::of_object(public) };
        let tables = context.registry.lock();
        // SAFETY: only changed under this lock.
        unsafe { (*public).refcnt += change };
        drop(tables);
    }
}

pub(crate) unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    // SAFETY: an open context.
    let behind = unsafe { Context::behind(context) };
    let made = behind.adapter().create_comp_channel().map(|channel| {
        let fd = channel.as_raw_fd();
        let public = UnsafeCell::new(ibv_comp_channel { context, fd, refcnt: 0 });
        Channel { public, channel }.give()
    });
    pointer(made.map_err(Errno::from))
}

pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(public: *mut ibv_comp_channel) -> c_int {
    // SAFETY: the context of an object is open.
    let context = unsafe { Context::of_object(public) };
    let tables = context.registry.lock();
    // SAFETY: only changed under this lock.
    let users = unsafe { (*public).refcnt };
    drop(tables);
    if users > 0 {
        return code(Err(Errno::BUSY));
    }
    // SAFETY: no queue reports to it, and the program uses it no more.
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
        // SAFETY: a channel of the program.
        if let Some(found) = unsafe { next_event(public) } {
            // SAFETY: the program gives a place for each.
            unsafe { *cq = found };
            // SAFETY: the queue stays until its event is acknowledged.
            let value = unsafe { (*found).cq_context };
            // SAFETY: as above.
            unsafe { *cq_context = value };
            return 0;
        }
        // SAFETY: a channel of the program, whose descriptor never changes.
        let fd = unsafe { (*public).fd };
        if let Err(errno) = wait::until_readable(fd) {
            return status(Err(errno));
        }
    }
}

/// The queue of the next event that still exists.
///
/// # Safety
/// `public` is a channel of the program.
unsafe fn next_event(public: *mut ibv_comp_channel) -> Option<*mut ibv_cq> {
    // SAFETY: as the caller says.
    let channel = unsafe { Channel::of(public) };
    // SAFETY: the context of an object is open.
    let context = unsafe { Context::of_object(public) };
    loop {
        let id = channel.channel.try_event()?;
        let tables = context.registry.lock();
        if let Some(listed) = tables.cqs.get(&id) {
            // SAFETY: it is in the tables, which are locked.
            let cq = unsafe { listed.get() };
            cq.comp_acks.deliver();
            return Some(cq.as_ptr());
        }
    }
}

pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint) {
    // SAFETY: a completion queue of the program.
    let cq = unsafe { Cq::behind(cq) };
    cq.comp_acks.ack(count.into());
}
