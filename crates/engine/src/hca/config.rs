//! Configuration of an engine.

use alloc::vec;
use alloc::vec::Vec;

use feroce_train::LinkLayer;
use feroce_wire::{Pkey, Pmtu};

use crate::hca::wr::MAX_SGE;

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
    /// Retransmit early when the round trip time says that an answer is overdue, without
    /// counting it as a retry.
    pub tail_probe: bool,
    /// Least time before a tail probe.
    pub min_probe_ns: u64,
    /// Congestion control at the sender; none if absent.
    pub dcqcn: Option<DcqcnConfig>,
    /// Least time between two congestion notifications from one queue pair.
    pub cnp_interval_ns: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            seed: 0,
            limits: Limits::default(),
            link_layer: LinkLayer::Ethernet,
            port_mtu: Pmtu::B4096,
            qpn_first: 2,
            qpn_count: (1 << 24) - 3,
            pkeys: vec![Pkey::DEFAULT],
            advertise_credits: true,
            window: WindowConfig::default(),
            read_chunk: 256 << 10,
            tail_probe: true,
            min_probe_ns: 2_000_000,
            dcqcn: None,
            cnp_interval_ns: 50_000,
        }
    }
}

/// Parameters of DCQCN.
///
/// ```
/// # use feroce_engine::{Config, DcqcnConfig};
/// let slow = DcqcnConfig { line_rate_bps: 10_000_000_000, ..DcqcnConfig::default() };
/// let config = Config { dcqcn: Some(slow), ..Config::default() };
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DcqcnConfig {
    /// Rate at the start and at most, in bits per second.
    pub line_rate_bps: u64,
    /// Rate at least.
    pub min_rate_bps: u64,
    /// Additive increase step.
    pub rate_ai_bps: u64,
    /// Hyper increase step.
    pub rate_hai_bps: u64,
    /// Gain of the congestion estimate.
    pub g: f64,
    /// Without a notification for this long, the congestion estimate decays.
    pub alpha_timer_ns: u64,
    /// Rate increase by time.
    pub increase_timer_ns: u64,
    /// Rate increase by bytes.
    pub increase_bytes: u64,
    /// Rounds of fast recovery.
    pub fast_recovery: u32,
}

impl Default for DcqcnConfig {
    fn default() -> Self {
        Self {
            line_rate_bps: 100_000_000_000,
            min_rate_bps: 10_000_000,
            rate_ai_bps: 40_000_000,
            rate_hai_bps: 400_000_000,
            g: 1.0 / 256.0,
            alpha_timer_ns: 55_000,
            increase_timer_ns: 300_000,
            increase_bytes: 10 << 20,
            fast_recovery: 5,
        }
    }
}
