//! Events of ids.

use feroce_cm::rdma::{ConnParam, EventKind};
use feroce_engine::AddrVec;
use feroce_wire::{Qkey, Qpn};

use super::id::CmId;

/// How to reach a datagram service or a multicast group.
#[doc(alias = "rdma_ud_param")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdParam {
    /// The path, for an address handle.
    pub av: AddrVec,
    /// The queue pair.
    pub qpn: Qpn,
    /// Its queue key.
    pub qkey: Qkey,
}

/// An event of an id.
#[doc(alias = "rdma_cm_event")]
#[derive(Clone, Debug)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// The id that the event concerns; the new id, if it is a connect request.
    pub id: CmId,
    /// The listener, if it is a connect request.
    pub listener: Option<CmId>,
    /// Zero on success, the reason of a rejection, or a negative error number.
    pub status: i32,
    /// Connection parameters that the peer sent.
    pub conn: Option<ConnParam>,
    /// How to reach the peer, if the event is of a datagram service or a multicast group.
    pub ud: Option<UdParam>,
    /// Private data of the peer, padded with zeros to the size of the field.
    pub private_data: Vec<u8>,
}
