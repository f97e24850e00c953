//! Protection domains, and the objects in them that are not queues: memory regions, memory windows
//! and address handles.

use std::ptr::{self, NonNull};
use std::sync::{Arc, PoisonError};

use feroce_abi::*;
use feroce_engine::{AddrVec, AhId};
use feroce_mem::{Access, Iova, MwType, Region};
use feroce_wire::{Lkey, Rkey};

use crate::adapter::{Adapter, AhPtr, AllocatedMw};
use crate::handle::Handle;
use crate::{Error, Feature, failed, work};

/// A protection domain.
#[derive(Debug)]
pub struct Pd {
    handle: Handle<ibv_pd>,
    pub(crate) adapter: Arc<Adapter>,
}

impl Pd {
    /// Allocates a protection domain.
    pub fn alloc(adapter: &Arc<Adapter>) -> Result<Self, Error> {
        let verbs = adapter.open.verbs;
        // SAFETY: an open context.
        let pd = unsafe { (verbs.ibv_alloc_pd)(adapter.open.as_ptr()) };
        // SAFETY: the library just created it, and only this handle destroys it.
        let handle = unsafe { Handle::new("ibv_alloc_pd", pd) }?;
        Ok(Self { handle, adapter: Arc::clone(adapter) })
    }

    /// Deallocates it.
    pub fn dealloc(&self) -> Result<(), Error> {
        let verbs = self.adapter.open.verbs;
        self.handle.end("ibv_dealloc_pd", |pd| {
            // SAFETY: a domain that lives, and that no thread is in a call on.
            unsafe { (verbs.ibv_dealloc_pd)(pd) }
        })
    }

    /// Creates an object in the domain with `f`, which calls the C function named `call`.
    pub(crate) fn make<T>(
        &self,
        call: &'static str,
        f: impl FnOnce(*mut ibv_pd) -> *mut T,
    ) -> Result<Handle<T>, Error> {
        let made = self.handle.with(f).unwrap_or(ptr::null_mut());
        // SAFETY: the library just created it, and only this handle destroys it.
        unsafe { Handle::new(call, made) }
    }
}

/// A memory region. If the library fails to deregister it, its memory is never freed.
#[derive(Debug)]
pub struct Mr {
    handle: Arc<Handle<ibv_mr>>,
    region: Arc<Region>,
    adapter: Arc<Adapter>,
}

/// Keys of a registration, and where it begins.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    /// Local key.
    pub lkey: Lkey,
    /// Remote key.
    pub rkey: Rkey,
    /// Address of the first byte, as work requests count.
    pub addr: u64,
}

impl Mr {
    /// Registers `len` bytes of a region from `start` on.
    pub fn register(
        pd: &Pd,
        region: &Arc<Region>,
        (start, len): (usize, usize),
        iova: Iova,
        access: Access,
    ) -> Result<(Self, Keys), Error> {
        let first = first_byte(region, start, len)?;
        let addr = match iova {
            Iova::Natural if access.contains(Access::ZERO_BASED) => 0,
            Iova::Natural => first.addr() as u64,
            Iova::At(addr) => addr,
            Iova::ZeroBased => 0,
        };
        // The address that the library is given already makes the region zero-based.
        let access = (access - Access::ZERO_BASED).bits();
        let verbs = pd.adapter.open.verbs;
        let mut keys = Keys { lkey: Lkey(0), rkey: Rkey(0), addr };
        let handle = pd.make("ibv_reg_mr_iova2", |pd| {
            // SAFETY: a domain that lives. The region owns the memory, or the caller of
            // `Region::from_raw` promised to keep it, and this object holds the region until the
            // registration has ended.
            let mr = unsafe { (verbs.ibv_reg_mr_iova2)(pd, first.cast(), len, addr, access) };
            if !mr.is_null() {
                // SAFETY: just made.
                let ibv_mr { lkey, rkey, .. } = unsafe { mr.read() };
                (keys.lkey, keys.rkey) = (Lkey(lkey), Rkey(rkey));
            }
            mr
        })?;
        let handle = Arc::new(handle);
        pd.adapter.regions().insert(keys.lkey.0, Arc::downgrade(&handle));
        let (region, adapter) = (Arc::clone(region), Arc::clone(&pd.adapter));
        Ok((Self { handle, region, adapter }, keys))
    }

