//! `--plot`: slowdown by size, and queues and rates over time, in one picture.

use std::path::Path;

use anyhow::Context as _;
use feroce_fabric::Node;
use feroce_sim::scenario::{Outcome, PortSeries, Series, percentile};

use super::svg::{Axis, Chart, Line, draw};

/// Ports that a chart shows.
const LINES: usize = 7;
/// Points of a line over time, of queues and of rates: more of them show single bursts.
const QUEUE_POINTS: usize = 240;
const RATE_POINTS: usize = 80;
/// Dots of a chart.
const DOTS: usize = 2000;
/// Flows in a class of sizes, at least, and classes at most.
const CLASS: (usize, usize) = (10, 20);

/// Draws the picture of a run.
pub(super) fn write(path: &Path, outcome: &Outcome) -> anyhow::Result<()> {
    let mut charts = Vec::new();
    if outcome.flows.iter().any(|flow| flow.is_complete()) {
        charts.push(slowdowns(outcome));
    }
    if let Some(series) = outcome.series.as_ref().filter(|series| !series.is_empty()) {
        charts.push(queues(outcome, series));
        charts.push(rates(outcome, series));
    }
    std::fs::write(path, draw(&charts)).with_context(|| format!("cannot write {}", path.display()))
}

fn slowdowns(outcome: &Outcome) -> Chart {
    let complete = outcome.flows.iter();
    let mut flows: Vec<(f64, f64)> = complete
        .filter_map(|flow| Some((flow.flow.bytes.max(1) as f64, flow.slowdown()?)))
        .collect();
    flows.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let class = flows.len().div_ceil(CLASS.1).max(CLASS.0);
    let line = |(name, p): (&str, f64)| {
        let of = |class: &[(f64, f64)]| {
            let mut slow: Vec<f64> = class.iter().map(|flow| flow.1).collect();
            slow.sort_by(f64::total_cmp);
            Some((class[class.len() / 2].0, percentile(&slow, p)?))
        };
        Line { name: name.into(), points: flows.chunks(class).filter_map(of).collect() }
    };
    let lines = match flows.len() > 2 * class {
        true => [("p50", 0.5), ("p95", 0.95), ("p99", 0.99)].map(line).into(),
        false => Vec::new(),
    };
    let stride = flows.len().div_ceil(DOTS).max(1);
    Chart {
        title: format!("Slowdown of {} flows by size", flows.len()),
        x: Axis { label: "bytes", is_log: true },
        y: Axis { label: "times longer than alone", is_log: true },
        lines,
        dots: flows.into_iter().step_by(stride).collect(),
    }
}

/// The ports with the greatest of something, greatest first.
fn greatest(
    series: &Series,
    is_shown: impl Fn(&PortSeries) -> bool,
    value: impl Fn(&PortSeries) -> u64,
) -> Vec<&PortSeries> {
    let mut ports: Vec<_> =
        series.ports.iter().filter(|port| is_shown(port) && value(port) > 0).collect();
    ports.sort_by_key(|port| (std::cmp::Reverse(value(port)), port.name));
    ports.truncate(LINES);
    ports
}

/// A line over time, with neighbours joined so that there are not too many points. It starts when
/// the first flow does.
fn over_time(
    series: &Series,
    name: String,
    (values, points): (&[u64], usize),
    join: impl Fn(&[u64]) -> f64,
) -> Line {
    let stride = series.len().div_ceil(points).max(1);
    let us = |i: usize| series.end_of(i).ps_since(series.start) as f64 / 1e6;
    let point = |(i, chunk): (usize, &[u64])| (us(i * stride + chunk.len() - 1), join(chunk));
    Line { name, points: values.chunks(stride).enumerate().map(point).collect() }
}

fn queues(outcome: &Outcome, series: &Series) -> Chart {
    let longest = |port: &PortSeries| port.queue.iter().copied().max().unwrap_or(0);
    let is_switch = |port: &PortSeries| outcome.topology.nodes()[port.name.node] == Node::Switch;
    let line = |port: &PortSeries| {
        let name = outcome.topology.port_name(port.name);
        let join = |chunk: &[u64]| chunk.iter().copied().max().unwrap_or(0) as f64;
        over_time(series, name, (&port.queue, QUEUE_POINTS), join)
    };
    Chart {
        title: "Longest queues of switches".into(),
        x: Axis { label: "microseconds", is_log: false },
        y: Axis { label: "bytes", is_log: false },
        lines: greatest(series, is_switch, longest).into_iter().map(line).collect(),
        dots: Vec::new(),
    }
}

fn rates(outcome: &Outcome, series: &Series) -> Chart {
    let is_host = |port: &PortSeries| outcome.topology.nodes()[port.name.node] == Node::Host;
    let line = |port: &PortSeries| {
        let name = outcome.topology.name(port.name.node);
        // Bits in a picosecond are Tb/s.
        let gbps = |bytes: f64| bytes * 8.0 / series.interval_ps as f64 * 1000.0;
        let join = |chunk: &[u64]| gbps(chunk.iter().sum::<u64>() as f64 / chunk.len() as f64);
        over_time(series, name, (&port.sent, RATE_POINTS), join)
    };
    let bytes = |port: &PortSeries| port.sent.iter().sum::<u64>();
    let mut ports = greatest(series, is_host, bytes);
    // A host that only answers is not of interest.
    let most = ports.first().map_or(0, |port| bytes(port));
    ports.retain(|port| bytes(port) >= most / 10);
    ports.sort_by_key(|port| port.name);
    Chart {
        title: "Rates of the hosts that sent most".into(),
        x: Axis { label: "microseconds", is_log: false },
        y: Axis { label: "Gb/s", is_log: false },
        lines: ports.into_iter().map(line).collect(),
        dots: Vec::new(),
    }
}
