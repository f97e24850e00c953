//! Events of ids.

use std::io;

use feroce_cm::rdma::{ConnParam, EventKind};

use super::backend_event::{BackendEvent, UdParam};
use super::channel::EventChannel;
use super::id::{CmId, shown};
use crate::backend::either;

/// An event of an id.
#[doc(alias = "rdma_cm_event")]
#[derive(Clone, Debug)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// The id that the event concerns; the new id, if it is a connect request.
    pub id: CmId,
    /// The listener, if it is a connect request.
    pub listener: Option<CmId>,
    /// Zero on success, the reason of a rejection, or a negative error number.
    pub status: i32,
    /// Connection parameters that the peer sent.
    pub conn: Option<ConnParam>,
    /// How to reach the peer, if the event is of a datagram service or a multicast group.
    pub ud: Option<UdParam>,
    /// Private data of the peer, padded with zeros to the size of the field.
    pub private_data: Vec<u8>,
}

impl<I: Into<CmId>> From<BackendEvent<I>> for Event {
    fn from(event: BackendEvent<I>) -> Self {
        let BackendEvent { kind, id, listener, status, conn, ud, private_data } = event;
        let (id, listener) = (id.into(), listener.map(Into::into));
        Self { kind, id, listener, status, conn, ud, private_data }
    }
}

impl Event {
    /// The event, which the caller gets, in the log too.
    fn told(event: impl Into<Self>) -> Self {
        let event = event.into();
        tracing::debug!(
            "connection manager: {:?}, status {}, peer {}",
            event.kind,
            event.status,
            shown(event.id.peer_addr())
        );
        event
    }
}

impl EventChannel {
    /// The next event, if there is one.
    pub fn try_event(&self) -> Option<Event> {
        either!(&self.side, channel => channel.try_event().map(Event::told))
    }

    /// Waits for the next event, at most `timeout_ms`; for ever if `None`.
    #[doc(alias = "rdma_get_cm_event")]
    pub fn wait_event(&self, timeout_ms: Option<u16>) -> io::Result<Option<Event>> {
        either!(&self.side, channel => Ok(channel.wait_event(timeout_ms)?.map(Event::told)))
    }

    /// Resolves with the next event. Runtime-agnostic: a thread of this crate wakes the task.
    pub async fn event(&self) -> Event {
        either!(&self.side, channel => Event::told(channel.event().await))
    }
}
