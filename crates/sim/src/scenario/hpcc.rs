//! Reads the inputs of HPCC's ns-3: a configuration, a topology and a list of flows.
//!
//! The formats are lists of words; lines and spaces do not matter, except in the configuration,
//! which has a name and its values on each line.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use feroce_engine::{
    Config, CongestionConfig, ConnectXConfig, HpccConfig, TimelyConfig, WindowConfig,
};
use feroce_fabric::{
    BufferConfig, Ecn, EcnConfig, FlowKey, Headroom, Link, Node, PfcConfig, Quantize, Rate,
    TelemetryConfig, Time, Topology,
};
use feroce_wire::{Bth, Pmtu};

use super::base_rtt::base_rtt_ns;
use super::lines::{ReadError, read};
use super::units::{parse_rate, parse_time};
use super::{Flow, Scenario, WireLength};

/// Headers that ns-3 adds to a packet with payload.
const OVERHEAD: u32 = 48;
/// An answer: the smallest Ethernet frame without its check sequence.
const ANSWER: u32 = 60;
/// Room for the records of five switches, which HPCC adds to packets and answers.
const TELEMETRY: u32 = 42;
/// Units of bytes in those records: of queues, and of what a port has sent.
const QUEUE_UNIT: u64 = 80;
const SENT_UNIT: u64 = 128;
/// An answer with that room: Ethernet 14, IPv4 20, its own header 12.
const ANSWER_WITH_TELEMETRY: u32 = 46 + TELEMETRY;
/// The time of sending, which TIMELY adds to packets; answers have room for it.
const TIMESTAMP: u32 = 8;

/// The words of a file, with the numbers of their lines.
struct Words {
    file: PathBuf,
    words: std::vec::IntoIter<(usize, String)>,
    line: usize,
}

impl Words {
    fn open(file: &Path) -> Result<Self, ReadError> {
        let text = read(file)?;
        let words: Vec<_> = (1..)
            .zip(text.lines())
            .flat_map(|(n, line)| line.split_whitespace().map(move |word| (n, word.to_owned())))
            .collect();
        Ok(Self { file: file.to_owned(), words: words.into_iter(), line: 0 })
    }

    fn error(&self, what: impl Into<String>) -> ReadError {
        ReadError::new(&self.file, self.line, what)
    }

    fn word(&mut self, what: &str) -> Result<String, ReadError> {
        match self.words.next() {
            Some((line, word)) => {
                self.line = line;
                Ok(word)
            }
            None => Err(self.error(format!("the file ends before {what}"))),
        }
    }

    fn number<T: FromStr>(&mut self, what: &str) -> Result<T, ReadError> {
        let word = self.word(what)?;
        word.parse()
            .map_err(|_| self.error(format!("{what}: {word:?} is not a number of its kind")))
    }

    /// A number of a list that the file says is so long. The list cannot be longer than the file.
    fn count(&mut self, what: &str) -> Result<usize, ReadError> {
        let count: usize = self.number(what)?;
        if count > self.words.len() {
            return Err(self.error(format!("{what} is {count}, and the file is shorter than that")));
        }
        Ok(count)
    }
}

