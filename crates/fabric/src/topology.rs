//! What is connected to what: hosts, switches, and the links between them.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::fmt;

use crate::Rate;

/// Index of a node.
pub type NodeId = usize;

/// What a node is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Node {
    /// A host with one port.
    Host,
    /// A switch.
    Switch,
}

/// A link between two nodes, the same in both directions.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Link {
    /// Its ends.
    pub ends: [NodeId; 2],
    /// Rate of each direction.
    pub rate: Rate,
    /// Propagation delay in picoseconds.
    pub delay_ps: u64,
    /// Probability that a packet is lost.
    pub loss: f64,
}

/// A port, by its node and its index there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortName {
    /// The node.
    pub node: NodeId,
    /// The index of the port at the node.
    pub port: usize,
}

/// Where a switch sends packets to a host, instead of along the shortest paths.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    /// The switch.
    pub at: NodeId,
    /// The host that packets are sent to.
    pub to: NodeId,
    /// The neighbours that they may go to next.
    pub via: Vec<NodeId>,
}

/// Hosts, switches and links.
///
/// Nodes have names: `h0`, `s0` and so on unless they are given others. The ports of a node are
/// numbered in the order of its links, from 0, and named after it: `s0:3`.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Topology {
    nodes: Vec<Node>,
    names: Vec<String>,
    links: Vec<Link>,
    routes: Vec<Route>,
}

/// Why a topology cannot be built. Nodes are given by their names.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TopologyError {
    /// A link or a route names a node that does not exist.
    NoSuchNode(NodeId),
    /// Two nodes have the same name.
    SameName(String),
    /// A link has both ends at one node.
    Loop(String),
    /// A host has another number of links than one.
    HostLinks(String, usize),
    /// A link loses packets with a probability that is none.
    Loss(usize),
    /// A route leads from one node to another that is not its neighbour.
    NoLink(String, String),
    /// No path leads from one host to another.
    Unreachable(String, String),
    /// Packets to a host would go round in a circle of switches.
    Cycle(String, Vec<String>),
}

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchNode(node) => write!(f, "a link names node {node}, which does not exist"),
            Self::SameName(name) => write!(f, "two nodes have the name {name}"),
            Self::Loop(node) => write!(f, "a link connects node {node} with itself"),
            Self::HostLinks(node, links) => {
                write!(f, "host {node} has {links} links; a host has one")
            }
            Self::Loss(link) => write!(f, "the loss of link {link} is not between 0 and 1"),
            Self::NoLink(from, to) => {
                write!(f, "a route leads from {from} to {to}, and no link does")
            }
            Self::Unreachable(from, to) => write!(f, "no path leads from host {from} to host {to}"),
            Self::Cycle(to, circle) => {
                write!(f, "packets to host {to} would go round: {}", circle.join(", "))
            }
        }
    }
}

impl core::error::Error for TopologyError {}

impl Topology {
    /// Adds a node, whose name is `h` or `s` and a number that counts the nodes of its kind.
    pub fn add(&mut self, node: Node) -> NodeId {
        let count = self.nodes.iter().filter(|&&other| other == node).count();
        let letter = if node == Node::Host { 'h' } else { 's' };
        self.add_named(node, format!("{letter}{count}"))
    }

    /// Adds a node with a name of its own.
    pub fn add_named(&mut self, node: Node, name: impl Into<String>) -> NodeId {
        self.nodes.push(node);
        self.names.push(name.into());
        self.nodes.len() - 1
    }

    /// Adds `count` nodes whose names are a word and a number from 0.
    pub(crate) fn add_many(&mut self, node: Node, word: &str, count: usize) {
        for i in 0..count {
            self.add_named(node, format!("{word}{i}"));
        }
    }

    /// Connects two nodes.
    pub fn connect(&mut self, a: NodeId, b: NodeId, rate: Rate, delay_ps: u64) {
        self.links.push(Link { ends: [a, b], rate, delay_ps, loss: 0.0 });
    }

    /// Adds a link.
    pub fn link(&mut self, link: Link) {
        self.links.push(link);
    }

    /// Adds a route, which replaces the shortest paths from its switch to its host.
    pub fn route(&mut self, route: Route) {
        self.routes.push(route);
    }

    /// The nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The links.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// The links, to change their rates, delays and losses.
    pub fn links_mut(&mut self) -> &mut [Link] {
        &mut self.links
    }

    /// The routes that replace shortest paths.
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// The hosts, in the order of their numbers.
    pub fn hosts(&self) -> impl Iterator<Item = NodeId> {
        let is_host = |(id, node): (usize, &Node)| (*node == Node::Host).then_some(id);
        self.nodes.iter().enumerate().filter_map(is_host)
    }

    /// The rate of every host's link, in the order of the hosts.
    pub fn host_rates(&self) -> Vec<Rate> {
        let mut rates = alloc::vec![None; self.nodes.len()];
        for link in &self.links {
            for end in link.ends {
                rates[end] = Some(link.rate);
            }
        }
        self.hosts().filter_map(|host| rates[host]).collect()
    }

