//! Events, from the channel to their acknowledgement.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;
use std::sync::Arc;

use feroce::cm::{self, ConnParam, EventKind, UdParam};

use super::id::{Id, Plan};
use super::qp::show_qp_state;
use super::table::Ids;
use crate::abi::*;
use crate::errno::{Errno, status};
use crate::verbs::ack::Acks;
use crate::verbs::ah::ah_attr;
use crate::verbs::object::Object;
use crate::zeroed::Zeroed;

/// An event that the program has.
#[repr(C)]
struct Event {
    public: UnsafeCell<rdma_cm_event>,
    /// What the parameters lead to.
    private_data: Vec<u8>,
    /// The id that waits for the acknowledgement: of a request, the listener.
    id: *mut rdma_cm_id,
    /// The group that waits as well.
    group: Option<Arc<Acks>>,
}

// SAFETY: the type is `repr(C)`, and its first field is the `UnsafeCell` of the public part.
unsafe impl Object for Event {
    type C = rdma_cm_event;
}

/// Gives an event to the program; none if its id is gone.
pub(crate) fn publish(ids: &mut Ids, event: cm::Event) -> Option<*mut rdma_cm_event> {
    let asked = event.listener.as_ref().unwrap_or(&event.id);
    // SAFETY: the id is in the table, which this thread has locked; rdma_destroy_id(3) removes it
    // from there first.
    let asked = unsafe { ids.get(&asked.number())?.get() };
    let (id, listen_id) = if event.listener.is_some() {
        (request(ids, asked, &event.id)?, asked.public())
    } else {
        (asked.public(), ptr::null_mut())
    };
    // SAFETY: the id is in the table, which this thread has locked; rdma_destroy_id(3) removes it
    // from there first.
    let (id, public_id) = (unsafe { Id::of(id) }, id);
    let (mut kind, mut status) = (event.kind as rdma_cm_event_type, event.status);
    if let Err(Errno(errno)) = show(id, event.kind) {
        (kind, status) = (RDMA_CM_EVENT_ADDR_ERROR, -errno);
    }
    let group = event.ud.filter(|_| event.kind == EventKind::MulticastJoin);
    let group = group.and_then(|ud| {
        let private = id.private();
        let group = private.groups.iter().find(|group| group.gid == ud.av.dgid);
        group.map(|group| (group.context, Arc::clone(&group.acks)))
    });
    let made = Event {
        public: UnsafeCell::new(rdma_cm_event {
            id: public_id,
            listen_id,
            event: kind,
            status,
            param: rdma_cm_event__param::zeroed(),
        }),
        private_data: event.private_data,
        id: asked.public(),
        group: group.as_ref().map(|(_, acks)| Arc::clone(acks)),
    };
    let param = if event.kind == EventKind::User {
        let arg = made.private_data.first_chunk().map_or(0, |arg| u64::from_ne_bytes(*arg));
        rdma_cm_event__param { arg }
    } else if id.seen().qp_type == IBV_QPT_UD {
        let context = group.map(|(context, _)| context);
        rdma_cm_event__param { ud: ud_param(event.ud, &made.private_data, context) }
    } else {
        rdma_cm_event__param { conn: conn_param(event.conn.as_ref(), &made.private_data) }
    };
    asked.acks.deliver();
    if let Some(acks) = &made.group {
        acks.deliver();
    }
    let public = made.give();
    // SAFETY: `give` returned the pointer, and the program does not have it yet.
    unsafe { (*public).param = param };
    Some(public)
}

/// Makes the id of a request, in the likeness of the listener.
fn request(ids: &mut Ids, listener: &Id, id: &cm::CmId) -> Option<*mut rdma_cm_id> {
    let rdma_cm_id { channel, context, ps, qp_type, .. } = listener.seen();
    let is_sync = listener.private().is_sync;
    let made = Id::publish(ids, id.clone(), Plan { channel, context, ps, qp_type }, false);
    if is_sync {
        // SAFETY: this function has made the object, and neither the program nor another thread can
        // destroy it yet.
        let id = unsafe { Id::of(made) };
        // SAFETY: the channel is NULL; the id gets one of its own.
        if unsafe { id.migrate(ptr::null_mut()) }.is_err() {
            ids.remove(&id.id.number());
            // SAFETY: this function has made the id, and the program does not have it. Dropping it
            // refuses the request.
            drop(unsafe { Id::take(made) });
            return None;
        }
    }
    Some(made)
}

/// Shows the program what an event changed.
fn show(id: &Id, kind: EventKind) -> Result<(), Errno> {
    match kind {
        EventKind::AddrResolved => id.show()?,
        EventKind::RouteResolved => id.show_path(),
        EventKind::ConnectRequest => {
            id.show()?;
            id.show_path();
        }
        _ => show_qp_state(id),
    }
    Ok(())
}

/// Where private data is, and how long; a message has room for less than 256 bytes.
fn data(bytes: &[u8]) -> (*const c_void, u8) {
    let len = u8::try_from(bytes.len()).unwrap_or(u8::MAX);
    (if len == 0 { ptr::null() } else { bytes.as_ptr().cast() }, len)
}

