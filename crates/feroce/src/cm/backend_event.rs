//! Events as the backends raise them, with ids of their own.

use feroce_cm::rdma::{ConnParam, EventKind};
use feroce_engine::AddrVec;
use feroce_wire::{Qkey, Qpn};

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

/// An event with the ids of a backend; the fields are those of [`Event`](crate::cm::Event).
#[derive(Debug)]
pub(crate) struct BackendEvent<I> {
    pub(crate) kind: EventKind,
    pub(crate) id: I,
    pub(crate) listener: Option<I>,
    pub(crate) status: i32,
    pub(crate) conn: Option<ConnParam>,
    pub(crate) ud: Option<UdParam>,
    pub(crate) private_data: Vec<u8>,
}
