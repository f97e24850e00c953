//! Event channels of librdmacm.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;

use feroce_abi::*;
use feroce_cm::rdma::{ConnParam, EventKind, PortSpace};

use super::super::events::do_not_block;
use super::super::failed;
use super::super::library::{Rdmacm, rdmacm};
use super::super::reactor::wake_when_readable;
use super::id::Id;
use super::manager::Manager;
use super::param;
use crate::cm::{Event, UdParam};
use crate::{Error, Settings};

/// Ids by number, for events that say which one they are about.
static IDS: Mutex<BTreeMap<u64, Weak<Id>>> = Mutex::new(BTreeMap::new());

pub(super) fn ids() -> MutexGuard<'static, BTreeMap<u64, Weak<Id>>> {
    IDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where the events of ids come out.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(super) cm: &'static Rdmacm,
    channel: NonNull<rdma_event_channel>,
    fd: RawFd,
    pub(super) manager: Arc<Manager>,
}

// SAFETY: the library is safe to call from any thread.
unsafe impl Send for Channel {}

// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: made by the function that belongs to it, and every id on it held it.
        unsafe { (self.cm.rdma_destroy_event_channel)(self.as_ptr()) };
    }
}

/// An event as the library told it, with nothing left that belongs to the library.
struct Told {
    kind: EventKind,
    status: i32,
    /// The number of the id that it is about, or of the listener if there is a new one.
    number: u64,
    new: Option<Arrived>,
    conn: Option<ConnParam>,
    ud: Option<UdParam>,
    private_data: Vec<u8>,
    /// Which group was joined, as the id numbers them.
    group: usize,
    /// The device that the address has chosen.
    device: Option<String>,
}

/// An id that came with a request, and that nobody has yet.
struct Arrived(*mut rdma_cm_id);

impl Channel {
    pub(super) fn create(manager: &Arc<Manager>, settings: &Settings) -> Result<Self, Error> {
        let cm = rdmacm(settings.rdma_core.as_deref())?;
        // SAFETY: no preconditions.
        let channel = unsafe { (cm.rdma_create_event_channel)() };
        let channel = NonNull::new(channel).ok_or_else(|| failed("rdma_create_event_channel"))?;
        // SAFETY: just made.
        let fd = unsafe { channel.as_ref() }.fd;
        let channel = Self { cm, channel, fd, manager: Arc::clone(manager) };
        do_not_block(channel.fd())?;
        Ok(channel)
    }

    pub(super) fn as_ptr(&self) -> *mut rdma_event_channel {
        self.channel.as_ptr()
    }

    pub(crate) fn create_id(self: &Arc<Self>, space: PortSpace) -> Result<Arc<Id>, Error> {
        Id::create(self, space)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the library keeps it open as long as the channel, which ends with this.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }

    /// The next event, if there is one.
    pub(crate) fn try_event(self: &Arc<Self>) -> Option<Event> {
        loop {
            let mut event = ptr::null_mut();
            // SAFETY: a channel that lives, and a place for the event.
            if unsafe { (self.cm.rdma_get_cm_event)(self.as_ptr(), &raw mut event) } != 0 {
                return None;
            }
            // SAFETY: just got, and not acknowledged.
            let told = unsafe { copy(event) };
            // SAFETY: as above. Nothing of it is looked at any more.
            unsafe { (self.cm.rdma_ack_cm_event)(event) };
            if let Some(event) = told.and_then(|told| self.complete(told)) {
                return Some(event);
            }
        }
    }

    /// Gives an event the ids that it is about; none if they are gone.
    fn complete(self: &Arc<Self>, mut told: Told) -> Option<Event> {
        let known = ids().get(&told.number).and_then(Weak::upgrade);
        let (id, listener) = match told.new.take() {
            None => (known?, None),
            Some(Arrived(new)) => {
                // Whoever takes it owns it: if the listener is gone, it is dropped, and refused.
                let space = known.as_ref().map_or(PortSpace::Tcp, |listener| listener.port_space());
                let id = Id::adopt(self, space, new).ok()?;
                (id, Some(known?))
            }
        };
        let mut kind = told.kind;
        let mut status = told.status;
        if let Err(errno) =
            id.on_event(&mut kind, &told.device, told.conn.as_ref(), told.group, told.ud)
        {
            status = -errno;
        }
        Some(Event {
            kind,
            id: id.into(),
            listener: listener.map(Into::into),
            status,
            conn: told.conn,
            ud: told.ud,
            private_data: told.private_data,
        })
    }

