//! Draws what a seed decides about a run: hosts, flows and their programs.

use feroce_engine::{Config, Engine};
use feroce_testkit::address;
use feroce_train::GidEntry;
use feroce_wire::{Gid, Pmtu};

use crate::dice::Dice;
use crate::kernel::{Host, Steering};
use crate::swarm::flow::{End, FlowSpec, Kind, Mishap, connect};
use crate::swarm::knobs::{Knobs, MOST_SHARDS};
use crate::swarm::node::Node;
use crate::swarm::plan::Planner;
use crate::swarm::reach::Reach;
use crate::swarm::{Options, Sabotage};

/// Everything that is drawn before the run starts.
pub(crate) struct Drawn {
    pub(crate) hosts: Vec<Host>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) ends: Vec<End>,
    pub(crate) reach: Vec<Reach>,
    pub(crate) specs: Vec<FlowSpec>,
}

/// The limits of a run, as the options restrict them. Shards have dice of their own, so that a run
/// without them does not depend on what is drawn for them.
pub(crate) fn draw_knobs(dice: &mut Dice, for_shards: &mut Dice, options: &Options) -> Knobs {
    let mut knobs = Knobs::new(dice);
    if options.predictable {
        (knobs.victims, knobs.shared_receives) = (0.0, 0.0);
    }
    if options.portable {
        knobs.restrict();
    }
    if options.no_faults {
        knobs.faults = crate::mesh::Faults::default();
    }
    knobs.draw_shards(for_shards);
    if let Some(count) = if options.portable { Some(1) } else { options.shards } {
        knobs.shards = vec![count.clamp(1, MOST_SHARDS); knobs.nodes];
    }
    if knobs.shards.iter().any(|count| *count > 1) {
        // Enough queue pairs for all shards.
        knobs.flows = for_shards.size(1..=12);
    }
    knobs
}

/// Draws hosts, flows and their programs.
pub(crate) fn draw(
    dice: &mut Dice,
    for_shards: &mut Dice,
    knobs: &Knobs,
    options: &Options,
) -> Drawn {
    let srq_len = dice.size(64..=2 * knobs.pmtu.bytes());
    let depth = if knobs.calm { 4096 } else { 16 };
    let (mut hosts, mut nodes): (Vec<Host>, Vec<Node>) = (0..knobs.nodes)
        .map(|i| {
            let config = knobs.config(dice);
            let (mut style, habits) = Knobs::style(dice);
            style.rx = options.rx.unwrap_or(style.rx);
            let gid = gid_of(i as u8, knobs.ipv6);
            let engines = engines(&config, gid, knobs.shards[i], for_shards);
            let division = knobs.division(options.no_faults, for_shards);
            let steering = Steering::new(division, Dice::new(for_shards.any(), 0));
            let mut host = Host::new(engines, gid, style, steering);
            let sabotage = options.sabotage;
            let node = Node::new(&mut host, (habits, sabotage), knobs.memory, depth, dice);
            (host, node)
        })
        .unzip();
    let (ends, reach, specs) = draw_flows(dice, knobs, &mut hosts, &mut nodes, srq_len, options);
    Drawn { hosts, nodes, ends, reach, specs }
}

/// The engines of the shards of a host. Those of several have numbers of their own for queue pairs.
fn engines(config: &Config, gid: Gid, count: usize, dice: &mut Dice) -> Vec<Engine> {
    let prefix = dice.range(1..=250) as u32;
    let engine = |shard: usize| {
        let mut config = config.clone();
        if count > 1 {
            config.seed = config.seed.wrapping_add((shard as u64).wrapping_mul(SHARD_SEED));
            (config.qpn_first, config.qpn_count) = ((prefix + shard as u32) << 16, 1 << 16);
        }
        let mut engine = Engine::new(config);
        engine.set_gid(0, GidEntry::roce_v2(gid));
        engine.poll_event();
        engine
    };
    (0..count).map(engine).collect()
}

/// What the seeds of two shards differ by.
const SHARD_SEED: u64 = 0x9e37_79b9_7f4a_7c15;

fn gid_of(number: u8, ipv6: bool) -> Gid {
    if ipv6 {
        let mut bytes = [0; 16];
        (bytes[0], bytes[15]) = (0xfd, number + 1);
        Gid(bytes)
    } else {
        address(number + 1)
    }
}

/// Draws flows and their programs.
fn draw_flows(
    dice: &mut Dice,
    knobs: &Knobs,
    hosts: &mut [Host],
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
        let is_forgotten = options.sabotage == Some(Sabotage::ForgetDereg) && !knobs.calm;
        let mishap = if is_forgotten && kind == Kind::Rc { Some(Mishap::Dereg) } else { mishap };
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
        ends.extend(connect(hosts, nodes, &spec, dice));
        let (longest, pmtu) = (knobs.longest, spec.pmtu.bytes());
        let ends = &mut ends;
        let (counts, extensions) = (!options.predictable, !options.portable);
        let mut planner =
            Planner { dice, hosts, nodes, ends, first, longest, pmtu, srq_len, counts, extensions };
        if let Some(areas) = planner.draw(knobs.steps) {
            planner.spoil();
            reach.extend(areas);
            specs.push(spec);
        } else {
            // Memory ran out in the middle: a program is cut short, the flow goes.
            ends.drain(first..).for_each(|end| end.destroy(&mut hosts[end.node]));
            break;
        }
    }
    for end in ends.iter().filter(|end| !end.kind.is_reliable() || end.mishap.is_some()) {
        // A message that is cut short leaves bytes in a shared receive that any queue pair may get.
        if let (Some(i), node) = (end.srq, &mut nodes[end.node]) {
            let pieces = node.srqs[i].recvs.iter().flat_map(|recv| &recv.pieces);
            pieces.for_each(|&(at, len)| node.memory.forget(at, len));
        }
    }
    (ends, reach, specs)
}
