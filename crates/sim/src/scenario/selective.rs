//! Selective repeat between engine and network, as in IRN.
//!
//! Mittal et al., "Revisiting Network Support for RDMA", SIGCOMM 2018. The receiver keeps packets
//! that arrive out of order, and tells the sender which; the sender sends again only what is
//! missing, and has no more on its way than a multiple of what the path holds. RoCEv2 has no packet
//! that says so, and a WRITE has an address in its first packet alone. The engine is therefore left
//! as it is: this layer below it puts packets in order again, and exists in the simulator only.

use std::collections::{BTreeMap, VecDeque};

use feroce_engine::{
    Ack, CongestionConfig, CongestionControl, Loss, create_congestion_control as create,
};
use feroce_fabric::{Packet, Time};
use feroce_train::{Hop, Instant};
use feroce_wire::Psn;

use super::packet::Body;

/// How many times what the path holds may be on its way. A missing packet is noticed after one
/// round trip and arrives after two, and the window does not move before.
const WINDOW_RTTS: u64 = 2;

/// With fewer packets on their way, no later one may tell of a loss: a shorter timer runs.
const FEW: usize = 3;
/// The timers, in round trips: 100 us and 320 us where one takes 24 us, as in the paper.
const SHORT_RTTS: u64 = 4;
const LONG_RTTS: u64 = 13;

/// A packet on its way.
#[derive(Debug)]
struct Sent {
    packet: Packet<Body>,
    /// The receiver keeps it.
    is_kept: bool,
    /// It was sent again since the last timeout.
    is_resent: bool,
}

/// Both ends of a flow.
#[derive(Debug, Default)]
struct Ends {
    /// The oldest packet that is not acknowledged, and those after it.
    base: Psn,
    sent: VecDeque<Sent>,
    /// When the sender stops waiting, and when an event is due for that.
    deadline: Option<Time>,
    event_at: Option<Time>,
    /// The packet that the receiver waits for; `None` before the first was sent.
    expected: Option<Psn>,
    /// Packets that the receiver keeps, by their distance from the first one.
    kept: BTreeMap<u32, Packet<Body>>,
    first: Psn,
}

/// What becomes of a packet at the receiver.
#[derive(Debug)]
pub(super) enum Arrival {
    /// The engine gets it, and then what was kept behind it.
    Next,
    /// It is kept; the sender is told which packet is awaited and which has come.
    Kept(Psn, Psn),
}

/// The layer of all flows.
#[derive(Debug)]
pub(super) struct Selective {
    flows: Vec<Ends>,
    /// Packets to send again, by host.
    again: Vec<VecDeque<(u32, Psn)>>,
    rtt_ps: u64,
}

impl Selective {
    pub(super) fn new(flows: usize, hosts: usize, base_rtt_ns: u64) -> Self {
        Self {
            flows: (0..flows).map(|_| Ends::default()).collect(),
            again: vec![VecDeque::new(); hosts],
            rtt_ps: base_rtt_ns.max(1) * 1000,
        }
    }

    /// The engine sends a request. Returns when an event is wanted, if one is not due already.
    pub(super) fn on_sent(&mut self, now: Time, packet: &Packet<Body>, psn: Psn) -> Option<Time> {
        let ends = &mut self.flows[packet.body.flow as usize];
        if ends.expected.is_none() {
            (ends.base, ends.first, ends.expected) = (psn, psn, Some(psn));
        }
        let sent = Sent { packet: *packet, is_kept: false, is_resent: false };
        let index = psn.diff(ends.base);
        match usize::try_from(index).ok() {
            Some(index) if index == ends.sent.len() => ends.sent.push_back(sent),
            // The engine repeats it, or it is acknowledged already.
            _ => {}
        }
        self.arm(packet.body.flow, now, false)
    }

    /// Starts the timer of a flow; anew if an answer has come.
    fn arm(&mut self, flow: u32, now: Time, is_answered: bool) -> Option<Time> {
        let ends = &mut self.flows[flow as usize];
        if ends.sent.is_empty() {
            ends.deadline = None;
            return None;
        }
        let rtts = if ends.sent.len() < FEW { SHORT_RTTS } else { LONG_RTTS };
        if is_answered || ends.deadline.is_none() {
            ends.deadline = Some(now.plus_ps(rtts * self.rtt_ps));
        }
        match ends.event_at {
            Some(_) => None,
            None => {
                ends.event_at = ends.deadline;
                ends.event_at
            }
        }
    }

    /// A request arrives at the receiver.
    pub(super) fn on_arrival(&mut self, packet: &Packet<Body>, psn: Psn) -> Arrival {
        let ends = &mut self.flows[packet.body.flow as usize];
        match ends.expected {
            Some(expected) if psn.is_after(expected) => {
                ends.kept.insert(psn.since(ends.first), *packet);
                Arrival::Kept(expected, psn)
            }
            Some(expected) if psn == expected => {
                ends.expected = Some(expected.next());
                Arrival::Next
            }
            // A duplicate, which the engine answers again.
            _ => Arrival::Next,
        }
    }

