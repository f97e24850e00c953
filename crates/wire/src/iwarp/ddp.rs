//! DDP headers: where the payload of a segment goes (RFC 5041 4).
//!
//! The first byte is DDP's; the second, and the four bytes behind it in an untagged header, are
//! RDMAP's ([`Control`], RFC 5040 4.1).

use crate::field::fixed_header;
use crate::iwarp::rdmap::RdmaOp;
use crate::{Rkey, Truncated};

/// The version that this project speaks, of DDP and of RDMAP alike.
pub const VERSION: u8 = 1;

mod field {
    use crate::field::Field;

    pub(super) const CONTROL: Field<0, 2> = Field;

    pub(super) const STAG: Field<2, 4> = Field;
    pub(super) const OFFSET: Field<6, 8> = Field;

    pub(super) const INVALIDATE: Field<2, 4> = Field;
    pub(super) const QUEUE: Field<6, 4> = Field;
    pub(super) const MSN: Field<10, 4> = Field;
    pub(super) const MO: Field<14, 4> = Field;

    pub(super) const TAGGED: u8 = 0x80;
    pub(super) const LAST: u8 = 0x40;
    pub(super) const DDP_RESERVED: u8 = 0x3c;
    pub(super) const VERSION: u8 = 0x03;

    pub(super) const RDMAP_VERSION_SHIFT: u32 = 6;
    pub(super) const RDMAP_RESERVED: u8 = 0x30;
    pub(super) const OPCODE: u8 = 0x0f;
}

/// The control fields of DDP and RDMAP, but for the flag that tells tagged from untagged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// Last segment of its message.
    pub last: bool,
    /// Version of DDP, 2 bits.
    pub ddp_version: u8,
    /// Version of RDMAP, 2 bits.
    pub rdmap_version: u8,
    /// What the segment does.
    pub opcode: RdmaOp,
    /// Reserved bits of both bytes, in place.
    pub reserved: [u8; 2],
}

impl Control {
    /// For a segment of this operation.
    pub const fn new(opcode: RdmaOp, last: bool) -> Self {
        Self { last, ddp_version: VERSION, rdmap_version: VERSION, opcode, reserved: [0; 2] }
    }

    const fn parse([ddp, rdmap]: [u8; 2]) -> Self {
        Self {
            last: ddp & field::LAST != 0,
            ddp_version: ddp & field::VERSION,
            rdmap_version: rdmap >> field::RDMAP_VERSION_SHIFT,
            opcode: RdmaOp(rdmap & field::OPCODE),
            reserved: [ddp & field::DDP_RESERVED, rdmap & field::RDMAP_RESERVED],
        }
    }

    const fn emit(self, tagged: u8) -> [u8; 2] {
        let last = if self.last { field::LAST } else { 0 };
        let [ddp, rdmap] = self.reserved;
        [
            tagged | last | ddp & field::DDP_RESERVED | self.ddp_version & field::VERSION,
            self.rdmap_version << field::RDMAP_VERSION_SHIFT
                | rdmap & field::RDMAP_RESERVED
                | self.opcode.0 & field::OPCODE,
        ]
    }
}

/// Header of a segment that says itself where its payload goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tagged {
    /// Control fields.
    pub control: Control,
    /// Key of the memory.
    pub stag: Rkey,
    /// Address of the first byte (tagged offset).
    pub offset: u64,
}

impl Tagged {
    /// Bytes on the wire.
    pub const LEN: usize = 14;

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        field::CONTROL.put(out, self.control.emit(field::TAGGED));
        field::STAG.put(out, self.stag.0.to_be_bytes());
        field::OFFSET.put(out, self.offset.to_be_bytes());
    }
}

fixed_header! {
    /// A tagged header in place; the flag that says so is not looked at.
    TaggedView => Tagged
}

