//! The world of one seed: a kernel, the applications that run on its hosts, and their oracles.

use std::collections::BTreeMap;

use feroce_engine::{AsyncEvent, Engine, Event, QpState};
use feroce_train::Instant;
use feroce_wire::Qpn;

use crate::dice::Dice;
use crate::kernel::{Advanced, Kernel, Place, Shard, Trace};
use crate::mesh::Mesh;
use crate::oracle::Violation;
use crate::swarm::draw::{Drawn, draw, draw_knobs};
use crate::swarm::flow::{End, FlowSpec, Kind, Mishap};
use crate::swarm::knobs::Knobs;
use crate::swarm::node::Node;
use crate::swarm::reach::Reach;
use crate::swarm::shards::Cq;
use crate::swarm::{Options, Sabotage};

/// What applications schedule.
#[derive(Debug)]
pub(crate) enum Doing {
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
    /// A packet arrives that no host sent.
    Forge,
    /// The queues of a node change their depth.
    Resize(usize),
    /// A node makes objects that no flow uses, or destroys them.
    Churn(usize),
    /// The send queue of an end is stopped.
    Drain(usize),
    /// The send queue of an end is started again.
    Resume(usize),
}

/// After the faults stop, everything must be over within this time.
const PATIENCE_NS: u64 = 60_000_000_000;
/// And within this many events.
const MOST_EVENTS: u64 = 3_000_000;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) kernel: Kernel<Mesh, Doing>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) ends: Vec<End>,
    pub(crate) reach: Vec<Reach>,
    pub(crate) specs: Vec<FlowSpec>,
    /// Decides when applications run.
    pub(crate) dice: Dice,
    /// Decides when shards run and which of them is polled first.
    pub(crate) for_shards: Dice,
    pub(crate) knobs: Knobs,
    pub(crate) sabotage: Option<Sabotage>,
    /// Completions by outcome.
    pub(crate) outcomes: BTreeMap<String, u64>,
}

