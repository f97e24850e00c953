//! The consumer's ends of the two queues of a queue pair.

use std::sync::Arc;

use feroce_backend_rdma_core as rdma_core;
use feroce_engine::{self as engine, QpState, RecvQueue, RecvWr, SendQueue, SendWr};
use feroce_wire::Qpn;

use super::QpHandle;
use crate::PostError;
use crate::backend::{Either, either};
use crate::driver::Driver;

/// From so many unanswered sends on, the posting thread may coalesce further ones.
const GATHER_FROM: usize = 2;

/// Most sends that the posting thread coalesces.
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
    side: SendSide,
    /// Keeps the queue pair.
    _handle: QpHandle,
}

/// The sending end of either backend.
pub(crate) type SendSide = Either<SoftSender, rdma_core::SendEnd>;

/// The sending end of a queue pair of the engine.
#[derive(Debug)]
pub(crate) struct SoftSender {
    queue: SendQueue,
    /// Coalesced sends: those posted since a thread that drives the engine last took any.
    gathered: usize,
    /// When the consumer had last polled an empty queue, as of the last call of `note_streaming`.
    polled_at: u64,
    qpn: Qpn,
    driver: Arc<Driver>,
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

    /// Discards everything staged.
    #[doc(alias = "ibv_wr_abort")]
    pub fn abort(&mut self) {
        either!(&mut self.side, sender => sender.abort());
    }
}

impl SoftSender {
    pub(crate) fn new(queue: SendQueue, qpn: Qpn, driver: Arc<Driver>) -> Self {
        Self { queue, gathered: 0, polled_at: 0, qpn, driver }
    }

    #[inline]
    fn state(&self) -> QpState {
        self.queue.state()
    }

    #[inline]
    fn post(&mut self, wrs: impl IntoIterator<Item = SendWr>) -> Result<(), engine::PostError> {
        let posted = wrs.into_iter().try_for_each(|wr| self.begin(wr));
        self.submit();
        posted
    }

    #[inline]
    fn post_one(&mut self, wr: SendWr) -> Result<(), engine::PostError> {
        self.begin(wr)?;
        self.submit();
        Ok(())
    }

    #[inline]
    fn stage(&mut self, wr: SendWr) -> Result<(), engine::PostError> {
        self.queue.stage(wr)
    }

    fn abort(&mut self) {
        self.queue.abort();
    }

    #[inline]
    fn begin(&mut self, wr: SendWr) -> Result<(), engine::PostError> {
        // This check does not inspect the request, because the compiler would then copy it before
        // the call.
        if self.queue.may_go_direct() { self.try_direct(wr) } else { self.queue.stage(wr) }
    }

    /// Executes a request if that can be done at once, and otherwise puts it into the queue.
    #[inline(never)]
    fn try_direct(&mut self, wr: SendWr) -> Result<(), engine::PostError> {
        self.queue.check(&wr)?;
        if self.driver.try_direct(self.qpn, &wr) {
            return Ok(());
        }
        self.queue.stage(wr)
    }

    #[inline]
    fn submit(&mut self) {
        let staged = self.queue.staged();
        if staged == 0 && self.gathered == 0 {
            // Every request was executed directly.
            return;
        }
        // A single request that does not wait to be coalesced may take the fast path.
        let is_alone = staged == 1 && self.gathered == 0 && !self.may_wait(staged);
        if is_alone {
            self.note_streaming();
            self.queue.show();
            if self.driver.fast_path(self.qpn) {
                return;
            }
        }
        self.ring(staged, is_alone);
    }

    /// Rings the doorbell for the staged requests, and drives the adapter unless they may wait.
    #[inline(never)]
    fn ring(&mut self, staged: usize, is_alone: bool) {
        let is_first = self.queue.ring();
        // If the doorbell was not rung before, a thread that drives the engine has answered the
        // last ring and has taken the requests that waited.
        self.gathered = if is_first { staged } else { self.gathered + staged };
        if !is_first && self.gathered < GATHER_MOST {
            // The thread that answers the earlier ring takes these requests, too.
            return;
        }
        // This thread rings the doorbell before it looks for outstanding answers. Therefore either
        // the thread that takes the last answer sees the doorbell, because it looks at the
        // doorbells afterwards, or this thread sees that every request was answered.
        if self.gathered >= GATHER_MOST || !self.may_wait(self.gathered) {
            self.gathered = 0;
            if !is_alone {
                self.note_streaming();
            }
            self.driver.kick();
        }
    }

    /// Whether the `newest` requests posted last may wait for answers to earlier ones.
    #[inline]
    fn may_wait(&self, newest: usize) -> bool {
        let unanswered = self.queue.outstanding().saturating_sub(newest);
        unanswered >= GATHER_FROM && self.queue.awaits_answer()
    }

    /// Tells the engine whether the consumer streams: it posts without polling an empty queue in
    /// between.
    #[inline]
    fn note_streaming(&mut self) {
        let polled_at = self.driver.polled_at();
        self.queue.set_streaming(self.polled_at == polled_at);
        self.polled_at = polled_at;
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

/// The receiving end of either backend.
pub(crate) type RecvSide = Either<SoftReceiver, rdma_core::RecvEnd>;

/// The receiving end of a queue pair of the engine.
#[derive(Debug)]
pub(crate) struct SoftReceiver {
    pub(crate) queue: RecvQueue,
    pub(crate) driver: Arc<Driver>,
}

impl SoftReceiver {
    #[inline]
    fn post(&mut self, wrs: impl IntoIterator<Item = RecvWr>) -> Result<(), engine::PostError> {
        let posted = wrs.into_iter().try_for_each(|wr| self.queue.stage(wr));
        if self.queue.publish() {
            self.driver.kick();
        }
        posted
    }
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
