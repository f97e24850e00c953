//! Delivery of the engine's events to their consumers.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Waker;

use feroce_engine::{AsyncEvent, CqId, Event, SrqId};
use feroce_ring::OneEvent;
use feroce_wire::Qpn;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::naps::Naps;
use super::wakes::{Signal, Wakes};

/// A queue with a descriptor that is readable while the queue holds an event.
///
/// The descriptor is the reading end of a pipe, because it must never be reported as writable: the
/// kernel's are not, and a program that waits for both directions would not sleep. An eventfd is
/// writable nearly always.
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    inner: Mutex<Waiting<T>>,
    pipe: OnceLock<Pipe>,
}

#[derive(Debug)]
struct Pipe {
    fd: PipeReader,
    /// Written under the lock of the queue, so that a byte in the pipe means an event there.
    bell: PipeWriter,
}

impl Pipe {
    fn new() -> io::Result<Self> {
        // The consumer decides whether reading blocks: C programs set that with fcntl. Writing must
        // not block; if the pipe is full, the descriptor is readable anyway.
        let (fd, bell) = io::pipe()?;
        fcntl(&bell, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        // Refused in some sandboxes, where the pipe stays as long as it is.
        let _ = fcntl(&bell, FcntlArg::F_SETPIPE_SZ(PIPE_LEN));
        Ok(Self { fd, bell })
    }

    fn is_readable(&self) -> bool {
        let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO) == Ok(1)
    }

    /// Makes the descriptor readable.
    fn ring(&self) {
        let _ = (&self.bell).write(&[0]);
    }
}

/// How many bytes a pipe is asked to hold: one page, the least that the kernel gives. The pages of
/// all pipes of a user are limited.
const PIPE_LEN: i32 = 4096;

#[derive(Debug)]
struct Waiting<T> {
    queue: VecDeque<T>,
    /// The pipe may hold bytes. Tasks ask for events often when there are none, and asking the
    /// kernel about the pipe takes longer than they do.
    is_rung: bool,
    wakers: Vec<Waker>,
}

/// Completion events: the handles of completion queues that have completions.
pub(crate) type ChannelQueue = EventQueue<CqId>;

/// Asynchronous events.
pub(crate) type AsyncQueue = EventQueue<AsyncEvent>;

impl<T> EventQueue<T> {
    pub(crate) fn new() -> io::Result<Self> {
        let queue = Self::without_descriptor();
        queue.try_fd()?;
        Ok(queue)
    }

    /// A queue whose descriptor is made when a consumer first asks for it.
    pub(crate) fn without_descriptor() -> Self {
        let inner =
            Mutex::new(Waiting { queue: VecDeque::new(), is_rung: false, wakers: Vec::new() });
        Self { inner, pipe: OnceLock::new() }
    }

    /// Appends an event and wakes the consumers. The caller holds no lock of the device.
    pub(crate) fn push(&self, event: T) {
        self.append(event);
        self.wake();
    }

    /// Appends an event. [`EventQueue::wake`] has to follow.
    pub(crate) fn append(&self, event: T) {
        self.inner().queue.push_back(event);
    }

