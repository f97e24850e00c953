//! Runs a scenario: the clock, the fabric and the hosts.

use std::fmt;

use feroce_engine::Config;
use feroce_fabric::{
    Agenda, Fabric, Output, Packet, PauseEvent, PortName, Rate, Time, TopologyError,
};
use feroce_train::{Hops, Instant, LinkCaps, RxMeta, Train};
use feroce_wire::{Gid, Psn};

use super::base_rtt::base_rtt_ns;
use super::capture::{Captured, Captures};
use super::diagnosis::Case;
use super::flow_hosts::{self, FlowHost, News, Terms};
use super::order::Order;
use super::packet::{Body, Kind, Routing};
use super::selective::{self, Arrival, Selective};
use super::series::Series;
use super::{Flow, FlowOutcome, Happens, Outcome, Recovery, Scenario, WireLength};

/// How often the run looks for ports that wait for each other.
const DEADLOCK_CHECK_PS: u64 = 100_000_000;
/// How long they must have waited.
const DEADLOCK_PS: u64 = 1_000_000_000;

/// Why a scenario cannot be run.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RunError {
    /// The topology is not sound.
    Topology(TopologyError),
    /// A flow names a host that does not exist, or itself.
    Flow(usize),
    /// A flow waits for one that does not come before it.
    After(usize, usize),
    /// More nodes than addresses.
    TooManyNodes(usize),
    /// More flows than labels.
    TooManyFlows(usize),
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Topology(e) => write!(f, "{e}"),
            Self::Flow(i) => write!(f, "flow {i} does not lead from one host to another"),
            Self::After(i, j) => write!(f, "flow {i} waits for flow {j}, which is not before it"),
            Self::TooManyNodes(n) => write!(f, "{n} nodes; at most {MOST_NODES} have addresses"),
            Self::TooManyFlows(n) => write!(f, "{n} flows; at most {MOST_FLOWS} can be told apart"),
        }
    }
}

impl std::error::Error for RunError {}

impl From<TopologyError> for RunError {
    fn from(e: TopologyError) -> Self {
        Self::Topology(e)
    }
}

/// Nodes that have addresses.
const MOST_NODES: usize = 1 << 20;
/// Flows that a flow label can tell apart.
const MOST_FLOWS: usize = 0xf_ffff;

/// An event of the hosts.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// The timer of a host.
    Timer(u32),
    /// A flow starts.
    Start(usize),
    /// Something happens to a link or a host.
    Happening(usize),
    /// A flow with selective repeat may have waited long enough.
    Recovery(u32),
    /// Look for ports that wait for each other.
    DeadlockCheck,
    /// Look at the queues.
    Sample,
}

/// A scenario that runs.
#[derive(Debug)]
pub struct Run {
    now: Time,
    scenario: Scenario,
    fabric: Fabric<Body>,
    routing: Routing,
    hosts: Vec<FlowHost>,
    agenda: Agenda<Time, Event>,
    /// When the timer event of each host is due.
    timers: Vec<Option<Time>>,
    flows: Vec<FlowOutcome>,
    order: Order,
    /// What switches wrote into the newest packet of each flow that has arrived; empty without
    /// telemetry.
    echoes: Vec<Hops>,
    /// The layer below the engines, with selective repeat.
    selective: Option<Selective>,
    unfinished: usize,
    deadlock: Option<Vec<PortName>>,
    series: Option<Series>,
    captures: Captures,
    /// Pause frames that were taken from the fabric.
    pauses: Vec<PauseEvent>,
    events: u64,
}

