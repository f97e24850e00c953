//! Queue pairs of ids, with the queues that an id makes for them.

use core::ffi::c_int;
use core::ptr;

use super::id::Id;
use crate::abi::*;
use crate::errno::{Errno, status};
use crate::verbs::channel::{ibv_create_comp_channel, ibv_destroy_comp_channel};
use crate::verbs::cq::{ibv_create_cq, ibv_destroy_cq};
use crate::verbs::object::Object;
use crate::verbs::qp::{self, Qp};
use crate::verbs::qp_ex;
use crate::zeroed::Zeroed;

/// Writes the current state of a queue pair to its public part.
///
/// # Safety
/// `qp` is a live queue pair.
pub(crate) unsafe fn show_state(qp: *mut ibv_qp) {
    // SAFETY: by this function's contract, `qp` is a live queue pair.
    let facts = unsafe { Qp::behind(qp) }.handle.query();
    let state = facts.and_then(|facts| facts.state).unwrap_or_default();
    // SAFETY: `qp` points to a live object. This library sets `state` through the raw pointer,
    // without a reference to the public part.
    unsafe { (*qp).state = convert::qp_state(state) };
}

/// Makes a completion queue for an id, with a channel.
///
/// # Safety
/// `id` is a live id with a device.
unsafe fn create_cq(
    id: *mut rdma_cm_id,
    depth: u32,
) -> Result<(*mut ibv_comp_channel, *mut ibv_cq), Errno> {
    // SAFETY: by this function's contract `id` points to a live object; only the field `verbs` is
    // read, without a reference.
    let verbs = unsafe { (*id).verbs };
    // SAFETY: the context of an id with a device stays open.
    let channel = unsafe { ibv_create_comp_channel(verbs) };
    if channel.is_null() {
        return Err(Errno::last());
    }
    let depth = c_int::try_from(depth).unwrap_or(c_int::MAX);
    // SAFETY: the context of an id with a device stays open, and `channel` was made from it above.
    let cq = unsafe { ibv_create_cq(verbs, depth, id.cast(), channel, 0) };
    if cq.is_null() {
        let errno = Errno::last();
        // SAFETY: this library made the channel for the id, and no completion queue uses it.
        unsafe { ibv_destroy_comp_channel(channel) };
        return Err(errno);
    }
    Ok((channel, cq))
}

/// Makes the completion queues that an id is to have; none of size 0.
///
/// # Safety
/// `id` is a live id with a device.
pub(crate) unsafe fn create_cqs(id: *mut rdma_cm_id, send: u32, recv: u32) -> Result<(), Errno> {
    if recv > 0 {
        // SAFETY: by this function's contract, `id` is a live id with a device.
        let (channel, cq) = unsafe { create_cq(id, recv) }?;
        // SAFETY: by this function's contract `id` points to a live object. This library sets
        // `recv_cq_channel` through the raw pointer, without a reference to the public part.
        unsafe { (*id).recv_cq_channel = channel };
        // SAFETY: by this function's contract `id` points to a live object. This library sets
        // `recv_cq` through the raw pointer, without a reference to the public part.
        unsafe { (*id).recv_cq = cq };
    }
    if send > 0 {
        // SAFETY: by this function's contract, `id` is a live id with a device.
        let (channel, cq) = unsafe { create_cq(id, send) }?;
        // SAFETY: by this function's contract `id` points to a live object. This library sets
        // `send_cq_channel` through the raw pointer, without a reference to the public part.
        unsafe { (*id).send_cq_channel = channel };
        // SAFETY: by this function's contract `id` points to a live object. This library sets
        // `send_cq` through the raw pointer, without a reference to the public part.
        unsafe { (*id).send_cq = cq };
    }
    Ok(())
}

