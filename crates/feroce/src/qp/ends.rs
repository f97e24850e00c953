//! The consumer's ends of the two queues of a queue pair.

use std::sync::atomic::{Ordering, fence};

use feroce_engine::{PostError, QpState, RecvQueue, RecvWr, SendQueue, SendWr};

use super::QpHandle;

/// From so many unanswered sends on, further ones may wait for each other.
const GATHER_FROM: usize = 2;

/// Most sends that wait for each other.
const GATHER_MOST: usize = 64;

/// Posts sends to a queue pair.
///
/// Several may be put into the queue before the adapter is told of them:
///
/// ```
/// # use feroce::{Data, Device, QpCap, SendOp, SendWr};
/// # let context = Device::at(["127.0.0.33".parse()?]).open()?;
/// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
/// let (handle, mut sender, _) = pd.rc_qp(&cq, &cq, QpCap::new(8, 8)).create()?.split();
/// handle.connect(&handle.endpoint()?)?; // to itself
/// sender.stage(SendWr::new(1, SendOp::Send, Data::EMPTY))?;
/// sender.abort(); // or submit()
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Sender {
    queue: SendQueue,
    /// Sends that were posted since the adapter was last driven for one.
    gathered: usize,
    handle: QpHandle,
}

impl Sender {
    pub(super) fn new(queue: SendQueue, handle: QpHandle) -> Self {
        Self { queue, gathered: 0, handle }
    }

    /// State of the queue pair.
    #[inline]
    pub fn state(&self) -> QpState {
        self.queue.state()
    }

    /// Posts requests, in order, until one is refused; those before it are sent.
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub fn post(&mut self, wrs: impl IntoIterator<Item = SendWr>) -> Result<(), PostError> {
        let posted = wrs.into_iter().try_for_each(|wr| self.queue.stage(wr));
        self.submit();
        posted
    }

    /// Puts one request into the queue; nothing happens until [`Sender::submit`].
    #[inline]
    pub fn stage(&mut self, wr: SendWr) -> Result<(), PostError> {
        self.queue.stage(wr)
    }

    /// Sends everything staged. Where answers to earlier requests are due, it may wait for a
    /// moment, until the consumer polls or an answer comes, so that short messages leave many at
    /// a time.
    #[doc(alias = "ibv_wr_complete")]
    #[inline]
    pub fn submit(&mut self) {
        self.gathered += self.queue.staged();
        self.queue.ring();
        // The bell was rung before we look: whoever takes the last answer sees the one or we see
        // the other.
        fence(Ordering::SeqCst);
        let unanswered = self.queue.outstanding().saturating_sub(self.gathered);
        if self.gathered >= GATHER_MOST || unanswered < GATHER_FROM {
            self.gathered = 0;
            self.handle.driver().kick();
        }
    }

    /// Forgets everything staged.
    #[doc(alias = "ibv_wr_abort")]
    pub fn abort(&mut self) {
        self.queue.abort();
    }
}

/// Posts receives to a queue pair.
///
/// ```
/// # use feroce::{Access, Device, QpAttr, QpCap};
/// # let context = Device::at(["127.0.0.34".parse()?]).open()?;
/// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
/// let mr = pd.alloc_mr(64, Access::LOCAL_WRITE)?;
/// let (handle, _, receiver) = pd.rc_qp(&cq, &cq, QpCap::new(8, 8)).create()?.split();
/// handle.modify(&QpAttr::init(Access::empty()))?;
/// receiver.unwrap().post([mr.recv(1, 0..64)])?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Receiver {
    queue: RecvQueue,
    handle: QpHandle,
}

impl Receiver {
    pub(super) fn new(queue: RecvQueue, handle: QpHandle) -> Self {
        Self { queue, handle }
    }

    /// Posts requests, in order, until one is refused.
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn post(&mut self, wrs: impl IntoIterator<Item = RecvWr>) -> Result<(), PostError> {
        let posted = wrs.into_iter().try_for_each(|wr| self.queue.stage(wr));
        if self.queue.publish() {
            self.handle.driver().kick();
        }
        posted
    }
}