impl Run {
    /// Prepares a run; everything random follows from the seed.
    pub fn new(mut scenario: Scenario, seed: u64) -> Result<Self, RunError> {
        scenario.fabric.seed = seed;
        // What `recovery` says: go-back-N as adapters have it, or a layer below the engines.
        scenario.engine.selective_repeat = false;
        if scenario.engine.congestion.needs_telemetry() {
            scenario.fabric.telemetry.get_or_insert_default();
        }
        let fabric = Fabric::new(scenario.topology.clone(), scenario.fabric.clone())?;
        let nodes = scenario.topology.nodes().len();
        if nodes > MOST_NODES {
            return Err(RunError::TooManyNodes(nodes));
        }
        check_flows(&scenario, fabric.hosts())?;
        let selective = (scenario.recovery == Recovery::Selective).then(|| {
            let rtt_ns = base_rtt_ns(&scenario.topology, scenario.wire.packet_bytes(scenario.mtu));
            let inner = core::mem::take(&mut scenario.engine.congestion);
            let line_rate_bps = (0..fabric.hosts() as u32).map(|i| fabric.host_rate(i).bps()).max();
            scenario.engine.congestion =
                selective::bounded(inner, line_rate_bps.unwrap_or(1), rtt_ns);
            Selective::new(scenario.flows.len(), fabric.hosts(), rtt_ns)
        });
        let gid = |node: usize| {
            Gid::from_ipv4([11 + (node >> 16) as u8, (node >> 8) as u8, node as u8, 1])
        };
        let hosts = scenario.topology.hosts().enumerate().map(|(i, node)| {
            let config = Config { seed: seed ^ (i as u64) << 32, ..scenario.engine.clone() };
            FlowHost::new(gid(node), config)
        });
        let hosts: Vec<_> = hosts.collect();
        let mut agenda = Agenda::default();
        let order = Order::new(&scenario);
        for (i, flow) in scenario.flows.iter().enumerate().filter(|(i, _)| order.awaits(*i) == 0) {
            agenda.push(flow.start, Event::Start(i));
        }
        for (i, happening) in scenario.happenings.iter().enumerate() {
            agenda.push(happening.at, Event::Happening(i));
        }
        let first = scenario.flows.iter().map(|flow| flow.start).min();
        if let Some(first) = first.filter(|_| can_deadlock(&scenario.fabric)) {
            agenda.push(first.plus_ps(DEADLOCK_CHECK_PS), Event::DeadlockCheck);
        }
        let outcome = |flow: &Flow| {
            let ideal_ps = ideal_ps(&scenario, flow, &fabric.path(flow.src, flow.dst));
            FlowOutcome { flow: *flow, ideal_ps, is_started: false, ended: None, status: None }
        };
        let flows: Vec<_> = scenario.flows.iter().map(outcome).collect();
        let echoes = scenario.fabric.telemetry.map_or(0, |_| flows.len());
        Ok(Self {
            now: Time::ZERO,
            timers: vec![None; hosts.len()],
            echoes: vec![Hops::default(); echoes],
            selective,
            unfinished: flows.len(),
            routing: Routing::new(flows.len()),
            flows,
            order,
            scenario,
            fabric,
            hosts,
            agenda,
            deadlock: None,
            series: None,
            captures: Captures::default(),
            pauses: Vec::new(),
            events: 0,
        })
    }

    /// Records queues and rates from the first start of a flow: looks at them so often, in
    /// picoseconds.
    pub fn record(&mut self, every_ps: u64) {
        let start = self.flows.iter().map(|flow| flow.flow.start).min().unwrap_or_default();
        let ports = self.fabric.port_stats().map(|(node, port, _)| PortName { node, port });
        let series = Series::new(start, every_ps.max(1), ports);
        self.agenda.push(series.next_at(start), Event::Sample);
        self.series = Some(series);
    }

    /// Captures a port from now on: [`Run::take_captured`] has what passes. False if there is no
    /// such port.
    pub fn capture(&mut self, port: PortName) -> bool {
        let is_port = self.captures.add(&self.scenario.topology, port);
        if is_port {
            self.fabric.watch(port.node, port.port, true);
        }
        is_port
    }

    /// Takes the frames that have passed captured ports, in the order of their times. Frames of the
    /// last microseconds follow in the next call, unless all are to be taken.
    pub fn take_captured(&mut self, all: bool) -> Vec<Captured> {
        let pauses = self.fabric.take_pauses();
        if !self.captures.is_empty() {
            let quanta = self.scenario.fabric.pfc.and_then(|pfc| pfc.quanta);
            self.captures.packets(self.fabric.take_passed(), &self.routing);
            self.captures.pauses(&pauses, quanta.unwrap_or(u16::MAX));
        }
        self.pauses.extend(pauses);
        self.captures.take(self.now, all)
    }

    /// The time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Flows that have not ended.
    pub fn unfinished(&self) -> usize {
        self.unfinished
    }

    /// How much of the run is over, from 0 to 1, by the bytes that have arrived.
    pub fn progress(&self) -> f64 {
        let flows = self.scenario.flows.iter();
        let bytes: u64 = flows.map(|flow| flow.bytes).sum();
        // Delivered bytes have headers, and answers are among them: the last part is shorter.
        (self.fabric.totals().delivered.bytes as f64 / bytes.max(1) as f64).clamp(0.0, 1.0)
    }

