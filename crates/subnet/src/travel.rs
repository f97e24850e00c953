//! How packets travel from node to node: out of a port, in at its peer, on by LID or by hops.

use feroce_train::Instant;
use feroce_wire::mad::{Class, Smp};
use feroce_wire::{Lid, Qpn};

use crate::directed::{Hop, take_hop};
use crate::packet::{MadPacket, PortRef};
use crate::subnet::{Arrival, Output, Subnet};
use crate::switch::Forward;
use crate::tap::Way;

/// Hops after which a packet is dropped, as its lifetime would be over: tables can lead in circles.
pub(crate) const MAX_HOPS: u32 = 128;

/// Packets that are under way at most, for each node. Tables that lead a multicast in circles
/// multiply it at every switch.
pub(crate) const MAX_UNDER_WAY: usize = 4;

impl Subnet {
    /// A node sends a packet of its own.
    pub(crate) fn originate(
        &mut self,
        now: Instant,
        at: PortRef,
        mut packet: MadPacket,
        hops: u32,
    ) {
        let at = self.end_of(at);
        let is_directed = packet.dst_qpn == Qpn::QP0 && packet.mad[1] == Class::SUBNET_DIRECTED.0;
        if is_directed
            && let Ok((mut smp, _)) = Smp::parse(&packet.mad)
            && begins_directed(&smp)
        {
            let forwards = self.nodes[at.node].switch.is_some();
            let hop = take_hop(&mut smp, 0, forwards);
            packet.mad = smp.to_bytes();
            return self.follow(now, at, hop, packet, hops);
        }
        self.route(now, at, packet, hops);
    }

    /// What a hop of a directed route says.
    fn follow(&mut self, now: Instant, at: PortRef, hop: Hop, mut packet: MadPacket, hops: u32) {
        match hop {
            Hop::Here => self.deliver(now, at, packet, hops),
            Hop::Out(port) => {
                (packet.slid, packet.dlid) = (Lid::PERMISSIVE, Lid::PERMISSIVE);
                self.transmit(PortRef { port, ..at }, packet, hops);
            }
            Hop::ByLid(lid) => {
                // A switch may send it back to where it came from.
                let at = self.end_of(at);
                let own = self.port(at);
                packet.slid = own.map_or(Lid::PERMISSIVE, |port| port.info.lid);
                packet.dlid = lid;
                self.route(now, at, packet, hops);
            }
            Hop::Drop => {
                if let Some(port) = self.port_mut(at) {
                    port.counters.rcv_errors += 1;
                }
            }
        }
    }

    /// Sends a packet on by its LID, from a node that has it.
    fn route(&mut self, now: Instant, at: PortRef, packet: MadPacket, hops: u32) {
        let node = &self.nodes[at.node];
        let Some(switch) = &node.switch else {
            let is_own = node.port(at.port).is_some_and(|port| port.has_lid(packet.dlid));
            return match is_own || packet.dlid == Lid::PERMISSIVE {
                true => self.deliver(now, at, packet, hops),
                false => self.transmit(at, packet, hops),
            };
        };
        let is_own = node.ports[0].has_lid(packet.dlid) || packet.dlid == Lid::PERMISSIVE;
        if is_own {
            return self.deliver(now, at, packet, hops);
        }
        match switch.forward(packet.dlid, at.port) {
            Ok(Forward::One(0)) => self.deliver(now, at, packet, hops),
            Ok(Forward::One(port)) => self.transmit(PortRef { port, ..at }, packet, hops),
            Ok(Forward::Many(ports)) => {
                for port in ports.into_iter().filter(|&port| port != 0) {
                    self.transmit(PortRef { port, ..at }, packet.clone(), hops);
                }
            }
            Err(_) => self.nodes[at.node].ports[usize::from(at.port)].counters.relay_errors += 1,
        }
    }

    /// A packet leaves by a port.
    fn transmit(&mut self, at: PortRef, packet: MadPacket, hops: u32) {
        let is_management = packet.dst_qpn == Qpn::QP0;
        let is_switch = self.nodes[at.node].switch.is_some();
        let is_crowded = self.arrivals.len() >= MAX_UNDER_WAY * self.nodes.len();
        let Some(port) = self.port_mut(at) else {
            return;
        };
        let passes = if is_management { port.is_up() } else { port.is_active() };
        let has_time = hops < MAX_HOPS && !is_crowded;
        let Some(peer) = port.peer.filter(|_| passes && has_time) else {
            port.counters.xmit_discards += 1;
            return;
        };
        let enforces = is_switch && port.info.partition_enforcement_outbound && !is_management;
        if enforces && !port.admits(packet.pkey) {
            port.counters.xmit_constraint_errors += 1;
            return;
        }
        port.counters.sent(1, packet.words(), packet.dlid.is_multicast());
        self.watched.management(at, Way::Sent, &packet);
        match self.is_here(peer) {
            true => self.arrivals.push_back(Arrival { at: peer, packet, hops: hops + 1 }),
            false => self.outputs.push_back(Output::Leaves(peer, packet, hops + 1)),
        }
    }

    /// A packet arrives at a port.
    pub(crate) fn arrive(&mut self, now: Instant, Arrival { at, mut packet, hops }: Arrival) {
        let is_management = packet.dst_qpn == Qpn::QP0;
        let is_switch = self.nodes[at.node].switch.is_some();
        let Some(port) = self.port_mut(at) else {
            return;
        };
        if !is_management && !port.is_active() {
            return;
        }
        port.counters.received(1, packet.words(), packet.dlid.is_multicast());
        let enforces = is_switch && port.info.partition_enforcement_inbound && !is_management;
        let is_admitted = !enforces || port.admits(packet.pkey);
        if !is_admitted {
            port.counters.rcv_constraint_errors += 1;
        }
        self.watched.management(at, Way::Received, &packet);
        if !is_admitted {
            return;
        }
        let is_directed = is_management && packet.mad[1] == Class::SUBNET_DIRECTED.0;
        let is_here = packet.dlid == Lid::PERMISSIVE || self.is_at_end(at, packet.dlid);
        if is_directed
            && is_here
            && let Ok((mut smp, _)) = Smp::parse(&packet.mad)
        {
            let hop = take_hop(&mut smp, at.port, is_switch);
            packet.mad = smp.to_bytes();
            return self.follow(now, at, hop, packet, hops);
        }
        if is_switch || is_here || packet.dlid.is_multicast() {
            return match is_switch {
                true => self.route(now, at, packet, hops),
                false => self.deliver(now, at, packet, hops),
            };
        }
        // An adapter does not forward.
        if let Some(port) = self.port_mut(at) {
            port.counters.rcv_errors += 1;
        }
    }

    /// Whether a LID is that of the node, as far as a packet at one of its ports is concerned.
    fn is_at_end(&self, at: PortRef, lid: Lid) -> bool {
        self.port(self.end_of(at)).is_some_and(|port| port.has_lid(lid))
    }

    /// The port whose LID a packet at a port is for or from: of a switch port 0.
    fn end_of(&self, at: PortRef) -> PortRef {
        PortRef { port: self.nodes[at.node].end_port(at.port), ..at }
    }
}

/// Whether the directed part of a packet begins at the node that sends it.
fn begins_directed(smp: &Smp) -> bool {
    match smp.directed_route() {
        Some(route) if route.is_returning => smp.dr_dlid == Lid::PERMISSIVE,
        Some(_) => smp.dr_slid == Lid::PERMISSIVE,
        None => false,
    }
}
