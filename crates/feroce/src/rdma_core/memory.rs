//! Protection domains, and what belongs to them but has no queue.

use std::ptr::{self, NonNull};
use std::sync::{Arc, PoisonError, Weak};

use feroce_abi::*;
use feroce_engine::{AddrVec, AhId, DestroyError};
use feroce_mem::{Access, DeregError, Iova, MwType, Region};
use feroce_wire::{Lkey, Rkey};

use super::adapter::Adapter;
use super::handle::Handle;
use super::{failed, work};
use crate::{Error, Rereg};

/// A protection domain.
#[derive(Debug)]
pub(crate) struct Pd {
    handle: Handle<ibv_pd>,
    pub(super) adapter: Arc<Adapter>,
}

impl Pd {
    pub(crate) fn alloc(adapter: &Arc<Adapter>) -> Result<Self, Error> {
        let verbs = adapter.open.verbs;
        // SAFETY: an open context.
        let pd = unsafe { (verbs.ibv_alloc_pd)(adapter.open.as_ptr()) };
        // SAFETY: just made, and nobody else's.
        let handle = unsafe { Handle::new("ibv_alloc_pd", pd) }?;
        Ok(Self { handle, adapter: Arc::clone(adapter) })
    }

    pub(crate) fn dealloc(&self) -> Result<(), Error> {
        let verbs = self.adapter.open.verbs;
        self.handle.end("ibv_dealloc_pd", |pd| {
            // SAFETY: a domain that lives, and that nobody is in a call on.
            unsafe { (verbs.ibv_dealloc_pd)(pd) }
        })
    }

    /// Makes something in the domain, which a function of C returns.
    pub(super) fn make<T>(
        &self,
        call: &'static str,
        f: impl FnOnce(*mut ibv_pd) -> *mut T,
    ) -> Result<Handle<T>, Error> {
        let made = self.handle.with(f).unwrap_or(ptr::null_mut());
        // SAFETY: just made, and nobody else's.
        unsafe { Handle::new(call, made) }
    }
}

/// A memory region. It keeps the memory if the library does not let go of it.
#[derive(Debug)]
pub(crate) struct Mr {
    handle: Arc<Handle<ibv_mr>>,
    region: Arc<Region>,
    adapter: Arc<Adapter>,
}

/// Keys of a registration, and where it begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys {
    pub(crate) lkey: Lkey,
    pub(crate) rkey: Rkey,
    pub(crate) addr: u64,
}

