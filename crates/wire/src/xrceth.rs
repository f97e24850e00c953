//! XRC extended transport header (IBTA vol1 annex A14).

use crate::Srqn;
use crate::field::{be24, fixed_header, from_be24};

mod field {
    use crate::field::Field;

    pub(super) const RESERVED: Field<0, 1> = Field;
    pub(super) const SRQN: Field<1, 3> = Field;
}

/// Receive queue an XRC request is for. The reserved byte is written as zero and not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrcEth {
    /// Shared receive queue at the responder.
    pub srqn: Srqn,
}

impl XrcEth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        field::RESERVED.put(out, [0]);
        field::SRQN.put(out, be24(self.srqn.get()));
    }
}

fixed_header! {
    /// An XRC extended transport header in place.
    XrcEthView => XrcEth
}

impl XrcEthView<'_> {
    /// Every field at once.
    #[inline]
    pub fn to_repr(self) -> XrcEth {
        XrcEth { srqn: Srqn::new(from_be24(field::SRQN.get(self.0))) }
    }
}
