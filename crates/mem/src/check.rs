//! The data path: from a key and a range to a [`Grant`], or the reason why not.

use alloc::sync::Arc;
use core::hint::cold_path;

use feroce_wire::{Lkey, Qpn, Rkey};

use crate::grant::Registration;
use crate::table::{Entry, Extent};
use crate::{Access, AccessError, Grant, Loan, MrTable, PdId, Right};

/// What a key reaches, for code that lets another process access it and that ends the access when
/// the right ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reach {
    /// Address of the first byte, as operations on the key count.
    pub iova: u64,
    /// Where that byte is in this process.
    pub at: u64,
    /// Length in bytes.
    pub len: usize,
    /// What is permitted.
    pub access: Access,
}

/// What a local key names, while the table cannot change: the part of the checks that is the same
/// for every range.
#[derive(Clone, Copy, Debug)]
pub struct LocalMr<'a> {
    registration: &'a Arc<Registration>,
    extent: &'a Extent,
}

impl<'a> LocalMr<'a> {
    /// As [`MrTable::lend_local`], with the key that names this.
    #[inline]
    pub fn lend<R: Right>(&self, addr: u64, len: u32) -> Result<Loan<'a, R>, AccessError> {
        if len == 0 {
            return Loan::nothing();
        }
        lend(self.registration, self.extent, R::LOCAL, addr, len.into())
    }
}

impl MrTable {
    /// A right of the local adapter to `len` bytes at `addr`, for an element of a scatter or
    /// gather list (IBTA vol1 10.6.3). With `len` 0 the result is empty and nothing is checked,
    /// except that an atomic right is never empty.
    #[inline]
    pub fn grant_local<R: Right>(
        &self,
        pd: PdId,
        lkey: Lkey,
        addr: u64,
        len: u32,
    ) -> Result<Grant<R>, AccessError> {
        self.lend_local(pd, lkey, addr, len).map(Loan::keep)
    }

    /// As [`MrTable::grant_local`], for use at once.
    #[inline]
    pub fn lend_local<R: Right>(
        &self,
        pd: PdId,
        lkey: Lkey,
        addr: u64,
        len: u32,
    ) -> Result<Loan<'_, R>, AccessError> {
        if len == 0 {
            return Loan::nothing();
        }
        self.local(pd, lkey)?.lend(addr, len)
    }

    /// What a local key names, for an adapter that uses it several times in a row.
    #[inline]
    pub fn local(&self, pd: PdId, lkey: Lkey) -> Result<LocalMr<'_>, AccessError> {
        let Some(Entry::Mr(mr)) = self.slots.get(lkey.into()) else {
            cold_path();
            return Err(AccessError::BadKey);
        };
        let Some(extent) = &mr.extent else {
            cold_path();
            return Err(AccessError::BadKey);
        };
        if mr.pd != pd {
            cold_path();
            return Err(AccessError::WrongPd);
        }
        Ok(LocalMr { registration: &mr.registration, extent })
    }

    /// A right of the peer of queue pair `qpn` to `len` bytes at `va` (IBTA vol1 9.4.1 and
    /// 10.6.3). With `len` 0 the result is empty and nothing is checked, not even the key
    /// (C9-88), except that an atomic right is never empty.
    #[inline]
    pub fn grant_remote<R: Right>(
        &self,
        pd: PdId,
        qpn: Qpn,
        rkey: Rkey,
        va: u64,
        len: u64,
    ) -> Result<Grant<R>, AccessError> {
        self.lend_remote(pd, qpn, rkey, va, len).map(Loan::keep)
    }

    /// As [`MrTable::grant_remote`], for use at once.
    #[inline]
    pub fn lend_remote<R: Right>(
        &self,
        pd: PdId,
        qpn: Qpn,
        rkey: Rkey,
        va: u64,
        len: u64,
    ) -> Result<Loan<'_, R>, AccessError> {
        if len == 0 {
            return Loan::nothing();
        }
        let (registration, extent) = self.remote(pd, qpn, rkey)?;
        lend(registration, extent, R::REMOTE, va, len)
    }

    /// Whether the peer of queue pair `qpn` may FLUSH `len` bytes at `va` to `levels`, one or both
    /// of [`Access::FLUSH_GLOBAL`] and [`Access::FLUSH_PERSISTENT`]. With `len` 0 the range is not
    /// checked, but the key is: FLUSH of a whole memory region names no range.
    pub fn check_flush(
        &self,
        pd: PdId,
        qpn: Qpn,
        rkey: Rkey,
        va: u64,
        len: u64,
        levels: Access,
    ) -> Result<(), AccessError> {
        let (_, extent) = self.remote(pd, qpn, rkey)?;
        if !extent.access.contains(levels) {
            return Err(AccessError::NotPermitted);
        }
        if len > 0 {
            locate(extent, va, len)?;
        }
        Ok(())
    }

    /// All that `rkey` names, if it is an ordinary memory region: what it stands for changes only
    /// when the registration does.
    pub fn reach(&self, pd: PdId, rkey: Rkey) -> Option<Reach> {
        let Some(Entry::Mr(mr)) = self.slots.get(rkey.into()) else { return None };
        let extent = mr.extent.filter(|_| mr.pd == pd && !mr.fast)?;
        let at = mr.registration.region().place()?.checked_add(extent.offset as u64)?;
        Some(Reach { iova: extent.iova, at, len: extent.len, access: extent.access })
    }

    /// What `rkey` names for the peer of `qpn`.
    #[inline]
    fn remote(
        &self,
        pd: PdId,
        qpn: Qpn,
        rkey: Rkey,
    ) -> Result<(&Arc<Registration>, &Extent), AccessError> {
        let bad_key = || {
            cold_path();
            AccessError::BadKey
        };
        let entry = self.slots.get(rkey.into()).ok_or_else(bad_key)?;
        let (owner, only_qp, registration, extent) = match entry {
            Entry::Mr(mr) => {
                let extent = mr.extent.as_ref().ok_or_else(bad_key)?;
                (mr.pd, None, &mr.registration, extent)
            }
            Entry::Window(window) => {
                let bound = window.bound.as_ref().ok_or_else(bad_key)?;
                (window.pd, bound.qpn, &bound.registration, &bound.extent)
            }
        };
        if owner != pd {
            cold_path();
            return Err(AccessError::WrongPd);
        }
        if only_qp.is_some_and(|only| only != qpn) {
            cold_path();
            return Err(AccessError::WrongQp);
        }
        Ok((registration, extent))
    }
}

#[inline]
fn lend<'a, R: Right>(
    registration: &'a Arc<Registration>,
    extent: &Extent,
    need: Access,
    va: u64,
    len: u64,
) -> Result<Loan<'a, R>, AccessError> {
    if !extent.access.contains(need) {
        cold_path();
        return Err(AccessError::NotPermitted);
    }
    let (start, len) = locate(extent, va, len)?;
    Loan::new(registration, start, len)
}

/// The range in the region that `len` bytes at `va` are.
#[inline]
fn locate(extent: &Extent, va: u64, len: u64) -> Result<(usize, usize), AccessError> {
    let outside = || {
        cold_path();
        AccessError::OutOfBounds
    };
    let len = usize::try_from(len).map_err(|_| outside())?;
    let start = extent.locate(va, len).ok_or_else(outside)?;
    Ok((start, len))
}

#[cfg(test)]
mod tests;
