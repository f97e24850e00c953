//! The consumer's ends of the two queues of a queue pair.

use feroce_engine::{QpState, RecvWr, SendWr};

use super::QpHandle;
use crate::PostError;
use crate::backend::{Either, RecvSide, SendSide, either};

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
    side: SendSide,
    /// Keeps the queue pair.
    _handle: QpHandle,
}

impl Sender {
    pub(super) fn new(side: SendSide, handle: QpHandle) -> Self {
        Self { side, _handle: handle }
    }

    /// State of the queue pair.
    #[inline]
    pub fn state(&self) -> QpState {
        either!(&self.side, sender => sender.state())
    }

    /// Posts requests, in order, until one is refused; those before it are sent.
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub fn post(&mut self, wrs: impl IntoIterator<Item = SendWr>) -> Result<(), PostError> {
        either!(&mut self.side, sender => Ok(sender.post(wrs)?))
    }

    /// Posts one request. Where there is but one, this is a little faster than [`Sender::post`].
    pub fn post_one(&mut self, wr: SendWr) -> Result<(), PostError> {
        either!(&mut self.side, sender => Ok(sender.post_one(wr)?))
    }

    /// Puts one request into the queue; nothing happens until [`Sender::submit`].
    #[inline]
    pub fn stage(&mut self, wr: SendWr) -> Result<(), PostError> {
        either!(&mut self.side, sender => Ok(sender.stage(wr)?))
    }

    /// Executes a request if that can be done at once, and otherwise puts it into the queue, as
    /// [`Sender::stage`] does.
    #[inline]
    pub fn begin(&mut self, wr: SendWr) -> Result<(), PostError> {
        either!(&mut self.side, sender => Ok(sender.begin(wr)?))
    }

    /// Sends everything staged. While answers to earlier requests are due, the staged requests may
    /// wait for a moment, until the consumer polls or an answer arrives, so that one transmission
    /// carries many short messages.
    ///
    /// On a device of the kernel's drivers, the driver checks requests only now. It does not send a
    /// request that it refuses, and only the log reports the refusal; [`Sender::post`] returns it.
    #[doc(alias = "ibv_wr_complete")]
    #[inline]
    pub fn submit(&mut self) {
        either!(&mut self.side, sender => sender.submit());
    }

    /// How many more requests the queue takes now. A request gives its place back when it has
    /// completed. `None` with the kernel's drivers, which do not tell.
    pub fn free(&mut self) -> Option<usize> {
        match &mut self.side {
            Either::Soft(sender) => Some(sender.free()),
            Either::Kernel(_) => None,
        }
    }

    /// Discards everything staged.
    #[doc(alias = "ibv_wr_abort")]
    pub fn abort(&mut self) {
        either!(&mut self.side, sender => sender.abort());
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
    side: RecvSide,
    /// Keeps the queue pair.
    _handle: QpHandle,
}

impl Receiver {
    pub(super) fn new(side: RecvSide, handle: QpHandle) -> Self {
        Self { side, _handle: handle }
    }

    /// Posts requests, in order, until one is refused.
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn post(&mut self, wrs: impl IntoIterator<Item = RecvWr>) -> Result<(), PostError> {
        either!(&mut self.side, receiver => Ok(receiver.post(wrs)?))
    }
}
