//! Flows of bytes between hosts over a fabric of switches, in virtual time.
//!
//! Every flow is a WRITE on a queue pair of its own; the hosts are engines, so what is simulated is
//! what runs on the wire. Payload bytes do not exist: a packet is its headers and a length.

mod base_rtt;
mod capture;
mod diagnosis;
mod flow_hosts;
mod flow_outcome;
pub mod hpcc;
pub mod htsim;
mod lines;
mod order;
mod outcome;
mod packet;
mod run;
mod selective;
mod series;
pub mod text;
pub mod units;
pub mod workload;

use std::fmt;
use std::path::Path;

use feroce_fabric::{FlowKey, Rate, Time, Topology};
use feroce_wire::Pmtu;

pub use capture::Captured;
pub use diagnosis::{Diagnosis, Storm, Victim, Why};
pub use flow_outcome::FlowOutcome;
pub use lines::ReadError as OtherError;
pub use outcome::{Outcome, percentile};
pub use run::{Run, RunError};
pub use series::{PortSeries, Series};
pub use units::{parse_chance, parse_rate};

/// Bytes that one host sends to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// The number of the host that sends.
    pub src: u32,
    /// The number of the host that receives.
    pub dst: u32,
    /// Priority of its packets.
    pub priority: u8,
    /// Bytes.
    pub bytes: u64,
    /// When it starts at the earliest.
    pub start: Time,
    /// What tells it from other flows where paths are chosen.
    pub key: FlowKey,
}

/// How long packets are on a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WireLength {
    /// As on the wire: Ethernet with preamble and gap, IPv4, UDP, the packet and its ICRC.
    #[default]
    RoceV2,
    /// As on InfiniBand without a GRH: start and end symbols, LRH, the packet, ICRC and VCRC.
    Infiniband,
    /// As models assume: a full packet has `payload` bytes and `overhead` more, an answer `answer`.
    Model {
        /// Payload of a full packet.
        payload: u32,
        /// Headers of a packet with payload.
        overhead: u32,
        /// Bytes of a packet without payload.
        answer: u32,
    },
}

/// How hosts recover from the loss of packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Recovery {
    /// As adapters do: everything from the lost packet on is sent again.
    #[default]
    GoBackN,
    /// Only what is lost is sent again, and what is on its way is bounded, as in IRN. RoCEv2 has no
    /// packets for that: simulated only.
    Selective,
}

/// Why a scenario cannot be read.
#[derive(Debug)]
pub enum ReadError {
    /// An input of another simulator.
    Other(lines::ReadError),
    /// Our own format.
    Text(text::TextError),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Other(e) => write!(f, "{e}"),
            Self::Text(e) => write!(f, "{e}"),
        }
    }
}

impl std::error::Error for ReadError {}

/// What a file is, by the end of its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Format {
    /// Our own.
    Toml,
    /// A connection matrix of htsim.
    Htsim,
    /// A configuration of HPCC's ns-3, or the directory that it is in.
    Hpcc,
}

impl Format {
    fn of(path: &Path) -> Self {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("toml") => Self::Toml,
            Some("cm") => Self::Htsim,
            _ => Self::Hpcc,
        }
    }
}

/// How to read a scenario.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reading<'a> {
    /// Traffic that is drawn at random follows from it.
    pub seed: u64,
    /// Settings that replace those of the file, in TOML only: keys such as `host.congestion` or
    /// `pattern.0.load`, and values as the file would have them.
    pub settings: &'a [(String, String)],
    /// The topology of a connection matrix of htsim, if it is not in the file beside it that has
    /// the same name and ends in `.topo`.
    pub topology: Option<&'a Path>,
}

/// Reads a scenario: TOML (`.toml`), a connection matrix of htsim (`.cm`), else a configuration of
/// HPCC's ns-3 or the directory that it is in.
pub fn read(path: &Path, how: Reading<'_>) -> Result<Scenario, ReadError> {
    let format = Format::of(path);
    let refuse = |what| Err(ReadError::Other(lines::ReadError::new(path, 0, what)));
    if format != Format::Htsim && how.topology.is_some() {
        return refuse("only a connection matrix of htsim takes a topology");
    }
    if format != Format::Toml && !how.settings.is_empty() {
        return refuse("only a scenario in TOML has settings");
    }
    match format {
        Format::Toml => text::read_scenario(path, how.seed, how.settings).map_err(ReadError::Text),
        Format::Htsim => htsim::read_scenario(path, how.topology).map_err(ReadError::Other),
        Format::Hpcc => hpcc::read_scenario(path).map_err(ReadError::Other),
    }
}

/// Reads the topology of a scenario, which need not have flows.
pub fn read_topology(path: &Path) -> Result<Topology, ReadError> {
    match Format::of(path) {
        Format::Toml => {
            text::read_network(path).map(|network| network.topology).map_err(ReadError::Text)
        }
        _ => read(path, Reading::default()).map(|scenario| scenario.topology),
    }
}

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Hosts, switches, links.
    pub topology: Topology,
    /// Buffers, pauses, marks.
    pub fabric: feroce_fabric::Config,
    /// The engines; their seeds are replaced.
    pub engine: feroce_engine::Config,
    /// Path MTU.
    pub mtu: Pmtu,
    /// Transport timer of queue pairs, as verbs count it: 4.096 us times two to the power of this.
    pub timeout: u8,
    /// How long packets are.
    pub wire: WireLength,
    /// Recovery from loss.
    pub recovery: Recovery,
    /// The flows.
    pub flows: Vec<Flow>,
    /// Flows that wait for others: the number of a flow, and of an earlier one that must have
    /// arrived before it starts.
    pub after: Vec<(usize, usize)>,
    /// What happens to links and hosts meanwhile.
    pub happenings: Vec<Happening>,
    /// When to stop at the latest.
    pub stop: Time,
}

impl Scenario {
    /// Flows over a lossless network without congestion control, for a second at most.
    pub fn new(topology: Topology, flows: Vec<Flow>) -> Self {
        Self {
            topology,
            fabric: feroce_fabric::Config::default(),
            engine: feroce_engine::Config::default(),
            mtu: Pmtu::B1024,
            timeout: 14,
            wire: WireLength::RoceV2,
            recovery: Recovery::GoBackN,
            flows,
            after: Vec::new(),
            happenings: Vec::new(),
            stop: Time::from_ns(1_000_000_000),
        }
    }
}

/// Something happens at a time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Happening {
    /// When.
    pub at: Time,
    /// What.
    pub happens: Happens,
}

/// What happens to a link or a host.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Happens {
    /// A link goes down (false) or comes up.
    Link(usize, bool),
    /// A link loses packets with this probability from now on.
    Loss(usize, f64),
    /// A link has this rate from now on.
    Rate(usize, Rate),
    /// A host tells its switch to stop sending in a priority (true), or to go on.
    Pause(u32, u8, bool),
}
