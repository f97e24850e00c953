//! Invalidate extended transport header (IBTA vol1 9.3.7).

use crate::Rkey;
use crate::field::fixed_header;

mod field {
    use crate::field::Field;

    pub(super) const RKEY: Field<0, 4> = Field;
}

/// The key that a SEND with invalidate takes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ieth {
    /// Key at the receiver to invalidate.
    pub rkey: Rkey,
}

impl Ieth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        field::RKEY.put(out, self.rkey.0.to_be_bytes());
    }
}

fixed_header! {
    /// An invalidate extended transport header in place.
    IethView => Ieth
}

impl IethView<'_> {
    /// Every field at once.
    #[inline]
    pub fn to_repr(self) -> Ieth {
        Ieth { rkey: Rkey(u32::from_be_bytes(field::RKEY.get(self.0))) }
    }
}
