//! The files of a run, in the formats that tools for ns-3 read.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Context as _;
use feroce_fabric::Node;
use feroce_sim::scenario::{FlowOutcome, Outcome, PortSeries, Series};

use super::summary::Summary;

/// Makes the directory.
pub(super) fn create(dir: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))
}

/// Writes the files.
pub(super) fn write(dir: &Path, outcome: &Outcome, summary: &Summary) -> anyhow::Result<()> {
    let save = |name: &str, text: String| {
        let file = dir.join(name);
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
    };
    save("fct.txt", fct(outcome))?;
    save("pfc.txt", pfc(outcome))?;
    save("flows.csv", flows(outcome))?;
    if let Some(series) = &outcome.series {
        save("qlen.txt", qlen(outcome, series))?;
        save("series.csv", series_csv(outcome, series))?;
    }
    save("summary.json", serde_json::to_string_pretty(summary)? + "\n")
}

/// A line per flow that has ended, in the order in which they ended: addresses, ports, bytes, and
/// start, duration and duration alone in nanoseconds.
fn fct(outcome: &Outcome) -> String {
    let mut flows: Vec<&FlowOutcome> =
        outcome.flows.iter().filter(|flow| flow.is_complete()).collect();
    flows.sort_by_key(|flow| flow.ended);
    let mut text = String::new();
    for outcome in flows {
        let (flow, key) = (&outcome.flow, &outcome.flow.key);
        let (sport, dport) = (key.ports & 0xffff, key.ports >> 16);
        let duration_ns = outcome.duration_ps().unwrap_or(0) / 1000;
        let _ = writeln!(
            text,
            "{:08x} {:08x} {sport} {dport} {} {} {duration_ns} {}",
            key.src,
            key.dst,
            flow.bytes,
            flow.start.as_ns(),
            outcome.ideal_ps / 1000
        );
    }
    text
}

/// A line per pause frame that arrived: nanoseconds, node, 0 for a host and 1 for a switch, port
/// from 1, and 1 for a pause or 0 for its end.
fn pfc(outcome: &Outcome) -> String {
    let mut text = String::new();
    for event in &outcome.pauses {
        let _ = writeln!(
            text,
            "{} {} {} {} {}",
            event.at.as_ns(),
            event.node,
            u8::from(!event.is_host),
            event.port + 1,
            u8::from(event.is_on)
        );
    }
    text
}

/// Histograms of the queues of switches: the time in nanoseconds, then a line per port with the
/// node, the port from 1, and how often its queue was seen with 0, 1, 2, ... thousand bytes.
fn qlen(outcome: &Outcome, series: &Series) -> String {
    let mut text = format!("time: {}\n", outcome.at.as_ns());
    let is_switch = |port: &&PortSeries| outcome.topology.nodes()[port.name.node] == Node::Switch;
    let mut ports: Vec<_> = series.ports.iter().filter(is_switch).collect();
    ports.sort_by_key(|port| port.name);
    for port in ports {
        let _ = write!(text, "{} {}", port.name.node, port.name.port + 1);
        for count in &port.histogram {
            let _ = write!(text, " {count}");
        }
        text.push('\n');
    }
    text
}

/// Queue and rate of every port that sent something, at the end of every interval.
fn series_csv(outcome: &Outcome, series: &Series) -> String {
    let mut text = "time_ns,port,queue_bytes,sent_bytes,rate_bps\n".to_owned();
    let is_used = |port: &&PortSeries| port.sent.iter().any(|bytes| *bytes > 0);
    let mut ports: Vec<_> = series.ports.iter().filter(is_used).collect();
    ports.sort_by_key(|port| port.name);
    for i in 0..series.len() {
        let ns = series.end_of(i).as_ns();
        for port in &ports {
            let (queue, sent) = (port.queue[i], port.sent[i]);
            let rate = u128::from(sent) * 8_000_000_000_000 / u128::from(series.interval_ps);
            let name = outcome.topology.port_name(port.name);
            let _ = writeln!(text, "{ns},{name},{queue},{sent},{rate}");
        }
    }
    text
}

/// A line per flow, whether it has ended or not; times that do not exist are empty.
fn flows(outcome: &Outcome) -> String {
    let mut text =
        "flow,from,to,bytes,priority,start_ns,duration_ns,ideal_ns,slowdown,status\n".to_owned();
    let hosts: Vec<String> =
        outcome.topology.hosts().map(|node| outcome.topology.name(node)).collect();
    for (i, result) in outcome.flows.iter().enumerate() {
        let flow = &result.flow;
        let (from, to) = (&hosts[flow.src as usize], &hosts[flow.dst as usize]);
        let start = if result.is_started { flow.start.as_ns().to_string() } else { String::new() };
        let ns = result.duration_ps().map(|ps| (ps / 1000).to_string()).unwrap_or_default();
        let slowdown = result.slowdown().map(|times| format!("{times:.4}")).unwrap_or_default();
        let status = match result.status {
            Some(status) => status.to_string(),
            None if result.is_started => "not ended".to_owned(),
            None => "not started".to_owned(),
        };
        let _ = writeln!(
            text,
            "{i},{from},{to},{},{},{start},{ns},{},{slowdown},{status}",
            flow.bytes,
            flow.priority,
            result.ideal_ps / 1000
        );
    }
    text
}