    /// Wakes the consumers, if an event waits.
    pub(crate) fn wake(&self) {
        let mut inner = self.inner();
        if inner.queue.is_empty() {
            return;
        }
        // Every event writes, not only the first: an edge-triggered consumer must see each one.
        if let Some(pipe) = self.pipe.get() {
            pipe.ring();
            inner.is_rung = true;
        }
        let wakers = std::mem::take(&mut inner.wakers);
        drop(inner);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Drops the wakers: their tasks have ended, or will register again.
    pub(crate) fn forget_wakers(&self) {
        let wakers = std::mem::take(&mut self.inner().wakers);
        drop(wakers);
    }

    fn inner(&self) -> MutexGuard<'_, Waiting<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the oldest event.
    pub(crate) fn try_pop(&self) -> Option<T> {
        let mut inner = self.inner();
        let event = inner.queue.pop_front();
        self.settle(&mut inner);
        event
    }

    /// Discards the events of an object that is destroyed.
    pub(crate) fn discard(&self, gone: impl Fn(&T) -> bool) {
        let mut inner = self.inner();
        let before = inner.queue.len();
        inner.queue.retain(|event| !gone(event));
        if inner.queue.len() < before {
            self.settle(&mut inner);
        }
    }

    /// Takes the events that are wanted, wherever they are in the queue.
    pub(crate) fn extract(&self, wanted: impl Fn(&T) -> bool) -> Vec<T> {
        let mut inner = self.inner();
        let all = std::mem::take(&mut inner.queue);
        let (taken, left): (VecDeque<T>, VecDeque<T>) = all.into_iter().partition(wanted);
        inner.queue = left;
        if !taken.is_empty() {
            self.settle(&mut inner);
        }
        drop(inner);
        taken.into()
    }

    /// Keeps the descriptor readable exactly while the queue holds an event. A consumer may have
    /// waited by reading it, so it can lack a byte for what is left in the queue.
    fn settle(&self, inner: &mut Waiting<T>) {
        let Some(pipe) = self.pipe.get() else { return };
        if !inner.queue.is_empty() {
            if !pipe.is_readable() {
                pipe.ring();
                inner.is_rung = true;
            }
            return;
        }
        // Only while it is readable: reading would block if the consumer has read all of it.
        while inner.is_rung {
            inner.is_rung = pipe.is_readable();
            if inner.is_rung && !(&pipe.fd).read(&mut [0; 64]).is_ok_and(|len| len > 0) {
                return;
            }
        }
    }

    /// Takes the oldest event; if there is none, registers a waker to be called when there is one.
    pub(crate) fn pop_or_register(&self, waker: &Waker) -> Option<T> {
        if let Some(event) = self.try_pop() {
            return Some(event);
        }
        let mut inner = self.inner();
        if !inner.wakers.iter().any(|w| w.will_wake(waker)) {
            inner.wakers.push(waker.clone());
        }
        drop(inner);
        // An event may have been appended before the waker was registered.
        self.try_pop()
    }

    /// Waits for an event, at most `timeout_ms`; for ever if `None`.
    pub(crate) fn pop_wait(&self, timeout_ms: Option<u16>) -> io::Result<Option<T>> {
        crate::sys::wait_for(self.try_fd()?, timeout_ms, || self.try_pop())
    }

    /// The descriptor.
    ///
    /// # Panics
    ///
    /// If it is made now and the process has no descriptor left.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.try_fd().unwrap_or_else(|e| panic!("no descriptor for the events of a queue: {e}"))
    }

    /// The descriptor, which may have to be made.
    pub(crate) fn try_fd(&self) -> io::Result<BorrowedFd<'_>> {
        if self.pipe.get().is_none() {
            let made = Pipe::new()?;
            let mut inner = self.inner();
            let pipe = self.pipe.get_or_init(|| made);
            // Events that were appended before there was a descriptor.
            if !inner.queue.is_empty() {
                pipe.ring();
                inner.is_rung = true;
            }
        }
        let pipe = self.pipe.get().map(|pipe| pipe.fd.as_fd());
        pipe.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl<T: Send + fmt::Debug> Signal for EventQueue<T> {
    fn signal(&self) {
        self.wake();
    }
}

/// The object that an asynchronous event concerns, if it does not concern the port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Object {
    Cq(CqId),
    Qp(Qpn),
    Srq(SrqId),
}

impl Object {
    /// The object that an event concerns.
    pub(crate) fn of(event: &AsyncEvent) -> Option<Self> {
        match *event {
            AsyncEvent::CqError(cq) => Some(Self::Cq(cq)),
            AsyncEvent::QpFatal(qpn)
            | AsyncEvent::QpRequestError(qpn)
            | AsyncEvent::QpAccessError(qpn)
            | AsyncEvent::CommEstablished(qpn)
            | AsyncEvent::SqDrained(qpn)
            | AsyncEvent::LastWqeReached(qpn) => Some(Self::Qp(qpn)),
            AsyncEvent::SrqLimitReached(srq) | AsyncEvent::SrqError(srq) => Some(Self::Srq(srq)),
            AsyncEvent::PortActive
            | AsyncEvent::PortError
            | AsyncEvent::GidChange { .. }
            | AsyncEvent::LidChange { .. }
            | AsyncEvent::PkeyChange
            | AsyncEvent::SmChange
            | AsyncEvent::ClientReregister => None,
        }
    }
}

