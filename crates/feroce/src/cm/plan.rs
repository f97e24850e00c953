//! What the queue pair of a connection will be made of.

use feroce_engine::QpCap;

use super::error::CmError;
use super::id::CmId;
use crate::{Context, Cq, Error, Pd, Qp, Srq};

/// Depth of the send and the receive queue, unless the caller gives a [`QpCap`].
const DEPTH: u32 = 128;

/// Sizes and parts of a queue pair. Parts that the caller does not give are made for it.
#[derive(Clone, Debug)]
pub(super) struct QpPlan {
    pub(super) cap: QpCap,
    pub(super) pd: Option<Pd>,
    pub(super) cqs: Option<(Cq, Cq)>,
    pub(super) srq: Option<Srq>,
}

impl Default for QpPlan {
    fn default() -> Self {
        Self { cap: QpCap::new(DEPTH, DEPTH), pd: None, cqs: None, srq: None }
    }
}

impl QpPlan {
    /// Makes a queue pair for an id that knows its device.
    pub(super) fn make(&self, id: &CmId) -> Result<(Qp, Pd), Error> {
        let context = id.context().ok_or(CmError::WrongState)?;
        let pd = match &self.pd {
            Some(pd) if !pd.context().is_same_device(context) => return Err(Error::OtherDevice),
            Some(pd) => pd.clone(),
            None => context.alloc_pd()?,
        };
        let (send_cq, recv_cq) = match &self.cqs {
            Some(cqs) => cqs.clone(),
            None => self.make_cqs(context)?,
        };
        let builder = pd.rc_qp(&send_cq, &recv_cq, self.cap);
        let builder = self.srq.iter().fold(builder, |builder, srq| builder.srq(srq));
        let qp = builder.create()?;
        id.use_qp(&qp)?;
        Ok((qp, pd))
    }

    fn make_cqs(&self, context: &Context) -> Result<(Cq, Cq), Error> {
        let depth = self.cap.max_send_wr + self.cap.max_recv_wr;
        Ok((context.create_cq(depth)?, context.create_cq(depth)?))
    }
}

/// The methods of a builder that fill its `plan`.
macro_rules! plan_methods {
    () => {
        /// Sizes of the queue pair.
        #[must_use]
        pub fn cap(mut self, cap: feroce_engine::QpCap) -> Self {
            self.plan.cap = cap;
            self
        }

        /// The protection domain of the queue pair, which other connections of the device may
        /// share. By default the connection has one of its own.
        #[must_use]
        pub fn pd(mut self, pd: &$crate::Pd) -> Self {
            self.plan.pd = Some(pd.clone());
            self
        }

        /// Where sends and receives complete. The two may be the same queue, and other connections
        /// may share them. By default the connection has two of its own.
        #[must_use]
        pub fn cqs(mut self, send_cq: &$crate::Cq, recv_cq: &$crate::Cq) -> Self {
            self.plan.cqs = Some((send_cq.clone(), recv_cq.clone()));
            self
        }

        /// Takes receives from a shared queue.
        #[must_use]
        pub fn srq(mut self, srq: &$crate::Srq) -> Self {
            self.plan.srq = Some(srq.clone());
            self
        }
    };
}

pub(super) use plan_methods;
