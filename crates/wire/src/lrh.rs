//! Local route header of an InfiniBand link (IBTA vol1 7.7).

use crate::Lid;
use crate::field::fixed_header;

mod field {
    use crate::field::Field;

    /// Virtual lane (4), link version (4).
    pub(super) const VL_LVER: Field<0, 1> = Field;
    /// Service level (4), reserved (2), link next header (2).
    pub(super) const SL_LNH: Field<1, 1> = Field;
    pub(super) const DLID: Field<2, 2> = Field;
    /// Reserved (5), packet length in words (11).
    pub(super) const LEN: Field<4, 2> = Field;
    pub(super) const SLID: Field<6, 2> = Field;

    pub(super) const LEN_MASK: u16 = 0x07ff;
    pub(super) const RESV5_SHIFT: u32 = 11;
}

/// What follows a local route header.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkNext {
    /// Raw, an ethertype.
    Raw = 0,
    /// Raw, an IPv6 header.
    RawIpv6 = 1,
    /// A base transport header: the packet stays in its subnet.
    Local = 2,
    /// A global route header.
    Global = 3,
}

impl LinkNext {
    /// From the low two bits of `bits`.
    #[inline]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::Raw,
            1 => Self::RawIpv6,
            2 => Self::Local,
            _ => Self::Global,
        }
    }
}

/// Local route header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lrh {
    /// Virtual lane, 4 bits.
    pub vl: u8,
    /// Link version, 4 bits; zero.
    pub lver: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    /// Two reserved bits.
    pub resv2: u8,
    /// What follows.
    pub next: LinkNext,
    /// Destination.
    pub dlid: Lid,
    /// Five reserved bits.
    pub resv5: u8,
    /// Words of four bytes from this header to the ICRC, both included; 11 bits.
    pub words: u16,
    /// Source.
    pub slid: Lid,
}

impl Lrh {
    /// Bytes on the wire.
    pub const LEN: usize = 8;
    /// Words of the longest packet.
    pub const MAX_WORDS: u16 = field::LEN_MASK;

    /// Writes the header. Bits of a field beyond its width are dropped.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        let sl_lnh = (self.sl << 4) | ((self.resv2 & 3) << 2) | self.next as u8;
        let len = (u16::from(self.resv5) << field::RESV5_SHIFT) | (self.words & field::LEN_MASK);
        field::VL_LVER.put(out, [(self.vl << 4) | (self.lver & 0x0f)]);
        field::SL_LNH.put(out, [sl_lnh]);
        field::DLID.put(out, self.dlid.0.to_be_bytes());
        field::LEN.put(out, len.to_be_bytes());
        field::SLID.put(out, self.slid.0.to_be_bytes());
    }
}

fixed_header! {
    /// A local route header in place.
    LrhView => Lrh
}

impl LrhView<'_> {
    /// Every field at once.
    #[inline]
    pub fn to_repr(self) -> Lrh {
        let [vl_lver] = field::VL_LVER.get(self.0);
        let [sl_lnh] = field::SL_LNH.get(self.0);
        let [len_high, _] = field::LEN.get(self.0);
        let len = u16::from_be_bytes(field::LEN.get(self.0));
        Lrh {
            vl: vl_lver >> 4,
            lver: vl_lver & 0x0f,
            sl: sl_lnh >> 4,
            resv2: (sl_lnh >> 2) & 3,
            next: LinkNext::from_bits(sl_lnh),
            dlid: Lid(u16::from_be_bytes(field::DLID.get(self.0))),
            resv5: len_high >> 3,
            words: len & field::LEN_MASK,
            slid: Lid(u16::from_be_bytes(field::SLID.get(self.0))),
        }
    }
}

/// From nowhere to nowhere, on lane 0; a base transport header follows.
impl Default for Lrh {
    fn default() -> Self {
        Self {
            vl: 0,
            lver: 0,
            sl: 0,
            resv2: 0,
            next: LinkNext::Local,
            dlid: Lid(0),
            resv5: 0,
            words: 0,
            slid: Lid(0),
        }
    }
}
