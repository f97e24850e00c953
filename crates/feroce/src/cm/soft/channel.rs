//! Event channels.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, PoisonError};
use std::task::Poll;

use feroce_cm::rdma::{EventKind, PortSpace};

use super::id::SoftId;
use super::manager::{ManagerInner, SoftManager};
use super::queued::Queued;
use super::shared::{Owner, Shared, Stage};
use crate::Error;
use crate::cm::{BackendEvent, next_number};
use crate::driver::{EventQueue, Signal};

/// Events that no consumer has taken yet.
#[derive(Debug)]
pub(super) struct Queue(EventQueue<Queued>);

impl Queue {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(EventQueue::new()?))
    }

    /// Appends an event and wakes the consumers. The caller holds no lock of a device.
    pub(super) fn push(&self, event: Queued) {
        self.0.push(event);
    }

    /// Appends an event. [`Signal::signal`] has to follow.
    pub(super) fn append(&self, event: Queued) {
        self.0.append(event);
    }

    /// Discards the events of an id that is destroyed, and rejects the requests that arrived
    /// through it.
    pub(super) fn forget(&self, manager: &ManagerInner, id: &Arc<Shared>) {
        for event in self.0.extract(|event| event.concerns(id)) {
            manager.refuse(&event);
        }
    }

    /// Moves the events of an id to another queue, and the ids of requests that arrived through it.
    pub(super) fn migrate(&self, id: &Arc<Shared>, to: &Arc<Self>) {
        for event in self.0.extract(|event| event.concerns(id)) {
            if event.listener.is_some() {
                event.id.lock().queue = Arc::clone(to);
                let request = Arc::clone(&event.id);
                to.push(event);
                // Later events of the connection follow the request.
                for later in self.0.extract(|event| event.concerns(&request)) {
                    to.push(later);
                }
            } else {
                to.push(event);
            }
        }
    }
}

impl Signal for Queue {
    fn signal(&self) {
        self.0.wake();
    }
}

/// Keeps a channel open. Dropping the last one rejects the requests that no consumer has taken.
#[derive(Debug)]
pub(super) struct ChannelOwner {
    pub(super) queue: Arc<Queue>,
    pub(super) manager: Arc<ManagerInner>,
}

impl Drop for ChannelOwner {
    fn drop(&mut self) {
        for event in self.queue.0.extract(|_| true) {
            self.manager.refuse(&event);
        }
        // Ids that outlive the channel keep the queue, and may be dropped under a device's lock.
        self.queue.0.forget_wakers();
    }
}

/// The channel that delivers the events of ids. Its descriptor is readable while an event waits, so
/// it fits any event loop. Cheap to clone; all clones are the same channel.
#[derive(Clone, Debug)]
pub(crate) struct SoftChannel {
    pub(super) owner: Arc<ChannelOwner>,
}

impl SoftManager {
    /// Makes an event channel.
    pub(crate) fn event_channel(&self) -> Result<SoftChannel, Error> {
        SoftChannel::new(self)
    }
}

impl SoftChannel {
    pub(crate) fn new(manager: &SoftManager) -> Result<Self, Error> {
        let queue = Arc::new(Queue::new()?);
        let manager = Arc::clone(&manager.inner);
        Ok(Self { owner: Arc::new(ChannelOwner { queue, manager }) })
    }

    /// Creates an id whose events go to this channel.
    pub(crate) fn create_id(&self, space: PortSpace) -> Result<SoftId, Error> {
        self.create((space, space.is_datagrams()))
    }

    /// Creates an id for datagrams of the port space that has connections, too.
    pub(crate) fn create_datagram_id(&self) -> Result<SoftId, Error> {
        self.create((PortSpace::Ib, true))
    }

    fn create(&self, kind: (PortSpace, bool)) -> Result<SoftId, Error> {
        let (manager, queue) = (&self.owner.manager, Arc::clone(&self.owner.queue));
        let shared = Shared::new(next_number(), kind, queue, Default::default());
        let channel = Arc::clone(&self.owner);
        Ok(SoftId { owner: Owner::new(shared, Arc::clone(manager), channel) })
    }

    /// The next event, if there is one.
    pub(crate) fn try_event(&self) -> Option<BackendEvent<SoftId>> {
        loop {
            let event = self.complete(self.owner.queue.0.try_pop()?);
            if event.is_some() {
                return event;
            }
        }
    }

    /// Waits for the next event, at most `timeout_ms`; for ever if `None`.
    pub(crate) fn wait_event(
        &self,
        timeout_ms: Option<u16>,
    ) -> io::Result<Option<BackendEvent<SoftId>>> {
        loop {
            let Some(queued) = self.owner.queue.0.pop_wait(timeout_ms)? else { return Ok(None) };
            let event = self.complete(queued);
            if event.is_some() {
                return Ok(event);
            }
        }
    }

    /// Resolves with the next event. Runtime-agnostic: the driver thread wakes the task.
    pub(crate) async fn event(&self) -> BackendEvent<SoftId> {
        std::future::poll_fn(|cx| {
            loop {
                let Some(queued) = self.owner.queue.0.pop_or_register(cx.waker()) else {
                    return Poll::Pending;
                };
                if let Some(event) = self.complete(queued) {
                    return Poll::Ready(event);
                }
            }
        })
        .await
    }

    /// Adds the ids that an event concerns; `None` if they are dropped already.
    fn complete(&self, queued: Queued) -> Option<BackendEvent<SoftId>> {
        let manager = &self.owner.manager;
        let mut listener = None;
        let owner = match &queued.listener {
            None => queued.id.owner(),
            Some((asked, listen_id)) => {
                listen_id.iter().for_each(|listener| manager.taken(&queued.id, *listener));
                listener = asked.owner().map(|owner| SoftId { owner });
                listener.as_ref().and_then(|_| manager.adopt(&queued.id, &self.owner))
            }
        };
        let Some(owner) = owner else {
            manager.refuse(&queued);
            return None;
        };
        if queued.kind == EventKind::DeviceRemoval {
            owner.shared.lock().stage = Stage::Over;
        }
        Some(BackendEvent {
            kind: queued.kind,
            id: SoftId { owner },
            listener,
            status: queued.status,
            conn: queued.conn,
            ud: queued.ud,
            private_data: queued.private_data,
        })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.owner.queue.0.fd()
    }
}

impl SoftId {
    /// The channel that its events go to.
    pub(crate) fn channel(&self) -> SoftChannel {
        let channel = self.owner.channel.lock().unwrap_or_else(PoisonError::into_inner);
        SoftChannel { owner: Arc::clone(&channel) }
    }

    /// A new channel.
    pub(crate) fn another_channel(&self) -> Result<SoftChannel, Error> {
        SoftChannel::new(&SoftManager { inner: Arc::clone(&self.owner.manager) })
    }

    /// Moves the id to another channel: events that wait, and all later ones, go there.
    pub(crate) fn migrate(&self, channel: &SoftChannel) -> Result<(), Error> {
        let to = Arc::clone(&channel.owner.queue);
        let from = std::mem::replace(&mut self.shared().lock().queue, Arc::clone(&to));
        if !Arc::ptr_eq(&from, &to) {
            from.migrate(self.shared(), &to);
        }
        let mut owner = self.owner.channel.lock().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *owner, Arc::clone(&channel.owner));
        drop(owner);
        drop(old);
        Ok(())
    }
}
