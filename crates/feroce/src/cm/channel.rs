//! Event channels.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use feroce_cm::rdma::PortSpace;

use super::event::Event;
use super::id::CmId;
use super::kernel::KernelChannel;
use super::soft::SoftChannel;
use crate::Error;
use crate::backend::{Either, either};

/// The channel that delivers the events of ids. Its descriptor is readable while an event waits, so
/// it fits any event loop. Cheap to clone; all clones are the same channel.
///
/// ```
/// use feroce::cm::{EventKind, Manager, PortSpace};
///
/// let manager = Manager::with([feroce::Device::at(["127.0.0.50".parse()?]).open()?])?;
/// let channel = manager.event_channel()?;
/// let id = channel.create_id(PortSpace::Tcp)?;
/// id.resolve_addr(None, "127.0.0.50:7471".parse()?, 1000)?;
/// let event = channel.wait_event(None)?.expect("there is no time limit");
/// assert_eq!((event.kind, event.id), (EventKind::AddrResolved, id));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "rdma_event_channel")]
#[derive(Clone, Debug)]
pub struct EventChannel {
    pub(super) side: Either<SoftChannel, KernelChannel>,
}

impl From<SoftChannel> for EventChannel {
    fn from(channel: SoftChannel) -> Self {
        Self { side: Either::Soft(channel) }
    }
}

impl From<KernelChannel> for EventChannel {
    fn from(channel: KernelChannel) -> Self {
        Self { side: Either::Kernel(channel) }
    }
}

impl EventChannel {
    /// Creates an id whose events go to this channel.
    #[doc(alias = "rdma_create_id")]
    pub fn create_id(&self, space: PortSpace) -> Result<CmId, Error> {
        either!(&self.side, channel => Ok(channel.create_id(space)?.into()))
    }

    /// The next event, if there is one.
    pub fn try_event(&self) -> Option<Event> {
        either!(&self.side, channel => channel.try_event())
    }

    /// Waits for the next event, at most `timeout_ms`; for ever if `None`.
    #[doc(alias = "rdma_get_cm_event")]
    pub fn wait_event(&self, timeout_ms: Option<u16>) -> io::Result<Option<Event>> {
        either!(&self.side, channel => channel.wait_event(timeout_ms))
    }

    /// Resolves with the next event. Runtime-agnostic: a thread of this crate wakes the task.
    pub async fn event(&self) -> Event {
        either!(&self.side, channel => channel.event().await)
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        either!(&self.side, channel => channel.fd())
    }
}

impl AsRawFd for EventChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
