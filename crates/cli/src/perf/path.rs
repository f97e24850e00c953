//! Which way the messages of a measurement took, as the counters of the adapter tell.

use feroce::Context;

/// What an adapter had counted at some time.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Counted {
    /// Packets of queue pairs, sent and received, over UDP and through shared memory.
    packets: u64,
    udp: u64,
    rings: u64,
    /// Through a fabric.
    fabric: u64,
    /// Over RoCEv1.
    frames: u64,
    remote_payload: u64,
    /// TCP connections.
    connections: u64,
}

impl Counted {
    /// What it has counted by now.
    pub(crate) fn of(context: &Context) -> Self {
        let (counters, link) = (context.counters(), context.link_counters());
        let sum = |names: &[&str]| {
            link.iter().filter(|(name, _)| names.contains(name)).map(|(_, count)| count).sum()
        };
        Self {
            packets: counters.sent_pkts + counters.rcvd_pkts,
            udp: sum(&["udp_tx_trains", "udp_rx_trains"]),
            rings: sum(&["shm_tx_trains", "shm_rx_trains"]),
            fabric: sum(&["fabric_tx_trains", "fabric_rx_trains"]),
            frames: sum(&["ether_tx_trains", "ether_rx_packets"]),
            connections: sum(&["tcp_connected", "tcp_accepted"]),
            remote_payload: sum(&["shm_tx_remote_payload", "shm_rx_fetched", "shm_rx_mapped"]),
        }
    }

    /// The way of `messages` messages, if `before` was counted before them and `self` after. None:
    /// the device has no such counters, as those of the kernel's drivers.
    pub(crate) fn way(self, before: Self, messages: u64) -> Option<&'static str> {
        let packets = self.packets - before.packets;
        let (udp, rings) = (self.udp - before.udp, self.rings - before.rings);
        if self.packets == 0 && self.udp == 0 && self.rings == 0 {
            return None;
        }
        if self.connections > 0 {
            return Some("TCP connections");
        }
        if self.fabric > before.fabric {
            return Some("packets through a fabric");
        }
        if self.frames > before.frames {
            return Some("Ethernet frames (RoCEv1)");
        }
        Some(if udp > rings {
            "UDP packets"
        } else if packets < messages / 2 {
            "shared memory, copied without packets"
        } else if self.remote_payload > before.remote_payload {
            "shared memory, payload copied from process to process"
        } else if rings > 0 {
            "shared memory, packets in a ring"
        } else {
            "inside the device"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_tell_the_way() {
        let before = Counted { packets: 10, udp: 5, rings: 5, ..Counted::default() };
        let way = |packets, udp, rings, remote_payload| {
            let now = Counted {
                packets: before.packets + packets,
                udp: before.udp + udp,
                rings: before.rings + rings,
                remote_payload,
                ..before
            };
            now.way(before, 100)
        };
        assert_eq!(way(200, 20, 0, 0), Some("UDP packets"));
        assert_eq!(way(4, 0, 4, 0), Some("shared memory, copied without packets"));
        assert_eq!(way(200, 0, 200, 0), Some("shared memory, packets in a ring"));
        assert_eq!(
            way(200, 0, 200, 100),
            Some("shared memory, payload copied from process to process")
        );
        assert_eq!(way(200, 0, 0, 0), Some("inside the device"));
        let by_frames = Counted { packets: 210, frames: 20, ..before };
        assert_eq!(by_frames.way(before, 100), Some("Ethernet frames (RoCEv1)"));
        let by_fabric = Counted { packets: 210, fabric: 20, ..before };
        assert_eq!(by_fabric.way(before, 100), Some("packets through a fabric"));
        assert_eq!(Counted::default().way(Counted::default(), 100), None);
    }
}