    /// Says what does not hold in the fabric that always must; see [`Fabric::check`].
    pub fn check(&self) -> Result<(), String> {
        self.fabric.check()
    }

    /// Bytes that wait at a port.
    pub fn queued(&self, node: usize, port: usize) -> Option<u64> {
        self.fabric.queued(node, port)
    }

    /// A host tells its switch to stop sending in a priority, for good: a broken adapter.
    ///
    /// # Panics
    /// If there is no such host or priority.
    pub fn pause_from_host(&mut self, host: u32, priority: u8) {
        self.fabric.pause_from_host(self.now, host, priority, true);
    }

    /// Runs to the end.
    pub fn run(mut self) -> Outcome {
        while self.step() {}
        self.finish()
    }

    /// Handles the next event. False: there is none, or the run is over.
    pub fn step(&mut self) -> bool {
        if self.unfinished == 0 || self.deadlock.is_some() {
            return false;
        }
        // The fabric goes on alone until a host must act. At the same time, it goes first.
        let (stop, host_at) = (self.scenario.stop, self.agenda.next_at());
        let until = host_at.map_or(stop, |at| at.min(stop));
        let fabric_at = self.fabric.next_at();
        if fabric_at.is_some_and(|at| at <= until) {
            let output = self.fabric.poll(until);
            self.now = self.fabric.now();
            match output {
                Some(Output::Delivered(packet)) => self.arrive(&packet),
                Some(Output::Ready(host)) => self.pump(host),
                None => {}
            }
            return true;
        }
        if host_at.is_none_or(|at| at > stop) {
            if host_at.or(fabric_at).is_some() {
                self.now = stop;
            }
            return false;
        }
        let Some((at, event)) = self.agenda.pop() else { return false };
        self.now = at;
        self.events += 1;
        match event {
            Event::Timer(host) if self.timers[host as usize] == Some(at) => {
                self.timers[host as usize] = None;
                let now = self.instant();
                self.hosts[host as usize].engine.handle_timeout(now);
                self.pump(host);
            }
            Event::Timer(_) => {}
            Event::Start(i) => {
                let flow = self.scenario.flows[i];
                let terms = Terms {
                    mtu: self.scenario.mtu,
                    payload: self.scenario.model_payload(),
                    timeout: self.scenario.timeout,
                    tells_receiver: self.order.is_awaited(i),
                };
                self.flows[i].flow.start = at;
                self.flows[i].is_started = true;
                let now = self.instant();
                flow_hosts::start(&mut self.hosts, now, (i, &flow), terms);
                self.pump(flow.src);
            }
            Event::Recovery(flow) => {
                let host = self.scenario.flows[flow as usize].src;
                let next = self.selective.as_mut().and_then(|s| s.on_event(at, flow, host));
                self.plan_recovery(flow, next);
                self.pump(host);
            }
            Event::Happening(i) => self.happen(self.scenario.happenings[i].happens),
            Event::Sample => {
                if let Some(series) = &mut self.series {
                    series.look(self.fabric.port_stats().map(|(_, _, stats)| stats));
                    self.agenda.push(series.next_at(at), Event::Sample);
                }
            }
            Event::DeadlockCheck => {
                self.deadlock = self.fabric.find_deadlock(self.now, DEADLOCK_PS);
                self.agenda.push(self.now.plus_ps(DEADLOCK_CHECK_PS), Event::DeadlockCheck);
            }
        }
        true
    }

    fn happen(&mut self, happens: Happens) {
        match happens {
            Happens::Link(link, is_up) => self.fabric.set_link(self.now, link, is_up),
            Happens::Loss(link, loss) => self.fabric.set_loss(link, loss),
            Happens::Rate(link, rate) => self.fabric.set_rate(link, rate),
            Happens::Pause(host, priority, true) => {
                self.fabric.storm_from_host(self.now, host, priority);
            }
            Happens::Pause(host, priority, false) => {
                self.fabric.pause_from_host(self.now, host, priority, false);
            }
        }
    }

    fn instant(&self) -> Instant {
        Instant::from(self.now)
    }

