//! The 40 bytes in front of a received datagram.
//!
//! A link may not be able to see the network header (a UDP socket cannot), so the engine rebuilds
//! it from what the link knows. An IPv6 header has the layout of a GRH; an IPv4 header is in the
//! last 20 bytes, and the 20 bytes before it are zero (annex A17).

use feroce_train::{Framing, RxMeta};
use feroce_wire::{Grh, Ipv4, Ipv6};

/// Length of the header area.
pub(crate) const GRH_LEN: usize = Grh::LEN;

/// Bytes of a RoCEv2 packet besides the transport packet: UDP header and ICRC.
const UDP_AND_ICRC: u16 = 12;

/// The header area for a transport packet of `len` bytes; zeros if it has no GRH.
pub(crate) fn header_area(meta: &RxMeta, len: usize) -> [u8; GRH_LEN] {
    // No packet of a network is that long; one of another kind of link may claim to be.
    let len = u16::try_from(len).unwrap_or(u16::MAX).min(u16::MAX - UDP_AND_ICRC);
    let mut area = [0; GRH_LEN];
    if !meta.has_grh() {
        return area;
    }
    let dscp = meta.traffic_class >> 2;
    let (src, dst) = (meta.src.gid, meta.dst.gid);
    match (meta.framing, src.as_ipv4(), dst.as_ipv4()) {
        (Framing::RoceV2, Some(src), Some(dst)) => {
            let ip = Ipv4 { dscp, ttl: meta.hop_limit, ..Ipv4::udp(src, dst, len + UDP_AND_ICRC) };
            // Twenty bytes are there, so this cannot fail.
            let _ = ip.emit(&mut area[Grh::IPV4_AT..]);
        }
        (Framing::RoceV2, ..) => {
            let ip = Ipv6::udp(src.0, dst.0, len + UDP_AND_ICRC);
            Ipv6 { dscp, hop_limit: meta.hop_limit, ..ip }.emit(&mut area);
        }
        (Framing::RoceV1 | Framing::InfiniBand, ..) => {
            let grh = Grh::new(src, dst, len + 4);
            let (traffic_class, hop_limit) = (meta.traffic_class, meta.hop_limit);
            Grh { traffic_class, hop_limit, ..grh }.emit(&mut area);
        }
    }
    area
}
