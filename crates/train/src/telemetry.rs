//! What switches write into packets about their queues (in-band network telemetry).

use crate::Instant;

/// What a switch says about the port by which a packet left.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hop {
    /// When the packet left the queue, by the clock of the switch.
    pub at: Instant,
    /// Bytes that stayed in the queue.
    pub queue_bytes: u64,
    /// Bytes that the port has sent in all.
    pub sent_bytes: u64,
    /// The rate of the link in bits per second.
    pub rate_bps: u64,
}

/// The hops of one packet, first to last.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hops {
    hops: [Hop; Self::MOST],
    len: u8,
}

impl Hops {
    /// Most hops that a packet has room for: a fat tree of three tiers has five. Switches behind
    /// the last one write nothing.
    pub const MOST: usize = 8;

    /// Adds a hop, if there is room.
    #[inline]
    pub fn push(&mut self, hop: Hop) {
        if let Some(slot) = self.hops.get_mut(usize::from(self.len)) {
            *slot = hop;
            self.len += 1;
        }
    }

    /// The hops.
    #[inline]
    pub fn as_slice(&self) -> &[Hop] {
        &self.hops[..usize::from(self.len)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_has_room_for_so_many_hops() {
        let mut hops = Hops::default();
        for i in 0..=Hops::MOST as u64 {
            hops.push(Hop { queue_bytes: i, ..Hop::default() });
        }
        let seen: [u64; Hops::MOST] = core::array::from_fn(|i| hops.as_slice()[i].queue_bytes);
        assert_eq!(hops.as_slice().len(), Hops::MOST);
        assert_eq!(seen, core::array::from_fn(|i| i as u64));
    }
}
