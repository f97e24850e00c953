//! Shared receive queues.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feroce_engine::{PostError, RecvWr, SrqAttr, SrqId, SrqInitAttr, SrqQueue};
use feroce_wire::Srqn;

use crate::Error;
use crate::cq::Cq;
use crate::driver::Object;
use crate::life::Life;
use crate::pd::Pd;
use crate::xrc::Xrcd;

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
    /// Held so that they outlive the queue.
    _xrc: Option<(Xrcd, Cq)>,
    life: Life,
}

impl SrqInner {
    fn destroy(&self) -> Result<(), Error> {
        let id = self.id;
        self.life.end(|| {
            self.pd.context().driver().control(|s, _| {
                s.engine.destroy_srq(id)?;
                s.dispatch.disown(Object::Srq(id));
                Ok::<_, Error>(())
            })
        })
    }

    fn queue(&self) -> MutexGuard<'_, SrqQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        // Queue pairs hold it, so nothing uses it any more.
        let _ = self.destroy();
    }
}

impl Srq {
    pub(crate) fn create(
        pd: &Pd,
        attr: SrqInitAttr,
        xrc: Option<(Xrcd, Cq)>,
    ) -> Result<Self, Error> {
        let (id, queue) = pd.context().driver().control(|s, _| {
            let created = s.engine.create_srq(attr)?;
            s.dispatch.own(Object::Srq(created.0), pd.context().events());
            Ok::<_, Error>(created)
        })?;
        let (queue, pd) = (Mutex::new(queue), pd.clone());
        Ok(Self { inner: Arc::new(SrqInner { id, queue, pd, _xrc: xrc, life: Life::new() }) })
    }

    /// Destroys it now, or says that a queue pair still uses it. Dropping the last handle destroys
    /// it as well.
    #[doc(alias = "ibv_destroy_srq")]
    pub fn destroy(&self) -> Result<(), Error> {
        self.inner.destroy()
    }

    /// The number by which a sender names it behind an XRC target.
    #[doc(alias = "ibv_get_srq_num")]
    pub fn number(&self) -> Srqn {
        self.inner.id.number()
    }

    /// Its handle, as events name it.
    pub fn id(&self) -> SrqId {
        self.inner.id
    }

    /// Posts receives, in order, until one is refused.
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post_recv(&self, wrs: impl IntoIterator<Item = RecvWr>) -> Result<(), PostError> {
        let mut queue = self.inner.queue();
        wrs.into_iter().try_for_each(|wr| queue.post(wr))
    }

    /// Arms the limit: fewer receives than this raise an event, once. 0 disarms.
    #[doc(alias = "ibv_modify_srq")]
    pub fn set_limit(&self, limit: u32) -> Result<(), Error> {
        let id = self.inner.id;
        let driver = self.inner.pd.context().driver();
        Ok(driver.control(|s, _| s.engine.set_srq_limit(id, limit))?)
    }

    /// Changes how many receives it holds.
    #[doc(alias = "ibv_modify_srq")]
    pub fn resize(&self, max_wr: u32) -> Result<(), Error> {
        let mut queue = self.inner.queue();
        let (id, driver) = (self.inner.id, self.inner.pd.context().driver());
        Ok(driver.control(|s, _| s.engine.resize_srq(id, &mut queue, max_wr))?)
    }

    /// Shows it.
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> Option<SrqAttr> {
        let id = self.inner.id;
        self.inner.pd.context().driver().control(|s, _| s.engine.query_srq(id))
    }
}
