//! InfiniBand in the fabric: credits, arbitration, forwarding tables, lifetime.

use alloc::vec;
use alloc::vec::Vec;

use crate::arbiter::Arbiter;
use crate::credits::{CreditLane, FlowControl, blocks};
use crate::fabric::{Event, Fabric, Output};
use crate::infiniband::{InfinibandConfig, MANAGEMENT_LANE};
use crate::port::PortId;
use crate::stats::DropReason;
use crate::store::{Head, NONE};
use crate::topology::NodeId;

/// Within so many symbol times, of a byte each, the state of a lane is told again.
const REPEAT_SYMBOLS: u32 = 65_536;

impl<B> Fabric<B> {
    /// The linear forwarding table of a switch: the port for each LID. Host `n` has LID `n + 1`;
    /// there is no LID 0. Empty if there is no such switch, or not InfiniBand.
    pub fn linear_forwarding_table(&self, node: NodeId) -> Vec<Option<usize>> {
        if self.config.infiniband.is_none() || node >= self.ports_of.len() || self.is_host(node) {
            return Vec::new();
        }
        let port = |host| self.linear(node, host).map(|id| self.ports[id as usize].local);
        core::iter::once(None).chain((0..self.hosts() as u32).map(port)).collect()
    }

    /// The port of a switch that leads to a host. Destinations take equal paths in turn.
    fn linear(&self, node: NodeId, host: u32) -> Option<PortId> {
        let choices = self.routes.choices(node, host);
        choices.get(host as usize % choices.len().max(1)).copied()
    }

    /// Bytes in the receive buffer of a lane, in whole blocks; `None` if there is none.
    pub fn lane_used(&self, node: NodeId, port: usize, lane: usize) -> Option<u64> {
        let id = *self.ports_of.get(node)?.get(port)?;
        let lane = self.infiniband.lanes.get(id as usize)?.get(lane)?;
        Some(u64::from(lane.used()) * 64)
    }

    pub(crate) fn start_infiniband(&mut self) {
        let Some(config) = &self.config.infiniband else { return };
        let lane = CreditLane::new(config.lane_buffer);
        self.infiniband.lanes = vec![[lane; 8]; self.ports.len()];
        self.infiniband.management = vec![0; self.ports.len()];
        self.infiniband.arbiters = vec![Arbiter::default(); self.ports.len()];
    }

    /// The first packet of a lane or its credits have changed: may it send?
    pub(crate) fn update_lane(&mut self, id: PortId, vl: u8, is_new_head: bool) {
        // VL15 never waits for credits.
        let config = self.config.infiniband.as_ref().filter(|_| vl != MANAGEMENT_LANE);
        let Some(config) = config else { return };
        let (lane, bit) = (usize::from(vl), 1u16 << vl);
        let port = &mut self.ports[id as usize];
        let credits = &self.infiniband.lanes[id as usize][lane];
        let head = port.queues[lane].iter(&self.packets).next();
        if head.is_none_or(|head| credits.may_send(blocks(head.len))) {
            port.stopped &= !bit;
            return;
        }
        if is_new_head || port.stopped & bit == 0 {
            port.paused[lane].since = self.now;
            if let Some(ps) = config.lifetime_ps {
                self.agenda.push(self.now.plus_ps(ps), Event::PauseEnd(id));
            }
        }
        port.stopped |= bit;
    }

    /// The lane that sends next.
    pub(crate) fn next_lane(&mut self, id: PortId) -> Option<u8> {
        let InfinibandConfig { arbitration, .. } = self.config.infiniband.as_ref()?;
        let port = &self.ports[id as usize];
        let len = |vl: u8| {
            let head = port.queues[usize::from(vl)].iter(&self.packets).next();
            head.map_or(0, |head| head.len)
        };
        let ready = port.waiting & !port.stopped;
        if ready & (1 << MANAGEMENT_LANE) != 0 {
            return Some(MANAGEMENT_LANE);
        }
        let ready = ready as u8;
        self.infiniband.arbiters[id as usize].next(arbitration, ready, len)
    }

    /// A packet leaves by a port.
    pub(crate) fn spend_credits(&mut self, id: PortId, vl: u8, len: u32) {
        if self.config.infiniband.is_some() && vl != MANAGEMENT_LANE {
            self.infiniband.lanes[id as usize][usize::from(vl)].send(blocks(len));
            self.update_lane(id, vl, true);
        }
    }

    /// What a port tells its peer about a lane.
    pub(crate) fn flow_control(&self, id: PortId, vl: u8) -> FlowControl {
        self.infiniband.lanes[id as usize][usize::from(vl)].flow_control()
    }

    /// Tells the peer of a port about a lane as soon as the link is free.
    fn tell(&mut self, id: PortId, vls: u8) {
        self.ports[id as usize].notices |= vls;
        self.wake(id);
    }

