//! RDMAP: the operations, and the header of READ requests (RFC 5040 4).

use crate::Rkey;
use crate::field::fixed_header;
use crate::layout::codes;

codes! {
    /// Operation of a segment: 4 bits.
    RdmaOp(u8) {
        /// WRITE; tagged.
        WRITE = 0, "WRITE";
        /// Request of a READ.
        READ_REQUEST = 1, "READ Request";
        /// Response to a READ; tagged.
        READ_RESPONSE = 2, "READ Response";
        /// SEND.
        SEND = 3, "SEND";
        /// SEND that invalidates a key of the receiver.
        SEND_INV = 4, "SEND with Invalidate";
        /// SEND with a solicited event.
        SEND_SE = 5, "SEND with Solicited Event";
        /// SEND that does both.
        SEND_SE_INV = 6, "SEND with Solicited Event and Invalidate";
        /// The last message of a stream.
        TERMINATE = 7, "TERMINATE";
        /// Immediate data (RFC 7306).
        IMMEDIATE = 8, "Immediate Data";
        /// Immediate data with a solicited event (RFC 7306).
        IMMEDIATE_SE = 9, "Immediate Data with Solicited Event";
        /// Request of an atomic (RFC 7306).
        ATOMIC_REQUEST = 10, "Atomic Request";
        /// Response to an atomic (RFC 7306).
        ATOMIC_RESPONSE = 11, "Atomic Response";
    }
}

impl RdmaOp {
    /// One of the four SENDs.
    pub const fn send(solicited: bool, invalidates: bool) -> Self {
        match (solicited, invalidates) {
            (false, false) => Self::SEND,
            (false, true) => Self::SEND_INV,
            (true, false) => Self::SEND_SE,
            (true, true) => Self::SEND_SE_INV,
        }
    }

    /// Whether it is one of the four SENDs.
    pub const fn is_send(self) -> bool {
        matches!(self, Self::SEND | Self::SEND_INV | Self::SEND_SE | Self::SEND_SE_INV)
    }

    /// Whether it invalidates a key of the receiver.
    pub const fn invalidates(self) -> bool {
        matches!(self, Self::SEND_INV | Self::SEND_SE_INV)
    }

    /// Whether it wakes a receiver that waits for solicited events.
    pub const fn is_solicited(self) -> bool {
        matches!(self, Self::SEND_SE | Self::SEND_SE_INV | Self::IMMEDIATE_SE)
    }
}

mod field {
    use crate::field::Field;

    pub(super) const SINK_STAG: Field<0, 4> = Field;
    pub(super) const SINK_OFFSET: Field<4, 8> = Field;
    pub(super) const LEN: Field<12, 4> = Field;
    pub(super) const SOURCE_STAG: Field<16, 4> = Field;
    pub(super) const SOURCE_OFFSET: Field<20, 8> = Field;
}

/// The payload of a READ request (RFC 5040 4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// Key of the requester's memory, which the response names.
    pub sink_stag: Rkey,
    /// Address of its first byte.
    pub sink_offset: u64,
    /// Bytes to read.
    pub len: u32,
    /// Key of the responder's memory.
    pub source_stag: Rkey,
    /// Address of its first byte.
    pub source_offset: u64,
}

impl ReadRequest {
    /// Bytes on the wire.
    pub const LEN: usize = 28;

    /// Writes the request.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        field::SINK_STAG.put(out, self.sink_stag.0.to_be_bytes());
        field::SINK_OFFSET.put(out, self.sink_offset.to_be_bytes());
        field::LEN.put(out, self.len.to_be_bytes());
        field::SOURCE_STAG.put(out, self.source_stag.0.to_be_bytes());
        field::SOURCE_OFFSET.put(out, self.source_offset.to_be_bytes());
    }
}

fixed_header! {
    /// A READ request in place.
    ReadRequestView => ReadRequest
}

impl ReadRequestView<'_> {
    /// Every field at once.
    pub fn to_repr(self) -> ReadRequest {
        ReadRequest {
            sink_stag: Rkey(u32::from_be_bytes(field::SINK_STAG.get(self.0))),
            sink_offset: u64::from_be_bytes(field::SINK_OFFSET.get(self.0)),
            len: u32::from_be_bytes(field::LEN.get(self.0)),
            source_stag: Rkey(u32::from_be_bytes(field::SOURCE_STAG.get(self.0))),
            source_offset: u64::from_be_bytes(field::SOURCE_OFFSET.get(self.0)),
        }
    }
}
