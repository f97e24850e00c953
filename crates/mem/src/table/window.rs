//! Keys that are bound and invalidated while traffic runs: memory windows, and memory regions for
//! fast registration (IBTA vol1 10.6.7 and 10.6.4).
//!
//! ```text
//!             alloc_mw                    bind_mw1: the key gets a new tag
//!  type 1  -------------> unbound <------------------------------> bound to memory
//!                                         bind_mw1 with length 0
//!
//!             alloc_mw                    bind_mw2: caller's tag
//!  type 2  -------------> unbound <------------------------------> bound to memory and a QP
//!                                         invalidate_local, invalidate_remote, unbind_qp
//!
//!             alloc_mr                    map: caller's tag
//!  fast MR -------------> unmapped <-----------------------------> mapped
//!                                         invalidate_local, invalidate_remote
//! ```
//!
//! A window counts against its memory region, which can be neither deregistered nor invalidated
//! while windows are bound to it. Binding and invalidation decide which grants are made from then
//! on; grants made before live until they are dropped, and `dereg` of the memory region waits for
//! them.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;

use feroce_wire::{Lkey, Qpn, Rkey};

use super::{Entry, Extent, Mr};
use crate::grant::Registration;
use crate::{
    Access, AccessError, BindError, DeregError, Iova, Key, MrTable, PdId, RegError, Region,
};

/// Which kind of memory window (IBTA vol1 10.6.7.2).
///
/// ```
/// # use feroce_mem::MwType;
/// assert_ne!(MwType::One, MwType::Two);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[doc(alias = "ibv_mw_type")]
pub enum MwType {
    /// Reachable through every queue pair of its protection domain.
    One,
    /// Reachable through the queue pair that bound it, in its protection domain (2B).
    Two,
}

/// What a window is bound to.
///
/// ```
/// # use feroce_mem::{Access, Bind};
/// # use feroce_wire::Lkey;
/// // 512 bytes of a memory region, for reading only.
/// let bind = Bind {
///     mr: Lkey(0x100),
///     addr: 0x7f00_0000_1000,
///     len: 512,
///     access: Access::REMOTE_READ,
///     zero_based: false,
/// };
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "ibv_mw_bind_info")]
pub struct Bind {
    /// The memory region.
    pub mr: Lkey,
    /// First address, in terms of the memory region.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// What a peer may do.
    pub access: Access,
    /// Whether a peer counts addresses from zero, rather than as the memory region does. Only
    /// for windows of type 2. [`Access::ZERO_BASED`] says the same.
    pub zero_based: bool,
}

/// A memory window.
#[derive(Debug)]
pub(crate) struct Mw {
    pub(crate) pd: PdId,
    pub(crate) kind: MwType,
    pub(crate) bound: Option<Bound>,
}

/// The memory that a bound window names.
///
/// Invariant: the entry at index `mr` is a memory region with this registration, and counts the
/// window; `(qpn, index)` of the window is in `MrTable::bound` if there is a `qpn`.
#[derive(Debug)]
pub(crate) struct Bound {
    /// Index of the memory region.
    mr: u32,
    pub(crate) registration: Arc<Registration>,
    pub(crate) extent: Extent,
    /// The only queue pair it may be reached through.
    pub(crate) qpn: Option<Qpn>,
}

impl Mw {
    pub(crate) fn extent(&self) -> Option<Extent> {
        self.bound.as_ref().map(|bound| bound.extent)
    }
}

