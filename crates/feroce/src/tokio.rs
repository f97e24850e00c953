//! Completion channels in tokio's reactor.
//!
//! [`Cq::next`](crate::Cq::next) needs no runtime: the driver thread wakes the task. A program that
//! runs on tokio may prefer that tokio's reactor watches the channel's descriptor, so that only the
//! reactor wakes tasks.

use std::io;

use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use feroce_engine::CqId;

use crate::channel::CompChannel;

/// A completion channel watched by tokio.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use feroce::{Notify, SendOp, SendWr, Data};
///
/// let context = feroce::Device::at(["127.0.0.32".parse()?]).open()?;
/// let channel = context.create_comp_channel()?;
/// let cq = context.create_cq_with(16, &channel)?;
/// let mut qp = context.alloc_pd()?.uc_qp(&cq, &cq, feroce::QpCap::new(4, 4)).create()?;
/// qp.connect(&qp.endpoint()?)?;
/// cq.notify(Notify::Next);
/// qp.post_send([SendWr::new(1, SendOp::Send, Data::EMPTY)])?;
/// let watched = feroce::tokio::AsyncCompChannel::new(channel)?;
/// assert_eq!(watched.event().await?, cq.id());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncCompChannel {
    fd: AsyncFd<CompChannel>,
}

impl AsyncCompChannel {
    /// Registers the channel with the reactor of the current runtime.
    pub fn new(channel: CompChannel) -> io::Result<Self> {
        // SAFETY: the channel owns its descriptor through an `Arc` that `AsyncFd` holds, and never
        // replaces or closes it before that is dropped.
        let fd = unsafe { AsyncFd::register_with_interest(channel, Interest::READABLE) }?;
        Ok(Self { fd })
    }

    /// The next completion event.
    pub async fn event(&self) -> io::Result<CqId> {
        loop {
            let mut ready = self.fd.readable().await?;
            match self.fd.get_ref().try_event() {
                Some(cq) => return Ok(cq),
                None => ready.clear_ready(),
            }
        }
    }

    /// The channel.
    pub fn get_ref(&self) -> &CompChannel {
        self.fd.get_ref()
    }
}
