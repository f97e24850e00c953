//! Scenarios in TOML.
//!
//! ```toml
//! [topology]
//! kind = "star"
//! hosts = 3
//! rate = "100G"
//! delay = "1us"
//!
//! [[flow]]
//! from = 0
//! to = 2
//! bytes = "25M"
//! ```

mod events;
mod flows;
mod infiniband;
mod settings;
mod shape;
mod values;

use std::fmt;
use std::path::{Path, PathBuf};

use feroce_engine::{
    CongestionConfig, ConnectXConfig, DcqcnConfig, HpccConfig, SwiftConfig, TimelyConfig,
};
use feroce_fabric::{
    BufferConfig, Ecn, EcnConfig, Fabric, PfcConfig, PriorityMap, Quantize, Rate, Spread, Time,
    Topology,
};
use feroce_train::Ext;
use feroce_wire::Pmtu;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::Spanned;

use self::flows::{Around, Flows};
use self::shape::{Shape, Wiring};
use self::values::{Fault, Size, Span};
use super::base_rtt::base_rtt_ns;
use super::{Recovery, Scenario, WireLength, hpcc, htsim};

/// What is wrong with a scenario.
#[derive(Debug)]
pub struct TextError {
    file: PathBuf,
    line: Option<usize>,
    what: String,
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.file.display(), self.what),
            None => write!(f, "{}: {}", self.file.display(), self.what),
        }
    }
}

impl std::error::Error for TextError {}

/// A scenario as the file has it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default = "Document::stop")]
    stop: Span,
    topology: Spanned<Shape>,
    #[serde(default)]
    node: Vec<Spanned<shape::NodeEntry>>,
    #[serde(default)]
    link: Vec<Spanned<shape::LinkEntry>>,
    #[serde(default)]
    route: Vec<Spanned<shape::RouteEntry>>,
    switch: Option<Spanned<Switch>>,
    infiniband: Option<infiniband::Infiniband>,
    #[serde(default)]
    host: Hosts,
    #[serde(default)]
    flow: Vec<Spanned<flows::Entry>>,
    #[serde(default)]
    pattern: Vec<Spanned<flows::Pattern>>,
    #[serde(default)]
    event: Vec<Spanned<events::Entry>>,
}

impl Document {
    fn stop() -> Span {
        Span(1_000_000_000_000)
    }
}

/// Switches.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Switch {
    buffer: Size,
    pfc: bool,
    quanta: u16,
    watchdog: Option<Span>,
    dscp: Option<Spanned<Vec<(u8, u8)>>>,
    pcp: Option<Spanned<Vec<(u8, u8)>>>,
    ecn: Spanned<Marking>,
    spread: Spreading,
}

