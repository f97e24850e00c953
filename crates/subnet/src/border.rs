//! Links to nodes that another process runs, as a part of the same fabric.
//!
//! Each process knows all nodes of the topology, and runs those of its part. A link between two
//! parts is a *border*: what is sent there leaves this subnet ([`Output::Leaves`]), and what the
//! other part sends arrives by [`Subnet::handle_packet`].
//!
//! Both ends of a link between nodes of one part go up and down together. At a border each end
//! says with a [`Signal`] whether it looks for the other one, as training sequences do on a wire,
//! and how often it went down by itself: an end that hears of another turn goes down and comes up
//! again, too. No link is up before the other end was heard, or after its process is gone
//! ([`Subnet::lose_part`]).

use feroce_train::Instant;
use feroce_wire::mad::PhysicalState;

use crate::node::Node;
use crate::packet::{MadPacket, PortRef};
use crate::signal::Signal;
use crate::subnet::{Arrival, Output, Subnet};

impl Subnet {
    /// The part that runs the node of a port, if that is another one.
    pub fn part_of(&self, at: PortRef) -> Option<usize> {
        self.nodes.get(at.node)?.elsewhere
    }

    /// Links to another part: the end here, and the end there.
    pub fn borders(&self, part: usize) -> impl Iterator<Item = (PortRef, PortRef)> {
        let all = self.borders.iter().map(|border| (border.here, border.there));
        all.filter(move |(_, there)| self.part_of(*there) == Some(part))
    }

    /// Another part is there: its ports hear of the ends that are here. The links come up when it
    /// has said the same.
    pub fn find_part(&mut self, now: Instant, part: usize) {
        for index in 0..self.borders.len() {
            if self.part_of(self.borders[index].there) == Some(part) {
                self.borders[index].told = None;
            }
        }
        self.run(now);
    }

    /// Another part is not there any more: the links to it go down.
    pub fn lose_part(&mut self, now: Instant, part: usize) {
        let ends: alloc::vec::Vec<_> = self.borders(part).collect();
        for (here, there) in ends {
            if let Some(port) = self.port_mut(there) {
                port.info.physical_state = PhysicalState::DISABLED;
            }
            self.lose_link(now, here, None);
        }
        self.run(now);
    }

    /// A port hears of the other end of its link, which another part has. Returns whether there is
    /// such a port.
    pub fn handle_signal(&mut self, now: Instant, at: PortRef, signal: Signal) -> bool {
        let border = self.borders.iter().find(|border| border.here == at).copied();
        let Some(port) = border.and_then(|border| self.port_mut(border.there)) else {
            return false;
        };
        let known = Signal { turn: port.turn, is_ready: port.is_ready() };
        port.turn = signal.turn;
        port.info.physical_state = match signal.is_ready {
            true => PhysicalState::POLLING,
            false => PhysicalState::DISABLED,
        };
        if known != signal {
            self.lose_link(now, at, None);
        }
        self.train_link(now, at);
        self.run(now);
        true
    }

    /// A datagram arrives from another part, after so many hops. Returns whether there is such a
    /// port at the end of a link.
    pub fn handle_packet(
        &mut self,
        now: Instant,
        at: PortRef,
        packet: MadPacket,
        hops: u32,
    ) -> bool {
        let is_border = self.borders.iter().any(|border| border.here == at);
        if is_border && self.port(at).is_some_and(|port| port.is_up()) {
            self.arrivals.push_back(Arrival { at, packet, hops });
            self.run(now);
        }
        is_border
    }

    /// Whether this subnet runs the node of a port.
    pub(crate) fn is_here(&self, at: PortRef) -> bool {
        self.nodes.get(at.node).is_some_and(Node::is_here)
    }

    /// Tells other parts what has changed at the ends of links to them.
    pub(crate) fn tell_borders(&mut self) {
        for border in &mut self.borders {
            let port =
                self.nodes.get(border.here.node).and_then(|node| node.port(border.here.port));
            let signal = port.map(|port| Signal { turn: port.turn, is_ready: port.is_ready() });
            if let Some(signal) = signal.filter(|signal| border.told != Some(*signal)) {
                border.told = Some(signal);
                self.outputs.push_back(Output::Signal(border.there, signal));
            }
        }
    }
}
