//! Parameters of consumer calls, and the attributes of a connection that result.

use feroce_train::{Framing, PortAddr};
use feroce_wire::cm::{CommId, ServiceId};
use feroce_wire::{Gid, Lid, Pmtu, Psn, Qkey, Qpn};

/// Our port and the port of the peer, as the headers of datagrams between them name them: by GIDs
/// on Ethernet, by LIDs on InfiniBand.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Peer {
    /// Our port.
    pub local: PortAddr,
    /// The peer's port.
    pub remote: PortAddr,
    /// How packets between them are framed.
    pub framing: Framing,
}

impl Peer {
    /// Two ports on Ethernet, whose packets are RoCEv2.
    pub fn new(local: impl Into<PortAddr>, remote: impl Into<PortAddr>) -> Self {
        Self { local: local.into(), remote: remote.into(), framing: Framing::RoceV2 }
    }

    /// Two ports of an InfiniBand subnet.
    pub fn in_subnet(local: Lid, remote: Lid) -> Self {
        let port = |lid| PortAddr { gid: Gid::ZERO, lid };
        Self { local: port(local), remote: port(remote), framing: Framing::InfiniBand }
    }

    /// Whether the ports are in an InfiniBand subnet.
    pub fn is_subnet(&self) -> bool {
        self.remote.lid != Lid(0)
    }
}

/// Identifies a connection or a SIDR request to the consumer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnId(pub(crate) CommId);

impl ConnId {
    /// The communication ID that the peer sees.
    pub const fn comm_id(self) -> CommId {
        self.0
    }
}

/// Service of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Transport {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
}

impl Transport {
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Rc => 0,
            Self::Uc => 1,
        }
    }

    pub(crate) const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Rc),
            1 => Some(Self::Uc),
            _ => None,
        }
    }
}

/// The path between the two ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathParams {
    /// Path MTU.
    pub mtu: Pmtu,
    /// Flow label; it also determines the UDP source port.
    pub flow_label: u32,
    /// Traffic class: DSCP in the upper six bits.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// Service level.
    pub sl: u8,
    /// Packet life time, as a code; that of the configuration if absent.
    pub packet_life_time: Option<u8>,
    /// GIDs of our port and of the peer's, if their addresses are LIDs.
    pub gids: Option<[Gid; 2]>,
}

impl Default for PathParams {
    fn default() -> Self {
        Self {
            mtu: Pmtu::B1024,
            flow_label: 0,
            traffic_class: 0,
            hop_limit: 64,
            sl: 0,
            packet_life_time: None,
            gids: None,
        }
    }
}

/// Parameters of a request for a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Connect {
    /// Our port and the port of the peer.
    pub peer: Peer,
    /// The service that is requested.
    pub service: ServiceId,
    /// Service of the connection.
    pub transport: Transport,
    /// The path.
    pub path: PathParams,
    /// Our queue pair.
    pub qpn: Qpn,
    /// Whether it uses a shared receive queue.
    pub srq: bool,
    /// READs and atomics that our queue pair can answer at the same time.
    pub responder_resources: u8,
    /// READs and atomics that our queue pair may have outstanding.
    pub initiator_depth: u8,
    /// Whether end-to-end credits are used.
    pub flow_control: bool,
    /// Retry count of both queue pairs, for requests without an answer (3 bits).
    pub retry_count: u8,
    /// RNR retry count of the peer's queue pair (3 bits).
    pub rnr_retry: u8,
    /// Private data for the consumer at the other end.
    pub private_data: [u8; 92],
}

impl Default for Connect {
    fn default() -> Self {
        Self {
            peer: Peer::default(),
            service: ServiceId(0),
            transport: Transport::Rc,
            path: PathParams::default(),
            qpn: Qpn::default(),
            srq: false,
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: false,
            retry_count: 7,
            rnr_retry: 7,
            private_data: [0; 92],
        }
    }
}

/// Parameters of an accepted connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Accept {
    /// Our queue pair.
    pub qpn: Qpn,
    /// Whether it uses a shared receive queue.
    pub srq: bool,
    /// READs and atomics that our queue pair can answer at the same time.
    pub responder_resources: u8,
    /// READs and atomics that our queue pair may have outstanding.
    pub initiator_depth: u8,
    /// Whether end-to-end credits are used.
    pub flow_control: bool,
    /// RNR retry count of the peer's queue pair (3 bits).
    pub rnr_retry: u8,
    /// Private data for the consumer at the other end.
    pub private_data: [u8; 196],
}

impl Default for Accept {
    fn default() -> Self {
        Self {
            qpn: Qpn::default(),
            srq: false,
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: false,
            rnr_retry: 7,
            private_data: [0; 196],
        }
    }
}

/// Parameters of a request for the queue pair of a datagram service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ask {
    /// Our port and the port of the peer.
    pub peer: Peer,
    /// The service that is requested.
    pub service: ServiceId,
    /// Private data for the consumer at the other end.
    pub private_data: [u8; 216],
}

/// The answer to a request for the queue pair of a datagram service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// The queue pair.
    pub qpn: Qpn,
    /// Its queue key.
    pub qkey: Qkey,
    /// Private data for the consumer at the other end.
    pub private_data: [u8; 136],
}

/// What the two sides agreed on: all attributes that a queue pair must get.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QpPlan {
    /// The two ports.
    pub peer: Peer,
    /// Service.
    pub transport: Transport,
    /// The path.
    pub path: PathParams,
    /// Queue pair of the peer; absent until REQ or REP has told it.
    pub remote_qpn: Option<Qpn>,
    /// First PSN to receive.
    pub rq_psn: Psn,
    /// First PSN to send.
    pub sq_psn: Psn,
    /// READs and atomics outstanding as responder.
    pub max_dest_rd_atomic: u8,
    /// READs and atomics outstanding as requester.
    pub max_rd_atomic: u8,
    /// Acknowledgement timeout, as a code.
    pub timeout: u8,
    /// Retry count for requests without an answer.
    pub retry_count: u8,
    /// RNR retry count.
    pub rnr_retry: u8,
    /// RNR NAK timer: how long our responder asks the peer to wait, as a code. Zero, as on Linux,
    /// is the longest time (655.36 ms).
    pub min_rnr_timer: u8,
    /// Whether the peer uses a shared receive queue.
    pub remote_srq: bool,
}
