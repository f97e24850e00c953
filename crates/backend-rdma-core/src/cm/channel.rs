//! Event channels of librdmacm.

use std::os::fd::{BorrowedFd, RawFd};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::task::Waker;

use feroce_abi::*;

use super::event::{self, Event};
use crate::events::do_not_block;
use crate::library::{Rdmacm, rdmacm};
use crate::reactor::wake_when_readable;
use crate::{Error, failed};

/// Where the events of ids come out.
#[derive(Debug)]
pub struct Channel {
    pub(super) cm: &'static Rdmacm,
    channel: ChannelPtr,
    fd: RawFd,
}

/// The channel of C.
#[derive(Debug)]
struct ChannelPtr(NonNull<rdma_event_channel>);

// SAFETY: the pointer is only passed to calls of the library, which any thread may make.
unsafe impl Send for ChannelPtr {}

// SAFETY: librdmacm lets several threads use a channel at the same time.
unsafe impl Sync for ChannelPtr {}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: `rdma_create_event_channel` returned it, and every id on it holds this object, so
        // no id is left.
        unsafe { (self.cm.rdma_destroy_event_channel)(self.as_ptr()) };
    }
}

impl Channel {
    /// Creates a channel. The library is loaded from `directory` if given, else from where the
    /// dynamic linker looks.
    pub fn create(directory: Option<&Path>) -> Result<Self, Error> {
        let cm = rdmacm(directory)?;
        // SAFETY: the function has no preconditions.
        let channel = unsafe { (cm.rdma_create_event_channel)() };
        let channel = NonNull::new(channel).ok_or_else(|| failed("rdma_create_event_channel"))?;
        // SAFETY: the library has just created the channel.
        let fd = unsafe { channel.as_ref() }.fd;
        let channel = Self { cm, channel: ChannelPtr(channel), fd };
        do_not_block(channel.fd())?;
        Ok(channel)
    }

    pub(super) fn as_ptr(&self) -> *mut rdma_event_channel {
        self.channel.0.as_ptr()
    }

    /// Readable while an event waits.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the library keeps the descriptor open as long as the channel, which ends with
        // this object.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }

    /// The next event, if there is one.
    pub fn try_event(&self) -> Option<Event> {
        loop {
            let mut event = ptr::null_mut();
            // SAFETY: a channel that lives, and a valid place for the event.
            if unsafe { (self.cm.rdma_get_cm_event)(self.as_ptr(), &raw mut event) } != 0 {
                return None;
            }
            // SAFETY: the library has just returned the event, and it is not acknowledged.
            let copied = unsafe { event::copy(self.cm, event) };
            // SAFETY: the event is not acknowledged, and nothing refers to it any more.
            unsafe { (self.cm.rdma_ack_cm_event)(event) };
            if copied.is_some() {
                return copied;
            }
        }
    }

    /// The next event; if there is none, the waker is called when the descriptor is readable.
    pub fn event_or_register(&self, waker: &Waker) -> Option<Event> {
        let found = self.try_event();
        if found.is_none() {
            wake_when_readable(self.fd, waker);
        }
        found
    }
}
