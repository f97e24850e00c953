//! Endpoints: ids whose calls wait, with a queue pair.

use core::ffi::c_int;
use core::ptr;

use super::event::rdma_get_cm_event;
use super::id::{Id, Plan, rdma_destroy_id};
use super::qp::{rdma_create_qp, rdma_destroy_qp};
use super::resolve::{rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route};
use super::srq::rdma_destroy_srq;
use super::taken;
use crate::abi::*;
use crate::errno::{self, Errno, status};
use crate::verbs::object::Object;

/// How long an endpoint looks for its peer.
const TIMEOUT_MS: c_int = 2000;

pub(crate) unsafe extern "C-unwind" fn rdma_create_ep(
    place: *mut *mut rdma_cm_id,
    info: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: rdma_create_ep(3): `info` points to an `rdma_addrinfo`.
    let info = unsafe { info.read() };
    let plan = Plan {
        channel: ptr::null_mut(),
        context: ptr::null_mut(),
        ps: info.ai_port_space.cast_unsigned(),
        qp_type: info.ai_qp_type.cast_unsigned(),
    };
    // SAFETY: the plan names no channel; the id gets one of its own.
    let id = match unsafe { Id::create(plan) } {
        Ok(id) => id,
        Err(errno) => return status(Err(errno)),
    };
    let made = if info.ai_flags & RAI_PASSIVE != 0 {
        // SAFETY: `id` was made above, and all other pointers are those that the program passed.
        unsafe { passive(id, &info, pd, init) }
    } else {
        // SAFETY: `id` was made above, and all other pointers are those that the program passed.
        unsafe { active(id, &info, pd, init) }
    };
    if made != 0 {
        let code = errno::get();
        // SAFETY: this function has made the object, and neither the program nor another thread has
        // it.
        unsafe { rdma_destroy_ep(id) };
        errno::set(code);
        return made;
    }
    // SAFETY: rdma_create_ep(3): `place` points to room for a pointer to the id.
    unsafe { *place = id };
    0
}

/// An endpoint that will listen.
///
/// # Safety
/// `id` is a live id that only the caller has, and all other pointers are those that the program
/// passed to rdma_create_ep(3).
unsafe fn passive(
    id: *mut rdma_cm_id,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: `id` is live, and the address is that of the caller's `rdma_addrinfo`.
    if unsafe { rdma_bind_addr(id, info.ai_src_addr) } != 0 {
        return -1;
    }
    if !pd.is_null() {
        // SAFETY: by this function's contract `id` is live, and only the caller has it.
        unsafe { (*id).pd = pd };
    }
    if !init.is_null() {
        // SAFETY: `init` points to attributes.
        let init = unsafe { init.read() };
        let qp_type = info.ai_qp_type.cast_unsigned();
        // SAFETY: by this function's contract `id` is live, and only the caller has it.
        let id = unsafe { Id::of(id) };
        id.private().endpoint = Some(ibv_qp_init_attr { qp_type, ..init });
    }
    0
}

/// An endpoint that will connect.
///
/// # Safety
/// `id` is a live id that only the caller has, and all other pointers are those that the program
/// passed to rdma_create_ep(3).
unsafe fn active(
    id: *mut rdma_cm_id,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    let (src, dst) = (info.ai_src_addr, info.ai_dst_addr);
    // SAFETY: `id` is live, and the addresses are those of the caller's `rdma_addrinfo`.
    if unsafe { rdma_resolve_addr(id, src, dst, TIMEOUT_MS) } != 0 {
        return -1;
    }
    // SAFETY: by this function's contract `id` is live, and only the caller has it.
    if unsafe { rdma_resolve_route(id, TIMEOUT_MS) } != 0 {
        return -1;
    }
    if !init.is_null() {
        // SAFETY: `init` points to attributes, in which the call sets the type.
        unsafe { (*init).qp_type = info.ai_qp_type.cast_unsigned() };
        // SAFETY: `id` is live; rdma_create_ep(3): `pd` is NULL or live, and `init` points to
        // attributes that name live objects.
        if unsafe { rdma_create_qp(id, pd, init) } != 0 {
            return -1;
        }
    }
    if info.ai_connect_len > 0 {
        let (data, len) = (info.ai_connect.cast::<u8>(), info.ai_connect_len);
        // SAFETY: rdma_create_ep(3): `ai_connect` points to `ai_connect_len` bytes, which is not 0.
        let data = unsafe { core::slice::from_raw_parts(data, len) };
        // SAFETY: by this function's contract `id` is live, and only the caller has it.
        unsafe { Id::of(id) }.private().prefix = data.to_vec();
    }
    0
}

