//! REP: accepts a connection (IBTA vol1 12.6.8).

use super::{CmData, CommId, join};
use crate::field::{be24, from_be24};
use crate::{Psn, Qkey, Qpn};

mod field {
    use crate::field::Field;

    pub(super) const LOCAL_ID: Field<0, 4> = Field;
    pub(super) const REMOTE_ID: Field<4, 4> = Field;
    pub(super) const QKEY: Field<8, 4> = Field;
    pub(super) const QPN: Field<12, 3> = Field;
    pub(super) const EECN: Field<16, 3> = Field;
    pub(super) const PSN: Field<20, 3> = Field;
    pub(super) const RESPONDER_RESOURCES: Field<24, 1> = Field;
    pub(super) const INITIATOR_DEPTH: Field<25, 1> = Field;
    pub(super) const DELAY_AND_FLOW: Field<26, 1> = Field;
    pub(super) const RNR_AND_SRQ: Field<27, 1> = Field;
    pub(super) const CA_GUID: Field<28, 8> = Field;
    pub(super) const PRIVATE: Field<36, 196> = Field;
}

/// Accepts a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rep {
    /// How the sender knows the connection.
    pub local_id: CommId,
    /// How the receiver knows it.
    pub remote_id: CommId,
    /// Queue key, for datagrams.
    pub qkey: Qkey,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// End-to-end context; zero without reliable datagrams.
    pub eecn: u32,
    /// First PSN that the receiver of this message sends (IBTA vol1 12.7).
    pub psn: Psn,
    /// Reads and atomics that the sender answers at once.
    pub responder_resources: u8,
    /// Reads and atomics that the sender wants to have outstanding.
    pub initiator_depth: u8,
    /// How long the sender's adapter may delay an acknowledgement, as a code (5 bits).
    pub target_ack_delay: u8,
    /// What became of the alternate path (2 bits).
    pub failover: u8,
    /// Whether the sender keeps to end-to-end credits.
    pub flow_control: bool,
    /// Retries when the receiver is not ready (3 bits).
    pub rnr_retry: u8,
    /// Whether the sender's queue pair uses a shared receive queue.
    pub srq: bool,
    /// GUID of the sender's adapter.
    pub ca_guid: u64,
    /// For the consumer.
    pub private_data: [u8; 196],
}

impl Rep {
    pub(super) fn parse(data: &CmData) -> Self {
        let [a] = field::DELAY_AND_FLOW.get(data);
        let [b] = field::RNR_AND_SRQ.get(data);
        Self {
            local_id: CommId(u32::from_be_bytes(field::LOCAL_ID.get(data))),
            remote_id: CommId(u32::from_be_bytes(field::REMOTE_ID.get(data))),
            qkey: Qkey(u32::from_be_bytes(field::QKEY.get(data))),
            qpn: Qpn::from_be_bytes(field::QPN.get(data)),
            eecn: from_be24(field::EECN.get(data)),
            psn: Psn::from_be_bytes(field::PSN.get(data)),
            responder_resources: field::RESPONDER_RESOURCES.get(data)[0],
            initiator_depth: field::INITIATOR_DEPTH.get(data)[0],
            target_ack_delay: a >> 3,
            failover: (a >> 1) & 3,
            flow_control: a & 1 != 0,
            rnr_retry: b >> 5,
            srq: b & 0x10 != 0,
            ca_guid: u64::from_be_bytes(field::CA_GUID.get(data)),
            private_data: field::PRIVATE.get(data),
        }
    }

    pub(super) fn emit(&self, out: &mut CmData) {
        field::LOCAL_ID.put(out, self.local_id.0.to_be_bytes());
        field::REMOTE_ID.put(out, self.remote_id.0.to_be_bytes());
        field::QKEY.put(out, self.qkey.0.to_be_bytes());
        field::QPN.put(out, self.qpn.to_be_bytes());
        field::EECN.put(out, be24(self.eecn));
        field::PSN.put(out, self.psn.to_be_bytes());
        field::RESPONDER_RESOURCES.put(out, [self.responder_resources]);
        field::INITIATOR_DEPTH.put(out, [self.initiator_depth]);
        let low = join(self.failover & 3, 1, u8::from(self.flow_control));
        field::DELAY_AND_FLOW.put(out, [join(self.target_ack_delay, 3, low)]);
        field::RNR_AND_SRQ.put(out, [(self.rnr_retry << 5) | (u8::from(self.srq) << 4)]);
        field::CA_GUID.put(out, self.ca_guid.to_be_bytes());
        field::PRIVATE.put(out, self.private_data);
    }
}