impl Default for Switch {
    fn default() -> Self {
        Self {
            buffer: Size(32 << 20),
            pfc: true,
            quanta: u16::MAX,
            watchdog: None,
            dscp: None,
            pcp: None,
            ecn: Spanned::new(0..0, Marking::Word(MarkingWord::Off)),
            spread: Spreading::Flows,
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Spreading {
    Flows,
    Packets,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected \"off\", \"by-rate\", or { kmin = SIZE, kmax = SIZE, pmax = 0 to 1 }"
)]
enum Marking {
    Word(MarkingWord),
    Thresholds { kmin: Size, kmax: Size, pmax: f64 },
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum MarkingWord {
    Off,
    ByRate,
}

/// Hosts.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Hosts {
    mtu: Spanned<usize>,
    timeout: Spanned<u8>,
    congestion: Congestion,
    recovery: Repeat,
}

/// How hosts recover from loss.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Repeat {
    GoBackN,
    Selective,
}

impl Default for Hosts {
    fn default() -> Self {
        let (mtu, timeout) = (Spanned::new(0..0, 4096), Spanned::new(0..0, 14));
        Self { mtu, timeout, congestion: Congestion::None, recovery: Repeat::GoBackN }
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Congestion {
    None,
    Dcqcn,
    ConnectX,
    Timely,
    Swift,
    Hpcc,
}

impl Congestion {
    /// For links of a rate, packets of so many bytes on them, and a round trip.
    fn config(
        self,
        rate: Rate,
        packet_bytes: u32,
        rtt_ns: impl FnOnce() -> u64,
    ) -> CongestionConfig {
        let line_rate_bps = rate.bps();
        match self {
            Self::None => CongestionConfig::None,
            Self::Dcqcn => {
                CongestionConfig::Dcqcn(DcqcnConfig { line_rate_bps, ..DcqcnConfig::default() })
            }
            Self::ConnectX => CongestionConfig::ConnectX(ConnectXConfig {
                line_rate_bps,
                // In proportion to the rate, as adapters are delivered.
                rate_ai_bps: line_rate_bps / 5000,
                rate_hai_bps: line_rate_bps / 500,
                ..ConnectXConfig::default()
            }),
            Self::Timely => {
                CongestionConfig::Timely(TimelyConfig::for_path(line_rate_bps, rtt_ns()))
            }
            Self::Swift => CongestionConfig::Swift(SwiftConfig::for_path(
                line_rate_bps,
                rtt_ns(),
                packet_bytes.into(),
            )),
            Self::Hpcc => CongestionConfig::Hpcc(HpccConfig::for_path(line_rate_bps, rtt_ns())),
        }
    }
}

/// A network without flows.
#[derive(Clone, Debug)]
pub struct Network {
    /// Hosts, switches, links.
    pub topology: Topology,
    /// Buffers, pauses, marks.
    pub fabric: feroce_fabric::Config,
    /// Congestion control of hosts.
    pub congestion: CongestionConfig,
    /// Path MTU.
    pub mtu: Pmtu,
}

/// Reads a scenario. Traffic that is drawn at random follows from the seed; settings replace those
/// of the file.
pub(super) fn read_scenario(
    file: &Path,
    seed: u64,
    settings: &[(String, String)],
) -> Result<Scenario, TextError> {
    let text = open(file)?;
    let build = |document: Document, dir: &Path| document.scenario(dir, seed);
    // What is wrong with the file itself has a line.
    let scenario = parse_with(file, &text, build)?;
    if settings.is_empty() {
        return Ok(scenario);
    }
    let error = |what: String| TextError { file: file.to_owned(), line: None, what };
    let changed = settings::change(&text, settings).map_err(error)?;
    parse_with(file, &changed, build).map_err(|e| {
        let words = settings.iter().map(|(key, value)| format!("{key} = {value}"));
        let words: Vec<_> = words.collect();
        error(format!("with {}: {}", words.join(", "), e.what))
    })
}

/// Reads the network of a scenario, which need not have flows.
pub fn read_network(file: &Path) -> Result<Network, TextError> {
    read_with(file, |document: Document, dir| document.network(dir).map(|(network, _)| network))
}

/// Says what is wrong with the network of a scenario that is not in a file.
pub fn check_network(text: &str) -> Result<(), String> {
    let file = Path::new("");
    let network = |document: Document, dir: &Path| document.network(dir).map(|_| ());
    parse_with(file, text, network).map_err(|e| e.what)
}

/// Reads a document, and says in which line something is wrong.
fn read_with<D: DeserializeOwned, T>(
    file: &Path,
    build: impl FnOnce(D, &Path) -> Result<T, Fault>,
) -> Result<T, TextError> {
    parse_with(file, &open(file)?, build)
}

fn open(file: &Path) -> Result<String, TextError> {
    std::fs::read_to_string(file).map_err(|e| {
        let what = e.to_string();
        TextError { file: file.to_owned(), line: None, what }
    })
}

fn parse_with<D: DeserializeOwned, T>(
    file: &Path,
    text: &str,
    build: impl FnOnce(D, &Path) -> Result<T, Fault>,
) -> Result<T, TextError> {
    let error = |line, what| TextError { file: file.to_owned(), line, what };
    let line = |at: usize| text.bytes().take(at).filter(|&byte| byte == b'\n').count() + 1;
    let document = toml::from_str(text)
        .map_err(|e| error(e.span().map(|span| line(span.start)), e.message().to_owned()))?;
    let dir = file.parent().unwrap_or_else(|| Path::new("."));
    build(document, dir).map_err(|Fault { at, what }| error(at.map(line), what))
}

/// Reads a file that has a topology alone: TOML or htsim's `.topo` by the end of its name, else as
/// HPCC's ns-3 has it.
fn read_topology(file: &Path) -> Result<Topology, String> {
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("toml") => {}
        Some("topo") => return htsim::read_topology(file).map_err(|e| e.to_string()),
        _ => return hpcc::read_topology_alone(file).map_err(|e| e.to_string()),
    }
    let again = |_: &Path| Err("topology.file: not in a file that is named by another".to_owned());
    read_with(file, |wiring: Wiring, _| wiring.build(again)).map_err(|e| e.to_string())
}

impl Document {
    /// The network, and its hosts by name.
    fn network(self, dir: &Path) -> Result<(Network, Rest), Fault> {
        let Self { stop, topology, node, link, route, switch, infiniband, .. } = self;
        let Self { host, flow, pattern, event, .. } = self;
        let wiring = Wiring { topology, node, link, route };
        let topology = wiring.build(|file| read_topology(&dir.join(file)))?;
        if wiring.may_lack_paths() {
            let config = feroce_fabric::Config::default();
            Fabric::<()>::new(topology.clone(), config).map_err(|e| wiring.locate(&e))?;
        }
        let mtu = Pmtu::from_bytes(*host.mtu.get_ref()).ok_or_else(|| {
            Fault::at(&host.mtu, "host.mtu: one of 256, 512, 1024, 2048 and 4096")
        })?;
        if *host.timeout.get_ref() > 31 {
            return Err(Fault::at(&host.timeout, "host.timeout: at most 31"));
        }
        let rates = topology.host_rates();
        let rate = rates.first().ok_or_else(|| "no host".to_owned())?;
        let wire = infiniband.as_ref().map_or(WireLength::RoceV2, |_| WireLength::Infiniband);
        let packet_bytes = wire.packet_bytes(mtu);
        let rtt_ns = || base_rtt_ns(&topology, packet_bytes);
        let congestion = host.congestion.config(*rate, packet_bytes, rtt_ns);
        let usual = Switch::default();
        let mut fabric = switch.as_ref().map_or(&usual, Spanned::get_ref).config()?;
        if let Some(infiniband) = infiniband {
            if let Some(switch) = &switch {
                let what = "switch: of Ethernet; [infiniband] has the buffers and lanes of its own";
                return Err(Fault::at(switch, what));
            }
            // The first packet of a message has an address as well.
            fabric.infiniband = Some(infiniband.config(packet_bytes + Ext::MAX as u32)?);
            fabric.pfc = None;
        }
        let network = Network { fabric, congestion, mtu, topology };
        let timeout = *host.timeout.get_ref();
        let recovery = match host.recovery {
            Repeat::GoBackN => Recovery::GoBackN,
            Repeat::Selective => Recovery::Selective,
        };
        Ok((network, Rest { stop, timeout, recovery, wire, flow, pattern, event }))
    }

