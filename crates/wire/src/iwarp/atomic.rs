//! Atomic operations and immediate data (RFC 7306). Peers cannot negotiate them: both must be
//! configured for them.

use crate::Rkey;
use crate::field::fixed_header;

mod field {
    use crate::field::Field;

    /// Reserved (28), operation (4).
    pub(super) const OPERATION: Field<0, 4> = Field;
    pub(super) const REQUEST_ID: Field<4, 4> = Field;
    pub(super) const STAG: Field<8, 4> = Field;
    pub(super) const OFFSET: Field<12, 8> = Field;
    pub(super) const ADD_SWAP: Field<20, 8> = Field;
    pub(super) const ADD_SWAP_MASK: Field<28, 8> = Field;
    pub(super) const COMPARE: Field<36, 8> = Field;
    pub(super) const COMPARE_MASK: Field<44, 8> = Field;

    pub(super) const ORIGINAL_ID: Field<0, 4> = Field;
    pub(super) const ORIGINAL: Field<4, 8> = Field;

    pub(super) const DATA: Field<0, 8> = Field;
}

/// Kind of an atomic: 4 bits; codes without a name are data, too. The 28 reserved bits in front of
/// it are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AtomicOp(pub u32);

impl AtomicOp {
    /// Fetch and add.
    pub const FETCH_ADD: Self = Self(0);
    /// Compare and swap.
    pub const CMP_SWAP: Self = Self(2);

    /// The operation without the reserved bits, which a receiver ignores (RFC 7306 5.2.1).
    #[must_use]
    pub const fn code(self) -> Self {
        Self(self.0 & 0xf)
    }
}

/// The payload of an atomic request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicRequest {
    /// What to do.
    pub op: AtomicOp,
    /// Comes back in the response.
    pub request_id: u32,
    /// Key of the memory.
    pub stag: Rkey,
    /// Address of the eight bytes.
    pub offset: u64,
    /// What to add, or the new value.
    pub add_swap: u64,
    /// Its mask: carries stop at bits that are set, or only these bits are swapped.
    pub add_swap_mask: u64,
    /// What to compare with.
    pub compare: u64,
    /// Which bits to compare.
    pub compare_mask: u64,
}

impl AtomicRequest {
    /// Bytes on the wire.
    pub const LEN: usize = 52;

    /// Writes the request.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        field::OPERATION.put(out, self.op.0.to_be_bytes());
        field::REQUEST_ID.put(out, self.request_id.to_be_bytes());
        field::STAG.put(out, self.stag.0.to_be_bytes());
        field::OFFSET.put(out, self.offset.to_be_bytes());
        field::ADD_SWAP.put(out, self.add_swap.to_be_bytes());
        field::ADD_SWAP_MASK.put(out, self.add_swap_mask.to_be_bytes());
        field::COMPARE.put(out, self.compare.to_be_bytes());
        field::COMPARE_MASK.put(out, self.compare_mask.to_be_bytes());
    }
}

fixed_header! {
    /// An atomic request in place.
    AtomicRequestView => AtomicRequest
}

impl AtomicRequestView<'_> {
    /// Every field at once.
    pub fn to_repr(self) -> AtomicRequest {
        AtomicRequest {
            op: AtomicOp(u32::from_be_bytes(field::OPERATION.get(self.0))),
            request_id: u32::from_be_bytes(field::REQUEST_ID.get(self.0)),
            stag: Rkey(u32::from_be_bytes(field::STAG.get(self.0))),
            offset: u64::from_be_bytes(field::OFFSET.get(self.0)),
            add_swap: u64::from_be_bytes(field::ADD_SWAP.get(self.0)),
            add_swap_mask: u64::from_be_bytes(field::ADD_SWAP_MASK.get(self.0)),
            compare: u64::from_be_bytes(field::COMPARE.get(self.0)),
            compare_mask: u64::from_be_bytes(field::COMPARE_MASK.get(self.0)),
        }
    }
}

/// The payload of the response to an atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicResponse {
    /// The number of the request.
    pub request_id: u32,
    /// What the memory held before.
    pub original: u64,
}

impl AtomicResponse {
    /// Bytes on the wire.
    pub const LEN: usize = 12;

    /// Writes the response.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        field::ORIGINAL_ID.put(out, self.request_id.to_be_bytes());
        field::ORIGINAL.put(out, self.original.to_be_bytes());
    }
}

fixed_header! {
    /// The response to an atomic in place.
    AtomicResponseView => AtomicResponse
}

impl AtomicResponseView<'_> {
    /// Every field at once.
    pub fn to_repr(self) -> AtomicResponse {
        AtomicResponse {
            request_id: u32::from_be_bytes(field::ORIGINAL_ID.get(self.0)),
            original: u64::from_be_bytes(field::ORIGINAL.get(self.0)),
        }
    }
}

/// The payload of an immediate data message: eight bytes, of which verbs use four.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Immediate {
    /// The bytes.
    pub data: [u8; 8],
}

impl Immediate {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Writes the bytes.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        field::DATA.put(out, self.data);
    }
}

fixed_header! {
    /// Immediate data in place.
    ImmediateView => Immediate
}

impl ImmediateView<'_> {
    /// Every field at once.
    pub fn to_repr(self) -> Immediate {
        Immediate { data: field::DATA.get(self.0) }
    }
}