fn conn_param(conn: Option<&ConnParam>, bytes: &[u8]) -> rdma_conn_param {
    let (private_data, private_data_len) = data(bytes);
    let zeroed = rdma_conn_param::zeroed();
    let Some(conn) = conn else {
        return rdma_conn_param { private_data, private_data_len, ..zeroed };
    };
    rdma_conn_param {
        private_data,
        private_data_len,
        responder_resources: conn.responder_resources,
        initiator_depth: conn.initiator_depth,
        flow_control: conn.flow_control.into(),
        retry_count: conn.retry_count,
        rnr_retry_count: conn.rnr_retry_count,
        srq: conn.srq.into(),
        qp_num: conn.qpn.get(),
    }
}

/// The parameters of datagrams; for a group, private data is what the program gave when it joined.
fn ud_param(ud: Option<UdParam>, bytes: &[u8], context: Option<*mut c_void>) -> rdma_ud_param {
    let (private_data, private_data_len) = data(bytes);
    let private_data = context.map_or(private_data, <*mut c_void>::cast_const);
    let zeroed = rdma_ud_param::zeroed();
    let Some(ud) = ud else {
        return rdma_ud_param { private_data, private_data_len, ..zeroed };
    };
    rdma_ud_param {
        private_data,
        private_data_len,
        ah_attr: ah_attr(&ud.av),
        qp_num: ud.qpn.get(),
        qkey: ud.qkey.0,
    }
}

pub(crate) unsafe extern "C" fn rdma_ack_cm_event(public: *mut rdma_cm_event) -> c_int {
    if public.is_null() {
        return status(Err(Errno::INVALID));
    }
    // SAFETY: rdma_ack_cm_event(3): `public` is a live event, which the program does not use any
    // more.
    let event = unsafe { Event::take(public) };
    if let Some(acks) = &event.group {
        acks.ack(1);
    }
    // SAFETY: rdma_destroy_id(3) waits until the events of the id are acknowledged, so the id is
    // live.
    unsafe { Id::of(event.id) }.acks.ack(1);
    0
}

/// Acknowledges the event that an id keeps for the program, if there is one.
///
/// # Safety
/// `id` is a live id.
pub(crate) unsafe fn forget(id: *mut rdma_cm_id) {
    // SAFETY: by this function's contract `id` points to a live object; only the field `event` is
    // read, without a reference.
    let kept = unsafe { (*id).event };
    if kept.is_null() {
        return;
    }
    // SAFETY: by this function's contract `id` points to a live object. This library sets `event`
    // through the raw pointer, without a reference to the public part.
    unsafe { (*id).event = ptr::null_mut() };
    // SAFETY: `kept` is an event that the id kept for the program, which may not use it after
    // another call on the id.
    unsafe { rdma_ack_cm_event(kept) };
}

pub(crate) extern "C" fn rdma_event_str(event: rdma_cm_event_type) -> *const c_char {
    let name: &CStr = match event {
        RDMA_CM_EVENT_ADDR_RESOLVED => c"RDMA_CM_EVENT_ADDR_RESOLVED",
        RDMA_CM_EVENT_ADDR_ERROR => c"RDMA_CM_EVENT_ADDR_ERROR",
        RDMA_CM_EVENT_ROUTE_RESOLVED => c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        RDMA_CM_EVENT_ROUTE_ERROR => c"RDMA_CM_EVENT_ROUTE_ERROR",
        RDMA_CM_EVENT_CONNECT_REQUEST => c"RDMA_CM_EVENT_CONNECT_REQUEST",
        RDMA_CM_EVENT_CONNECT_RESPONSE => c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        RDMA_CM_EVENT_CONNECT_ERROR => c"RDMA_CM_EVENT_CONNECT_ERROR",
        RDMA_CM_EVENT_UNREACHABLE => c"RDMA_CM_EVENT_UNREACHABLE",
        RDMA_CM_EVENT_REJECTED => c"RDMA_CM_EVENT_REJECTED",
        RDMA_CM_EVENT_ESTABLISHED => c"RDMA_CM_EVENT_ESTABLISHED",
        RDMA_CM_EVENT_DISCONNECTED => c"RDMA_CM_EVENT_DISCONNECTED",
        RDMA_CM_EVENT_DEVICE_REMOVAL => c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        RDMA_CM_EVENT_MULTICAST_JOIN => c"RDMA_CM_EVENT_MULTICAST_JOIN",
        RDMA_CM_EVENT_MULTICAST_ERROR => c"RDMA_CM_EVENT_MULTICAST_ERROR",
        RDMA_CM_EVENT_ADDR_CHANGE => c"RDMA_CM_EVENT_ADDR_CHANGE",
        RDMA_CM_EVENT_TIMEWAIT_EXIT => c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        RDMA_CM_EVENT_ADDRINFO_RESOLVED => c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
        RDMA_CM_EVENT_ADDRINFO_ERROR => c"RDMA_CM_EVENT_ADDRINFO_ERROR",
        RDMA_CM_EVENT_USER => c"RDMA_CM_EVENT_USER",
        _ => c"UNKNOWN EVENT",
    };
    name.as_ptr()
}
