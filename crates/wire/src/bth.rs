//! Base transport header (IBTA vol1 9.2).

use crate::field::fixed_header;
use crate::{Opcode, Pkey, Psn, Qpn};

mod field {
    use crate::field::Field;

    pub(super) const OPCODE: Field<0, 1> = Field;
    /// Solicited event, migration request, pad count (2), transport version (4).
    pub(super) const FLAGS: Field<1, 1> = Field;
    pub(super) const PKEY: Field<2, 2> = Field;
    /// FECN, BECN, reserved (6), which the ICRC does not cover; destination QP (24).
    pub(super) const ECN_DEST_QP: Field<4, 4> = Field;
    /// Acknowledge request, reserved (7), PSN (24).
    pub(super) const ACK_PSN: Field<8, 4> = Field;

    pub(super) const SOLICITED: u8 = 0x80;
    pub(super) const MIG_REQ: u8 = 0x40;
    pub(super) const PAD_SHIFT: u32 = 4;
    pub(super) const PAD_MASK: u8 = 0x03;
    pub(super) const TVER_MASK: u8 = 0x0f;
    pub(super) const FECN: u8 = 0x80;
    pub(super) const BECN: u8 = 0x40;
    pub(super) const RESV6_MASK: u8 = 0x3f;
    pub(super) const ACK_REQ: u8 = 0x80;
    pub(super) const RESV7_MASK: u8 = 0x7f;
}

/// Base transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "base transport header")]
pub struct Bth {
    /// Service and operation.
    pub opcode: Opcode,
    /// The receiver's completion is a solicited event.
    pub solicited: bool,
    /// Migration state of the sender.
    pub mig_req: bool,
    /// Bytes of padding after the payload, 0 to 3.
    pub pad: u8,
    /// Transport header version, 4 bits; zero.
    pub tver: u8,
    /// Partition key.
    pub pkey: Pkey,
    /// Forward congestion notification.
    pub fecn: bool,
    /// Backward congestion notification.
    pub becn: bool,
    /// Six reserved bits, not covered by the ICRC.
    pub resv6: u8,
    /// Queue pair the packet is for.
    pub dest_qp: Qpn,
    /// The requester wants an acknowledgement.
    pub ack_req: bool,
    /// Seven reserved bits.
    pub resv7: u8,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Bytes on the wire.
    pub const LEN: usize = 12;

    /// A header with the default partition key and everything else clear.
    #[inline]
    pub const fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            mig_req: false,
            pad: 0,
            tver: 0,
            pkey: Pkey::DEFAULT,
            fecn: false,
            becn: false,
            resv6: 0,
            dest_qp,
            ack_req: false,
            resv7: 0,
            psn,
        }
    }

    /// Padding that a payload of `len` bytes needs.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "masked to two bits")]
    pub const fn pad_for(len: usize) -> u8 {
        (len.wrapping_neg() & 3) as u8
    }

    /// Writes the header. Bits of a field beyond its width are dropped.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        let flags = (u8::from(self.solicited) << 7)
            | (u8::from(self.mig_req) << 6)
            | ((self.pad & field::PAD_MASK) << field::PAD_SHIFT)
            | (self.tver & field::TVER_MASK);
        let ecn = (u8::from(self.fecn) << 7)
            | (u8::from(self.becn) << 6)
            | (self.resv6 & field::RESV6_MASK);
        let ack = (u8::from(self.ack_req) << 7) | (self.resv7 & field::RESV7_MASK);
        field::OPCODE.put(out, [self.opcode.0]);
        field::FLAGS.put(out, [flags]);
        field::PKEY.put(out, self.pkey.0.to_be_bytes());
        field::ECN_DEST_QP.put(out, join(ecn, self.dest_qp.get()));
        field::ACK_PSN.put(out, join(ack, self.psn.get()));
    }
}

/// A byte and a 24-bit number in one word.
#[inline]
const fn join(first: u8, rest: u32) -> [u8; 4] {
    (((first as u32) << 24) | rest).to_be_bytes()
}

fixed_header! {
    /// A base transport header in place.
    BthView => Bth
}

impl BthView<'_> {
    /// Every field at once.
    #[inline]
    pub fn to_repr(self) -> Bth {
        Bth {
            opcode: self.opcode(),
            solicited: self.solicited(),
            mig_req: self.mig_req(),
            pad: self.pad(),
            tver: self.tver(),
            pkey: self.pkey(),
            fecn: self.fecn(),
            becn: self.becn(),
            resv6: self.ecn() & field::RESV6_MASK,
            dest_qp: self.dest_qp(),
            ack_req: self.ack_req(),
            resv7: self.ack() & field::RESV7_MASK,
            psn: self.psn(),
        }
    }

    /// Service and operation.
    #[inline]
    pub fn opcode(self) -> Opcode {
        let [byte] = field::OPCODE.get(self.0);
        Opcode(byte)
    }

    /// The receiver's completion is a solicited event.
    #[inline]
    pub fn solicited(self) -> bool {
        self.flags() & field::SOLICITED != 0
    }

    /// Migration state of the sender.
    #[inline]
    pub fn mig_req(self) -> bool {
        self.flags() & field::MIG_REQ != 0
    }

    /// Bytes of padding after the payload, 0 to 3.
    #[inline]
    pub fn pad(self) -> u8 {
        (self.flags() >> field::PAD_SHIFT) & field::PAD_MASK
    }

    /// Transport header version.
    #[inline]
    pub fn tver(self) -> u8 {
        self.flags() & field::TVER_MASK
    }

    /// Partition key.
    #[inline]
    pub fn pkey(self) -> Pkey {
        Pkey(u16::from_be_bytes(field::PKEY.get(self.0)))
    }

    /// Forward congestion notification.
    #[inline]
    pub fn fecn(self) -> bool {
        self.ecn() & field::FECN != 0
    }

    /// Backward congestion notification.
    #[inline]
    pub fn becn(self) -> bool {
        self.ecn() & field::BECN != 0
    }

    /// Queue pair the packet is for.
    #[inline]
    pub fn dest_qp(self) -> Qpn {
        Qpn::new(u32::from_be_bytes(field::ECN_DEST_QP.get(self.0)))
    }

    /// The requester wants an acknowledgement.
    #[inline]
    pub fn ack_req(self) -> bool {
        self.ack() & field::ACK_REQ != 0
    }

    /// Packet sequence number.
    #[inline]
    pub fn psn(self) -> Psn {
        Psn::new(u32::from_be_bytes(field::ACK_PSN.get(self.0)))
    }

    #[inline]
    fn flags(self) -> u8 {
        let [byte] = field::FLAGS.get(self.0);
        byte
    }

    #[inline]
    fn ecn(self) -> u8 {
        let [byte, ..] = field::ECN_DEST_QP.get(self.0);
        byte
    }

    #[inline]
    fn ack(self) -> u8 {
        let [byte, ..] = field::ACK_PSN.get(self.0);
        byte
    }
}
