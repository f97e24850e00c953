//! UDP header (RFC 768).

use crate::field::fixed_header;

/// Destination port of RoCEv2 (IBTA vol1 annex A17).
pub const ROCE_UDP_PORT: u16 = 4791;
/// UDP in the protocol field of IPv4 and the next header field of IPv6.
pub const UDP_PROTOCOL: u8 = 17;

mod field {
    use crate::field::Field;

    pub(super) const SRC_PORT: Field<0, 2> = Field;
    pub(super) const DST_PORT: Field<2, 2> = Field;
    pub(super) const LEN: Field<4, 2> = Field;
    pub(super) const CHECKSUM: Field<6, 2> = Field;
}

/// UDP header. The checksum is carried, not computed: RoCEv2 packets have zero there or what the
/// host's stack put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Udp {
    /// Source port: entropy for the fabric.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Header and payload in bytes.
    pub len: u16,
    /// Checksum; zero means none.
    pub checksum: u16,
}

impl Udp {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Header of a RoCEv2 packet of `len` bytes, UDP header and ICRC included, without checksum.
    #[inline]
    pub const fn roce(src_port: u16, len: u16) -> Self {
        Self { src_port, dst_port: ROCE_UDP_PORT, len, checksum: 0 }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        field::SRC_PORT.put(out, self.src_port.to_be_bytes());
        field::DST_PORT.put(out, self.dst_port.to_be_bytes());
        field::LEN.put(out, self.len.to_be_bytes());
        field::CHECKSUM.put(out, self.checksum.to_be_bytes());
    }
}

fixed_header! {
    /// A UDP header in place.
    UdpView => Udp
}

impl UdpView<'_> {
    /// Every field at once.
    #[inline]
    pub fn to_repr(self) -> Udp {
        Udp {
            src_port: self.src_port(),
            dst_port: self.dst_port(),
            len: self.datagram_len(),
            checksum: u16::from_be_bytes(field::CHECKSUM.get(self.0)),
        }
    }

    /// Source port.
    #[inline]
    pub fn src_port(self) -> u16 {
        u16::from_be_bytes(field::SRC_PORT.get(self.0))
    }

    /// Destination port.
    #[inline]
    pub fn dst_port(self) -> u16 {
        u16::from_be_bytes(field::DST_PORT.get(self.0))
    }

    /// Header and payload in bytes.
    #[inline]
    pub fn datagram_len(self) -> u16 {
        u16::from_be_bytes(field::LEN.get(self.0))
    }
}
