//! Registered memory.

use std::sync::Arc;

use feroce_engine::{Engine, Remote, Sge};
use feroce_mem::{Access, Iova, PdId, Region};
use feroce_wire::{Lkey, Rkey};

/// A registered part of a region.
#[derive(Clone, Copy, Debug)]
pub struct Mr {
    /// Where it starts in the region.
    pub at: usize,
    /// Its length.
    pub len: usize,
    /// The address of its first byte in work requests.
    pub iova: u64,
    /// Its local and remote key.
    pub key: u32,
    /// What was granted.
    pub access: Access,
}

impl Mr {
    /// Registers `len` bytes at offset `at` of the region, at address `iova`, or from 0 on if
    /// there is none.
    pub fn register(
        engine: &mut Engine,
        pd: PdId,
        region: &Arc<Region>,
        (at, len): (usize, usize),
        iova: Option<u64>,
        access: Access,
    ) -> Self {
        let kind = iova.map_or(Iova::ZeroBased, Iova::At);
        let key = engine.reg_mr(pd, Arc::clone(region), at, len, kind, access);
        let key = key.expect("the range is inside the region");
        Self { at, len, iova: iova.unwrap_or(0), key: key.0, access }
    }

    /// Its key for local use.
    pub fn lkey(&self) -> Lkey {
        Lkey(self.key)
    }

    /// Its key for a peer.
    pub fn rkey(&self) -> Rkey {
        Rkey(self.key)
    }

    /// A scatter/gather element for `len` bytes at offset `at` of the region.
    pub fn sge(&self, at: usize, len: usize) -> Sge {
        Sge { addr: self.va(at), len: len as u32, lkey: self.lkey() }
    }

    /// Offset `at` of the region, as a peer names it.
    pub fn remote(&self, at: usize) -> Remote {
        Remote { addr: self.va(at), rkey: self.rkey() }
    }

    /// The offset in the region that an address means.
    pub fn offset(&self, va: u64) -> usize {
        self.at + va.wrapping_sub(self.iova) as usize
    }

    fn va(&self, at: usize) -> u64 {
        self.iova.wrapping_add((at - self.at) as u64)
    }
}
