//! Packets of data: they follow the tables of switches to the ports of adapters.
//!
//! A packet is where it goes as soon as it is sent: links have neither a delay nor a rate, and no
//! packet waits in a switch. What passes between programs is counted at every port as real packets
//! are, and is dropped where the state of a port, a table or a partition says so.

use alloc::vec::Vec;

use feroce_wire::{Lid, Pkey, Pmtu};

use crate::packet::PortRef;
use crate::subnet::Subnet;
use crate::switch::Forward;
use crate::tap::Way;
use crate::travel::{MAX_HOPS, MAX_UNDER_WAY};

/// Bytes of a packet beside its payload, at most, from the local route header to the ICRC.
const MAX_OVERHEAD: usize = 124;
/// The lane of subnet management. A service level that leads to it leads nowhere.
const MANAGEMENT_LANE: u8 = 15;
/// The longest life of a packet at the head of a queue; codes above it are for ever.
const HOQ_LIFE_MAX: u8 = 19;

/// Packets one behind the other with equal headers below the transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataRun {
    /// Source.
    pub slid: Lid,
    /// Destination.
    pub dlid: Lid,
    /// Service level.
    pub sl: u8,
    /// Partition.
    pub pkey: Pkey,
    /// Number of packets.
    pub packets: u32,
    /// Words of four bytes of all packets, from the local route header to the ICRC.
    pub words: u64,
    /// Bytes of the longest packet, from the local route header to the ICRC.
    pub longest: usize,
}

/// A run on its way: at a port, having arrived by it or about to leave by it.
#[derive(Clone, Copy)]
struct Leg {
    at: PortRef,
    /// The port by which a switch received the run; 0 at an adapter that sends it.
    arrived_by: u8,
    hops: u32,
}

impl Subnet {
    /// A program behind a port sends packets. Returns the ports of adapters that they reach.
    pub fn carry(&mut self, from: PortRef, run: &DataRun) -> Vec<PortRef> {
        let mut reached = Vec::new();
        let Some(port) = self.port_mut(from) else {
            return reached;
        };
        // An adapter writes a LID of the port into every packet.
        if !port.is_active() || !port.has_lid(run.slid) {
            port.counters.xmit_discards += u64::from(run.packets);
            return reached;
        }
        if port.has_lid(run.dlid) {
            // The adapter returns it by itself.
            reached.push(from);
            return reached;
        }
        let mut legs = Vec::from([Leg { at: from, arrived_by: 0, hops: 0 }]);
        while let Some(leg) = legs.pop() {
            let Some(at) = self.leave(leg, run) else {
                continue;
            };
            if !self.enter(at, run) {
                continue;
            }
            let Some(switch) = &self.nodes[at.node].switch else {
                reached.push(at);
                continue;
            };
            let next =
                |port| Leg { at: PortRef { port, ..at }, arrived_by: at.port, hops: leg.hops + 1 };
            match switch.forward(run.dlid, at.port) {
                // A switch has no queue pairs but those of its agents.
                Ok(Forward::One(0)) | Err(_) => {
                    let count = u64::from(run.packets);
                    self.nodes[at.node].ports[usize::from(at.port)].counters.relay_errors += count;
                }
                Ok(Forward::One(port)) => legs.push(next(port)),
                Ok(Forward::Many(ports)) => {
                    let room = (MAX_UNDER_WAY * self.nodes.len()).saturating_sub(legs.len());
                    let ports = ports.into_iter().filter(|&port| port != 0);
                    legs.extend(ports.take(room).map(next));
                }
            }
        }
        reached
    }

    /// Packets for a port of an adapter were dropped, because it did not take them in time: the
    /// port that would have sent them to it counts them.
    pub fn discard(&mut self, at: PortRef, packets: u64) {
        let sender = self.port(at).and_then(|port| port.peer).unwrap_or(at);
        if let Some(port) = self.port_mut(sender) {
            port.counters.xmit_discards += packets;
        }
    }

    /// How long packets for a port of an adapter may wait at the port that sends them to it, in
    /// nanoseconds; `None`: for ever (IBTA vol1 14.2.5.6, HOQLife).
    pub fn hoq_life_ns(&self, at: PortRef) -> Option<u64> {
        let sender = self.port(at).and_then(|port| port.peer).unwrap_or(at);
        let code = self.port(sender)?.info.hoq_life;
        (code <= HOQ_LIFE_MAX).then(|| 4096_u64 << code)
    }

    /// Packets leave by a port. Returns where they arrive.
    fn leave(&mut self, Leg { at, arrived_by, hops }: Leg, run: &DataRun) -> Option<PortRef> {
        let is_switch = self.nodes.get(at.node)?.switch.is_some();
        let port = self.port_mut(at)?;
        let packets = u64::from(run.packets);
        let mtu = Pmtu::from_code(port.info.neighbor_mtu).map_or(0, Pmtu::bytes);
        let lane = port.lane(arrived_by, run.sl);
        let passes = port.is_active()
            && hops < MAX_HOPS
            && run.longest <= mtu + MAX_OVERHEAD
            && lane != MANAGEMENT_LANE
            && lane < lanes(port.info.operational_vls);
        let Some(peer) = port.peer.filter(|_| passes) else {
            port.counters.xmit_discards += packets;
            return None;
        };
        let enforces = is_switch && port.info.partition_enforcement_outbound;
        if enforces && !port.admits(run.pkey) {
            port.counters.xmit_constraint_errors += packets;
            return None;
        }
        port.counters.sent(packets, run.words, run.dlid.is_multicast());
        self.watched.data(at, Way::Sent);
        Some(peer)
    }

    /// Packets arrive at a port. Returns whether the node takes them.
    fn enter(&mut self, at: PortRef, run: &DataRun) -> bool {
        let is_switch = self.nodes[at.node].switch.is_some();
        let Some(port) = self.port_mut(at).filter(|port| port.is_active()) else {
            return false;
        };
        let packets = u64::from(run.packets);
        port.counters.received(packets, run.words, run.dlid.is_multicast());
        let enforces = is_switch && port.info.partition_enforcement_inbound;
        let is_admitted = !enforces || port.admits(run.pkey);
        if !is_admitted {
            port.counters.rcv_constraint_errors += packets;
        }
        let is_wrong = !is_switch && !run.dlid.is_multicast() && !port.has_lid(run.dlid);
        if is_wrong {
            // An adapter does not forward.
            port.counters.rcv_errors += packets;
        }
        self.watched.data(at, Way::Received);
        is_admitted && !is_wrong
    }
}

/// Lanes of data that a code stands for.
const fn lanes(code: u8) -> u8 {
    match code {
        1 => 1,
        2 => 2,
        3 => 4,
        4 => 8,
        5 => 15,
        _ => 0,
    }
}
