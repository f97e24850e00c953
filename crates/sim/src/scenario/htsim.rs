//! Reads the inputs of htsim: a connection matrix (`.cm`) and a topology (`.topo`).
//!
//! Both have a word and its values on each line; `#` begins a comment.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::str::FromStr;

use feroce_fabric::{FlowKey, Node, NodeId, Rate, Time, Topology};
use feroce_wire::Pmtu;

use super::lines::{Lines, ReadError};
use super::{Flow, Scenario};

/// Priority of flows that do not say.
const PRIORITY: u8 = 3;

/// Reads a connection matrix, and the topology: the file that is given, or else the one beside it
/// that has the same name and ends in `.topo`.
pub fn read_scenario(file: &Path, topology: Option<&Path>) -> Result<Scenario, ReadError> {
    let beside = file.with_extension("topo");
    let topology_file = topology.unwrap_or(&beside);
    let topology = read_topology(topology_file)?;
    let hosts = topology.hosts().count();
    let matrix = Matrix::read(file, hosts)?;
    let (flows, after) = matrix.sorted(file)?;
    Ok(Scenario { mtu: Pmtu::B4096, after, ..Scenario::new(topology, flows) })
}

/// A value that follows a word.
fn value<T: FromStr>(lines: &Lines, word: &str, next: Option<&&str>) -> Result<T, ReadError> {
    let next = next.ok_or_else(|| lines.error(format!("{word}: a number is missing")))?;
    next.parse().map_err(|_| lines.error(format!("{word}: {next:?} is not a number of its kind")))
}

/// Switches of one tier.
#[derive(Clone, Copy, Debug)]
struct Tier {
    line: usize,
    down: Option<u64>,
    up: Option<u64>,
    rate: Rate,
    delay_ps: u64,
    latency_ps: u64,
    bundle: u64,
}

/// Reads a topology of two or three tiers.
pub(super) fn read_topology(file: &Path) -> Result<Topology, ReadError> {
    let mut lines = Lines::open(file)?;
    let (mut nodes, mut tiers, mut pod) = (None, None, None);
    let mut all: Vec<Tier> = Vec::new();
    while let Some(words) = lines.next_words() {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let key = words[0].to_ascii_lowercase();
        let number = |lines: &Lines| value::<u64>(lines, words[0], words.get(1));
        match (key.as_str(), all.last_mut()) {
            ("nodes", _) => nodes = Some(number(&lines)?),
            ("tiers", _) => tiers = Some(number(&lines)?),
            ("podsize", _) => pod = Some(number(&lines)?),
            ("tier", _) => {
                let index = number(&lines)?;
                if index != all.len() as u64 {
                    return Err(lines.error(format!("tier {index}; tier {} is next", all.len())));
                }
                all.push(Tier {
                    line: lines.line(),
                    down: None,
                    up: None,
                    rate: Rate::from_gbps(100),
                    delay_ps: 1_000_000,
                    latency_ps: 0,
                    bundle: 1,
                });
            }
            ("downlink_speed_gbps", Some(tier)) => {
                let gbps: f64 = value(&lines, words[0], words.get(1))?;
                let rate = Rate::from_bps((gbps * 1e9).round().max(0.0) as u64);
                tier.rate = rate.ok_or_else(|| lines.error("a rate of zero"))?;
            }
            ("radix_down", Some(tier)) => tier.down = Some(number(&lines)?),
            ("radix_up", Some(tier)) => tier.up = Some(number(&lines)?),
            ("downlink_latency_ns", Some(tier)) => {
                tier.delay_ps = number(&lines)?.saturating_mul(1000);
            }
            ("switch_latency_ns", Some(tier)) => {
                tier.latency_ps = number(&lines)?.saturating_mul(1000);
            }
            ("bundle", Some(tier)) => tier.bundle = number(&lines)?.max(1),
            // Follows from the radixes; queues of single ports do not exist in a shared buffer.
            ("oversubscribed" | "queue_up" | "queue_down", Some(_)) => {
                number(&lines)?;
            }
            _ => return Err(lines.error(format!("unknown word {:?}", words[0]))),
        }
    }
    let missing = |what: &str| lines.error(format!("the file ends before {what}"));
    let nodes = nodes.ok_or_else(|| missing("the number of nodes"))?;
    let count = tiers.unwrap_or(all.len() as u64);
    if count != all.len() as u64 {
        return Err(missing(&format!("tier {} of {count}", all.len())));
    }
    let wrong = |tier: &Tier, what: String| lines.error_at(tier.line, what);
    match all.as_slice() {
        [tor, top] => tree(nodes, nodes, &[*tor, *top], &wrong),
        [tor, aggregation, core] => {
            let pod = pod.ok_or_else(|| missing("Podsize"))?;
            tree(nodes, pod, &[*tor, *aggregation, *core], &wrong)
        }
        _ => Err(lines.error(format!("{} tiers; two and three are supported", all.len()))),
    }
}

