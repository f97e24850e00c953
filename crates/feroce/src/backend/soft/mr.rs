//! Memory regions and windows of the engine.

use std::sync::Arc;

use feroce_mem::{Access, DeregError, Iova, RegError, Region};
use feroce_wire::{Lkey, Rkey};

use crate::Error;
use crate::backend::{Keys, PdSide};
use crate::driver::{Driver, Shards};

/// A memory region.
#[derive(Debug)]
pub(crate) struct SoftMr {
    pub(super) key: Lkey,
    pub(super) shards: Arc<Shards>,
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
        let (old, addr) = self.shards.control_until_quiet(|s, others| {
            let mut old = vec![s.engine.rereg_mr(key, request.clone())?];
            for other in others.iter_mut() {
                // A device with several shards has no windows, so no shard refuses what the first
                // has done, and there is nothing to allocate.
                old.push(other.engine.rereg_mr(key, request.clone())?);
            }
            let addr = s.engine.query_mr(key).map_or(0, |info| info.iova);
            Ok::<_, RegError>((old, addr))
        })?;
        old.into_iter().for_each(|old| old.wait(std::thread::yield_now));
        Ok(Keys { lkey: key, rkey: Rkey(key.0), addr })
    }

    /// Deregisters it. Returns when no access is left.
    pub(crate) fn dereg(&self) -> Result<(), Error> {
        let ended = self.shards.control_until_quiet(|s, others| {
            let first = s.engine.dereg_mr(self.key)?;
            // The others have no windows either, so they do not refuse.
            let others = others.iter_mut().map(|other| other.engine.dereg_mr(self.key));
            std::iter::once(Ok(first)).chain(others).collect::<Result<Vec<_>, DeregError>>()
        })?;
        ended.into_iter().for_each(|dereg| dereg.wait(std::thread::yield_now));
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