    /// Changes the domain, the memory and the access of the registration; `None` leaves each as it
    /// is.
    pub fn rereg(
        &mut self,
        pd: Option<&Pd>,
        memory: Option<&(Arc<Region>, Iova)>,
        access: Option<Access>,
    ) -> Result<Keys, Error> {
        let mut flags = 0;
        let (mut first, mut len) = (ptr::null_mut(), 0);
        if let Some((region, iova)) = memory {
            if *iova != Iova::Natural {
                return Err(Error::Unsupported(Feature::ReregOtherAddress));
            }
            flags |= IBV_REREG_MR_CHANGE_TRANSLATION;
            (first, len) = (first_byte(region, 0, region.len())?, region.len());
        }
        flags |= if access.is_some() { IBV_REREG_MR_CHANGE_ACCESS } else { 0 };
        flags |= if pd.is_some() { IBV_REREG_MR_CHANGE_PD } else { 0 };
        let access = access.unwrap_or_default().bits();
        let verbs = self.adapter.open.verbs;
        let call = |pd: *mut ibv_pd| {
            self.handle.call("ibv_rereg_mr", |mr| {
                let (flags, access) = (flags.cast_signed(), access.cast_signed());
                // SAFETY: a registration and a domain that live, and memory as for `register`.
                unsafe { (verbs.ibv_rereg_mr)(mr, flags, pd, first.cast(), len, access) }
            })
        };
        let before = self.keys().lkey;
        let done = match pd {
            Some(pd) => pd.handle.with(call).unwrap_or_else(|| Err(failed("ibv_rereg_mr"))),
            None => call(ptr::null_mut()),
        };
        if let Some((region, _)) = memory {
            if done.is_err() {
                // The device may still use the old memory or the new one, so neither is freed.
                std::mem::forget((Arc::clone(region), Arc::clone(&self.region)));
            }
            self.region = Arc::clone(region);
        }
        done?;
        let keys = self.keys();
        let mut regions = self.adapter.regions();
        regions.remove(&before.0);
        regions.insert(keys.lkey.0, Arc::downgrade(&self.handle));
        drop(regions);
        Ok(keys)
    }

    /// The current keys; zeros if the region is deregistered.
    fn keys(&self) -> Keys {
        let read = |mr: *mut ibv_mr| {
            // SAFETY: a registration that lives, whose fields change only while it is changed.
            let ibv_mr { lkey, rkey, addr, .. } = unsafe { mr.read() };
            Keys { lkey: Lkey(lkey), rkey: Rkey(rkey), addr: addr.addr() as u64 }
        };
        let none = Keys { lkey: Lkey(0), rkey: Rkey(0), addr: 0 };
        self.handle.with(read).unwrap_or(none)
    }

    /// Deregisters it.
    pub fn dereg(&self) -> Result<(), Error> {
        let verbs = self.adapter.open.verbs;
        let ended = self.handle.end("ibv_dereg_mr", |mr| {
            // SAFETY: a registration that lives, and that no thread is in a call on.
            unsafe { (verbs.ibv_dereg_mr)(mr) }
        });
        ended.map_err(|e| match e {
            // Only windows use a region.
            Error::Busy => Error::WindowsBound,
            // Soft-RoCE answers EINVAL in this case.
            e if e.errno() == Some(libc::EINVAL) => Error::WindowsBound,
            e => e,
        })
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        let key = self.keys().lkey;
        self.adapter.regions().retain(|lkey, there| *lkey != key.0 || there.strong_count() > 1);
        if self.dereg().is_err() {
            // The device may still use the memory, so it is leaked.
            std::mem::forget(Arc::clone(&self.region));
        }
    }
}

