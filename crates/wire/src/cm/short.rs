//! The other messages: few fields and much private data.
//!
//! Each is a table of its fields: name, type and offset in the datagram behind the header.

use super::{CmData, CommId, ServiceId};
use crate::field::Field;
use crate::{Pkey, Qkey, Qpn};

/// A type that is `W` bytes of a message.
trait Wire<const W: usize> {
    fn from_bytes(bytes: [u8; W]) -> Self;
    fn to_bytes(self) -> [u8; W];
}

/// Bytes that stand as they are: private data.
impl<const W: usize> Wire<W> for [u8; W] {
    fn from_bytes(bytes: [u8; W]) -> Self {
        bytes
    }

    fn to_bytes(self) -> [u8; W] {
        self
    }
}

impl Wire<1> for u8 {
    fn from_bytes([byte]: [u8; 1]) -> Self {
        byte
    }

    fn to_bytes(self) -> [u8; 1] {
        [self]
    }
}

impl Wire<3> for Qpn {
    fn from_bytes(bytes: [u8; 3]) -> Self {
        Self::from_be_bytes(bytes)
    }

    fn to_bytes(self) -> [u8; 3] {
        self.to_be_bytes()
    }
}

/// Newtypes of integers, most significant byte first.
macro_rules! big_endian {
    ($($name:ident($int:ty);)*) => {
        $(impl Wire<{ size_of::<$int>() }> for $name {
            fn from_bytes(bytes: [u8; size_of::<$int>()]) -> Self {
                Self(<$int>::from_be_bytes(bytes))
            }

            fn to_bytes(self) -> [u8; size_of::<$int>()] {
                self.0.to_be_bytes()
            }
        })*
    };
}

big_endian! {
    CommId(u32);
    Pkey(u16);
    Qkey(u32);
    RejReason(u16);
    ServiceId(u64);
    SidrStatus(u8);
}

/// Reads the field of a message at an offset. A field with a shift is the upper bits of a byte.
macro_rules! read {
    ($data:ident, $ty:ty, $at:literal) => {
        <$ty as Wire<_>>::from_bytes(Field::<$at, _>.get($data))
    };
    ($data:ident, $ty:ty, $at:literal, $shift:literal) => {
        Field::<$at, 1>.get($data)[0] >> $shift
    };
}

/// Writes what [`read`] reads.
macro_rules! write {
    ($out:ident, $value:expr, $at:literal) => {
        Field::<$at, _>.put($out, $value.to_bytes())
    };
    ($out:ident, $value:expr, $at:literal, $shift:literal) => {
        Field::<$at, 1>.put($out, [$value << $shift])
    };
}

