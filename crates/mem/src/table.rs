//! The table of keys: registration, deregistration and queries.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use core::mem;

use feroce_wire::{Lkey, Qpn};

use crate::grant::Registration;
use crate::slots::Slots;
use crate::{Access, Dereg, DeregError, Key, PdId, RegError, Region};

mod window;

use window::Mw;
pub use window::{Bind, MwType};

/// How large a table may become.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MrLimits {
    /// Memory regions and windows together; at most 2^24 - 1 count.
    pub max_entries: u32,
}

impl Default for MrLimits {
    fn default() -> Self {
        Self { max_entries: 1 << 20 }
    }
}

/// Which address operations on a key use for the first byte.
///
/// ```
/// # use feroce_mem::Iova;
/// // Peers then name bytes by their offset, and learn nothing about our addresses.
/// let iova = Iova::ZeroBased;
/// assert_ne!(iova, Iova::default());
/// ```
#[doc(alias = "ibv_reg_mr_iova")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Iova {
    /// Its address in this process; or 0 with [`Access::ZERO_BASED`].
    #[default]
    Natural,
    /// A chosen one.
    At(u64),
    /// 0.
    ZeroBased,
}

/// What [`MrTable::rereg`] changes; what is `None` stays.
#[derive(Clone, Debug, Default)]
pub struct Rereg {
    /// The protection domain.
    pub pd: Option<PdId>,
    /// The memory: region, offset in it, length, and addresses.
    pub range: Option<(Arc<Region>, usize, usize, Iova)>,
    /// What is permitted.
    pub access: Option<Access>,
}

/// What a key names, as [`MrTable::lookup`] tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MrInfo {
    /// Protection domain.
    pub pd: PdId,
    /// Address of the first byte.
    pub iova: u64,
    /// Length in bytes; 0 for what is not mapped or bound.
    pub len: u64,
    /// What is permitted; nothing for what is not mapped or bound.
    pub access: Access,
    /// What it is.
    pub kind: MrKind,
}

/// What a key can name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MrKind {
    /// An ordinary memory region.
    Region,
    /// A memory region for fast registration.
    FastRegion,
    /// A memory window.
    Window(MwType),
}

/// A range of a region under an address, and what is permitted there.
///
/// Invariant: `offset + len` is in the region, and the last address does not pass `u64::MAX`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) access: Access,
    pub(crate) iova: u64,
    /// First byte, counted from the start of the region.
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

impl Extent {
    /// Checks everything there is to check.
    pub(crate) fn new(
        region: &Region,
        offset: usize,
        len: usize,
        iova: Iova,
        access: Access,
    ) -> Result<Self, RegError> {
        access.validate()?;
        if len > region.len() || offset > region.len() - len {
            return Err(RegError::OutOfBounds);
        }
        let (iova, access) = match iova {
            Iova::Natural if !access.contains(Access::ZERO_BASED) => {
                let iova = region.addr().checked_add(offset as u64);
                (iova.ok_or(RegError::IovaOverflow)?, access)
            }
            Iova::At(iova) => (iova, access),
            Iova::Natural | Iova::ZeroBased => (0, access | Access::ZERO_BASED),
        };
        let last = (len as u64).saturating_sub(1);
        iova.checked_add(last).ok_or(RegError::IovaOverflow)?;
        Ok(Self { access, iova, offset, len })
    }

    /// Where in the region `len` bytes at address `va` start, if they are all in the extent.
    #[inline]
    pub(crate) fn locate(&self, va: u64, len: usize) -> Option<usize> {
        let offset = usize::try_from(va.checked_sub(self.iova)?).ok()?;
        let inside = len <= self.len && offset <= self.len - len;
        inside.then(|| self.offset + offset)
    }
}

/// A memory region.
#[derive(Debug)]
pub(crate) struct Mr {
    pub(crate) pd: PdId,
    pub(crate) registration: Arc<Registration>,
    /// Always there in an ordinary region; in one for fast registration, while it is mapped.
    pub(crate) extent: Option<Extent>,
    pub(crate) fast: bool,
    /// How many windows are bound to it.
    pub(crate) windows: u32,
}

#[derive(Debug)]
pub(crate) enum Entry {
    Mr(Mr),
    Window(Mw),
}

/// All memory regions and windows of an adapter, by key.
///
/// Control calls (`reg`, `dereg`, `bind_mw1` and so on) take `&mut self`; the data path takes
/// `&self` and needs only [`grant_local`](Self::grant_local) and
/// [`grant_remote`](Self::grant_remote).
#[derive(Debug)]
pub struct MrTable {
    pub(crate) slots: Slots<Entry>,
    /// How many entries each protection domain has; none are 0.
    pub(crate) pds: BTreeMap<PdId, u32>,
    /// Type 2 windows that are bound: the queue pair and the index of the window.
    pub(crate) bound: BTreeSet<(Qpn, u32)>,
}

impl MrTable {
    /// An empty table. Keys follow from `seed`.
    pub fn new(seed: u64, limits: MrLimits) -> Self {
        Self {
            slots: Slots::new(seed, limits.max_entries),
            pds: BTreeMap::new(),
            bound: BTreeSet::new(),
        }
    }

