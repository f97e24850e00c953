//! Destinations and how many bytes may be in flight to each.
//!
//! All queue pairs that talk to the same address share the receive buffers of that host, which are
//! finite, so the bound (the window) is per destination. It grows by a few packets per window of
//! acknowledged bytes, or by 25 % until packets are lost for the first time or round trips become
//! long. When packets are lost it shrinks by 25 %, or by 6 % if it is a single one between others,
//! at most once per round trip. Queue pairs that found the window full wait here and are scheduled
//! when it opens.

use alloc::collections::{BTreeMap, VecDeque};

use feroce_train::{Instant, PortAddr};
use slab::Slab;

use crate::hca::config::WindowConfig;

/// What one packet costs beyond its payload: small packets occupy a receive buffer, too.
pub(crate) const PACKET_COST: u64 = 512;

/// What the window grows by per window of acknowledged bytes, at the least.
const GROWTH: u64 = 8 << 10;

/// The same, while the window is below its initial size. Otherwise a path that loses 1 % of the
/// packets, however few are sent, would be nearly empty, and trains would be short.
const REGROWTH: u64 = 32 << 10;

/// If a round trip takes longer than this, and twice as long as the shortest one, packets wait in a
/// queue on the path: with a larger window they might arrive after the timeout.
const SLOW_NS: u64 = 4_000_000;

/// For how long after a loss a missing answer counts as lost rather than late.
const LOSSY_NS: u64 = 10_000_000;

/// Index of a destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DestinationId(usize);

/// One destination.
#[derive(Debug)]
pub(crate) struct Destination {
    addr: PortAddr,
    users: u32,
    /// Most bytes in flight.
    window: u64,
    /// Bytes in flight now.
    in_flight: u64,
    /// Bytes acknowledged since the window last grew.
    credit: u64,
    /// Packets were lost at some time.
    has_lost: bool,
    /// No second cut before this time.
    cut_again_at: Instant,
    /// A packet is known to have been lost not long before this time.
    lossy_until: Instant,
    /// Smoothed round trip time and its mean deviation; zero until measured.
    srtt_ns: u64,
    rttvar_ns: u64,
    /// The shortest round trip; the maximum value until measured.
    shortest_ns: u64,
    waiters: VecDeque<u32>,
}

impl Destination {
    /// Bytes that may be sent now. At least one packet may always be in flight.
    #[inline]
    pub(crate) fn room(&self) -> u64 {
        if self.in_flight == 0 {
            self.window.max(1)
        } else {
            self.window.saturating_sub(self.in_flight)
        }
    }

    /// The same for a queue pair whose peer has received packets behind a missing one, and keeps
    /// them. They are no longer on the way, although they count as such until the missing one has
    /// come; how many they are, the peer does not say.
    pub(crate) fn room_in_repair(&self) -> u64 {
        (self.window + self.window / 2).saturating_sub(self.in_flight).max(self.room())
    }

    /// Bytes that may be sent after `cost` more are in flight.
    #[inline]
    pub(crate) fn room_after(&self, cost: u64) -> u64 {
        self.window.saturating_sub(self.in_flight + cost)
    }

