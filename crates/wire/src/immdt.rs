//! Immediate data (IBTA vol1 9.3.6).

use crate::Imm;
use crate::field::fixed_header;

mod field {
    use crate::field::Field;

    pub(super) const IMM: Field<0, 4> = Field;
}

/// Four bytes for the receiver's completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImmDt {
    /// The value, most significant byte first on the wire.
    pub imm: Imm,
}

impl ImmDt {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        field::IMM.put(out, self.imm.0.to_be_bytes());
    }
}

fixed_header! {
    /// Immediate data in place.
    ImmDtView => ImmDt
}

impl ImmDtView<'_> {
    /// Every field at once.
    #[inline]
    pub fn to_repr(self) -> ImmDt {
        ImmDt { imm: Imm(u32::from_be_bytes(field::IMM.get(self.0))) }
    }
}
