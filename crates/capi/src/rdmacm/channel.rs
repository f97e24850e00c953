//! Event channels.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use feroce::cm::EventChannel;

use super::{devices, event, table};
use crate::abi::*;
use crate::errno::{Errno, pointer, status};
use crate::leave;
use crate::verbs::object::Object;
use crate::verbs::wait;

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
    /// Makes one.
    pub(crate) fn create() -> Result<*mut rdma_event_channel, Errno> {
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

/// May be cancelled while it waits: see [`wait`].
pub(crate) unsafe extern "C-unwind" fn rdma_get_cm_event(
    public: *mut rdma_event_channel,
    place: *mut *mut rdma_cm_event,
) -> c_int {
    if place.is_null() {
        return status(Err(Errno::INVALID));
    }
    loop {
        let fd = match next(public) {
            Ok(Next::Event(event)) => {
                // SAFETY: rdma_get_cm_event(3): `place` points to room for the event.
                unsafe { *place = event };
                return 0;
            }
            Ok(Next::Nothing { fd }) => fd,
            // The process is exiting: the program would report the error, so the thread waits here.
            Err(_) if leave::has_begun() => {
                wait::until_signal();
                continue;
            }
            Err(errno) => return status(Err(errno)),
        };
        if let Err(errno) = wait::until_readable(fd) {
            return status(Err(errno));
        }
    }
}

/// What a channel has.
enum Next {
    Event(*mut rdma_cm_event),
    /// Until this descriptor is readable.
    Nothing {
        fd: RawFd,
    },
}

/// The next event whose id still exists. Fails if there is no such channel.
fn next(public: *mut rdma_event_channel) -> Result<Next, Errno> {
    let channel = channels().get(&public.addr()).cloned().ok_or(Errno(libc::EBADF))?;
    // Locked first, so that no id is destroyed between taking its event and counting it.
    let mut ids = table::lock();
    while let Some(event) = channel.try_event() {
        if let Some(event) = event::publish(&mut ids, event) {
            return Ok(Next::Event(event));
        }
    }
    Ok(Next::Nothing { fd: channel.as_raw_fd() })
}
