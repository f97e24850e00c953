//! Shared receive queues of ids.

use core::ffi::c_int;
use core::ptr;

use super::id::Id;
use super::qp::destroy_cqs;
use crate::abi::*;
use crate::errno::{Errno, status};
use crate::verbs::object::{Object, zeroed};
use crate::verbs::srq::ibv_destroy_srq;
use crate::verbs::xrc::create_srq_ex;

pub(crate) unsafe extern "C" fn rdma_create_srq_ex(
    public: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    // SAFETY: an id of the program.
    let id = unsafe { Id::of(public) };
    // SAFETY: the program gives attributes.
    let mut wanted = unsafe { attr.read() };
    let made = create(id, &mut wanted);
    // SAFETY: the program learns what was made.
    unsafe { attr.write(wanted) };
    status(made)
}

pub(crate) unsafe extern "C" fn rdma_create_srq(
    public: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> c_int {
    // SAFETY: an id of the program.
    let id = unsafe { Id::of(public) };
    // SAFETY: the program gives attributes.
    let given = unsafe { init.read() };
    // SAFETY: numbers and pointers.
    let zeroed: ibv_srq_init_attr_ex = unsafe { zeroed() };
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
    // SAFETY: an open context, and objects of the program.
    let srq = unsafe { create_srq_ex(seen.verbs, wanted) };
    if srq.is_null() {
        return Err(Errno::last());
    }
    // SAFETY: the public part of an object that lives.
    unsafe { (*id.public()).srq = srq };
    Ok(())
}

pub(crate) unsafe extern "C" fn rdma_destroy_srq(public: *mut rdma_cm_id) {
    // SAFETY: an id of the program.
    let place = unsafe { &raw mut (*public).srq };
    // SAFETY: a field of it.
    let srq = unsafe { place.replace(ptr::null_mut()) };
    if !srq.is_null() {
        // SAFETY: a queue of the program, which it uses no more.
        unsafe { ibv_destroy_srq(srq) };
    }
    // SAFETY: the queue pair that used them is gone before its shared receive queue.
    unsafe { destroy_cqs(public) };
}
