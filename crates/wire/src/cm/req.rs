//! REQ: asks for a connection (IBTA vol1 12.6.5).

use super::{CmData, CommId, ServiceId, join};
use crate::field::{be24, from_be24};
use crate::{Gid, Lid, Pkey, Pmtu, Psn, Qkey, Qpn};

mod field {
    use crate::field::Field;

    pub(super) const LOCAL_ID: Field<0, 4> = Field;
    pub(super) const SERVICE_ID: Field<8, 8> = Field;
    pub(super) const CA_GUID: Field<16, 8> = Field;
    pub(super) const QKEY: Field<28, 4> = Field;
    pub(super) const QPN: Field<32, 3> = Field;
    pub(super) const RESPONDER_RESOURCES: Field<35, 1> = Field;
    pub(super) const EECN: Field<36, 3> = Field;
    pub(super) const INITIATOR_DEPTH: Field<39, 1> = Field;
    pub(super) const REMOTE_EECN: Field<40, 3> = Field;
    pub(super) const TIMEOUT_AND_SERVICE: Field<43, 1> = Field;
    pub(super) const PSN: Field<44, 3> = Field;
    pub(super) const TIMEOUT_AND_RETRY: Field<47, 1> = Field;
    pub(super) const PKEY: Field<48, 2> = Field;
    pub(super) const MTU_AND_RNR: Field<50, 1> = Field;
    pub(super) const RETRIES_AND_SRQ: Field<51, 1> = Field;
    pub(super) const PRIMARY: Field<52, 44> = Field;
    pub(super) const ALTERNATE: Field<96, 44> = Field;
    pub(super) const PRIVATE: Field<140, 92> = Field;

    pub(super) mod path {
        use crate::field::Field;

        pub(in super::super) const LOCAL_LID: Field<0, 2> = Field;
        pub(in super::super) const REMOTE_LID: Field<2, 2> = Field;
        pub(in super::super) const LOCAL_GID: Field<4, 16> = Field;
        pub(in super::super) const REMOTE_GID: Field<20, 16> = Field;
        pub(in super::super) const FLOW_AND_RATE: Field<36, 4> = Field;
        pub(in super::super) const TRAFFIC_CLASS: Field<40, 1> = Field;
        pub(in super::super) const HOP_LIMIT: Field<41, 1> = Field;
        pub(in super::super) const SL: Field<42, 1> = Field;
        pub(in super::super) const ACK_TIMEOUT: Field<43, 1> = Field;
    }
}

/// A path between the two ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathInfo {
    /// LID of the sender's port.
    pub local_lid: Lid,
    /// LID of the receiver's port.
    pub remote_lid: Lid,
    /// Address of the sender's port.
    pub local_gid: Gid,
    /// Address of the receiver's port.
    pub remote_gid: Gid,
    /// Flow label (20 bits).
    pub flow_label: u32,
    /// Packet rate code (6 bits).
    pub rate: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level (4 bits).
    pub sl: u8,
    /// Whether the path stays inside the subnet.
    pub subnet_local: bool,
    /// Acknowledgement timeout code (5 bits).
    pub ack_timeout: u8,
}

impl PathInfo {
    fn parse(bytes: &[u8; 44]) -> Self {
        use field::path;
        let word = u32::from_be_bytes(path::FLOW_AND_RATE.get(bytes));
        let [sl] = path::SL.get(bytes);
        Self {
            local_lid: Lid(u16::from_be_bytes(path::LOCAL_LID.get(bytes))),
            remote_lid: Lid(u16::from_be_bytes(path::REMOTE_LID.get(bytes))),
            local_gid: Gid(path::LOCAL_GID.get(bytes)),
            remote_gid: Gid(path::REMOTE_GID.get(bytes)),
            flow_label: word >> 12,
            rate: (word & 0x3f) as u8,
            traffic_class: path::TRAFFIC_CLASS.get(bytes)[0],
            hop_limit: path::HOP_LIMIT.get(bytes)[0],
            sl: sl >> 4,
            subnet_local: sl & 8 != 0,
            ack_timeout: path::ACK_TIMEOUT.get(bytes)[0] >> 3,
        }
    }

    fn emit(&self) -> [u8; 44] {
        use field::path;
        let mut out = [0; 44];
        path::LOCAL_LID.put(&mut out, self.local_lid.0.to_be_bytes());
        path::REMOTE_LID.put(&mut out, self.remote_lid.0.to_be_bytes());
        path::LOCAL_GID.put(&mut out, self.local_gid.0);
        path::REMOTE_GID.put(&mut out, self.remote_gid.0);
        let word = (self.flow_label << 12) | u32::from(self.rate & 0x3f);
        path::FLOW_AND_RATE.put(&mut out, word.to_be_bytes());
        path::TRAFFIC_CLASS.put(&mut out, [self.traffic_class]);
        path::HOP_LIMIT.put(&mut out, [self.hop_limit]);
        path::SL.put(&mut out, [(self.sl << 4) | (u8::from(self.subnet_local) << 3)]);
        path::ACK_TIMEOUT.put(&mut out, [self.ack_timeout << 3]);
        out
    }
}