    /// A packet reaches the layer below the engine, if there is one.
    fn arrive(&mut self, packet: &Packet<Body>) {
        let (now, flow) = (self.now, packet.body.flow);
        let Some(selective) = &mut self.selective else { return self.deliver(packet) };
        match packet.body.kind() {
            Kind::Request(psn) => match selective.on_arrival(packet, psn) {
                Arrival::Next => {
                    self.deliver(packet);
                    while let Some(next) =
                        self.selective.as_mut().and_then(|selective| selective.take_next(flow))
                    {
                        self.deliver(&next);
                    }
                }
                Arrival::Kept(awaited, kept) => self.inject_kept(packet.to, flow, awaited, kept),
            },
            Kind::Acknowledge(psn) => {
                let next = selective.on_acked(now, flow, psn.next());
                self.plan_recovery(flow, next);
                self.deliver(packet);
            }
            Kind::Kept(awaited, kept) => {
                let next = selective.on_kept(now, (flow, packet.to), (awaited, kept));
                self.plan_recovery(flow, next);
                self.pump(packet.to);
            }
            Kind::Other => self.deliver(packet),
        }
    }

    fn plan_recovery(&mut self, flow: u32, at: Option<Time>) {
        if let Some(at) = at {
            self.agenda.push(at, Event::Recovery(flow));
        }
    }

    /// A receiver tells the sender of a flow which packet it awaits and which it keeps.
    fn inject_kept(&mut self, host: u32, flow: u32, awaited: Psn, kept: Psn) {
        let Flow { src, priority, key, .. } = self.scenario.flows[flow as usize];
        let body = Body::kept(flow, awaited, kept);
        let map = &self.scenario.fabric.priorities;
        let priority = map.priority(priority << 5, priority);
        let mtu = self.scenario.mtu.bytes() as u32;
        let len = body.wire_len(self.scenario.wire, mtu) + map.tag_len();
        let packet = Packet { to: src, len, priority, ecn: body.ecn(), key: key.reversed(), body };
        self.fabric.inject(self.now, host, packet);
    }

    fn deliver(&mut self, packet: &Packet<Body>) {
        let now = self.instant();
        let engine = &mut self.hosts[packet.to as usize].engine;
        if let Some(echo) = self.echoes.get_mut(packet.body.flow as usize) {
            let hops = self.fabric.telemetry();
            match packet.body.dest_qp().filter(|_| packet.body.is_answer()) {
                Some(qpn) => engine.handle_telemetry(now, qpn, hops.as_slice()),
                None => *echo = *hops,
            }
        }
        if let Some(&meta) = self.routing.of(&packet.body) {
            let meta = RxMeta { ecn: packet.ecn, ..meta };
            packet.body.receive(meta, |train| engine.handle_rx(now, train));
        }
        self.pump(packet.to);
    }

    /// Lets a host send as much as its port takes, and notes what has completed.
    fn pump(&mut self, host: u32) {
        let now = self.instant();
        while self.fabric.has_room(host) {
            if let Some(packet) = self.selective.as_mut().and_then(|s| s.poll(host)) {
                self.fabric.inject(self.now, host, packet);
                continue;
            }
            let engine = &mut self.hosts[host as usize].engine;
            // A train is large: it stays where it is.
            let next = engine.poll_transmit(now, &LinkCaps::SINGLE);
            let Some(train) = &next else { break };
            self.inject(host, train);
            self.hosts[host as usize].engine.trains_read();
        }
        while let Some(news) = self.hosts[host as usize].poll_news() {
            let ended = match news {
                News::Arrived(flow) => {
                    for next in self.order.arrived(flow) {
                        let start = self.scenario.flows[next].start.max(self.now);
                        self.agenda.push(start, Event::Start(next));
                    }
                    continue;
                }
                News::Ended(ended) => ended,
            };
            let outcome = &mut self.flows[ended.flow];
            (outcome.ended, outcome.status) = (Some(self.now), Some(ended.status));
            self.unfinished -= 1;
            if let Some(selective) = &mut self.selective {
                selective.end(ended.flow);
            }
            flow_hosts::end(&mut self.hosts, host, &ended);
        }
        self.plan_timer(host);
    }

    fn plan_timer(&mut self, host: u32) {
        let Some(at) = self.hosts[host as usize].engine.poll_timeout() else { return };
        if at <= self.instant() && !self.fabric.has_room(host) {
            // What is due waits for the port, which says when it is ready.
            return;
        }
        // Before the next nanosecond nothing new would happen.
        let at = Time::from(at).max(Time::from_ns(self.now.as_ns() + 1));
        let timer = &mut self.timers[host as usize];
        if timer.is_none_or(|old| at < old) {
            *timer = Some(at);
            self.agenda.push(at, Event::Timer(host));
        }
    }

