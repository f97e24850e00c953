//! What is wrong with a run: storms of pauses, flows that suffer for others, flows that cannot end.

use std::collections::{BTreeMap, BTreeSet};

use feroce_engine::WcStatus;
use feroce_fabric::{Fabric, Node, PauseEvent, PortName, PortStats, Time};

use super::{FlowOutcome, Scenario};

/// A host that tells its switch to stop for longer than this part of the run makes a storm.
const STORM_PART: f64 = 0.1;
/// A flow that took so many times longer than alone is slow.
const SLOW: f64 = 1.5;
/// A slow flow is a victim if a port on its path was stopped for this part of its time.
const VICTIM_PART: f64 = 0.1;
/// A port causes congestion if its queue was as long as this part of the longest.
const CAUSE_PART: f64 = 0.25;

/// A host that tells its switch to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Storm {
    /// The number of the host.
    pub host: u32,
    /// The port of the switch.
    pub port: PortName,
    /// For how long, all priorities together, in picoseconds.
    pub paused_ps: u64,
}

/// A flow that was slow because a port on its path was stopped, though it does not use the ports
/// that were congested.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Victim {
    /// The number of the flow.
    pub flow: usize,
    /// The port on its path that was stopped longest.
    pub port: PortName,
    /// For how long during the flow, in picoseconds.
    pub paused_ps: u64,
}

/// Why a flow has not ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// It waits for another flow, which has not arrived.
    Waits(usize),
    /// Its queue pair gave up.
    Failed(WcStatus),
    /// Links are down, and no path leads to its receiver.
    NoPath,
    /// It is behind ports that wait for each other.
    Deadlock,
    /// It is behind a host that tells its switch to stop.
    Storm(u32),
    /// The time was over, or the user interrupted the run.
    TimeOver,
}

/// What is wrong with a run.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Diagnosis {
    /// Hosts that make a storm.
    pub storms: Vec<Storm>,
    /// Flows that suffer for others, slowest first.
    pub victims: Vec<Victim>,
    /// Flows that have not ended.
    pub stuck: Vec<(usize, Why)>,
}

/// What a diagnosis is made from.
pub(super) struct Case<'a, B> {
    pub(super) fabric: &'a Fabric<B>,
    pub(super) scenario: &'a Scenario,
    pub(super) flows: &'a [FlowOutcome],
    pub(super) ports: &'a [(PortName, PortStats)],
    pub(super) pauses: &'a [PauseEvent],
    pub(super) deadlock: Option<&'a [PortName]>,
    pub(super) now: Time,
}

