//! Links that change while the fabric runs.

use crate::fabric::{Event, Fabric, find_routes};
use crate::port::{Frame, Port, PortId};
use crate::stats::DropReason;
use crate::{Rate, Time};

impl<B> Fabric<B> {
    /// Takes a link down or up again. A link that goes down loses what it carries and what waits
    /// for it; the shortest paths are found anew.
    ///
    /// # Panics
    /// If there is no such link.
    pub fn set_link(&mut self, now: Time, link: usize, is_up: bool) {
        assert!(link < self.topology.links().len(), "no link {link}");
        self.now = now.max(self.now);
        for id in [2 * link as PortId, 2 * link as PortId + 1] {
            self.ports[id as usize].is_up = is_up;
            if is_up {
                self.forget_pauses(id);
                self.restart_lanes(id);
                // A host may have waited for its link.
                self.agenda.push(self.now, Event::Free(id));
            } else {
                self.discard(id, u16::MAX, DropReason::LinkDown);
                self.lose_in_flight(id);
            }
        }
        self.routes = find_routes(&self.topology, &self.ports, &self.ports_of);
        self.renew_groups();
    }

    /// Everything on the link behind a port is lost.
    fn lose_in_flight(&mut self, id: PortId) {
        for (_, frame) in core::mem::take(&mut self.ports[id as usize].in_flight) {
            if let Frame::Packet(packet) = frame {
                self.drop_packet(id, packet, DropReason::LinkDown);
            }
        }
    }

    /// Sets the probability that a link loses a packet.
    ///
    /// # Panics
    /// If there is no such link, or the probability is none.
    pub fn set_loss(&mut self, link: usize, loss: f64) {
        assert!((0.0..=1.0).contains(&loss), "a loss of {loss}");
        for port in self.ports_of_link(link) {
            port.loss = loss;
        }
    }

    /// Sets the rate of a link. The frame that is being sent keeps its rate. Buffers and the
    /// thresholds of marks stay as they are: an operator configures those of a switch by hand.
    ///
    /// # Panics
    /// If there is no such link.
    pub fn set_rate(&mut self, link: usize, rate: Rate) {
        for port in self.ports_of_link(link) {
            port.rate = rate;
        }
    }

    fn ports_of_link(&mut self, link: usize) -> &mut [Port] {
        assert!(link < self.topology.links().len(), "no link {link}");
        &mut self.ports[2 * link..2 * link + 2]
    }
}
