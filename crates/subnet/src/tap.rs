//! Copies of the packets that pass a port, for captures.

use alloc::collections::{BTreeSet, VecDeque};

use crate::packet::{MadPacket, PortRef};

/// Copies that wait, at most: a capture that cannot keep up misses packets.
const MAX_SEEN: usize = 4096;

/// Which way a packet passes a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// The port sends it.
    Sent,
    /// The port receives it.
    Received,
}

/// A management datagram that has passed a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    /// The port.
    pub at: PortRef,
    /// Which way.
    pub way: Way,
    /// The packet.
    pub packet: MadPacket,
}

/// The ports that are watched, and what has passed them.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    pub(crate) ports: BTreeSet<PortRef>,
    pub(crate) seen: VecDeque<Seen>,
}

impl Watched {
    /// A management datagram passes a port.
    pub(crate) fn management(&mut self, at: PortRef, way: Way, packet: &MadPacket) {
        if self.ports.contains(&at) && self.seen.len() < MAX_SEEN {
            self.seen.push_back(Seen { at, way, packet: packet.clone() });
        }
    }
}
