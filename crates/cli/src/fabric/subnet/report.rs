//! What an InfiniBand fabric says about itself.

use std::fmt;
use std::net::IpAddr;

use feroce_subnet::{PortRef, Programs, Subnet};
use feroce_wire::mad::{PortState, capability};
use serde::{Deserialize, Serialize};

use super::addresses::Addresses;
use super::data::Processes;

/// A port.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(in super::super) struct LinkPort {
    /// Its name: node and number.
    pub(in super::super) port: String,
    /// The port at the other end of the link; empty if there is none.
    pub(in super::super) peer: String,
    pub(in super::super) state: String,
    pub(in super::super) packets_sent: u64,
    pub(in super::super) packets_received: u64,
    pub(in super::super) discards: u64,
    /// Ticks during which it had packets to send and no credits.
    #[serde(default)]
    pub(in super::super) waits: u64,
}

/// A node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(in super::super) struct NodeStatus {
    pub(in super::super) name: String,
    pub(in super::super) is_switch: bool,
    pub(in super::super) guid: u64,
    /// Of its first port; of a switch, of its management port.
    pub(in super::super) lid: u16,
    /// IP address of its first port.
    pub(in super::super) address: Option<IpAddr>,
    /// A subnet manager runs behind one of its ports.
    pub(in super::super) has_sm: bool,
    /// Ports that programs have open, and processes that have its adapter open.
    pub(in super::super) programs: usize,
    /// Services that programs listen for, by their numbers.
    pub(in super::super) services: Vec<u64>,
    /// Ports that have a link.
    pub(in super::super) ports: Vec<LinkPort>,
}

/// What there is and what happened.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(in super::super) struct SubnetStatus {
    pub(in super::super) name: String,
    pub(in super::super) pid: u32,
    pub(in super::super) seconds: f64,
    pub(in super::super) nodes: Vec<NodeStatus>,
    /// Datagrams that programs did not take.
    pub(in super::super) dropped: u64,
    /// Ports that wait for each other's credits, so that none of them sends.
    #[serde(default)]
    pub(in super::super) circle: Vec<String>,
    /// The parts of a fabric that several processes run; empty if one runs all.
    #[serde(default)]
    pub(in super::super) parts: Vec<PartStatus>,
    /// Hosts of other parts, and the names of those.
    #[serde(default)]
    pub(in super::super) elsewhere: Vec<(String, String)>,
}

/// A part of a fabric.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(in super::super) struct PartStatus {
    pub(in super::super) name: String,
    /// The process that answers runs it.
    pub(in super::super) is_here: bool,
    pub(in super::super) is_joined: bool,
    /// Where the process that answers listens, or the other end of the connection.
    pub(in super::super) address: Option<String>,
    /// Why it is not joined, if an attempt has failed.
    pub(in super::super) failure: Option<String>,
}

impl fmt::Display for PartStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.address.as_deref().unwrap_or_default();
        write!(f, "part {}: ", self.name)?;
        match (self.is_here, self.is_joined, &self.failure) {
            (true, ..) if address.is_empty() => f.write_str("here"),
            (true, ..) => write!(f, "here, listens at {address}"),
            (_, true, _) => write!(f, "joined, {address}"),
            (.., Some(why)) => write!(f, "not joined: {why}"),
            _ => f.write_str("not joined"),
        }
    }
}

impl SubnetStatus {
    pub(super) fn new(
        name: &str,
        seconds: f64,
        (subnet, addresses): (&Subnet, &Addresses),
        (programs, processes): (&Programs, &Processes),
    ) -> Self {
        let is_here = |node: &usize| subnet.nodes()[*node].is_here();
        let nodes = (0..subnet.nodes().len()).filter(is_here).map(|node| {
            let programs = programs.files_at(node) + processes.count(node);
            NodeStatus {
                address: addresses.of(node),
                services: processes.services(node).collect(),
                ..NodeStatus::new(subnet, programs, node)
            }
        });
        Self {
            name: name.to_owned(),
            pid: std::process::id(),
            seconds,
            nodes: nodes.collect(),
            dropped: programs.dropped(),
            circle: Vec::new(),
            parts: Vec::new(),
            elsewhere: Vec::new(),
        }
    }

    /// The name of the part that a host is in, if that is another one.
    pub(in super::super) fn part_of(&self, host: &str) -> Option<&str> {
        let found = self.elsewhere.iter().find(|(name, _)| name == host);
        found.map(|(_, part)| part.as_str())
    }

    /// The hosts.
    pub(in super::super) fn host_nodes(&self) -> impl Iterator<Item = &NodeStatus> {
        self.nodes.iter().filter(|node| !node.is_switch)
    }

