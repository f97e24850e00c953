//! IPv6 header (RFC 8200), without extension headers.

use crate::ipv4::IpError;
use crate::{Gid, Grh};

/// IPv6 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6 {
    /// Differentiated services code point, 6 bits.
    pub dscp: u8,
    /// Explicit congestion notification, 2 bits; 3 means congestion was met.
    pub ecn: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Bytes after the header.
    pub payload_len: u16,
    /// What follows.
    pub next_header: u8,
    /// Hops left.
    pub hop_limit: u8,
    /// Source address.
    pub src: [u8; 16],
    /// Destination address.
    pub dst: [u8; 16],
}

impl Ipv6 {
    /// Bytes on the wire.
    pub const LEN: usize = 40;

    /// Header of a UDP datagram with `udp_len` bytes, UDP header included.
    #[inline]
    pub const fn udp(src: [u8; 16], dst: [u8; 16], udp_len: u16) -> Self {
        Self {
            dscp: 0,
            ecn: 0,
            flow_label: 0,
            payload_len: udp_len,
            next_header: crate::udp::UDP_PROTOCOL,
            hop_limit: 64,
            src,
            dst,
        }
    }

    /// Reads the header at the start of `bytes` and returns it with what follows.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), IpError> {
        let (grh, rest) = Grh::parse(bytes)?;
        if grh.ip_version != 6 {
            return Err(IpError::BadVersion(grh.ip_version));
        }
        let header = Self {
            dscp: grh.traffic_class >> 2,
            ecn: grh.traffic_class & 3,
            flow_label: grh.flow_label,
            payload_len: grh.payload_len,
            next_header: grh.next_header,
            hop_limit: grh.hop_limit,
            src: grh.sgid.0,
            dst: grh.dgid.0,
        };
        Ok((header, rest))
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        let grh = Grh {
            ip_version: 6,
            traffic_class: (self.dscp << 2) | (self.ecn & 3),
            flow_label: self.flow_label,
            payload_len: self.payload_len,
            next_header: self.next_header,
            hop_limit: self.hop_limit,
            sgid: Gid(self.src),
            dgid: Gid(self.dst),
        };
        grh.emit(out);
    }
}
