//! Shared receive queues.

use std::sync::Arc;

use feroce_engine::{RecvWr, SrqAttr, SrqId, SrqInitAttr};
use feroce_mem::PdId;
use feroce_wire::Srqn;

use crate::backend::{SrqSide, either, map_either};
use crate::cq::Cq;
use crate::life::Life;
use crate::pd::Pd;
use crate::xrc::Xrcd;
use crate::{Error, PostError};

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
    side: SrqSide,
    /// Held so that they outlive the queue.
    _pd: Pd,
    _xrc: Option<(Xrcd, Cq)>,
    life: Life,
}

impl SrqInner {
    fn destroy(&self) -> Result<(), Error> {
        self.life.end(|| either!(&self.side, srq => srq.destroy()))
    }
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        // Queue pairs hold references to their queues, so none uses this one any more.
        let _ = self.destroy();
    }
}

impl Pd {
    /// Makes a shared receive queue.
    #[doc(alias = "ibv_create_srq")]
    pub fn create_srq(&self, max_wr: u32, max_sge: u32) -> Result<Srq, Error> {
        let attr = SrqInitAttr { pd: PdId::default(), max_wr, max_sge, limit: 0, xrc: None };
        Srq::create(self, attr, None)
    }

    /// Makes a shared receive queue that XRC targets of the domain deliver to; its receives
    /// complete in `cq`.
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn create_xrc_srq(
        &self,
        xrcd: &Xrcd,
        cq: &Cq,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<Srq, Error> {
        let xrc = Some((xrcd.id(), cq.id()));
        let attr = SrqInitAttr { pd: PdId::default(), max_wr, max_sge, limit: 0, xrc };
        Srq::create(self, attr, Some((xrcd.clone(), cq.clone())))
    }
}

impl Srq {
    pub(crate) fn create(
        pd: &Pd,
        attr: SrqInitAttr,
        xrc: Option<(Xrcd, Cq)>,
    ) -> Result<Self, Error> {
        let id;
        if let Some(cq) = xrc.as_ref().and_then(|(_, cq)| cq.side().soft()) {
            // What arrives completes here, even if no queue pair uses this completion queue.
            cq.add_first_home();
        }
        let side = map_either!(pd.side(), domain => {
            let (name, srq) = domain.create_srq(attr, pd.context().events())?;
            id = name;
            srq
        });
        let (pd, life) = (pd.clone(), Life::new());
        Ok(Self { inner: Arc::new(SrqInner { id, side, _pd: pd, _xrc: xrc, life }) })
    }

    pub(crate) fn side(&self) -> &SrqSide {
        &self.inner.side
    }

    /// Destroys it now, or fails if a queue pair still uses it. Dropping the last handle destroys
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
        either!(self.side(), srq => Ok(srq.post(wrs)?))
    }

    /// Arms the limit: fewer receives than this raise an event, once. 0 disarms.
    #[doc(alias = "ibv_modify_srq")]
    pub fn set_limit(&self, limit: u32) -> Result<(), Error> {
        either!(self.side(), srq => srq.set_limit(limit))
    }

    /// Changes how many receives it holds.
    #[doc(alias = "ibv_modify_srq")]
    pub fn resize(&self, max_wr: u32) -> Result<(), Error> {
        either!(self.side(), srq => srq.resize(max_wr))
    }

    /// Queries its attributes.
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> Option<SrqAttr> {
        either!(self.side(), srq => srq.query())
    }
}
