//! Claims of services: which of the processes that share an address receives the requests for a
//! service.

use std::io;
use std::sync::Arc;

use feroce_cm::Accepts;
use feroce_cm::rdma::BindError;
use feroce_local::Member;
use feroce_wire::Gid;
use feroce_wire::cm::ServiceId;

use crate::Error;
use crate::cm::CmError;
use crate::context::Context;

/// While it lives, requests for a service at an address go to this process and to no other.
#[derive(Debug)]
pub(super) struct Claim {
    member: Arc<Member>,
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
        // A device that does not share its addresses needs no claim.
        let Some(member) = context.soft().ok().and_then(|soft| soft.member.as_ref()) else {
            return Ok(Vec::new());
        };
        let own = context.port().gids.into_iter().map(|entry| entry.gid);
        let addresses = own.filter(|gid| !gid.is_zero() && accepts.takes(*gid));
        let claim = |address| match member.claim_service(address, service.0) {
            Ok(()) => Ok(Self { member: Arc::clone(member), address, service }),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
                Err(CmError::Port(BindError::InUse).into())
            }
            Err(e) => Err(e.into()),
        };
        addresses.map(claim).collect()
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.member.release_service(self.address, self.service.0);
    }
}
