//! Shared receive queues.

use std::sync::{Arc, Mutex, PoisonError};

use feroce_engine::{PostError, RecvWr, SrqAttr, SrqId, SrqInitAttr, SrqQueue};

use crate::Error;
use crate::pd::Pd;

/// A shared receive queue. Cheap to clone; all clones are the same queue.
///
/// ```
/// # let context = feroce::Device::at(["127.0.0.28".parse()?]).open()?;
/// let pd = context.alloc_pd()?;
/// let srq = pd.create_srq(16, 1)?;
/// let mr = pd.alloc_mr(64, feroce::Access::LOCAL_WRITE)?;
/// srq.post_recv([mr.recv(1, 0..64)])?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ibv_srq")]
#[derive(Clone, Debug)]
pub struct Srq {
    inner: Arc<SrqInner>,
}

#[derive(Debug)]
struct SrqInner {
    id: SrqId,
    queue: Mutex<SrqQueue>,
    pd: Pd,
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        let id = self.id;
        // Queue pairs hold it, so nothing uses it any more.
        let _ = self.pd.context().driver().control(|s, _| s.engine.destroy_srq(id));
    }
}

impl Srq {
    pub(crate) fn create(pd: &Pd, attr: SrqInitAttr) -> Result<Self, Error> {
        let (id, queue) = pd.context().driver().control(|s, _| s.engine.create_srq(attr))?;
        let (queue, pd) = (Mutex::new(queue), pd.clone());
        Ok(Self { inner: Arc::new(SrqInner { id, queue, pd }) })
    }

    /// Its handle, as events name it.
    pub fn id(&self) -> SrqId {
        self.inner.id
    }

    /// Posts receives, in order, until one is refused.
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post_recv(&self, wrs: impl IntoIterator<Item = RecvWr>) -> Result<(), PostError> {
        let mut queue = self.inner.queue.lock().unwrap_or_else(PoisonError::into_inner);
        wrs.into_iter().try_for_each(|wr| queue.post(wr))
    }

    /// Arms the limit: fewer receives than this raise an event, once. 0 disarms.
    #[doc(alias = "ibv_modify_srq")]
    pub fn set_limit(&self, limit: u32) -> Result<(), Error> {
        let id = self.inner.id;
        let driver = self.inner.pd.context().driver();
        Ok(driver.control(|s, _| s.engine.set_srq_limit(id, limit))?)
    }

    /// Shows it.
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> Option<SrqAttr> {
        let id = self.inner.id;
        self.inner.pd.context().driver().control(|s, _| s.engine.query_srq(id))
    }
}