impl TaggedView<'_> {
    /// Every field at once.
    pub fn to_repr(self) -> Tagged {
        Tagged { control: self.control(), stag: self.stag(), offset: self.offset() }
    }

    /// Control fields.
    pub fn control(self) -> Control {
        Control::parse(field::CONTROL.get(self.0))
    }

    /// Key of the memory.
    pub fn stag(self) -> Rkey {
        Rkey(u32::from_be_bytes(field::STAG.get(self.0)))
    }

    /// Address of the first byte.
    pub fn offset(self) -> u64 {
        u64::from_be_bytes(field::OFFSET.get(self.0))
    }
}

/// One of the queues into which untagged messages go (RFC 5040 4.1, RFC 7306 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueNumber(pub u32);

impl QueueNumber {
    /// SENDs and immediate data.
    pub const SEND: Self = Self(0);
    /// READ and atomic requests.
    pub const READ_REQUEST: Self = Self(1);
    /// TERMINATE.
    pub const TERMINATE: Self = Self(2);
    /// Responses to atomics.
    pub const ATOMIC_RESPONSE: Self = Self(3);
}

/// Header of a segment whose payload goes where the receiver decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Untagged {
    /// Control fields.
    pub control: Control,
    /// Key to invalidate, with the SENDs that do so; reserved otherwise.
    pub invalidate: Rkey,
    /// The queue.
    pub queue: QueueNumber,
    /// Number of the message in its queue, from 1.
    pub msn: u32,
    /// Offset of the payload in its message.
    pub mo: u32,
}

impl Untagged {
    /// Bytes on the wire.
    pub const LEN: usize = 18;

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        field::CONTROL.put(out, self.control.emit(0));
        field::INVALIDATE.put(out, self.invalidate.0.to_be_bytes());
        field::QUEUE.put(out, self.queue.0.to_be_bytes());
        field::MSN.put(out, self.msn.to_be_bytes());
        field::MO.put(out, self.mo.to_be_bytes());
    }
}

fixed_header! {
    /// An untagged header in place; the flag that says so is not looked at.
    UntaggedView => Untagged
}

impl UntaggedView<'_> {
    /// Every field at once.
    pub fn to_repr(self) -> Untagged {
        Untagged {
            control: Control::parse(field::CONTROL.get(self.0)),
            invalidate: Rkey(u32::from_be_bytes(field::INVALIDATE.get(self.0))),
            queue: QueueNumber(u32::from_be_bytes(field::QUEUE.get(self.0))),
            msn: u32::from_be_bytes(field::MSN.get(self.0)),
            mo: u32::from_be_bytes(field::MO.get(self.0)),
        }
    }
}

/// A header of either kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// The payload goes to memory that the segment names.
    Tagged(Tagged),
    /// The payload goes to the next buffer of a queue.
    Untagged(Untagged),
}

impl Header {
    /// Bytes of the longer kind.
    pub const MAX_LEN: usize = Untagged::LEN;

    /// Length of the header that begins with this byte.
    pub const fn len_by(first: u8) -> usize {
        if first & field::TAGGED != 0 { Tagged::LEN } else { Untagged::LEN }
    }

    /// Bytes on the wire.
    #[expect(clippy::len_without_is_empty, reason = "no header is empty")]
    pub const fn len(&self) -> usize {
        match self {
            Self::Tagged(_) => Tagged::LEN,
            Self::Untagged(_) => Untagged::LEN,
        }
    }

    /// Control fields.
    pub const fn control(&self) -> &Control {
        match self {
            Self::Tagged(header) => &header.control,
            Self::Untagged(header) => &header.control,
        }
    }

    /// Reads the header at the start of `bytes` and returns it with what follows.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Truncated> {
        let first = bytes.first().ok_or(Truncated)?;
        if first & field::TAGGED != 0 {
            Tagged::parse(bytes).map(|(header, rest)| (Self::Tagged(header), rest))
        } else {
            Untagged::parse(bytes).map(|(header, rest)| (Self::Untagged(header), rest))
        }
    }

    /// Writes the header and returns its length.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Truncated> {
        match self {
            Self::Tagged(header) => header.emit(out.first_chunk_mut().ok_or(Truncated)?),
            Self::Untagged(header) => header.emit(out.first_chunk_mut().ok_or(Truncated)?),
        }
        Ok(self.len())
    }
}
