//! The other messages: few fields and much private data.

use super::{CmData, CommId, ServiceId};
use crate::field::{Field, be24, from_be24};
use crate::{Pkey, Qkey, Qpn};

const LOCAL_ID: Field<0, 4> = Field;
const REMOTE_ID: Field<4, 4> = Field;

fn ids(data: &CmData) -> (CommId, CommId) {
    let id = |bytes| CommId(u32::from_be_bytes(bytes));
    (id(LOCAL_ID.get(data)), id(REMOTE_ID.get(data)))
}

fn put_ids(out: &mut CmData, local: CommId, remote: CommId) {
    LOCAL_ID.put(out, local.0.to_be_bytes());
    REMOTE_ID.put(out, remote.0.to_be_bytes());
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

impl Stage {
    const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::Req,
            1 => Self::Rep,
            2 => Self::Other,
            _ => Self::Reserved,
        }
    }

    const fn bits(self) -> u8 {
        match self {
            Self::Req => 0,
            Self::Rep => 1,
            Self::Other => 2,
            Self::Reserved => 3,
        }
    }
}

/// Asks for more time (IBTA vol1 12.6.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mra {
    /// How the sender knows the connection.
    pub local_id: CommId,
    /// How the receiver knows it.
    pub remote_id: CommId,
    /// The message that takes longer.
    pub stage: Stage,
    /// How much longer, as a code (5 bits).
    pub service_timeout: u8,
    /// For the consumer.
    pub private_data: [u8; 222],
}

impl Mra {
    const STAGE: Field<8, 1> = Field;
    const TIMEOUT: Field<9, 1> = Field;
    const PRIVATE: Field<10, 222> = Field;

    pub(super) fn parse(data: &CmData) -> Self {
        let (local_id, remote_id) = ids(data);
        Self {
            local_id,
            remote_id,
            stage: Stage::from_bits(Self::STAGE.get(data)[0] >> 6),
            service_timeout: Self::TIMEOUT.get(data)[0] >> 3,
            private_data: Self::PRIVATE.get(data),
        }
    }

    pub(super) fn emit(&self, out: &mut CmData) {
        put_ids(out, self.local_id, self.remote_id);
        Self::STAGE.put(out, [self.stage.bits() << 6]);
        Self::TIMEOUT.put(out, [self.service_timeout << 3]);
        Self::PRIVATE.put(out, self.private_data);
    }
}

/// Why a connection is refused (IBTA vol1 12.6.7.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RejReason(pub u16);

impl RejReason {
    /// No queue pair is to be had.
    pub const NO_QP: Self = Self(1);
    /// No resources are left.
    pub const NO_RESOURCES: Self = Self(3);
    /// Nobody answered in time.
    pub const TIMEOUT: Self = Self(4);
    /// What is asked for is not supported.
    pub const UNSUPPORTED: Self = Self(5);
    /// The communication identifier does not fit.
    pub const INVALID_COMM_ID: Self = Self(6);
    /// The service is not known.
    pub const INVALID_SERVICE_ID: Self = Self(8);
    /// The service of the transport is not offered.
    pub const INVALID_TRANSPORT: Self = Self(9);
    /// The connection is left over from an earlier life.
    pub const STALE: Self = Self(10);
    /// The address is wrong.
    pub const INVALID_GID: Self = Self(12);
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
            26 => "invalid mtu",
            28 => "consumer defined",
            _ => "other",
        }
    }
}

/// Refuses a connection (IBTA vol1 12.6.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rej {
    /// How the sender knows the connection.
    pub local_id: CommId,
    /// How the receiver knows it.
    pub remote_id: CommId,
    /// The message that is refused.
    pub stage: Stage,
    /// Bytes of additional information (7 bits).
    pub info_len: u8,
    /// Why.
    pub reason: RejReason,
    /// Additional information.
    pub info: [u8; 72],
    /// For the consumer.
    pub private_data: [u8; 148],
}

impl Rej {
    const STAGE: Field<8, 1> = Field;
    const INFO_LEN: Field<9, 1> = Field;
    const REASON: Field<10, 2> = Field;
    const INFO: Field<12, 72> = Field;
    const PRIVATE: Field<84, 148> = Field;

