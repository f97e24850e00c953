//! Waiting for the events of an id that has a channel of its own.

use feroce_cm::rdma::EventKind;
use feroce_wire::cm::RejReason;

use super::error::CmError;
use super::event::Event;
use super::id::CmId;
use crate::Error;
use crate::deadline::Deadline;

/// Waits for one kind of event on an id with a channel of its own.
pub(super) fn wait_for(id: &CmId, kind: EventKind) -> Result<Event, Error> {
    wait_until(id, kind, Deadline::NONE)
}

/// [`wait_for`], with an end.
pub(super) fn wait_until(id: &CmId, kind: EventKind, deadline: Deadline) -> Result<Event, Error> {
    let channel = id.channel();
    loop {
        if let Some(event) = channel.wait_event(deadline.wait_ms())? {
            if let Some(event) = sort(event, kind)? {
                return Ok(event);
            }
        } else if deadline.is_over() {
            return Err(CmError::TimedOut.into());
        }
    }
}

/// [`wait_for`] for tasks.
pub(super) async fn event_of(id: &CmId, kind: EventKind) -> Result<Event, Error> {
    let channel = id.channel();
    loop {
        if let Some(event) = sort(channel.event().await, kind)? {
            return Ok(event);
        }
    }
}

/// The event if it is of the kind; an error if the event rules out that kind.
fn sort(event: Event, kind: EventKind) -> Result<Option<Event>, Error> {
    if event.kind == kind {
        return Ok(Some(event));
    }
    Err(match event.kind {
        EventKind::Rejected => {
            let reason = match -event.status {
                // Over TCP: no program listens there.
                libc::ECONNREFUSED => RejReason::INVALID_SERVICE_ID,
                libc::ECONNRESET => RejReason::CONSUMER,
                _ => RejReason(u16::try_from(event.status).unwrap_or(0)),
            };
            CmError::Rejected { reason, private_data: event.private_data }.into()
        }
        EventKind::AddrError | EventKind::RouteError => {
            CmError::Route(std::io::Error::from_raw_os_error(-event.status)).into()
        }
        EventKind::Unreachable | EventKind::ConnectError | EventKind::Disconnected => {
            CmError::Unreachable.into()
        }
        EventKind::DeviceRemoval => CmError::DeviceGone.into(),
        _ => return Ok(None),
    })
}
