//! The world: nodes, flows, the wire, and time.

use std::collections::BTreeMap;

use feroce_engine::{AsyncEvent, Event, QpState};
use feroce_train::Instant;
use feroce_wire::{Pmtu, Qpn};

use crate::agenda::Agenda;
use crate::dice::Dice;
use crate::flow::{End, FlowSpec, Kind, Mishap, connect};
use crate::knobs::Knobs;
use crate::node::{Node, RxStyle};
use crate::oracle::Violation;
use crate::plan::{Planner, Reach};
use crate::swarm::{Options, Sabotage};
use crate::trace::{Fate, Happening, Head, Trace};
use crate::wire::{Batch, Delivery, Wire};

/// Something to happen.
#[derive(Debug)]
pub(crate) enum Doing {
    /// Packets arrive at a node.
    Deliver(usize, Batch),
    /// The timer of a node runs out.
    Timer(usize),
    /// The link of a node can take another train.
    Pump(usize),
    /// The application of a node runs.
    Tick(usize),
    /// The mishap of the flow of that end strikes it.
    Strike(usize),
    /// Both ends of a flow are told that it is over.
    Hangup(usize),
    /// The flow of that end and the next is connected again.
    Revive(usize),
    /// An end in SQE goes on.
    Recover(usize),
    /// A packet from nowhere arrives.
    Forge,
    /// The queues of a node change their depth.
    Resize(usize),
    /// The send queue of an end is stopped, and started again.
    Drain(usize),
    Resume(usize),
}

/// After the faults stop, everything must be over within this time.
const PATIENCE_NS: u64 = 60_000_000_000;
/// And within this many events.
const MOST_EVENTS: u64 = 3_000_000;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) agenda: Agenda<Doing>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) ends: Vec<End>,
    pub(crate) reach: Vec<Reach>,
    pub(crate) specs: Vec<FlowSpec>,
    pub(crate) wire: Wire,
    pub(crate) trace: Trace,
    /// Decides when applications run.
    pub(crate) dice: Dice,
    pub(crate) knobs: Knobs,
    pub(crate) sabotage: Option<Sabotage>,
    pub(crate) events: u64,
    pub(crate) deliveries: Vec<Delivery>,
    /// Completions by outcome.
    pub(crate) outcomes: BTreeMap<String, u64>,
}

impl World {
    /// Makes everything that `seed` decides.
    pub(crate) fn new(seed: u64, options: &Options) -> Self {
        let mut dice = Dice::new(seed, 1);
        let mut knobs = Knobs::new(&mut dice);
        if options.predictable {
            (knobs.victims, knobs.shared_receives) = (0.0, 0.0);
        }
        if options.portable {
            knobs.restrict();
        }
        if options.no_faults {
            knobs.faults = crate::wire::Faults::default();
        }
        let srq_len = dice.size(64..=2 * knobs.pmtu.bytes());
        let mut nodes: Vec<Node> = (0..knobs.nodes)
            .map(|i| {
                let config = knobs.config(&mut dice);
                let mut style = Knobs::style(&mut dice);
                style.rx = options.rx.unwrap_or(style.rx);
                let depth = if knobs.calm { 4096 } else { 16 };
                Node::new(i as u8, config, style, knobs.memory, depth, knobs.ipv6, &mut dice)
            })
            .collect();
        let (ends, reach, specs) = draw_flows(&mut dice, &knobs, &mut nodes, srq_len, options);
        let gids = nodes.iter().map(|n| n.gid).collect();
        let dice_for_wire = Dice::new(seed, 2);
        let mut wire =
            Wire::new(dice_for_wire, gids, knobs.faults, knobs.faults_until, knobs.latency);
        wire.sabotage = options.sabotage == Some(Sabotage::PayloadByte);
        let mut world = Self {
            now: Instant::ZERO,
            agenda: Agenda::default(),
            nodes,
            ends,
            reach,
            specs,
            wire,
            trace: Trace::new(options.trace),
            dice: Dice::new(seed, 3),
            knobs,
            sabotage: options.sabotage,
            events: 0,
            deliveries: Vec::new(),
            outcomes: BTreeMap::new(),
        };
        world.schedule_start();
        world
    }

