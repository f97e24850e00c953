//! Finds ports that wait for each other in a circle.
//!
//! A port waits if a priority with packets has been paused for long. The switch that paused it has
//! no room, because the packets from that port wait in turn at ports of its own. If those are
//! paused as well, and the chain closes, no packet of the circle will ever move.

use alloc::vec;
use alloc::vec::Vec;

use crate::Time;
use crate::fabric::Fabric;
use crate::port::PortId;
use crate::topology::PortName;

impl<B> Fabric<B> {
    /// A circle of ports that have waited for each other for `ps` picoseconds or longer, each for
    /// the one behind it and the last for the first. `None` if there is none.
    pub fn find_deadlock(&self, now: Time, ps: u64) -> Option<Vec<PortName>> {
        (0..8u8).find_map(|priority| self.find_circle(now, ps, priority))
    }

    fn find_circle(&self, now: Time, ps: u64, priority: u8) -> Option<Vec<PortName>> {
        let waits = |&id: &PortId| {
            let port = &self.ports[id as usize];
            let paused = port.paused[usize::from(priority)];
            port.waiting & port.stopped & (1 << priority) != 0 && now.ps_since(paused.since) >= ps
        };
        // Walk along the ports that wait; a port met twice on one walk closes a circle.
        let mut seen_on = vec![0u32; self.ports.len()];
        for start in (0..self.ports.len() as PortId).filter(waits) {
            let (walk, mut path) = (start + 1, Vec::new());
            let mut stack = vec![(start, 0)];
            while let Some((id, depth)) = stack.pop() {
                path.truncate(depth);
                if let Some(at) = path.iter().position(|&seen| seen == id) {
                    return Some(path[at..].iter().map(|&id| self.name(id)).collect());
                }
                if seen_on[id as usize] == walk {
                    continue;
                }
                seen_on[id as usize] = walk;
                path.push(id);
                let next = self.awaited_by(id, priority).into_iter().filter(waits);
                stack.extend(next.map(|next| (next, depth + 1)));
            }
        }
        None
    }

    /// The ports at which packets wait that came from the port `id`.
    fn awaited_by(&self, id: PortId, priority: u8) -> Vec<PortId> {
        let peer = &self.ports[self.ports[id as usize].peer as usize];
        let holds = |&&egress: &&PortId| {
            let queue = &self.ports[egress as usize].queues[usize::from(priority)];
            queue.iter(&self.packets).any(|head| head.ingress as usize == peer.local)
        };
        self.ports_of[peer.node].iter().filter(holds).copied().collect()
    }

    fn name(&self, id: PortId) -> PortName {
        let port = &self.ports[id as usize];
        PortName { node: port.node, port: port.local }
    }
}
