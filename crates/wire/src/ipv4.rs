//! IPv4 header (RFC 791), options included.

use core::fmt;

use crate::Truncated;

mod field {
    use crate::field::Field;

    /// Version (4), header length in words (4).
    pub(super) const VERSION_IHL: Field<0, 1> = Field;
    /// DSCP (6), ECN (2).
    pub(super) const TOS: Field<1, 1> = Field;
    pub(super) const TOTAL_LEN: Field<2, 2> = Field;
    pub(super) const ID: Field<4, 2> = Field;
    /// Reserved (1), don't fragment (1), more fragments (1), offset (13).
    pub(super) const FRAGMENT: Field<6, 2> = Field;
    pub(super) const TTL: Field<8, 1> = Field;
    pub(super) const PROTOCOL: Field<9, 1> = Field;
    pub(super) const CHECKSUM: Field<10, 2> = Field;
    pub(super) const SRC: Field<12, 4> = Field;
    pub(super) const DST: Field<16, 4> = Field;

    pub(super) const RESERVED: u16 = 0x8000;
    pub(super) const DONT_FRAGMENT: u16 = 0x4000;
    pub(super) const MORE_FRAGMENTS: u16 = 0x2000;
    pub(super) const OFFSET_MASK: u16 = 0x1fff;
}

/// Why an IP header could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpError {
    /// The bytes end before the header does.
    Truncated,
    /// The version field is another one.
    BadVersion(u8),
    /// The header length field, in words, is below five.
    BadHeaderLen(u8),
}

impl fmt::Display for IpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => Truncated.fmt(f),
            Self::BadVersion(v) => write!(f, "IP version {v} is not the expected one"),
            Self::BadHeaderLen(n) => write!(f, "IPv4 header length of {n} words is below 5"),
        }
    }
}

impl core::error::Error for IpError {}

impl From<Truncated> for IpError {
    fn from(_: Truncated) -> Self {
        Self::Truncated
    }
}

/// Options of an IPv4 header, kept as bytes: up to ten words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Options {
    words: u8,
    bytes: [u8; 40],
}

impl Ipv4Options {
    /// No options.
    pub const NONE: Self = Self { words: 0, bytes: [0; 40] };

    /// From up to 40 bytes, a multiple of four.
    #[inline]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut options = Self::NONE;
        options.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        options.words = u8::try_from(bytes.len() / 4).ok()?;
        bytes.len().is_multiple_of(4).then_some(options)
    }

    /// The bytes.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.wire_len()).unwrap_or(&self.bytes)
    }

    /// Bytes on the wire.
    #[inline]
    pub const fn wire_len(&self) -> usize {
        self.words as usize * 4
    }
}

/// IPv4 header. The checksum is not here: [`emit`](Self::emit) computes it and
/// [`Ipv4View::checksum_ok`] verifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4 {
    /// Differentiated services code point, 6 bits.
    pub dscp: u8,
    /// Explicit congestion notification, 2 bits; 3 means congestion was met.
    pub ecn: u8,
    /// Header and everything after it, in bytes.
    pub total_len: u16,
    /// Identification. The ICRC covers it.
    pub id: u16,
    /// The reserved flag.
    pub reserved_flag: bool,
    /// Routers must not fragment.
    pub dont_fragment: bool,
    /// Not the last fragment.
    pub more_fragments: bool,
    /// Offset of the fragment in units of eight bytes, 13 bits.
    pub fragment_offset: u16,
    /// Time to live.
    pub ttl: u8,
    /// What follows.
    pub protocol: u8,
    /// Source address.
    pub src: [u8; 4],
    /// Destination address.
    pub dst: [u8; 4],
    /// Options.
    pub options: Ipv4Options,
}

impl Ipv4 {
    /// Bytes on the wire without options.
    pub const MIN_LEN: usize = 20;
    /// Bytes on the wire with all the options that fit.
    pub const MAX_LEN: usize = 60;

    /// Header of an unfragmented UDP datagram with `udp_len` bytes, UDP header included.
    #[inline]
    pub const fn udp(src: [u8; 4], dst: [u8; 4], udp_len: u16) -> Self {
        Self {
            dscp: 0,
            ecn: 0,
            total_len: udp_len.saturating_add(20),
            id: 0,
            reserved_flag: false,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            ttl: 64,
            protocol: crate::udp::UDP_PROTOCOL,
            src,
            dst,
            options: Ipv4Options::NONE,
        }
    }

    /// Bytes this header takes on the wire.
    #[inline]
    pub const fn wire_len(&self) -> usize {
        Self::MIN_LEN + self.options.wire_len()
    }

    /// Whether the packet is a piece of a datagram.
    #[inline]
    pub const fn is_fragment(&self) -> bool {
        self.more_fragments || self.fragment_offset != 0
    }