/// Most nodes and links: more than one core simulates in minutes.
const MOST: u64 = 1_000_000;

/// Builds a tree of two or three tiers: hosts, `tor0`, ..., `agg0`, ... and `core0`, ...
fn tree(
    hosts: u64,
    pod: u64,
    tiers: &[Tier],
    wrong: &dyn Fn(&Tier, String) -> ReadError,
) -> Result<Topology, ReadError> {
    let (tor, aggregation) = (&tiers[0], &tiers[1]);
    let need = |value: Option<u64>, tier: &Tier, key: &str| {
        let value = value.filter(|n| (1..=MOST).contains(n));
        value.ok_or_else(|| wrong(tier, format!("{key}: at least 1 and at most {MOST}")))
    };
    let divided = |a: u64, b: u64, tier: &Tier, what: &str| match a.checked_rem(b) {
        Some(0) => Ok(a / b),
        _ => Err(wrong(tier, format!("{what}: {a} is not a multiple of {b}"))),
    };
    if hosts == 0 || hosts > MOST {
        return Err(wrong(tor, format!("{hosts} nodes; from 1 to {MOST}")));
    }
    let down = need(tor.down, tor, "Radix_Down")?;
    let pods = divided(hosts, pod, tor, "nodes and the size of a pod")?;
    let tors = divided(pod, down, tor, "the size of a pod and Radix_Down")?;
    let up = need(tor.up, tor, "Radix_Up")?;
    let aggregations = divided(up, aggregation.bundle, tor, "Radix_Up and the bundle above")?;
    let expects = |tier: &Tier, links: u64| match tier.down {
        Some(down) if down != links => {
            Err(wrong(tier, format!("Radix_Down is {down}, and {links} links lead here")))
        }
        _ => Ok(()),
    };
    expects(aggregation, tors * aggregation.bundle)?;
    let mut topology = Topology::default();
    let mut add = |node, word: &str, count: u64| -> NodeId {
        let first = topology.nodes().len();
        for i in 0..count {
            topology.add_named(node, format!("{word}{i}"));
        }
        first
    };
    let first_host = add(Node::Host, "h", hosts);
    let first_tor = add(Node::Switch, "tor", pods * tors);
    let first_aggregation = add(Node::Switch, "agg", pods * aggregations);
    // Half of a switch's latency goes to each of its links: a packet passes two of them.
    let delay = |low: Option<&Tier>, high: &Tier| {
        let half = low.map_or(0, |tier| tier.latency_ps / 2) + high.latency_ps / 2;
        high.delay_ps.saturating_add(half)
    };
    for host in 0..hosts {
        let at = first_tor + (host / down) as usize;
        topology.connect(first_host + host as usize, at, tor.rate, delay(None, tor));
    }
    for low in 0..pods * tors {
        for high in 0..aggregations {
            let at = first_aggregation + (low / tors * aggregations + high) as usize;
            for _ in 0..aggregation.bundle {
                let delay = delay(Some(tor), aggregation);
                topology.connect(first_tor + low as usize, at, aggregation.rate, delay);
            }
        }
    }
    let Some(core) = tiers.get(2) else { return Ok(topology) };
    let up = need(aggregation.up, aggregation, "Radix_Up")?;
    let each = divided(up, core.bundle, aggregation, "Radix_Up and the bundle above")?;
    expects(core, pods * core.bundle)?;
    let first_core = topology.nodes().len();
    for i in 0..aggregations * each {
        topology.add_named(Node::Switch, format!("core{i}"));
    }
    for low in 0..pods * aggregations {
        for i in 0..each {
            let at = first_core + (low % aggregations * each + i) as usize;
            for _ in 0..core.bundle {
                let delay = delay(Some(aggregation), core);
                topology.connect(first_aggregation + low as usize, at, core.rate, delay);
            }
        }
    }
    Ok(topology)
}

