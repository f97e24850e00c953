//! Asynchronous events.

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use feroce_abi::*;
use feroce_engine::{AsyncEvent, CqId, SrqId};
use feroce_train::GidEntry;
use feroce_wire::{Lid, Qpn};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::Error;
use crate::describe::{self, Plain};
use crate::open::Open;
use crate::reactor::readable;

/// Makes a descriptor of the library non-blocking, so that the calls that read from it return at
/// once.
pub(crate) fn do_not_block(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

/// The number of an object of this crate, as the `context` pointer that the C object stores.
pub(crate) fn context_of(number: u32) -> *mut c_void {
    ptr::without_provenance_mut(number as usize)
}

pub(crate) fn number_in(context: *mut c_void) -> u32 {
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
        if let Some(event) = convert::async_event_of(event.event_type, cq, qp, srq) {
            return vec![event];
        }
        match event.event_type {
            IBV_EVENT_LID_CHANGE => match describe::port_info(&self.open) {
                Ok(port) => vec![AsyncEvent::LidChange { lid: Lid(port.attr.lid) }],
                Err(_) => Vec::new(),
            },
            IBV_EVENT_GID_CHANGE => self.changed_gids(),
            other => {
                tracing::warn!("asynchronous event {other}, which verbs of ours do not have");
                Vec::new()
            }
        }
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