impl World {
    /// Creates everything that `seed` decides.
    pub(crate) fn new(seed: u64, options: &Options) -> Self {
        let mut dice = Dice::new(seed, 1);
        let mut for_shards = Dice::new(seed, 4);
        let knobs = draw_knobs(&mut dice, &mut for_shards, options);
        let Drawn { hosts, nodes, ends, reach, specs } =
            draw(&mut dice, &mut for_shards, &knobs, options);
        let gids = hosts.iter().map(|host| host.gid).collect();
        let mut mesh =
            Mesh::new(Dice::new(seed, 2), gids, knobs.faults, knobs.faults_until, knobs.latency);
        mesh.sabotage = options.sabotage == Some(Sabotage::PayloadByte);
        let mut world = Self {
            kernel: Kernel::new(hosts, mesh, Trace::new(options.trace)),
            nodes,
            ends,
            reach,
            specs,
            dice: Dice::new(seed, 3),
            for_shards: Dice::new(seed, 5),
            knobs,
            sabotage: options.sabotage,
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
                self.kernel.schedule(at, Doing::Resize(node));
            }
        }
        for node in 0..self.nodes.len() {
            if self.kernel.hosts[node].shards.len() > 1 {
                for _ in 0..self.for_shards.pick(&[0, 3, 12]) {
                    let at = Instant::from_nanos(self.for_shards.range(0..=1_000_000));
                    self.kernel.schedule(at, Doing::Churn(node));
                }
            }
        }
        for _ in 0..self.knobs.forged {
            let at = Instant::from_nanos(self.dice.range(0..=2_000_000));
            self.kernel.schedule(at, Doing::Forge);
        }
        for end in 0..self.ends.len() {
            let busy = self.dice.range(1_000..=400_000);
            if self.ends[end].mishap.is_none() {
                let drains = self.ends[end].kind != Kind::Xrc && !self.knobs.calm;
                if drains && self.dice.chance(0.05) {
                    self.kernel.schedule(Instant::from_nanos(busy), Doing::Drain(end));
                }
            } else if end % 2 == 0 && self.ends[end].mishap != Some(Mishap::SendError) {
                let struck = if self.ends[end].mishap == Some(Mishap::Vanish) {
                    end + 1
                } else {
                    end + self.dice.size(0..=1)
                };
                self.kernel.schedule(Instant::from_nanos(busy), Doing::Strike(struck));
                let over = busy + self.dice.pick(&[1_000_000, 30_000_000, 2_000_000_000]);
                self.kernel.schedule(Instant::from_nanos(over), Doing::Hangup(end));
            }
        }
    }

    /// Runs until nothing is left to happen.
    pub(crate) fn run(&mut self) -> Result<(), Violation> {
        let deadline = self.knobs.faults_until.plus_nanos(PATIENCE_NS);
        while let Some(next) = self.kernel.advance() {
            if self.kernel.now() > deadline || self.kernel.events() > MOST_EVENTS {
                return Err(Violation::new("liveness", self.stuck()));
            }
            match next {
                Advanced::EngineRan(node) => self.attend(node),
                Advanced::Event(doing) => self.handle(doing)?,
                Advanced::Stale => {}
            }
        }
        self.finish()
    }

    fn handle(&mut self, doing: Doing) -> Result<(), Violation> {
        match doing {
            Doing::Tick(node) => {
                if self.nodes[node].tick_at == Some(self.kernel.now()) {
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
                    self.kernel
                        .schedule(self.kernel.now().plus_nanos(5_000_000), Doing::Revive(end));
                }
            }
            Doing::Revive(end) => return self.revive(end),
            Doing::Recover(end) => return self.recover(end),
            Doing::Forge => self.forge(),
            Doing::Resize(node) => self.resize(node),
            Doing::Churn(node) => return self.churn(node),
            Doing::Drain(end) => {
                self.set_state(end, QpState::Sqd, "drains");
                let at = self.kernel.now().plus_nanos(self.dice.range(1_000..=3_000_000));
                self.kernel.schedule(at, Doing::Resume(end));
            }
            Doing::Resume(end) => self.set_state(end, QpState::Rts, "resumes"),
        }
        Ok(())
    }

    /// Lets the engines of a node transmit, and looks at what they report. Each of several shards
    /// runs at once or in a moment, as its own thread does when a doorbell is rung.
    pub(crate) fn pump(&mut self, node: usize) {
        let count = self.kernel.hosts[node].shards.len();
        for shard in 0..count {
            let place = Place { host: node, shard };
            if count == 1 || self.for_shards.chance(0.5) {
                self.kernel.pump(place);
            } else {
                let later = self.for_shards.range(1..=5_000);
                self.kernel.wake(place, self.kernel.now().plus_nanos(later));
            }
        }
        self.attend(node);
    }

    /// Where the queue pair of an end lives.
    pub(crate) fn place(&self, end: usize) -> Place {
        let End { node, shard, .. } = self.ends[end];
        Place { host: node, shard }
    }

    /// The engine that has the queue pair of an end.
    pub(crate) fn engine(&mut self, end: usize) -> &mut Engine {
        let Place { host, shard } = self.place(end);
        &mut self.kernel.hosts[host].shards[shard].engine
    }

    /// What state the queue pair of an end is in, if it exists.
    pub(crate) fn state(&self, end: usize) -> Option<QpState> {
        let Place { host, shard } = self.place(end);
        let engine = &self.kernel.hosts[host].shards[shard].engine;
        engine.query_qp(self.ends[end].qpn).and_then(|(attr, _)| attr.state)
    }

    /// Engines of a node ran: takes their events and wakes the application if it has
    /// something to do.
    fn attend(&mut self, node: usize) {
        self.drain_events(node);
        self.look_after(node);
    }

    fn drain_events(&mut self, node: usize) {
        for shard in 0..self.kernel.hosts[node].shards.len() {
            self.drain_events_of(Place { host: node, shard });
        }
    }

    fn drain_events_of(&mut self, place: Place) {
        let node = place.host;
        while let Some(event) = self.kernel.hosts[node].shards[place.shard].engine.poll_event() {
            match event {
                Event::Completion(id) => {
                    let mut cqs = self.nodes[node].cqs.iter_mut();
                    if cqs.find(|cq| cq.id == id).is_some_and(Cq::take_event) {
                        self.tick_soon(node);
                    }
                }
                Event::Poller(_) => self.tick_soon(node),
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
        let polls = !self.nodes[node].habits.sleeps;
        if (polls && self.nodes[node].has_completions()) || self.can_post(node) {
            self.tick_soon(node);
        }
    }

    /// The application of `node` runs in a moment.
    pub(crate) fn tick_soon(&mut self, node: usize) {
        if self.nodes[node].tick_at.is_none() {
            let at = self.kernel.now().plus_nanos(self.dice.range(50..=3_000));
            self.want_tick(node, at);
        }
    }

    /// The application of `node` runs at `at`, or before.
    pub(crate) fn want_tick(&mut self, node: usize, at: Instant) {
        if self.nodes[node].tick_at.is_none_or(|old| at < old) {
            self.nodes[node].tick_at = Some(at);
            self.kernel.schedule(at, Doing::Tick(node));
        }
    }

    fn forge(&mut self) {
        let to = self.dice.size(0..=self.nodes.len() - 1);
        let qpns: Vec<Qpn> = self.ends.iter().filter(|e| e.node == to).map(|e| e.qpn).collect();
        let batch = self.kernel.fabric.forge(to, &qpns);
        self.kernel.forge(to, batch);
        self.attend(to);
    }

    /// Describes what is not finished.
    pub(crate) fn stuck(&self) -> String {
        let mut text =
            format!("not over at {:?} after {} events", self.kernel.now(), self.kernel.events());
        for (i, end) in self.ends.iter().enumerate() {
            let state = self.state(i);
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
        for (i, host) in self.kernel.hosts.iter().enumerate() {
            for (shard, Shard { engine, .. }) in host.shards.iter().enumerate() {
                let due = engine.poll_timeout();
                text += &format!("\n  shard {shard} of node {i} wants to be called at {due:?}");
            }
        }
        text
    }
}
