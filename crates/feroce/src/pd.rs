//! Protection domains.

use std::ops::Range;
use std::sync::Arc;

use feroce_engine::{AddrVec, QpCap, QpType, SrqInitAttr};
use feroce_mem::{Access, Iova, MwType, PdId, Region};

use crate::Error;
use crate::ah::Ah;
use crate::backend::kernel::KernelPd;
use crate::backend::soft::SoftPd;
use crate::backend::{Either, either, map_either};
use crate::context::Context;
use crate::cq::Cq;
use crate::life::Life;
use crate::mr::{Mr, Mw};
use crate::qp::QpBuilder;
use crate::srq::Srq;
use crate::xrc::Xrcd;

/// A protection domain: its objects work with each other and with no object of another domain.
///
/// ```
/// # let context = feroce::Device::at(["127.0.0.26".parse()?]).open()?;
/// let pd = context.alloc_pd()?;
/// let mr = pd.alloc_mr(64, feroce::Access::LOCAL_WRITE)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ibv_pd")]
#[derive(Clone, Debug)]
pub struct Pd {
    inner: Arc<PdInner>,
}

#[derive(Debug)]
struct PdInner {
    side: PdSide,
    context: Context,
    life: Life,
}

/// The domain of either backend.
pub(crate) type PdSide = Either<SoftPd, KernelPd>;

impl PdInner {
    fn dealloc(&self) -> Result<(), Error> {
        self.life.end(|| either!(&self.side, pd => pd.dealloc()))
    }
}

impl Drop for PdInner {
    fn drop(&mut self) {
        // Every object in the domain holds a reference to it, so none uses it any more.
        let _ = self.dealloc();
    }
}

impl Pd {
    pub(crate) fn alloc(context: &Context) -> Result<Self, Error> {
        let side = map_either!(context.adapter(), adapter => adapter.alloc_pd()?);
        Ok(Self { inner: Arc::new(PdInner { side, context: context.clone(), life: Life::new() }) })
    }

    /// Deallocates it now, or fails if an object is still in it. Dropping the last handle
    /// deallocates it as well.
    #[doc(alias = "ibv_dealloc_pd")]
    pub fn dealloc(&self) -> Result<(), Error> {
        self.inner.dealloc()
    }

    pub(crate) fn side(&self) -> &PdSide {
        &self.inner.side
    }

    /// The device it is of.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// Allocates and registers `len` bytes of zeros. Where that is of use and can be done, the
    /// bytes are shared memory: other processes of the host read them, and write to them as far as
    /// their access rights permit, without the kernel, and a forked child shares them with its
    /// parent.
    #[doc(alias = "ibv_reg_mr")]
    pub fn alloc_mr(&self, len: usize, access: Access) -> Result<Mr, Error> {
        let shareable = either!(self.context().adapter(), adapter => adapter.alloc_region(len));
        let region = shareable.map_or_else(|| Region::alloc(len), Ok)?;
        Mr::register(self, region, 0..len, Iova::Natural, access)
    }

    /// Registers a region, which other registrations may share.
    #[doc(alias = "ibv_reg_mr")]
    #[doc(alias = "ibv_reg_mr_iova")]
    pub fn register(&self, region: Arc<Region>, iova: Iova, access: Access) -> Result<Mr, Error> {
        let all = 0..region.len();
        Mr::register(self, region, all, iova, access)
    }

    /// Registers a part of a region.
    pub fn register_part(
        &self,
        region: Arc<Region>,
        part: Range<usize>,
        iova: Iova,
        access: Access,
    ) -> Result<Mr, Error> {
        Mr::register(self, region, part, iova, access)
    }

    /// Registers memory that this crate does not own.
    ///
    /// # Safety
    /// `ptr` must lead to `len` bytes that stay allocated, readable and writable until the returned
    /// region is dropped, and no Rust reference to them may be used meanwhile.
    pub unsafe fn register_raw(
        &self,
        ptr: *mut u8,
        len: usize,
        iova: Iova,
        access: Access,
    ) -> Result<Mr, Error> {
        // SAFETY: as the caller says.
        let region = unsafe { self.raw_region(ptr, len) };
        Mr::register(self, region, 0..len, iova, access)
    }

    /// Memory that this crate does not own, as a region to register. If it is shared memory, other
    /// processes of this host may map it. With the setting `convert`, the device makes the whole
    /// pages of other memory shareable, where that is of use and can be done.
    ///
    /// # Safety
    /// As for [`Pd::register_raw`]; with `convert`, no thread writes to the bytes until this
    /// returns.
    pub unsafe fn raw_region(&self, ptr: *mut u8, len: usize) -> Arc<Region> {
        let shareable = either!(self.context().adapter(), adapter => {
            // SAFETY: the caller makes the same promise.
            unsafe { adapter.share_region(ptr, len) }
        });
        if let Some(region) = shareable {
            return region;
        }
        // SAFETY: the caller promises what `Region::from_raw` demands.
        unsafe { Region::from_raw(ptr, len, None) }
    }

    /// Makes a memory window.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn alloc_mw(&self, kind: MwType) -> Result<Mw, Error> {
        Mw::alloc(self, kind)
    }

    /// Makes an address handle.
    #[doc(alias = "ibv_create_ah")]
    pub fn create_ah(&self, av: AddrVec) -> Result<Ah, Error> {
        Ah::create(self, av)
    }

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

    /// Describes a reliable connection.
    #[doc(alias = "ibv_create_qp")]
    pub fn rc_qp(&self, send_cq: &Cq, recv_cq: &Cq, cap: QpCap) -> QpBuilder {
        QpBuilder::new(self, QpType::Rc, send_cq, recv_cq, cap)
    }

    /// Describes an unreliable connection.
    pub fn uc_qp(&self, send_cq: &Cq, recv_cq: &Cq, cap: QpCap) -> QpBuilder {
        QpBuilder::new(self, QpType::Uc, send_cq, recv_cq, cap)
    }

    /// Describes a datagram queue pair.
    pub fn ud_qp(&self, send_cq: &Cq, recv_cq: &Cq, cap: QpCap) -> QpBuilder {
        QpBuilder::new(self, QpType::Ud, send_cq, recv_cq, cap)
    }

    /// Describes the sending end of an extended reliable connection. Its peer is made by
    /// [`Xrcd::target_qp`].
    #[doc(alias = "IBV_QPT_XRC_SEND")]
    pub fn xrc_qp(&self, send_cq: &Cq, cap: QpCap) -> QpBuilder {
        QpBuilder::new(self, QpType::XrcIni, send_cq, send_cq, cap)
    }
}
