//! Faults that make packets arrive later: rate limit, delay and reordering.

use std::collections::VecDeque;

use fastrand::Rng;
use feroce_train::{Instant, RxMeta, RxTrain};

use super::FaultConfig;
use crate::LinkCounters;
use crate::icrc::part;

/// How long a packet waits to be overtaken when nothing follows it: shorter than the 2 ms after
/// which its sender would probe for it, so that it is late and not lost.
const PATIENCE_NS: u64 = 1_000_000;
/// Most bytes that wait; what comes on top is lost. 5 ms of a link of 100 Gb/s.
const MAX_HELD: usize = 64 << 20;
/// Bytes of IP and UDP headers, which the rate counts.
const V4_HEADERS: usize = 28;
const V6_HEADERS: usize = 48;

/// Packets kept for later.
#[derive(Debug)]
struct Kept {
    meta: RxMeta,
    stride: usize,
    trailer: usize,
    bytes: Vec<u8>,
    /// To be overtaken when its time has come.
    is_late: bool,
    /// When its time has come.
    due: Instant,
}

impl Kept {
    fn new(train: &RxTrain<'_>, is_late: bool, due: Instant) -> Self {
        let RxTrain { meta, bytes, stride, trailer, remote: _ } = *train;
        Self { meta, stride, trailer, bytes: bytes.to_vec(), is_late, due }
    }

    fn as_train(&self) -> RxTrain<'_> {
        let Self { meta, stride, trailer, ref bytes, .. } = *self;
        RxTrain { meta, bytes, stride, trailer, remote: None }
    }
}

/// Rate, delay and order.
#[derive(Debug)]
pub(super) struct Shaper {
    delay_ns: u64,
    jitter_ns: u64,
    rate_bps: u64,
    queue_bytes: u64,
    distance: u32,
    rng: Rng,
    /// When the rate-limited line has sent all packets that wait for it.
    line_free: Instant,
    /// On their way, in order.
    held: VecDeque<Kept>,
    held_bytes: usize,
    /// Packets that others overtake, and how many still have to.
    late: Vec<(u32, Kept)>,
    /// Places of packets that had no room, among those of the last call of [`Shaper::enter`].
    pub(super) refused: Vec<usize>,
    counters: Counters,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    delayed: u64,
    reordered: u64,
    overflowed: u64,
}