/// Memory windows.
impl MrTable {
    /// Creates a window that is bound to nothing.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn alloc_mw(&mut self, pd: PdId, kind: MwType) -> Result<Rkey, RegError> {
        let window = Mw { pd, kind, bound: None };
        Ok(self.insert(pd, Entry::Window(window))?.into())
    }

    /// Destroys a window, bound or not.
    #[doc(alias = "ibv_dealloc_mw")]
    pub fn dealloc_mw(&mut self, mw: Rkey) -> Result<(), DeregError> {
        let key = Key::from(mw);
        let Some(Entry::Window(window)) = self.slots.get_mut(key) else {
            return Err(DeregError::Unknown);
        };
        let (pd, bound) = (window.pd, window.bound.take());
        self.release(key.index(), bound);
        self.slots.remove(key);
        self.discount_pd(pd);
        Ok(())
    }

    /// The key that a window has now. `mw` may be any key that it has had: binding changes the key.
    pub fn current_mw(&self, mw: Rkey) -> Option<Rkey> {
        let key = self.slots.current(Key::from(mw).index())?;
        matches!(self.slots.get(key), Some(Entry::Window(_))).then(|| key.into())
    }

    /// Binds a window of either type as its type demands; see [`MrTable::bind_mw1`] and
    /// [`MrTable::bind_mw2`].
    pub fn bind_mw(
        &mut self,
        pd: PdId,
        qpn: Qpn,
        mw: Rkey,
        new_rkey: Rkey,
        bind: Bind,
    ) -> Result<(), BindError> {
        match self.slots.get(mw.into()) {
            Some(Entry::Window(window)) if window.kind == MwType::Two => {
                self.bind_mw2(pd, qpn, mw, new_rkey, bind)
            }
            _ => self.bind_mw1(pd, mw, new_rkey, bind),
        }
    }

    /// Binds a window of type 1, wherever it was bound before. Its key becomes `new_rkey`, which
    /// must differ in its low 8 bits and in nothing else; the old key matches nothing any more.
    /// Length 0 only unbinds.
    #[doc(alias = "ibv_bind_mw")]
    pub fn bind_mw1(
        &mut self,
        pd: PdId,
        mw: Rkey,
        new_rkey: Rkey,
        bind: Bind,
    ) -> Result<(), BindError> {
        let (key, new) = (Key::from(mw), Key::from(new_rkey));
        self.check_window(pd, key, MwType::One)?;
        if new.index() != key.index() || new == key {
            return Err(BindError::BadNewKey);
        }
        let bound = match bind.len {
            0 => None,
            _ => Some(self.bound_to(pd, None, bind)?),
        };
        self.rebind(key, new, bound);
        Ok(())
    }

    /// Binds a window of type 2, which must be unbound, and lets the peer of `qpn` alone reach it.
    /// Its key becomes `new_rkey`, which may differ in its low 8 bits only.
    #[doc(alias = "ibv_wr_bind_mw")]
    pub fn bind_mw2(
        &mut self,
        pd: PdId,
        qpn: Qpn,
        mw: Rkey,
        new_rkey: Rkey,
        bind: Bind,
    ) -> Result<(), BindError> {
        let (key, new) = (Key::from(mw), Key::from(new_rkey));
        let window = self.check_window(pd, key, MwType::Two)?;
        if window.bound.is_some() {
            return Err(BindError::NotFree); // o10-37.2.30
        }
        if new.index() != key.index() {
            return Err(BindError::BadNewKey);
        }
        if bind.len == 0 {
            return Err(BindError::ZeroLength); // o10-37.2.40
        }
        let bound = self.bound_to(pd, Some(qpn), bind)?;
        self.rebind(key, new, Some(bound));
        Ok(())
    }

    /// Invalidates the windows of type 2 that are bound to a queue pair that goes away.
    pub fn unbind_qp(&mut self, qpn: Qpn) {
        let of_qp: Vec<u32> =
            self.bound.range((qpn, 0)..=(qpn, u32::MAX)).map(|&(_, index)| index).collect();
        for index in of_qp {
            if let Some(key) = self.slots.current(index) {
                self.rebind(key, key, None);
            }
        }
    }

    fn check_window(&self, pd: PdId, key: Key, kind: MwType) -> Result<&Mw, BindError> {
        match self.slots.get(key) {
            Some(Entry::Window(window)) if window.kind != kind => Err(BindError::WrongType),
            Some(Entry::Window(window)) if window.pd != pd => Err(BindError::WrongPd), // C10-72
            Some(Entry::Window(window)) => Ok(window),
            _ => Err(BindError::BadKey),
        }
    }

    /// Checks `bind` against its memory region.
    fn bound_to(&self, pd: PdId, qpn: Option<Qpn>, bind: Bind) -> Result<Bound, BindError> {
        let zero_based = bind.zero_based || bind.access.contains(Access::ZERO_BASED);
        if !Access::WINDOW.contains(bind.access) || (zero_based && qpn.is_none()) {
            return Err(BindError::InvalidAccess); // o10-36.2.2
        }
        let key = Key::from(bind.mr);
        let Some(Entry::Mr(mr)) = self.slots.get(key) else {
            return Err(BindError::BadMr);
        };
        let Some(whole) = &mr.extent else {
            return Err(BindError::BadMr);
        };
        if mr.pd != pd {
            return Err(BindError::WrongPd);
        }
        let writes = bind.access.intersects(Access::REMOTE_CHANGE);
        let permitted = whole.access.contains(Access::MW_BIND) // C10-73
            && (!writes || whole.access.contains(Access::LOCAL_WRITE)); // C10-74
        if !permitted {
            return Err(BindError::NotPermitted);
        }
        let len = usize::try_from(bind.len).map_err(|_| BindError::OutOfBounds)?;
        let offset = whole.locate(bind.addr, len).ok_or(BindError::OutOfBounds)?; // C10-75
        let (iova, access) = if zero_based {
            (0, bind.access | Access::ZERO_BASED)
        } else {
            (bind.addr, bind.access)
        };
        let extent = Extent { access, iova, offset, len };
        let registration = Arc::clone(&mr.registration);
        Ok(Bound { mr: key.index(), registration, extent, qpn })
    }

    /// Moves the window with `key` to the key `new` and to `bound`.
    fn rebind(&mut self, key: Key, new: Key, bound: Option<Bound>) {
        if let Some(bound) = &bound {
            if let Some(mr) = self.mr_at(bound.mr) {
                mr.windows += 1;
            }
            if let Some(qpn) = bound.qpn {
                self.bound.insert((qpn, key.index()));
            }
        }
        let Some(Entry::Window(window)) = self.slots.get_mut(key) else {
            return;
        };
        let old = mem::replace(&mut window.bound, bound);
        self.release(key.index(), old);
        self.slots.retag(new);
    }

    /// Undoes the bookkeeping of what the window at `index` was bound to.
    fn release(&mut self, index: u32, bound: Option<Bound>) {
        let Some(bound) = bound else { return };
        if let Some(mr) = self.mr_at(bound.mr) {
            mr.windows -= 1;
        }
        if let Some(qpn) = bound.qpn {
            self.bound.remove(&(qpn, index));
        }
    }

    fn mr_at(&mut self, index: u32) -> Option<&mut Mr> {
        let key = self.slots.current(index)?;
        match self.slots.get_mut(key) {
            Some(Entry::Mr(mr)) => Some(mr),
            _ => None,
        }
    }
}

