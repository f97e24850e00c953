//! Invariant CRC: covers everything that must not change between the two ends (IBTA vol1 7.8.1,
//! annexes A16 and A17).
//!
//! It is the CRC-32 of Ethernet over the packet, with the fields that routers and switches change
//! replaced by ones, and with eight bytes of ones in place of the local route header when there
//! is none. A `u32` here is the CRC as a number; on the wire it goes least significant byte
//! first, which is what the `[u8; 4]` forms hold.

use crc32fast::Hasher;

use crate::gf2;
use crate::{Bth, Grh, Ipv4, Ipv6, Lrh, Udp};

/// Bytes on the wire.
pub const LEN: usize = 4;

/// CRC-32 of the eight bytes of ones.
const NO_LRH: u32 = 0x2144_df1c;

/// Bytes from the identification field, exclusive, to the end of the UDP header when the IPv4
/// header has no options.
const AFTER_ID: u8 = 22;

/// The byte of the base transport header that the ICRC does not cover: FECN, BECN and six reserved
/// bits.
const BTH_ECN_AT: usize = 4;

mod mask {
    use crate::field::Field;

    /// Virtual lane, in the upper half of the byte.
    pub(super) const LRH_VL: Field<0, 1> = Field;

    pub(super) const IPV4_TOS: Field<1, 1> = Field;
    pub(super) const IPV4_ID: Field<4, 2> = Field;
    pub(super) const IPV4_TTL: Field<8, 1> = Field;
    pub(super) const IPV4_CHECKSUM: Field<10, 2> = Field;

    /// Version (kept), traffic class, flow label.
    pub(super) const IPV6_CLASS_FLOW: Field<0, 4> = Field;
    pub(super) const IPV6_HOP_LIMIT: Field<7, 1> = Field;

    pub(super) const UDP_CHECKSUM: Field<6, 2> = Field;
}

/// ICRC of a RoCEv2 packet over IPv4.
///
/// `ip_header` is the whole header, options included; `transport` runs from the base transport
/// header to the padding.
pub fn ipv4(ip_header: &[u8], udp: &[u8; Udp::LEN], transport: &[u8]) -> u32 {
    IcrcPrefix::ipv4(ip_header, udp).icrc(transport)
}

/// ICRC of a RoCEv2 packet over IPv6. See [`ipv4`].
pub fn ipv6(ip_header: &[u8; Ipv6::LEN], udp: &[u8; Udp::LEN], transport: &[u8]) -> u32 {
    IcrcPrefix::ipv6(ip_header, udp).icrc(transport)
}

/// ICRC of a RoCEv1 packet, and of an InfiniBand packet with a GRH.
pub fn roce_v1(grh: &[u8; Grh::LEN], transport: &[u8]) -> u32 {
    IcrcPrefix::roce_v1(grh).icrc(transport)
}

/// ICRC of an InfiniBand packet without GRH.
pub fn ib_local(lrh: &[u8; Lrh::LEN], transport: &[u8]) -> u32 {
    IcrcPrefix::ib_local(lrh).icrc(transport)
}

/// The IPv4 identification that makes `icrc` right, whatever `ip_header` has in its place; `None`
/// if no identification does.
///
/// For receivers that are not shown the field. The check has 16 bits left of the 32: a packet
/// damaged at random passes with probability 2^-16.
pub fn ipv4_any_id(
    ip_header: &[u8],
    udp: &[u8; Udp::LEN],
    transport: &[u8],
    icrc: u32,
) -> Option<u16> {
    IcrcPrefix::ipv4(ip_header, udp).find_ipv4_id(transport, icrc)
}

/// The ICRC up to the base transport header, for the packets of a train to start from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcrcPrefix {
    crc: u32,
    /// IPv4 only: the identification.
    id: u16,
    /// IPv4 only: bytes from the identification, exclusive, to the end of the prefix; else zero.
    after_id: u8,
}

