//! The consumer's ends of the two queues of a queue pair.

use feroce_engine::{PostError, QpState, RecvQueue, RecvWr, SendQueue, SendWr};

use super::QpHandle;

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
    handle: QpHandle,
}

impl Sender {
    pub(super) fn new(queue: SendQueue, handle: QpHandle) -> Self {
        Self { queue, handle }
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

    /// Sends everything staged.
    #[doc(alias = "ibv_wr_complete")]
    #[inline]
    pub fn submit(&mut self) {
        self.queue.ring();
        self.handle.driver().kick();
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
