//! A port as packets of data see it: a queue, credits and a receive buffer for each lane.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use feroce_fabric::{Arbiter, CreditLane, VlArbitration};
use feroce_train::Instant;

use super::flight::Flight;
use crate::port::Port;

/// Lanes of data that ports have.
pub(super) const LANES: usize = 8;
/// Bytes of the receive buffer of each lane: as much as credits can speak of.
const BUFFER: u64 = 128 << 10;
/// Nanoseconds of a tick of PortXmitWait: a word of four bytes on a link 4X at 2.5 Gb/s.
const TICK_NS: u64 = 4;
/// For how many lifetimes a lane that has stalled drops its packets (IBTA vol1 18.2.5.4).
const STALLED_LIVES: u64 = 8;

/// Packets that wait to leave by a port on a lane.
#[derive(Debug)]
pub(super) struct Queue<B> {
    pub(super) flights: VecDeque<Flight<B>>,
    /// Since when the first packet waits for credits.
    pub(super) blocked_since: Option<Instant>,
    /// Packets that were dropped one after the other because they had waited for too long.
    pub(super) dropped: u8,
    /// Until when the lane drops all packets.
    pub(super) stalled_until: Option<Instant>,
}

impl<B> Default for Queue<B> {
    fn default() -> Self {
        Self { flights: VecDeque::new(), blocked_since: None, dropped: 0, stalled_until: None }
    }
}

impl<B> Queue<B> {
    /// The lifetime of the first packet is over, and it was dropped. Returns whether the lane has
    /// stalled, so that all others go with it.
    pub(super) fn expire(&mut self, now: Instant, life_ns: u64, stall_count: u8) -> bool {
        self.dropped = self.dropped.saturating_add(1);
        self.blocked_since = None;
        let has_stalled = stall_count > 0 && self.dropped >= stall_count;
        if has_stalled {
            self.stalled_until = Some(now.plus_nanos(life_ns.saturating_mul(STALLED_LIVES)));
            self.dropped = 0;
        }
        has_stalled
    }
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Lanes<B> {
    pub(super) queues: [Queue<B>; LANES],
    pub(super) credits: [CreditLane; LANES],
    pub(super) arbiter: Arbiter,
    /// The link sends so many bits in a second, if an operator has slowed it down.
    pub(super) rate_bps: Option<u64>,
    /// The link is busy until then.
    pub(super) busy_until: Instant,
    /// Since when packets wait and none is sent, as far as it is not counted.
    waits_since: Option<Instant>,
}

impl<B> Lanes<B> {
    pub(super) fn new() -> Self {
        Self {
            queues: core::array::from_fn(|_| Queue::default()),
            credits: [CreditLane::new(BUFFER); LANES],
            arbiter: Arbiter::default(),
            rate_bps: None,
            busy_until: Instant::ZERO,
            waits_since: None,
        }
    }

    /// Whether no packet waits.
    pub(super) fn is_empty(&self) -> bool {
        self.queues.iter().all(|queue| queue.flights.is_empty())
    }

    /// Whether the link is busy.
    pub(super) fn is_busy(&self, now: Instant) -> bool {
        self.rate_bps.is_some() && self.busy_until > now
    }

    /// So many bytes begin to leave. A link that has had something to send all the time begins when
    /// it was free, not when the driver looked.
    pub(super) fn occupy(&mut self, now: Instant, bytes: u64, was_waiting: bool) {
        if let Some(rate) = self.rate_bps {
            let from = if was_waiting { self.busy_until } else { now };
            let ns = bytes.saturating_mul(8_000_000_000) / rate.max(1);
            self.busy_until = from.plus_nanos(ns);
        }
    }

    /// Counts the time during which the port had packets and could send none.
    pub(super) fn count_wait(&mut self, now: Instant, port: &mut Port) {
        if let Some(since) = self.waits_since.take() {
            port.counters.xmit_wait += now.nanos_since(since) / TICK_NS;
        }
        if !self.is_empty() && !self.is_busy(now) {
            self.waits_since = Some(now);
        }
    }
}

/// How the lanes of a port share its link, as the subnet manager has said; in turn, if it has said
/// nothing.
pub(super) fn arbitration(port: &Port) -> VlArbitration {
    let [low, more_low, high, more_high] = &port.vl_arbitration;
    let table = |first: &[feroce_wire::mad::VlWeight], more: &[feroce_wire::mad::VlWeight]| {
        let all = first.iter().chain(more).filter(|entry| entry.weight > 0);
        let known = all.filter(|entry| usize::from(entry.vl) < LANES);
        known.map(|entry| (entry.vl, entry.weight)).collect::<Vec<_>>()
    };
    let high = table(&high.entries, &more_high.entries);
    let low = table(&low.entries, &more_low.entries);
    if high.is_empty() && low.is_empty() {
        return VlArbitration::equal(LANES as u8);
    }
    VlArbitration { high, low, high_limit: port.info.vl_high_limit }
}
