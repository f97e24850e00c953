//! What happened at a port, and to the packets.

use crate::Time;

/// Why a packet was dropped.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum DropReason {
    /// The buffer of the switch has no room.
    Buffer,
    /// The link lost it.
    Loss,
    /// The link is down.
    LinkDown,
    /// No path leads to its host.
    NoRoute,
    /// The watchdog discards what a pause has held for too long.
    Watchdog,
    /// It was the first of its lane for too long (InfiniBand).
    Lifetime,
    /// It was a management packet, and VL15 had no room (InfiniBand).
    Management,
}

impl DropReason {
    /// Every reason.
    pub const ALL: [Self; 7] = [
        Self::Buffer,
        Self::Loss,
        Self::LinkDown,
        Self::NoRoute,
        Self::Watchdog,
        Self::Lifetime,
        Self::Management,
    ];
}

/// Packets and bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Count {
    pub(crate) fn add(&mut self, len: u32) {
        self.packets += 1;
        self.bytes += u64::from(len);
    }
}

/// Packets that were dropped, by reason.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Drops([Count; DropReason::ALL.len()]);

impl Drops {
    fn add(&mut self, reason: DropReason, len: u32) {
        self.0[reason as usize].add(len);
    }

    fn of(&self, reason: DropReason) -> Count {
        self.0[reason as usize]
    }

    fn all(&self) -> Count {
        self.0.iter().fold(Count::default(), |sum, count| Count {
            packets: sum.packets + count.packets,
            bytes: sum.bytes + count.bytes,
        })
    }
}

/// What happened at a port.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PortStats {
    /// Packets that left.
    pub sent: Count,
    /// Packets that were marked as they left.
    pub marked: u64,
    /// Pause frames that arrived and stopped a priority that was not stopped.
    pub pauses: u64,
    /// Picoseconds during which a priority was stopped, all priorities together.
    pub paused_ps: u64,
    /// The most bytes that waited.
    pub queue_max: u64,
    dropped: Drops,
    /// Bytes times picoseconds that they waited, up to `queue_at`.
    queue_area: u128,
    queue_at: Time,
    queue_bytes: u64,
}

impl PortStats {
    pub(crate) fn queue_changes(&mut self, now: Time, from: u64, to: u64) {
        self.queue_area += u128::from(from) * u128::from(now.ps_since(self.queue_at));
        (self.queue_at, self.queue_bytes) = (now, to);
        self.queue_max = self.queue_max.max(to);
    }

    /// Packets that were dropped here for a reason. A packet that found no room, was lost on the
    /// link or was discarded counts at the port that would have sent it or has sent it; one without
    /// a route, and in an InfiniBand fabric one without room, at the port that it arrived by.
    pub fn dropped(&self, reason: DropReason) -> Count {
        self.dropped.of(reason)
    }

    /// Packets that were dropped here.
    pub fn dropped_all(&self) -> Count {
        self.dropped.all()
    }

    pub(crate) fn drop(&mut self, reason: DropReason, len: u32) {
        self.dropped.add(reason, len);
    }

    /// Bytes that wait now.
    pub fn queued(&self) -> u64 {
        self.queue_bytes
    }

    /// Bytes that waited on average from `from`, before which none did, to `now`.
    pub fn queue_mean(&self, from: Time, now: Time) -> f64 {
        let rest = u128::from(self.queue_bytes) * u128::from(now.ps_since(self.queue_at));
        (self.queue_area + rest) as f64 / now.ps_since(from).max(1) as f64
    }
}

/// What happened to all packets.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Packets that hosts sent.
    pub injected: Count,
    /// Copies that switches made of multicasts.
    pub copied: Count,
    /// Packets that reached their hosts.
    pub delivered: Count,
    dropped: Drops,
    /// Packets that passed a link.
    pub hops: u64,
    /// Events that the fabric handled.
    pub events: u64,
}

impl Totals {
    /// Packets that were dropped for a reason.
    pub fn dropped(&self, reason: DropReason) -> Count {
        self.dropped.of(reason)
    }

    /// Packets that were dropped.
    pub fn dropped_all(&self) -> Count {
        self.dropped.all()
    }

    pub(crate) fn drop(&mut self, reason: DropReason, len: u32) {
        self.dropped.add(reason, len);
    }
}
