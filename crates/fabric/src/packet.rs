//! Packets as the fabric sees them.

use feroce_train::Ecn;

/// What tells flows apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct FlowKey {
    /// Source address.
    pub src: u32,
    /// Destination address.
    pub dst: u32,
    /// Source port, and the destination port in the upper half.
    pub ports: u32,
}

impl FlowKey {
    /// The key of packets in the other direction.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self { src: self.dst, dst: self.src, ports: self.ports.rotate_left(16) }
    }

    /// MurmurHash3 (32 bits) of the twelve bytes, in the order of a machine with the least
    /// significant byte first. ns-3's HPCC uses the same, so that its flows take the same paths.
    #[inline]
    pub fn hash(&self, seed: u32) -> u32 {
        let mut hash = seed;
        for word in [self.src, self.dst, self.ports] {
            let mixed = word.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593);
            hash = (hash ^ mixed).rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64);
        }
        hash ^= 12;
        hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
        hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
        hash ^ (hash >> 16)
    }
}

/// A packet. The fabric does not look into `body`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<B> {
    /// The number of the host that it goes to.
    pub to: u32,
    /// Bytes that it takes on a link, everything included.
    pub len: u32,
    /// Priority, 0 to 7; or [`MANAGEMENT`](crate::MANAGEMENT) on InfiniBand.
    pub priority: u8,
    /// Whether switches may mark it, and whether one did.
    pub ecn: Ecn,
    /// What tells its flow from others.
    pub key: FlowKey,
    /// What it carries.
    pub body: B,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_murmur3() {
        assert_eq!(FlowKey::default().hash(0), 0xd941_144b);
        let key = FlowKey { src: 0x0302_0100, dst: 0x0706_0504, ports: 0x0b0a_0908 };
        assert_eq!(key.hash(7), 0x7924_f78e);
    }
}