    fn schedule_start(&mut self) {
        if self.knobs.calm {
            (0..self.ends.len()).for_each(|end| self.post_receives(end));
            for node in 0..self.nodes.len() {
                (0..self.nodes[node].srqs.len()).for_each(|i| self.post_shared(node, i));
            }
        }
        for node in 0..self.nodes.len() {
            let at = Instant::from_nanos(self.dice.range(0..=10_000));
            self.want_tick(node, at);
        }
        for node in 0..self.nodes.len() {
            for _ in 0..self.dice.pick(&[0, 0, 1, 3]) {
                let at = Instant::from_nanos(self.dice.range(0..=1_000_000));
                self.agenda.push(at, Doing::Resize(node));
            }
        }
        for _ in 0..self.knobs.forged {
            let at = Instant::from_nanos(self.dice.range(0..=2_000_000));
            self.agenda.push(at, Doing::Forge);
        }
        for end in 0..self.ends.len() {
            let busy = self.dice.range(1_000..=400_000);
            if self.ends[end].mishap.is_none() {
                let drains = self.ends[end].kind != Kind::Xrc && !self.knobs.calm;
                if drains && self.dice.chance(0.05) {
                    self.agenda.push(Instant::from_nanos(busy), Doing::Drain(end));
                }
            } else if end % 2 == 0 && self.ends[end].mishap != Some(Mishap::SendError) {
                let struck = if self.ends[end].mishap == Some(Mishap::Vanish) {
                    end + 1
                } else {
                    end + self.dice.size(0..=1)
                };
                self.agenda.push(Instant::from_nanos(busy), Doing::Strike(struck));
                let over = busy + self.dice.pick(&[1_000_000, 30_000_000, 2_000_000_000]);
                self.agenda.push(Instant::from_nanos(over), Doing::Hangup(end));
            }
        }
    }

    /// Runs until nothing is left to happen.
    pub(crate) fn run(&mut self) -> Result<(), Violation> {
        let deadline = self.knobs.faults_until.plus_nanos(PATIENCE_NS);
        while let Some((at, doing)) = self.agenda.pop() {
            self.now = at;
            self.events += 1;
            if at > deadline || self.events > MOST_EVENTS {
                return Err(Violation::new("liveness", self.stuck()));
            }
            self.handle(doing)?;
        }
        self.finish()
    }

    fn handle(&mut self, doing: Doing) -> Result<(), Violation> {
        match doing {
            Doing::Deliver(to, batch) => self.deliver(to, &batch),
            Doing::Timer(node) => {
                if self.nodes[node].timer_at == Some(self.now) {
                    self.nodes[node].timer_at = None;
                    self.nodes[node].engine.handle_timeout(self.now);
                    self.pump(node);
                }
            }
            Doing::Pump(node) => {
                if self.nodes[node].pump_at == Some(self.now) {
                    self.nodes[node].pump_at = None;
                    self.pump(node);
                }
            }
            Doing::Tick(node) => {
                if self.nodes[node].tick_at == Some(self.now) {
                    self.nodes[node].tick_at = None;
                    return self.tick(node);
                }
            }
            Doing::Strike(end) => self.strike(end),
            Doing::Hangup(end) => {
                self.hang_up(end);
                self.hang_up(end ^ 1);
                if self.ends[end].mishap == Some(Mishap::Reset) {
                    // Late enough that nothing of the old connection is on its way.
                    self.agenda.push(self.now.plus_nanos(5_000_000), Doing::Revive(end));
                }
            }
            Doing::Revive(end) => return self.revive(end),
            Doing::Recover(end) => return self.recover(end),
            Doing::Forge => self.forge(),
            Doing::Resize(node) => self.resize(node),
            Doing::Drain(end) => {
                self.set_state(end, QpState::Sqd, "drains");
                let at = self.now.plus_nanos(self.dice.range(1_000..=3_000_000));
                self.agenda.push(at, Doing::Resume(end));
            }
            Doing::Resume(end) => self.set_state(end, QpState::Rts, "resumes"),
        }
        Ok(())
    }

