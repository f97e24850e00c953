//! Claims of services: which of the processes that share an address receives the requests for a
//! service.

use std::io;
use std::sync::Arc;

use feroce_cm::Accepts;
use feroce_cm::rdma::BindError;
use feroce_local::Registry;
use feroce_train::Framing;
use feroce_wire::Gid;
use feroce_wire::cm::ServiceId;

use crate::Error;
use crate::cm::CmError;
use crate::context::Context;
use crate::fabric_port::FabricClaim;

/// While it lives, requests for a service at an address go to this process and to no other.
#[derive(Debug)]
#[expect(dead_code, reason = "claims are held until they are dropped, and not read")]
pub(super) enum Claim {
    /// Among the processes of the host.
    Host(HostClaim),
    /// Among those of a host of a fabric.
    Fabric(FabricClaim),
}

/// A claim in the registry of the host.
#[derive(Debug)]
pub(super) struct HostClaim {
    registry: Arc<Registry>,
    address: Gid,
    service: ServiceId,
}

impl Claim {
    /// Claims a service at every address of a device that an id listens at. If one of them is
    /// taken, none is claimed.
    pub(super) fn all(
        context: &Context,
        service: ServiceId,
        accepts: Accepts,
    ) -> Result<Vec<Self>, Error> {
        let Ok(soft) = context.soft() else { return Ok(Vec::new()) };
        let explained = |e: io::Error| match e.kind() {
            io::ErrorKind::AddrInUse => CmError::Port(BindError::InUse).into(),
            _ => Error::from(e),
        };
        if let Some(fabric) = soft.fabric.as_ref().filter(|fabric| fabric.subnet().is_some()) {
            // A port of InfiniBand is named by its LID, so there is one claim for all GIDs.
            let claim = fabric.claim(Gid::ZERO, service).map_err(explained)?;
            return Ok(Vec::from([Self::Fabric(claim)]));
        }
        // An address has one claim, whichever framing its requests have.
        let gids = context.port().gids.into_iter();
        let own = gids.filter(|entry| entry.framing == Framing::RoceV2).map(|entry| entry.gid);
        let addresses = own.filter(|gid| !gid.is_zero() && accepts.takes(*gid));
        let claim = |address| match (&soft.registry, &soft.fabric) {
            (Some(registry), _) => {
                registry.claim_service(address, service.0)?;
                let registry = Arc::clone(registry);
                Ok(Some(Self::Host(HostClaim { registry, address, service })))
            }
            (None, Some(fabric)) => fabric.claim(address, service).map(Self::Fabric).map(Some),
            // A device that does not share its addresses needs no claim.
            (None, None) => Ok(None),
        };
        addresses.filter_map(|address| claim(address).map_err(explained).transpose()).collect()
    }
}

impl Drop for HostClaim {
    fn drop(&mut self) {
        self.registry.release_service(self.address, self.service.0);
    }
}