/// A flow of the matrix.
#[derive(Debug)]
struct Connection {
    line: usize,
    flow: Flow,
    /// The trigger that starts it, and those that it pulls.
    trigger: Option<u32>,
    pulls: Vec<u32>,
}

/// Flows, and which of them wait for which.
type Sorted = (Vec<Flow>, Vec<(usize, usize)>);

/// A trigger: how many flows must have pulled it; `None` if one of them is enough.
#[derive(Debug)]
struct Trigger {
    line: usize,
    count: Option<usize>,
}

#[derive(Debug, Default)]
struct Matrix {
    connections: Vec<Connection>,
    triggers: BTreeMap<u32, Trigger>,
}

impl Matrix {
    fn read(file: &Path, hosts: usize) -> Result<Self, ReadError> {
        let mut lines = Lines::open(file)?;
        let mut matrix = Self::default();
        let (mut connections, mut triggers) = (None, None);
        while let Some(words) = lines.next_words() {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let number = |lines: &Lines| value::<usize>(lines, words[0], words.get(1));
            match words[0] {
                "Nodes" => {
                    let nodes = number(&lines)?;
                    if nodes != hosts {
                        let what = format!("{nodes} nodes, and the topology has {hosts} hosts");
                        return Err(lines.error(what));
                    }
                }
                "Connections" => connections = Some(number(&lines)?),
                "Triggers" => triggers = Some(number(&lines)?),
                "Failures" if number(&lines)? == 0 => {}
                "Failures" | "failure" => {
                    return Err(lines.error("failures are not supported; [[event]] in TOML are"));
                }
                "trigger" => matrix.add_trigger(&lines, &words)?,
                word if word.contains("->") => matrix.add_connection(&lines, &words, hosts)?,
                word => return Err(lines.error(format!("unknown word {word:?}"))),
            }
        }
        let says = |what: &str, said: Option<usize>, is: usize| match said {
            Some(said) if said != is => {
                Err(lines.error(format!("{what} {said}, and the file has {is}")))
            }
            _ => Ok(()),
        };
        says("Connections", connections, matrix.connections.len())?;
        says("Triggers", triggers, matrix.triggers.len())?;
        match matrix.connections.is_empty() {
            true => Err(lines.error("the file has no connection")),
            false => Ok(matrix),
        }
    }

    fn add_trigger(&mut self, lines: &Lines, words: &[&str]) -> Result<(), ReadError> {
        let (mut id, mut count, mut is_barrier) = (None, None, None);
        let mut rest = words[1..].iter();
        while let Some(&word) = rest.next() {
            match word {
                "id" => id = Some(value(lines, word, rest.next())?),
                "count" => count = Some(value(lines, word, rest.next())?),
                "oneshot" | "multishot" => is_barrier = Some(false),
                "barrier" => is_barrier = Some(true),
                _ => return Err(lines.error(format!("unknown word {word:?}"))),
            }
        }
        let id = id.ok_or_else(|| lines.error("a trigger without id"))?;
        let count = match (is_barrier, count) {
            (Some(false), _) => None,
            (Some(true), Some(count)) => Some(count),
            (Some(true), None) => return Err(lines.error("a barrier without count")),
            (None, _) => {
                return Err(lines.error("a trigger that is neither oneshot, multishot nor barrier"));
            }
        };
        match self.triggers.insert(id, Trigger { line: lines.line(), count }) {
            Some(_) => Err(lines.error(format!("trigger {id} is there twice"))),
            None => Ok(()),
        }
    }