    /// Registers `len` bytes at `offset` of `region`. The remote key is the same number as the
    /// local key returned.
    #[doc(alias = "ibv_reg_mr")]
    pub fn reg(
        &mut self,
        pd: PdId,
        region: Arc<Region>,
        offset: usize,
        len: usize,
        iova: Iova,
        access: Access,
    ) -> Result<Lkey, RegError> {
        let extent = Some(Extent::new(&region, offset, len, iova, access)?);
        let registration = Registration::new(region);
        let mr = Mr { pd, registration, extent, fast: false, windows: 0 };
        Ok(self.insert(pd, Entry::Mr(mr))?.into())
    }

    /// Registers what `key` names in `other`, under the same key. Grants of one table do not hold
    /// back deregistration in the other.
    pub fn copy_reg(&mut self, other: &Self, key: Lkey) -> Result<(), RegError> {
        let Some(Entry::Mr(mr)) = other.slots.get(key.into()) else {
            return Err(RegError::UnknownKey);
        };
        if mr.fast {
            return Err(RegError::WrongKind);
        }
        let registration = Registration::new(Arc::clone(mr.registration.region()));
        let copy = Mr { pd: mr.pd, registration, extent: mr.extent, fast: false, windows: 0 };
        let (pd, entry) = (mr.pd, Entry::Mr(copy));
        self.slots.insert_as(key.into(), entry).ok_or(RegError::TableFull)?;
        self.count_pd(pd);
        Ok(())
    }

    /// Changes a registration. The key stays; grants made before do not follow the change, and
    /// are gone when what is returned is quiet. On an error nothing has changed.
    #[doc(alias = "ibv_rereg_mr")]
    pub fn rereg(&mut self, key: Lkey, change: Rereg) -> Result<Dereg, RegError> {
        let Some(Entry::Mr(mr)) = self.slots.get_mut(key.into()) else {
            return Err(RegError::UnknownKey);
        };
        let (false, Some(old)) = (mr.fast, mr.extent) else {
            return Err(RegError::WrongKind);
        };
        if mr.windows > 0 {
            return Err(RegError::Busy);
        }
        // Whether addresses count from zero goes with the range, not with the rights.
        let zero_based = old.access & Access::ZERO_BASED;
        let access = change.access.unwrap_or(old.access - zero_based);
        let (region, extent) = match change.range {
            Some((region, offset, len, iova)) => {
                let extent = Extent::new(&region, offset, len, iova, access)?;
                (region, extent)
            }
            None => {
                access.validate()?;
                let access = (access - Access::ZERO_BASED) | zero_based;
                let region = Arc::clone(mr.registration.region());
                (region, Extent { access, ..old })
            }
        };
        let registration = mem::replace(&mut mr.registration, Registration::new(region));
        mr.extent = Some(extent);
        if let Some(pd) = change.pd {
            let old = mem::replace(&mut mr.pd, pd);
            self.count_pd(pd);
            self.discount_pd(old);
        }
        Ok(Dereg::new(registration))
    }

    /// Ends a registration. The key stops matching at once; the memory may be given back when
    /// what is returned is quiet.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn dereg(&mut self, key: Lkey) -> Result<Dereg, DeregError> {
        match self.slots.get(key.into()) {
            Some(Entry::Mr(mr)) if mr.windows == 0 => {}
            Some(Entry::Mr(_)) => return Err(DeregError::WindowsBound),
            _ => return Err(DeregError::Unknown),
        }
        let Some(Entry::Mr(mr)) = self.slots.remove(key.into()) else {
            return Err(DeregError::Unknown);
        };
        self.discount_pd(mr.pd);
        Ok(Dereg::new(mr.registration))
    }

    /// What `key` names, if anything.
    pub fn lookup(&self, key: impl Into<Key>) -> Option<MrInfo> {
        let (pd, extent, kind) = match self.slots.get(key.into())? {
            Entry::Mr(mr) if mr.fast => (mr.pd, mr.extent, MrKind::FastRegion),
            Entry::Mr(mr) => (mr.pd, mr.extent, MrKind::Region),
            Entry::Window(mw) => (mw.pd, mw.extent(), MrKind::Window(mw.kind)),
        };
        let (iova, len, access) = extent.map_or((0, 0, Access::empty()), |extent| {
            (extent.iova, extent.len as u64, extent.access)
        });
        Some(MrInfo { pd, iova, len, access, kind })
    }

    /// How many memory regions and windows there are.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// How many memory regions there are, and their bytes.
    pub fn regions(&self) -> (usize, u64) {
        self.slots.values().fold((0, 0), |(count, bytes), entry| match entry {
            Entry::Mr(mr) => (count + 1, bytes + mr.extent.map_or(0, |extent| extent.len as u64)),
            Entry::Window(_) => (count, bytes),
        })
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a memory region or window belongs to `pd`, so that it cannot go away.
    pub fn pd_in_use(&self, pd: PdId) -> bool {
        self.pds.contains_key(&pd)
    }

    pub(crate) fn insert(&mut self, pd: PdId, entry: Entry) -> Result<Key, RegError> {
        let key = self.slots.insert(entry).ok_or(RegError::TableFull)?;
        self.count_pd(pd);
        Ok(key)
    }

    fn count_pd(&mut self, pd: PdId) {
        *self.pds.entry(pd).or_default() += 1;
    }

    pub(crate) fn discount_pd(&mut self, pd: PdId) {
        if let Some(count) = self.pds.get_mut(&pd) {
            *count -= 1;
            if *count == 0 {
                self.pds.remove(&pd);
            }
        }
    }
}

#[cfg(test)]
mod tests;
