//! Startup frames: the request of the initiator and the reply of the responder (RFC 5044 7.1), and
//! the enhanced setup at the start of their private data (RFC 6581 4).

use core::fmt;

use crate::field::fixed_header;
use crate::write::Writer;
use crate::{Truncated, field::Field};

/// Most bytes of private data, the enhanced setup included (RFC 5044 7.1.1).
pub const MAX_PRIVATE_DATA: usize = 512;

/// Most READ requests that a peer can announce; the field has 14 bits (RFC 6581 4.1).
pub const MAX_READS: u16 = 0x3fff;

const REQUEST_KEY: [u8; 16] = *b"MPA ID Req Frame";
const REPLY_KEY: [u8; 16] = *b"MPA ID Rep Frame";

const KEY: Field<0, 16> = Field;
const FLAGS: Field<16, 1> = Field;
const REVISION: Field<17, 1> = Field;
const PD_LENGTH: Field<18, 2> = Field;

const MARKERS: u8 = 0x80;
const CRC: u8 = 0x40;
const REJECTED: u8 = 0x20;
const ENHANCED: u8 = 0x10;
const RESERVED: u8 = 0x0f;

/// Which of the two frames it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The initiator's, the first bytes on the stream.
    Request,
    /// The responder's.
    Reply,
}

impl Role {
    const fn key(self) -> [u8; 16] {
        match self {
            Self::Request => REQUEST_KEY,
            Self::Reply => REPLY_KEY,
        }
    }
}

/// What a startup frame says beside its private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Startup {
    /// Request or reply.
    pub role: Role,
    /// M: the sender of the frame wants markers in what it receives.
    pub markers: bool,
    /// C: the sender wants CRCs; they are used unless neither side wants them.
    pub crc: bool,
    /// R: the connection is rejected; in replies only.
    pub rejected: bool,
    /// S: the private data begins with an [`Enhanced`] setup.
    pub enhanced: bool,
    /// Reserved flags, 4 bits.
    pub reserved: u8,
    /// Revision of MPA: 0 or 1, or 2 with the flag S.
    pub revision: u8,
}

impl Startup {
    /// Bytes before the private data.
    pub const LEN: usize = 20;

    /// A frame with no flag set.
    pub const fn new(role: Role, revision: u8) -> Self {
        Self {
            role,
            markers: false,
            crc: false,
            rejected: false,
            enhanced: false,
            reserved: 0,
            revision,
        }
    }

    /// Reads the frame at the start of `bytes`: itself, its private data, and what follows.
    ///
    /// A stream arrives in pieces: [`StartupError::Incomplete`] says how many bytes the frame needs
    /// so far. A key that cannot become that of `role` is an error from its first wrong byte on.
    pub fn parse(role: Role, bytes: &[u8]) -> Result<(Self, &[u8], &[u8]), StartupError> {
        if bytes.iter().zip(role.key()).any(|(byte, expected)| *byte != expected) {
            return Err(StartupError::WrongKey);
        }
        let Some((head, rest)) = bytes.split_first_chunk::<{ Self::LEN }>() else {
            return Err(StartupError::Incomplete { needed: Self::LEN });
        };
        let len = u16::from_be_bytes(PD_LENGTH.get(head));
        if usize::from(len) > MAX_PRIVATE_DATA {
            return Err(StartupError::PrivateDataTooLong(len));
        }
        let Some((private_data, rest)) = rest.split_at_checked(usize::from(len)) else {
            return Err(StartupError::Incomplete { needed: Self::LEN + usize::from(len) });
        };
        let [flags] = FLAGS.get(head);
        let [revision] = REVISION.get(head);
        let startup = Self {
            role,
            markers: flags & MARKERS != 0,
            crc: flags & CRC != 0,
            rejected: flags & REJECTED != 0,
            enhanced: flags & ENHANCED != 0,
            reserved: flags & RESERVED,
            revision,
        };
        Ok((startup, private_data, rest))
    }

