//! The reserved field of a congestion notification packet (IBTA vol1 annex A17).

use crate::field::fixed_header;

mod field {
    use crate::field::Field;

    pub(super) const RESERVED: Field<0, 16> = Field;
}

/// Sixteen reserved bytes after the base transport header of a CNP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CnpReserved {
    /// The bytes; zero.
    pub bytes: [u8; 16],
}

impl CnpReserved {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// Writes the field.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        field::RESERVED.put(out, self.bytes);
    }
}

fixed_header! {
    /// The reserved field of a CNP in place.
    CnpReservedView => CnpReserved
}

impl CnpReservedView<'_> {
    /// Every field at once.
    #[inline]
    pub fn to_repr(self) -> CnpReserved {
        CnpReserved { bytes: field::RESERVED.get(self.0) }
    }
}
