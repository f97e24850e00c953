//! Multicast addresses.

use core::net::IpAddr;

use feroce_train::Framing;
use feroce_wire::{Gid, Qpn};

use super::gid_of;

/// Where datagrams to a group go.
pub const MULTICAST_QPN: Qpn = Qpn::MULTICAST;

/// The group of an IP multicast address, as Linux has it: the address itself, mapped into a GID
/// like any other; on RoCEv1 the GID of an IPv4 group begins like that of an IPv6 group. `None` if
/// it is not a multicast address.
pub fn mgid(ip: IpAddr, framing: Framing) -> Option<Gid> {
    let mut gid = ip.is_multicast().then(|| gid_of(ip))?;
    if framing == Framing::RoceV1 && gid.as_ipv4().is_some() {
        [gid.0[0], gid.0[1]] = [0xff, 0x0e];
    }
    Some(gid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_their_addresses() {
        let v4 = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 1, 1]);
        let (v1, v2) = (Framing::RoceV1, Framing::RoceV2);
        assert_eq!(mgid([239, 1, 1, 1].into(), v2), Some(v4));
        let of_v1 = Gid([0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 1, 1]);
        assert_eq!(mgid([239, 1, 1, 1].into(), v1), Some(of_v1));
        let v6 = [0xff0e, 0, 0, 0, 0, 0, 0, 7];
        for framing in [v1, v2] {
            assert_eq!(mgid(v6.into(), framing).map(|gid| gid.0[..2] == [0xff, 0x0e]), Some(true));
            assert_eq!(mgid([10, 1, 1, 1].into(), framing), None);
        }
    }
}
