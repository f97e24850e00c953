//! Shared receive queues.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};

use feroce_lint::{self as lint, Kind};

use super::ack::Acks;
use super::context::Context;
use super::object::Object;
use super::pd::Pd;
use super::registry::Listed;
use crate::abi::*;
use crate::errno::{Errno, code, pointer};
use crate::memory;
use crate::zeroed::Zeroed;

/// A shared receive queue.
#[repr(C)]
pub(crate) struct Srq {
    public: UnsafeCell<ibv_srq>,
    pub(crate) srq: feroce::Srq,
    pub(crate) srq_type: ibv_srq_type,
    pub(crate) acks: Acks,
}

// SAFETY: the type is `repr(C)`, and its first field is the `UnsafeCell` of the public part.
unsafe impl Object for Srq {
    type C = ibv_srq;

    const KIND: Option<Kind> = Some(Kind::Srq);
}

// SAFETY: the program owns the public part, and all other fields are `Sync`.
unsafe impl Sync for Srq {}

impl Srq {
    /// Gives a queue to the program.
    pub(crate) fn publish(
        (srq, srq_type): (feroce::Srq, ibv_srq_type),
        pd: *mut ibv_pd,
        srq_context: *mut c_void,
        context: &Context,
    ) -> *mut ibv_srq {
        let mut public = ibv_srq::zeroed();
        public.context = context.as_ptr();
        public.srq_context = srq_context;
        public.pd = pd;
        public.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        public.cond = libc::PTHREAD_COND_INITIALIZER;
        let id = srq.id();
        let (public, acks) = (UnsafeCell::new(public), Acks::default());
        let made = Self { public, srq, srq_type, acks }.give();
        // SAFETY: `give` returned the pointer; the program does not have it yet, so it cannot
        // destroy it.
        let listed = Listed::new(unsafe { Self::of(made) });
        context.registry.lock().srqs.insert(id, listed);
        made
    }
}

/// Records a shared receive queue for lint, which does not follow XRC.
pub(crate) fn noted(made: *mut ibv_srq) -> *mut ibv_srq {
    if lint::is_on() {
        lint::srq_made(made.addr());
    }
    made
}

pub(crate) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: ibv_create_srq(3): `pd` is a live protection domain.
    let behind = unsafe { Pd::of(pd) };
    // SAFETY: `pd` is live, and its context stays open as long as it.
    let context = unsafe { Context::of_object(pd) };
    // SAFETY: ibv_create_srq(3): `init` points to attributes.
    let ibv_srq_init_attr { srq_context, attr } = unsafe { init.read() };
    pointer(memory::admit().and_then(|()| {
        let srq = behind.pd.create_srq(attr.max_wr, attr.max_sge)?;
        Ok(noted(Srq::publish((srq, IBV_SRQT_BASIC), pd, srq_context, context)))
    }))
}

pub(crate) unsafe extern "C" fn ibv_modify_srq(
    public: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    let mask = mask.cast_unsigned();
    // SAFETY: ibv_modify_srq(3): `public` is a live shared receive queue.
    let srq = unsafe { &Srq::of(public).srq };
    // SAFETY: ibv_modify_srq(3): `attr` points to attributes.
    let attr = unsafe { attr.read() };
    if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
        return code(Err(Errno::INVALID));
    }
    let resize = || if mask & IBV_SRQ_MAX_WR != 0 { srq.resize(attr.max_wr) } else { Ok(()) };
    let limit = || if mask & IBV_SRQ_LIMIT != 0 { srq.set_limit(attr.srq_limit) } else { Ok(()) };
    let change = || resize().and_then(|()| limit()).map_err(Errno::from);
    code(memory::admit().and_then(|()| change()))
}

pub(crate) unsafe extern "C" fn ibv_query_srq(
    public: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
) -> c_int {
    // SAFETY: ibv_query_srq(3): `public` is a live shared receive queue.
    let srq = unsafe { Srq::of(public) };
    code(srq.srq.query().ok_or(Errno::INVALID).map(|facts| {
        let (max_wr, max_sge, srq_limit) = (facts.max_wr, facts.max_sge, facts.limit);
        // SAFETY: ibv_query_srq(3): `attr` points to room for the attributes.
        unsafe { attr.write(ibv_srq_attr { max_wr, max_sge, srq_limit }) };
    }))
}

pub(crate) unsafe extern "C" fn ibv_destroy_srq(public: *mut ibv_srq) -> c_int {
    // SAFETY: ibv_destroy_srq(3): `public` is a live shared receive queue.
    let srq = unsafe { Srq::of(public) };
    // SAFETY: `public` is live until this call has destroyed it, and its context stays open as long
    // as it.
    let context = unsafe { Context::of_object(public) };
    let id = srq.srq.id();
    // First out of the tables: the adapter may give its name to another at once.
    let listed = context.registry.lock().srqs.remove(&id);
    if let Err(e) = srq.srq.destroy() {
        if let Some(listed) = listed {
            context.registry.lock().srqs.insert(id, listed);
        }
        return code(Err(e.into()));
    }
    if lint::is_on() {
        lint::srq_gone(public.addr());
    }
    srq.acks.settle("ibv_destroy_srq", "ibv_ack_async_event");
    // SAFETY: the call above has made sure that no other object and no event refers to it, and the
    // caller may not use it after this call.
    drop(unsafe { Srq::take(public) });
    0
}