    /// Whether nothing is in flight.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight == 0
    }

    /// Most bytes in flight.
    #[inline]
    pub(crate) fn window(&self) -> u64 {
        self.window
    }

    /// Counts bytes as sent.
    #[inline]
    pub(crate) fn sent(&mut self, bytes: u64) {
        self.in_flight += bytes;
    }

    /// Bytes are no longer in flight: acknowledged, given up or to be retransmitted.
    #[inline]
    pub(crate) fn release(&mut self, bytes: u64) {
        debug_assert!(self.in_flight >= bytes, "released more than was in flight");
        self.in_flight = self.in_flight.saturating_sub(bytes);
    }

    /// Bytes were acknowledged that were [released](Self::release) before: the window may grow.
    #[inline]
    pub(crate) fn acked(&mut self, bytes: u64, config: &WindowConfig) {
        let was_used = self.in_flight + bytes >= self.window / 2;
        self.credit += bytes;
        if self.credit >= self.window {
            self.credit -= self.window;
            let regrown = (self.window + REGROWTH).min(config.initial);
            // Until the first loss the capacity of the path is unknown, and linear growth would
            // fill a fast path only after a second. A window that is not used is no evidence.
            let is_slow = self.srtt_ns >= SLOW_NS.max(self.shortest_ns.saturating_mul(2));
            let is_searching = was_used && !self.has_lost && !is_slow;
            let growth = if is_searching { (self.window / 4).max(GROWTH) } else { GROWTH };
            self.window = (self.window + growth).max(regrown).min(config.max);
        }
    }

    /// Packets were lost: the window shrinks by 25 %, once per round trip. Halving it would leave a
    /// path nearly empty that loses 1 % of the packets for reasons other than congestion.
    pub(crate) fn lost(&mut self, now: Instant, config: &WindowConfig) {
        self.cut(now, self.window / 4, config);
    }

    /// One packet was lost between others. A full receive buffer loses many in a row, so the window
    /// need not shrink as much.
    pub(crate) fn lost_one(&mut self, now: Instant, config: &WindowConfig) {
        self.cut(now, self.window / 16, config);
    }

    fn cut(&mut self, now: Instant, by: u64, config: &WindowConfig) {
        if now < self.cut_again_at {
            return;
        }
        self.cut_again_at = now.plus_nanos(self.srtt_ns.max(100_000));
        self.window = (self.window - by).max(config.min);
        self.credit = 0;
        self.has_lost = true;
    }

    /// The peer has received packets, but not one that was sent before them.
    pub(crate) fn missed(&mut self, now: Instant) {
        self.lossy_until = now.plus_nanos(LOSSY_NS);
    }

    /// Whether an answer that does not come is more likely lost than late.
    #[inline]
    pub(crate) fn is_lossy(&self, now: Instant) -> bool {
        now < self.lossy_until
    }

    /// A round trip was measured (RFC 6298).
    #[inline]
    pub(crate) fn measured(&mut self, rtt_ns: u64) {
        self.shortest_ns = self.shortest_ns.min(rtt_ns);
        if self.srtt_ns == 0 {
            self.srtt_ns = rtt_ns.max(1);
            self.rttvar_ns = rtt_ns / 2;
            return;
        }
        let error = self.srtt_ns.abs_diff(rtt_ns);
        self.rttvar_ns = (3 * self.rttvar_ns + error) / 4;
        self.srtt_ns = ((7 * self.srtt_ns + rtt_ns) / 8).max(1);
    }

    /// After how long an answer is overdue; `None` until a round trip was measured.
    #[inline]
    pub(crate) fn overdue_ns(&self) -> Option<u64> {
        (self.srtt_ns != 0).then(|| 2 * self.srtt_ns + 4 * self.rttvar_ns)
    }

    /// Whether a queue pair waits for the window to open.
    #[inline]
    pub(crate) fn has_waiters(&self) -> bool {
        !self.waiters.is_empty()
    }

    /// `slot` waits for the window to open.
    pub(crate) fn wait(&mut self, slot: u32) {
        self.waiters.push_back(slot);
    }

    /// `slot` no longer waits.
    pub(crate) fn stop_waiting(&mut self, slot: u32) {
        self.waiters.retain(|&s| s != slot);
    }

    /// The next queue pair to try again, if the window is open.
    #[inline]
    pub(crate) fn wake(&mut self) -> Option<u32> {
        if self.waiters.is_empty() || self.room() == 0 { None } else { self.waiters.pop_front() }
    }
}

/// All destinations of connected queue pairs.
#[derive(Debug, Default)]
pub(crate) struct Destinations {
    by_addr: BTreeMap<PortAddr, usize>,
    destinations: Slab<Destination>,
}

impl Destinations {
    /// The destination with this address; made if need be.
    pub(crate) fn join(&mut self, addr: PortAddr, config: &WindowConfig) -> DestinationId {
        let destinations = &mut self.destinations;
        let index = *self.by_addr.entry(addr).or_insert_with(|| {
            destinations.insert(Destination {
                addr,
                users: 0,
                window: config.initial.min(config.max),
                in_flight: 0,
                credit: 0,
                has_lost: false,
                cut_again_at: Instant::ZERO,
                lossy_until: Instant::ZERO,
                srtt_ns: 0,
                rttvar_ns: 0,
                shortest_ns: u64::MAX,
                waiters: VecDeque::new(),
            })
        });
        destinations[index].users += 1;
        DestinationId(index)
    }

    /// A queue pair no longer talks to it.
    pub(crate) fn leave(&mut self, id: DestinationId) {
        let peer = &mut self.destinations[id.0];
        peer.users -= 1;
        if peer.users == 0 {
            let peer = self.destinations.remove(id.0);
            self.by_addr.remove(&peer.addr);
        }
    }

    /// The smoothed round trip time and the window of a destination.
    pub(crate) fn round_trip_and_window(&self, id: DestinationId) -> (u64, u64) {
        self.destinations.get(id.0).map_or((0, 0), |peer| (peer.srtt_ns, peer.window))
    }

    /// The destination.
    #[inline]
    pub(crate) fn get(&mut self, id: DestinationId) -> &mut Destination {
        &mut self.destinations[id.0]
    }
}
