//! Completion channels and asynchronous events.

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::thread::JoinHandle;

use feroce_abi::*;
use feroce_engine::{AsyncEvent, CqId, SrqId};
use feroce_train::GidEntry;
use feroce_wire::{Lid, Qpn};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::Error;
use crate::adapter::{Adapter, Open};
use crate::describe::{self, Plain};
use crate::handle::Handle;
use crate::reactor::{readable, wake_when_readable};

/// Makes a descriptor of the library non-blocking, so that the calls that read from it return at
/// once.
pub(crate) fn do_not_block(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

/// A completion channel.
#[derive(Debug)]
pub struct Channel {
    handle: Handle<ibv_comp_channel>,
    fd: RawFd,
    adapter: Arc<Adapter>,
}

impl Channel {
    /// Creates a channel.
    pub fn create(adapter: &Arc<Adapter>) -> Result<Self, Error> {
        let verbs = adapter.open.verbs;
        // SAFETY: an open context.
        let channel = unsafe { (verbs.ibv_create_comp_channel)(adapter.open.as_ptr()) };
        // SAFETY: the library just created it, and only this handle destroys it.
        let handle = unsafe { Handle::new("ibv_create_comp_channel", channel) }?;
        // SAFETY: it is not NULL, or there would be no handle.
        let fd = unsafe { (*channel).fd };
        let channel = Self { handle, fd, adapter: Arc::clone(adapter) };
        do_not_block(channel.fd())?;
        Ok(channel)
    }

    /// The next completion event, if there is one.
    pub fn try_pop(&self) -> Option<CqId> {
        let verbs = self.adapter.open.verbs;
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut::<c_void>());
        let taken = self.handle.with(|channel| {
            // SAFETY: a channel that lives, and places for the answers.
            unsafe { (verbs.ibv_get_cq_event)(channel, &raw mut cq, &raw mut context) }
        });
        if taken != Some(0) {
            return None;
        }
        // SAFETY: the queue lives: `ibv_destroy_cq` waits until each of its events is acknowledged.
        unsafe { (verbs.ibv_ack_cq_events)(cq, 1) };
        Some(CqId(number_in(context)))
    }

    /// The next completion event; if there is none, the waker is called when there is one.
    pub fn pop_or_register(&self, waker: &Waker) -> Option<CqId> {
        let found = self.try_pop();
        if found.is_none() {
            wake_when_readable(self.fd, waker);
        }
        found
    }

    /// Readable while a completion event waits.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the library keeps it open as long as the channel, which ends with this.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }

    /// Runs a call that needs the channel of C.
    pub(crate) fn with<R>(&self, f: impl FnOnce(*mut ibv_comp_channel) -> R) -> Option<R> {
        self.handle.with(f)
    }

    /// Whether it is a channel of this device.
    pub(crate) fn is_of(&self, adapter: &Arc<Adapter>) -> bool {
        Arc::ptr_eq(&self.adapter, adapter)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let verbs = self.adapter.open.verbs;
        // A completion queue that reports to this channel holds a reference to it, so no queue
        // uses it any more.
        let _ = self.handle.end("ibv_destroy_comp_channel", |channel| {
            // SAFETY: a channel that lives, and that no thread is in a call on.
            unsafe { (verbs.ibv_destroy_comp_channel)(channel) }
        });
    }
}

/// The number of an object of this crate, as the `context` pointer that the C object stores.
pub(crate) fn context_of(number: u32) -> *mut c_void {
    ptr::without_provenance_mut(number as usize)
}

fn number_in(context: *mut c_void) -> u32 {
    context.addr() as u32
}

/// Receives the asynchronous events of a device.
pub type Sink = Box<dyn Fn(AsyncEvent) + Send>;

/// A thread that takes asynchronous events.
#[derive(Debug)]
pub(crate) struct Watcher {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    wake: EventFd,
}

impl Watcher {
    pub(crate) fn start(
        open: &Arc<Open>,
        name: &str,
        sink: Sink,
        gids: Vec<GidEntry>,
    ) -> Result<Self, Error> {
        // SAFETY: the context is open.
        let fd = unsafe { (*open.as_ptr()).async_fd };
        // SAFETY: the library keeps it open as long as the context.
        do_not_block(unsafe { BorrowedFd::borrow_raw(fd) })?;
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            wake: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
        });
        let listener = Listener { open: Arc::clone(open), fd, sink, gids };
        let watched = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name(format!("watch {name}"))
            .spawn(move || watched.run(listener))?;
        Ok(Self { shared, thread: Some(thread) })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        let _ = self.shared.wake.write(1);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed already.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self, mut listener: Listener) {
        let own = self.wake.as_fd().as_raw_fd();
        while !self.stop.load(Ordering::Acquire) {
            if readable(&[own, listener.fd]).contains(&listener.fd) {
                listener.take_all();
            }
        }
    }
}