/// Reads a configuration file, or the `config.txt` of a directory. Other files are found beside it.
pub fn read_scenario(path: &Path) -> Result<Scenario, ReadError> {
    let file = if path.is_dir() { path.join("config.txt") } else { path.to_owned() };
    let settings = Settings::open(&file)?;
    let beside = |key, default: &str| {
        let name = settings.first(key).unwrap_or(default);
        file.parent().unwrap_or_else(|| Path::new(".")).join(name)
    };
    let mut topology_file = beside("TOPOLOGY_FILE", "topology.txt");
    if !topology_file.exists() {
        topology_file = topology_file.with_file_name("topo.txt");
    }
    let (topology, numbers) =
        read_topology(&topology_file, settings.number("ERROR_RATE_PER_LINK", 0.0)?)?;
    let flows = read_flows(&beside("FLOW_FILE", "flow.txt"), &numbers)?;
    let payload = settings.number("PACKET_PAYLOAD_SIZE", 1000)?;
    let mtu = pmtu_for(payload)
        .ok_or_else(|| settings.error("PACKET_PAYLOAD_SIZE", "not between 1 and 4096"))?;
    // Its switches count in units, so that a record fits into eight bytes. The units decide how
    // fairly the flows of HPCC share a link.
    let multiple: u64 = settings.number("INT_MULTI", 1)?;
    let telemetry = (settings.number("CC_MODE", 0)? == 3).then_some(TelemetryConfig {
        queue_unit: QUEUE_UNIT.saturating_mul(multiple),
        sent_unit: SENT_UNIT.saturating_mul(multiple),
    });
    let pfc = PfcConfig { quanta: None, ..PfcConfig::default() };
    let fabric = feroce_fabric::Config {
        buffer: BufferConfig {
            bytes: settings.number::<u64>("BUFFER_SIZE", 32)? << 20,
            headroom: Headroom::Delays(3),
            ..BufferConfig::default()
        },
        pfc: Some(pfc),
        ecn: settings.ecn()?,
        telemetry,
        strict: 0,
        quantize: Quantize::Ns3,
        log_pauses: true,
        ..feroce_fabric::Config::default()
    };
    let congestion = settings.congestion(&topology, payload)?;
    let (overhead, answer) = match congestion {
        CongestionConfig::Hpcc(_) => (OVERHEAD + TELEMETRY, ANSWER_WITH_TELEMETRY),
        CongestionConfig::Timely(_) => (OVERHEAD + TIMESTAMP, ANSWER),
        _ => (OVERHEAD, ANSWER),
    };
    let unlimited = 1 << 60;
    let window = WindowConfig { initial: unlimited, min: unlimited, max: unlimited };
    let engine = Config {
        window,
        ack_every_packet: true,
        congestion,
        // A full packet has a BTH and a path MTU of payload in the engine.
        packet_overhead: (payload + overhead).saturating_sub((mtu.bytes() + Bth::LEN) as u32),
        // Every mark reaches the sender, which decides how often to react.
        cnp_interval_ns: 0,
        ..Config::default()
    };
    let stop_s: f64 = settings.number("SIMULATOR_STOP_TIME", 10.0)?;
    Ok(Scenario {
        fabric,
        engine,
        mtu,
        // ns-3 has none: 4.3 s, longer than a pause lasts.
        timeout: 20,
        wire: WireLength::Model { payload, overhead, answer },
        stop: seconds(stop_s),
        ..Scenario::new(topology, flows)
    })
}

/// The least path MTU that holds a payload.
fn pmtu_for(payload: u32) -> Option<Pmtu> {
    Pmtu::ALL.into_iter().find(|pmtu| payload > 0 && pmtu.bytes() >= payload as usize)
}

fn seconds(s: f64) -> Time {
    Time::from_ns((s * 1e9).round().max(0.0) as u64)
}

/// Reads a topology without a configuration.
pub(super) fn read_topology_alone(file: &Path) -> Result<Topology, ReadError> {
    read_topology(file, 0.0).map(|(topology, _)| topology)
}

/// A topology, and the number of each host by node. Links whose loss is zero lose `loss`.
fn read_topology(
    file: &Path,
    default_loss: f64,
) -> Result<(Topology, Vec<Option<u32>>), ReadError> {
    let mut words = Words::open(file)?;
    let nodes: usize = words.number("the number of nodes")?;
    let switches = words.count("the number of switches")?;
    let links = words.count("the number of links")?;
    // Every node has a link.
    if nodes > 2 * links.max(1) {
        return Err(words.error(format!("{links} links do not connect {nodes} nodes")));
    }
    let mut is_switch = vec![false; nodes];
    for _ in 0..switches {
        let id: usize = words.number("a switch")?;
        match is_switch.get_mut(id) {
            Some(switch) => *switch = true,
            None => return Err(words.error(format!("switch {id} of {nodes} nodes"))),
        }
    }
    let mut topology = Topology::default();
    for (id, &switch) in is_switch.iter().enumerate() {
        // People who have such files know nodes by these numbers.
        topology.add_named(if switch { Node::Switch } else { Node::Host }, id.to_string());
    }
    for _ in 0..links {
        let ends = [words.number("an end of a link")?, words.number("an end of a link")?];
        let rate = words.word("the rate of a link")?;
        let rate =
            parse_rate(&rate).ok_or_else(|| words.error(format!("{rate:?} is not a rate")))?;
        let delay = words.word("the delay of a link")?;
        let delay_ps =
            parse_time(&delay).ok_or_else(|| words.error(format!("{delay:?} is not a time")))?;
        let loss = match words.number("the error rate of a link")? {
            0.0 => default_loss,
            loss => loss,
        };
        topology.link(Link { ends, rate, delay_ps, loss });
    }
    topology.check().map_err(|e| words.error(e.to_string()))?;
    let mut numbers = vec![None; nodes];
    for (number, node) in topology.hosts().enumerate() {
        numbers[node] = Some(number as u32);
    }
    Ok((topology, numbers))
}

