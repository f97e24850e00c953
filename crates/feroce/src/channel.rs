//! Completion channels: sleeping until a completion queue has something.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use feroce_backend_rdma_core as rdma_core;
use feroce_engine::CqId;

use crate::context::{Adapter, Context};
use crate::driver::ChannelQueue;
use crate::{Error, sys};

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
    pub(crate) side: Side,
}

#[derive(Clone, Debug)]
pub(crate) enum Side {
    Soft(Arc<ChannelQueue>),
    Hard(Arc<rdma_core::Channel>),
}

impl CompChannel {
    pub(crate) fn new(context: &Context) -> Result<Self, Error> {
        let side = match context.adapter() {
            Adapter::Soft(_) => Side::Soft(Arc::new(ChannelQueue::new()?)),
            Adapter::Hard(hard) => Side::Hard(Arc::new(rdma_core::Channel::create(&hard.adapter)?)),
        };
        Ok(Self { side })
    }

    /// The next report, if there is one.
    pub fn try_event(&self) -> Option<CqId> {
        match &self.side {
            Side::Soft(queue) => queue.try_pop(),
            Side::Hard(hard) => hard.try_event(),
        }
    }

    /// Waits for the next report, at most `timeout_ms`; for ever if `None`.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn wait(&self, timeout_ms: Option<u16>) -> io::Result<Option<CqId>> {
        match &self.side {
            Side::Soft(queue) => queue.pop_wait(timeout_ms),
            Side::Hard(hard) => sys::wait_for(hard.fd(), timeout_ms, || hard.try_event()),
        }
    }

    /// Resolves with the next report. Runtime-agnostic: the driver thread wakes the task.
    pub async fn event(&self) -> CqId {
        std::future::poll_fn(|cx| {
            let next = match &self.side {
                Side::Soft(queue) => queue.pop_or_register(cx.waker()),
                Side::Hard(hard) => hard.event_or_register(cx.waker()),
            };
            next.map_or(std::task::Poll::Pending, std::task::Poll::Ready)
        })
        .await
    }
}

impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.side {
            Side::Soft(queue) => queue.fd(),
            Side::Hard(hard) => hard.fd(),
        }
    }
}

impl AsRawFd for CompChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