    /// Reads the header at the start of `bytes` and returns it with what follows. The checksum
    /// is not looked at.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), IpError> {
        let view = Ipv4View::new_checked(bytes)?;
        let (_, rest) = bytes.split_at_checked(view.wire_len()).ok_or(IpError::Truncated)?;
        Ok((view.to_repr(), rest))
    }

    /// Writes the header with its checksum at the start of `out` and returns its length.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Truncated> {
        let len = self.wire_len();
        let out = out.get_mut(..len).ok_or(Truncated)?;
        let (head, options) = out.split_first_chunk_mut::<{ Self::MIN_LEN }>().ok_or(Truncated)?;
        options.copy_from_slice(self.options.as_bytes());
        let fragment = (u16::from(self.reserved_flag) << 15)
            | (u16::from(self.dont_fragment) << 14)
            | (u16::from(self.more_fragments) << 13)
            | (self.fragment_offset & field::OFFSET_MASK);
        field::VERSION_IHL.put(head, [0x40 | (5 + self.options.words)]);
        field::TOS.put(head, [(self.dscp << 2) | (self.ecn & 3)]);
        field::TOTAL_LEN.put(head, self.total_len.to_be_bytes());
        field::ID.put(head, self.id.to_be_bytes());
        field::FRAGMENT.put(head, fragment.to_be_bytes());
        field::TTL.put(head, [self.ttl]);
        field::PROTOCOL.put(head, [self.protocol]);
        field::CHECKSUM.put(head, [0, 0]);
        field::SRC.put(head, self.src);
        field::DST.put(head, self.dst);
        let sum = ones_complement_sum(head) + ones_complement_sum(options);
        field::CHECKSUM.put(head, (!fold(sum)).to_be_bytes());
        Ok(len)
    }
}

/// An IPv4 header in place, options included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4View<'a> {
    head: &'a [u8; Ipv4::MIN_LEN],
    options: &'a [u8],
}

impl<'a> Ipv4View<'a> {
    /// Borrows the header at the start of `bytes`; what follows it is ignored.
    #[inline]
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, IpError> {
        let (head, rest) = bytes.split_first_chunk().ok_or(IpError::Truncated)?;
        let [version_ihl] = field::VERSION_IHL.get(head);
        let (version, ihl) = (version_ihl >> 4, version_ihl & 0x0f);
        if version != 4 {
            return Err(IpError::BadVersion(version));
        }
        let words = ihl.checked_sub(5).ok_or(IpError::BadHeaderLen(ihl))?;
        let options = rest.get(..usize::from(words) * 4).ok_or(IpError::Truncated)?;
        Ok(Self { head, options })
    }

    /// Every field at once.
    #[inline]
    pub fn to_repr(self) -> Ipv4 {
        let [tos] = field::TOS.get(self.head);
        let fragment = u16::from_be_bytes(field::FRAGMENT.get(self.head));
        let [ttl] = field::TTL.get(self.head);
        Ipv4 {
            dscp: tos >> 2,
            ecn: tos & 3,
            total_len: self.total_len(),
            id: self.id(),
            reserved_flag: fragment & field::RESERVED != 0,
            dont_fragment: fragment & field::DONT_FRAGMENT != 0,
            more_fragments: fragment & field::MORE_FRAGMENTS != 0,
            fragment_offset: fragment & field::OFFSET_MASK,
            ttl,
            protocol: self.protocol(),
            src: self.src(),
            dst: self.dst(),
            options: Ipv4Options::new(self.options).unwrap_or(Ipv4Options::NONE),
        }
    }

    /// Bytes of the header.
    #[inline]
    pub fn wire_len(self) -> usize {
        Ipv4::MIN_LEN + self.options.len()
    }

    /// Header and everything after it, in bytes.
    #[inline]
    pub fn total_len(self) -> u16 {
        u16::from_be_bytes(field::TOTAL_LEN.get(self.head))
    }

    /// Identification.
    #[inline]
    pub fn id(self) -> u16 {
        u16::from_be_bytes(field::ID.get(self.head))
    }

    /// What follows.
    #[inline]
    pub fn protocol(self) -> u8 {
        let [byte] = field::PROTOCOL.get(self.head);
        byte
    }

    /// Source address.
    #[inline]
    pub fn src(self) -> [u8; 4] {
        field::SRC.get(self.head)
    }

    /// Destination address.
    #[inline]
    pub fn dst(self) -> [u8; 4] {
        field::DST.get(self.head)
    }

    /// Whether the header checksum is right.
    #[inline]
    pub fn checksum_ok(self) -> bool {
        fold(ones_complement_sum(self.head) + ones_complement_sum(self.options)) == 0xffff
    }
}

/// Sum of the 16-bit words of at most 60 bytes, an even number of them.
#[inline]
fn ones_complement_sum(bytes: &[u8]) -> u32 {
    let (words, _) = bytes.as_chunks::<2>();
    words.iter().map(|w| u32::from(u16::from_be_bytes(*w))).sum()
}

/// Adds the carries of a sum of at most 2^16 words back in.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "folded twice, the sum fits in 16 bits")]
const fn fold(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    ((once & 0xffff) + (once >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_of_a_known_header() {
        // The worked example of the encyclopedias: checksum 0xb861.
        let bytes = [
            0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8,
            0x00, 0x01, 0xc0, 0xa8, 0x00, 0xc7,
        ];
        let view = Ipv4View::new_checked(&bytes).expect("a header");
        assert!(view.checksum_ok());
        let mut out = [0; 20];
        assert_eq!(view.to_repr().emit(&mut out), Ok(20));
        assert_eq!(out, bytes);
        let mut bad = bytes;
        bad[8] -= 1;
        assert!(!Ipv4View::new_checked(&bad).expect("still a header").checksum_ok());
    }

    #[test]
    fn errors_say_why() {
        assert_eq!(Ipv4::parse(&[0x45; 19]), Err(IpError::Truncated));
        assert_eq!(Ipv4::parse(&[0x65; 20]), Err(IpError::BadVersion(6)));
        assert_eq!(Ipv4::parse(&[0x44; 20]), Err(IpError::BadHeaderLen(4)));
        assert_eq!(Ipv4::parse(&[0x46; 23]), Err(IpError::Truncated));
        assert!(Ipv4::parse(&[0x46; 24]).is_ok());
        assert_eq!(Ipv4Options::new(&[0; 41]), None);
        assert_eq!(Ipv4Options::new(&[0; 6]), None);
    }
}