    fn add_connection(
        &mut self,
        lines: &Lines,
        words: &[&str],
        hosts: usize,
    ) -> Result<(), ReadError> {
        let (from, to) = words[0].split_once("->").unwrap_or_default();
        let host = |word: &str| word.parse::<u32>().ok().filter(|&n| (n as usize) < hosts);
        let (Some(src), Some(dst)) = (host(from), host(to)) else {
            return Err(lines.error(format!("{}: hosts are 0 to {}", words[0], hosts - 1)));
        };
        if src == dst {
            return Err(lines.error(format!("a flow from host {src} to itself")));
        }
        let (mut start_ps, mut trigger, mut pulls) = (None, None, Vec::new());
        let (mut bytes, mut rest) = (0, words[1..].iter());
        while let Some(&word) = rest.next() {
            match word {
                "start" => start_ps = Some(value::<f64>(lines, word, rest.next())?),
                "size" => bytes = value(lines, word, rest.next())?,
                "trigger" => trigger = Some(value(lines, word, rest.next())?),
                // The number of a flow is its place; priorities are those of its host.
                "id" | "prio" => {
                    value::<u64>(lines, word, rest.next())?;
                }
                "send_done_trigger" | "recv_done_trigger" => {
                    pulls.push(value(lines, word, rest.next())?);
                }
                _ => return Err(lines.error(format!("unknown word {word:?}"))),
            }
        }
        if bytes == 0 {
            return Err(lines.error("a flow without size has no end"));
        }
        let start = match (start_ps, trigger) {
            (Some(ps), None) if ps.is_finite() && ps >= 0.0 => Time::from_ps(ps as u64),
            (None, Some(_)) => Time::ZERO,
            _ => return Err(lines.error("a flow has a start or a trigger")),
        };
        let key = FlowKey { src, dst, ports: 0x12b7_c000 | self.connections.len() as u32 & 0x3fff };
        let flow = Flow { src, dst, priority: PRIORITY, bytes, start, key };
        self.connections.push(Connection { line: lines.line(), flow, trigger, pulls });
        Ok(())
    }

    /// Flows in an order in which each comes behind those that it waits for, and which wait for
    /// which.
    fn sorted(&self, file: &Path) -> Result<Sorted, ReadError> {
        let error = |line, what: String| ReadError::new(file, line, what);
        let mut pullers: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (i, connection) in self.connections.iter().enumerate() {
            for id in &connection.pulls {
                pullers.entry(*id).or_default().push(i);
            }
        }
        for (id, trigger) in &self.triggers {
            let pulled = pullers.get(id).map_or(0, Vec::len);
            // With more flows than that, the first ones would decide.
            if pulled != trigger.count.unwrap_or(1) {
                let wants = trigger.count.unwrap_or(1);
                let what =
                    format!("trigger {id} waits for {wants} of {pulled} flows; only for all");
                return Err(error(trigger.line, what));
            }
        }
        let mut before: Vec<&[usize]> = Vec::new();
        for connection in &self.connections {
            before.push(match connection.trigger {
                None => &[],
                Some(id) if self.triggers.contains_key(&id) => {
                    pullers.get(&id).map_or(&[][..], Vec::as_slice)
                }
                Some(id) => {
                    return Err(error(connection.line, format!("there is no trigger {id}")));
                }
            });
        }
        let (mut order, mut done) = (Vec::new(), BTreeSet::new());
        while order.len() < self.connections.len() {
            let is_next =
                |i: &usize| !done.contains(i) && before[*i].iter().all(|j| done.contains(j));
            let next: Vec<usize> = (0..self.connections.len()).filter(is_next).collect();
            if next.is_empty() {
                let stuck = (0..self.connections.len()).find(|i| !done.contains(i)).unwrap_or(0);
                let line = self.connections[stuck].line;
                return Err(error(line, "flows wait for each other by their triggers".into()));
            }
            done.extend(next.iter().copied());
            order.extend(next);
        }
        let mut place = vec![0; order.len()];
        for (new, &old) in order.iter().enumerate() {
            place[old] = new;
        }
        let flows = order.iter().map(|&i| self.connections[i].flow).collect();
        let waits = |&i: &usize| before[i].iter().map(move |&j| (i, j));
        let after = order.iter().flat_map(waits).map(|(i, j)| (place[i], place[j])).collect();
        Ok((flows, after))
    }
}
