//! Packets on links to other parts of a fabric. What the sender of a link inside a part does to the
//! other end itself, messages do here: packets land, and credits are heard of.

use feroce_fabric::FlowControl;
use feroce_train::Instant;

use super::lane::LANES;
use super::{Landing, Part, Traffic, TrafficEvent};
use crate::data::DataRun;
use crate::packet::PortRef;
use crate::subnet::Subnet;

impl<B: Clone> Traffic<B> {
    /// Packets arrive from another part. Returns whether that was allowed: at the end of a link to
    /// another part, into a receive buffer that has room for them.
    pub fn arrive(
        &mut self,
        now: Instant,
        subnet: &mut Subnet,
        landing: Landing,
        run: &DataRun,
        body: B,
    ) -> bool {
        let Landing { at, lane, .. } = landing;
        let blocks = run.blocks(0, run.packets);
        let buffer = self.border(subnet, at).and_then(|lanes| lanes.get_mut(usize::from(lane)));
        if run.packets == 0 || !buffer.is_some_and(|buffer| buffer.accept(blocks)) {
            return false;
        }
        let part = Part { body, first: 0, count: run.packets };
        let words = run.words_of(0, run.packets);
        self.land(now, subnet, landing, blocks, (*run, part), words);
        self.run(now, subnet);
        true
    }

    /// Another part tells how much a port here may send to it. Returns whether there is such a port
    /// and lane.
    pub fn hear(
        &mut self,
        now: Instant,
        subnet: &mut Subnet,
        (at, lane): (PortRef, u8),
        flow_control: FlowControl,
    ) -> bool {
        let sender = self.border(subnet, at).and_then(|lanes| lanes.get_mut(usize::from(lane)));
        let Some(sender) = sender else { return false };
        if sender.hear(flow_control) {
            self.untold.insert((at, lane));
        }
        self.work.push_back(at);
        self.run(now, subnet);
        true
    }

    /// A link to another part begins anew: what waits for it is dropped, and it carries nothing
    /// before the other end has said what it takes.
    pub fn restart(&mut self, subnet: &mut Subnet, at: PortRef) {
        self.clear(subnet, at);
        let Some(lanes) = self.border(subnet, at) else { return };
        lanes.iter_mut().for_each(feroce_fabric::CreditLane::restart);
        self.untold.extend((0..LANES as u8).map(|lane| (at, lane)));
        self.work.push_back(at);
    }

    /// The lanes of a port at the end of a link to another part.
    fn border(
        &mut self,
        subnet: &Subnet,
        at: PortRef,
    ) -> Option<&mut [feroce_fabric::CreditLane; LANES]> {
        let peer = subnet.port(at)?.peer?;
        let is_border = subnet.is_here(at) && !subnet.is_here(peer);
        self.lanes_mut(at).filter(|_| is_border).map(|lanes| &mut lanes.credits)
    }

    /// What another part is to hear of a receive buffer.
    pub(super) fn poll_credit(&mut self, subnet: &Subnet) -> Option<TrafficEvent<B>> {
        let (at, lane) = self.untold.pop_first()?;
        let peer = subnet.port(at)?.peer?;
        let credits = self.lanes(at)?.credits.get(usize::from(lane))?;
        Some(TrafficEvent::Credit(peer, lane, credits.flow_control()))
    }
}
