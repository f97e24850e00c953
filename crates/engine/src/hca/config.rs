//! Configuration of an engine.

use alloc::vec;
use alloc::vec::Vec;

use feroce_train::LinkLayer;
use feroce_wire::{Pkey, Pmtu};

use crate::hca::congestion::CongestionConfig;
use crate::hca::wr::{MAX_SGE, SendOp};

/// Most of everything that an adapter holds.
///
/// ```
/// # use feroce_engine::Limits;
/// let small = Limits { max_qp: 16, ..Limits::default() };
/// ```
#[doc(alias = "ibv_device_attr")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Queue pairs.
    pub max_qp: u32,
    /// Work requests in a queue.
    pub max_qp_wr: u32,
    /// Scatter/gather elements in a work request.
    pub max_sge: u32,
    /// Bytes of inline data.
    pub max_inline: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries in a completion queue.
    pub max_cqe: u32,
    /// Memory regions and windows together.
    pub max_mr: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Work requests in a shared receive queue.
    pub max_srq_wr: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Multicast groups.
    pub max_mcast_grp: u32,
    /// Queue pairs attached to one multicast group.
    pub max_mcast_qp_attach: u32,
    /// Reads and atomics outstanding on a queue pair.
    pub max_rd_atomic: u8,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_qp: 1 << 18,
            max_qp_wr: 1 << 15,
            max_sge: MAX_SGE as u32,
            max_inline: 1024,
            max_cq: 1 << 16,
            max_cqe: 1 << 22,
            max_mr: 1 << 20,
            max_pd: 1 << 16,
            max_srq: 1 << 16,
            max_srq_wr: 1 << 15,
            max_ah: 1 << 20,
            max_mcast_grp: 8192,
            max_mcast_qp_attach: 256,
            max_rd_atomic: 128,
        }
    }
}

/// How many bytes may be in flight to one destination.
///
/// ```
/// # use feroce_engine::{Config, WindowConfig};
/// // A path with a long delay wants more in flight.
/// let window = WindowConfig { max: 64 << 20, ..WindowConfig::default() };
/// let config = Config { window, ..Config::default() };
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowConfig {
    /// Bytes at the start. Below this value, the window grows faster.
    pub initial: u64,
    /// Lower bound, however many packets are lost.
    pub min: u64,
    /// Upper bound, even if no packet is lost.
    pub max: u64,
}

impl Default for WindowConfig {
    fn default() -> Self {
        Self { initial: 256 << 10, min: 64 << 10, max: 8 << 20 }
    }
}

/// The transport of the queue pairs of an adapter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum TransportKind {
    /// InfiniBand, also over Ethernet: RoCE.
    #[default]
    InfiniBand,
    /// iWARP, over TCP.
    Iwarp,
}

impl TransportKind {
    /// Whether it has the operation.
    #[inline]
    pub const fn supports(self, op: &SendOp) -> bool {
        match self {
            Self::InfiniBand => true,
            Self::Iwarp => matches!(
                op,
                SendOp::Send
                    | SendOp::SendInv(_)
                    | SendOp::Write(_)
                    | SendOp::Read(_)
                    | SendOp::BindMw { .. }
                    | SendOp::LocalInv(_)
                    | SendOp::Reg { .. }
            ),
        }
    }

    /// Whether it has the operation only by an extension ([`Config::iwarp_extensions`]).
    #[inline]
    pub const fn extends_to(self, op: &SendOp) -> bool {
        match self {
            Self::InfiniBand => false,
            Self::Iwarp => matches!(
                op,
                SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. } | SendOp::WriteImm(..)
            ),
        }
    }
}

/// What an engine is made with.
///
/// ```
/// # use feroce_engine::Config;
/// // The same numbers and keys in every run.
/// let config = Config { seed: 42, ..Config::default() };
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// Everything that is random in the engine follows from it: the owner draws it from the
    /// operating system, tests fix it.
    pub seed: u64,
    /// Transport of the queue pairs.
    pub transport: TransportKind,
    /// Whether iWARP has atomics and immediate data (RFC 7306). Ends do not negotiate that: both
    /// must have it.
    pub iwarp_extensions: bool,
    /// Limits.
    pub limits: Limits,
    /// What the port is attached to. Entries of its GID table have framings of this link layer.
    pub link_layer: LinkLayer,
    /// MTU of the port: bounds datagrams and path MTUs.
    pub port_mtu: Pmtu,
    /// First queue pair number of the range this engine may use.
    pub qpn_first: u32,
    /// Length of that range.
    pub qpn_count: u32,
    /// Partition keys of the port.
    pub pkeys: Vec<Pkey>,
    /// Whether acknowledgements tell how many receives are posted (IBTA vol1 9.7.7.2).
    pub advertise_credits: bool,
    /// Bytes in flight per destination.
    pub window: WindowConfig,
    /// Longest piece that a read is asked for in one request; longer reads are asked for in
    /// several, so that the answer can be held inside the window.
    pub read_chunk: u64,
    /// Whether the engine delivers packets to its own queue pairs itself, without the link. Layers
    /// of the link that record or disturb packets see them only if it does not.
    pub loops_back: bool,
    /// Retransmit early when the round trip time says that an answer is overdue, without
    /// counting it as a retry.
    pub tail_probe: bool,
    /// A responder that misses a packet keeps those behind it, and a requester whose peer does so
    /// sends only the missing one again. Without, both go back, as adapters do (go-back-N).
    pub selective_repeat: bool,
    /// Least time before a tail probe.
    pub min_probe_ns: u64,
    /// Every packet of a reliable connection requests an acknowledgement. Adapters do not do that;
    /// models of them do, and can be compared with this.
    pub ack_every_packet: bool,
    /// Congestion control at the sender.
    pub congestion: CongestionConfig,
    /// Bytes that a packet takes on the link beside those from the BTH to the padding. Congestion
    /// control counts them, because rates are those of the link.
    pub packet_overhead: u32,
    /// Least time between two congestion notifications from one queue pair.
    pub cnp_interval_ns: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            seed: 0,
            transport: TransportKind::InfiniBand,
            iwarp_extensions: false,
            limits: Limits::default(),
            link_layer: LinkLayer::Ethernet,
            port_mtu: Pmtu::B4096,
            qpn_first: 2,
            qpn_count: (1 << 24) - 3,
            pkeys: vec![Pkey::DEFAULT],
            advertise_credits: true,
            window: WindowConfig::default(),
            read_chunk: 256 << 10,
            loops_back: true,
            tail_probe: true,
            selective_repeat: true,
            min_probe_ns: 2_000_000,
            ack_every_packet: false,
            congestion: CongestionConfig::None,
            packet_overhead: 0,
            cnp_interval_ns: 50_000,
        }
    }
}
