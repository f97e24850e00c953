//! Address handles.

use feroce_engine::{AddrVec, Dest};
use feroce_wire::{Qkey, Qpn};

use crate::Error;
use crate::backend::{AhSide, either, map_either};
use crate::pd::Pd;

/// An address handle: the path to a port, for datagrams.
///
/// ```
/// # let context = feroce::Device::at(["127.0.0.27".parse()?]).open()?;
/// let dgid = context.port().gids[0].gid;
/// let ah = context.alloc_pd()?.create_ah(feroce::AddrVec { dgid, ..Default::default() })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ibv_ah")]
#[doc(alias = "ibv_destroy_ah")]
#[derive(Debug)]
pub struct Ah {
    side: AhSide,
    /// Keeps the domain.
    _pd: Pd,
}

impl Pd {
    /// Makes an address handle.
    #[doc(alias = "ibv_create_ah")]
    pub fn create_ah(&self, av: AddrVec) -> Result<Ah, Error> {
        Ah::create(self, av)
    }
}

impl Ah {
    pub(crate) fn create(pd: &Pd, av: AddrVec) -> Result<Self, Error> {
        let side = map_either!(pd.side(), pd => pd.create_ah(&av)?);
        Ok(Self { side, _pd: pd.clone() })
    }

    /// The destination of a work request: a queue pair at this address.
    pub fn dest(&self, qpn: Qpn, qkey: Qkey) -> Dest {
        let ah = either!(&self.side, ah => ah.id());
        Dest::Ud { ah, qpn, qkey }
    }
}
