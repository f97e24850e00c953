//! Shared receive queues of ids.

use core::ffi::c_int;
use core::ptr;

use super::id::Id;
use super::qp::destroy_cqs;
use crate::abi::*;
use crate::errno::{Errno, status};
use crate::verbs::object::Object;
use crate::verbs::srq::ibv_destroy_srq;
use crate::verbs::xrc::create_srq_ex;
use crate::zeroed::Zeroed;

pub(crate) unsafe extern "C" fn rdma_create_srq_ex(
    public: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    // SAFETY: rdma_create_srq_ex(3): `public` is a live id.
    let id = unsafe { Id::of(public) };
    // SAFETY: rdma_create_srq_ex(3): `attr` points to attributes.
    let mut wanted = unsafe { attr.read() };
    let made = create(id, &mut wanted);
    // SAFETY: rdma_create_srq_ex(3): `attr` points to attributes, which the call updates.
    unsafe { attr.write(wanted) };
    status(made)
}

pub(crate) unsafe extern "C" fn rdma_create_srq(
    public: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> c_int {
    // SAFETY: rdma_create_srq(3): `public` is a live id.
    let id = unsafe { Id::of(public) };
    // SAFETY: rdma_create_srq(3): `init` points to attributes.
    let given = unsafe { init.read() };
    let zeroed = ibv_srq_init_attr_ex::zeroed();
    let mut wanted = ibv_srq_init_attr_ex {
        srq_context: given.srq_context,
        attr: given.attr,
        comp_mask: IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
        srq_type: IBV_SRQT_BASIC,
        pd,
        ..zeroed
    };
    status(create(id, &mut wanted))
}

/// Makes a shared receive queue. Connections of the extended kind need a port space that addresses
/// of IP do not have, so an id has none of their queues.
fn create(id: &Id, wanted: &mut ibv_srq_init_attr_ex) -> Result<(), Errno> {
    let seen = id.seen();
    if wanted.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || seen.verbs.is_null() {
        return Err(Errno::INVALID);
    }
    if wanted.srq_type != IBV_SRQT_BASIC {
        return Err(Errno::UNSUPPORTED);
    }
    if wanted.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || wanted.pd.is_null() {
        wanted.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
        wanted.pd = seen.pd;
    }
    // SAFETY: the context of an id with a device stays open, and the attributes name live objects
    // by the contract of this function.
    let srq = unsafe { create_srq_ex(seen.verbs, wanted) };
    if srq.is_null() {
        return Err(Errno::last());
    }
    // SAFETY: `id.public()` points to a live object. This library sets `srq` through the raw
    // pointer, without a reference to the public part.
    unsafe { (*id.public()).srq = srq };
    Ok(())
}

pub(crate) unsafe extern "C" fn rdma_destroy_srq(public: *mut rdma_cm_id) {
    // SAFETY: rdma_destroy_srq(3): `public` is a live id.
    let place = unsafe { &raw mut (*public).srq };
    // SAFETY: `place` points to a field of a live id.
    let srq = unsafe { place.replace(ptr::null_mut()) };
    if !srq.is_null() {
        // SAFETY: the shared receive queue belongs to this id and is live; the program does not use
        // it after this call.
        unsafe { ibv_destroy_srq(srq) };
    }
    // SAFETY: the id is live, and the program has destroyed the queue pair that used its completion
    // queues.
    unsafe { destroy_cqs(public) };
}
