//! Completion channels: sleeping until a completion queue has something.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use feroce_engine::CqId;

use crate::Error;
use crate::driver::ChannelQueue;

/// Where completion queues report that they have something. Its descriptor is readable while a
/// report waits, so it fits any event loop.
///
/// ```
/// # let context = feroce::Device::at(["127.0.0.22".parse()?]).open()?;
/// let channel = context.create_comp_channel()?;
/// let cq = context.create_cq_with(16, &channel)?;
/// cq.notify(feroce::Notify::Next);
/// assert_eq!(channel.try_event(), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ibv_comp_channel")]
#[doc(alias = "ibv_destroy_comp_channel")]
#[derive(Clone, Debug)]
pub struct CompChannel {
    pub(crate) queue: Arc<ChannelQueue>,
}

impl CompChannel {
    pub(crate) fn new() -> Result<Self, Error> {
        Ok(Self { queue: Arc::new(ChannelQueue::new()?) })
    }

    /// The next report, if there is one.
    pub fn try_event(&self) -> Option<CqId> {
        self.queue.try_pop()
    }

    /// Waits for the next report, at most `timeout_ms`; for ever if `None`.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn wait(&self, timeout_ms: Option<u16>) -> io::Result<Option<CqId>> {
        self.queue.pop_wait(timeout_ms)
    }

    /// Resolves with the next report. Runtime-agnostic: the driver thread wakes the task.
    pub async fn event(&self) -> CqId {
        std::future::poll_fn(|cx| match self.queue.pop_or_register(cx.waker()) {
            Some(cq) => std::task::Poll::Ready(cq),
            None => std::task::Poll::Pending,
        })
        .await
    }
}

impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.fd()
    }
}

impl AsRawFd for CompChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.queue.fd().as_raw_fd()
    }
}
