//! What happened to an id.

use feroce_cm::rdma::{ConnParam, EventKind};
use feroce_engine::AddrVec;
use feroce_wire::{Qkey, Qpn};

use super::id::CmId;

/// How to reach a datagram service or a multicast group.
#[doc(alias = "rdma_ud_param")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdParam {
    /// The way there, for an address handle.
    pub av: AddrVec,
    /// The queue pair.
    pub qpn: Qpn,
    /// Its queue key.
    pub qkey: Qkey,
}

/// Something happened to an id.
#[doc(alias = "rdma_cm_event")]
#[derive(Clone, Debug)]
pub struct Event {
    /// What.
    pub kind: EventKind,
    /// To whom; the new id, if it is a request.
    pub id: CmId,
    /// Who was asked, if it is a request.
    pub listener: Option<CmId>,
    /// Zero if all is well; the reason of a refusal; else a negative error number.
    pub status: i32,
    /// What the peer said of the connection.
    pub conn: Option<ConnParam>,
    /// How to reach the peer, if it takes datagrams.
    pub ud: Option<UdParam>,
    /// What the peer's consumer says, with the zeros that fill it up.
    pub private_data: Vec<u8>,
}
