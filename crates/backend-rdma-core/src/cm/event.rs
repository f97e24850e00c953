//! Events of librdmacm, copied so that nothing in them belongs to the library.

use std::ffi::{CStr, c_void};
use std::slice;

use feroce_abi::*;
use feroce_cm::rdma::{ConnParam, EventKind};
use feroce_engine::AddrVec;
use feroce_wire::{Qkey, Qpn};

use crate::library::Rdmacm;
use crate::work;

/// An event of an id.
#[derive(Debug)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// Zero, the reason of a rejection, or a negative error number.
    pub status: i32,
    /// The number of the id; of the listener, if the event is a connect request.
    pub number: u64,
    /// The id of a connect request.
    pub new: Option<Arrived>,
    /// What the peer says of the connection.
    pub conn: Option<ConnParam>,
    /// How to reach a datagram service or a multicast group.
    pub ud: Option<UdPath>,
    /// The private data of the peer.
    pub private_data: Vec<u8>,
    /// The multicast group of the event, as [`Id`](super::Id) numbers them.
    pub(super) group: usize,
    /// Name of the device that the address belongs to.
    pub device: Option<String>,
}

/// How to reach a datagram service or a multicast group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdPath {
    /// The path, for an address handle.
    pub av: AddrVec,
    /// The queue pair.
    pub qpn: Qpn,
    /// Its queue key.
    pub qkey: Qkey,
}

/// An id that came with a connect request. Dropping it rejects the request.
#[derive(Debug)]
pub struct Arrived {
    cm: &'static Rdmacm,
    id: *mut rdma_cm_id,
}

impl Arrived {
    /// The id, which the caller destroys from now on.
    pub(super) fn into_raw(self) -> *mut rdma_cm_id {
        std::mem::ManuallyDrop::new(self).id
    }
}

impl Drop for Arrived {
    fn drop(&mut self) {
        // SAFETY: the library returned the id with a request, and only this object owns it.
        unsafe { (self.cm.rdma_destroy_id)(self.id) };
    }
}

/// Copies an event; `None` if [`EventKind`] does not have its kind.
///
/// # Safety
/// `event` was got from the library `cm` and is not acknowledged.
pub(super) unsafe fn copy(cm: &'static Rdmacm, event: *const rdma_cm_event) -> Option<Event> {
    // SAFETY: the caller passes an event that is not acknowledged, so it is there.
    let event = unsafe { event.read() };
    let kind = convert::cm_event_of(event.event)?;
    let is_request = kind == EventKind::ConnectRequest;
    let about = if is_request { event.listen_id } else { event.id };
    // SAFETY: the library does not free an id before its events are acknowledged.
    let number = unsafe { (*about).context }.addr() as u64;
    // SAFETY: the library does not free an id before its events are acknowledged.
    let rdma_cm_id { ps, verbs, .. } = unsafe { event.id.read() };
    let mut copied = Event {
        kind,
        status: event.status,
        number,
        new: is_request.then(|| Arrived { cm, id: event.id }),
        conn: None,
        ud: None,
        private_data: Vec::new(),
        group: 0,
        // SAFETY: the field is NULL or the open context of the id's device.
        device: unsafe { name_of(verbs) },
    };
    match kind {
        EventKind::MulticastJoin | EventKind::MulticastError => {
            // SAFETY: these events fill in this member. Its private data is the number of the
            // group, which `join_multicast` gave as context.
            let ud = unsafe { event.param.ud };
            copied.group = ud.private_data.addr();
            copied.ud = (kind == EventKind::MulticastJoin).then(|| datagrams(&ud));
        }
        EventKind::ConnectRequest
        | EventKind::ConnectResponse
        | EventKind::Rejected
        | EventKind::Unreachable
        | EventKind::Established
        | EventKind::Disconnected => {
            if ps == RDMA_PS_UDP {
                // SAFETY: events of datagram services fill in this member.
                let ud = unsafe { event.param.ud };
                copied.ud = (kind == EventKind::Established).then(|| datagrams(&ud));
                // SAFETY: the event owns so many bytes, and is not acknowledged.
                copied.private_data = unsafe { bytes(ud.private_data, ud.private_data_len) };
            } else {
                // SAFETY: events of connections fill in this member.
                let conn = unsafe { event.param.conn };
                copied.conn = Some(convert::conn_param_of(&conn));
                // SAFETY: the event owns so many bytes, and is not acknowledged.
                copied.private_data = unsafe { bytes(conn.private_data, conn.private_data_len) };
            }
        }
        _ => {}
    }
    Some(copied)
}

/// How to reach the peer with datagrams.
fn datagrams(param: &rdma_ud_param) -> UdPath {
    let (qpn, qkey) = (Qpn::new(param.qp_num), Qkey(param.qkey));
    UdPath { av: work::addr_vec(&param.ah_attr), qpn, qkey }
}

/// The name of a device.
///
/// # Safety
/// An open context, or NULL.
unsafe fn name_of(context: *mut ibv_context) -> Option<String> {
    if context.is_null() {
        return None;
    }
    // SAFETY: an open context has a device.
    let device = unsafe { (*context).device };
    // SAFETY: an open context keeps its device.
    let name = unsafe { &raw const (*device).name };
    // SAFETY: the library terminates the name with a zero.
    Some(unsafe { CStr::from_ptr(name.cast()) }.to_string_lossy().into_owned())
}

/// A copy of private data.
///
/// # Safety
/// `start` leads to `len` bytes, or is NULL.
unsafe fn bytes(start: *const c_void, len: u8) -> Vec<u8> {
    if start.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller passes so many bytes.
    unsafe { slice::from_raw_parts(start.cast::<u8>(), len.into()) }.to_vec()
}
