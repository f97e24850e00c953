//! Memory regions and windows of the engine.

use std::sync::Arc;

use feroce_mem::{Access, Iova, Region};
use feroce_wire::{Lkey, Rkey};

use crate::Error;
use crate::backend::{Keys, PdSide};
use crate::driver::Driver;

/// A memory region.
#[derive(Debug)]
pub(crate) struct SoftMr {
    pub(super) key: Lkey,
    pub(super) driver: Arc<Driver>,
}

impl SoftMr {
    /// Changes the registration. The keys stay. Returns when no access that began before is left.
    pub(crate) fn rereg(
        &mut self,
        pd: Option<&PdSide>,
        memory: Option<&(Arc<Region>, Iova)>,
        access: Option<Access>,
    ) -> Result<Keys, Error> {
        let pd = pd.map(|pd| pd.soft().map(|pd| pd.id).ok_or(Error::OtherDevice)).transpose()?;
        let range = memory.map(|(region, iova)| (Arc::clone(region), 0, region.len(), *iova));
        let request = feroce_mem::Rereg { pd, range, access };
        let key = self.key;
        let (old, addr) = self.driver.control_until_quiet(|s, _| {
            let old = s.engine.rereg_mr(key, request);
            let addr = s.engine.query_mr(key).map_or(0, |info| info.iova);
            (old.map(|old| (old, addr)), s.engine.last_revocation(None))
        })?;
        old.wait(std::thread::yield_now);
        Ok(Keys { lkey: key, rkey: Rkey(key.0), addr })
    }

    /// Deregisters it. Returns when no access is left.
    pub(crate) fn dereg(&self) -> Result<(), Error> {
        let dereg = self.driver.control_until_quiet(|s, _| {
            (s.engine.dereg_mr(self.key), s.engine.last_revocation(None))
        })?;
        dereg.wait(std::thread::yield_now);
        Ok(())
    }
}

/// A memory window.
#[derive(Debug)]
pub(crate) struct SoftMw {
    /// Its first key: the engine finds the window by the part that binding does not change.
    pub(super) rkey: Rkey,
    pub(super) driver: Arc<Driver>,
}

impl Drop for SoftMw {
    fn drop(&mut self) {
        // The window exists, but a binding may have given it another key.
        let _ = self.driver.control_until_quiet(|s, _| {
            let now = s.engine.current_mw(self.rkey).unwrap_or(self.rkey);
            (s.engine.dealloc_mw(now), s.engine.last_revocation(None))
        });
    }
}
