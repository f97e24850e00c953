//! What is connected to what: a kind and its numbers, or nodes and links one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use feroce_fabric::{Link, Node, NodeId, Route, Topology, TopologyError};
use serde::Deserialize;
use toml::Spanned;

use super::values::{Chance, Fault, Span, Speed};

/// The part of a scenario that says what is connected to what. A file of its own has it as well.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wiring {
    pub(super) topology: Spanned<Shape>,
    #[serde(default)]
    pub(super) node: Vec<Spanned<NodeEntry>>,
    #[serde(default)]
    pub(super) link: Vec<Spanned<LinkEntry>>,
    #[serde(default)]
    pub(super) route: Vec<Spanned<RouteEntry>>,
}

/// `[topology]`. Which numbers it takes depends on the kind.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Shape {
    kind: Kind,
    rate: Option<Speed>,
    delay: Option<Span>,
    #[serde(default)]
    loss: Chance,
    hosts: Option<Spanned<usize>>,
    switches: Option<Spanned<usize>>,
    leaves: Option<Spanned<usize>>,
    spines: Option<Spanned<usize>>,
    k: Option<Spanned<usize>>,
    dims: Option<Spanned<Vec<usize>>>,
    file: Option<Spanned<PathBuf>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    Star,
    Ring,
    ParkingLot,
    Torus,
    LeafSpine,
    FatTree,
    Custom,
    File,
}

/// `[[node]]` of a custom topology.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NodeEntry {
    name: String,
    #[serde(default)]
    kind: NodeKind,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum NodeKind {
    #[default]
    Host,
    Switch,
}

/// `[[link]]`: one of a custom topology, or what is different about one that another kind makes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LinkEntry {
    ends: [String; 2],
    rate: Option<Speed>,
    delay: Option<Span>,
    loss: Option<Chance>,
}

/// `[[route]]`: where a switch sends packets to a host.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RouteEntry {
    at: String,
    to: String,
    via: Vec<String>,
}

/// Most of each number of a topology, and most nodes: more than one core simulates in minutes.
const MOST: usize = 100_000;