impl IcrcPrefix {
    /// Prefix of a RoCEv2 packet over IPv4; `ip_header` includes the options.
    ///
    /// Both lengths, the addresses, the ports, the flags and the identification matter.
    pub fn ipv4(ip_header: &[u8], udp: &[u8; Udp::LEN]) -> Self {
        let Some((head, options)) = ip_header.split_first_chunk::<{ Ipv4::MIN_LEN }>() else {
            return Self::plain(&[ip_header, udp]);
        };
        let mut head = *head;
        mask::IPV4_TOS.put(&mut head, [0xff]);
        mask::IPV4_TTL.put(&mut head, [0xff]);
        mask::IPV4_CHECKSUM.put(&mut head, [0xff; 2]);
        let id = u16::from_be_bytes(mask::IPV4_ID.get(&head));
        let plain = Self::plain(&[&head, options, &masked_udp(udp)]);
        // Options that no IPv4 header can have: the prefix is still defined, its ID is not.
        let after_id = match u8::try_from(options.len()) {
            Ok(n) if n <= 40 => AFTER_ID + n,
            _ => 0,
        };
        Self { id, after_id, ..plain }
    }

    /// Prefix of a RoCEv2 packet over IPv6.
    pub fn ipv6(ip_header: &[u8; Ipv6::LEN], udp: &[u8; Udp::LEN]) -> Self {
        Self::plain(&[&masked_ipv6(ip_header), &masked_udp(udp)])
    }

    /// Prefix of a RoCEv1 packet, and of an InfiniBand packet with a GRH.
    pub fn roce_v1(grh: &[u8; Grh::LEN]) -> Self {
        Self::plain(&[&masked_ipv6(grh)])
    }

    /// Prefix of an InfiniBand packet without GRH.
    pub fn ib_local(lrh: &[u8; Lrh::LEN]) -> Self {
        let mut lrh = *lrh;
        let [vl_lver] = mask::LRH_VL.get(&lrh);
        mask::LRH_VL.put(&mut lrh, [vl_lver | 0xf0]);
        Self { crc: crc32fast::hash(&lrh), id: 0, after_id: 0 }
    }

    /// Prefix for headers given as values.
    pub fn for_ipv4(ip: &Ipv4, udp: &Udp) -> Self {
        let mut header = [0; Ipv4::MAX_LEN];
        let len = ip.emit(&mut header).unwrap_or(Ipv4::MIN_LEN);
        Self::ipv4(header.get(..len).unwrap_or(&header), &emitted_udp(udp))
    }

    /// Prefix for headers given as values.
    pub fn for_ipv6(ip: &Ipv6, udp: &Udp) -> Self {
        let mut header = [0; Ipv6::LEN];
        ip.emit(&mut header);
        Self::ipv6(&header, &emitted_udp(udp))
    }

    /// Prefix for a header given as a value.
    pub fn for_lrh(lrh: &Lrh) -> Self {
        let mut header = [0; Lrh::LEN];
        lrh.emit(&mut header);
        Self::ib_local(&header)
    }

    /// Prefix for a header given as a value.
    pub fn for_grh(grh: &Grh) -> Self {
        let mut header = [0; Grh::LEN];
        grh.emit(&mut header);
        Self::roce_v1(&header)
    }

    /// The same prefix with another IPv4 identification; no effect without IPv4.
    ///
    /// Costs two table look-ups, so a train whose packets differ only in the identification needs
    /// one prefix.
    #[inline]
    #[must_use]
    pub fn with_ipv4_id(self, id: u16) -> Self {
        let flipped = id ^ self.id;
        if flipped == 0 {
            return self;
        }
        let [high, low] = flipped.to_be_bytes();
        let crc_flips = match self.after_id {
            0 => return self,
            AFTER_ID => ID_HIGH[usize::from(high)] ^ ID_LOW[usize::from(low)],
            after => gf2::id_to_crc(flipped, usize::from(after)),
        };
        Self { crc: self.crc ^ crc_flips, id, ..self }
    }

    /// The ICRC of the packet with these bytes from the base transport header to the padding.
    #[inline]
    pub fn icrc(&self, transport: &[u8]) -> u32 {
        self.begin(transport).finish()
    }

    /// As [`icrc`](Self::icrc), in the bytes that end the packet.
    #[inline]
    pub fn seal(&self, transport: &[u8]) -> [u8; LEN] {
        self.icrc(transport).to_le_bytes()
    }

    /// Whether `icrc` is right for these bytes.
    #[inline]
    pub fn verify(&self, transport: &[u8], icrc: [u8; LEN]) -> bool {
        self.seal(transport) == icrc
    }

