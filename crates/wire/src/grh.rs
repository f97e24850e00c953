//! Global route header (IBTA vol1 8.3): the layout of an IPv6 header.

use crate::Gid;
use crate::field::fixed_header;

/// Next header of a GRH: a base transport header follows (IBTA vol1 8.3).
pub const GRH_NEXT_HEADER: u8 = 0x1b;

mod field {
    use crate::field::Field;

    /// Version (4), traffic class (8), flow label (20).
    pub(super) const WORD: Field<0, 4> = Field;
    pub(super) const PAYLOAD_LEN: Field<4, 2> = Field;
    pub(super) const NEXT_HEADER: Field<6, 1> = Field;
    pub(super) const HOP_LIMIT: Field<7, 1> = Field;
    pub(super) const SRC: Field<8, 16> = Field;
    pub(super) const DST: Field<24, 16> = Field;

    pub(super) const VERSION_SHIFT: u32 = 28;
    pub(super) const CLASS_SHIFT: u32 = 20;
    pub(super) const FLOW_MASK: u32 = 0x000f_ffff;
}

/// Global route header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grh {
    /// Version, 4 bits; 6.
    pub ip_version: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Bytes after the header, ICRC included.
    pub payload_len: u16,
    /// What follows, [`GRH_NEXT_HEADER`].
    pub next_header: u8,
    /// Hops left.
    pub hop_limit: u8,
    /// Source.
    pub sgid: Gid,
    /// Destination.
    pub dgid: Gid,
}

impl Grh {
    /// Bytes on the wire.
    pub const LEN: usize = 40;
    /// Where an IPv4 header sits in the 40 bytes in front of a received datagram (IBTA vol1
    /// annex A17).
    pub const IPV4_AT: usize = 20;

    /// Header of a packet with `payload_len` bytes after it, ICRC included.
    #[inline]
    pub const fn new(sgid: Gid, dgid: Gid, payload_len: u16) -> Self {
        Self {
            ip_version: 6,
            traffic_class: 0,
            flow_label: 0,
            payload_len,
            next_header: GRH_NEXT_HEADER,
            hop_limit: 64,
            sgid,
            dgid,
        }
    }

    /// Writes the header. Bits of a field beyond its width are dropped.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        let word = (u32::from(self.ip_version) << field::VERSION_SHIFT)
            | (u32::from(self.traffic_class) << field::CLASS_SHIFT)
            | (self.flow_label & field::FLOW_MASK);
        field::WORD.put(out, word.to_be_bytes());
        field::PAYLOAD_LEN.put(out, self.payload_len.to_be_bytes());
        field::NEXT_HEADER.put(out, [self.next_header]);
        field::HOP_LIMIT.put(out, [self.hop_limit]);
        field::SRC.put(out, self.sgid.0);
        field::DST.put(out, self.dgid.0);
    }
}

fixed_header! {
    /// A global route header (or an IPv6 header) in place.
    GrhView => Grh
}

impl GrhView<'_> {
    /// Every field at once.
    #[inline]
    pub fn to_repr(self) -> Grh {
        let word = u32::from_be_bytes(field::WORD.get(self.0));
        let [next_header] = field::NEXT_HEADER.get(self.0);
        let [hop_limit] = field::HOP_LIMIT.get(self.0);
        let [_, _, _, traffic_class] = (word >> field::CLASS_SHIFT).to_be_bytes();
        let [_, _, _, ip_version] = (word >> field::VERSION_SHIFT).to_be_bytes();
        Grh {
            ip_version,
            traffic_class,
            flow_label: word & field::FLOW_MASK,
            payload_len: self.payload_len(),
            next_header,
            hop_limit,
            sgid: self.sgid(),
            dgid: self.dgid(),
        }
    }

    /// Bytes after the header, ICRC included.
    #[inline]
    pub fn payload_len(self) -> u16 {
        u16::from_be_bytes(field::PAYLOAD_LEN.get(self.0))
    }

    /// Source.
    #[inline]
    pub fn sgid(self) -> Gid {
        Gid(field::SRC.get(self.0))
    }

    /// Destination.
    #[inline]
    pub fn dgid(self) -> Gid {
        Gid(field::DST.get(self.0))
    }
}