    pub(super) fn parse(data: &CmData) -> Self {
        let (local_id, remote_id) = ids(data);
        Self {
            local_id,
            remote_id,
            stage: Stage::from_bits(Self::STAGE.get(data)[0] >> 6),
            info_len: Self::INFO_LEN.get(data)[0] >> 1,
            reason: RejReason(u16::from_be_bytes(Self::REASON.get(data))),
            info: Self::INFO.get(data),
            private_data: Self::PRIVATE.get(data),
        }
    }

    pub(super) fn emit(&self, out: &mut CmData) {
        put_ids(out, self.local_id, self.remote_id);
        Self::STAGE.put(out, [self.stage.bits() << 6]);
        Self::INFO_LEN.put(out, [self.info_len << 1]);
        Self::REASON.put(out, self.reason.0.to_be_bytes());
        Self::INFO.put(out, self.info);
        Self::PRIVATE.put(out, self.private_data);
    }
}

/// Defines a message of two identifiers and private data.
macro_rules! two_ids {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            /// How the sender knows the connection.
            pub local_id: CommId,
            /// How the receiver knows it.
            pub remote_id: CommId,
            /// For the consumer.
            pub private_data: [u8; 224],
        }

        impl $name {
            const PRIVATE: Field<8, 224> = Field;

            pub(super) fn parse(data: &CmData) -> Self {
                let (local_id, remote_id) = ids(data);
                Self { local_id, remote_id, private_data: Self::PRIVATE.get(data) }
            }

            pub(super) fn emit(&self, out: &mut CmData) {
                put_ids(out, self.local_id, self.remote_id);
                Self::PRIVATE.put(out, self.private_data);
            }
        }
    };
}

two_ids! {
    /// The connection is ready to use (IBTA vol1 12.6.9).
    Rtu
}
two_ids! {
    /// The connection is released (IBTA vol1 12.6.11).
    Drep
}

/// Asks to release a connection (IBTA vol1 12.6.10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dreq {
    /// How the sender knows the connection.
    pub local_id: CommId,
    /// How the receiver knows it.
    pub remote_id: CommId,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
    /// For the consumer.
    pub private_data: [u8; 220],
}

impl Dreq {
    const QPN: Field<8, 3> = Field;
    const PRIVATE: Field<12, 220> = Field;

    pub(super) fn parse(data: &CmData) -> Self {
        let (local_id, remote_id) = ids(data);
        let remote_qpn = Qpn::from_be_bytes(Self::QPN.get(data));
        Self { local_id, remote_id, remote_qpn, private_data: Self::PRIVATE.get(data) }
    }

    pub(super) fn emit(&self, out: &mut CmData) {
        put_ids(out, self.local_id, self.remote_id);
        Self::QPN.put(out, self.remote_qpn.to_be_bytes());
        Self::PRIVATE.put(out, self.private_data);
    }
}

/// Asks which queue pair offers a datagram service (IBTA vol1 12.11.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrReq {
    /// How the sender knows the request.
    pub request_id: CommId,
    /// Partition.
    pub pkey: Pkey,
    /// Who is asked for.
    pub service_id: ServiceId,
    /// For the consumer.
    pub private_data: [u8; 216],
}

impl SidrReq {
    const PKEY: Field<4, 2> = Field;
    const SERVICE_ID: Field<8, 8> = Field;
    const PRIVATE: Field<16, 216> = Field;

    pub(super) fn parse(data: &CmData) -> Self {
        Self {
            request_id: CommId(u32::from_be_bytes(LOCAL_ID.get(data))),
            pkey: Pkey(u16::from_be_bytes(Self::PKEY.get(data))),
            service_id: ServiceId(u64::from_be_bytes(Self::SERVICE_ID.get(data))),
            private_data: Self::PRIVATE.get(data),
        }
    }

    pub(super) fn emit(&self, out: &mut CmData) {
        LOCAL_ID.put(out, self.request_id.0.to_be_bytes());
        Self::PKEY.put(out, self.pkey.0.to_be_bytes());
        Self::SERVICE_ID.put(out, self.service_id.0.to_be_bytes());
        Self::PRIVATE.put(out, self.private_data);
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

/// Tells which queue pair offers a datagram service (IBTA vol1 12.11.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrRep {
    /// How the receiver knows the request.
    pub request_id: CommId,
    /// Outcome.
    pub status: SidrStatus,
    /// Bytes of additional information.
    pub info_len: u8,
    /// The queue pair.
    pub qpn: Qpn,
    /// Who was asked for.
    pub service_id: ServiceId,
    /// Its queue key.
    pub qkey: Qkey,
    /// Additional information.
    pub info: [u8; 72],
    /// For the consumer.
    pub private_data: [u8; 136],
}

impl SidrRep {
    const STATUS: Field<4, 1> = Field;
    const INFO_LEN: Field<5, 1> = Field;
    const QPN: Field<8, 3> = Field;
    const SERVICE_ID: Field<12, 8> = Field;
    const QKEY: Field<20, 4> = Field;
    const INFO: Field<24, 72> = Field;
    const PRIVATE: Field<96, 136> = Field;

