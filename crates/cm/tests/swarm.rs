//! Two managers, a network that loses, duplicates and reorders messages, consumers that make random
//! calls, and peers that die. Every connection ends exactly once, both sides agree on how it ended,
//! and no state is left.
//!
//! A failure prints its seed; `FEROCE_SEED=n cargo test -p feroce-cm --test swarm` repeats it.
//! `FEROCE_TEST_SEEDS=n` runs as many.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::collections::BTreeMap;

use crate::common::{A, B, SERVICE, connect, peer};
use feroce_cm::{Accept, Accepts, Config, ConnId, Event, Manager, Serves, Transmit, code_ns};
use feroce_train::Instant;
use feroce_wire::cm::RejReason;
use feroce_wire::{Gid, Qpn};

const SEEDS: u64 = 1000;
const SECOND: u64 = 1_000_000_000;

/// The history of a connection on one side.
#[derive(Debug, Default)]
struct Story {
    established: bool,
    last: Option<&'static str>,
    destroyed: bool,
    /// The communication ID of the peer, on the passive side.
    remote: Option<u32>,
    told: Vec<String>,
}

#[derive(Debug)]
enum Act {
    Deliver(Box<Transmit>),
    Connect,
    Answer(ConnId),
    Ready(ConnId),
    Disconnect(ConnId),
    Destroy(ConnId),
    Crash,
}

struct Node {
    gid: Gid,
    manager: Manager,
    stories: BTreeMap<ConnId, Story>,
    qpn: u32,
    lives: u64,
}

impl Node {
    fn new(gid: Gid, seed: u64, lives: u64) -> Self {
        let max_answers = max_answers(seed);
        let seed = seed ^ u64::from(gid.0[15]) << 32 ^ lives << 48;
        let mut manager = Manager::new(Config {
            seed,
            probe_ns: 200_000_000,
            patience_ns: 100_000_000,
            max_answers,
            ..Config::default()
        });
        manager
            .listen(Instant::from_nanos(0), SERVICE, Accepts::Any, Serves::Connections, 64)
            .unwrap();
        // Half of the nodes that come back use the numbers of their queue pairs again.
        let qpn = if seed & 2 == 0 { 0x100 } else { 0x100 + 0x1000 * lives as u32 };
        Self { gid, manager, stories: BTreeMap::new(), qpn, lives }
    }
}

/// Half of the seeds send as many answers to a peer that has never answered as to any other. With
/// few, so many may be lost that one side believes in a connection that the other has given up.
fn max_answers(seed: u64) -> u8 {
    if seed & 4 == 0 { 3 } else { u8::MAX }
}

/// Probabilities of faults in a run.
struct Knobs {
    loss: f64,
    double: f64,
    delay_ns: u64,
    destroy: f64,
    reject: f64,
    crash: bool,
}

struct World {
    seed: u64,
    random: fastrand::Rng,
    knobs: Knobs,
    now: Instant,
    agenda: BTreeMap<(Instant, u64), (usize, Act)>,
    order: u64,
    nodes: [Node; 2],
    /// Faults have stopped, and consumers end their connections.
    closing: bool,
}

/// Prints the seed if the run fails.
struct Banner(u64);

