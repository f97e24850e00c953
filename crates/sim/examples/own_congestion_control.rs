//! A congestion control algorithm of one's own, in the simulator: additive increase, multiplicative
//! decrease, by what the round trip says about the queue.
//!
//! `cargo run --release -p feroce-sim --example own_congestion_control`
//!
//! The same type runs on the wire: `Settings::engine.congestion` of `feroce` takes it as well.

use feroce_engine::{Ack, Config, CongestionConfig, CongestionControl, Loss};
use feroce_fabric::{FlowKey, Rate, Time, Topology};
use feroce_sim::scenario::{Flow, Run, RunError, Scenario};
use feroce_train::Instant;

const GBPS: f64 = 100.0;
/// A packet and its answer in the empty network below take 4.2 us.
const BASE_RTT_NS: u64 = 5000;
/// Bytes that a packet takes on the link, and those that are not from BTH to padding.
const PACKET: u64 = 1024 + 82;
const AROUND: u32 = 70;

/// Grows by a packet per round trip while the queue is short, and shrinks by a fifth if it is long.
#[derive(Debug)]
struct Aimd {
    window: u64,
    /// No second decrease before this time.
    again_at: Instant,
}

impl CongestionControl for Aimd {
    /// Packets go back to back: the window alone decides.
    fn rate_bps(&self) -> f64 {
        GBPS * 1e9
    }

    fn window(&self) -> u64 {
        self.window
    }

    fn on_ack(&mut self, now: Instant, ack: Ack) {
        match ack.rtt_ns {
            Some(rtt_ns) if rtt_ns > 2 * BASE_RTT_NS => self.shrink(now, rtt_ns),
            _ => self.window += PACKET * ack.bytes / self.window,
        }
    }

    fn on_loss(&mut self, now: Instant, _: Loss) {
        self.shrink(now, BASE_RTT_NS);
    }
}

impl Aimd {
    fn shrink(&mut self, now: Instant, rtt_ns: u64) {
        if now >= self.again_at {
            self.window = (self.window - self.window / 5).max(PACKET);
            self.again_at = now.plus_nanos(rtt_ns);
        }
    }
}

/// Four flows to one host: how long each takes, in milliseconds, and the longest queue in bytes.
pub(crate) fn incast(congestion: CongestionConfig) -> Result<(Vec<f64>, u64), RunError> {
    let flow = |src| Flow {
        src,
        dst: 4,
        priority: 3,
        bytes: 10_000_000,
        start: Time::from_ns(0),
        key: FlowKey { src, dst: 4, ports: 0 },
    };
    let engine = Config { congestion, packet_overhead: AROUND, ..Config::default() };
    let topology = Topology::star(5, Rate::from_gbps(GBPS as u64), 1_000_000);
    let flows = (0..4).map(flow).collect();
    let scenario = Scenario { engine, ..Scenario::new(topology, flows) };
    let outcome = Run::new(scenario, 1)?.run();
    let ps = outcome.flows.iter().filter_map(|flow| flow.duration_ps());
    let longest = outcome.ports.iter().map(|(_, port)| port.queue_max).max();
    Ok((ps.map(|ps| ps as f64 / 1e9).collect(), longest.unwrap_or(0)))
}

pub(crate) fn own() -> CongestionConfig {
    let window = (GBPS * BASE_RTT_NS as f64 / 8.0) as u64;
    CongestionConfig::custom("aimd", move || Box::new(Aimd { window, again_at: Instant::ZERO }))
}

#[cfg_attr(test, expect(dead_code, reason = "tests call the functions above"))]
fn main() -> Result<(), RunError> {
    for (name, congestion) in [("none", CongestionConfig::None), ("own", own())] {
        let (ms, longest) = incast(congestion)?;
        println!("{name:<5} ms {ms:.2?}, longest queue {longest} bytes");
    }
    Ok(())
}
