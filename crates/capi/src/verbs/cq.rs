//! Completion queues.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};

use feroce::{Cqe, Notify};
use feroce_lint::{self as lint, CqFacts, Kind};

use super::ack::Acks;
use super::channel::Channel;
use super::context::Context;
use super::guarded::Guarded;
use super::object::Object;
use super::registry::Listed;
use crate::abi::*;
use crate::errno::{Errno, code, pointer};
use crate::memory;
use crate::zeroed::Zeroed;

/// A completion queue, extended or not: the one begins like the other.
#[repr(C)]
pub(crate) struct Cq {
    public: UnsafeCell<ibv_cq_ex>,
    pub(crate) cq: feroce::Cq,
    /// Completion events that are not acknowledged.
    pub(crate) comp_acks: Acks,
    /// Asynchronous events that are not acknowledged.
    pub(crate) async_acks: Acks,
    /// Where an extended queue is being polled.
    pub(crate) polling: Guarded<Polling>,
}

// SAFETY: the type is `repr(C)`, and its first field is the `UnsafeCell` of the public part.
unsafe impl Object for Cq {
    type C = ibv_cq_ex;

    const KIND: Option<Kind> = Some(Kind::Cq);
}

// SAFETY: the program owns the public part, and all other fields are `Sync`.
unsafe impl Sync for Cq {}

/// Where a program is in polling an extended queue.
#[derive(Debug, Default)]
pub(crate) struct Polling {
    /// The completion that it looks at.
    pub(super) current: Option<Cqe>,
    /// When timestamps began, in nanoseconds since 1970.
    pub(super) epoch_ns: u64,
}

/// How a completion queue is made.
pub(crate) struct Plan {
    pub(crate) depth: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) comp_vector: u32,
}

impl Cq {
    /// The queue behind the pointer that programs have.
    ///
    /// # Safety
    /// As for [`Object::of`].
    pub(crate) unsafe fn behind<'a>(cq: *mut ibv_cq) -> &'a Self {
        // SAFETY: this function has the contract of `Object::of`; every `ibv_cq` of ours is the
        // beginning of an `ibv_cq_ex`.
        unsafe { Self::of(cq.cast()) }
    }

    /// What programs see of it.
    pub(crate) fn as_ptr(&self) -> *mut ibv_cq {
        self.public().cast()
    }

    /// Makes one.
    pub(crate) fn create(
        context: &Context,
        plan: &Plan,
        polling: Polling,
    ) -> Result<*mut ibv_cq_ex, Errno> {
        memory::admit()?;
        let facts = context.adapter().attr();
        if plan.depth == 0 || plan.comp_vector >= facts.comp_vectors {
            return Err(Errno::INVALID);
        }
        let cq = if plan.channel.is_null() {
            context.adapter().create_cq(plan.depth)?
        } else {
            // SAFETY: `plan.channel` is a live channel.
            let channel = unsafe { Channel::of(plan.channel) };
            context.adapter().create_cq_with(plan.depth, &channel.channel)?
        };
        let mut public = ibv_cq_ex::zeroed();
        public.context = context.as_ptr();
        public.channel = plan.channel;
        public.cq_context = plan.cq_context;
        public.cqe = c_int::try_from(plan.depth).unwrap_or(c_int::MAX);
        public.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        public.cond = libc::PTHREAD_COND_INITIALIZER;
        let id = cq.id();
        let made = Self {
            public: UnsafeCell::new(public),
            cq,
            comp_acks: Acks::default(),
            async_acks: Acks::default(),
            polling: Guarded::new(polling),
        }
        .give();
        if !plan.channel.is_null() {
            // SAFETY: `plan.channel` is a live channel.
            unsafe { Channel::count(plan.channel, 1) };
        }
        // SAFETY: `give` returned the pointer; the program does not have it yet, so it cannot
        // destroy it.
        let listed = Listed::new(unsafe { Self::of(made) });
        context.registry.lock().cqs.insert(id, listed);
        Ok(made)
    }
}

pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: ibv_create_cq(3): `context` is a live context.
    let context = unsafe { Context::behind(context) };
    let plan = u32::try_from(cqe).ok().zip(u32::try_from(comp_vector).ok());
    let plan = plan.map(|(depth, comp_vector)| Plan { depth, cq_context, channel, comp_vector });
    let made = plan.ok_or(Errno::INVALID);
    let made = made.and_then(|plan| Cq::create(context, &plan, Polling::default()));
    pointer(made.map(<*mut ibv_cq_ex>::cast))
}