/// Fast registration and invalidation.
impl MrTable {
    /// Creates a key for fast registration of parts of `region`. It names nothing yet.
    #[doc(alias = "ib_alloc_mr")]
    pub fn alloc_mr(&mut self, pd: PdId, region: Arc<Region>) -> Result<Lkey, RegError> {
        let registration = Registration::new(region);
        let mr = Mr { pd, registration, extent: None, fast: true, windows: 0 };
        Ok(self.insert(pd, Entry::Mr(mr))?.into())
    }

    /// Lets a key from [`alloc_mr`](Self::alloc_mr) name `len` bytes at `offset` of its region.
    /// The low 8 bits of `key` may be new: from now on they are part of the key.
    pub fn map(
        &mut self,
        pd: PdId,
        key: Lkey,
        offset: usize,
        len: usize,
        iova: Iova,
        access: Access,
    ) -> Result<(), BindError> {
        let new = Key::from(key);
        let mr = self.mr_at(new.index()).ok_or(BindError::BadKey)?;
        if !mr.fast {
            return Err(BindError::WrongType);
        }
        if mr.pd != pd {
            return Err(BindError::WrongPd);
        }
        if mr.extent.is_some() {
            return Err(BindError::NotFree);
        }
        let extent = Extent::new(mr.registration.region(), offset, len, iova, access);
        mr.extent = Some(extent.map_err(|error| match error {
            RegError::IovaOverflow => BindError::IovaOverflow,
            RegError::InvalidAccess => BindError::InvalidAccess,
            _ => BindError::OutOfBounds,
        })?);
        self.slots.retag(new);
        Ok(())
    }

    /// Unbinds a window of type 2, or unmaps a region for fast registration, at the request of its
    /// owner. A window that is unbound, or a region that is unmapped, stays so.
    pub fn invalidate_local(&mut self, pd: PdId, key: Rkey) -> Result<(), BindError> {
        let key = Key::from(key);
        match self.slots.get_mut(key).ok_or(BindError::BadKey)? {
            Entry::Mr(mr) if mr.pd != pd => Err(BindError::WrongPd),
            Entry::Mr(mr) if !mr.fast => Err(BindError::WrongType),
            Entry::Mr(mr) if mr.windows > 0 => Err(BindError::WindowsBound),
            Entry::Mr(mr) => {
                mr.extent = None;
                Ok(())
            }
            Entry::Window(window) if window.pd != pd => Err(BindError::WrongPd),
            Entry::Window(window) if window.kind == MwType::One => Err(BindError::WrongType),
            Entry::Window(_) => {
                self.rebind(key, key, None);
                Ok(())
            }
        }
    }

    /// Unbinds a window of type 2, or unmaps a region for fast registration, at the request of the
    /// peer of `qpn` (SEND with Invalidate). It must be bound to that queue pair, or mapped.
    pub fn invalidate_remote(&mut self, pd: PdId, qpn: Qpn, key: Rkey) -> Result<(), AccessError> {
        let key = Key::from(key);
        match self.slots.get_mut(key).ok_or(AccessError::BadKey)? {
            Entry::Mr(mr) if mr.pd != pd => Err(AccessError::WrongPd),
            Entry::Mr(mr) if !mr.fast || mr.windows > 0 => Err(AccessError::NotPermitted),
            Entry::Mr(mr) => mr.extent.take().map(|_| ()).ok_or(AccessError::BadKey),
            Entry::Window(window) if window.pd != pd => Err(AccessError::WrongPd),
            Entry::Window(window) => {
                let bound = window.bound.as_ref().ok_or(AccessError::BadKey)?;
                match bound.qpn {
                    None => Err(AccessError::NotPermitted), // type 1: o10-37.2.26
                    Some(bound) if bound != qpn => Err(AccessError::WrongQp),
                    Some(_) => {
                        self.rebind(key, key, None);
                        Ok(())
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
