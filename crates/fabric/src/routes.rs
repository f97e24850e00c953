//! Shortest paths, and the choice between those of equal length.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;

use crate::port::PortId;
use crate::topology::{Node, NodeId, Topology, TopologyError};

/// How a switch chooses between paths of equal length.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Spread {
    /// By flow: a hash of addresses and ports with the number of the switch (ECMP).
    #[default]
    Flows,
    /// By packet, in turn.
    Packets,
}

/// The ports of every node that lead to every host.
#[derive(Debug)]
pub(crate) struct Routes {
    /// By host, then by node: its choices in `ports`. A node has the same choices for many hosts,
    /// so they are stored once, and the tables of a large fabric stay in the cache.
    ranges: Vec<Choices>,
    ports: Vec<PortId>,
    nodes: usize,
}

/// Where the choices of a node are.
#[derive(Clone, Copy, Debug)]
struct Choices {
    start: u32,
    len: u32,
}

impl Choices {
    fn of(self, ports: &[PortId]) -> &[PortId] {
        &ports[self.start as usize..][..self.len as usize]
    }
}

impl Routes {
    /// Finds the shortest paths. `far(port)` is the node at the other end of a port whose link is
    /// up.
    pub(crate) fn new(
        topology: &Topology,
        ports_of: &[Vec<PortId>],
        far: impl Fn(PortId) -> Option<NodeId>,
    ) -> Self {
        let nodes = topology.nodes().len();
        let set: BTreeMap<(NodeId, NodeId), &[NodeId]> =
            topology.routes().iter().map(|route| ((route.at, route.to), &*route.via)).collect();
        let (mut ranges, mut ports) = (Vec::new(), Vec::new());
        // What each node has chosen for other hosts.
        let mut known: Vec<Vec<Choices>> = vec![Vec::new(); nodes];
        let (mut distance, mut queue) = (vec![u32::MAX; nodes], VecDeque::new());
        for host in topology.hosts() {
            distance.fill(u32::MAX);
            distance[host] = 0;
            queue.push_back(host);
            while let Some(node) = queue.pop_front() {
                for next in ports_of[node].iter().filter_map(|&port| far(port)) {
                    if distance[next] == u32::MAX {
                        distance[next] = distance[node] + 1;
                        // Hosts forward nothing.
                        if topology.nodes()[next] == Node::Switch {
                            queue.push_back(next);
                        }
                    }
                }
            }
            for node in 0..nodes {
                let via = set.get(&(node, host));
                let is_chosen = |next: NodeId| match via {
                    Some(via) => via.contains(&next),
                    None => distance[node] != u32::MAX && distance[next] + 1 == distance[node],
                };
                let start = ports.len();
                ports.extend(
                    ports_of[node].iter().filter(|&&port| far(port).is_some_and(is_chosen)),
                );
                let (earlier, new) = ports.split_at(start);
                let range = match known[node].iter().find(|known| known.of(earlier) == new) {
                    Some(&range) => {
                        ports.truncate(start);
                        range
                    }
                    None => {
                        let range = Choices { start: start as u32, len: new.len() as u32 };
                        known[node].push(range);
                        range
                    }
                };
                ranges.push(range);
            }
        }
        Self { ranges, ports, nodes }
    }

    /// The ports of `node` that lead to host number `host` in as few hops as possible.
    #[inline]
    pub(crate) fn choices(&self, node: NodeId, host: u32) -> &[PortId] {
        self.ranges[host as usize * self.nodes + node].of(&self.ports)
    }

    /// Whether every host can reach every other, whichever choices switches make. `far(port)` is
    /// the node at the other end of a port.
    pub(crate) fn check(
        &self,
        topology: &Topology,
        far: impl Fn(PortId) -> NodeId,
    ) -> Result<(), TopologyError> {
        // Shortest paths lead on wherever they begin; routes that people set need not.
        let is_set = !topology.routes().is_empty();
        for (index, to) in topology.hosts().enumerate() {
            let mut states = vec![State::New; self.nodes];
            states[to] = State::Arrives;
            for from in topology.hosts().filter(|&from| from != to) {
                let lacks = || TopologyError::Unreachable(topology.name(from), topology.name(to));
                if self.choices(from, index as u32).is_empty() {
                    return Err(lacks());
                }
                if is_set {
                    let circle = self.walk(from, index as u32, &far, &mut states);
                    let circle = circle.ok_or_else(lacks)?;
                    if !circle.is_empty() {
                        let names = circle.into_iter().map(|node| topology.name(node)).collect();
                        return Err(TopologyError::Cycle(topology.name(to), names));
                    }
                }
            }
        }
        Ok(())
    }

    /// Follows all choices from a node to a host, and returns a circle if there is one. `None`: a
    /// switch on the way has no choice.
    fn walk(
        &self,
        from: NodeId,
        host: u32,
        far: &impl Fn(PortId) -> NodeId,
        states: &mut [State],
    ) -> Option<Vec<NodeId>> {
        // The way to where the walk is: nodes, and how many of their choices were followed.
        let mut way = vec![(from, 0)];
        states[from] = State::OnWay;
        while let Some((node, followed)) = way.last_mut() {
            let choices = self.choices(*node, host);
            if choices.is_empty() {
                return None;
            }
            let Some(&port) = choices.get(*followed) else {
                states[*node] = State::Arrives;
                way.pop();
                continue;
            };
            *followed += 1;
            let next = far(port);
            match states[next] {
                State::Arrives => {}
                State::New => {
                    states[next] = State::OnWay;
                    way.push((next, 0));
                }
                State::OnWay => {
                    let nodes = way.iter().map(|&(node, _)| node);
                    return Some(nodes.skip_while(|&node| node != next).collect());
                }
            }
        }
        Some(Vec::new())
    }
}

/// What a walk knows about a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    New,
    OnWay,
    /// All choices from here lead to the host.
    Arrives,
}
