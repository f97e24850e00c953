//! Multicast: a tree of switches for each group, and the copies that they make.
//!
//! On InfiniBand the tree is what a subnet manager writes into the multicast forwarding tables. On
//! Ethernet it is what switches that listen to joins (IGMP snooping) know; a switch without members
//! behind it sends packets to a group towards the root of its tree.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use crate::fabric::Fabric;
use crate::multicast::MULTICAST;
use crate::port::PortId;
use crate::stats::DropReason;
use crate::store::Head;
use crate::topology::NodeId;

impl<B> Fabric<B> {
    /// The multicast forwarding table of a switch: the ports by which packets to a group leave.
    pub fn multicast_forwarding(&self, node: NodeId, group: u32) -> Vec<usize> {
        let ports = self.multicast.tables.get(&(group, node));
        let local = |&id: &PortId| self.ports[id as usize].local;
        ports.map_or_else(Vec::new, |ports| ports.iter().map(local).collect())
    }

    /// The ports by which a packet to host number `to` leaves a switch, if that is a group.
    pub(crate) fn group_ports(&self, node: NodeId, to: u32, by: PortId) -> Option<Vec<PortId>> {
        let ports = self.multicast.tables.get(&(to.checked_sub(MULTICAST)?, node));
        Some(ports.into_iter().flatten().copied().filter(|&port| port != by).collect())
    }

    /// Sends a packet that a switch has taken in by several ports.
    pub(crate) fn fan_out(&mut self, id: u32, last: PortId, others: &[PortId]) {
        if !others.is_empty() {
            let share = self.multicast.shares.insert(others.len() as u32 + 1) as u32;
            self.packets.set_share(id, share);
        }
        for &port in others {
            if let Some(copy) = self.copy_of(id) {
                self.enqueue(port, copy);
            }
        }
        self.enqueue(last, id);
    }

    fn copy_of(&mut self, id: u32) -> Option<u32> {
        let copy = self.multicast.copy?;
        let (ingress, share) = (self.packets[id].ingress, self.packets.share(id));
        let packet = self.packets.copied(id, copy);
        self.count_copy(packet.len);
        let id = self.packets.insert(packet);
        self.packets[id].ingress = ingress;
        self.packets.set_share(id, share);
        self.start_records(id);
        Some(id)
    }

    /// A packet to a group has arrived at an Ethernet switch.
    pub(crate) fn forward_to_group(&mut self, node: NodeId, id: u32) {
        let Head { to, priority, len, ingress, .. } = self.packets[id];
        let ingress = ingress as usize;
        let by = self.ports_of[node][ingress];
        let ports = self.group_ports(node, to, by).unwrap_or_default();
        let Some((&last, others)) = ports.split_last() else {
            self.drop_packet(by, id, DropReason::NoRoute);
            return;
        };
        let Some(buffer) = &mut self.buffers[node] else { return };
        // The buffer of the switch holds the packet once for all its copies.
        if !buffer.admit(ingress, usize::from(priority), u64::from(len)) {
            self.drop_packet(last, id, DropReason::Buffer);
            return;
        }
        self.fan_out(id, last, others);
        self.pause_if_needed(node, ingress, priority);
    }

    /// Links have changed: all groups get new trees.
    pub(crate) fn renew_groups(&mut self) {
        let groups: Vec<u32> = self.multicast.members.keys().copied().collect();
        groups.into_iter().for_each(|group| self.renew_group(group));
    }

    /// Finds the tree of a group: shortest paths to the switch of the first member.
    fn renew_group(&mut self, group: u32) {
        self.multicast.tables.retain(|(of, _), _| *of != group);
        let members = self.multicast.members.get(&group).map_or(&[][..], |members| members);
        let far = |id: PortId| self.ports[self.ports[id as usize].peer as usize].node;
        let ports = members.iter().map(|&member| self.port_of_host(member));
        let Some(first) = ports.clone().find(|&port| self.ports[port as usize].is_up) else {
            return;
        };
        let root = far(first);
        // The port of each node that leads to the root.
        let mut toward = vec![None; self.ports_of.len()];
        let mut queue = VecDeque::from([root]);
        while let Some(node) = queue.pop_front() {
            for &id in self.ports_of[node].iter().filter(|&&id| self.ports[id as usize].is_up) {
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
        for port in ports {
            // A member that cannot be reached has no port that leads to the root.
            let mut way = toward[self.ports[port as usize].node];
            while let Some(port) = way {
                let peer = self.ports[port as usize].peer;
                let node = self.ports[peer as usize].node;
                entries.extend([(self.ports[port as usize].node, port), (node, peer)]);
                way = toward[node];
            }
        }
        entries.retain(|(node, _)| !self.is_host(*node));
        let is_ethernet = self.config.infiniband.is_none();
        for (node, port) in entries {
            let ports = self.multicast.tables.entry((group, node)).or_default();
            if !ports.contains(&port) {
                ports.push(port);
            }
        }
        for (node, toward) in toward.into_iter().enumerate().filter(|_| is_ethernet) {
            if let Some(port) = toward.filter(|_| self.host_number[node].is_none()) {
                self.multicast.tables.entry((group, node)).or_insert_with(|| vec![port]);
            }
        }
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
        self.multicast.copy = Some(B::clone);
        let members = self.multicast.members.entry(group).or_default();
        if !members.contains(&host) {
            members.push(host);
        }
        self.renew_group(group);
    }

    /// A host leaves a multicast group, if it is a member.
    pub fn leave_multicast(&mut self, group: u32, host: u32) {
        if let Some(members) = self.multicast.members.get_mut(&group) {
            members.retain(|member| *member != host);
            if members.is_empty() {
                self.multicast.members.remove(&group);
            }
        }
        self.renew_group(group);
    }
}
