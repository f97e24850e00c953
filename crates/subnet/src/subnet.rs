//! All nodes together: how management datagrams travel between them.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use feroce_train::Instant;
use feroce_wire::mad::{CapabilityChange, PhysicalState, PortState, TrapNumber, capability};

use crate::net::{Net, NetLink, NetNode};
use crate::node::Node;
use crate::notify::KIND_MANAGEMENT;
use crate::packet::{MadPacket, PortRef};
use crate::port::{Change, Port, width_code};
use crate::signal::{Border, Signal};
use crate::sma::Effect;
use crate::tap::{Seen, Watched};

/// What [`Subnet::poll_output`] reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// A datagram reaches the programs behind a port of an adapter.
    Received(PortRef, MadPacket),
    /// Something has changed at a port of an adapter.
    Changed(PortRef, Change),
    /// A datagram leaves for a port of another part of the fabric, after so many hops.
    Leaves(PortRef, MadPacket, u32),
    /// A port of another part has this to hear of the end of its link that is here.
    Signal(PortRef, Signal),
}

/// A packet at a port, on its way in.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) at: PortRef,
    pub(crate) packet: MadPacket,
    pub(crate) hops: u32,
}

/// A subnet. See the documentation of the crate.
#[derive(Debug)]
pub struct Subnet {
    pub(crate) nodes: Vec<Node>,
    pub(crate) arrivals: VecDeque<Arrival>,
    /// What agents were told to do. It waits until their answers have left, which may need the
    /// link that goes down.
    pub(crate) effects: VecDeque<(PortRef, Effect)>,
    pub(crate) outputs: VecDeque<Output>,
    /// Nodes that may have a trap to send, or another deadline.
    pub(crate) touched: Vec<usize>,
    /// When a node must be looked at, by node.
    deadlines: BTreeMap<usize, Instant>,
    /// What captures want to see.
    pub(crate) watched: Watched,
    /// Links to other parts.
    pub(crate) borders: Vec<Border>,
}

impl Subnet {
    /// A subnet whose links are up and that no subnet manager has seen.
    pub fn new(net: &Net) -> Self {
        Self::with_nodes(net, net.nodes.iter().map(Node::new).collect())
    }

    /// A part of a subnet. Its links to other parts are down until those say that they are there;
    /// see [`Subnet::handle_signal`].
    pub fn of_part(net: &Net, part: usize) -> Self {
        let node = |of: &NetNode| {
            let elsewhere = Some(of.part).filter(|&other| other != part);
            Node { elsewhere, ..Node::new(of) }
        };
        Self::with_nodes(net, net.nodes.iter().map(node).collect())
    }

    fn with_nodes(net: &Net, mut nodes: Vec<Node>) -> Self {
        let mut borders = Vec::new();
        for NetLink { ends: [a, b], width } in &net.links {
            let [is_a_here, is_b_here] =
                [a, b].map(|end| nodes.get(end.node).is_some_and(Node::is_here));
            for (end, peer, is_here) in [(a, b, is_a_here), (b, a, is_b_here)] {
                let port = nodes.get_mut(end.node).and_then(|node| node.port_mut(end.port));
                let Some(port) = port else { continue };
                port.peer = Some(*peer);
                port.info.link_width_active = width_code(*width);
                if is_a_here && is_b_here {
                    port.info.state = PortState::INIT;
                    port.info.physical_state = PhysicalState::LINK_UP;
                } else if is_here {
                    borders.push(Border { here: *end, there: *peer, told: None });
                } else {
                    // Nothing is known of it yet.
                    port.info.physical_state = PhysicalState::DISABLED;
                }
            }
        }
        Self {
            nodes,
            arrivals: VecDeque::new(),
            effects: VecDeque::new(),
            outputs: VecDeque::new(),
            touched: Vec::new(),
            deadlines: BTreeMap::new(),
            watched: Watched::default(),
            borders,
        }
    }

    /// Begins or ends to copy what passes a port.
    pub fn watch(&mut self, at: PortRef, is_watched: bool) {
        match is_watched {
            true => self.watched.ports.insert(at),
            false => self.watched.ports.remove(&at),
        };
    }