/// Takes asynchronous events of the device, and passes them to the sink.
struct Listener {
    open: Arc<Open>,
    fd: RawFd,
    sink: Sink,
    /// GIDs of the port that the sink knows of.
    gids: Vec<GidEntry>,
}

impl Listener {
    fn take_all(&mut self) {
        let verbs = self.open.verbs;
        loop {
            let mut event = ibv_async_event::zeroed();
            // SAFETY: an open context, and a place for the event.
            let code: c_int =
                unsafe { (verbs.ibv_get_async_event)(self.open.as_ptr(), &raw mut event) };
            if code != 0 {
                return;
            }
            let told = self.translate(&event);
            // SAFETY: an event that was taken, and that is not looked at any more.
            unsafe { (verbs.ibv_ack_async_event)(&raw mut event) };
            told.into_iter().for_each(|event| (self.sink)(event));
        }
    }

    /// Converts an event to those of the engine; empty if the engine has no such event.
    fn translate(&mut self, event: &ibv_async_event) -> Vec<AsyncEvent> {
        // SAFETY: every member is a pointer or an integer, and the union was zeroed before the
        // library filled it in, so it can be read as a pointer. The pointer is dereferenced only if
        // the kind of the event says that it is one.
        let object = unsafe { event.element.cq };
        // SAFETY: called only if the kind of the event says that the object is of this type. The
        // object lives: destroying it waits until its events are acknowledged.
        let cq = || CqId(number_in(unsafe { (*object).cq_context }));
        // SAFETY: as above.
        let qp = || Qpn::new(unsafe { (*object.cast::<ibv_qp>()).qp_num });
        // SAFETY: as above.
        let srq = || SrqId(number_in(unsafe { (*object.cast::<ibv_srq>()).srq_context }));
        vec![match event.event_type {
            IBV_EVENT_CQ_ERR => AsyncEvent::CqError(cq()),
            IBV_EVENT_QP_FATAL => AsyncEvent::QpFatal(qp()),
            IBV_EVENT_QP_REQ_ERR => AsyncEvent::QpRequestError(qp()),
            IBV_EVENT_QP_ACCESS_ERR => AsyncEvent::QpAccessError(qp()),
            IBV_EVENT_COMM_EST => AsyncEvent::CommEstablished(qp()),
            IBV_EVENT_SQ_DRAINED => AsyncEvent::SqDrained(qp()),
            IBV_EVENT_QP_LAST_WQE_REACHED => AsyncEvent::LastWqeReached(qp()),
            IBV_EVENT_SRQ_LIMIT_REACHED => AsyncEvent::SrqLimitReached(srq()),
            IBV_EVENT_SRQ_ERR => AsyncEvent::SrqError(srq()),
            IBV_EVENT_PORT_ACTIVE => AsyncEvent::PortActive,
            IBV_EVENT_PORT_ERR => AsyncEvent::PortError,
            IBV_EVENT_PKEY_CHANGE => AsyncEvent::PkeyChange,
            IBV_EVENT_LID_CHANGE => match describe::port_info(&self.open) {
                Ok(port) => AsyncEvent::LidChange { lid: Lid(port.attr.lid) },
                Err(_) => return Vec::new(),
            },
            IBV_EVENT_GID_CHANGE => return self.changed_gids(),
            other => {
                tracing::warn!("asynchronous event {other}, which verbs of ours do not have");
                return Vec::new();
            }
        }]
    }

    /// Compares the GID table with the last one: the library reports a change, but not which
    /// entries changed.
    fn changed_gids(&mut self) -> Vec<AsyncEvent> {
        let Ok(port) = describe::port_info(&self.open) else { return Vec::new() };
        let before = std::mem::replace(&mut self.gids, port.gids);
        let at = |gids: &[GidEntry], i: usize| gids.get(i).copied().unwrap_or_default();
        let len = before.len().max(self.gids.len());
        let changed = (0..len).filter(|&i| at(&before, i) != at(&self.gids, i));
        let told = changed.map(|i| AsyncEvent::GidChange {
            index: u16::try_from(i).unwrap_or(u16::MAX),
            gid: at(&self.gids, i).gid,
        });
        told.collect()
    }
}