impl Shaper {
    pub(super) fn new(config: &FaultConfig) -> Self {
        Self {
            delay_ns: config.delay_ns,
            jitter_ns: config.jitter_ns,
            rate_bps: config.rate_bps,
            queue_bytes: config.queue_bytes,
            distance: config.reorder_distance,
            // The other faults use the random stream of the seed itself, so this is another one.
            rng: Rng::with_seed(config.seed ^ 0x6a69_7474_6572),
            line_free: Instant::ZERO,
            held: VecDeque::new(),
            held_bytes: 0,
            late: Vec::new(),
            refused: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// Other faults, for packets that arrive from now on.
    pub(super) fn follow(&mut self, config: &FaultConfig) {
        let new = Self::new(config);
        let (held, late) = (std::mem::take(&mut self.held), std::mem::take(&mut self.late));
        let (held_bytes, counters) = (self.held_bytes, self.counters);
        *self = Self { held, held_bytes, late, counters, ..new };
    }

    /// Whether no packet waits.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.late.is_empty()
    }

    /// Takes packets that arrived: passes them on now, or keeps them.
    pub(super) fn enter(
        &mut self,
        now: Instant,
        train: &RxTrain<'_>,
        is_late: bool,
        sink: &mut dyn FnMut(&RxTrain<'_>),
    ) {
        let is_prompt = (self.delay_ns, self.jitter_ns, self.rate_bps) == (0, 0, 0);
        // Packets that a delay has held since before it was switched off stay in front.
        if is_prompt && self.held.is_empty() {
            return self.leave(now, train, is_late, sink);
        }
        if (self.jitter_ns, self.rate_bps) == (0, 0) {
            return self.hold(now.plus_nanos(self.delay_ns), train, is_late);
        }
        // Each packet has a time of its own.
        for (place, packet) in train.bytes.chunks(train.stride.max(1)).enumerate() {
            let packet = RxTrain { bytes: packet, ..*train };
            let Some(sent) = self.line(now, &packet) else {
                self.counters.overflowed += 1;
                self.refused.push(place);
                continue;
            };
            let earliest = self.delay_ns.saturating_sub(self.jitter_ns);
            let latest = self.delay_ns.saturating_add(self.jitter_ns);
            let takes = self.rng.u64(earliest..=latest);
            self.hold(sent.plus_nanos(takes), &packet, is_late);
        }
    }

    /// When a packet leaves the line of limited rate; `None` if there is no room to wait.
    fn line(&mut self, now: Instant, packet: &RxTrain<'_>) -> Option<Instant> {
        if self.rate_bps == 0 {
            return Some(now);
        }
        let nanos = |bytes: u64| u128::from(bytes) * 8_000_000_000 / u128::from(self.rate_bps);
        let waits = u128::from(self.line_free.nanos_since(now));
        if waits > nanos(self.queue_bytes) {
            return None;
        }
        let v4 = packet.meta.dst.gid.as_ipv4().is_some();
        let len = packet.bytes.len() + if v4 { V4_HEADERS } else { V6_HEADERS };
        let takes = u64::try_from(nanos(len as u64)).unwrap_or(u64::MAX);
        self.line_free = self.line_free.max(now).plus_nanos(takes);
        Some(self.line_free)
    }

    /// Keeps packets until `due`, but never passes them on before those that came earlier.
    fn hold(&mut self, due: Instant, train: &RxTrain<'_>, is_late: bool) {
        let packets = train.bytes.len().div_ceil(train.stride.max(1)) as u64;
        if self.held_bytes + train.bytes.len() > MAX_HELD {
            self.counters.overflowed += packets;
            return;
        }
        self.counters.delayed += packets;
        self.held_bytes += train.bytes.len();
        let due = self.held.back().map_or(due, |last| due.max(last.due));
        self.held.push_back(Kept::new(train, is_late, due));
    }

    /// Passes on what is due, at most about `budget` trains, and returns how many it took.
    pub(super) fn release(
        &mut self,
        now: Instant,
        budget: usize,
        sink: &mut dyn FnMut(&RxTrain<'_>),
    ) -> usize {
        let mut taken = 0;
        while taken < budget
            && let Some(kept) = self.held.pop_front_if(|kept| kept.due <= now)
        {
            self.held_bytes -= kept.bytes.len();
            self.leave(now, &kept.as_train(), kept.is_late, sink);
            taken += 1;
        }
        while let Some(i) = self.late.iter().position(|(_, kept)| kept.due <= now) {
            let (_, kept) = self.late.remove(i);
            self.pass(&kept.as_train(), sink);
            taken += 1;
        }
        taken
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let late = self.late.iter().map(|(_, kept)| kept.due);
        late.chain(self.held.front().map(|kept| kept.due)).min()
    }

    /// Passes packets on, unless others are to overtake them.
    fn leave(
        &mut self,
        now: Instant,
        train: &RxTrain<'_>,
        is_late: bool,
        sink: &mut dyn FnMut(&RxTrain<'_>),
    ) {
        if is_late {
            self.counters.reordered += 1;
            let kept = Kept::new(train, false, now.plus_nanos(PATIENCE_NS));
            self.late.push((self.distance, kept));
        } else {
            self.pass(train, sink);
        }
    }

    /// Passes packets on, and after the right number of them those that were to be overtaken.
    fn pass(&mut self, train: &RxTrain<'_>, sink: &mut dyn FnMut(&RxTrain<'_>)) {
        let (mut at, len, stride) = (0, train.bytes.len(), train.stride.max(1));
        while at < len {
            let left = u32::try_from((len - at).div_ceil(stride)).unwrap_or(u32::MAX);
            let next = self.late.iter().map(|(left, _)| *left).min().unwrap_or(left);
            let n = left.min(next.max(1));
            let end = len.min(at + n as usize * stride);
            sink(&part(train, at..end));
            at = end;
            self.overtaken_by(n);
            while let Some(i) = self.late.iter().position(|(left, _)| *left == 0) {
                let (_, kept) = self.late.remove(i);
                sink(&kept.as_train());
                self.overtaken_by(1);
            }
        }
    }

    fn overtaken_by(&mut self, n: u32) {
        for (left, _) in &mut self.late {
            *left = left.saturating_sub(n);
        }
    }

    pub(super) fn add_counters(&self, counters: &mut LinkCounters) {
        let Counters { delayed, reordered, overflowed } = self.counters;
        counters.extend([
            ("fault_delayed", delayed),
            ("fault_reordered", reordered),
            ("fault_overflowed", overflowed),
        ]);
    }
}
