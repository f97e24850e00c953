//! Flush extended transport header (IBTA vol1 annex A19).

use crate::field::fixed_header;

mod field {
    use crate::field::Field;

    /// Reserved (26), selectivity (2), placement type (4).
    pub(super) const WORD: Field<0, 4> = Field;

    pub(super) const PLACEMENT_MASK: u32 = 0x0f;
    pub(super) const SELECTIVITY_SHIFT: u32 = 4;
    pub(super) const SELECTIVITY_MASK: u32 = 0x03;
    pub(super) const RESERVED_SHIFT: u32 = 6;
}

/// How far written data must get: a set of two flags in four bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct FlushPlacement(u8);

impl FlushPlacement {
    /// Visible to every agent of the responder.
    pub const GLOBAL: Self = Self(1);
    /// Survives loss of power.
    pub const PERSISTENT: Self = Self(2);

    /// Keeps the low four bits of `bits`.
    #[inline]
    pub const fn new(bits: u8) -> Self {
        Self(bits & 0x0f)
    }

    /// The four bits.
    #[inline]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Whether every flag of `other` is set.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The flags of both.
    #[inline]
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// What to flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlushSelectivity {
    /// The range of the RETH.
    Range,
    /// The whole memory region.
    MemoryRegion,
    /// A reserved code, 2 or 3.
    Other(u8),
}

impl FlushSelectivity {
    /// From the two bits on the wire; higher bits are ignored.
    #[inline]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::Range,
            1 => Self::MemoryRegion,
            other => Self::Other(other),
        }
    }

    /// The two bits on the wire.
    #[inline]
    pub const fn bits(self) -> u8 {
        match self {
            Self::Range => 0,
            Self::MemoryRegion => 1,
            Self::Other(bits) => bits & 3,
        }
    }
}

/// Kind of a FLUSH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feth {
    /// How far the data must get.
    pub placement: FlushPlacement,
    /// What to flush.
    pub selectivity: FlushSelectivity,
    /// Reserved bits, 26 of them; zero.
    pub reserved: u32,
}

impl Feth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// A header with clear reserved bits.
    #[inline]
    pub const fn new(placement: FlushPlacement, selectivity: FlushSelectivity) -> Self {
        Self { placement, selectivity, reserved: 0 }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        let word = u32::from(self.placement.bits())
            | (u32::from(self.selectivity.bits()) << field::SELECTIVITY_SHIFT)
            | (self.reserved << field::RESERVED_SHIFT);
        field::WORD.put(out, word.to_be_bytes());
    }
}

fixed_header! {
    /// A flush extended transport header in place.
    FethView => Feth
}

impl FethView<'_> {
    /// Every field at once.
    #[inline]
    pub fn to_repr(self) -> Feth {
        let word = u32::from_be_bytes(field::WORD.get(self.0));
        let selectivity = (word >> field::SELECTIVITY_SHIFT) & field::SELECTIVITY_MASK;
        Feth {
            placement: FlushPlacement::new((word & field::PLACEMENT_MASK) as u8),
            selectivity: FlushSelectivity::from_bits(selectivity as u8),
            reserved: word >> field::RESERVED_SHIFT,
        }
    }
}