fn read_flows(file: &Path, numbers: &[Option<u32>]) -> Result<Vec<Flow>, ReadError> {
    let mut words = Words::open(file)?;
    let count = words.count("the number of flows")?;
    let mut flows = Vec::with_capacity(count);
    // Source ports count up for each pair of hosts.
    let mut ports: BTreeMap<(usize, usize), u16> = BTreeMap::new();
    for _ in 0..count {
        let (src, dst) = (words.number("a source")?, words.number("a destination")?);
        let host = |node: usize| numbers.get(node).copied().flatten();
        let (Some(from), Some(to)) = (host(src), host(dst)) else {
            return Err(words.error(format!("{src} or {dst} is not a host")));
        };
        if from == to {
            return Err(words.error(format!("a flow from host {src} to itself")));
        }
        let priority: u8 = words.number("a priority")?;
        if priority > 7 {
            return Err(words.error(format!("priority {priority} of 0 to 7")));
        }
        let dport: u16 = words.number("a destination port")?;
        let bytes = words.number("a number of bytes")?;
        let start = seconds(words.number("a start")?);
        let sport = ports.entry((src, dst)).or_insert(10_000);
        let key = FlowKey {
            src: address(src),
            dst: address(dst),
            ports: u32::from(*sport) | u32::from(dport) << 16,
        };
        *sport = sport.wrapping_add(1);
        flows.push(Flow { src: from, dst: to, priority, bytes, start, key });
    }
    Ok(flows)
}

/// The address that ns-3's HPCC gives a node.
pub fn address(node: usize) -> u32 {
    0x0b00_0001 | ((node as u32 & 0xffff) << 8)
}

/// The lines of a configuration.
struct Settings {
    file: PathBuf,
    lines: BTreeMap<String, (usize, Vec<String>)>,
}

impl Settings {
    fn open(file: &Path) -> Result<Self, ReadError> {
        let text = read(file)?;
        let mut lines = BTreeMap::new();
        for (n, line) in (1..).zip(text.lines()) {
            let mut words = line.split_whitespace().map(str::to_owned);
            if let Some(key) = words.next() {
                lines.insert(key, (n, words.collect()));
            }
        }
        Ok(Self { file: file.to_owned(), lines })
    }

    fn first(&self, key: &str) -> Option<&str> {
        self.lines.get(key)?.1.first().map(String::as_str)
    }

    fn error(&self, key: &str, what: &str) -> ReadError {
        let line = self.lines.get(key).map_or(0, |(n, _)| *n);
        ReadError::new(&self.file, line, format!("{key}: {what}"))
    }

    fn number<T: FromStr>(&self, key: &str, default: T) -> Result<T, ReadError> {
        match self.first(key) {
            None => Ok(default),
            Some(word) => word.parse().map_err(|_| self.error(key, "not a number of its kind")),
        }
    }

    /// A map from rates to numbers: how many there are, then a rate and a number each.
    fn map(&self, key: &str) -> Result<BTreeMap<u64, f64>, ReadError> {
        let Some((_, words)) = self.lines.get(key) else { return Ok(BTreeMap::new()) };
        let mut map = BTreeMap::new();
        for pair in words.get(1..).unwrap_or_default().chunks(2) {
            let parsed = match pair {
                [rate, value] => rate.parse::<u64>().ok().zip(value.parse::<f64>().ok()),
                _ => None,
            };
            let (rate, value) =
                parsed.ok_or_else(|| self.error(key, "expected a rate and a number"))?;
            map.insert(rate, value);
        }
        Ok(map)
    }

    fn rate(&self, key: &str, default: u64) -> Result<u64, ReadError> {
        match self.first(key) {
            None => Ok(default),
            Some(word) => {
                parse_rate(word).map(Rate::bps).ok_or_else(|| self.error(key, "not a rate"))
            }
        }
    }

    fn microseconds(&self, key: &str, default: f64) -> Result<u64, ReadError> {
        let us: f64 = self.number(key, default)?;
        Ok((us * 1000.0).round().max(1.0) as u64)
    }