/// Where the completion events of a queue go.
#[derive(Debug)]
struct Channel {
    queue: Arc<ChannelQueue>,
    /// Whether the consumer waits for an event of the queue, if several shards complete to it.
    asked: Option<Arc<OneEvent>>,
}

/// Which queue receives which event.
#[derive(Debug, Default)]
pub(crate) struct Dispatch {
    channels: BTreeMap<CqId, Channel>,
    /// Queues of the contexts. Each receives the events of the port and of its own objects.
    listeners: Vec<Weak<AsyncQueue>>,
    owners: BTreeMap<Object, Weak<AsyncQueue>>,
    /// Polling threads that nap.
    naps: Option<Arc<Naps>>,
    wakes: Arc<Wakes>,
}

impl Dispatch {
    /// A table whose events note the queues to signal in `wakes`.
    pub(super) fn with(wakes: Arc<Wakes>) -> Self {
        Self { wakes, ..Self::default() }
    }

    /// Completions end the naps of polling threads.
    pub(super) fn end_naps(&mut self, naps: Arc<Naps>) {
        self.naps = Some(naps);
    }

    /// Completion events of `cq` go to `channel`.
    pub(crate) fn attach(&mut self, cq: CqId, queue: Arc<ChannelQueue>) {
        self.channels.insert(cq, Channel { queue, asked: None });
    }

    /// Completion events of `cq`, to which other shards complete as well, go to `channel`.
    pub(crate) fn attach_shared(
        &mut self,
        cq: CqId,
        queue: Arc<ChannelQueue>,
        asked: Arc<OneEvent>,
    ) {
        self.channels.insert(cq, Channel { queue, asked: Some(asked) });
    }

    /// Completion events of `cq` are not delivered any more.
    pub(crate) fn detach(&mut self, cq: CqId) {
        if let Some(Channel { queue: channel, .. }) = self.channels.remove(&cq) {
            channel.discard(|event| *event == cq);
            self.wakes.add(channel);
        }
    }

    /// Asynchronous events about `object` go to `owner`.
    pub(crate) fn own(&mut self, object: Object, owner: &Arc<AsyncQueue>) {
        self.owners.insert(object, Arc::downgrade(owner));
    }

    /// The object is destroyed. Its events are discarded, because its name may be given to another
    /// object.
    pub(crate) fn disown(&mut self, object: Object) {
        if let Some(owner) = self.owners.remove(&object).and_then(|owner| owner.upgrade()) {
            owner.discard(|event| Object::of(event) == Some(object));
            self.wakes.add(owner);
        }
    }

    /// Asynchronous events of the port also go to `listener`, as long as it lives.
    pub(crate) fn listen(&mut self, listener: &Arc<AsyncQueue>) {
        self.listeners.retain(|l| l.strong_count() > 0);
        self.listeners.push(Arc::downgrade(listener));
    }

    /// Consumers to wake after the lock around this is released.
    pub(crate) fn wakes(&self) -> &Arc<Wakes> {
        &self.wakes
    }

    /// Passes an event on to its queue, whose consumers are woken after the lock is released.
    pub(crate) fn deliver(&self, event: Event) {
        match event {
            Event::Completion(cq) => {
                if let Some(Channel { queue, asked }) = self.channels.get(&cq)
                    && asked.as_ref().is_none_or(|asked| asked.take())
                {
                    queue.append(cq);
                    self.wakes.add(Arc::<ChannelQueue>::clone(queue));
                }
            }
            Event::Poller(cq) => {
                if let Some(naps) = &self.naps {
                    naps.note(cq);
                    self.wakes.add(Arc::<Naps>::clone(naps));
                }
            }
            Event::Async(event) => match Object::of(&event) {
                Some(object) => {
                    if let Some(owner) = self.owners.get(&object).and_then(Weak::upgrade) {
                        self.tell(owner, event);
                    }
                }
                None => {
                    let listeners = self.listeners.iter().filter_map(Weak::upgrade);
                    listeners.for_each(|listener| self.tell(listener, event));
                }
            },
        }
    }

    fn tell(&self, queue: Arc<AsyncQueue>, event: AsyncEvent) {
        queue.append(event);
        self.wakes.add(queue);
    }
}