/// Defines a message by its fields: `name: type = offset`, or `name: u8 = offset << shift` for the
/// upper bits of a byte. Bytes that no field names are zero.
macro_rules! message {
    (
        $(#[$doc:meta])*
        $name:ident {
            $($(#[$field_doc:meta])* $field:ident: $ty:ty = $at:literal $(<< $shift:literal)?;)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $ty,)*
        }

        impl $name {
            pub(super) fn parse(data: &CmData) -> Self {
                Self { $($field: read!(data, $ty, $at $(, $shift)?),)* }
            }

            pub(super) fn emit(&self, out: &mut CmData) {
                $(write!(out, self.$field, $at $(, $shift)?);)*
            }
        }
    };
}

/// Which message an MRA or REJ answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A REQ.
    Req,
    /// A REP.
    Rep,
    /// Another one: LAP for an MRA, none in particular for a REJ.
    Other,
    /// A reserved code.
    Reserved,
}

impl Wire<1> for Stage {
    fn from_bytes([byte]: [u8; 1]) -> Self {
        match byte >> 6 {
            0 => Self::Req,
            1 => Self::Rep,
            2 => Self::Other,
            _ => Self::Reserved,
        }
    }

    fn to_bytes(self) -> [u8; 1] {
        let code = match self {
            Self::Req => 0,
            Self::Rep => 1,
            Self::Other => 2,
            Self::Reserved => 3,
        };
        [code << 6]
    }
}

message! {
    /// Asks for more time (IBTA vol1 12.6.6).
    Mra {
        /// How the sender knows the connection.
        local_id: CommId = 0;
        /// How the receiver knows it.
        remote_id: CommId = 4;
        /// The message that takes longer.
        stage: Stage = 8;
        /// How much longer, as a code (5 bits).
        service_timeout: u8 = 9 << 3;
        /// For the consumer.
        private_data: [u8; 222] = 10;
    }
}

/// Why a connection is refused (IBTA vol1 12.6.7.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RejReason(pub u16);

impl RejReason {
    /// The sender has no queue pair.
    pub const NO_QP: Self = Self(1);
    /// No resources are left.
    pub const NO_RESOURCES: Self = Self(3);
    /// The peer did not answer in time.
    pub const TIMEOUT: Self = Self(4);
    /// What is asked for is not supported.
    pub const UNSUPPORTED: Self = Self(5);
    /// The communication identifier does not fit.
    pub const INVALID_COMM_ID: Self = Self(6);
    /// The service is not known.
    pub const INVALID_SERVICE_ID: Self = Self(8);
    /// The service of the transport is not offered.
    pub const INVALID_TRANSPORT: Self = Self(9);
    /// The connection is left over from an earlier incarnation of the peer.
    pub const STALE: Self = Self(10);
    /// The address is wrong.
    pub const INVALID_GID: Self = Self(12);
    /// The LID is wrong.
    pub const INVALID_LID: Self = Self(13);
    /// The path MTU is wrong.
    pub const INVALID_MTU: Self = Self(26);
    /// The consumer does not want it.
    pub const CONSUMER: Self = Self(28);

    /// The reason in words.
    pub const fn name(self) -> &'static str {
        match self.0 {
            1 => "no queue pair",
            3 => "no resources",
            4 => "timeout",
            5 => "not supported",
            6 => "invalid communication id",
            8 => "invalid service id",
            9 => "invalid transport service",
            10 => "stale connection",
            12 => "invalid gid",
            13 => "invalid lid",
            26 => "invalid mtu",
            28 => "consumer defined",
            _ => "other",
        }
    }
}

message! {
    /// Refuses a connection (IBTA vol1 12.6.7).
    Rej {
        /// How the sender knows the connection.
        local_id: CommId = 0;
        /// How the receiver knows it.
        remote_id: CommId = 4;
        /// The message that is refused.
        stage: Stage = 8;
        /// Bytes of additional information (7 bits).
        info_len: u8 = 9 << 1;
        /// Why.
        reason: RejReason = 10;
        /// Additional information.
        info: [u8; 72] = 12;
        /// For the consumer.
        private_data: [u8; 148] = 84;
    }
}

message! {
    /// The connection is ready to use (IBTA vol1 12.6.9).
    Rtu {
        /// How the sender knows the connection.
        local_id: CommId = 0;
        /// How the receiver knows it.
        remote_id: CommId = 4;
        /// For the consumer.
        private_data: [u8; 224] = 8;
    }
}

message! {
    /// The connection is released (IBTA vol1 12.6.11).
    Drep {
        /// How the sender knows the connection.
        local_id: CommId = 0;
        /// How the receiver knows it.
        remote_id: CommId = 4;
        /// For the consumer.
        private_data: [u8; 224] = 8;
    }
}

message! {
    /// Asks to release a connection (IBTA vol1 12.6.10).
    Dreq {
        /// How the sender knows the connection.
        local_id: CommId = 0;
        /// How the receiver knows it.
        remote_id: CommId = 4;
        /// The receiver's queue pair.
        remote_qpn: Qpn = 8;
        /// For the consumer.
        private_data: [u8; 220] = 12;
    }
}

message! {
    /// Asks which queue pair offers a datagram service (IBTA vol1 12.11.1).
    SidrReq {
        /// How the sender knows the request.
        request_id: CommId = 0;
        /// Partition.
        pkey: Pkey = 4;
        /// The service that the sender looks for.
        service_id: ServiceId = 8;
        /// For the consumer.
        private_data: [u8; 216] = 16;
    }
}

/// Outcome of a request for a datagram service.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SidrStatus(pub u8);

impl SidrStatus {
    /// The queue pair is given.
    pub const SUCCESS: Self = Self(0);
    /// The service is not known.
    pub const UNSUPPORTED: Self = Self(1);
    /// The service refused.
    pub const REJECTED: Self = Self(2);
    /// There is no queue pair.
    pub const NO_QP: Self = Self(3);
}

message! {
    /// Tells which queue pair offers a datagram service (IBTA vol1 12.11.2).
    SidrRep {
        /// How the receiver knows the request.
        request_id: CommId = 0;
        /// Outcome.
        status: SidrStatus = 4;
        /// Bytes of additional information.
        info_len: u8 = 5;
        /// The queue pair.
        qpn: Qpn = 8;
        /// The service that the receiver looked for.
        service_id: ServiceId = 12;
        /// Its queue key.
        qkey: Qkey = 20;
        /// Additional information.
        info: [u8; 72] = 24;
        /// For the consumer.
        private_data: [u8; 136] = 96;
    }
}

message! {
    /// Offers an alternate path (IBTA vol1 12.8.1). Only what an answer needs is taken apart.
    Lap {
        /// How the sender knows the connection.
        local_id: CommId = 0;
        /// How the receiver knows it.
        remote_id: CommId = 4;
        /// The receiver's queue pair.
        remote_qpn: Qpn = 12;
        /// Everything else, as it stands.
        rest: [u8; 217] = 15;
    }
}

message! {
    /// Answers the offer of an alternate path (IBTA vol1 12.8.2).
    Apr {
        /// How the sender knows the connection.
        local_id: CommId = 0;
        /// How the receiver knows it.
        remote_id: CommId = 4;
        /// Bytes of additional information.
        info_len: u8 = 8;
        /// Outcome: 0 is accepted, 3 and above refused.
        status: u8 = 9;
        /// Additional information.
        info: [u8; 72] = 12;
        /// For the consumer.
        private_data: [u8; 148] = 84;
    }
}
