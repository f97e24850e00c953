//! Extended reliable connections: one connection between two processes, many receive queues.

use std::sync::Arc;

use feroce_backend_rdma_core::Feature;
use feroce_engine::XrcdId;

use crate::Error;
use crate::context::Context;
use crate::cq::Cq;
use crate::life::Life;
use crate::pd::Pd;

/// An XRC domain: targets in it deliver to the shared receive queues in it.
///
/// ```
/// # let context = feroce::Device::at(["127.0.0.31".parse()?]).open()?;
/// let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
/// let xrcd = context.open_xrcd()?;
/// let srq = pd.create_xrc_srq(&xrcd, &cq, 16, 1)?;
/// let target = xrcd.target_qp().create()?;
/// println!("send to {:?} behind {:?}", srq.number(), target.endpoint()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ibv_xrcd")]
#[derive(Clone, Debug)]
pub struct Xrcd {
    inner: Arc<XrcdInner>,
}

#[derive(Debug)]
struct XrcdInner {
    id: XrcdId,
    /// An XRC target uses neither, but the adapter requires both, so these stay empty.
    stand_in: (Pd, Cq),
    life: Life,
}

impl XrcdInner {
    fn close(&self) -> Result<(), Error> {
        self.life.end(|| {
            let driver = self.stand_in.0.context().driver()?;
            Ok::<_, Error>(driver.control(|s, _| s.engine.dealloc_xrcd(self.id))?)
        })
    }
}

impl Drop for XrcdInner {
    fn drop(&mut self) {
        // Every object in the domain holds a reference to it, so none uses it any more.
        let _ = self.close();
    }
}

impl Context {
    /// Makes an XRC domain.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn open_xrcd(&self) -> Result<Xrcd, Error> {
        Xrcd::open(self)
    }
}

impl Xrcd {
    pub(crate) fn open(context: &Context) -> Result<Self, Error> {
        let soft = context.adapter().soft().ok_or(Error::Unsupported(Feature::Xrc))?;
        let stand_in = (context.alloc_pd()?, context.create_cq(1)?);
        let id = soft.driver.create(|s| s.engine.alloc_xrcd())?;
        Ok(Self { inner: Arc::new(XrcdInner { id, stand_in, life: Life::new() }) })
    }

    /// The domain and the queue of XRC targets.
    pub(crate) fn stand_in(&self) -> &(Pd, Cq) {
        &self.inner.stand_in
    }

    pub(crate) fn id(&self) -> XrcdId {
        self.inner.id
    }

    /// Closes it now, or fails if an object is still in it. Dropping the last handle closes it as
    /// well.
    #[doc(alias = "ibv_close_xrcd")]
    pub fn close(&self) -> Result<(), Error> {
        self.inner.close()
    }
}