pub(crate) unsafe extern "C" fn ibv_destroy_cq(public: *mut ibv_cq) -> c_int {
    // SAFETY: ibv_destroy_cq(3): `public` is a live completion queue.
    let cq = unsafe { Cq::behind(public) };
    // SAFETY: `public` is live until this call has destroyed it, and its context stays open as long
    // as it.
    let context = unsafe { Context::of_object(public) };
    let id = cq.cq.id();
    // First out of the tables: the adapter may give its name to another at once.
    let listed = context.registry.lock().cqs.remove(&id);
    if let Err(e) = cq.cq.destroy() {
        if let Some(listed) = listed {
            context.registry.lock().cqs.insert(id, listed);
        }
        return code(Err(e.into()));
    }
    cq.comp_acks.settle("ibv_destroy_cq", "ibv_ack_cq_events");
    cq.async_acks.settle("ibv_destroy_cq", "ibv_ack_async_event");
    // SAFETY: `public` points to a live object; only the field `channel` is read, without a
    // reference.
    let channel = unsafe { (*public).channel };
    if !channel.is_null() {
        // SAFETY: ibv_destroy_comp_channel(3) refuses while a queue reports to the channel, so it
        // is live.
        unsafe { Channel::count(channel, -1) };
    }
    // SAFETY: the call above has made sure that no other object and no event refers to it, and the
    // caller may not use it after this call.
    drop(unsafe { Cq::take(public.cast()) });
    0
}

pub(crate) unsafe extern "C" fn ibv_resize_cq(public: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: ibv_resize_cq(3): `public` is a live completion queue.
    let cq = unsafe { Cq::behind(public) };
    let depth = u32::try_from(cqe).map_err(|_| Errno::INVALID);
    let resize = |depth| memory::admit().and_then(|()| Ok(cq.cq.resize(depth)?));
    code(depth.and_then(resize).map(|()| {
        // SAFETY: `public` points to a live object. This library sets `cqe` through the raw
        // pointer, without a reference to the public part.
        unsafe { (*public).cqe = cqe };
        if lint::is_on() {
            let depth = u64::try_from(cqe).unwrap_or(0);
            lint::cq_resized(CqFacts { addr: public.addr(), depth });
        }
    }))
}

/// Accepts the moderation of completion events, and does not apply it: the first completion wakes
/// the waiting thread.
pub(crate) unsafe extern "C" fn modify_cq(
    _cq: *mut ibv_cq,
    attr: *mut ibv_modify_cq_attr,
) -> c_int {
    // SAFETY: ibv_modify_cq(3): `attr` points to attributes.
    let attr = unsafe { attr.read() };
    if attr.attr_mask & !IBV_CQ_ATTR_MODERATE != 0 {
        return code(Err(Errno::INVALID));
    }
    0
}

pub(crate) unsafe extern "C" fn poll_cq(
    public: *mut ibv_cq,
    most: c_int,
    wc: *mut ibv_wc,
) -> c_int {
    // SAFETY: ibv_poll_cq(3): `public` is a live completion queue.
    let cq = unsafe { Cq::behind(public) };
    let most = usize::try_from(most).unwrap_or(0);
    let mut place = wc;
    // SAFETY: `public` points to a live object, whose `context` does not change after it was made.
    let watched = lint::is_on().then(|| unsafe { (*public).context }.addr());
    let taken = cq.cq.poll_each(most, |cqe| {
        if let Some(context) = watched {
            lint::completed(context, &cqe);
        }
        // SAFETY: ibv_poll_cq(3): the array has room for `most` completions, and the loop takes no
        // more.
        unsafe { place.write(convert::wc(&cqe)) };
        place = place.wrapping_add(1);
    });
    taken as c_int
}

pub(crate) unsafe extern "C" fn req_notify_cq(public: *mut ibv_cq, solicited: c_int) -> c_int {
    // SAFETY: ibv_req_notify_cq(3): `public` is a live completion queue.
    let cq = unsafe { Cq::behind(public) };
    cq.cq.notify(if solicited == 0 { Notify::Next } else { Notify::Solicited });
    0
}
