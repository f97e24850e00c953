//! Draws what a seed decides about a run: hosts, flows and their programs.

use feroce_engine::Engine;
use feroce_testkit::address;
use feroce_train::GidEntry;
use feroce_wire::{Gid, Pmtu};

use crate::dice::Dice;
use crate::kernel::Host;
use crate::swarm::Options;
use crate::swarm::flow::{End, FlowSpec, Kind, Mishap, connect};
use crate::swarm::knobs::Knobs;
use crate::swarm::node::Node;
use crate::swarm::plan::Planner;
use crate::swarm::reach::Reach;

/// Everything that is drawn before the run starts.
pub(crate) struct Drawn {
    pub(crate) hosts: Vec<Host>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) ends: Vec<End>,
    pub(crate) reach: Vec<Reach>,
    pub(crate) specs: Vec<FlowSpec>,
}

/// The limits of a run, as the options restrict them.
pub(crate) fn draw_knobs(dice: &mut Dice, options: &Options) -> Knobs {
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
    knobs
}

/// Draws hosts, flows and their programs.
pub(crate) fn draw(dice: &mut Dice, knobs: &Knobs, options: &Options) -> Drawn {
    let srq_len = dice.size(64..=2 * knobs.pmtu.bytes());
    let depth = if knobs.calm { 4096 } else { 16 };
    let (mut hosts, mut nodes): (Vec<Host>, Vec<Node>) = (0..knobs.nodes)
        .map(|i| {
            let mut engine = Engine::new(knobs.config(dice));
            let (mut style, habits) = Knobs::style(dice);
            style.rx = options.rx.unwrap_or(style.rx);
            let gid = gid_of(i as u8, knobs.ipv6);
            engine.set_gid(0, GidEntry::roce_v2(gid));
            engine.poll_event();
            let node = Node::new(&mut engine, habits, knobs.memory, depth, dice);
            (Host::new(engine, gid, style), node)
        })
        .unzip();
    let (ends, reach, specs) = draw_flows(dice, knobs, &mut hosts, &mut nodes, srq_len, options);
    Drawn { hosts, nodes, ends, reach, specs }
}

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
            ends.truncate(first);
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
