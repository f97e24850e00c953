//! Ids whose calls wait, and endpoints made of them.

use core::ffi::c_int;
use core::ptr;

use super::channel::rdma_get_cm_event;
use super::event;
use super::id::{Id, Plan, rdma_destroy_id};
use super::qp::{rdma_create_qp, rdma_destroy_qp};
use super::resolve::{rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route};
use super::srq::rdma_destroy_srq;
use crate::abi::*;
use crate::errno::{self, Errno, status};
use crate::verbs::object::Object;

/// How long an endpoint looks for its peer.
const TIMEOUT_MS: c_int = 2000;

/// Ends a call that leads to an event: if calls of the id wait, it waits for the event and keeps
/// it. May be cancelled, so nothing that needs dropping may be alive.
///
/// # Safety
/// `public` is an id of the program.
pub(crate) unsafe fn finish(public: *mut rdma_cm_id, started: Result<(), Errno>) -> c_int {
    // SAFETY: as the caller says.
    let is_sync = unsafe { Id::of(public) }.private().is_sync;
    if started.is_err() || !is_sync {
        return status(started);
    }
    // SAFETY: as the caller says.
    unsafe { event::forget(public) };
    // SAFETY: as the caller says.
    let channel = unsafe { (*public).channel };
    // SAFETY: as the caller says.
    let place = unsafe { &raw mut (*public).event };
    // SAFETY: the channel of the id, and a field of it.
    if unsafe { rdma_get_cm_event(channel, place) } != 0 {
        return -1;
    }
    // SAFETY: a field of the id.
    let event = unsafe { place.read() };
    // SAFETY: the call succeeded, so there is an event.
    let event = unsafe { event.read() };
    status(match (event.event, event.status) {
        (_, 0) => Ok(()),
        (RDMA_CM_EVENT_REJECTED, _) => Err(Errno(libc::ECONNREFUSED)),
        (_, code) => Err(Errno(code.saturating_abs())),
    })
}

pub(crate) unsafe extern "C-unwind" fn rdma_create_ep(
    place: *mut *mut rdma_cm_id,
    info: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the program gives an address.
    let info = unsafe { info.read() };
    let plan = Plan {
        channel: ptr::null_mut(),
        context: ptr::null_mut(),
        ps: info.ai_port_space.cast_unsigned(),
        qp_type: info.ai_qp_type.cast_unsigned(),
    };
    // SAFETY: it gets a channel of its own.
    let id = match unsafe { Id::create(plan) } {
        Ok(id) => id,
        Err(errno) => return status(Err(errno)),
    };
    let made = if info.ai_flags & RAI_PASSIVE != 0 {
        // SAFETY: what the program gave.
        unsafe { passive(id, &info, pd, init) }
    } else {
        // SAFETY: what the program gave.
        unsafe { active(id, &info, pd, init) }
    };
    if made != 0 {
        let code = errno::get();
        // SAFETY: just made, and nobody else has it.
        unsafe { rdma_destroy_ep(id) };
        errno::set(code);
        return made;
    }
    // SAFETY: the program gives a place for the id.
    unsafe { *place = id };
    0
}

/// An endpoint that will listen.
///
/// # Safety
/// An id that was just made, and what the program gave.
unsafe fn passive(
    id: *mut rdma_cm_id,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the program gives an address.
    if unsafe { rdma_bind_addr(id, info.ai_src_addr) } != 0 {
        return -1;
    }
    if !pd.is_null() {
        // SAFETY: just made.
        unsafe { (*id).pd = pd };
    }
    if !init.is_null() {
        // SAFETY: the program gives attributes.
        let init = unsafe { init.read() };
        let qp_type = info.ai_qp_type.cast_unsigned();
        // SAFETY: just made.
        let id = unsafe { Id::of(id) };
        id.private().endpoint = Some(ibv_qp_init_attr { qp_type, ..init });
    }
    0
}

/// An endpoint that will connect.
///
/// # Safety
/// An id that was just made, and what the program gave.
unsafe fn active(
    id: *mut rdma_cm_id,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    let (src, dst) = (info.ai_src_addr, info.ai_dst_addr);
    // SAFETY: the program gives addresses.
    if unsafe { rdma_resolve_addr(id, src, dst, TIMEOUT_MS) } != 0 {
        return -1;
    }
    // SAFETY: just made.
    if unsafe { rdma_resolve_route(id, TIMEOUT_MS) } != 0 {
        return -1;
    }
    if !init.is_null() {
        // SAFETY: the program gives attributes, and learns of the type.
        unsafe { (*init).qp_type = info.ai_qp_type.cast_unsigned() };
        // SAFETY: objects of the program.
        if unsafe { rdma_create_qp(id, pd, init) } != 0 {
            return -1;
        }
    }
    if info.ai_connect_len > 0 {
        let (data, len) = (info.ai_connect.cast::<u8>(), info.ai_connect_len);
        // SAFETY: the program gives that many bytes.
        let data = unsafe { core::slice::from_raw_parts(data, len) };
        // SAFETY: just made.
        unsafe { Id::of(id) }.private().prefix = data.to_vec();
    }
    0
}

pub(crate) unsafe extern "C" fn rdma_destroy_ep(public: *mut rdma_cm_id) {
    // SAFETY: an id of the program.
    let seen = unsafe { Id::of(public) }.seen();
    if !seen.qp.is_null() {
        // SAFETY: as above.
        unsafe { rdma_destroy_qp(public) };
    }
    if !seen.srq.is_null() {
        // SAFETY: as above.
        unsafe { rdma_destroy_srq(public) };
    }
    // SAFETY: as above, and the program uses it no more.
    unsafe { rdma_destroy_id(public) };
}

/// May be cancelled while it waits.
pub(crate) unsafe extern "C-unwind" fn rdma_get_request(
    listener: *mut rdma_cm_id,
    place: *mut *mut rdma_cm_id,
) -> c_int {
    // SAFETY: an id of the program.
    if !unsafe { Id::of(listener) }.private().is_sync {
        return status(Err(Errno::INVALID));
    }
    // SAFETY: as above.
    unsafe { event::forget(listener) };
    // SAFETY: as above.
    let channel = unsafe { (*listener).channel };
    let mut event = ptr::null_mut();
    // SAFETY: the channel of the id.
    if unsafe { rdma_get_cm_event(channel, &raw mut event) } != 0 {
        return -1;
    }
    // SAFETY: the call succeeded, so there is an event.
    let seen = unsafe { event.read() };
    // SAFETY: an event of the listener.
    let taken = unsafe { take_request(listener, seen) };
    let keeper = match taken {
        Ok(id) => {
            // SAFETY: the program gives a place for the id.
            unsafe { *place = id };
            id
        }
        Err(_) => listener,
    };
    // SAFETY: an id of the program keeps its event until the next call.
    unsafe { (*keeper).event = event };
    status(taken.map(drop))
}

/// The id of a request, with the queue pair that its listener wants.
///
/// # Safety
/// An event of the listener, which is of the program.
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
    // SAFETY: as the caller says.
    let listener = unsafe { Id::of(listener) };
    let endpoint = listener.private().endpoint;
    if let Some(mut init) = endpoint {
        // SAFETY: an id that was just made, and attributes that the program gave.
        if unsafe { rdma_create_qp(event.id, listener.seen().pd, &raw mut init) } != 0 {
            return Err(Errno::last());
        }
    }
    Ok(event.id)
}
