//! Datagram extended transport header (IBTA vol1 9.3.2).

use crate::field::fixed_header;
use crate::{Qkey, Qpn};

mod field {
    use crate::field::Field;

    pub(super) const QKEY: Field<0, 4> = Field;
    pub(super) const RESERVED: Field<4, 1> = Field;
    pub(super) const SRC_QP: Field<5, 3> = Field;
}

/// Queue key and source of a datagram. The reserved byte is written as zero and not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// Queue key the receiver checks.
    pub qkey: Qkey,
    /// Queue pair that sent the packet.
    pub src_qp: Qpn,
}

impl Deth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        field::QKEY.put(out, self.qkey.0.to_be_bytes());
        field::RESERVED.put(out, [0]);
        field::SRC_QP.put(out, self.src_qp.to_be_bytes());
    }
}

fixed_header! {
    /// A datagram extended transport header in place.
    DethView => Deth
}

impl DethView<'_> {
    /// Every field at once.
    #[inline]
    pub fn to_repr(self) -> Deth {
        Deth { qkey: self.qkey(), src_qp: self.src_qp() }
    }

    /// Queue key the receiver checks.
    #[inline]
    pub fn qkey(self) -> Qkey {
        Qkey(u32::from_be_bytes(field::QKEY.get(self.0)))
    }

    /// Queue pair that sent the packet.
    #[inline]
    pub fn src_qp(self) -> Qpn {
        Qpn::from_be_bytes(field::SRC_QP.get(self.0))
    }
}
