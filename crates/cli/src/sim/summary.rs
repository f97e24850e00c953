//! What came of a run, in a few figures.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use feroce_fabric::{DropReason, PortName};
use feroce_sim::scenario::{FlowOutcome, Outcome, percentile};
use serde::Serialize;

use super::diagnosis::{self, Storm, Stuck, Victim};

/// Queues that the text shows: the longest.
const QUEUES: usize = 10;

/// The figures of a run.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    seed: u64,
    flows: usize,
    finished: usize,
    /// The flows that did not end, by number.
    unfinished: Vec<usize>,
    slowdown: Option<Percentiles>,
    slowdown_by_size: Vec<BySize>,
    deadlock: Option<Vec<String>>,
    storms: Vec<Storm>,
    victims: Vec<Victim>,
    /// Why flows did not end.
    stuck: Vec<Stuck>,
    drops: Drops,
    marked: u64,
    pauses: u64,
    pause_ns: u64,
    queues: Vec<Queue>,
    packets: u64,
    events: u64,
    simulated_s: f64,
    wall_s: f64,
    packets_per_s: f64,
    events_per_s: f64,
}

/// How many times longer than alone flows took.
#[derive(Debug, Serialize)]
struct Percentiles {
    p50: f64,
    p95: f64,
    p99: f64,
}

impl Percentiles {
    fn of(sorted: &[f64]) -> Option<Self> {
        let at = |p| percentile(sorted, p);
        Some(Self { p50: at(0.5)?, p95: at(0.95)?, p99: at(0.99)? })
    }
}

/// The same for flows of similar size.
#[derive(Debug, Serialize)]
struct BySize {
    /// Flows of at most so many bytes, and more than the entry before.
    bytes: u64,
    flows: usize,
    slowdown: Percentiles,
}

#[derive(Debug, Serialize)]
struct Drops {
    buffer: u64,
    loss: u64,
    link_down: u64,
    no_route: u64,
    watchdog: u64,
    lifetime: u64,
}

/// The queue of a port.
#[derive(Debug, Serialize)]
struct Queue {
    port: String,
    max_bytes: u64,
    mean_bytes: f64,
}

impl Summary {
    pub(super) fn new(outcome: &Outcome, seed: u64, wall: Duration) -> Self {
        let flows = &outcome.flows;
        let is_open = |(i, flow): (usize, &FlowOutcome)| (!flow.is_complete()).then_some(i);
        let unfinished: Vec<_> = flows.iter().enumerate().filter_map(is_open).collect();
        let totals = &outcome.totals;
        let dropped = |reason| totals.dropped(reason).packets;
        let events = totals.events + outcome.host_events;
        let (packets, wall_s) = (totals.injected.packets, wall.as_secs_f64());
        let name = |port: &PortName| outcome.topology.port_name(*port);
        Self {
            seed,
            flows: flows.len(),
            finished: flows.len() - unfinished.len(),
            unfinished,
            slowdown: Percentiles::of(&outcome.slowdowns()),
            slowdown_by_size: by_size(flows),
            deadlock: outcome.deadlock.as_ref().map(|circle| circle.iter().map(name).collect()),
            storms: outcome
                .diagnosis
                .storms
                .iter()
                .map(|storm| Storm::of(outcome, storm))
                .collect(),
            victims: outcome.diagnosis.victims.iter().map(|v| Victim::of(outcome, v)).collect(),
            stuck: outcome
                .diagnosis
                .stuck
                .iter()
                .map(|(i, why)| Stuck::of(outcome, *i, *why))
                .collect(),
            drops: Drops {
                buffer: dropped(DropReason::Buffer),
                loss: dropped(DropReason::Loss),
                link_down: dropped(DropReason::LinkDown),
                no_route: dropped(DropReason::NoRoute),
                watchdog: dropped(DropReason::Watchdog),
                lifetime: dropped(DropReason::Lifetime),
            },
            marked: outcome.ports.iter().map(|(_, stats)| stats.marked).sum(),
            pauses: outcome.pause_count(),
            pause_ns: outcome.ports.iter().map(|(_, stats)| stats.paused_ps / 1000).sum(),
            queues: longest_queues(outcome),
            packets,
            events,
            simulated_s: outcome.at.as_ns() as f64 / 1e9,
            wall_s,
            packets_per_s: packets as f64 / wall_s,
            events_per_s: events as f64 / wall_s,
        }
    }

