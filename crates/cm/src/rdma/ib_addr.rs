//! Addresses of InfiniBand itself (`AF_IB`): a GID, a partition and a service.

use core::net::SocketAddr;

use feroce_wire::cm::{PortSpace, ServiceId};
use feroce_wire::{Gid, Pkey};

use super::gid_of;

/// Bits of a service that say the port space.
const SPACE_MASK: u64 = 0xffff_ffff_ffff_0000;
/// Bits of a service that say the port.
const PORT_MASK: u64 = 0xffff;

/// An address of a port of InfiniBand, with a service instead of a port number.
///
/// ```
/// use feroce_cm::rdma::{IbAddr, PortSpace};
/// use feroce_wire::Gid;
///
/// let addr = IbAddr::new(Gid([0xfe; 16]), PortSpace::Tcp, 7471);
/// assert_eq!((addr.service.0, addr.port()), (0x0106_1d2f, 7471));
/// assert_eq!(addr.space(PortSpace::Ib), Some(PortSpace::Tcp));
/// assert_eq!(addr.space(PortSpace::Udp), None);
/// ```
#[doc(alias = "sockaddr_ib")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IbAddr {
    /// The port; zero stands for every port.
    pub gid: Gid,
    /// The service.
    pub service: ServiceId,
    /// The bits of the service that are given; those that are not may be chosen.
    pub mask: u64,
    /// The partition.
    pub pkey: Pkey,
    /// Flow label and traffic class.
    pub flow_info: u32,
    /// The scope of the GID.
    pub scope_id: u64,
}

impl IbAddr {
    /// A port of a port space at a GID, in the default partition. Port zero is any port.
    pub fn new(gid: Gid, space: PortSpace, port: u16) -> Self {
        let mask = SPACE_MASK | if port == 0 { 0 } else { PORT_MASK };
        let service = ServiceId::ip(space, port);
        Self { gid, service, mask, pkey: Pkey::DEFAULT, flow_info: 0, scope_id: 0 }
    }

    /// The same for a GID that is written as an address of IP; any address of IPv4 is any GID.
    pub fn of_ip(space: PortSpace, addr: SocketAddr) -> Self {
        let gid = if addr.ip().is_unspecified() { Gid::ZERO } else { gid_of(addr.ip()) };
        Self::new(gid, space, addr.port())
    }

    /// The lower half of the service: its port number; zero if any will do.
    pub const fn port(&self) -> u16 {
        (self.service.0 & self.mask) as u16
    }

    /// The port space that the service belongs to, for an id of the port space `of`: an id of
    /// InfiniBand's own may also have services of TCP and UDP. `None` if the id may not have it.
    pub fn space(&self, of: PortSpace) -> Option<PortSpace> {
        let mask = self.mask & SPACE_MASK;
        let service = self.service.0 & mask;
        let is = |space: PortSpace| service == ServiceId::ip(space, 0).0 & mask;
        let may_be = match of {
            PortSpace::Ib => &[PortSpace::Ib, PortSpace::Tcp, PortSpace::Udp][..],
            PortSpace::Tcp => &[PortSpace::Tcp],
            PortSpace::Udp => &[PortSpace::Udp],
            PortSpace::Ipoib => &[],
        };
        may_be.iter().copied().find(|space| is(*space))
    }

    /// The same address, with a port of a port space as its service.
    #[must_use]
    pub fn with_port(self, space: PortSpace, port: u16) -> Self {
        Self { service: ServiceId::ip(space, port), mask: SPACE_MASK | self.mask, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_that_are_not_given_fit_every_port_space() {
        let any = IbAddr { mask: 0, ..IbAddr::new(Gid::ZERO, PortSpace::Tcp, 7) };
        assert_eq!(any.port(), 0);
        for space in [PortSpace::Ib, PortSpace::Tcp, PortSpace::Udp] {
            assert_eq!(any.space(space), Some(space));
        }
        // Linux has no services of IPoIB by GID.
        assert_eq!(any.space(PortSpace::Ipoib), None);
        let chosen = any.with_port(PortSpace::Udp, 9);
        assert_eq!((chosen.service, chosen.mask), (ServiceId(0x0111_0009), SPACE_MASK));
    }
}
