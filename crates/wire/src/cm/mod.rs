//! Messages of communication management (IBTA vol1 12.6), and what the RDMA IP connection manager
//! puts into their private data (annex A11).
//!
//! Each message is a plain value with fixed private data; [`CmMessage`] is any of them, and
//! [`CmMessage::parse`] and [`CmMessage::emit`] are whole datagrams of 256 bytes.

mod ip;
mod rep;
mod req;
mod short;

pub use ip::{IP_CM_LEN, IpCm, PortSpace, ServiceId};
pub use rep::Rep;
pub use req::{PathInfo, Req};
pub use short::{
    Apr, Drep, Dreq, Lap, Mra, Rej, RejReason, Rtu, SidrRep, SidrReq, SidrStatus, Stage,
};

use crate::mad::{MAD_DATA_LEN, MAD_LEN, MadHeader};

/// Bytes behind the header of a message.
pub(crate) type CmData = [u8; MAD_DATA_LEN];

/// Number by which one side knows a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct CommId(pub u32);

/// Any message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is documented as a type")]
pub enum CmMessage {
    Req(Req),
    Mra(Mra),
    Rej(Rej),
    Rep(Rep),
    Rtu(Rtu),
    Dreq(Dreq),
    Drep(Drep),
    SidrReq(SidrReq),
    SidrRep(SidrRep),
    Lap(Lap),
    Apr(Apr),
}

/// Which connection manager a message is for, among those that share an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recipient {
    /// The one that listens for a service: the message is a request.
    Listener(ServiceId),
    /// The one that gave a connection this number.
    Connection(CommId),
    /// The one that received the request of the sender, which knows no number of the recipient: it
    /// withdraws a request that was not answered. The number is the sender's.
    Requested(CommId),
}

/// Why a datagram is not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmError {
    /// Shorter than a management datagram.
    Truncated,
    /// Of another class, version or method.
    NotCm,
    /// An attribute that communication management does not have.
    UnknownAttribute(u16),
}

impl core::fmt::Display for CmError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Truncated => f.write_str("shorter than a management datagram"),
            Self::NotCm => f.write_str("not a communication management datagram"),
            Self::UnknownAttribute(id) => write!(f, "unknown attribute {id:#06x}"),
        }
    }
}

impl core::error::Error for CmError {}

/// Writes the functions that treat every message alike.
macro_rules! messages {
    ($($variant:ident = $id:literal, $name:literal;)*) => {
        impl CmMessage {
            /// Attribute of the datagram.
            pub const fn attribute(&self) -> u16 {
                match self { $(Self::$variant(_) => $id,)* }
            }

            /// Name of the message.
            pub const fn name(&self) -> &'static str {
                match self { $(Self::$variant(_) => $name,)* }
            }

            fn parse_data(attribute: u16, data: &CmData) -> Option<Self> {
                Some(match attribute {
                    $($id => Self::$variant($variant::parse(data)),)*
                    _ => return None,
                })
            }

            fn emit_data(&self, data: &mut CmData) {
                match self { $(Self::$variant(message) => message.emit(data),)* }
            }
        }
    };
}

messages! {
    Req = 0x10, "REQ";
    Mra = 0x11, "MRA";
    Rej = 0x12, "REJ";
    Rep = 0x13, "REP";
    Rtu = 0x14, "RTU";
    Dreq = 0x15, "DREQ";
    Drep = 0x16, "DREP";
    SidrReq = 0x17, "SIDR_REQ";
    SidrRep = 0x18, "SIDR_REP";
    Lap = 0x19, "LAP";
    Apr = 0x1a, "APR";
}

impl CmMessage {
    /// Which connection manager the message is for.
    pub fn recipient(&self) -> Recipient {
        match self {
            Self::Req(m) => Recipient::Listener(m.service_id),
            Self::SidrReq(m) => Recipient::Listener(m.service_id),
            Self::Rej(m) if m.remote_id == CommId(0) => Recipient::Requested(m.local_id),
            Self::Rej(m) => Recipient::Connection(m.remote_id),
            Self::Mra(m) => Recipient::Connection(m.remote_id),
            Self::Rep(m) => Recipient::Connection(m.remote_id),
            Self::Rtu(m) => Recipient::Connection(m.remote_id),
            Self::Dreq(m) => Recipient::Connection(m.remote_id),
            Self::Drep(m) => Recipient::Connection(m.remote_id),
            Self::SidrRep(m) => Recipient::Connection(m.request_id),
            Self::Lap(m) => Recipient::Connection(m.remote_id),
            Self::Apr(m) => Recipient::Connection(m.remote_id),
        }
    }

    /// Reads a datagram; what follows its 256 bytes is ignored. Returns the transaction, too.
    pub fn parse(bytes: &[u8]) -> Result<(u64, Self), CmError> {
        let (header, rest) = MadHeader::parse(bytes).map_err(|_| CmError::Truncated)?;
        let data = rest.first_chunk().ok_or(CmError::Truncated)?;
        if !header.is_cm() {
            return Err(CmError::NotCm);
        }
        let message = Self::parse_data(header.attribute, data)
            .ok_or(CmError::UnknownAttribute(header.attribute))?;
        Ok((header.transaction, message))
    }

    /// Writes a datagram.
    pub fn emit(&self, transaction: u64) -> [u8; MAD_LEN] {
        let mut head = [0; MadHeader::LEN];
        MadHeader::cm(self.attribute(), transaction).emit(&mut head);
        let mut data = [0; MAD_DATA_LEN];
        self.emit_data(&mut data);
        let mut out = [0; MAD_LEN];
        out[..MadHeader::LEN].copy_from_slice(&head);
        out[MadHeader::LEN..].copy_from_slice(&data);
        out
    }
}

/// `hi` above the low `bits` bits of `lo`.
pub(crate) const fn join(hi: u8, bits: u32, lo: u8) -> u8 {
    (hi << bits) | (lo & ((1 << bits) - 1))
}
