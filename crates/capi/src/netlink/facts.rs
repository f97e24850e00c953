//! What there is to tell: devices, and what this process has made on them.

use std::net::SocketAddr;

/// A device with its one port.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Device {
    pub(crate) index: u32,
    pub(crate) name: String,
    /// The bits of `ibv_device_attr.device_cap_flags`.
    pub(crate) caps: u64,
    pub(crate) fw_ver: String,
    pub(crate) guid: u64,
    pub(crate) sys_image_guid: u64,
    /// `ibv_port_state`, and the physical state as in `ibv_port_attr.phys_state`.
    pub(crate) state: u8,
    pub(crate) phys_state: u8,
    /// The interface: its number and name.
    pub(crate) interface: Option<(u32, String)>,
    pub(crate) counters: Vec<(&'static str, u64)>,
    pub(crate) contexts: Vec<u32>,
    pub(crate) pds: Vec<Pd>,
    pub(crate) cqs: Vec<Cq>,
    pub(crate) qps: Vec<Qp>,
    pub(crate) srqs: Vec<Srq>,
    pub(crate) mrs: Vec<Mr>,
    pub(crate) cm_ids: Vec<CmId>,
    /// The process that has them.
    pub(crate) pid: u32,
}

/// A protection domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pd {
    pub(crate) number: u32,
    pub(crate) context: u32,
    /// Objects in it.
    pub(crate) users: u64,
}

/// A completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cq {
    pub(crate) number: u32,
    pub(crate) context: u32,
    pub(crate) depth: u32,
    /// Work queues that complete to it.
    pub(crate) users: u64,
}

/// A queue pair; types and states are the numbers of `verbs.h`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Qp {
    pub(crate) number: u32,
    pub(crate) pd: u32,
    pub(crate) kind: u8,
    pub(crate) state: u8,
    pub(crate) sq_psn: u32,
    /// Of a connected one.
    pub(crate) peer: Option<Peer>,
}

/// The other end of a connected queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Peer {
    pub(crate) qpn: u32,
    pub(crate) rq_psn: u32,
}

/// A shared receive queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Srq {
    pub(crate) number: u32,
    pub(crate) pd: u32,
    /// `ibv_srq_type`.
    pub(crate) kind: u8,
    /// Queue pairs that receive from it.
    pub(crate) qps: Vec<u32>,
}

/// A memory region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mr {
    pub(crate) number: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
    pub(crate) len: u64,
    pub(crate) pd: u32,
}

/// An id of the connection manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CmId {
    pub(crate) number: u32,
    /// Number and type of its queue pair.
    pub(crate) qp: Option<(u32, u8)>,
    /// `rdma_cm_state` of the kernel.
    pub(crate) state: u8,
    /// `enum rdma_port_space`.
    pub(crate) ps: u32,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) peer: Option<SocketAddr>,
}