    /// The packet that the receiver waits for, if it is kept.
    pub(super) fn take_next(&mut self, flow: u32) -> Option<Packet<Body>> {
        let ends = &mut self.flows[flow as usize];
        let expected = ends.expected?;
        let packet = ends.kept.remove(&expected.since(ends.first))?;
        ends.expected = Some(expected.next());
        Some(packet)
    }

    /// Everything before `psn` has arrived. Returns when an event is wanted.
    pub(super) fn on_acked(&mut self, now: Time, flow: u32, psn: Psn) -> Option<Time> {
        let ends = &mut self.flows[flow as usize];
        let is_new = ends.base.is_before(psn) && !ends.sent.is_empty();
        while ends.base.is_before(psn) && ends.sent.pop_front().is_some() {
            ends.base = ends.base.next();
        }
        self.arm(flow, now, is_new)
    }

    /// The receiver waits for `expected` and keeps `seen`: what is missing between them is sent
    /// again, once.
    pub(super) fn on_kept(
        &mut self,
        now: Time,
        (flow, host): (u32, u32),
        (expected, seen): (Psn, Psn),
    ) -> Option<Time> {
        let event = self.on_acked(now, flow, expected);
        let ends = &mut self.flows[flow as usize];
        let Ok(index) = usize::try_from(seen.diff(ends.base)) else { return event };
        if let Some(sent) = ends.sent.get_mut(index) {
            sent.is_kept = true;
        }
        let mut psn = ends.base;
        for sent in ends.sent.iter_mut().take(index) {
            if !sent.is_kept && !sent.is_resent {
                sent.is_resent = true;
                self.again[host as usize].push_back((flow, psn));
            }
            psn = psn.next();
        }
        event
    }

    /// An event is due: if the sender has waited long enough, the oldest packet is sent again, and
    /// the others when the receiver asks. Returns when the next event is wanted.
    pub(super) fn on_event(&mut self, now: Time, flow: u32, host: u32) -> Option<Time> {
        let ends = &mut self.flows[flow as usize];
        ends.event_at = None;
        let deadline = ends.deadline?;
        if deadline > now {
            ends.event_at = Some(deadline);
            return Some(deadline);
        }
        ends.deadline = None;
        for (i, sent) in ends.sent.iter_mut().enumerate() {
            sent.is_resent = i == 0;
        }
        if !ends.sent.is_empty() {
            self.again[host as usize].push_back((flow, ends.base));
        }
        self.arm(flow, now, false)
    }

    /// The next packet that a host sends again.
    pub(super) fn poll(&mut self, host: u32) -> Option<Packet<Body>> {
        loop {
            let (flow, psn) = self.again[host as usize].pop_front()?;
            let ends = &self.flows[flow as usize];
            let index = usize::try_from(psn.diff(ends.base)).ok();
            if let Some(sent) = index.and_then(|index| ends.sent.get(index)) {
                return Some(sent.packet);
            }
        }
    }

    /// A flow has ended.
    pub(super) fn end(&mut self, flow: usize) {
        let Ends { expected, event_at, .. } = self.flows[flow];
        self.flows[flow] = Ends { expected, event_at, ..Ends::default() };
    }
}

/// Congestion control with a bound on what is on its way.
pub(super) fn bounded(
    inner: CongestionConfig,
    line_rate_bps: u64,
    base_rtt_ns: u64,
) -> CongestionConfig {
    let bits = u128::from(line_rate_bps) * u128::from(base_rtt_ns) / 1_000_000_000;
    let window = u64::try_from(bits / 8).unwrap_or(u64::MAX).saturating_mul(WINDOW_RTTS);
    CongestionConfig::custom("bounded", move || Box::new(Bounded { window, inner: create(&inner) }))
}

#[derive(Debug)]
struct Bounded {
    window: u64,
    inner: Option<Box<dyn CongestionControl>>,
}

impl CongestionControl for Bounded {
    fn rate_bps(&self) -> f64 {
        // Without an algorithm the port alone says how fast packets go.
        self.inner.as_ref().map_or(f64::INFINITY, |inner| inner.rate_bps())
    }

    fn window(&self) -> u64 {
        self.inner.as_ref().map_or(u64::MAX, |inner| inner.window()).min(self.window)
    }

    fn ack_every(&self) -> u64 {
        self.inner.as_ref().map_or(u64::MAX, |inner| inner.ack_every())
    }

    fn on_sent(&mut self, now: Instant, bytes: u64) {
        if let Some(inner) = &mut self.inner {
            inner.on_sent(now, bytes);
        }
    }

    fn on_ack(&mut self, now: Instant, ack: Ack) {
        if let Some(inner) = &mut self.inner {
            inner.on_ack(now, ack);
        }
    }

    fn on_telemetry(&mut self, now: Instant, hops: &[Hop]) {
        if let Some(inner) = &mut self.inner {
            inner.on_telemetry(now, hops);
        }
    }

    fn on_cnp(&mut self, now: Instant) {
        if let Some(inner) = &mut self.inner {
            inner.on_cnp(now);
        }
    }

    fn on_loss(&mut self, now: Instant, loss: Loss) {
        if let Some(inner) = &mut self.inner {
            inner.on_loss(now, loss);
        }
    }
}
