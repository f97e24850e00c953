//! Registered memory, and windows onto it.

use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;

use feroce_engine::{Data, RecvWr, Remote, Sge, SgeList};
use feroce_mem::{Access, Iova, MwType, Region};
use feroce_wire::{Lkey, Rkey};

use crate::Error;
use crate::backend::{Keys, MrSide, MwSide, either, map_either};
use crate::life::Life;
use crate::pd::Pd;

/// A memory region. It owns its bytes and never lends them: a peer may change them at any time,
/// so they are copied in and out.
///
/// Dropping it deregisters the memory, waits until the adapter does not access the bytes any more,
/// and frees them. Work requests that still name it fail; they cannot reach freed memory.
///
/// ```
/// # let context = feroce::Device::at(["127.0.0.24".parse()?]).open()?;
/// let pd = context.alloc_pd()?;
/// let mr = pd.alloc_mr(4096, feroce::Access::LOCAL_WRITE)?;
/// mr.write_at(10, b"bytes")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A program can neither hold a reference into it nor free it too early; see
/// [`safety`](crate::safety).
#[doc(alias = "ibv_mr")]
#[derive(Debug)]
pub struct Mr {
    // Declared before the region, so that the memory outlives its registration.
    side: MrSide,
    region: Arc<Region>,
    lkey: Lkey,
    rkey: Rkey,
    addr: u64,
    /// Which bytes of the region.
    part: Range<usize>,
    pd: Pd,
    life: Life,
}

/// What [`Mr::rereg`] changes; `None` leaves an attribute as it is.
///
/// ```
/// # use feroce::{Access, Device, Rereg};
/// # let context = Device::at(["127.0.0.39".parse()?]).open()?;
/// let pd = context.alloc_pd()?;
/// let mut mr = pd.alloc_mr(4096, Access::LOCAL_WRITE)?;
/// // From now on peers may read it.
/// let access = Some(Access::LOCAL_WRITE | Access::REMOTE_READ);
/// mr.rereg(Rereg { access, ..Rereg::default() })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ibv_rereg_mr")]
#[derive(Clone, Debug, Default)]
pub struct Rereg {
    /// The protection domain.
    pub pd: Option<Pd>,
    /// The memory, and the address of its first byte.
    pub memory: Option<(Arc<Region>, Iova)>,
    /// What is permitted.
    pub access: Option<Access>,
}

impl Pd {
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
}

impl Mr {
    pub(crate) fn register(
        pd: &Pd,
        region: Arc<Region>,
        part: Range<usize>,
        iova: Iova,
        access: Access,
    ) -> Result<Self, Error> {
        let (lkey, rkey, addr);
        let side = map_either!(pd.side(), pd => {
            let place = (part.start, part.len());
            let (mr, keys) = pd.register(&region, place, iova, access)?;
            (lkey, rkey, addr) = (keys.lkey, keys.rkey, keys.addr);
            mr
        });
        let (pd, life) = (pd.clone(), Life::new());
        Ok(Self { side, region, lkey, rkey, addr, part, pd, life })
    }

    /// Changes the registration. On the software adapter the keys stay the same. Returns when every
    /// access that began before has ended, so that the caller may free memory that was replaced.
    #[doc(alias = "ibv_rereg_mr")]
    pub fn rereg(&mut self, change: Rereg) -> Result<(), Error> {
        let (pd, memory) = (change.pd.as_ref().map(Pd::side), change.memory.as_ref());
        let keys = either!(&mut self.side, mr => mr.rereg(pd, memory, change.access)?);
        Keys { lkey: self.lkey, rkey: self.rkey, addr: self.addr } = keys;
        if let Some((region, _)) = change.memory {
            self.part = 0..region.len();
            self.region = region;
        }
        if let Some(pd) = change.pd {
            self.pd = pd;
        }
        Ok(())
    }

