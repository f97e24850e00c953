//! Event channels.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use super::kernel::KernelChannel;
use super::soft::SoftChannel;
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
