//! Ethernet header, with at most one VLAN tag.

use crate::Truncated;

/// Ethertype of IPv4.
pub const IPV4_ETHERTYPE: u16 = 0x0800;
/// Ethertype of IPv6.
pub const IPV6_ETHERTYPE: u16 = 0x86dd;
/// Ethertype of RoCEv1: a GRH follows (IBTA vol1 annex A16).
pub const ROCE_V1_ETHERTYPE: u16 = 0x8915;
/// Ethertype of a VLAN tag.
pub const VLAN_ETHERTYPE: u16 = 0x8100;

mod field {
    use crate::field::Field;

    pub(super) const DST: Field<0, 6> = Field;
    pub(super) const SRC: Field<6, 6> = Field;
    pub(super) const ETHERTYPE: Field<12, 2> = Field;

    /// After an ethertype of VLAN: priority (3), drop eligible (1), identifier (12).
    pub(super) const VLAN_TCI: Field<0, 2> = Field;
    pub(super) const VLAN_INNER: Field<2, 2> = Field;
}

/// Tag control information of a VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VlanTag(pub u16);

impl VlanTag {
    /// VLAN identifier, 12 bits.
    #[inline]
    pub const fn vid(self) -> u16 {
        self.0 & 0x0fff
    }

    /// Priority code point, 3 bits.
    #[inline]
    pub const fn priority(self) -> u16 {
        self.0 >> 13
    }
}

/// Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ethernet {
    /// Destination address.
    pub dst: [u8; 6],
    /// Source address.
    pub src: [u8; 6],
    /// VLAN tag, if there is one. A second tag is not looked into.
    pub vlan: Option<VlanTag>,
    /// What follows.
    pub ethertype: u16,
}

impl Ethernet {
    /// Bytes on the wire without a VLAN tag.
    pub const MIN_LEN: usize = 14;
    /// Bytes on the wire with a VLAN tag.
    pub const MAX_LEN: usize = 18;

    /// Bytes this header takes on the wire.
    #[inline]
    pub const fn wire_len(&self) -> usize {
        if self.vlan.is_some() { Self::MAX_LEN } else { Self::MIN_LEN }
    }

    /// Reads the header at the start of `bytes` and returns it with what follows.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Truncated> {
        let (head, rest) = bytes.split_first_chunk::<{ Self::MIN_LEN }>().ok_or(Truncated)?;
        let header = Self {
            dst: field::DST.get(head),
            src: field::SRC.get(head),
            vlan: None,
            ethertype: u16::from_be_bytes(field::ETHERTYPE.get(head)),
        };
        if header.ethertype != VLAN_ETHERTYPE {
            return Ok((header, rest));
        }
        let (tag, rest) = rest.split_first_chunk::<4>().ok_or(Truncated)?;
        let vlan = Some(VlanTag(u16::from_be_bytes(field::VLAN_TCI.get(tag))));
        let ethertype = u16::from_be_bytes(field::VLAN_INNER.get(tag));
        Ok((Self { vlan, ethertype, ..header }, rest))
    }

    /// Writes the header at the start of `out` and returns its length.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Truncated> {
        let (head, rest) = out.split_first_chunk_mut::<{ Self::MIN_LEN }>().ok_or(Truncated)?;
        field::DST.put(head, self.dst);
        field::SRC.put(head, self.src);
        let Some(tag) = self.vlan else {
            field::ETHERTYPE.put(head, self.ethertype.to_be_bytes());
            return Ok(Self::MIN_LEN);
        };
        let out = rest.first_chunk_mut::<4>().ok_or(Truncated)?;
        field::ETHERTYPE.put(head, VLAN_ETHERTYPE.to_be_bytes());
        field::VLAN_TCI.put(out, tag.0.to_be_bytes());
        field::VLAN_INNER.put(out, self.ethertype.to_be_bytes());
        Ok(Self::MAX_LEN)
    }
}