    fn scenario(self, dir: &Path, seed: u64) -> Result<Scenario, Fault> {
        let (network, rest) = self.network(dir)?;
        let hosts = flows::Hosts::new(&network.topology);
        let around = Around { topology: &network.topology, hosts: &hosts, dir, seed };
        let Flows { flows, after } = flows::build(&rest.flow, &rest.pattern, &around)?;
        let happenings = events::build(&rest.event, &network.topology, &hosts)?;
        let wire = rest.wire;
        let engine = feroce_engine::Config {
            congestion: network.congestion,
            packet_overhead: wire.overhead() - feroce_wire::Bth::LEN as u32,
            ..feroce_engine::Config::default()
        };
        Ok(Scenario {
            fabric: network.fabric,
            engine,
            mtu: network.mtu,
            timeout: rest.timeout,
            recovery: rest.recovery,
            wire,
            after,
            happenings,
            stop: Time::from_ps(rest.stop.0),
            ..Scenario::new(network.topology, flows)
        })
    }
}

/// What a scenario has beside its network.
struct Rest {
    stop: Span,
    timeout: u8,
    recovery: Recovery,
    wire: WireLength,
    flow: Vec<Spanned<flows::Entry>>,
    pattern: Vec<Spanned<flows::Pattern>>,
    event: Vec<Spanned<events::Entry>>,
}

impl Switch {
    /// What switches take the priority of a packet from.
    fn priorities(&self) -> Result<PriorityMap, Fault> {
        let (mut map, pairs, what) = match (&self.dscp, &self.pcp) {
            (None, None) => return Ok(PriorityMap::default()),
            (Some(pairs), None) => {
                let what = "switch.dscp: pairs of a DSCP from 0 to 63 and a priority from 0 to 7";
                (PriorityMap::dscp(), pairs, what)
            }
            (None, Some(pairs)) => {
                let what = "switch.pcp: pairs of a PCP from 0 to 7 and a priority from 0 to 7";
                (PriorityMap::pcp(), pairs, what)
            }
            (Some(_), Some(pairs)) => {
                let what = "switch.pcp: switches take the priority from `dscp` or from `pcp`, not \
                            from both";
                return Err(Fault::at(pairs, what));
            }
        };
        match pairs.get_ref().iter().all(|&(value, priority)| map.set(value, priority)) {
            true => Ok(map),
            false => Err(Fault::at(pairs, what)),
        }
    }

    fn config(&self) -> Result<feroce_fabric::Config, Fault> {
        let ecn = match *self.ecn.get_ref() {
            Marking::Word(MarkingWord::Off) => Ecn::Off,
            Marking::Word(MarkingWord::ByRate) => Ecn::ByRate,
            Marking::Thresholds { kmin, kmax, pmax } => {
                if kmin.0 > kmax.0 || !(0.0..=1.0).contains(&pmax) {
                    let what = "switch.ecn: kmin <= kmax, and pmax from 0 to 1";
                    return Err(Fault::at(&self.ecn, what));
                }
                Ecn::All(EcnConfig { kmin: kmin.0, kmax: kmax.0, pmax })
            }
        };
        let priorities = self.priorities()?;
        let watchdog_ps = self.watchdog.map(|span| span.0);
        let quanta = Some(self.quanta);
        let pfc = self.pfc.then_some(PfcConfig { quanta, watchdog_ps, ..PfcConfig::default() });
        Ok(feroce_fabric::Config {
            buffer: BufferConfig { bytes: self.buffer.0, ..BufferConfig::default() },
            pfc,
            priorities,
            ecn,
            spread: match self.spread {
                Spreading::Flows => Spread::Flows,
                Spreading::Packets => Spread::Packets,
            },
            quantize: Quantize::Picoseconds,
            log_pauses: true,
            ..feroce_fabric::Config::default()
        })
    }
}
