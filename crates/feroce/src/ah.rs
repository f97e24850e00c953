//! Address handles.

use feroce_backend_rdma_core as rdma_core;
use feroce_engine::{AddrVec, AhId, Dest};
use feroce_wire::{Qkey, Qpn};

use crate::Error;
use crate::context::Adapter;
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
    side: Side,
    pd: Pd,
}

#[derive(Debug)]
enum Side {
    Soft(AhId),
    Hard(rdma_core::Ah),
}

impl Ah {
    pub(crate) fn create(pd: &Pd, av: AddrVec) -> Result<Self, Error> {
        let side = match pd.hard() {
            None => {
                let driver = pd.context().driver()?;
                Side::Soft(driver.control(|s, _| s.engine.create_ah(pd.id(), av))?)
            }
            Some(hard) => Side::Hard(rdma_core::Ah::create(hard, &av)?),
        };
        Ok(Self { side, pd: pd.clone() })
    }

    /// The destination of a work request: a queue pair at this address.
    pub fn dest(&self, qpn: Qpn, qkey: Qkey) -> Dest {
        let ah = match &self.side {
            Side::Soft(id) => *id,
            Side::Hard(hard) => hard.id(),
        };
        Dest::Ud { ah, qpn, qkey }
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        // The other kind ends by itself.
        if let (Side::Soft(id), Adapter::Soft(soft)) = (&self.side, self.pd.context().adapter()) {
            // We made it, so it is there.
            let _ = soft.driver.control(|s, _| s.engine.destroy_ah(*id));
        }
    }
}