    pub(super) fn parse(data: &CmData) -> Self {
        Self {
            request_id: CommId(u32::from_be_bytes(LOCAL_ID.get(data))),
            status: SidrStatus(Self::STATUS.get(data)[0]),
            info_len: Self::INFO_LEN.get(data)[0],
            qpn: Qpn::from_be_bytes(Self::QPN.get(data)),
            service_id: ServiceId(u64::from_be_bytes(Self::SERVICE_ID.get(data))),
            qkey: Qkey(u32::from_be_bytes(Self::QKEY.get(data))),
            info: Self::INFO.get(data),
            private_data: Self::PRIVATE.get(data),
        }
    }

    pub(super) fn emit(&self, out: &mut CmData) {
        LOCAL_ID.put(out, self.request_id.0.to_be_bytes());
        Self::STATUS.put(out, [self.status.0]);
        Self::INFO_LEN.put(out, [self.info_len]);
        Self::QPN.put(out, self.qpn.to_be_bytes());
        Self::SERVICE_ID.put(out, self.service_id.0.to_be_bytes());
        Self::QKEY.put(out, self.qkey.0.to_be_bytes());
        Self::INFO.put(out, self.info);
        Self::PRIVATE.put(out, self.private_data);
    }
}

/// Offers an alternate path (IBTA vol1 12.8.1). Only what an answer needs is taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lap {
    /// How the sender knows the connection.
    pub local_id: CommId,
    /// How the receiver knows it.
    pub remote_id: CommId,
    /// The receiver's queue pair.
    pub remote_qpn: u32,
    /// Everything else, as it stands.
    pub rest: [u8; 217],
}

impl Lap {
    const QPN: Field<12, 3> = Field;
    const REST: Field<15, 217> = Field;

    pub(super) fn parse(data: &CmData) -> Self {
        let (local_id, remote_id) = ids(data);
        let remote_qpn = from_be24(Self::QPN.get(data));
        Self { local_id, remote_id, remote_qpn, rest: Self::REST.get(data) }
    }

    pub(super) fn emit(&self, out: &mut CmData) {
        put_ids(out, self.local_id, self.remote_id);
        Self::QPN.put(out, be24(self.remote_qpn));
        Self::REST.put(out, self.rest);
    }
}

/// Answers the offer of an alternate path (IBTA vol1 12.8.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Apr {
    /// How the sender knows the connection.
    pub local_id: CommId,
    /// How the receiver knows it.
    pub remote_id: CommId,
    /// Bytes of additional information.
    pub info_len: u8,
    /// Outcome: 0 is accepted, 3 and above refused.
    pub status: u8,
    /// Additional information.
    pub info: [u8; 72],
    /// For the consumer.
    pub private_data: [u8; 148],
}

impl Apr {
    const INFO_LEN: Field<8, 1> = Field;
    const STATUS: Field<9, 1> = Field;
    const INFO: Field<12, 72> = Field;
    const PRIVATE: Field<84, 148> = Field;

    pub(super) fn parse(data: &CmData) -> Self {
        let (local_id, remote_id) = ids(data);
        Self {
            local_id,
            remote_id,
            info_len: Self::INFO_LEN.get(data)[0],
            status: Self::STATUS.get(data)[0],
            info: Self::INFO.get(data),
            private_data: Self::PRIVATE.get(data),
        }
    }

    pub(super) fn emit(&self, out: &mut CmData) {
        put_ids(out, self.local_id, self.remote_id);
        Self::INFO_LEN.put(out, [self.info_len]);
        Self::STATUS.put(out, [self.status]);
        Self::INFO.put(out, self.info);
        Self::PRIVATE.put(out, self.private_data);
    }
}