    /// Writes the frame, with its private data in two parts, and returns its length.
    ///
    /// The first part is empty or the [`Enhanced`] setup. Private data of more than
    /// [`MAX_PRIVATE_DATA`] bytes does not fit.
    pub fn emit(&self, private_data: [&[u8]; 2], out: &mut [u8]) -> Result<usize, Truncated> {
        let len = private_data.iter().map(|part| part.len()).sum::<usize>();
        let pd_length = u16::try_from(len).ok().filter(|_| len <= MAX_PRIVATE_DATA);
        let pd_length = pd_length.ok_or(Truncated)?;
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let flags = flag(self.markers, MARKERS)
            | flag(self.crc, CRC)
            | flag(self.rejected, REJECTED)
            | flag(self.enhanced, ENHANCED)
            | self.reserved & RESERVED;
        let mut writer = Writer::new(out);
        writer.array::<{ Self::LEN }>(|head| {
            KEY.put(head, self.role.key());
            FLAGS.put(head, [flags]);
            REVISION.put(head, [self.revision]);
            PD_LENGTH.put(head, pd_length.to_be_bytes());
        })?;
        for part in private_data {
            writer.bytes(part)?;
        }
        Ok(writer.written())
    }
}

/// Why bytes are not a startup frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartupError {
    /// The frame goes on behind the bytes that are there.
    Incomplete {
        /// Bytes that it has at least.
        needed: usize,
    },
    /// The stream is not MPA, or the frame is the other side's.
    WrongKey,
    /// More private data than [`MAX_PRIVATE_DATA`].
    PrivateDataTooLong(u16),
}

impl fmt::Display for StartupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Incomplete { needed } => write!(f, "the frame has {needed} bytes at least"),
            Self::WrongKey => f.write_str("not the key of an MPA startup frame"),
            Self::PrivateDataTooLong(len) => {
                write!(f, "{len} bytes of private data, {MAX_PRIVATE_DATA} are allowed")
            }
        }
    }
}

impl core::error::Error for StartupError {}

/// Which messages the initiator may send as its first one, to tell the responder that it may send
/// (ready to receive); all of them are empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Rtr(u8);

impl Rtr {
    /// None of them.
    pub const NONE: Self = Self(0);
    /// B: a SEND, which consumes a receive.
    pub const SEND: Self = Self(1);
    /// C: a WRITE.
    pub const WRITE: Self = Self(2);
    /// D: a READ, which is answered.
    pub const READ: Self = Self(4);

    /// Whether every kind of `other` is among them.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The kinds of both.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The kinds that both have.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    const fn when(self, is_set: bool) -> Self {
        if is_set { self } else { Self::NONE }
    }
}

mod field {
    use crate::field::Field;

    pub(super) const IRD: Field<0, 2> = Field;
    pub(super) const ORD: Field<2, 2> = Field;

    /// A and C.
    pub(super) const HIGH: u16 = 0x8000;
    /// B and D.
    pub(super) const LOW: u16 = 0x4000;
}

/// The enhanced setup: how many READs each side may have under way, and who may send first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enhanced {
    /// READ requests of the peer that the sender of the frame can hold, 14 bits.
    pub ird: u16,
    /// READ requests that it will have under way, 14 bits.
    pub ord: u16,
    /// A: the initiator sends a ready-to-receive message, so that the responder may send first.
    pub peer_to_peer: bool,
    /// The messages that may be used for that.
    pub rtr: Rtr,
}

impl Enhanced {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Writes the setup.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let ird = self.ird & MAX_READS
            | flag(self.peer_to_peer, field::HIGH)
            | flag(self.rtr.contains(Rtr::SEND), field::LOW);
        let ord = self.ord & MAX_READS
            | flag(self.rtr.contains(Rtr::WRITE), field::HIGH)
            | flag(self.rtr.contains(Rtr::READ), field::LOW);
        field::IRD.put(out, ird.to_be_bytes());
        field::ORD.put(out, ord.to_be_bytes());
    }
}

fixed_header! {
    /// An enhanced setup in place.
    EnhancedView => Enhanced
}

impl EnhancedView<'_> {
    /// Every field at once.
    pub fn to_repr(self) -> Enhanced {
        let ird = u16::from_be_bytes(field::IRD.get(self.0));
        let ord = u16::from_be_bytes(field::ORD.get(self.0));
        let send = Rtr::SEND.when(ird & field::LOW != 0);
        let write = Rtr::WRITE.when(ord & field::HIGH != 0);
        let read = Rtr::READ.when(ord & field::LOW != 0);
        Enhanced {
            ird: ird & MAX_READS,
            ord: ord & MAX_READS,
            peer_to_peer: ird & field::HIGH != 0,
            rtr: send.union(write).union(read),
        }
    }
}
