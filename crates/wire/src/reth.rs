//! RDMA extended transport header (IBTA vol1 9.3.3).

use crate::Rkey;
use crate::field::fixed_header;

mod field {
    use crate::field::Field;

    pub(super) const VA: Field<0, 8> = Field;
    pub(super) const RKEY: Field<8, 4> = Field;
    pub(super) const LEN: Field<12, 4> = Field;
}

/// Where and how much: RDMA WRITE, RDMA READ request, FLUSH, ATOMIC WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Remote virtual address.
    pub va: u64,
    /// Key of the remote memory.
    pub rkey: Rkey,
    /// Length of the whole message in bytes.
    pub len: u32,
}

impl Reth {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        field::VA.put(out, self.va.to_be_bytes());
        field::RKEY.put(out, self.rkey.0.to_be_bytes());
        field::LEN.put(out, self.len.to_be_bytes());
    }
}

fixed_header! {
    /// An RDMA extended transport header in place.
    RethView => Reth
}

impl RethView<'_> {
    /// Every field at once.
    #[inline]
    pub fn to_repr(self) -> Reth {
        Reth { va: self.va(), rkey: self.rkey(), len: self.dma_len() }
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

    /// Length of the whole message in bytes.
    #[inline]
    pub fn dma_len(self) -> u32 {
        u32::from_be_bytes(field::LEN.get(self.0))
    }
}