/// The first of the bytes that are registered.
fn first_byte(region: &Region, start: usize, len: usize) -> Result<*mut u8, Error> {
    // A region without memory, or one that is the whole address space.
    if region.addr() == 0 {
        return Err(Error::Unsupported(Feature::NotMemory));
    }
    if start.checked_add(len).is_none_or(|end| end > region.len()) {
        return Err(Error::OutOfBounds);
    }
    // `Region` exposes the provenance of its memory.
    Ok(ptr::with_exposed_provenance_mut::<u8>(region.addr() as usize).wrapping_add(start))
}

/// An address handle.
#[derive(Debug)]
pub struct Ah {
    id: AhId,
    adapter: Arc<Adapter>,
}

impl Ah {
    /// Creates an address handle.
    pub fn create(pd: &Pd, av: &AddrVec) -> Result<Self, Error> {
        let adapter = &pd.adapter;
        let mut attr = work::ah_attr(av);
        // SAFETY: a domain that lives, and attributes of ours.
        let create = |pd| unsafe { (adapter.open.verbs.ibv_create_ah)(pd, &raw mut attr) };
        let made = pd.handle.with(create).and_then(NonNull::new);
        let made = made.ok_or_else(|| failed("ibv_create_ah"))?;
        let id = AhId(adapter.number());
        adapter.ahs.write().unwrap_or_else(PoisonError::into_inner).insert(id, AhPtr(made));
        Ok(Self { id, adapter: Arc::clone(adapter) })
    }

    /// Its name in work requests.
    pub fn id(&self) -> AhId {
        self.id
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        let mut ahs = self.adapter.ahs.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(ah) = ahs.remove(&self.id) {
            // SAFETY: `ibv_create_ah` returned it, and no thread posts with it: posting threads
            // hold the lock of the table.
            unsafe { (self.adapter.open.verbs.ibv_destroy_ah)(ah.0.as_ptr()) };
        }
    }
}

/// A memory window.
#[derive(Debug)]
pub struct Mw {
    handle: Arc<Handle<ibv_mw>>,
    /// The part of its key that stays the same.
    index: u32,
    adapter: Arc<Adapter>,
}

/// The part of the key of a window that stays the same.
pub(crate) fn window_index(rkey: Rkey) -> u32 {
    rkey.0 >> 8
}

impl Mw {
    /// Allocates a window.
    pub fn alloc(pd: &Pd, kind: MwType) -> Result<(Self, Rkey), Error> {
        let adapter = Arc::clone(&pd.adapter);
        let alloc =
            adapter.open.ops().alloc_mw.ok_or(Error::Unsupported(Feature::MemoryWindows))?;
        let number = convert::mw_type(kind);
        let mut rkey = Rkey(0);
        let handle = pd.make("ibv_alloc_mw", |pd| {
            // SAFETY: a domain that lives.
            let mw = unsafe { alloc(pd, number) };
            if !mw.is_null() {
                // SAFETY: just made. The header's function does the same.
                let mw = unsafe { &mut *mw };
                (mw.type_, rkey) = (number, Rkey(mw.rkey));
            }
            mw
        })?;
        let (handle, index) = (Arc::new(handle), window_index(rkey));
        adapter.windows().insert(index, AllocatedMw { handle: Arc::downgrade(&handle), kind });
        Ok((Self { handle, index, adapter }, rkey))
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        self.adapter.windows().remove(&self.index);
        let Some(dealloc) = self.adapter.open.ops().dealloc_mw else { return };
        let _ = self.handle.end("ibv_dealloc_mw", |mw| {
            // SAFETY: a window that lives, and that no thread is in a call on.
            unsafe { dealloc(mw) }
        });
    }
}
