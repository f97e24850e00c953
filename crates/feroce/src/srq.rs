//! Shared receive queues.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feroce_backend_rdma_core as rdma_core;
use feroce_engine::{PostError, RecvWr, SrqAttr, SrqId, SrqInitAttr, SrqQueue};
use feroce_wire::Srqn;

use crate::Error;
use crate::cq::Cq;
use crate::driver::{Driver, Object, State};
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
    side: Side,
    pd: Pd,
    /// Held so that they outlive the queue.
    _xrc: Option<(Xrcd, Cq)>,
    life: Life,
}

#[derive(Debug)]
enum Side {
    Soft(Soft),
    Hard(rdma_core::Srq),
}

/// A queue of our engine.
#[derive(Debug)]
struct Soft {
    queue: Mutex<SrqQueue>,
    driver: Arc<Driver>,
}

impl Soft {
    fn queue(&self) -> MutexGuard<'_, SrqQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SrqInner {
    fn destroy(&self) -> Result<(), Error> {
        let id = self.id;
        self.life.end(|| match &self.side {
            Side::Soft(soft) => soft.driver.control(|s, _| {
                s.engine.destroy_srq(id)?;
                s.dispatch.disown(Object::Srq(id));
                Ok::<_, Error>(())
            }),
            Side::Hard(hard) => {
                hard.destroy()?;
                self.pd.context().disown(Object::Srq(id));
                Ok(())
            }
        })
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
        let context = pd.context();
        let (id, side) = match pd.hard() {
            None => {
                let driver = Arc::clone(context.driver()?);
                let (id, queue) = driver.control(|s, _| {
                    let created = s.engine.create_srq(attr)?;
                    s.dispatch.own(Object::Srq(created.0), context.events());
                    Ok::<_, Error>(created)
                })?;
                (id, Side::Soft(Soft { queue: Mutex::new(queue), driver }))
            }
            Some(_) if xrc.is_some() => return Err(Error::Unsupported(rdma_core::XRC)),
            Some(hard) => {
                let (srq, id) = rdma_core::Srq::create(hard, attr.max_wr, attr.max_sge)?;
                context.own(Object::Srq(id));
                (id, Side::Hard(srq))
            }
        };
        let pd = pd.clone();
        Ok(Self { inner: Arc::new(SrqInner { id, side, pd, _xrc: xrc, life: Life::new() }) })
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
        match &self.inner.side {
            Side::Soft(soft) => {
                let mut queue = soft.queue();
                wrs.into_iter().try_for_each(|wr| queue.post(wr))
            }
            Side::Hard(hard) => hard.post(wrs),
        }
    }

    /// Arms the limit: fewer receives than this raise an event, once. 0 disarms.
    #[doc(alias = "ibv_modify_srq")]
    pub fn set_limit(&self, limit: u32) -> Result<(), Error> {
        let id = self.inner.id;
        match &self.inner.side {
            Side::Soft(soft) => {
                Ok(soft.driver.control(|s, _| s.engine.set_srq_limit(id, limit))?)
            }
            Side::Hard(hard) => Ok(hard.set_limit(limit)?),
        }
    }

    /// Changes how many receives it holds.
    #[doc(alias = "ibv_modify_srq")]
    pub fn resize(&self, max_wr: u32) -> Result<(), Error> {
        let id = self.inner.id;
        match &self.inner.side {
            Side::Soft(soft) => {
                let mut queue = soft.queue();
                let resize = |s: &mut State, _| s.engine.resize_srq(id, &mut queue, max_wr);
                let (resized, wakes) = soft.driver.control_then(resize);
                drop(queue);
                drop(wakes);
                Ok(resized?)
            }
            Side::Hard(hard) => Ok(hard.resize(max_wr)?),
        }
    }

    /// Shows it.
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> Option<SrqAttr> {
        let id = self.inner.id;
        match &self.inner.side {
            Side::Soft(soft) => soft.driver.read(|s| s.engine.query_srq(id)),
            Side::Hard(hard) => hard.query(),
        }
    }

    /// The queue, if it is one of the kernel's drivers.
    pub(crate) fn hard(&self) -> Option<&rdma_core::Srq> {
        match &self.inner.side {
            Side::Soft(_) => None,
            Side::Hard(hard) => Some(hard),
        }
    }
}