impl Drop for Banner {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("FEROCE_SEED={}", self.0);
        }
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut chance = |p: f64| if random.bool() { random.f64() * p } else { 0.0 };
        let (loss, double) = (chance(0.3), chance(0.5));
        let (destroy, reject) = (chance(0.3), chance(0.4));
        // The protocol relies on no packet being in the network for longer than the packet life
        // time.
        let delay_ns = random.u64(1..code_ns(18));
        let knobs = Knobs { loss, double, delay_ns, destroy, reject, crash: random.u8(..4) == 0 };
        Self {
            seed,
            random,
            knobs,
            now: Instant::from_nanos(SECOND),
            agenda: BTreeMap::new(),
            order: 0,
            nodes: [Node::new(A, seed, 0), Node::new(B, seed, 0)],
            closing: false,
        }
    }

    fn later(&mut self, node: usize, most_ns: u64, act: Act) {
        self.order += 1;
        let at = self.now.plus_nanos(self.random.u64(0..=most_ns));
        self.agenda.insert((at, self.order), (node, act));
    }

    fn chance(&mut self, p: f64) -> bool {
        !self.closing && self.random.f64() < p
    }

    fn run(mut self) {
        for _ in 0..self.random.usize(1..8) {
            let node = self.random.usize(..2);
            self.later(node, 20 * SECOND, Act::Connect);
        }
        if self.knobs.crash {
            let node = self.random.usize(..2);
            self.later(node, 40 * SECOND, Act::Crash);
        }
        self.until_quiet();
        // Connections that are still open are closed on a network without faults.
        self.closing = true;
        for node in 0..2 {
            let open: Vec<ConnId> = self.nodes[node].stories.keys().copied().collect();
            for conn in open {
                self.later(node, SECOND, Act::Disconnect(conn));
            }
        }
        self.until_quiet();
        self.check();
    }

    /// Advances time until no timer and no action is left.
    fn until_quiet(&mut self) {
        for _ in 0..100_000 {
            self.drain();
            let timer = (0..2)
                .filter_map(|node| Some((self.nodes[node].manager.poll_timeout()?, node)))
                .min();
            let planned = self.agenda.first_key_value().map(|(&(at, _), _)| at);
            match (timer, planned) {
                (None, None) => return,
                (Some((at, node)), planned) if planned.is_none_or(|p| at <= p) => {
                    self.now = self.now.max(at);
                    self.nodes[node].manager.handle_timeout(self.now);
                }
                _ => {
                    let ((at, _), (node, act)) = self.agenda.pop_first().unwrap();
                    self.now = self.now.max(at);
                    self.act(node, act);
                }
            }
        }
        panic!("never quiet");
    }

    fn act(&mut self, node: usize, act: Act) {
        let now = self.now;
        let this = &mut self.nodes[node];
        match act {
            Act::Deliver(mad) => {
                let from = peer(this.gid);
                this.manager.handle_mad(now, from, &mad.bytes);
            }
            Act::Connect => {
                this.qpn += 1;
                let conn = this.manager.connect(now, &connect(this.gid, Qpn::new(this.qpn)));
                this.stories.insert(conn, Story::default());
                if self.chance(self.knobs.destroy) {
                    self.later(node, 60 * SECOND, Act::Destroy(conn));
                }
            }
            Act::Answer(conn) => {
                let reject = self.knobs.reject;
                if self.chance(reject) {
                    self.reject(node, conn);
                } else {
                    let this = &mut self.nodes[node];
                    this.qpn += 1;
                    let accept = Accept { qpn: Qpn::new(this.qpn), ..Accept::default() };
                    let _ = this.manager.accept(now, conn, &accept);
                }
            }
            Act::Ready(conn) => {
                if this.manager.ready(conn).is_ok() {
                    this.stories.get_mut(&conn).unwrap().established = true;
                    self.plan_end(node, conn);
                }
            }
            Act::Disconnect(conn) => {
                let _ = this.manager.disconnect(now, conn);
            }
            Act::Destroy(conn) => {
                if let Some(story) = this.stories.get_mut(&conn) {
                    this.manager.destroy(now, conn);
                    story.destroyed = true;
                }
            }
            Act::Crash => {
                let (gid, lives) = (this.gid, this.lives + 1);
                self.nodes[node] = Node::new(gid, self.seed, lives);
            }
        }
    }

    fn reject(&mut self, node: usize, conn: ConnId) {
        let this = &mut self.nodes[node];
        if this.manager.reject(self.now, conn, RejReason::CONSUMER, &[1; 148]).is_ok() {
            // A side that rejects a request gets no event for it, so its story ends here.
            this.stories.get_mut(&conn).unwrap().last = Some("refused");
        }
    }

    /// Each side disconnects an established connection with probability 0.6: one side, both or
    /// neither do so.
    fn plan_end(&mut self, node: usize, conn: ConnId) {
        if self.chance(0.6) {
            self.later(node, 30 * SECOND, Act::Disconnect(conn));
        }
    }

    /// Takes the datagrams and events of the managers.
    fn drain(&mut self) {
        for node in 0..2 {
            while let Some(mad) = self.nodes[node].manager.poll_mad().map(Box::new) {
                if self.chance(self.knobs.loss) {
                    continue;
                }
                let delay_ns = if self.closing { SECOND } else { self.knobs.delay_ns };
                if self.chance(self.knobs.double) {
                    self.later(1 - node, delay_ns, Act::Deliver(mad.clone()));
                }
                self.later(1 - node, delay_ns, Act::Deliver(mad));
            }
            while let Some(event) = self.nodes[node].manager.poll_event() {
                self.told(node, &event);
            }
        }
    }

    fn told(&mut self, node: usize, event: &Event) {
        let conn = event.conn();
        let story = self.nodes[node].stories.entry(conn).or_default();
        story.told.push(format!("{event:?}").chars().take(40).collect());
        assert!(!story.destroyed, "{conn:?} was destroyed, and then: {event:?}");
        if event.is_final() {
            assert_eq!(story.last, None, "ended twice: {story:?}");
        } else if !matches!(event, Event::TimewaitExit { .. }) {
            assert_eq!(story.last, None, "goes on after its end: {story:?}");
        }
        match event {
            Event::Request(incoming) => {
                story.remote = Some(incoming.req.local_id.0);
                let listener = incoming.listener;
                self.nodes[node].manager.taken(listener);
                self.later(node, 20 * SECOND, Act::Answer(conn));
                if self.chance(self.knobs.destroy) {
                    self.later(node, 60 * SECOND, Act::Destroy(conn));
                }
            }
            Event::Replied { .. } => {
                if self.chance(self.knobs.reject / 4.0) {
                    self.reject(node, conn);
                } else {
                    self.later(node, 20 * SECOND, Act::Ready(conn));
                }
            }
            Event::Established { .. } => {
                story.established = true;
                self.plan_end(node, conn);
            }
            Event::Rejected { .. } => story.last = Some("rejected"),
            Event::Unreachable { .. } => story.last = Some("unreachable"),
            Event::Disconnected { .. } => story.last = Some("disconnected"),
            Event::TimewaitExit { .. } => assert_eq!(story.last, Some("disconnected")),
            Event::SidrRequest(_) | Event::SidrReplied { .. } => panic!("{event:?}"),
        }
    }

    fn check(&self) {
        let somebody_died = self.nodes.iter().any(|n| n.lives > 0);
        for (node, this) in self.nodes.iter().enumerate() {
            assert!(this.manager.is_empty(), "{:?}", this.manager);
            for (conn, story) in &this.stories {
                assert!(story.destroyed || story.last.is_some(), "{conn:?} never ended: {story:?}");
                let Some(remote) = story.remote else { continue };
                let others = &self.nodes[1 - node].stories;
                let other = others.iter().find(|(id, _)| id.comm_id().0 == remote);
                let Some((_, other)) = other else {
                    assert!(somebody_died, "{conn:?} has no counterpart");
                    continue;
                };
                let was_given_up = max_answers(self.seed) == 3
                    && self.knobs.loss > 0.0
                    && story.last == Some("unreachable");
                if story.destroyed || other.destroyed || somebody_died || was_given_up {
                    continue;
                }
                // Only one of the two may have learnt that it was ready, but not that it was not.
                let over = |s: &Story| s.last == Some("disconnected");
                assert_eq!(over(story), over(other), "{story:?} but {other:?}");
            }
        }
    }
}

#[test]
fn every_connection_ends_once_and_both_sides_agree() {
    let number = |name| std::env::var(name).ok().map(|s| s.parse::<u64>().unwrap());
    let all = 0..number("FEROCE_TEST_SEEDS").unwrap_or(SEEDS);
    let seeds = number("FEROCE_SEED").map_or(all, |seed| seed..seed + 1);
    for seed in seeds {
        let _banner = Banner(seed);
        World::new(seed).run();
    }
}
