//! Length of the transport headers that an opcode announces. It stands apart from the opcode, since
//! it knows every header, and the base transport header knows the opcode.

use crate::{
    Aeth, AtomicAckEth, AtomicEth, Bth, CnpReserved, Deth, Feth, Ieth, ImmDt, Op, Opcode, Reth,
    Service, XrcEth,
};

impl Opcode {
    /// Length of the base transport header and every extension header of this opcode, that is,
    /// the offset of the payload.
    #[inline]
    pub const fn header_len(self) -> Option<usize> {
        match HEADER_LEN[self.0 as usize] {
            0 => None,
            n => Some(n as usize),
        }
    }
}

/// [`Opcode::header_len`] of every byte; zero where there is none.
static HEADER_LEN: [u8; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < table.len() {
        #[expect(clippy::cast_possible_truncation, reason = "the table has 256 entries")]
        if let Some((service, op)) = Opcode(i as u8).decode() {
            table[i] = header_len(service, op);
        }
        i += 1;
    }
    table
};

/// Length of all transport headers; at most 12 + 4 + 28.
#[expect(clippy::cast_possible_truncation, reason = "a sum of header lengths is below 256")]
const fn header_len(service: Service, op: Op) -> u8 {
    let mut len = Bth::LEN;
    match service {
        Service::Ud => len += Deth::LEN,
        Service::Xrc if op.is_request() => len += XrcEth::LEN,
        Service::Cnp => len += CnpReserved::LEN,
        Service::Rc | Service::Uc | Service::Xrc => {}
    }
    if op.has_feth() {
        len += Feth::LEN;
    }
    if op.has_reth() {
        len += Reth::LEN;
    }
    if op.has_atomic_eth() {
        len += AtomicEth::LEN;
    }
    if op.has_aeth() {
        len += Aeth::LEN;
    }
    if op.has_atomic_ack_eth() {
        len += AtomicAckEth::LEN;
    }
    if op.has_imm() {
        len += ImmDt::LEN;
    }
    if op.has_ieth() {
        len += Ieth::LEN;
    }
    len as u8
}