/// Destroys the completion queues that an id made for itself.
///
/// # Safety
/// `id` is a live id, and no queue pair uses its completion queues.
pub(crate) unsafe fn destroy_cqs(id: *mut rdma_cm_id) {
    // SAFETY: by this function's contract, `id` is a live id, and no queue pair uses its completion
    // queues.
    let seen = unsafe { Id::of(id) }.seen();
    // A program may have given it one of each for both.
    let send_cq = if seen.send_cq == seen.recv_cq { ptr::null_mut() } else { seen.send_cq };
    for cq in [seen.recv_cq, send_cq].into_iter().filter(|cq| !cq.is_null()) {
        // SAFETY: this library made the queue for the id, and by this function's contract no queue
        // pair uses it.
        unsafe { ibv_destroy_cq(cq) };
    }
    let is_one = seen.send_cq_channel == seen.recv_cq_channel;
    let send_channel = if is_one { ptr::null_mut() } else { seen.send_cq_channel };
    let channels = [seen.recv_cq_channel, send_channel];
    for channel in channels.into_iter().filter(|channel| !channel.is_null()) {
        // SAFETY: this library made the channel for the id, and no completion queue uses it.
        unsafe { ibv_destroy_comp_channel(channel) };
    }
    // SAFETY: by this function's contract `id` points to a live object. This library sets `recv_cq`
    // through the raw pointer, without a reference to the public part.
    unsafe { (*id).recv_cq = ptr::null_mut() };
    // SAFETY: by this function's contract `id` points to a live object. This library sets `send_cq`
    // through the raw pointer, without a reference to the public part.
    unsafe { (*id).send_cq = ptr::null_mut() };
    // SAFETY: by this function's contract `id` points to a live object. This library sets
    // `recv_cq_channel` through the raw pointer, without a reference to the public part.
    unsafe { (*id).recv_cq_channel = ptr::null_mut() };
    // SAFETY: by this function's contract `id` points to a live object. This library sets
    // `send_cq_channel` through the raw pointer, without a reference to the public part.
    unsafe { (*id).send_cq_channel = ptr::null_mut() };
}

pub(crate) unsafe extern "C" fn rdma_create_qp_ex(
    public: *mut rdma_cm_id,
    attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    // SAFETY: rdma_create_qp_ex(3): `attr` points to attributes.
    let mut wanted = unsafe { attr.read() };
    // SAFETY: rdma_create_qp(3): `public` is a live id, and the attributes name live objects.
    let made = unsafe { create(public, &mut wanted) };
    // SAFETY: rdma_create_qp_ex(3): `attr` points to attributes, which the call updates.
    unsafe { attr.write(wanted) };
    status(made)
}

pub(crate) unsafe extern "C" fn rdma_create_qp(
    public: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: rdma_create_qp(3): `init` points to attributes.
    let given = unsafe { init.read() };
    let zeroed = ibv_qp_init_attr_ex::zeroed();
    let mut wanted = ibv_qp_init_attr_ex {
        qp_context: given.qp_context,
        send_cq: given.send_cq,
        recv_cq: given.recv_cq,
        srq: given.srq,
        cap: given.cap,
        qp_type: given.qp_type,
        sq_sig_all: given.sq_sig_all,
        comp_mask: IBV_QP_INIT_ATTR_PD,
        pd,
        ..zeroed
    };
    // SAFETY: rdma_create_qp(3): `public` is a live id, and the attributes name live objects.
    let made = unsafe { create(public, &mut wanted) };
    let ibv_qp_init_attr_ex { send_cq, recv_cq, srq, cap, .. } = wanted;
    // SAFETY: rdma_create_qp(3): `init` points to attributes, which the call updates.
    unsafe { init.write(ibv_qp_init_attr { send_cq, recv_cq, srq, cap, ..given }) };
    status(made)
}

/// Makes a queue pair for an id, and fills in what the program left to it.
///
/// # Safety
/// `public` is a live id, and the objects that `wanted` names are live.
unsafe fn create(public: *mut rdma_cm_id, wanted: &mut ibv_qp_init_attr_ex) -> Result<(), Errno> {
    // SAFETY: by this function's contract, `public` is a live id, and the objects that `wanted`
    // names are live.
    let id = unsafe { Id::of(public) };
    let seen = id.seen();
    if !seen.qp.is_null() || seen.verbs.is_null() {
        return Err(Errno::INVALID);
    }
    if wanted.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || wanted.pd.is_null() {
        wanted.comp_mask |= IBV_QP_INIT_ATTR_PD;
        wanted.pd = seen.pd;
    }
    // SAFETY: `wanted.pd` is a live protection domain of the program or of the id; its context does
    // not change.
    let is_elsewhere = unsafe { (*wanted.pd).context } != seen.verbs;
    let differs =
        |own: *mut ibv_cq, given: *mut ibv_cq| !own.is_null() && !given.is_null() && own != given;
    if is_elsewhere
        || differs(seen.send_cq, wanted.send_cq)
        || differs(seen.recv_cq, wanted.recv_cq)
    {
        return Err(Errno::INVALID);
    }
    let missing = |own: *mut ibv_cq, given: *mut ibv_cq, depth: u32| {
        if own.is_null() && given.is_null() { depth } else { 0 }
    };
    let send = missing(seen.send_cq, wanted.send_cq, wanted.cap.max_send_wr);
    let recv = missing(seen.recv_cq, wanted.recv_cq, wanted.cap.max_recv_wr);
    // SAFETY: by this function's contract, `public` is a live id, and the objects that `wanted`
    // names are live.
    let made = unsafe { create_cqs(public, send, recv) };
    // SAFETY: by this function's contract, `public` is a live id, and the objects that `wanted`
    // names are live.
    let made = made.and_then(|()| unsafe { create_on(public, wanted) });
    if made.is_err() {
        // SAFETY: the id is live, and has no queue pair that uses its completion queues.
        unsafe { destroy_cqs(public) };
    }
    made
}