    /// Waits for the next event, at most `timeout_ms`; for ever if `None`.
    pub(crate) fn wait_event(
        self: &Arc<Self>,
        timeout_ms: Option<u16>,
    ) -> io::Result<Option<Event>> {
        crate::sys::wait_for(self.fd(), timeout_ms, || self.try_event())
    }

    /// Resolves with the next event.
    pub(crate) async fn event(self: &Arc<Self>) -> Event {
        std::future::poll_fn(|cx| match self.try_event() {
            Some(event) => Poll::Ready(event),
            None => {
                wake_when_readable(self.fd, cx.waker());
                Poll::Pending
            }
        })
        .await
    }
}

/// Copies an event; `None` if it is one that we have no word for.
///
/// # Safety
/// An event that was got and not acknowledged.
unsafe fn copy(event: *const rdma_cm_event) -> Option<Told> {
    // SAFETY: as the caller says.
    let event = unsafe { event.read() };
    let kind = kind(event.event)?;
    let is_request = kind == EventKind::ConnectRequest;
    let about = if is_request { event.listen_id } else { event.id };
    // SAFETY: an id waits until its event is acknowledged before it goes.
    let number = unsafe { (*about).context }.addr() as u64;
    // SAFETY: as above.
    let rdma_cm_id { ps, verbs, .. } = unsafe { event.id.read() };
    let mut told = Told {
        kind,
        status: event.status,
        number,
        new: is_request.then_some(Arrived(event.id)),
        conn: None,
        ud: None,
        private_data: Vec::new(),
        group: 0,
        // SAFETY: an id that has a device has an open context of it.
        device: unsafe { name_of(verbs) },
    };
    match kind {
        EventKind::MulticastJoin | EventKind::MulticastError => {
            // SAFETY: these events fill in this member; the private data is what we gave.
            let ud = unsafe { event.param.ud };
            told.group = ud.private_data.addr();
            told.ud = (kind == EventKind::MulticastJoin).then(|| param::datagrams(&ud));
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
                told.ud = (kind == EventKind::Established).then(|| param::datagrams(&ud));
                // SAFETY: as above; the bytes belong to the event.
                told.private_data = unsafe { bytes(ud.private_data, ud.private_data_len) };
            } else {
                // SAFETY: events of connections fill in this member.
                let conn = unsafe { event.param.conn };
                told.conn = Some(param::offer(&conn));
                // SAFETY: as above; the bytes belong to the event.
                told.private_data = unsafe { bytes(conn.private_data, conn.private_data_len) };
            }
        }
        _ => {}
    }
    Some(told)
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
    // SAFETY: as above.
    let name = unsafe { &raw const (*device).name };
    // SAFETY: the name ends with a zero.
    Some(unsafe { CStr::from_ptr(name.cast()) }.to_string_lossy().into_owned())
}

/// # Safety
/// `start` leads to `len` bytes, or is NULL.
unsafe fn bytes(start: *const c_void, len: u8) -> Vec<u8> {
    if start.is_null() {
        return Vec::new();
    }
    // SAFETY: as the caller says.
    unsafe { slice::from_raw_parts(start.cast::<u8>(), len.into()) }.to_vec()
}

fn kind(number: rdma_cm_event_type) -> Option<EventKind> {
    Some(match number {
        RDMA_CM_EVENT_ADDR_RESOLVED => EventKind::AddrResolved,
        RDMA_CM_EVENT_ADDR_ERROR => EventKind::AddrError,
        RDMA_CM_EVENT_ROUTE_RESOLVED => EventKind::RouteResolved,
        RDMA_CM_EVENT_ROUTE_ERROR => EventKind::RouteError,
        RDMA_CM_EVENT_CONNECT_REQUEST => EventKind::ConnectRequest,
        RDMA_CM_EVENT_CONNECT_RESPONSE => EventKind::ConnectResponse,
        RDMA_CM_EVENT_CONNECT_ERROR => EventKind::ConnectError,
        RDMA_CM_EVENT_UNREACHABLE => EventKind::Unreachable,
        RDMA_CM_EVENT_REJECTED => EventKind::Rejected,
        RDMA_CM_EVENT_ESTABLISHED => EventKind::Established,
        RDMA_CM_EVENT_DISCONNECTED => EventKind::Disconnected,
        RDMA_CM_EVENT_DEVICE_REMOVAL => EventKind::DeviceRemoval,
        RDMA_CM_EVENT_MULTICAST_JOIN => EventKind::MulticastJoin,
        RDMA_CM_EVENT_MULTICAST_ERROR => EventKind::MulticastError,
        RDMA_CM_EVENT_ADDR_CHANGE => EventKind::AddrChange,
        RDMA_CM_EVENT_TIMEWAIT_EXIT => EventKind::TimewaitExit,
        _ => return None,
    })
}
