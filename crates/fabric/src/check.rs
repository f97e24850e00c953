//! What must hold in every fabric at every time.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;

use crate::fabric::Fabric;
use crate::port::PortId;
use crate::store::NONE;

impl<B> Fabric<B> {
    /// Says what does not hold, if something does not: every byte that was sent or copied is
    /// delivered, dropped or inside; every drop counts at one port; buffers hold what waits at
    /// their switches and no more than they have room for; frames arrive in the order in which
    /// they were sent. For tests: it looks at every packet.
    pub fn check(&self) -> Result<(), String> {
        let totals = self.totals();
        let (entered, left) = (
            totals.injected.bytes + totals.copied.bytes,
            totals.delivered.bytes + totals.dropped_all().bytes,
        );
        let inside = self.bytes_inside();
        if entered != left + inside {
            return Err(format!("{entered} bytes entered, {left} left, {inside} are inside"));
        }
        let at_ports: u64 = self.ports.iter().map(|port| port.stats.dropped_all().packets).sum();
        let dropped = totals.dropped_all().packets;
        if at_ports != dropped {
            return Err(format!("{dropped} packets were dropped, but {at_ports} at ports"));
        }
        for (node, ports) in self.ports_of.iter().enumerate() {
            let queued = self.buffered_at(ports);
            match &self.buffers[node] {
                Some(buffer) if self.config.infiniband.is_none() => {
                    let most = self.config.buffer.bytes;
                    if buffer.used != queued || queued > most {
                        let used = buffer.used;
                        return Err(format!(
                            "switch {node}: {queued} bytes wait, its buffer counts {used} of {most}"
                        ));
                    }
                }
                _ => {}
            }
        }
        for (id, port) in self.ports.iter().enumerate() {
            let (node, local) = (port.node, port.local);
            if port.queued != self.queued_at(id as PortId) {
                return Err(format!("port {node}:{local} miscounts what waits"));
            }
            if !port.in_flight.iter().is_sorted_by_key(|(at, _)| *at) {
                return Err(format!("port {node}:{local}: a frame overtakes another"));
            }
        }
        self.check_lanes()
    }

    /// Bytes that wait at ports of a switch, where the copies of a multicast share a buffer.
    fn buffered_at(&self, ports: &[PortId]) -> u64 {
        let mut counted = BTreeSet::new();
        let queues = ports.iter().flat_map(|&id| &self.ports[id as usize].queues);
        let packets = queues.flat_map(|queue| queue.ids(&self.packets));
        let is_first = |&id: &u32| match self.packets.share(id) {
            NONE => true,
            share => counted.insert(share),
        };
        packets.filter(is_first).map(|id| u64::from(self.packets[id].len)).sum()
    }

    fn queued_at(&self, id: PortId) -> u64 {
        let queues = self.ports[id as usize].queues.iter();
        let packets = queues.flat_map(|queue| queue.iter(&self.packets));
        packets.map(|head| u64::from(head.len)).sum()
    }

    fn check_lanes(&self) -> Result<(), String> {
        let Some(config) = &self.config.infiniband else { return Ok(()) };
        for (id, port) in self.ports.iter().enumerate() {
            if self.infiniband.management[id] > config.management_buffer {
                return Err(format!("port {}:{}: VL15 holds too much", port.node, port.local));
            }
            for (vl, lane) in self.infiniband.lanes[id].iter().enumerate() {
                if u64::from(lane.used()) * 64 > config.lane_buffer {
                    let (node, local) = (port.node, port.local);
                    return Err(format!("port {node}:{local}: lane {vl} holds too much"));
                }
            }
        }
        Ok(())
    }
}