    fn deliver(&mut self, to: usize, batch: &Batch) {
        if self.wire.is_gone(to) {
            return;
        }
        for packet in &batch.packets {
            let (from, fate, head) = (batch.from, Fate::Delivered, Head::new(packet));
            self.trace.add(self.now, Happening::Packet { from, to, fate, head });
        }
        match self.nodes[to].style.rx {
            RxStyle::Train => self.nodes[to].receive_trains(self.now, batch),
            RxStyle::Packets | RxStyle::EachPacket => {
                for i in 0..batch.packets.len() {
                    self.nodes[to].receive_one(self.now, batch, i);
                    if self.nodes[to].style.rx == RxStyle::EachPacket {
                        self.pump(to);
                    }
                }
            }
        }
        self.pump(to);
    }

    /// Takes from an engine what it wants done.
    pub(crate) fn pump(&mut self, node: usize) {
        let now = self.now;
        let one_train = self.nodes[node].style.one_train;
        let caps = self.nodes[node].style.caps;
        let mut waits = self.nodes[node].pump_at.is_some();
        let acks_wait =
            self.nodes[node].style.acks_wait && !self.nodes[node].engine.has_waiting_acks();
        self.nodes[node].engine.let_acks_wait(acks_wait);
        while !waits {
            let Some(train) = self.nodes[node].engine.poll_transmit(now, &caps) else {
                break;
            };
            let out = &mut self.deliveries;
            self.wire.carry(now, node, &train, &mut self.trace, out);
            self.nodes[node].engine.trains_read();
            if one_train {
                let at = now.plus_nanos(100 + train.total_len() as u64 / 4);
                self.nodes[node].pump_at = Some(at);
                self.agenda.push(at, Doing::Pump(node));
                waits = true;
            }
        }
        // Those to itself do not show.
        self.nodes[node].engine.trains_read();
        for Delivery { at, to, batch } in self.deliveries.drain(..) {
            self.agenda.push(at, Doing::Deliver(to, batch));
        }
        self.drain_events(node);
        let engine = &self.nodes[node].engine;
        let acks_due = engine.has_waiting_acks().then(|| now.plus_nanos(300));
        let timeout = [engine.poll_timeout(), acks_due].into_iter().flatten().min();
        if let Some(at) = timeout.filter(|_| !waits || timeout > Some(now)) {
            let at = at.max(now.plus_nanos(1));
            if self.nodes[node].timer_at.is_none_or(|old| at < old) {
                self.nodes[node].timer_at = Some(at);
                self.agenda.push(at, Doing::Timer(node));
            }
        }
        self.look_after(node);
    }

    fn drain_events(&mut self, node: usize) {
        while let Some(event) = self.nodes[node].engine.poll_event() {
            match event {
                Event::Completion(_) => self.tick_soon(node),
                Event::Async(AsyncEvent::CqError(_)) => {
                    panic!("a completion queue of node {node} overran")
                }
                Event::Async(AsyncEvent::LastWqeReached(qpn)) => {
                    let mut ends = self.ends.iter_mut();
                    if let Some(end) = ends.find(|e| e.node == node && e.qpn == qpn) {
                        end.last_reached = true;
                    }
                }
                Event::Async(_) => {}
            }
        }
    }

    /// Wakes the application if there is something for it to do.
    fn look_after(&mut self, node: usize) {
        let polls = !self.nodes[node].style.sleeps;
        if (polls && self.nodes[node].has_completions()) || self.can_post(node) {
            self.tick_soon(node);
        }
    }

    /// The application of `node` runs in a moment.
    pub(crate) fn tick_soon(&mut self, node: usize) {
        if self.nodes[node].tick_at.is_none() {
            let at = self.now.plus_nanos(self.dice.range(50..=3_000));
            self.want_tick(node, at);
        }
    }

    /// The application of `node` runs at `at`, or before.
    pub(crate) fn want_tick(&mut self, node: usize, at: Instant) {
        if self.nodes[node].tick_at.is_none_or(|old| at < old) {
            self.nodes[node].tick_at = Some(at);
            self.agenda.push(at, Doing::Tick(node));
        }
    }

    fn forge(&mut self) {
        let to = self.dice.size(0..=self.nodes.len() - 1);
        let qpns: Vec<Qpn> = self.ends.iter().filter(|e| e.node == to).map(|e| e.qpn).collect();
        let batch = self.wire.forge(to, &qpns);
        for packet in &batch.packets {
            let (fate, head) = (Fate::Forged, Head::new(packet));
            self.trace.add(self.now, Happening::Packet { from: to, to, fate, head });
        }
        self.nodes[to].receive_trains(self.now, &batch);
        self.pump(to);
    }