    /// The names of hosts.
    pub(in super::super) fn hosts(&self) -> impl Iterator<Item = &str> {
        self.host_nodes().map(|node| node.name.as_str())
    }
}

impl NodeStatus {
    fn new(subnet: &Subnet, programs: usize, index: usize) -> Self {
        let node = &subnet.nodes()[index];
        let is_switch = node.switch().is_some();
        let end = node.port(if is_switch { 0 } else { 1 });
        let numbers = 1..=node.info().num_ports;
        let is_sm = |port: u8| {
            let mask = node.port(port).map_or(0, |port| port.info().capability_mask);
            mask & capability::IS_SM != 0
        };
        Self {
            name: node.name().to_owned(),
            is_switch,
            guid: node.info().node_guid,
            lid: end.map_or(0, |port| port.info().lid.0),
            address: None,
            has_sm: !is_switch && numbers.clone().any(is_sm),
            programs,
            services: Vec::new(),
            ports: numbers.filter_map(|port| LinkPort::new(subnet, index, port)).collect(),
        }
    }
}

impl LinkPort {
    fn new(subnet: &Subnet, node: usize, port: u8) -> Option<Self> {
        let found = subnet.port(PortRef { node, port })?;
        let peer = found.peer()?;
        let counters = found.counters();
        Some(Self {
            port: port_name(subnet, PortRef { node, port }),
            peer: port_name(subnet, peer),
            state: found.info().state.to_string(),
            packets_sent: counters.unicast_xmit + counters.multicast_xmit,
            packets_received: counters.unicast_rcv + counters.multicast_rcv,
            discards: counters.xmit_discards,
            waits: counters.xmit_wait,
        })
    }
}

pub(super) fn port_name(subnet: &Subnet, at: PortRef) -> String {
    format!("{}:{}", subnet.nodes().get(at.node).map_or("?", |node| node.name()), at.port)
}

/// The port that has a name such as `Leaf1:3`.
pub(super) fn find_port(subnet: &Subnet, name: &str) -> Option<PortRef> {
    let (node, port) = name.rsplit_once(':')?;
    let node = subnet.nodes().iter().position(|found| found.name() == node)?;
    let at = PortRef { node, port: port.parse().ok()? };
    subnet.port(at)?.peer().filter(|_| subnet.part_of(at).is_none()).map(|_| at)
}

/// Whether every host that has a link can send.
pub(super) fn is_up(subnet: &Subnet) -> bool {
    let hosts = subnet.nodes().iter().filter(|node| node.switch().is_none() && node.is_here());
    let mut ports = hosts.flat_map(|node| (1..=node.info().num_ports).map(|n| node.port(n)));
    ports.all(|port| {
        let state = port.filter(|port| port.peer().is_some()).map(|port| port.info().state);
        state.is_none_or(|state| matches!(state, PortState::ACTIVE | PortState::DOWN))
    })
}

impl fmt::Display for SubnetStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, pid, seconds, .. } = self;
        writeln!(f, "InfiniBand fabric {name}, process {pid}, for {seconds:.0} s")?;
        self.parts.iter().try_for_each(|part| writeln!(f, "{part}"))?;
        writeln!(f)?;
        writeln!(
            f,
            "{:<16} {:<6} {:>18} {:>6} {:<15} programs",
            "node", "kind", "guid", "lid", "address"
        )?;
        for node in &self.nodes {
            let kind = if node.is_switch { "switch" } else { "host" };
            let guid = format!("{:#x}", node.guid);
            let manager = if node.has_sm { "  subnet manager" } else { "" };
            let NodeStatus { name, lid, programs, .. } = node;
            let address = node.address.map(|address| address.to_string()).unwrap_or_default();
            writeln!(
                f,
                "{name:<16} {kind:<6} {guid:>18} {lid:>6} {address:<15} {programs:>8}{manager}"
            )?;
        }
        writeln!(
            f,
            "\n{:<16} {:<16} {:<8} {:>10} {:>10} {:>8} {:>12}",
            "port", "peer", "state", "sent", "received", "discards", "waits"
        )?;
        for port in self.nodes.iter().flat_map(|node| &node.ports) {
            let LinkPort { discards, waits, .. } = port;
            let LinkPort { port, peer, state, packets_sent, packets_received, .. } = port;
            writeln!(
                f,
                "{port:<16} {peer:<16} {state:<8} {packets_sent:>10} {packets_received:>10} \
                 {discards:>8} {waits:>12}"
            )?;
        }
        if !self.circle.is_empty() {
            writeln!(
                f,
                "\ncredit loop: each of these ports waits for credits of the next: {}",
                self.circle.join(", ")
            )?;
        }
        Ok(())
    }
}