pub(crate) unsafe extern "C" fn rdma_destroy_ep(public: *mut rdma_cm_id) {
    // SAFETY: rdma_destroy_ep(3): `public` is a live id.
    let seen = unsafe { Id::of(public) }.seen();
    if !seen.qp.is_null() {
        // SAFETY: the id is live, and the caller may not use its queue pair after
        // rdma_destroy_ep(3).
        unsafe { rdma_destroy_qp(public) };
    }
    if !seen.srq.is_null() {
        // SAFETY: the id is live, its queue pair is gone, and the caller may not use its queues
        // after rdma_destroy_ep(3).
        unsafe { rdma_destroy_srq(public) };
    }
    // SAFETY: the id is live, and the caller may not use it after rdma_destroy_ep(3).
    unsafe { rdma_destroy_id(public) };
}

/// May be cancelled while it waits.
pub(crate) unsafe extern "C-unwind" fn rdma_get_request(
    listener: *mut rdma_cm_id,
    place: *mut *mut rdma_cm_id,
) -> c_int {
    // SAFETY: rdma_get_request(3): `listener` is a live id.
    if !unsafe { Id::of(listener) }.private().is_sync {
        return status(Err(Errno::INVALID));
    }
    // SAFETY: `listener` is still live: this call has not destroyed it.
    unsafe { taken::forget(listener) };
    // SAFETY: `listener` points to a live object; only the field `channel` is read, without a
    // reference.
    let channel = unsafe { (*listener).channel };
    let mut event = ptr::null_mut();
    // SAFETY: the channel of a live id is live, and `event` is a local variable.
    if unsafe { rdma_get_cm_event(channel, &raw mut event) } != 0 {
        return -1;
    }
    // SAFETY: the call succeeded, so it has set the pointer to an event.
    let seen = unsafe { event.read() };
    // SAFETY: `listener` is live, and the event came from its channel, which it has for itself.
    let taken = unsafe { take_request(listener, seen) };
    let keeper = match taken {
        Ok(id) => {
            // SAFETY: rdma_get_request(3): `place` points to room for a pointer to the id.
            unsafe { *place = id };
            id
        }
        Err(_) => listener,
    };
    // SAFETY: `keeper` is the listener or the new id, both of which are live. An id keeps its event
    // until the next call on it.
    unsafe { (*keeper).event = event };
    status(taken.map(drop))
}

/// The id of a connection request, with a queue pair as the attributes of the listener say.
///
/// # Safety
/// `listener` is a live id, and `event` one of its events.
unsafe fn take_request(
    listener: *mut rdma_cm_id,
    event: rdma_cm_event,
) -> Result<*mut rdma_cm_id, Errno> {
    match (event.event, event.status) {
        (RDMA_CM_EVENT_REJECTED, _) => return Err(Errno(libc::ECONNREFUSED)),
        (RDMA_CM_EVENT_CONNECT_REQUEST, 0) => {}
        (_, 0) => return Err(Errno::INVALID),
        (_, code) => return Err(Errno(code.saturating_abs())),
    }
    // SAFETY: by this function's contract, `listener` is a live id, and `event` one of its events.
    let listener = unsafe { Id::of(listener) };
    let endpoint = listener.private().endpoint;
    if let Some(mut init) = endpoint {
        // SAFETY: the id of the event is new and live, and the attributes are those that the
        // program passed to rdma_create_ep(3).
        if unsafe { rdma_create_qp(event.id, listener.seen().pd, &raw mut init) } != 0 {
            return Err(Errno::last());
        }
    }
    Ok(event.id)
}