    /// The IPv4 identification that makes `icrc` right, as [`ipv4_any_id`].
    pub fn find_ipv4_id(&self, transport: &[u8], icrc: u32) -> Option<u16> {
        if self.after_id == 0 {
            return None;
        }
        let flips = self.icrc(transport) ^ icrc;
        let after = usize::from(self.after_id).checked_add(transport.len())?;
        gf2::crc_to_id(flips, after).map(|flipped| self.id ^ flipped)
    }

    /// Starts the ICRC of a packet that lies in pieces. `head` holds at least the base transport
    /// header.
    #[inline]
    pub fn begin(&self, head: &[u8]) -> IcrcDigest {
        let mut hasher = Hasher::new_with_initial(self.before(head));
        hasher.update(head);
        IcrcDigest { hasher }
    }

    /// As [`begin`](Self::begin), and adds the next piece, with a function that extends a CRC-32 by
    /// the last twelve bytes of `head` and that piece, or says that it cannot.
    #[inline]
    pub fn begin_with(
        &self,
        head: &[u8],
        extend: impl FnOnce(u32, [u8; Bth::LEN]) -> Option<u32>,
    ) -> Option<IcrcDigest> {
        let (first, last) = head.split_last_chunk()?;
        let mut crc = self.before(head);
        if !first.is_empty() {
            let mut hasher = Hasher::new_with_initial(crc);
            hasher.update(first);
            crc = hasher.finalize();
        }
        Some(IcrcDigest { hasher: Hasher::new_with_initial(extend(crc, *last)?) })
    }

    /// The CRC to begin with. The packet is fed as it is: what ones in place of the byte that is
    /// not covered would flip is flipped before.
    #[inline]
    fn before(&self, head: &[u8]) -> u32 {
        let hidden = head.first_chunk::<{ Bth::LEN }>().map_or(0, |bth| !bth[BTH_ECN_AT]);
        self.crc ^ BTH_ECN[usize::from(hidden)]
    }

    /// Eight bytes of ones and then `parts`.
    fn plain(parts: &[&[u8]]) -> Self {
        let mut hasher = Hasher::new_with_initial(NO_LRH);
        for part in parts {
            hasher.update(part);
        }
        Self { crc: hasher.finalize(), id: 0, after_id: 0 }
    }
}

/// The ICRC of a packet that lies in pieces.
#[derive(Clone, Debug)]
pub struct IcrcDigest {
    hasher: Hasher,
}

impl IcrcDigest {
    /// Adds the next piece.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
    }

    /// The ICRC.
    #[inline]
    pub fn finish(self) -> u32 {
        self.hasher.finalize()
    }

    /// The ICRC in the bytes that end the packet.
    #[inline]
    pub fn seal(self) -> [u8; LEN] {
        self.finish().to_le_bytes()
    }
}

/// CRC flips of each value of the first byte of the identification, [`AFTER_ID`] bytes on.
static ID_HIGH: [u32; 256] = gf2::byte_flips(AFTER_ID as usize + 1);
/// The same for the second byte.
static ID_LOW: [u32; 256] = gf2::byte_flips(AFTER_ID as usize);
/// What to flip in the CRC of everything before the base transport header, instead of flipping each
/// value into its byte that is not covered.
static BTH_ECN: [u32; 256] = gf2::byte_flips_before(BTH_ECN_AT);

fn masked_ipv6(header: &[u8; Ipv6::LEN]) -> [u8; Ipv6::LEN] {
    let mut header = *header;
    let [version, ..] = mask::IPV6_CLASS_FLOW.get(&header);
    mask::IPV6_CLASS_FLOW.put(&mut header, [version | 0x0f, 0xff, 0xff, 0xff]);
    mask::IPV6_HOP_LIMIT.put(&mut header, [0xff]);
    header
}

fn masked_udp(header: &[u8; Udp::LEN]) -> [u8; Udp::LEN] {
    let mut header = *header;
    mask::UDP_CHECKSUM.put(&mut header, [0xff; 2]);
    header
}

fn emitted_udp(udp: &Udp) -> [u8; Udp::LEN] {
    let mut header = [0; Udp::LEN];
    udp.emit(&mut header);
    header
}

#[cfg(test)]
mod tests;