    /// Refuses a setting that has another value than the only one that is supported.
    fn only(&self, key: &str, value: u32, default: u32) -> Result<(), ReadError> {
        match self.number(key, default)? == value {
            true => Ok(()),
            false => Err(self.error(key, &format!("only {value} is supported with this CC_MODE"))),
        }
    }

    /// The congestion control of hosts; the rate of the first host is that of all.
    fn congestion(&self, topology: &Topology, payload: u32) -> Result<CongestionConfig, ReadError> {
        let is_host = |node: &usize| topology.nodes()[*node] == Node::Host;
        let first = topology.links().iter().find(|link| link.ends.iter().any(is_host));
        let default = ConnectXConfig::default();
        let line_rate_bps = first.map_or(default.line_rate_bps, |link| link.rate.bps());
        match self.number("CC_MODE", 0)? {
            0 => Ok(CongestionConfig::None),
            1 => Ok(CongestionConfig::ConnectX(ConnectXConfig {
                line_rate_bps,
                min_rate_bps: self.rate("MIN_RATE", 100_000_000)?,
                rate_ai_bps: self.rate("RATE_AI", 5_000_000)?,
                rate_hai_bps: self.rate("RATE_HAI", 50_000_000)?,
                g: self.number("EWMA_GAIN", default.g)?,
                alpha_timer_ns: self.microseconds("ALPHA_RESUME_INTERVAL", 55.0)?,
                decrease_timer_ns: self.microseconds("RATE_DECREASE_INTERVAL", 4.0)?,
                increase_timer_ns: self.microseconds("RP_TIMER", 1500.0)?,
                fast_recovery: self.number("FAST_RECOVERY_TIMES", 5)?,
                clamp_target: self.number("CLAMP_TARGET_RATE", 0)? != 0,
            })),
            3 => {
                self.only("HAS_WIN", 1, 0)?;
                self.only("VAR_WIN", 1, 0)?;
                self.only("FAST_REACT", 1, 1)?;
                self.only("MULTI_RATE", 0, 1)?;
                self.only("SAMPLE_FEEDBACK", 0, 0)?;
                let path = HpccConfig::for_path(line_rate_bps, base_rtt_ns(topology, payload));
                // Its window counts payload, ours everything on the link.
                let packets = path.line_window / u64::from(payload.max(1));
                Ok(CongestionConfig::Hpcc(HpccConfig {
                    line_rate_bps,
                    min_rate_bps: self.rate("MIN_RATE", 100_000_000)?,
                    rate_ai_bps: self.rate("RATE_AI", 5_000_000)?,
                    line_window: packets * u64::from(payload + OVERHEAD + TELEMETRY),
                    eta: self.number("U_TARGET", 0.95)?,
                    max_stage: self.number("MI_THRESH", 5)?,
                    ..path
                }))
            }
            7 => {
                self.only("HAS_WIN", 0, 0)?;
                Ok(CongestionConfig::Timely(TimelyConfig {
                    line_rate_bps,
                    min_rate_bps: self.rate("MIN_RATE", 100_000_000)?,
                    rate_ai_bps: self.rate("RATE_AI", 5_000_000)?,
                    ..TimelyConfig::default()
                }))
            }
            mode => Err(self.error(
                "CC_MODE",
                &format!("{mode} is not supported; 0, 1 (DCQCN), 3 (HPCC) and 7 (TIMELY) are"),
            )),
        }
    }

    fn ecn(&self) -> Result<Ecn, ReadError> {
        if self.number("ENABLE_QCN", 1)? == 0 {
            return Ok(Ecn::Off);
        }
        let (kmin, kmax, pmax) =
            (self.map("KMIN_MAP")?, self.map("KMAX_MAP")?, self.map("PMAX_MAP")?);
        let mut list = Vec::new();
        for (&bps, &min) in &kmin {
            let (Some(&max), Some(&pmax)) = (kmax.get(&bps), pmax.get(&bps)) else {
                return Err(self.error("KMIN_MAP", "a rate that KMAX_MAP or PMAX_MAP lacks"));
            };
            let rate =
                Rate::from_bps(bps).ok_or_else(|| self.error("KMIN_MAP", "a rate of zero"))?;
            let (kmin, kmax) = ((min * 1000.0) as u64, (max * 1000.0) as u64);
            if kmin > kmax {
                return Err(self.error("KMIN_MAP", "greater than in KMAX_MAP"));
            }
            list.push((rate, EcnConfig { kmin, kmax, pmax }));
        }
        Ok(Ecn::Rates(list))
    }
}
