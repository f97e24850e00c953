//! Events, from the channel to their acknowledgement.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::thread::park_timeout;
use std::time::Duration;

use feroce::cm::{self, ConnParam, EventKind, UdParam};

use super::channel::Channel;
use super::id::{Id, Plan};
use super::qp::show_qp_state;
use super::table::{self, Ids};
use super::taken::Event;
use crate::abi::*;
use crate::errno::{Errno, status};
use crate::leave;
use crate::verbs::object::Object;
use crate::verbs::wait;
use crate::zeroed::Zeroed;

/// How long after it has destroyed a channel a program may take to exit, before a thread that asks
/// for an event there is told that there is no such channel.
const EXIT_SOON: Duration = Duration::from_millis(100);

/// May be cancelled while it waits: see [`wait`].
pub(crate) unsafe extern "C-unwind" fn rdma_get_cm_event(
    public: *mut rdma_event_channel,
    place: *mut *mut rdma_cm_event,
) -> c_int {
    if place.is_null() {
        return status(Err(Errno::INVALID));
    }
    let mut may_exit = true;
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
            // rping destroys the channel while its other thread is about to ask for the next event,
            // and exits at once. In Linux that thread mostly waits already, and goes on waiting.
            Err(_) if may_exit => {
                may_exit = false;
                park_timeout(EXIT_SOON);
                continue;
            }
            Err(errno) => return status(Err(errno)),
        };
        match wait::until_readable(fd) {
            Ok(()) => {}
            // The channel was destroyed before this thread began to wait.
            Err(_) if Channel::find(public).is_none() => {}
            Err(errno) => return status(Err(errno)),
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
    let channel = Channel::find(public).ok_or(Errno(libc::EBADF))?;
    // Locked first, so that no id is destroyed between taking its event and counting it.
    let mut ids = table::lock();
    while let Some(event) = channel.try_event() {
        if let Some(event) = publish(&mut ids, event) {
            return Ok(Next::Event(event));
        }
    }
    Ok(Next::Nothing { fd: channel.as_raw_fd() })
}

/// Gives an event to the program; none if its id is gone.
fn publish(ids: &mut Ids, event: cm::Event) -> Option<*mut rdma_cm_event> {
    let asked = event.listener.as_ref().unwrap_or(&event.id);
    // SAFETY: the id is in the table, which this thread has locked; rdma_destroy_id(3) removes it
    // from there first.
    let asked: &Id = unsafe { ids.get(&asked.number())?.get() };
    let (id, listen_id) = if event.listener.is_some() {
        (request(ids, asked, &event.id)?, asked.public())
    } else {
        (asked.public(), ptr::null_mut())
    };
    // SAFETY: the id is in the table, which this thread has locked; rdma_destroy_id(3) removes it
    // from there first.
    let (id, public_id) = (unsafe { Id::of(id) }, id);
    let (mut kind, mut status) = (convert::cm_event(event.kind), event.status);
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
        id: Arc::clone(&asked.acks),
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
    let shown = conn.map_or_else(rdma_conn_param::zeroed, convert::conn_param);
    rdma_conn_param { private_data, private_data_len, ..shown }
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
        ah_attr: convert::ah_attr(&ud.av),
        qp_num: ud.qpn.get(),
        qkey: ud.qkey.0,
    }
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
