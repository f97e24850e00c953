//! Events on their way from the engine to whoever waits for them.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

use feroce_engine::{AsyncEvent, CqId, Event};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// A queue with a descriptor that is readable while there is something in it.
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    inner: Mutex<Waiting<T>>,
    fd: EventFd,
}

#[derive(Debug)]
struct Waiting<T> {
    queue: VecDeque<T>,
    wakers: Vec<Waker>,
}

/// Completion queues that have something, by their handles.
pub(crate) type ChannelQueue = EventQueue<CqId>;

/// Asynchronous events.
pub(crate) type AsyncQueue = EventQueue<AsyncEvent>;

impl<T> EventQueue<T> {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let inner = Mutex::new(Waiting { queue: VecDeque::new(), wakers: Vec::new() });
        Ok(Self { inner, fd: EventFd::from_flags(flags)? })
    }

    /// Appends an event and wakes whoever waits.
    pub(crate) fn push(&self, event: T) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.queue.push_back(event);
        if inner.queue.len() == 1 {
            let _ = self.fd.write(1);
        }
        let wakers = std::mem::take(&mut inner.wakers);
        drop(inner);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Takes the oldest event.
    pub(crate) fn try_pop(&self) -> Option<T> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let event = inner.queue.pop_front()?;
        if inner.queue.is_empty() {
            // The descriptor is readable exactly while the queue holds something.
            let _ = self.fd.read();
        }
        Some(event)
    }

    /// Takes the oldest event, or leaves a waker to be called when there is one.
    pub(crate) fn pop_or_register(&self, waker: &Waker) -> Option<T> {
        if let Some(event) = self.try_pop() {
            return Some(event);
        }
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if !inner.wakers.iter().any(|w| w.will_wake(waker)) {
            inner.wakers.push(waker.clone());
        }
        drop(inner);
        // An event may have come between the two looks.
        self.try_pop()
    }

    /// Waits for an event, at most `timeout_ms`; for ever if `None`.
    pub(crate) fn pop_wait(&self, timeout_ms: Option<u16>) -> io::Result<Option<T>> {
        loop {
            if let Some(event) = self.try_pop() {
                return Ok(Some(event));
            }
            let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
            let timeout = timeout_ms.map_or(PollTimeout::NONE, PollTimeout::from);
            match poll(&mut fds, timeout) {
                Ok(0) => return Ok(None),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Who is told about what.
#[derive(Debug, Default)]
pub(crate) struct Dispatch {
    channels: BTreeMap<CqId, Arc<ChannelQueue>>,
    listeners: Vec<std::sync::Weak<AsyncQueue>>,
}

impl Dispatch {
    /// Completion events of `cq` go to `channel`.
    pub(crate) fn attach(&mut self, cq: CqId, channel: Arc<ChannelQueue>) {
        self.channels.insert(cq, channel);
    }

    /// Completion events of `cq` go nowhere any more.
    pub(crate) fn detach(&mut self, cq: CqId) {
        self.channels.remove(&cq);
    }

    /// Asynchronous events also go to `listener`, as long as it lives.
    pub(crate) fn listen(&mut self, listener: &Arc<AsyncQueue>) {
        self.listeners.retain(|l| l.strong_count() > 0);
        self.listeners.push(Arc::downgrade(listener));
    }

    /// Passes an event on.
    pub(crate) fn deliver(&self, event: Event) {
        match event {
            Event::Completion(cq) => {
                if let Some(channel) = self.channels.get(&cq) {
                    channel.push(cq);
                }
            }
            Event::Async(event) => {
                for listener in self.listeners.iter().filter_map(std::sync::Weak::upgrade) {
                    listener.push(event);
                }
            }
        }
    }
}