    /// A flow control packet arrives at a port.
    pub(crate) fn on_flow_control(
        &mut self,
        id: PortId,
        vl: u8,
        flow_control: FlowControl,
    ) -> Option<Output<B>> {
        if self.infiniband.lanes[id as usize][usize::from(vl)].hear(flow_control) {
            self.tell(id, 1 << vl);
        }
        self.update_lane(id, vl, false);
        self.go_on(id)
    }

    /// A port may have something to send that it had not.
    fn go_on(&mut self, id: PortId) -> Option<Output<B>> {
        let port = &self.ports[id as usize];
        if !port.is_free_due && port.busy_until <= self.now && port.has_work() {
            return self.send_next(id);
        }
        self.wake(id);
        None
    }

    /// A frame of the port was lost: its peer counts wrongly until it is told.
    pub(crate) fn tell_again(&mut self, id: PortId) {
        if self.config.infiniband.is_some() {
            let ps = self.ports[id as usize].rate.ps_of(REPEAT_SYMBOLS);
            self.agenda.push(self.now.plus_ps(ps), Event::Refresh(id));
        }
    }

    /// Tells everything about a port.
    pub(crate) fn tell_all(&mut self, id: PortId) {
        let lanes = self.config.infiniband.as_ref().map_or(0, lanes_in_use);
        if self.ports[id as usize].is_up {
            self.tell(id, lanes);
        }
    }

    /// A packet arrives at a port. False: it was dropped, because it did not fit.
    pub(crate) fn take_credits(&mut self, id: PortId, packet: u32) -> bool {
        let head = &self.packets[packet];
        let (vl, len) = (usize::from(head.priority), head.len);
        if head.priority == MANAGEMENT_LANE {
            return self.take_management(id, packet, len);
        }
        if self.infiniband.lanes[id as usize][vl].accept(blocks(len)) {
            return true;
        }
        self.drop_packet(id, packet, DropReason::Buffer);
        false
    }

    /// A packet arrives on VL15. False: it was dropped, because it did not fit.
    fn take_management(&mut self, id: PortId, packet: u32, len: u32) -> bool {
        let most = self.config.infiniband.as_ref().map_or(0, |config| config.management_buffer);
        let used = &mut self.infiniband.management[id as usize];
        let fits = *used + u64::from(len) <= most;
        if fits {
            *used += u64::from(len);
        } else {
            self.drop_packet(id, packet, DropReason::Management);
        }
        fits
    }

    /// A packet, or the last of its copies, leaves the receive buffer of a port.
    pub(crate) fn return_credits(&mut self, id: PortId, vl: u8, len: u32, share: u32) {
        if !self.multicast.is_last(share) {
            return;
        }
        if vl == MANAGEMENT_LANE {
            self.infiniband.management[id as usize] -= u64::from(len);
            return;
        }
        self.infiniband.lanes[id as usize][usize::from(vl)].release(blocks(len));
        self.tell(id, 1 << vl);
    }

    /// Forwards a packet that a switch has taken in.
    pub(crate) fn forward_by_table(&mut self, node: NodeId, id: u32) {
        let Head { to, priority: vl, len, ingress, .. } = self.packets[id];
        let arrived_by = self.ports_of[node][ingress as usize];
        let ports = match self.group_ports(node, to, arrived_by) {
            None => self.linear(node, to).into_iter().collect(),
            Some(ports) => ports,
        };
        let Some((&last, others)) = ports.split_last() else {
            self.drop_packet(arrived_by, id, DropReason::NoRoute);
            return self.return_credits(arrived_by, vl, len, NONE);
        };
        self.fan_out(id, last, others);
    }

    /// The lifetime of the first packet of a lane may be over.
    pub(crate) fn on_lifetime(&mut self, id: PortId) -> Option<Output<B>> {
        let ps = self.config.infiniband.as_ref()?.lifetime_ps?;
        for vl in 0..8u8 {
            let port = &mut self.ports[id as usize];
            let is_stopped = port.waiting & port.stopped & (1 << vl) != 0;
            if !is_stopped || self.now.ps_since(port.paused[usize::from(vl)].since) < ps {
                continue;
            }
            let Some(packet) = port.dequeue(self.now, &mut self.packets, vl) else { continue };
            let (ingress, share) = (self.packets[packet].ingress, self.packets.share(packet));
            let node = port.node;
            let len = self.drop_packet(id, packet, DropReason::Lifetime);
            self.release(node, ingress, vl, len, share);
            self.update_lane(id, vl, true);
        }
        self.go_on(id)
    }

    /// A link has come up: both ends count anew.
    pub(crate) fn restart_lanes(&mut self, id: PortId) {
        let Some(lanes) = self.infiniband.lanes.get_mut(id as usize) else { return };
        lanes.iter_mut().for_each(CreditLane::restart);
        for vl in 0..8 {
            self.update_lane(id, vl, false);
        }
        self.tell_all(id);
    }
}

/// Lanes that service levels lead to, a bit each.
fn lanes_in_use(config: &InfinibandConfig) -> u8 {
    config.sl_to_vl.iter().fold(0, |lanes, vl| lanes | 1 << (vl % 8))
}