impl Mr {
    /// Registers `len` bytes of a region from `start` on.
    pub(crate) fn register(
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
        // It says the same as the address.
        let access = (access - Access::ZERO_BASED).bits();
        let verbs = pd.adapter.open.verbs;
        let mut keys = Keys { lkey: Lkey(0), rkey: Rkey(0), addr };
        let handle = pd.make("ibv_reg_mr_iova2", |pd| {
            // SAFETY: a domain that lives. The region owns the memory, or somebody promised to
            // keep it, and it is held until the registration has ended.
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

    /// Changes the registration; what `pd` names is the domain of `change`.
    pub(crate) fn rereg(&mut self, change: &Rereg, pd: Option<&Pd>) -> Result<Keys, Error> {
        let mut flags = 0;
        let (mut first, mut len) = (ptr::null_mut(), 0);
        if let Some((region, iova)) = &change.memory {
            if *iova != Iova::Natural {
                return Err(Error::Unsupported("changing a registration to another address"));
            }
            flags |= IBV_REREG_MR_CHANGE_TRANSLATION;
            (first, len) = (first_byte(region, 0, region.len())?, region.len());
        }
        flags |= if change.access.is_some() { IBV_REREG_MR_CHANGE_ACCESS } else { 0 };
        flags |= if pd.is_some() { IBV_REREG_MR_CHANGE_PD } else { 0 };
        let access = change.access.unwrap_or_default().bits();
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
        if let Some((region, _)) = &change.memory {
            if done.is_err() {
                // Nobody knows which of the two the device uses now, so both must stay.
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

    /// The keys now; zeros if it has ended.
    fn keys(&self) -> Keys {
        let read = |mr: *mut ibv_mr| {
            // SAFETY: a registration that lives, whose fields change only while it is changed.
            let ibv_mr { lkey, rkey, addr, .. } = unsafe { mr.read() };
            Keys { lkey: Lkey(lkey), rkey: Rkey(rkey), addr: addr.addr() as u64 }
        };
        let none = Keys { lkey: Lkey(0), rkey: Rkey(0), addr: 0 };
        self.handle.with(read).unwrap_or(none)
    }

    pub(crate) fn dereg(&self) -> Result<(), Error> {
        let verbs = self.adapter.open.verbs;
        let ended = self.handle.end("ibv_dereg_mr", |mr| {
            // SAFETY: a registration that lives, and that nobody is in a call on.
            unsafe { (verbs.ibv_dereg_mr)(mr) }
        });
        ended.map_err(|e| match e {
            // Nothing else uses one.
            Error::Destroy(DestroyError::Busy) => DeregError::WindowsBound.into(),
            // Soft-RoCE has another number for it.
            Error::Verbs { error, .. } if error.raw_os_error() == Some(libc::EINVAL) => {
                DeregError::WindowsBound.into()
            }
            e => e,
        })
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        let key = self.keys().lkey;
        self.adapter.regions().retain(|lkey, there| *lkey != key.0 || there.strong_count() > 1);
        if self.dereg().is_err() {
            // The device may go on using it, so it must stay for ever.
            std::mem::forget(Arc::clone(&self.region));
        }
    }
}

/// The first of the bytes that are registered.
fn first_byte(region: &Region, start: usize, len: usize) -> Result<*mut u8, Error> {
    // A region without memory, or one that is the whole address space.
    if region.addr() == 0 {
        return Err(Error::Unsupported("registering what is not a piece of memory"));
    }
    if start.checked_add(len).is_none_or(|end| end > region.len()) {
        return Err(Error::OutOfBounds);
    }
    // The region has exposed it.
    Ok(ptr::with_exposed_provenance_mut::<u8>(region.addr() as usize).wrapping_add(start))
}

/// The way to a port.
#[derive(Debug)]
pub(crate) struct Ah {
    id: AhId,
    adapter: Arc<Adapter>,
}

impl Ah {
    pub(crate) fn create(pd: &Pd, av: &AddrVec) -> Result<Self, Error> {
        let adapter = &pd.adapter;
        let mut attr = work::ah_attr(av);
        // SAFETY: a domain that lives, and attributes of ours.
        let create = |pd| unsafe { (adapter.open.verbs.ibv_create_ah)(pd, &raw mut attr) };
        let made = pd.handle.with(create).and_then(NonNull::new);
        let made = made.ok_or_else(|| failed("ibv_create_ah"))?;
        let id = AhId(adapter.number());
        adapter.ahs.write().unwrap_or_else(PoisonError::into_inner).insert(id, made);
        Ok(Self { id, adapter: Arc::clone(adapter) })
    }

    /// Its name in work requests.
    pub(crate) fn id(&self) -> AhId {
        self.id
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        let mut ahs = self.adapter.ahs.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(ah) = ahs.remove(&self.id) {
            // SAFETY: made by the function that belongs to it; whoever posts with it holds the lock
            // of the table meanwhile.
            unsafe { (self.adapter.open.verbs.ibv_destroy_ah)(ah.as_ptr()) };
        }
    }
}

/// A memory window.
#[derive(Debug)]
pub(crate) struct Mw {
    handle: Arc<Handle<ibv_mw>>,
    /// What stays the same of its key.
    index: u32,
    adapter: Arc<Adapter>,
}

/// A window as work requests find it.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) handle: Weak<Handle<ibv_mw>>,
    pub(super) kind: MwType,
}

/// The part of the key of a window that stays the same.
pub(super) fn window_index(rkey: Rkey) -> u32 {
    rkey.0 >> 8
}

impl Mw {
    pub(crate) fn alloc(pd: &Pd, kind: MwType) -> Result<(Self, Rkey), Error> {
        let adapter = Arc::clone(&pd.adapter);
        let alloc = adapter.open.ops().alloc_mw.ok_or(Error::Unsupported("memory windows"))?;
        let number = match kind {
            MwType::One => IBV_MW_TYPE_1,
            MwType::Two => IBV_MW_TYPE_2,
        };
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
        adapter.windows().insert(index, Window { handle: Arc::downgrade(&handle), kind });
        Ok((Self { handle, index, adapter }, rkey))
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        self.adapter.windows().remove(&self.index);
        let Some(dealloc) = self.adapter.open.ops().dealloc_mw else { return };
        // Whoever posts with it holds it meanwhile.
        let _ = self.handle.end("ibv_dealloc_mw", |mw| {
            // SAFETY: a window that lives, and that nobody is in a call on.
            unsafe { dealloc(mw) }
        });
    }
}
