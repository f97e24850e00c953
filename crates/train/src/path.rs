//! Where packets go and what a link can carry.

use feroce_wire::{Gid, Lid};

/// How the packets of a link are framed below the BTH.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Framing {
    /// RoCEv2: UDP port 4791 over IPv4 or IPv6, by the family of the GIDs.
    #[default]
    RoceV2,
    /// RoCEv1: Ethertype 0x8915 and a GRH.
    RoceV1,
    /// InfiniBand: LRH, and a GRH where the path is global.
    InfiniBand,
}

/// Addressing of outgoing packets: everything a link needs to build the headers below the BTH.
///
/// Addresses are GIDs whatever the link; IPv4 addresses are mapped into them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Path {
    /// Address of this port.
    pub src: Gid,
    /// Address of the peer or of a multicast group.
    pub dst: Gid,
    /// Flow label (20 bits).
    pub flow_label: u32,
    /// UDP source port: the entropy that spreads flows over equal-cost paths.
    pub udp_sport: u16,
    /// Destination LID, on InfiniBand.
    pub dlid: Lid,
    /// DSCP in the upper six bits; the link sets the ECN bits.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// Service level, on InfiniBand; VLAN priority elsewhere.
    pub sl: u8,
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