    fn inject(&mut self, host: u32, train: &Train) {
        let flow = &self.scenario.flows[train.path.flow_label as usize - 1];
        let is_back = flow.src != host;
        let (to, key) = match is_back {
            false => (flow.dst, flow.key),
            true => (flow.src, flow.key.reversed()),
        };
        let (wire, mtu) = (self.scenario.wire, self.scenario.mtu.bytes() as u32);
        let map = self.scenario.fabric.priorities;
        let priority = map.priority(train.path.traffic_class, train.path.sl);
        for i in 0..train.count {
            let body = Body::new(train, i, is_back, &mut self.routing);
            let packet = Packet {
                to,
                len: body.wire_len(wire, mtu) + map.tag_len(),
                priority,
                ecn: body.ecn(),
                key,
                body,
            };
            if let Some(selective) = &mut self.selective
                && let Kind::Request(psn) = body.kind()
            {
                let next = selective.on_sent(self.now, &packet, psn);
                self.plan_recovery(body.flow, next);
            }
            match self.echoes.get(body.flow as usize).filter(|_| body.is_answer()) {
                Some(hops) => self.fabric.inject_echo(self.now, host, packet, hops),
                None => self.fabric.inject(self.now, host, packet),
            }
        }
    }

    /// Ends the run, wherever it is.
    pub fn finish(mut self) -> Outcome {
        if self.deadlock.is_none() && self.unfinished > 0 {
            self.deadlock = self.fabric.find_deadlock(self.now, DEADLOCK_PS);
        }
        let ports = self.fabric.final_stats(self.now);
        let mut pauses = self.pauses;
        pauses.extend(self.fabric.take_pauses());
        let case = Case {
            fabric: &self.fabric,
            scenario: &self.scenario,
            flows: &self.flows,
            ports: &ports,
            pauses: &pauses,
            deadlock: self.deadlock.as_deref(),
            now: self.now,
        };
        Outcome {
            diagnosis: case.diagnose(),
            flows: self.flows,
            deadlock: self.deadlock,
            totals: self.fabric.totals().clone(),
            topology: self.scenario.topology,
            ports,
            pauses,
            series: self.series,
            at: self.now,
            host_events: self.events,
        }
    }
}

impl Scenario {
    /// Bytes of a flow that a full packet stands for.
    pub(super) fn model_payload(&self) -> u64 {
        match self.wire {
            WireLength::RoceV2 | WireLength::Infiniband => self.mtu.bytes() as u64,
            WireLength::Model { payload, .. } => u64::from(payload),
        }
    }
}

/// Whether ports can wait for each other: with pauses, and with credits.
fn can_deadlock(fabric: &feroce_fabric::Config) -> bool {
    fabric.pfc.is_some() || fabric.infiniband.is_some()
}

/// How long a flow would take alone: there and back, the first packet over every link, and all its
/// bytes over the slowest.
fn ideal_ps(scenario: &Scenario, flow: &Flow, path: &[(Rate, u64)]) -> u64 {
    let payload = scenario.model_payload();
    let first = u32::try_from(payload).unwrap_or(u32::MAX);
    let base: u64 = path.iter().map(|(rate, delay_ps)| 2 * delay_ps + rate.ps_of(first)).sum();
    let tag_len = scenario.fabric.priorities.tag_len();
    let overhead = u64::from(scenario.wire.overhead() + tag_len);
    let bytes = flow.bytes + flow.bytes.div_ceil(payload) * overhead;
    let slowest = path.iter().map(|(rate, _)| rate.bps()).min().unwrap_or(u64::MAX);
    base + (u128::from(bytes) * 8_000_000_000_000 / u128::from(slowest)) as u64
}

fn check_flows(scenario: &Scenario, hosts: usize) -> Result<(), RunError> {
    if scenario.flows.len() > MOST_FLOWS {
        return Err(RunError::TooManyFlows(scenario.flows.len()));
    }
    let is_wrong = |flow: &Flow| {
        flow.src == flow.dst || flow.src as usize >= hosts || flow.dst as usize >= hosts
    };
    if let Some(i) = scenario.flows.iter().position(is_wrong) {
        return Err(RunError::Flow(i));
    }
    // Flows that wait for earlier ones only cannot wait for each other.
    let is_late = |&&(i, j): &&(usize, usize)| j >= i || i >= scenario.flows.len();
    match scenario.after.iter().find(is_late) {
        Some(&(i, j)) => Err(RunError::After(i, j)),
        None => Ok(()),
    }
}
