//! What consumers say, and what they are told about a connection.

use feroce_wire::cm::{CommId, ServiceId};
use feroce_wire::{Gid, Pmtu, Psn, Qkey, Qpn};

/// The two ports that talk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Peer {
    /// Our address.
    pub local: Gid,
    /// The other address.
    pub remote: Gid,
}

/// A connection, or a request for a service, as the consumer names it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnId(pub(crate) CommId);

impl ConnId {
    /// The identifier that the peer sees.
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

/// The way between the two ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathParams {
    /// Path MTU.
    pub mtu: Pmtu,
    /// Flow label; chooses the UDP source port, too.
    pub flow_label: u32,
    /// Traffic class: DSCP in the upper six bits.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// Service level.
    pub sl: u8,
    /// How long a packet may be on its way, as a code; that of the configuration if absent.
    pub packet_life_time: Option<u8>,
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
        }
    }
}

/// Asks for a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Connect {
    /// Who asks whom.
    pub peer: Peer,
    /// Who is asked for.
    pub service: ServiceId,
    /// Service of the connection.
    pub transport: Transport,
    /// The way.
    pub path: PathParams,
    /// Our queue pair.
    pub qpn: Qpn,
    /// Whether it uses a shared receive queue.
    pub srq: bool,
    /// Reads and atomics that we answer at once.
    pub responder_resources: u8,
    /// Reads and atomics that we want to have outstanding.
    pub initiator_depth: u8,
    /// Whether end-to-end credits are used.
    pub flow_control: bool,
    /// Retries of both queue pairs without an answer (3 bits).
    pub retry_count: u8,
    /// Retries of the peer's queue pair when we are not ready (3 bits).
    pub rnr_retry: u8,
    /// For the consumer at the other end.
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

/// Accepts a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Accept {
    /// Our queue pair.
    pub qpn: Qpn,
    /// Whether it uses a shared receive queue.
    pub srq: bool,
    /// Reads and atomics that we answer at once.
    pub responder_resources: u8,
    /// Reads and atomics that we want to have outstanding.
    pub initiator_depth: u8,
    /// Whether end-to-end credits are used.
    pub flow_control: bool,
    /// Retries of the peer's queue pair when we are not ready (3 bits).
    pub rnr_retry: u8,
    /// For the consumer at the other end.
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

/// Asks for the queue pair of a datagram service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ask {
    /// Who asks whom.
    pub peer: Peer,
    /// Who is asked for.
    pub service: ServiceId,
    /// For the consumer at the other end.
    pub private_data: [u8; 216],
}

/// Tells the queue pair of a datagram service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// The queue pair.
    pub qpn: Qpn,
    /// Its queue key.
    pub qkey: Qkey,
    /// For the consumer at the other end.
    pub private_data: [u8; 136],
}

/// What the two sides agreed on: everything that a queue pair must be set to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QpPlan {
    /// The two ports.
    pub peer: Peer,
    /// Service.
    pub transport: Transport,
    /// The way.
    pub path: PathParams,
    /// Queue pair of the peer; absent until the peer has told.
    pub remote_qpn: Option<Qpn>,
    /// First PSN to receive.
    pub rq_psn: Psn,
    /// First PSN to send.
    pub sq_psn: Psn,
    /// Reads and atomics outstanding as responder.
    pub max_dest_rd_atomic: u8,
    /// Reads and atomics outstanding as requester.
    pub max_rd_atomic: u8,
    /// Acknowledgement timeout, as a code.
    pub timeout: u8,
    /// Retries without an answer.
    pub retry_count: u8,
    /// Retries when the receiver is not ready.
    pub rnr_retry: u8,
    /// The time that we ask a peer to wait when we are not ready, as a code. Zero, as on Linux:
    /// the longest there is.
    pub min_rnr_timer: u8,
    /// Whether the peer uses a shared receive queue.
    pub remote_srq: bool,
}