    /// The name of a node; its number if there is no such node.
    pub fn name(&self, node: NodeId) -> String {
        self.names.get(node).cloned().unwrap_or_else(|| node.to_string())
    }

    /// The node that has a name.
    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.names.iter().position(|other| other == name)
    }

    /// The name of a port, such as `leaf0:3`.
    pub fn port_name(&self, port: PortName) -> String {
        format!("{}:{}", self.name(port.node), port.port)
    }

    /// The port that has a name such as `leaf0:3`.
    pub fn find_port(&self, name: &str) -> Option<PortName> {
        let (node, port) = name.rsplit_once(':')?;
        let port = PortName { node: self.find(node)?, port: port.parse().ok()? };
        self.link_of(port).map(|_| port)
    }

    /// The link behind a port.
    pub fn link_of(&self, port: PortName) -> Option<usize> {
        let is_at = |(_, link): &(usize, &Link)| link.ends.contains(&port.node);
        self.links.iter().enumerate().filter(is_at).nth(port.port).map(|(i, _)| i)
    }

    /// The port at the other end of the link behind a port.
    pub fn other_end(&self, link: usize, port: PortName) -> Option<PortName> {
        let [a, b] = self.links.get(link)?.ends;
        let node = if a == port.node { b } else { a };
        let earlier = self.links[..link].iter().filter(|link| link.ends.contains(&node)).count();
        Some(PortName { node, port: earlier })
    }

    /// The links between two nodes.
    pub fn links_between(&self, a: NodeId, b: NodeId) -> impl Iterator<Item = usize> {
        let joins = move |link: &Link| link.ends == [a, b] || link.ends == [b, a];
        (0..self.links.len()).filter(move |&i| joins(&self.links[i]))
    }

    /// Finds names, links and routes that cannot be.
    pub fn check(&self) -> Result<(), TopologyError> {
        let mut names = BTreeSet::new();
        if let Some(twice) = self.names.iter().find(|&name| !names.insert(name)) {
            return Err(TopologyError::SameName(twice.clone()));
        }
        let mut degree = alloc::vec![0; self.nodes.len()];
        for (i, link) in self.links.iter().enumerate() {
            let [a, b] = link.ends;
            for node in [a, b] {
                *degree.get_mut(node).ok_or(TopologyError::NoSuchNode(node))? += 1;
            }
            if a == b {
                return Err(TopologyError::Loop(self.name(a)));
            }
            if !(0.0..=1.0).contains(&link.loss) {
                return Err(TopologyError::Loss(i));
            }
        }
        for Route { at, via, .. } in &self.routes {
            if let Some(next) = via.iter().find(|&&next| self.links_between(*at, next).count() == 0)
            {
                return Err(TopologyError::NoLink(self.name(*at), self.name(*next)));
            }
        }
        match self.hosts().find(|&host| degree[host] != 1) {
            Some(host) => Err(TopologyError::HostLinks(self.name(host), degree[host])),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate::from_gbps(100);

    #[test]
    fn ports_are_found_by_their_names() {
        let topology = Topology::leaf_spine(2, 2, 3, RATE, 0);
        let port = topology.find_port("leaf1:4").expect("a port");
        assert_eq!(topology.port_name(port), "leaf1:4");
        let link = topology.link_of(port).expect("a link");
        let [leaf, spine] = ["leaf1", "spine1"].map(|name| topology.find(name).expect("a node"));
        assert_eq!(topology.links_between(spine, leaf).collect::<Vec<_>>(), [link]);
        let other = topology.other_end(link, port).expect("a port");
        assert_eq!(topology.port_name(other), "spine1:1");
        assert_eq!(topology.other_end(link, other), Some(port));
        for wrong in ["leaf1", "leaf1:5", "leaf2:0", "leaf1:-1", ":0"] {
            assert_eq!(topology.find_port(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn links_that_cannot_be_are_refused() {
        let mut lonely = Topology::star(2, RATE, 0);
        lonely.add(Node::Host);
        assert_eq!(lonely.check(), Err(TopologyError::HostLinks("h2".into(), 0)));
        let mut stray = Topology::star(2, RATE, 0);
        stray.connect(2, 9, RATE, 0);
        assert_eq!(stray.check(), Err(TopologyError::NoSuchNode(9)));
        let mut looped = Topology::star(2, RATE, 0);
        looped.connect(2, 2, RATE, 0);
        assert_eq!(looped.check(), Err(TopologyError::Loop("s0".into())));
        let mut odd = Topology::star(2, RATE, 0);
        odd.link(Link { ends: [0, 2], rate: RATE, delay_ps: 0, loss: f64::NAN });
        assert_eq!(odd.check(), Err(TopologyError::Loss(2)));
        let mut twins = Topology::star(2, RATE, 0);
        twins.add_named(Node::Switch, "h1");
        assert_eq!(twins.check(), Err(TopologyError::SameName("h1".into())));
        let mut astray = Topology::star(2, RATE, 0);
        astray.route(Route { at: 0, to: 1, via: alloc::vec![1] });
        assert_eq!(astray.check(), Err(TopologyError::NoLink("h0".into(), "h1".into())));
    }
}