impl<B> Case<'_, B> {
    pub(super) fn diagnose(&self) -> Diagnosis {
        let storms = self.storms();
        Diagnosis {
            // In a deadlock nothing moves, and whom it hits first says nothing.
            victims: if self.deadlock.is_none() { self.victims(&storms) } else { Vec::new() },
            stuck: self.stuck(&storms),
            storms,
        }
    }

    fn first_start(&self) -> Time {
        self.flows.iter().map(|flow| flow.flow.start).min().unwrap_or_default()
    }

    fn path(&self, flow: &FlowOutcome) -> Option<Vec<PortName>> {
        let flow = &flow.flow;
        self.fabric.ports_on_path(flow.src, flow.dst, &flow.key)
    }

    /// Hosts take every packet at once, so one that stops its switch is broken.
    fn storms(&self) -> Vec<Storm> {
        let topology = &self.scenario.topology;
        let paused: BTreeMap<PortName, u64> =
            self.ports.iter().map(|(name, stats)| (*name, stats.paused_ps)).collect();
        let least = self.now.ps_since(self.first_start()) as f64 * STORM_PART;
        let mut storms = Vec::new();
        for (host, node) in (0..).zip(topology.hosts()) {
            let own = PortName { node, port: 0 };
            let Some(port) = topology.link_of(own).and_then(|link| topology.other_end(link, own))
            else {
                continue;
            };
            let paused_ps = paused.get(&port).copied().unwrap_or(0);
            if paused_ps > 0 && paused_ps as f64 >= least {
                storms.push(Storm { host, port, paused_ps });
            }
        }
        storms
    }

    /// Ports of switches that are congested of themselves: long queues, and nothing behind them
    /// stops them.
    fn causes(&self, storms: &[Storm]) -> BTreeSet<PortName> {
        let is_switch = |name: &PortName| self.scenario.topology.nodes()[name.node] == Node::Switch;
        let ports = || self.ports.iter().filter(|(name, _)| is_switch(name));
        let longest = ports().map(|(_, stats)| stats.queue_max).max().unwrap_or(0);
        let is_cause = |stats: &PortStats| {
            stats.paused_ps == 0 && stats.queue_max as f64 >= longest as f64 * CAUSE_PART
        };
        let long = ports().filter(|(_, stats)| is_cause(stats)).map(|(name, _)| *name);
        long.chain(storms.iter().map(|storm| storm.port)).collect()
    }

    fn victims(&self, storms: &[Storm]) -> Vec<Victim> {
        let stops = self.stops();
        if stops.is_empty() {
            return Vec::new();
        }
        let causes = self.causes(storms);
        let mut victims = Vec::new();
        for (i, flow) in self.flows.iter().enumerate().filter(|(_, flow)| flow.is_started) {
            let (start, end) = (flow.flow.start, flow.ended.unwrap_or(self.now));
            let life_ps = end.ps_since(start);
            let slowdown = life_ps as f64 / flow.ideal_ps.max(1) as f64;
            if slowdown < SLOW || flow.ended.is_some() && !flow.is_complete() {
                continue;
            }
            let Some(path) =
                self.path(flow).filter(|path| path.iter().all(|p| !causes.contains(p)))
            else {
                continue;
            };
            let stopped = |port: &PortName| {
                let list = stops.get(&(*port, flow.flow.priority)).map_or(&[][..], Vec::as_slice);
                list.iter().map(|stop| stop.1.min(end).ps_since(stop.0.max(start))).sum::<u64>()
            };
            let worst = path.iter().map(|port| (stopped(port), *port)).max();
            if let Some((paused_ps, port)) = worst
                && paused_ps as f64 >= life_ps as f64 * VICTIM_PART
            {
                victims.push((slowdown, Victim { flow: i, port, paused_ps }));
            }
        }
        victims.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.flow.cmp(&b.1.flow)));
        victims.into_iter().map(|(_, victim)| victim).collect()
    }

    /// When each port was stopped, by priority.
    fn stops(&self) -> BTreeMap<(PortName, u8), Vec<(Time, Time)>> {
        let mut since: BTreeMap<(PortName, u8), Time> = BTreeMap::new();
        let mut stops: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for event in self.pauses {
            let of = (PortName { node: event.node, port: event.port }, event.priority);
            match event.is_on {
                true => {
                    since.entry(of).or_insert(event.at);
                }
                false => {
                    if let Some(start) = since.remove(&of) {
                        stops.entry(of).or_default().push((start, event.at));
                    }
                }
            }
        }
        for (of, start) in since {
            stops.entry(of).or_default().push((start, self.now));
        }
        stops
    }

    fn stuck(&self, storms: &[Storm]) -> Vec<(usize, Why)> {
        let open = self.flows.iter().enumerate().filter(|(_, flow)| !flow.is_complete());
        open.map(|(i, flow)| (i, self.why(i, flow, storms))).collect()
    }

    fn why(&self, i: usize, flow: &FlowOutcome, storms: &[Storm]) -> Why {
        let awaited = self.scenario.after.iter().filter(|(next, _)| *next == i);
        let mut awaited = awaited.map(|(_, before)| *before);
        if let Some(before) = awaited.find(|&before| !self.flows[before].is_complete()) {
            return Why::Waits(before);
        }
        if let Some(status) = flow.status {
            return Why::Failed(status);
        }
        let Some(path) = self.path(flow) else { return Why::NoPath };
        if let Some(storm) = storms.iter().find(|storm| path.contains(&storm.port)) {
            return Why::Storm(storm.host);
        }
        // A flow that never reaches the circle may stand in the queues behind it.
        match self.deadlock {
            Some(_) => Why::Deadlock,
            None => Why::TimeOver,
        }
    }
}