    /// Says what is not finished.
    pub(crate) fn stuck(&self) -> String {
        let mut text = format!("not over at {:?} after {} events", self.now, self.events);
        for (i, end) in self.ends.iter().enumerate() {
            let state = self.nodes[end.node].engine.query_qp(end.qpn).and_then(|(a, _)| a.state);
            let idle = end.is_posted() && end.sends.outstanding() == 0;
            if !idle {
                text += &format!(
                    "\n  end {i} ({:?}, node {}, qp {:#x} {state:?}): {} of {} steps posted, {} \
                     outstanding from #{:?}, {} receives outstanding, {} to post",
                    end.kind,
                    end.node,
                    end.qpn.get(),
                    end.next,
                    end.steps.len(),
                    end.sends.outstanding(),
                    end.sends.oldest(),
                    end.receives.outstanding(),
                    end.recvs.len() - end.next_recv,
                );
            }
        }
        for (i, node) in self.nodes.iter().enumerate() {
            let due = node.engine.poll_timeout();
            text += &format!("\n  node {i} wants to be called at {due:?}");
        }
        text
    }
}

/// Draws flows and their programs.
fn draw_flows(
    dice: &mut Dice,
    knobs: &Knobs,
    nodes: &mut [Node],
    srq_len: usize,
    options: &Options,
) -> (Vec<End>, Vec<Reach>, Vec<FlowSpec>) {
    let (mut ends, mut reach, mut specs) = (Vec::<End>::new(), Vec::new(), Vec::new());
    let vanish = knobs.victims > 0.0 && dice.chance(0.15);
    let gone = nodes.len() - 1;
    for _ in 0..knobs.flows {
        let a = dice.size(0..=nodes.len() - 1);
        let is_loop = dice.chance(0.1) && !options.portable;
        let b = if is_loop { a } else { (a + dice.size(1..=nodes.len() - 1)) % nodes.len() };
        let mut kind =
            dice.pick(&[Kind::Rc, Kind::Rc, Kind::Rc, Kind::Rc, Kind::Xrc, Kind::Uc, Kind::Ud]);
        if options.predictable {
            kind = Kind::Rc;
        }
        let mut nodes_of = [a, b];
        let mishap = if vanish && (a == gone || b == gone) {
            if a == gone {
                nodes_of = [b, a];
            }
            kind = Kind::Rc;
            Some(Mishap::Vanish)
        } else if kind == Kind::Rc && dice.chance(knobs.victims) {
            Some(dice.pick(&Mishap::ALL))
        } else if !kind.is_reliable() && dice.chance(knobs.victims) {
            Some(Mishap::SendError)
        } else {
            None
        };
        let spec = FlowSpec {
            kind,
            nodes: nodes_of,
            mishap,
            pmtu: if dice.chance(0.3) { dice.pick(&Pmtu::ALL) } else { knobs.pmtu },
            calm: knobs.calm,
            clean: knobs.is_clean(),
            steps: knobs.steps,
            shared_receives: knobs.shared_receives,
        };
        let first = ends.len();
        ends.extend(connect(nodes, &spec, dice));
        let (longest, pmtu) = (knobs.longest, spec.pmtu.bytes());
        let ends = &mut ends;
        let (counts, extensions) = (!options.predictable, !options.portable);
        let mut planner =
            Planner { dice, nodes, ends, first, longest, pmtu, srq_len, counts, extensions };
        if let Some(areas) = planner.draw(knobs.steps) {
            planner.spoil();
            reach.extend(areas);
            specs.push(spec);
        } else {
            // Memory ran out in the middle: a program is cut short, the flow goes.
            ends.truncate(first);
            break;
        }
    }
    for end in ends.iter().filter(|end| !end.kind.is_reliable() || end.mishap.is_some()) {
        // A message that is cut short leaves its mark in a receive that anyone may get.
        if let (Some(i), node) = (end.srq, &mut nodes[end.node]) {
            let pieces = node.srqs[i].recvs.iter().flat_map(|recv| &recv.pieces);
            pieces.for_each(|&(at, len)| node.memory.forget(at, len));
        }
    }
    (ends, reach, specs)
}