    /// Whether all flows ended.
    pub(super) fn is_complete(&self) -> bool {
        self.unfinished.is_empty()
    }
}

/// Flows by powers of ten of their size.
fn by_size(flows: &[FlowOutcome]) -> Vec<BySize> {
    let mut classes: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for flow in flows {
        let class = next_power_of_ten(flow.flow.bytes);
        if let Some(slowdown) = flow.slowdown() {
            classes.entry(class).or_default().push(slowdown);
        }
    }
    let entry = |(bytes, mut all): (u64, Vec<f64>)| {
        all.sort_by(f64::total_cmp);
        Some(BySize { bytes, flows: all.len(), slowdown: Percentiles::of(&all)? })
    };
    classes.into_iter().filter_map(entry).collect()
}

fn next_power_of_ten(n: u64) -> u64 {
    let mut power = 1u64;
    while power < n {
        power = power.saturating_mul(10);
    }
    power
}

fn longest_queues(outcome: &Outcome) -> Vec<Queue> {
    let mut ports: Vec<_> = outcome.ports.iter().filter(|(_, s)| s.queue_max > 0).collect();
    ports.sort_by_key(|(name, stats)| (std::cmp::Reverse(stats.queue_max), *name));
    let queue = |(name, stats): &(PortName, feroce_fabric::PortStats)| Queue {
        port: outcome.topology.port_name(*name),
        max_bytes: stats.queue_max,
        mean_bytes: stats.queue_mean(outcome.first_start(), outcome.at),
    };
    ports.into_iter().map(queue).collect()
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} of {} flows ended", self.finished, self.flows)?;
        if let Some(circle) = &self.deadlock {
            writeln!(f, "deadlock: ports {} wait for each other", circle.join(", "))?;
        }
        diagnosis::show(f, (&self.storms, &self.victims, &self.stuck))?;
        if let Some(all) = &self.slowdown {
            writeln!(
                f,
                "\n{:<14} {:>8} {:>10} {:>10} {:>10}",
                "slowdown", "flows", "p50", "p95", "p99"
            )?;
            let row = |f: &mut fmt::Formatter<'_>, what: &str, flows, p: &Percentiles| {
                writeln!(f, "{what:<14} {flows:>8} {:>10.2} {:>10.2} {:>10.2}", p.p50, p.p95, p.p99)
            };
            row(f, "all", self.finished, all)?;
            for class in &self.slowdown_by_size {
                row(f, &format!("<= {} B", class.bytes), class.flows, &class.slowdown)?;
            }
        }
        let Drops { buffer, loss, link_down, no_route, watchdog, lifetime } = self.drops;
        writeln!(
            f,
            "\ndrops: {buffer} buffer, {loss} loss, {link_down} link down, {no_route} no route, \
             {watchdog} watchdog, {lifetime} lifetime"
        )?;
        let paused_us = self.pause_ns as f64 / 1000.0;
        writeln!(
            f,
            "pauses: {}, {paused_us:.1} us in all; {} packets marked",
            self.pauses, self.marked
        )?;
        if !self.queues.is_empty() {
            writeln!(f, "\n{:<14} {:>14} {:>14}", "longest queues", "max, bytes", "mean, bytes")?;
        }
        for Queue { port, max_bytes, mean_bytes } in self.queues.iter().take(QUEUES) {
            writeln!(f, "{port:<14} {max_bytes:>14} {mean_bytes:>14.1}")?;
        }
        writeln!(
            f,
            "\n{:.6} s simulated in {:.2} s: {} packets, {} events, {:.2} M events/s, seed {}",
            self.simulated_s,
            self.wall_s,
            self.packets,
            self.events,
            self.events_per_s / 1e6,
            self.seed
        )
    }
}
