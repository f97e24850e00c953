//! Atomic headers: request (IBTA vol1 9.3.4) and acknowledgement (9.3.5).

use crate::Rkey;
use crate::field::fixed_header;

mod field {
    use crate::field::Field;

    pub(super) const VA: Field<0, 8> = Field;
    pub(super) const RKEY: Field<8, 4> = Field;
    pub(super) const SWAP_ADD: Field<12, 8> = Field;
    pub(super) const COMPARE: Field<20, 8> = Field;

    pub(super) const ORIGINAL: Field<0, 8> = Field;
}

/// Operands of a compare-and-swap or fetch-and-add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// Remote virtual address, a multiple of eight.
    pub va: u64,
    /// Key of the remote memory.
    pub rkey: Rkey,
    /// Value to swap in, or to add.
    pub swap_add: u64,
    /// Value to compare with; unused by fetch-and-add.
    pub compare: u64,
}

impl AtomicEth {
    /// Bytes on the wire.
    pub const LEN: usize = 28;

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        field::VA.put(out, self.va.to_be_bytes());
        field::RKEY.put(out, self.rkey.0.to_be_bytes());
        field::SWAP_ADD.put(out, self.swap_add.to_be_bytes());
        field::COMPARE.put(out, self.compare.to_be_bytes());
    }
}

fixed_header! {
    /// An atomic extended transport header in place.
    AtomicEthView => AtomicEth
}

impl AtomicEthView<'_> {
    /// Every field at once.
    #[inline]
    pub fn to_repr(self) -> AtomicEth {
        AtomicEth {
            va: self.va(),
            rkey: self.rkey(),
            swap_add: u64::from_be_bytes(field::SWAP_ADD.get(self.0)),
            compare: u64::from_be_bytes(field::COMPARE.get(self.0)),
        }
    }

    /// Remote virtual address.
    #[inline]
    pub fn va(self) -> u64 {
        u64::from_be_bytes(field::VA.get(self.0))
    }

    /// Key of the remote memory.
    #[inline]
    pub fn rkey(self) -> Rkey {
        Rkey(u32::from_be_bytes(field::RKEY.get(self.0)))
    }
}

/// What the memory held before an atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicAckEth {
    /// The value before the operation.
    pub original: u64,
}

impl AtomicAckEth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        field::ORIGINAL.put(out, self.original.to_be_bytes());
    }
}

fixed_header! {
    /// An atomic acknowledge header in place.
    AtomicAckEthView => AtomicAckEth
}

impl AtomicAckEthView<'_> {
    /// Every field at once.
    #[inline]
    pub fn to_repr(self) -> AtomicAckEth {
        AtomicAckEth { original: u64::from_be_bytes(field::ORIGINAL.get(self.0)) }
    }
}
