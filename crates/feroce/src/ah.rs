//! Address handles.

use feroce_engine::{AddrVec, AhId, Dest};
use feroce_wire::{Qkey, Qpn};

use crate::Error;
use crate::pd::Pd;

/// The way to a port, for datagrams.
///
/// ```
/// # let context = feroce::Device::at(["127.0.0.27".parse()?]).open()?;
/// let dgid = context.port().gids[0];
/// let ah = context.alloc_pd()?.create_ah(feroce::AddrVec { dgid, ..Default::default() })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ibv_ah")]
#[doc(alias = "ibv_destroy_ah")]
#[derive(Debug)]
pub struct Ah {
    id: AhId,
    pd: Pd,
}

impl Ah {
    pub(crate) fn create(pd: &Pd, av: AddrVec) -> Result<Self, Error> {
        let id = pd.context().driver().control(|s, _| s.engine.create_ah(pd.id(), av))?;
        Ok(Self { id, pd: pd.clone() })
    }

    /// The destination of a work request: a queue pair at this address.
    pub fn dest(&self, qpn: Qpn, qkey: Qkey) -> Dest {
        Dest::Ud { ah: self.id, qpn, qkey }
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        let id = self.id;
        // We made it, so it is there.
        let _ = self.pd.context().driver().control(|s, _| s.engine.destroy_ah(id));
    }
}
