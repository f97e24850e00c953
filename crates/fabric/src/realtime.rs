//! What a driver in real time needs beside [`Fabric::poll`]: packets before they arrive, copies of
//! those that pass a port, and how links are.

use alloc::vec::Vec;

use crate::fabric::{Event, Fabric};
use crate::packet::Packet;
use crate::port::{Frame, Port, PortId};
use crate::stats::DropReason;
use crate::tap::Passed;
use crate::topology::{NodeId, PortName};
use crate::{Rate, Time};

/// A link as it is at a moment.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LinkState {
    /// Whether it carries packets.
    pub is_up: bool,
    /// Its rate.
    pub rate: Rate,
    /// Probability that it loses a packet.
    pub loss: f64,
    /// The port at the other end.
    pub peer: PortName,
}

impl<B> Fabric<B> {
    /// Watches a port from now on, or no longer: [`Fabric::take_passed`] has what passes.
    ///
    /// # Panics
    /// If there is no such port.
    pub fn watch(&mut self, node: NodeId, port: usize, is_on: bool)
    where
        B: Clone,
    {
        let id = self.ports_of[node][port];
        self.taps.ports.retain(|&other| other != id);
        if is_on {
            self.taps.ports.push(id);
        }
        self.taps.copy = Some(B::clone);
    }

    /// Takes the packets that have passed watched ports.
    pub fn take_passed(&mut self) -> Vec<Passed<B>> {
        core::mem::take(&mut self.taps.passed)
    }

    /// Puts a frame on the link behind a port, at whose end it is at `arrives_at`.
    pub(crate) fn carry(&mut self, id: PortId, frame: Frame, arrives_at: Time) {
        let announces = self.config.announce && self.config.infiniband.is_none();
        let peer = self.ports[id as usize].peer;
        if let Frame::Packet(packet) = frame
            && announces
            && let Some(host) = self.host_number[self.ports[peer as usize].node]
        {
            return self.announce(id, packet, host, arrives_at);
        }
        let port = &mut self.ports[id as usize];
        if port.in_flight.is_empty() {
            self.agenda.push(arrives_at, Event::Arrival(id));
        }
        port.in_flight.push_back((arrives_at, frame));
    }

    /// Whether a link with this loss loses a packet.
    pub(crate) fn is_lost(&mut self, loss: f64) -> bool {
        loss > 0.0 && self.rng.f64() < loss
    }

    /// A packet goes to a host: it counts as delivered, and the driver
    /// gets it now, with the time at which it arrives.
    fn announce(&mut self, from: PortId, packet: u32, host: u32, at: Time) {
        self.totals.hops += 1;
        let port = &self.ports[from as usize];
        let (loss, to) = (port.loss, port.peer);
        if self.is_lost(loss) {
            self.drop_packet(from, packet, DropReason::Loss);
            return;
        }
        self.tap(at, to, false, packet);
        let packet = self.packets.remove(packet);
        self.totals.delivered.add(packet.len);
        self.arriving.push_back((at, Packet { to: host, ..packet }));
    }

    /// With [`Config::announce`](crate::Config::announce): the next packet that is on its way to a
    /// host over the host's own link, and the time at which all of it has arrived.
    pub fn take_arriving(&mut self) -> Option<(Time, Packet<B>)> {
        self.arriving.pop_front()
    }

    /// Notes a packet that passes a port, if the port is watched.
    #[inline]
    pub(crate) fn tap(&mut self, at: Time, id: PortId, is_sent: bool, packet: u32) {
        if !self.taps.ports.is_empty() {
            self.tap_watched(at, id, is_sent, packet);
        }
    }

    #[cold]
    fn tap_watched(&mut self, at: Time, id: PortId, is_sent: bool, packet: u32) {
        let Some(copy) = self.taps.copy.filter(|_| self.taps.ports.contains(&id)) else { return };
        let Port { node, local: port, .. } = self.ports[id as usize];
        let packet = self.packets.copied(packet, copy);
        self.taps.passed.push(Passed { at, node, port, is_sent, packet });
    }

    /// The propagation delay of a host's link in picoseconds; `None` if there is no such host.
    pub fn delay_ps(&self, host: u32) -> Option<u64> {
        let port = self.host_port.get(host as usize)?;
        Some(self.ports[*port as usize].delay_ps)
    }

    /// How the link behind a port is now.
    pub fn link_state(&self, node: NodeId, port: usize) -> Option<LinkState> {
        let id = *self.ports_of.get(node)?.get(port)?;
        let Port { is_up, rate, loss, peer, .. } = self.ports[id as usize];
        let peer = &self.ports[peer as usize];
        let peer = PortName { node: peer.node, port: peer.local };
        Some(LinkState { is_up, rate, loss, peer })
    }
}