    /// The next management datagram that has passed a port that is watched.
    pub fn poll_seen(&mut self) -> Option<Seen> {
        self.watched.seen.pop_front()
    }

    /// The nodes, in the order of the file.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// A port.
    pub fn port(&self, at: PortRef) -> Option<&Port> {
        self.nodes.get(at.node)?.port(at.port)
    }

    /// A program behind a port sends a datagram. What it causes has happened on return; see
    /// [`Subnet::poll_output`].
    pub fn send(&mut self, now: Instant, at: PortRef, packet: MadPacket) {
        if self.port(at).is_some() {
            self.originate(now, at, packet, 0);
            self.run(now);
        }
    }

    /// The next thing to tell programs.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// No program behind the port takes a datagram that it received: a request gets the answer that
    /// its attribute is not supported.
    pub fn refuse(&mut self, now: Instant, at: PortRef, packet: &MadPacket) {
        if self.port(at).is_some() {
            self.answer_unsupported(now, at, packet, 0);
            self.run(now);
        }
    }

    /// When [`Subnet::handle_timeout`] must be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.values().min().copied()
    }

    /// Repeats traps that were not repressed, and ends the protection by M_Keys whose owner is
    /// silent.
    pub fn handle_timeout(&mut self, now: Instant) {
        let is_due = |(node, at): (&usize, &Instant)| (*at <= now).then_some(*node);
        let due: Vec<usize> = self.deadlines.iter().filter_map(is_due).collect();
        for index in due {
            if let Some(node) = self.nodes.get_mut(index) {
                node.ports.iter_mut().for_each(|port| port.end_lease(now));
            }
            self.touched.push(index);
        }
        self.run(now);
    }

    /// Says whether a subnet manager runs behind a port. Others hear of it by a trap.
    pub fn set_is_sm(&mut self, now: Instant, at: PortRef, is_sm: bool) {
        let Some(node) = self.nodes.get_mut(at.node) else {
            return;
        };
        let Some(port) = node.port_mut(at.port) else {
            return;
        };
        let before = port.info.capability_mask;
        let bit = if is_sm { capability::IS_SM } else { 0 };
        port.info.capability_mask = (before & !capability::IS_SM) | bit;
        let info = port.info;
        if info.capability_mask != before {
            let details = CapabilityChange {
                lid: info.lid,
                capability_mask: info.capability_mask,
                capability_mask_2: info.capability_mask_2,
                ..CapabilityChange::default()
            };
            let trap = TrapNumber::CAPABILITY_MASK;
            node.notify(now, at.port, KIND_MANAGEMENT, trap, details.to_bytes());
            self.touched.push(at.node);
            self.run(now);
        }
    }

    /// Moves packets until none moves.
    pub(crate) fn run(&mut self, now: Instant) {
        loop {
            if let Some(arrival) = self.arrivals.pop_front() {
                self.arrive(now, arrival);
            } else if let Some((at, effect)) = self.effects.pop_front() {
                self.take_effect(now, at, effect);
            } else if let Some(node) = self.touched.pop() {
                self.send_traps(now, node);
            } else {
                return self.tell_borders();
            }
        }
    }

    /// Sends the traps of a node that are due, and notes its next deadline.
    fn send_traps(&mut self, now: Instant, index: usize) {
        let Some(node) = self.nodes.get_mut(index) else {
            return;
        };
        let trap = node.poll_trap(now);
        let leases = node.ports.iter().filter_map(|port| port.lease_ends);
        match leases.chain(node.traps.next_at()).min() {
            Some(deadline) => self.deadlines.insert(index, deadline),
            None => self.deadlines.remove(&index),
        };
        if let Some((port, packet)) = trap {
            // There may be another one.
            self.touched.push(index);
            self.originate(now, PortRef { node: index, port }, packet, 0);
        }
    }

    pub(crate) fn port_mut(&mut self, at: PortRef) -> Option<&mut Port> {
        self.nodes.get_mut(at.node)?.port_mut(at.port)
    }
}
