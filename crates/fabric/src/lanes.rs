//! InfiniBand in the fabric: credits, arbitration, forwarding tables, lifetime.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use crate::arbiter::Arbiter;
use crate::credits::{FlowControl, Lane, blocks};
use crate::fabric::{Event, Fabric, Output};
use crate::infiniband::{InfinibandConfig, MULTICAST};
use crate::packet::Stored;
use crate::port::{NONE, PortId};
use crate::stats::DropReason;
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

    /// The multicast forwarding table of a switch: the ports that lead to members of a group.
    pub fn multicast_forwarding(&self, node: NodeId, group: u32) -> Vec<usize> {
        let ports = self.infiniband.multicast.get(&(group, node));
        let local = |&id: &PortId| self.ports[id as usize].local;
        ports.map_or_else(Vec::new, |ports| ports.iter().map(local).collect())
    }

    /// Bytes in the receive buffer of a lane, in whole blocks; `None` if there is none.
    pub fn lane_used(&self, node: NodeId, port: usize, lane: usize) -> Option<u64> {
        let id = *self.ports_of.get(node)?.get(port)?;
        let lane = self.infiniband.lanes.get(id as usize)?.get(lane)?;
        Some(u64::from(lane.used()) * 64)
    }

    pub(crate) fn start_infiniband(&mut self) {
        let Some(config) = &self.config.infiniband else { return };
        let lane = Lane::new(config.lane_buffer);
        self.infiniband.lanes = vec![[lane; 8]; self.ports.len()];
        self.infiniband.arbiters = vec![Arbiter::default(); self.ports.len()];
    }

    /// The first packet of a lane or its credits have changed: may it send?
    pub(crate) fn update_lane(&mut self, id: PortId, vl: u8, is_new_head: bool) {
        let Some(config) = &self.config.infiniband else { return };
        let (lane, bit) = (usize::from(vl), 1 << vl);
        let port = &mut self.ports[id as usize];
        let credits = &self.infiniband.lanes[id as usize][lane];
        let head = port.queues[lane].iter(&self.packets).next();
        if head.is_none_or(|stored| credits.may_send(blocks(stored.packet.len))) {
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
            head.map_or(0, |stored| stored.packet.len)
        };
        let ready = port.waiting & !port.stopped;
        self.infiniband.arbiters[id as usize].next(arbitration, ready, len)
    }

    /// A packet leaves by a port.
    pub(crate) fn spend_credits(&mut self, id: PortId, vl: u8, len: u32) {
        if self.config.infiniband.is_some() {
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
        let stored = &self.packets[packet as usize].packet;
        let (vl, len) = (usize::from(stored.priority), stored.len);
        if self.infiniband.lanes[id as usize][vl].accept(blocks(len)) {
            return true;
        }
        self.drop_packet(id, packet, DropReason::Buffer);
        false
    }

    /// A packet, or the last of its copies, leaves the receive buffer of a port.
    pub(crate) fn return_credits(&mut self, id: PortId, vl: u8, len: u32, share: u32) {
        if share != NONE {
            let left = &mut self.infiniband.shares[share as usize];
            *left -= 1;
            if *left > 0 {
                return;
            }
            self.infiniband.shares.remove(share as usize);
        }
        self.infiniband.lanes[id as usize][usize::from(vl)].release(blocks(len));
        self.tell(id, 1 << vl);
    }

    /// Forwards a packet that a switch has taken in.
    pub(crate) fn forward_by_table(&mut self, node: NodeId, id: u32) {
        let Stored { packet, ingress, .. } = &self.packets[id as usize];
        let (to, vl, len, ingress) = (packet.to, packet.priority, packet.len, *ingress);
        let arrived_by = self.ports_of[node][ingress];
        let ports: Vec<PortId> = match to.checked_sub(MULTICAST) {
            None => self.linear(node, to).into_iter().collect(),
            Some(group) => {
                let ports = self.infiniband.multicast.get(&(group, node));
                ports.into_iter().flatten().copied().filter(|&port| port != arrived_by).collect()
            }
        };
        let Some((&last, others)) = ports.split_last() else {
            self.drop_packet(arrived_by, id, DropReason::NoRoute);
            return self.return_credits(arrived_by, vl, len, NONE);
        };
        if !others.is_empty() {
            let share = self.infiniband.shares.insert(ports.len() as u32) as u32;
            self.packets[id as usize].share = share;
        }
        for &port in others {
            if let Some(copy) = self.copy_of(id) {
                self.enqueue(port, copy);
            }
        }
        self.enqueue(last, id);
    }

    fn copy_of(&mut self, id: u32) -> Option<u32> {
        let copy = self.infiniband.copy?;
        let stored = &self.packets[id as usize];
        let (ingress, share) = (stored.ingress, stored.share);
        let packet = stored.packet.copied(copy);
        self.count_copy(packet.len);
        let id = self.packets.insert(Stored { packet, next: 0, ingress, share }) as u32;
        self.start_records(id);
        Some(id)
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
            let Some(packet) = port.dequeue(self.now, &self.packets, vl) else { continue };
            let Stored { ingress, share, .. } = self.packets[packet as usize];
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
        lanes.iter_mut().for_each(Lane::restart);
        for vl in 0..8 {
            self.update_lane(id, vl, false);
        }
        self.tell_all(id);
    }
}

impl<B: Clone> Fabric<B> {
    /// A host joins a multicast group: switches get entries in their multicast forwarding tables,
    /// for a tree whose root is the switch of the first member. Packets to host number
    /// [`MULTICAST`] plus the group reach all members but the sender.
    ///
    /// # Panics
    /// If there is no such host.
    pub fn join_multicast(&mut self, group: u32, host: u32) {
        assert!((host as usize) < self.hosts(), "no host {host}");
        self.infiniband.copy = Some(B::clone);
        let members = self.infiniband.members.entry(group).or_default();
        if !members.contains(&host) {
            members.push(host);
        }
        let members = members.clone();
        self.infiniband.multicast.retain(|(of, _), _| *of != group);
        let far = |id: PortId| self.ports[self.ports[id as usize].peer as usize].node;
        let root = far(self.port_of_host(members[0]));
        // The port of each node that leads to the root.
        let mut toward = vec![None; self.ports_of.len()];
        let mut queue = VecDeque::from([root]);
        while let Some(node) = queue.pop_front() {
            for &id in &self.ports_of[node] {
                let next = far(id);
                if next != root && toward[next].is_none() {
                    toward[next] = Some(self.ports[id as usize].peer);
                    if !self.is_host(next) {
                        queue.push_back(next);
                    }
                }
            }
        }
        let mut entries = Vec::new();
        for member in members {
            let mut port = self.port_of_host(member);
            loop {
                let peer = self.ports[port as usize].peer;
                let node = self.ports[peer as usize].node;
                entries.extend([(self.ports[port as usize].node, port), (node, peer)]);
                match toward[node] {
                    Some(next) => port = next,
                    None => break,
                }
            }
        }
        entries.retain(|(node, _)| !self.is_host(*node));
        for (node, port) in entries {
            let ports = self.infiniband.multicast.entry((group, node)).or_default();
            if !ports.contains(&port) {
                ports.push(port);
            }
        }
    }
}

/// Lanes that service levels lead to, a bit each.
fn lanes_in_use(config: &InfinibandConfig) -> u8 {
    config.sl_to_vl.iter().fold(0, |lanes, vl| lanes | 1 << (vl % 8))
}
