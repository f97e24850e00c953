//! Completion channels.

use std::ffi::c_void;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr;
use std::sync::Arc;
use std::task::Waker;

use feroce_abi::*;
use feroce_engine::CqId;

use crate::Error;
use crate::adapter::Adapter;
use crate::events::{do_not_block, number_in};
use crate::handle::Handle;
use crate::reactor::wake_when_readable;

/// A completion channel.
#[derive(Debug)]
pub struct Channel {
    handle: Handle<ibv_comp_channel>,
    fd: RawFd,
    adapter: Arc<Adapter>,
}

impl Channel {
    /// Creates a channel.
    pub fn create(adapter: &Arc<Adapter>) -> Result<Self, Error> {
        let verbs = adapter.open.verbs;
        // SAFETY: an open context.
        let channel = unsafe { (verbs.ibv_create_comp_channel)(adapter.open.as_ptr()) };
        // SAFETY: the library just created it, and only this handle destroys it.
        let handle = unsafe { Handle::new("ibv_create_comp_channel", channel) }?;
        // SAFETY: it is not NULL, or there would be no handle.
        let fd = unsafe { (*channel).fd };
        let channel = Self { handle, fd, adapter: Arc::clone(adapter) };
        do_not_block(channel.fd())?;
        Ok(channel)
    }

    /// The next completion event, if there is one.
    pub fn try_pop(&self) -> Option<CqId> {
        let verbs = self.adapter.open.verbs;
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut::<c_void>());
        let taken = self.handle.with(|channel| {
            // SAFETY: a channel that lives, and places for the answers.
            unsafe { (verbs.ibv_get_cq_event)(channel, &raw mut cq, &raw mut context) }
        });
        if taken != Some(0) {
            return None;
        }
        // SAFETY: the queue lives: `ibv_destroy_cq` waits until each of its events is acknowledged.
        unsafe { (verbs.ibv_ack_cq_events)(cq, 1) };
        Some(CqId(number_in(context)))
    }

    /// The next completion event; if there is none, the waker is called when there is one.
    pub fn pop_or_register(&self, waker: &Waker) -> Option<CqId> {
        let found = self.try_pop();
        if found.is_none() {
            wake_when_readable(self.fd, waker);
        }
        found
    }

    /// Readable while a completion event waits.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the library keeps it open as long as the channel, which ends with this.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }

    /// Runs a call that needs the channel of C.
    pub(crate) fn with<R>(&self, f: impl FnOnce(*mut ibv_comp_channel) -> R) -> Option<R> {
        self.handle.with(f)
    }

    /// Whether it is a channel of this device.
    pub(crate) fn is_of(&self, adapter: &Arc<Adapter>) -> bool {
        Arc::ptr_eq(&self.adapter, adapter)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let verbs = self.adapter.open.verbs;
        // A completion queue that reports to this channel holds a reference to it, so no queue
        // uses it any more.
        let _ = self.handle.end("ibv_destroy_comp_channel", |channel| {
            // SAFETY: a channel that lives, and that no thread is in a call on.
            unsafe { (verbs.ibv_destroy_comp_channel)(channel) }
        });
    }
}
