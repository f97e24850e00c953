//! Event channels.

use core::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use feroce::cm::EventChannel;

use super::devices;
use crate::abi::*;
use crate::errno::{Errno, pointer};
use crate::memory;
use crate::verbs::object::Object;

/// An event channel.
#[repr(C)]
pub(crate) struct Channel {
    public: UnsafeCell<rdma_event_channel>,
    pub(crate) channel: EventChannel,
}

// SAFETY: the type is `repr(C)`, and its first field is the `UnsafeCell` of the public part.
unsafe impl Object for Channel {
    type C = rdma_event_channel;
}

/// The channels that programs have, by address.
///
/// Programs destroy a channel while a thread of theirs is about to ask it for its next event, and
/// then exit; `rping` is one. So who asks is not believed that there is a channel.
static CHANNELS: Mutex<BTreeMap<usize, EventChannel>> = Mutex::new(BTreeMap::new());

fn channels() -> MutexGuard<'static, BTreeMap<usize, EventChannel>> {
    CHANNELS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Channel {
    /// The events of a channel, if there is such a channel.
    pub(crate) fn find(public: *mut rdma_event_channel) -> Option<EventChannel> {
        channels().get(&public.addr()).cloned()
    }

    /// Makes one.
    pub(crate) fn create() -> Result<*mut rdma_event_channel, Errno> {
        memory::admit()?;
        let channel = devices::manager().event_channel()?;
        let public = UnsafeCell::new(rdma_event_channel { fd: channel.as_raw_fd() });
        let made = Self { public, channel: channel.clone() }.give();
        channels().insert(made.addr(), channel);
        Ok(made)
    }

    /// Destroys one.
    ///
    /// # Safety
    /// As for [`Object::take`], except that the program may still ask it for events.
    pub(crate) unsafe fn destroy(public: *mut rdma_event_channel) {
        channels().remove(&public.addr());
        // SAFETY: this function has the contract of `Object::take`. A thread that asks for events
        // looks the channel up in the table, from which it was removed above.
        drop(unsafe { Self::take(public) });
    }
}

pub(crate) extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    pointer(Channel::create())
}

pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(public: *mut rdma_event_channel) {
    // SAFETY: rdma_destroy_event_channel(3): `public` is a live channel, which the program does not
    // use any more.
    unsafe { Channel::destroy(public) };
}
