//! Where packets go and what a link can carry.

use feroce_wire::{Gid, Lid, Qpn};

/// What a port is attached to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum LinkLayer {
    /// Ethernet: the port has GIDs and no LID, and every packet carries GIDs.
    #[default]
    #[doc(alias = "IBV_LINK_LAYER_ETHERNET")]
    Ethernet,
    /// InfiniBand: the subnet manager gives the port a LID.
    #[doc(alias = "IBV_LINK_LAYER_INFINIBAND")]
    InfiniBand,
}

/// How packets are framed below the BTH. Each entry of a GID table has one: its GID type.
#[doc(alias = "ibv_gid_type")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Framing {
    /// RoCEv2: UDP port 4791 over IPv4 or IPv6, by the family of the GIDs.
    #[default]
    RoceV2,
    /// RoCEv1: Ethertype 0x8915 and a GRH.
    RoceV1,
    /// InfiniBand: LRH, and a GRH where the path is global.
    InfiniBand,
}

impl Framing {
    /// The link layer that carries packets of this framing.
    #[inline]
    pub const fn link_layer(self) -> LinkLayer {
        match self {
            Self::RoceV2 | Self::RoceV1 => LinkLayer::Ethernet,
            Self::InfiniBand => LinkLayer::InfiniBand,
        }
    }
}

/// Address of a port or of a multicast group, as the headers of a packet name it.
///
/// RoCE names a port by its GID, into which IPv4 addresses are mapped; the LID is zero. InfiniBand
/// names it by its LID, and by its GID too if the packet has a GRH; the GID is zero otherwise. Two
/// addresses of the same framing are therefore equal exactly if the headers agree.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct PortAddr {
    /// Global identifier; zero where an InfiniBand packet has no GRH.
    pub gid: Gid,
    /// Local identifier; zero on RoCE.
    pub lid: Lid,
}

/// An address on RoCE.
impl From<Gid> for PortAddr {
    #[inline]
    fn from(gid: Gid) -> Self {
        Self { gid, lid: Lid(0) }
    }
}

/// An entry of a port's GID table.
#[doc(alias = "ibv_gid_entry")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct GidEntry {
    /// The GID; zero in an empty entry.
    pub gid: Gid,
    /// How packets are framed that have this GID as their source.
    pub framing: Framing,
}

impl GidEntry {
    /// An entry whose packets are RoCEv2.
    #[inline]
    pub const fn roce_v2(gid: Gid) -> Self {
        Self { gid, framing: Framing::RoceV2 }
    }

    /// An entry whose packets are RoCEv1.
    #[inline]
    pub const fn roce_v1(gid: Gid) -> Self {
        Self { gid, framing: Framing::RoceV1 }
    }

    /// Whether the entry has no address.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.gid.is_zero()
    }
}

/// Addressing of outgoing packets: everything a link needs to build the headers below the BTH.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Path {
    /// Address of this port.
    pub src: PortAddr,
    /// Address of the peer or of a multicast group.
    pub dst: PortAddr,
    /// How the packets are framed.
    pub framing: Framing,
    /// Flow label (20 bits).
    pub flow_label: u32,
    /// Differs between flows (20 bits), so that carriers and switches can spread them over
    /// equal-cost paths: the flow label, or [`Path::entropy_of`] the queue pairs.
    pub entropy: u32,
    /// DSCP in the upper six bits; the link sets the ECN bits.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// Service level on InfiniBand, VLAN priority on RoCEv1; RoCEv2 has no use for it.
    pub sl: u8,
}

impl Path {
    /// Entropy for the packets between two queue pairs whose path has no flow label: the same in
    /// both directions, and as Linux computes it.
    #[inline]
    pub fn entropy_of(a: Qpn, b: Qpn) -> u32 {
        let product = u64::from(a.get()) * u64::from(b.get());
        let folded = product ^ (product >> 20) ^ (product >> 40);
        (folded & 0xf_ffff) as u32
    }

    /// The UDP source port of RoCEv2 packets with this entropy, as Linux derives it: a port of the
    /// upper quarter.
    #[inline]
    pub fn udp_sport(&self) -> u16 {
        0xc000 | (((self.entropy & 0x3fff) ^ ((self.entropy >> 14) & 0x3f)) as u16)
    }

    /// Whether the path names a destination: by GID on RoCE, by LID on InfiniBand.
    #[inline]
    pub fn has_destination(&self) -> bool {
        match self.framing.link_layer() {
            LinkLayer::Ethernet => !self.dst.gid.is_zero(),
            LinkLayer::InfiniBand => self.dst.lid != Lid(0),
        }
    }

    /// Whether the destination is one port, not a multicast group.
    #[inline]
    pub fn is_unicast(&self) -> bool {
        let is_multicast = self.dst.gid.is_multicast() || self.dst.lid.is_multicast();
        self.has_destination() && !is_multicast
    }
}

/// The ECN code point of an IP header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Ecn {
    /// Not ECN-capable.
    #[default]
    NotCapable,
    /// ECN-capable, ECT(0) or ECT(1).
    Capable,
    /// Congestion was experienced on the way.
    Congested,
}

impl Ecn {
    /// From the two low bits of the traffic class.
    #[inline]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::NotCapable,
            3 => Self::Congested,
            _ => Self::Capable,
        }
    }

    /// The two low bits of the traffic class; ECT(0) if the sender is capable.
    #[inline]
    pub const fn to_bits(self) -> u8 {
        match self {
            Self::NotCapable => 0,
            Self::Capable => 2,
            Self::Congested => 3,
        }
    }
}

/// What a link can take in one train.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkCaps {
    /// Most packets in a train; at least 1.
    pub max_packets: u32,
    /// Most bytes in a train, counted from the BTH to the end of the padding of each packet. A
    /// train of one packet may exceed it.
    pub max_bytes: u32,
}

impl LinkCaps {
    /// One packet at a time.
    pub const SINGLE: Self = Self { max_packets: 1, max_bytes: 0 };

    /// How many packets of `packet_len` bytes fit a train.
    #[inline]
    pub fn packets_of(&self, packet_len: usize) -> u32 {
        let by_bytes = self.max_bytes as usize / packet_len.max(1);
        self.max_packets.min(u32::try_from(by_bytes).unwrap_or(u32::MAX)).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_differ_between_flows_and_not_between_directions() {
        let (a, b) = (Qpn::new(0x1234), Qpn::new(0x00ab_cdef));
        assert_eq!(Path::entropy_of(a, b), Path::entropy_of(b, a));
        assert_ne!(Path::entropy_of(a, b), Path::entropy_of(a, Qpn::new(0x00ab_cdee)));
        let port = |entropy| Path { entropy, ..Path::default() }.udp_sport();
        assert_eq!(port(Path::entropy_of(Qpn::new(0x11), Qpn::new(0x12))), 0xc000 | (0x11 * 0x12));
        assert_eq!(port(0x36922), 0xc000 | (0x2922 ^ 0xd));
        assert_eq!(port(u32::MAX), 0xc000 | (0x3fff ^ 0x3f));
    }
}
