//! Packets of data at ports: what passes between programs is counted at every port as real packets
//! are, and is dropped where the state of a port or a partition says so. `traffic` moves them.

use feroce_wire::{Lid, Pkey, Pmtu};

use crate::packet::PortRef;
use crate::port::Port;
use crate::subnet::Subnet;
use crate::travel::MAX_HOPS;

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

impl Subnet {
    /// Packets for a port of an adapter were dropped, because it did not take them in time: the
    /// port that would have sent them to it counts them.
    pub fn discard(&mut self, at: PortRef, packets: u64) {
        let sender = self.sender_to(at);
        if let Some(port) = self.port_mut(sender) {
            port.counters.xmit_discards += packets;
        }
    }

    /// How long packets for a port of an adapter may wait at the port that sends them to it, in
    /// nanoseconds; `None`: for ever (IBTA vol1 14.2.5.6, HOQLife).
    pub fn hoq_life_ns(&self, at: PortRef) -> Option<u64> {
        self.port(self.sender_to(at))?.hoq_life_ns()
    }

    /// The port that sends packets to a port of an adapter, or that port itself if another part has
    /// the sender.
    fn sender_to(&self, at: PortRef) -> PortRef {
        let sender = self.port(at).and_then(|port| port.peer);
        sender.filter(|sender| self.is_here(*sender)).unwrap_or(at)
    }

    /// The lane on which packets leave by a port; `None` if they may not, which is counted.
    pub(crate) fn admit(
        &mut self,
        at: PortRef,
        (arrived_by, hops): (u8, u32),
        run: &DataRun,
        count: u32,
    ) -> Option<u8> {
        let is_switch = self.nodes.get(at.node)?.switch.is_some();
        let port = self.port_mut(at)?;
        let packets = u64::from(count);
        let mtu = Pmtu::from_code(port.info.neighbor_mtu).map_or(0, Pmtu::bytes);
        let lane = port.lane(arrived_by, run.sl);
        let passes = port.is_active()
            && port.peer.is_some()
            && hops < MAX_HOPS
            && run.longest <= mtu + MAX_OVERHEAD
            && lane != MANAGEMENT_LANE
            && lane < lanes(port.info.operational_vls);
        if !passes {
            port.counters.xmit_discards += packets;
            return None;
        }
        let enforces = is_switch && port.info.partition_enforcement_outbound;
        if enforces && !port.admits(run.pkey) {
            port.counters.xmit_constraint_errors += packets;
            return None;
        }
        Some(lane)
    }

    /// Packets leave by a port.
    pub(crate) fn count_sent(&mut self, at: PortRef, run: &DataRun, count: u32, words: u64) {
        if let Some(port) = self.port_mut(at) {
            port.counters.sent(u64::from(count), words, run.dlid.is_multicast());
        }
    }

    /// A switch has no port for packets that it received.
    pub(crate) fn count_relay_error(&mut self, at: PortRef, count: u32) {
        if let Some(port) = self.port_mut(at) {
            port.counters.relay_errors += u64::from(count);
        }
    }

    /// Packets arrive at a port. Returns whether the node takes them.
    pub(crate) fn enter(&mut self, at: PortRef, run: &DataRun, count: u32, words: u64) -> bool {
        let is_switch = self.nodes[at.node].switch.is_some();
        let Some(port) = self.port_mut(at).filter(|port| port.is_active()) else {
            return false;
        };
        let packets = u64::from(count);
        port.counters.received(packets, words, run.dlid.is_multicast());
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
        is_admitted && !is_wrong
    }

    /// Whether captures want to see what passes a port.
    pub(crate) fn is_watched(&self, at: PortRef) -> bool {
        self.watched.ports.contains(&at)
    }
}

impl Port {
    /// How long a packet may be the first of a lane of the port, in nanoseconds; `None`: for ever
    /// (IBTA vol1 14.2.5.6, HOQLife).
    pub(crate) fn hoq_life_ns(&self) -> Option<u64> {
        let code = self.info.hoq_life;
        (code <= HOQ_LIFE_MAX).then(|| 4096_u64 << code)
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
