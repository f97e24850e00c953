//! The ends of a queue pair where requests are posted.

use std::sync::Arc;

use feroce_engine::{self as engine, QpState, RecvWr, SendWr};

use crate::PostError;
use crate::chain::SendChain;
use crate::queues::Qp;
use crate::recv_chain::RecvChain;

/// The end of a queue pair where sends are posted.
#[derive(Debug)]
pub struct SendEnd {
    qp: Arc<Qp>,
    chain: SendChain,
}

impl SendEnd {
    /// The end of this queue pair where sends are posted.
    pub fn new(qp: &Arc<Qp>) -> Self {
        let chain = SendChain::new(qp.made.qp_type, qp.made.cap);
        Self { qp: Arc::clone(qp), chain }
    }

    /// State of the queue pair.
    pub fn state(&self) -> QpState {
        self.qp.state()
    }

    /// Posts requests, in order, until one is refused; those before it are posted.
    #[inline]
    pub fn post(&mut self, wrs: impl IntoIterator<Item = SendWr>) -> Result<(), PostError> {
        let staged = wrs.into_iter().try_for_each(|wr| self.stage(wr));
        self.chain.post(&self.qp)?;
        Ok(staged?)
    }

    /// Posts one request.
    #[inline]
    pub fn post_one(&mut self, wr: SendWr) -> Result<(), PostError> {
        self.stage(wr)?;
        self.chain.post(&self.qp)
    }

    /// Puts one request behind those that wait for [`SendEnd::submit`].
    #[inline]
    pub fn stage(&mut self, wr: SendWr) -> Result<(), engine::PostError> {
        self.chain.push(wr)
    }

    /// Drivers execute no request before it is posted, so this is [`SendEnd::stage`].
    #[inline]
    pub fn begin(&mut self, wr: SendWr) -> Result<(), engine::PostError> {
        self.stage(wr)
    }

    /// Posts every staged request, in order, until the driver refuses one, and logs the refusal.
    pub fn submit(&mut self) {
        if let Err(e) = self.chain.post(&self.qp) {
            tracing::warn!("the driver refused a staged send, which is lost: {e}");
        }
    }

    /// Discards every staged request.
    pub fn abort(&mut self) {
        self.chain.clear();
    }
}

/// The end of a queue pair where receives are posted.
#[derive(Debug)]
pub struct RecvEnd {
    qp: Arc<Qp>,
    chain: RecvChain,
}

impl RecvEnd {
    /// The end of this queue pair where receives are posted.
    pub fn new(qp: &Arc<Qp>) -> Self {
        Self { qp: Arc::clone(qp), chain: RecvChain::new(qp.made.cap.max_recv_sge) }
    }

    /// Posts receives, in order, until one is refused.
    pub fn post(&mut self, wrs: impl IntoIterator<Item = RecvWr>) -> Result<(), PostError> {
        let post = self.qp.adapter.open.ops().post_recv.ok_or(engine::PostError::OpNotSupported)?;
        let qp = &self.qp;
        // SAFETY: a queue pair that lives, and a chain of requests.
        self.chain.post(wrs, |first, bad| qp.post(|qp| unsafe { post(qp, first, bad) }))
    }
}
