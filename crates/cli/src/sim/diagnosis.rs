//! What is wrong with a run, in words.

use std::collections::BTreeMap;
use std::fmt;

use feroce_sim::scenario::{self, Outcome, Why};
use serde::Serialize;

/// Flows that a line names.
const SHOWN: usize = 10;

/// A host that tells its switch to stop.
#[derive(Debug, Serialize)]
pub(super) struct Storm {
    host: String,
    port: String,
    paused_ns: u64,
}

/// A flow that is slow for the sake of others.
#[derive(Debug, Serialize)]
pub(super) struct Victim {
    flow: usize,
    from: String,
    to: String,
    slowdown: Option<f64>,
    /// The port on its path that was stopped longest.
    port: String,
    paused_ns: u64,
}

/// A flow that has not ended.
#[derive(Debug, Serialize)]
pub(super) struct Stuck {
    flow: usize,
    from: String,
    to: String,
    why: String,
}

fn host(outcome: &Outcome, number: u32) -> String {
    let node = outcome.topology.hosts().nth(number as usize);
    node.map_or_else(|| number.to_string(), |node| outcome.topology.name(node))
}

impl Storm {
    pub(super) fn of(outcome: &Outcome, storm: &scenario::Storm) -> Self {
        Self {
            host: host(outcome, storm.host),
            port: outcome.topology.port_name(storm.port),
            paused_ns: storm.paused_ps / 1000,
        }
    }
}

impl Victim {
    pub(super) fn of(outcome: &Outcome, victim: &scenario::Victim) -> Self {
        let result = &outcome.flows[victim.flow];
        Self {
            flow: victim.flow,
            from: host(outcome, result.flow.src),
            to: host(outcome, result.flow.dst),
            slowdown: result.slowdown(),
            port: outcome.topology.port_name(victim.port),
            paused_ns: victim.paused_ps / 1000,
        }
    }
}

impl Stuck {
    pub(super) fn of(outcome: &Outcome, flow: usize, why: Why) -> Self {
        let result = &outcome.flows[flow].flow;
        let why = match why {
            Why::Waits(before) => format!("waits for flow {before}"),
            Why::Failed(status) => format!("failed: {status}"),
            Why::NoPath => "no path, links are down".to_owned(),
            Why::Deadlock => "in the deadlock".to_owned(),
            Why::Storm(number) => format!("stopped by host {}", host(outcome, number)),
            Why::TimeOver => "the time was over".to_owned(),
        };
        Self { flow, from: host(outcome, result.src), to: host(outcome, result.dst), why }
    }
}

/// Says what is wrong, a line for each kind.
pub(super) fn show(
    f: &mut fmt::Formatter<'_>,
    (storms, victims, stuck): (&[Storm], &[Victim], &[Stuck]),
) -> fmt::Result {
    let us = |ns: u64| ns as f64 / 1000.0;
    for Storm { host, port, paused_ns } in storms {
        writeln!(f, "storm: host {host} stopped port {port} for {:.1} us", us(*paused_ns))?;
    }
    for victim in victims.iter().take(SHOWN) {
        let Victim { flow, from, to, slowdown, port, paused_ns } = victim;
        let times = match slowdown {
            Some(times) => format!("took {times:.1} times as long as alone"),
            None => "did not end".to_owned(),
        };
        let us = us(*paused_ns);
        writeln!(
            f,
            "victim: flow {flow}, {from} to {to}, {times}: {port} was stopped for {us:.1} us"
        )?;
    }
    if victims.len() > SHOWN {
        writeln!(f, "victims: {} more flows", victims.len() - SHOWN)?;
    }
    let mut reasons: BTreeMap<&str, Vec<&Stuck>> = BTreeMap::new();
    for flow in stuck {
        reasons.entry(&flow.why).or_default().push(flow);
    }
    for (why, flows) in reasons {
        let name = |s: &&Stuck| format!("{} ({} to {})", s.flow, s.from, s.to);
        let names: Vec<_> = flows.iter().take(SHOWN).map(name).collect();
        let more = match flows.len().saturating_sub(SHOWN) {
            0 => String::new(),
            rest => format!(" and {rest} more"),
        };
        writeln!(f, "not ended, {why}: flows {}{more}", names.join(", "))?;
    }
    Ok(())
}
