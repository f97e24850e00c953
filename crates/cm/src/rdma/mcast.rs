//! Multicast addresses.

use core::net::IpAddr;

use feroce_wire::{Gid, Qpn};

use super::gid_of;

/// Where datagrams to a group go.
pub const MULTICAST_QPN: Qpn = Qpn::MULTICAST;

/// The group of an IP multicast address on RoCEv2: the address itself, mapped into a GID like any
/// other, as Linux does. `None` if it is not a multicast address.
pub fn mgid(ip: IpAddr) -> Option<Gid> {
    ip.is_multicast().then(|| gid_of(ip))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_their_addresses() {
        let v4 = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 1, 1]);
        assert_eq!(mgid([239, 1, 1, 1].into()), Some(v4));
        let v6 = [0xff0e, 0, 0, 0, 0, 0, 0, 7];
        assert_eq!(mgid(v6.into()).map(|gid| gid.0[..2] == [0xff, 0x0e]), Some(true));
        assert_eq!(mgid([10, 1, 1, 1].into()), None);
    }
}