    /// Deregisters the memory now, or fails if windows are bound to it. Dropping does the same, but
    /// then bound windows keep the memory.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn dereg(&self) -> Result<(), Error> {
        self.life.end(|| either!(&self.side, mr => mr.dereg()))
    }

    /// The key that local work requests use.
    pub fn lkey(&self) -> Lkey {
        self.lkey
    }

    /// The key that a peer uses.
    pub fn rkey(&self) -> Rkey {
        self.rkey
    }

    /// Address of the first byte, as work requests count.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.part.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.part.is_empty()
    }

    /// Names bytes to a local work request.
    ///
    /// ```
    /// # let context = feroce::Device::at(["127.0.0.39".parse()?]).open()?;
    /// let mr = context.alloc_pd()?.alloc_mr(64, feroce::Access::LOCAL_WRITE)?;
    /// assert_eq!((mr.sge(..).len, mr.sge(8..).len, mr.sge(..=7).len), (64, 56, 8));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If the range ends before it starts, or beyond the end of the region, as with slices: the
    /// adapter would refuse it later, far from the mistake.
    #[track_caller]
    pub fn sge(&self, range: impl RangeBounds<usize>) -> Sge {
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => last.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => self.len(),
        };
        assert!(
            start <= end && end <= self.len(),
            "bytes {start}..{end} are not in a memory region of {} bytes",
            self.len()
        );
        let len = end - start;
        Sge {
            addr: self.addr.wrapping_add(start as u64),
            len: u32::try_from(len).unwrap_or(u32::MAX),
            lkey: self.lkey,
        }
    }

    /// The data of a send work request: these bytes and no others.
    ///
    /// # Panics
    ///
    /// As [`Mr::sge`].
    #[track_caller]
    pub fn data(&self, range: impl RangeBounds<usize>) -> Data {
        Data::Sges(SgeList::from(self.sge(range)))
    }

    /// A receive work request into these bytes.
    ///
    /// # Panics
    ///
    /// As [`Mr::sge`].
    #[track_caller]
    pub fn recv(&self, wr_id: u64, range: impl RangeBounds<usize>) -> RecvWr {
        RecvWr::new(wr_id, self.sge(range))
    }

    /// Names bytes to a peer: what it needs to read or write from `offset` on.
    pub fn remote(&self, offset: usize) -> Remote {
        Remote { addr: self.addr.wrapping_add(offset as u64), rkey: self.rkey() }
    }

    /// Copies `data` into the region.
    pub fn write_at(&self, offset: usize, data: &[u8]) -> Result<(), Error> {
        Ok(self.region.write_at(self.place(offset, data.len())?, data)?)
    }

    /// Copies bytes out of the region.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        Ok(self.region.read_at(self.place(offset, out.len())?, out)?)
    }

    /// Where in the region `len` bytes at `offset` are.
    fn place(&self, offset: usize, len: usize) -> Result<usize, Error> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len());
        if inside { Ok(self.part.start + offset) } else { Err(Error::OutOfBounds) }
    }

    pub(crate) fn pd(&self) -> &Pd {
        &self.pd
    }

    /// The memory itself, with its atomic accessors.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // An error means that windows are bound to it; they keep the memory alive.
        let _ = self.dereg();
    }
}

/// A memory window.
///
/// ```
/// # let context = feroce::Device::at(["127.0.0.25".parse()?]).open()?;
/// let mw = context.alloc_pd()?.alloc_mw(feroce::MwType::Two)?;
/// assert_ne!(mw.rkey(), mw.next_rkey());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ibv_mw")]
#[doc(alias = "ibv_dealloc_mw")]
#[derive(Debug)]
pub struct Mw {
    rkey: Rkey,
    kind: MwType,
    /// Held so that they end in this order.
    _side: MwSide,
    _pd: Pd,
}

impl Pd {
    /// Makes a memory window.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn alloc_mw(&self, kind: MwType) -> Result<Mw, Error> {
        Mw::alloc(self, kind)
    }
}

impl Mw {
    pub(crate) fn alloc(pd: &Pd, kind: MwType) -> Result<Self, Error> {
        let rkey;
        let side = map_either!(pd.side(), pd => {
            let (mw, key) = pd.alloc_mw(kind)?;
            rkey = key;
            mw
        });
        Ok(Self { rkey, kind, _side: side, _pd: pd.clone() })
    }

    /// Its key now.
    pub fn rkey(&self) -> Rkey {
        self.rkey
    }

    /// Its type.
    pub fn kind(&self) -> MwType {
        self.kind
    }

    /// A key for the next binding: the same window with the next tag.
    #[doc(alias = "ibv_inc_rkey")]
    pub fn next_rkey(&self) -> Rkey {
        Rkey(self.rkey.0 & !0xff | (self.rkey.0.wrapping_add(1) & 0xff))
    }

    /// Records that a binding with this key was posted.
    pub fn set_rkey(&mut self, rkey: Rkey) {
        self.rkey = rkey;
    }
}
