//! Which shard of a host receives a packet, as the kernel chooses one of several sockets at an
//! address.

use std::collections::BTreeMap;

use feroce_train::Instant;

use crate::dice::Dice;

/// How packets are divided among the shards of a host.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Division {
    /// By the queue pair, so that each arrives at its own shard.
    ByQueuePair,
    /// By the sender, as kernels do that take no program which looks at the queue pair.
    BySender,
    /// By the queue pair; with this probability a batch arrives at any shard.
    Sometimes(f64),
}

/// See the module documentation.
///
/// A shard passes packets of another on through a ring, which keeps their order. Packets that
/// arrive at their own shard may overtake those in a ring.
#[derive(Debug)]
pub struct Steering {
    division: Division,
    dice: Dice,
    /// When the last packet in the ring from one shard to another arrives there.
    rings: BTreeMap<(usize, usize), Instant>,
    /// How many packets were put into rings.
    pub(super) packets: u64,
}

/// Longest time that a packet waits in a ring.
const RING_NS: u64 = 3_000;

impl Steering {
    /// Decides what `division` leaves open with `dice`.
    pub fn new(division: Division, dice: Dice) -> Self {
        Self { division, dice, rings: BTreeMap::new(), packets: 0 }
    }

    /// Which of `shards` receives packets of the port `from` whose own shard is `home`.
    pub(super) fn arrives_at(&mut self, from: usize, home: Option<usize>, shards: usize) -> usize {
        match (self.division, shards) {
            (_, 1) => 0,
            (Division::BySender, _) => from % shards,
            (Division::Sometimes(p), _) if self.dice.chance(p) => self.dice.size(0..=shards - 1),
            _ => home.unwrap_or(0),
        }
    }

    /// When packets that one shard puts into the ring to another arrive there.
    pub(super) fn passed_on(&mut self, now: Instant, from: usize, to: usize) -> Instant {
        let at = now.plus_nanos(self.dice.range(100..=RING_NS));
        let last = self.rings.entry((from, to)).or_insert(at);
        *last = at.max(*last);
        *last
    }
}