/// Makes a queue pair on the queues that an id has.
///
/// # Safety
/// As for [`create`].
unsafe fn create_on(
    public: *mut rdma_cm_id,
    wanted: &mut ibv_qp_init_attr_ex,
) -> Result<(), Errno> {
    // SAFETY: this function has the contract of `create`.
    let id = unsafe { Id::of(public) };
    let seen = id.seen();
    let or = |given: *mut ibv_cq, own| if given.is_null() { own } else { given };
    wanted.send_cq = or(wanted.send_cq, seen.send_cq);
    wanted.recv_cq = or(wanted.recv_cq, seen.recv_cq);
    if wanted.srq.is_null() {
        wanted.srq = seen.srq;
    }
    // A queue pair with a shared receive queue or without receives needs both queues as well.
    let other = or(wanted.send_cq, wanted.recv_cq);
    wanted.send_cq = or(wanted.send_cq, other);
    wanted.recv_cq = or(wanted.recv_cq, other);
    // SAFETY: the context of an id with a device stays open, and the attributes name live objects
    // by the contract of this function.
    let qp = unsafe { qp_ex::create_qp_ex(seen.verbs, wanted) };
    if qp.is_null() {
        return Err(Errno::last());
    }
    // SAFETY: this function has made the object, and neither the program nor another thread can
    // destroy it yet.
    let handle = unsafe { &Qp::behind(qp).handle };
    let used = id.id.use_qpn(handle.qpn(), handle.qp_type(), handle.srq().is_some());
    if let Err(e) = used {
        // SAFETY: the queue pair is live, and the program does not have it, or does not use it
        // after this call.
        unsafe { qp::ibv_destroy_qp(qp) };
        return Err(e.into());
    }
    // SAFETY: this function has made the object, and neither the program nor another thread can
    // destroy it yet.
    unsafe { show_state(qp) };
    // SAFETY: `public` points to a live object. This library sets `pd` through the raw pointer,
    // without a reference to the public part.
    unsafe { (*public).pd = wanted.pd };
    // SAFETY: `public` points to a live object. This library sets `qp` through the raw pointer,
    // without a reference to the public part.
    unsafe { (*public).qp = qp };
    Ok(())
}

/// Takes the queue pair that the program sees on an id for the one of the id: programs put one
/// there that they made themselves, or move it from one id to another. It must be of the id's
/// device.
pub(crate) fn adopt(id: &Id) -> Result<(), Errno> {
    let rdma_cm_id { qp, verbs, .. } = id.seen();
    if qp.is_null() {
        id.id.release_qp();
        return Ok(());
    }
    // SAFETY: the program owns the field, and puts a live queue pair there or NULL.
    let context = unsafe { (*qp).context };
    // SAFETY: the context of a live queue pair is open, and its device does not change.
    let device = unsafe { (*context).device };
    // SAFETY: the context of an id is NULL or stays open, and its device does not change.
    if verbs.is_null() || unsafe { (*verbs).device } != device {
        return Err(Errno::INVALID);
    }
    // SAFETY: the program owns the field, and puts a live queue pair there or NULL.
    let handle = unsafe { &Qp::behind(qp).handle };
    Ok(id.id.adopt_qpn(handle.qpn(), handle.qp_type(), handle.srq().is_some())?)
}

pub(crate) unsafe extern "C" fn rdma_destroy_qp(public: *mut rdma_cm_id) {
    // SAFETY: rdma_destroy_qp(3): `public` is a live id.
    let id = unsafe { Id::of(public) };
    let qp = id.seen().qp;
    if !qp.is_null() {
        id.id.release_qp();
        // SAFETY: the queue pair is live, and the program does not have it, or does not use it
        // after this call.
        unsafe { qp::ibv_destroy_qp(qp) };
        // SAFETY: `public` points to a live object. This library sets `qp` through the raw pointer,
        // without a reference to the public part.
        unsafe { (*public).qp = ptr::null_mut() };
    }
    // SAFETY: the id is live, and has no queue pair that uses its completion queues.
    unsafe { destroy_cqs(public) };
}

/// Shows the program the current state of the queue pair of an id, if it has one.
pub(crate) fn show_qp_state(id: &Id) {
    let qp = id.seen().qp;
    if !qp.is_null() {
        // SAFETY: `qp` is a live queue pair.
        unsafe { show_state(qp) };
    }
}