/// The key of a number, its value, and where it is.
type Given<'a> = (&'static str, Option<(usize, &'a Spanned<usize>)>);

impl Wiring {
    /// Builds the topology. `open` reads the file that a topology of the kind `file` names.
    pub(super) fn build(
        &self,
        open: impl FnOnce(&Path) -> Result<Topology, String>,
    ) -> Result<Topology, Fault> {
        let shape = self.topology.get_ref();
        let mut topology = match (shape.kind, &shape.file) {
            (Kind::File, Some(file)) => {
                open(file.get_ref()).map_err(|what| Fault::at(file, what))?
            }
            (Kind::File, None) => return Err(self.missing("file")),
            (_, Some(file)) => return Err(Fault::at(file, "topology.file: not for this kind")),
            _ => self.make()?,
        };
        let names: BTreeMap<String, NodeId> =
            (0..topology.nodes().len()).map(|node| (topology.name(node), node)).collect();
        for link in &self.link {
            self.add_link(&mut topology, &names, link)?;
        }
        for route in &self.route {
            add_route(&mut topology, &names, route)?;
        }
        topology.check().map_err(|e| self.locate(&e))?;
        Ok(topology)
    }

    /// Whether a host may have no path to another, or a path that is a circle: not in what the
    /// kinds make.
    pub(super) fn may_lack_paths(&self) -> bool {
        let kind = self.topology.get_ref().kind;
        matches!(kind, Kind::Custom | Kind::File) || !self.route.is_empty()
    }

    fn missing(&self, key: &str) -> Fault {
        Fault::at(&self.topology, format!("topology.{key}: missing"))
    }

    /// The place of what is wrong with a topology, as exactly as it is known.
    pub(super) fn locate(&self, e: &TopologyError) -> Fault {
        let what = e.to_string();
        match e {
            TopologyError::HostLinks(name, _) => {
                let node = self.node.iter().rfind(|node| node.get_ref().name == *name);
                node.map_or_else(|| Fault::at(&self.topology, &what), |node| Fault::at(node, &what))
            }
            TopologyError::Cycle(to, _) | TopologyError::Unreachable(_, to) => {
                let route = self.route.iter().find(|route| route.get_ref().to == *to);
                route.map_or_else(|| Fault::at(&self.topology, &what), |r| Fault::at(r, &what))
            }
            _ => Fault::at(&self.topology, what),
        }
    }

    /// Makes a topology by its kind and its numbers.
    fn make(&self) -> Result<Topology, Fault> {
        let shape = self.topology.get_ref();
        let kind = shape.kind;
        if kind == Kind::Custom {
            return self.custom();
        }
        if let Some(node) = self.node.first() {
            return Err(Fault::at(node, "node: for topologies of the kind \"custom\" only"));
        }
        let rate = shape.rate.ok_or_else(|| self.missing("rate"))?.0;
        let delay = shape.delay.ok_or_else(|| self.missing("delay"))?.0;
        let [hosts, switches, leaves, spines, k] = self.numbers()?;
        let dims = match (&shape.dims, kind) {
            (Some(dims), Kind::Torus) => dims.get_ref().as_slice(),
            (None, Kind::Torus) => return Err(self.missing("dims")),
            (Some(dims), _) => return Err(Fault::at(dims, "topology.dims: not for this kind")),
            (None, _) => &[],
        };
        if let Some(place) = &shape.dims
            && (!matches!(dims.len(), 2 | 3) || dims.iter().any(|len| !(2..=MOST).contains(len)))
        {
            let what = format!("topology.dims: two or three numbers from 2 to {MOST}");
            return Err(Fault::at(place, what));
        }
        let grid = dims.iter().fold(1usize, |product, &len| product.saturating_mul(len));
        let nodes = match kind {
            Kind::Star => hosts + 1,
            Kind::Ring => 2 * switches,
            Kind::ParkingLot => switches.saturating_mul(hosts + 1),
            Kind::Torus => grid.saturating_mul(hosts + 1),
            Kind::LeafSpine => leaves.saturating_mul(hosts + 1) + spines,
            Kind::FatTree => k.saturating_mul(k).saturating_mul(k),
            Kind::Custom | Kind::File => 0,
        };
        let fault = |what: String| Err(Fault::at(&self.topology, what));
        if nodes > MOST {
            return fault(format!("topology: {nodes} nodes; at most {MOST}"));
        }
        let mut topology = match kind {
            Kind::Ring if switches < 3 => {
                return fault("topology.switches: at least 3 make a ring".into());
            }
            Kind::FatTree if k % 2 == 1 => return fault(format!("topology.k: {k} is not even")),
            Kind::Star => Topology::star(hosts, rate, delay),
            Kind::Ring => Topology::ring(switches, rate, delay),
            Kind::ParkingLot => Topology::parking_lot(switches, hosts, rate, delay),
            Kind::Torus => Topology::torus(dims, hosts, rate, delay),
            Kind::LeafSpine => Topology::leaf_spine(leaves, spines, hosts, rate, delay),
            Kind::FatTree => Topology::fat_tree(k, rate, delay),
            Kind::Custom | Kind::File => Topology::default(),
        };
        for link in topology.links_mut() {
            link.loss = shape.loss.0;
        }
        Ok(topology)
    }

    /// The numbers that the kind wants: hosts, switches, leaves, spines and k.
    fn numbers(&self) -> Result<[usize; 5], Fault> {
        let shape = self.topology.get_ref();
        let wanted: &[&str] = match shape.kind {
            Kind::Star => &["hosts"],
            Kind::Ring => &["switches"],
            Kind::ParkingLot => &["switches", "hosts"],
            Kind::Torus => &["hosts"],
            Kind::LeafSpine => &["leaves", "spines", "hosts"],
            Kind::FatTree => &["k"],
            Kind::Custom | Kind::File => &[],
        };
        // One host at each switch is what these mean if they do not say.
        let has_default = matches!(shape.kind, Kind::ParkingLot | Kind::Torus);
        let given: [Given<'_>; 5] = [
            ("hosts", &shape.hosts),
            ("switches", &shape.switches),
            ("leaves", &shape.leaves),
            ("spines", &shape.spines),
            ("k", &shape.k),
        ]
        .map(|(name, value)| (name, value.as_ref().map(|place| (*place.get_ref(), place))));
        let mut numbers = [0; 5];
        for ((name, value), number) in given.into_iter().zip(&mut numbers) {
            let is_wanted = wanted.contains(&name);
            *number = match value {
                None if is_wanted && name == "hosts" && has_default => 1,
                None if is_wanted => return Err(self.missing(name)),
                None => 0,
                Some((_, place)) if !is_wanted => {
                    return Err(Fault::at(place, format!("topology.{name}: not for this kind")));
                }
                Some((0, place)) => {
                    return Err(Fault::at(place, format!("topology.{name}: at least 1")));
                }
                Some((n, place)) if n > MOST => {
                    return Err(Fault::at(place, format!("topology.{name}: at most {MOST}")));
                }
                Some((n, _)) => n,
            };
        }
        Ok(numbers)
    }

    /// The nodes of a custom topology; its links follow.
    fn custom(&self) -> Result<Topology, Fault> {
        self.numbers()?;
        if let Some(dims) = &self.topology.get_ref().dims {
            return Err(Fault::at(dims, "topology.dims: not for this kind"));
        }
        if self.node.is_empty() {
            return Err(Fault::at(&self.topology, "no node: add [[node]] and [[link]]"));
        }
        let (mut topology, mut names) = (Topology::default(), BTreeSet::new());
        for node in &self.node {
            let NodeEntry { name, kind } = node.get_ref();
            // A port is written NODE:PORT.
            if name.is_empty() || name.contains(|c: char| c == ':' || c.is_whitespace()) {
                let what = format!("node.name: {name:?} is empty, or has a space or a colon");
                return Err(Fault::at(node, what));
            }
            if !names.insert(name) {
                return Err(Fault::at(node, format!("node.name: two nodes have the name {name}")));
            }
            let kind = match kind {
                NodeKind::Host => Node::Host,
                NodeKind::Switch => Node::Switch,
            };
            topology.add_named(kind, name.as_str());
        }
        Ok(topology)
    }

    /// Adds a link to a custom topology, or changes those between two nodes of another.
    fn add_link(
        &self,
        topology: &mut Topology,
        names: &BTreeMap<String, NodeId>,
        place: &Spanned<LinkEntry>,
    ) -> Result<(), Fault> {
        let (shape, entry) = (self.topology.get_ref(), place.get_ref());
        let [a, b] = &entry.ends;
        let ends = [find(names, a, place)?, find(names, b, place)?];
        if shape.kind == Kind::Custom {
            if a == b {
                return Err(Fault::at(place, format!("link: from {a} to itself")));
            }
            let lacks = |key: &str| Fault::at(place, format!("link.{key}: missing"));
            let rate = entry.rate.or(shape.rate).ok_or_else(|| lacks("rate"))?.0;
            let delay_ps = entry.delay.or(shape.delay).ok_or_else(|| lacks("delay"))?.0;
            let loss = entry.loss.unwrap_or(shape.loss).0;
            topology.link(Link { ends, rate, delay_ps, loss });
            return Ok(());
        }
        let between: Vec<usize> = topology.links_between(ends[0], ends[1]).collect();
        if between.is_empty() {
            return Err(Fault::at(place, format!("link: none between {a} and {b}")));
        }
        for i in between {
            let link = &mut topology.links_mut()[i];
            link.rate = entry.rate.map_or(link.rate, |rate| rate.0);
            link.delay_ps = entry.delay.map_or(link.delay_ps, |delay| delay.0);
            link.loss = entry.loss.map_or(link.loss, |loss| loss.0);
        }
        Ok(())
    }
}

fn find<T>(
    names: &BTreeMap<String, NodeId>,
    name: &str,
    place: &Spanned<T>,
) -> Result<NodeId, Fault> {
    names.get(name).copied().ok_or_else(|| Fault::at(place, format!("no node has the name {name}")))
}

fn add_route(
    topology: &mut Topology,
    names: &BTreeMap<String, NodeId>,
    place: &Spanned<RouteEntry>,
) -> Result<(), Fault> {
    let entry = place.get_ref();
    let (at, to) = (find(names, &entry.at, place)?, find(names, &entry.to, place)?);
    if topology.nodes()[at] != Node::Switch || topology.nodes()[to] != Node::Host {
        let what = format!("route: from {} to {}; at a switch, to a host", entry.at, entry.to);
        return Err(Fault::at(place, what));
    }
    let via: Result<Vec<_>, _> = entry.via.iter().map(|name| find(names, name, place)).collect();
    let via = via?;
    for (next, name) in via.iter().zip(&entry.via) {
        if topology.links_between(at, *next).next().is_none() {
            let what = format!("route: no link leads from {} to {name}", entry.at);
            return Err(Fault::at(place, what));
        }
    }
    if via.is_empty() {
        return Err(Fault::at(place, format!("route: no way from {} to {}", entry.at, entry.to)));
    }
    topology.route(Route { at, to, via });
    Ok(())
}
