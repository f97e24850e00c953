//! The paths that packets take.

use alloc::vec::Vec;

use crate::Rate;
use crate::fabric::Fabric;
use crate::packet::FlowKey;
use crate::topology::PortName;

impl<B> Fabric<B> {
    /// Rate and delay of every link on the first of the shortest paths between two hosts.
    ///
    /// # Panics
    /// If there are no such hosts.
    pub fn path(&self, from: u32, to: u32) -> Vec<(Rate, u64)> {
        let mut at = self.host_port[from as usize];
        let mut links = Vec::new();
        loop {
            let port = &self.ports[at as usize];
            links.push((port.rate, port.delay_ps));
            let next = self.ports[port.peer as usize].node;
            match self.routes.choices(next, to) {
                [first, ..] if self.host_number[next] != Some(to) => at = *first,
                _ => return links,
            }
        }
    }

    /// The ports by which the packets of a flow leave nodes on their way, as links are now. Where
    /// switches choose packet by packet, one of the paths. `None`: no path leads there.
    ///
    /// # Panics
    /// If there are no such hosts.
    pub fn ports_on_path(&self, from: u32, to: u32, key: &FlowKey) -> Option<Vec<PortName>> {
        let mut at = self.host_port[from as usize];
        let mut names = Vec::new();
        loop {
            let port = &self.ports[at as usize];
            names.push(PortName { node: port.node, port: port.local });
            let next = self.ports[port.peer as usize].node;
            if !port.is_up || names.len() > self.topology.nodes().len() {
                return None;
            }
            if self.host_number[next] == Some(to) {
                return Some(names);
            }
            at = match self.routes.choices(next, to) {
                [] => return None,
                some => some[key.hash(next as u32) as usize % some.len()],
            };
        }
    }
}