/// Asks for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Req {
    /// How the sender knows the connection.
    pub local_id: CommId,
    /// Who is asked.
    pub service_id: ServiceId,
    /// GUID of the sender's adapter.
    pub ca_guid: u64,
    /// Queue key, for datagrams.
    pub qkey: Qkey,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// Reads and atomics that the sender answers at once.
    pub responder_resources: u8,
    /// Reads and atomics that the sender wants to have outstanding.
    pub initiator_depth: u8,
    /// End-to-end contexts of the two sides; zero without reliable datagrams.
    pub eecn: (u32, u32),
    /// How long the receiver may take to answer, as a code (5 bits).
    pub remote_cm_timeout: u8,
    /// Service of the connection: 0 RC, 1 UC, 2 RD, 3 extended (2 bits).
    pub service: u8,
    /// Whether the sender keeps to end-to-end credits.
    pub flow_control: bool,
    /// First PSN that the receiver of this message sends (IBTA vol1 12.7).
    pub psn: Psn,
    /// How long the sender may take to answer, as a code (5 bits).
    pub local_cm_timeout: u8,
    /// Retries of the sender's queue pair (3 bits).
    pub retry_count: u8,
    /// Partition.
    pub pkey: Pkey,
    /// Path MTU, as a code (4 bits).
    pub mtu_code: u8,
    /// Whether a reliable datagram channel exists.
    pub rdc_exists: bool,
    /// Retries when the receiver is not ready (3 bits).
    pub rnr_retry: u8,
    /// How often the sender repeats its messages (4 bits).
    pub max_cm_retries: u8,
    /// Whether the sender's queue pair uses a shared receive queue.
    pub srq: bool,
    /// Extended service, if `service` is 3: 1 is XRC (3 bits).
    pub extended_service: u8,
    /// The path.
    pub primary: PathInfo,
    /// Another path; all zero if there is none.
    pub alternate: PathInfo,
    /// For the consumer.
    pub private_data: [u8; 92],
}

impl Req {
    /// The path MTU.
    pub const fn path_mtu(&self) -> Option<Pmtu> {
        Pmtu::from_code(self.mtu_code)
    }

    pub(super) fn parse(data: &CmData) -> Self {
        let [a] = field::TIMEOUT_AND_SERVICE.get(data);
        let [b] = field::TIMEOUT_AND_RETRY.get(data);
        let [c] = field::MTU_AND_RNR.get(data);
        let [d] = field::RETRIES_AND_SRQ.get(data);
        Self {
            local_id: CommId(u32::from_be_bytes(field::LOCAL_ID.get(data))),
            service_id: ServiceId(u64::from_be_bytes(field::SERVICE_ID.get(data))),
            ca_guid: u64::from_be_bytes(field::CA_GUID.get(data)),
            qkey: Qkey(u32::from_be_bytes(field::QKEY.get(data))),
            qpn: Qpn::from_be_bytes(field::QPN.get(data)),
            responder_resources: field::RESPONDER_RESOURCES.get(data)[0],
            initiator_depth: field::INITIATOR_DEPTH.get(data)[0],
            eecn: (from_be24(field::EECN.get(data)), from_be24(field::REMOTE_EECN.get(data))),
            remote_cm_timeout: a >> 3,
            service: (a >> 1) & 3,
            flow_control: a & 1 != 0,
            psn: Psn::from_be_bytes(field::PSN.get(data)),
            local_cm_timeout: b >> 3,
            retry_count: b & 7,
            pkey: Pkey(u16::from_be_bytes(field::PKEY.get(data))),
            mtu_code: c >> 4,
            rdc_exists: c & 8 != 0,
            rnr_retry: c & 7,
            max_cm_retries: d >> 4,
            srq: d & 8 != 0,
            extended_service: d & 7,
            primary: PathInfo::parse(&field::PRIMARY.get(data)),
            alternate: PathInfo::parse(&field::ALTERNATE.get(data)),
            private_data: field::PRIVATE.get(data),
        }
    }

    pub(super) fn emit(&self, out: &mut CmData) {
        field::LOCAL_ID.put(out, self.local_id.0.to_be_bytes());
        field::SERVICE_ID.put(out, self.service_id.0.to_be_bytes());
        field::CA_GUID.put(out, self.ca_guid.to_be_bytes());
        field::QKEY.put(out, self.qkey.0.to_be_bytes());
        field::QPN.put(out, self.qpn.to_be_bytes());
        field::RESPONDER_RESOURCES.put(out, [self.responder_resources]);
        field::EECN.put(out, be24(self.eecn.0));
        field::INITIATOR_DEPTH.put(out, [self.initiator_depth]);
        field::REMOTE_EECN.put(out, be24(self.eecn.1));
        let low = join(self.service & 3, 1, u8::from(self.flow_control));
        field::TIMEOUT_AND_SERVICE.put(out, [join(self.remote_cm_timeout, 3, low)]);
        field::PSN.put(out, self.psn.to_be_bytes());
        field::TIMEOUT_AND_RETRY.put(out, [join(self.local_cm_timeout, 3, self.retry_count)]);
        field::PKEY.put(out, self.pkey.0.to_be_bytes());
        let low = join(u8::from(self.rdc_exists), 3, self.rnr_retry);
        field::MTU_AND_RNR.put(out, [join(self.mtu_code, 4, low)]);
        let low = join(u8::from(self.srq), 3, self.extended_service);
        field::RETRIES_AND_SRQ.put(out, [join(self.max_cm_retries, 4, low)]);
        field::PRIMARY.put(out, self.primary.emit());
        field::ALTERNATE.put(out, self.alternate.emit());
        field::PRIVATE.put(out, self.private_data);
    }
}
