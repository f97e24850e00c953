//! Completion channels: a consumer sleeps until a completion queue has a completion.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use feroce_engine::CqId;

use crate::backend::{ChannelSide, Either, either, map_either};
use crate::context::Context;
use crate::{Error, sys};

/// A completion channel: it delivers the completion events of completion queues. Its descriptor is
/// readable while an event waits, so it fits any event loop. The channel of a queue that was
/// created without one ([`Cq::channel`](crate::Cq::channel)) gets a descriptor when it is first
/// needed; asking for that descriptor panics if the process has none left.
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
    side: ChannelSide,
}

impl Context {
    /// Makes a completion channel.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn create_comp_channel(&self) -> Result<CompChannel, Error> {
        CompChannel::new(self)
    }
}

impl CompChannel {
    pub(crate) fn new(context: &Context) -> Result<Self, Error> {
        Ok(Self { side: map_either!(context.adapter(), adapter => adapter.create_channel()?) })
    }

    /// The channel of a queue that was created without one. Its descriptor is made when a consumer
    /// first waits on it or asks for it.
    pub(crate) fn implicit(context: &Context) -> Result<Self, Error> {
        let side = map_either!(context.adapter(), adapter => adapter.implicit_channel()?);
        Ok(Self { side })
    }

    pub(crate) fn side(&self) -> &ChannelSide {
        &self.side
    }

    /// The next completion event, if there is one.
    pub fn try_event(&self) -> Option<CqId> {
        either!(&self.side, channel => channel.try_pop())
    }

    /// Waits for the next completion event, at most `timeout_ms`; for ever if `None`.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn wait(&self, timeout_ms: Option<u16>) -> io::Result<Option<CqId>> {
        match &self.side {
            Either::Soft(channel) => channel.pop_wait(timeout_ms),
            Either::Kernel(_) => sys::wait_for(self.as_fd(), timeout_ms, || self.try_event()),
        }
    }

    /// Resolves with the next completion event. Runtime-agnostic: the driver thread wakes the task.
    pub async fn event(&self) -> CqId {
        std::future::poll_fn(|cx| {
            let next = either!(&self.side, channel => channel.pop_or_register(cx.waker()));
            next.map_or(std::task::Poll::Pending, std::task::Poll::Ready)
        })
        .await
    }
}

impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        either!(&self.side, channel => channel.fd())
    }
}

impl AsRawFd for CompChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
