//! What must hold in every fabric for all packets that hosts send: bytes are delivered, dropped or
//! inside, and a buffer never holds more than it has.

use feroce_fabric::{
    BufferConfig, Config, DropReason, Ecn, Fabric, FlowKey, Headroom, Link, Node, Output, Packet,
    PfcConfig, PriorityMap, Quantize, Rate, Spread, TelemetryConfig, Time, Topology,
};
use feroce_train::Ecn as EcnBits;

/// Seeds of a test run.
const SEEDS: u64 = 60;

fn pick<T: Copy, const N: usize>(rng: &mut fastrand::Rng, choices: [T; N]) -> T {
    choices[rng.usize(..N)]
}

/// A tree of switches with random extra links, hosts and rates.
fn topology(rng: &mut fastrand::Rng) -> Topology {
    let mut topology = Topology::default();
    let switches = rng.usize(1..=6);
    let hosts = rng.usize(2..=8);
    for _ in 0..switches {
        topology.add(Node::Switch);
    }
    let rate = |rng: &mut fastrand::Rng| Rate::from_gbps(pick(rng, [10, 25, 100, 400]));
    let loss = if rng.u8(..4) == 0 { 0.01 } else { 0.0 };
    for node in 1..switches {
        let ends = [rng.usize(..node), node];
        let link = Link { ends, rate: rate(rng), delay_ps: rng.u64(..5_000_000), loss };
        topology.link(link);
        if rng.bool() && node > 1 {
            topology.connect(node, rng.usize(..node), rate(rng), 1_000_000);
        }
    }
    for _ in 0..hosts {
        let host = topology.add(Node::Host);
        topology.connect(host, rng.usize(..switches), rate(rng), rng.u64(..2_000_000));
    }
    topology
}

fn config(rng: &mut fastrand::Rng, seed: u64) -> Config {
    let pfc = PfcConfig {
        priorities: rng.u8(..),
        quanta: pick(rng, [None, Some(50), Some(u16::MAX)]),
        watchdog_ps: pick(rng, [None, Some(50_000_000)]),
    };
    let headroom = pick(rng, [Headroom::Delays(1), Headroom::WorstCase { mtu: 4200 }]);
    Config {
        seed,
        infiniband: None,
        buffer: BufferConfig { bytes: 1 << rng.u32(15..=21), headroom, ..BufferConfig::default() },
        pfc: rng.bool().then_some(pfc),
        priorities: PriorityMap::default(),
        ecn: if rng.bool() { Ecn::ByRate } else { Ecn::Off },
        spread: if rng.bool() { Spread::Flows } else { Spread::Packets },
        strict: rng.u8(..),
        telemetry: rng.bool().then_some(TelemetryConfig::default()),
        quantize: if rng.bool() { Quantize::Ns3 } else { Quantize::Picoseconds },
        log_pauses: true,
        announce: false,
    }
}

/// Everything that a run shows, for comparison with another run of the same seed.
#[derive(PartialEq, Debug)]
struct Seen {
    deliveries: Vec<(u64, u32)>,
    pauses: usize,
    dropped: u64,
}

fn run(seed: u64) -> Seen {
    let mut rng = fastrand::Rng::with_seed(seed);
    let topology = topology(&mut rng);
    let config = config(&mut rng, seed);
    let (buffer, links) = (config.buffer.bytes, topology.links().len());
    let nodes = topology.nodes().len();
    let mut fabric = Fabric::new(topology, config).expect("a tree connects everything");
    let hosts = fabric.hosts() as u32;
    let mut deliveries = Vec::new();
    let mut number = 0;
    for round in 0..300u64 {
        let now = Time::from_ns(round * rng.u64(1..2000)).max(fabric.now());
        let (host, to) = (rng.u32(..hosts), rng.u32(..hosts));
        for _ in 0..rng.u32(..40) {
            if host == to || !fabric.has_room(host) {
                break;
            }
            number += 1;
            let key = FlowKey { src: host, dst: to, ports: rng.u32(..4) };
            let (len, priority) = (rng.u32(64..4200), rng.u8(..8));
            let packet = Packet { to, len, priority, ecn: EcnBits::Capable, key, body: number };
            fabric.inject(now, host, packet);
        }
        if rng.u8(..50) == 0 {
            fabric.set_link(now, rng.usize(..links), rng.bool());
        }
        let until = now.plus_ps(rng.u64(..3_000_000));
        while fabric.next_at().is_some_and(|at| at <= until) {
            if let Some(Output::Delivered(packet)) = fabric.poll(until) {
                deliveries.push((fabric.now().as_ps(), packet.body));
            }
            let used = (0..nodes).filter_map(|node| fabric.buffer_used(node)).max();
            assert!(used <= Some(buffer), "seed {seed}: {used:?} bytes in a buffer of {buffer}");
        }
        let totals = fabric.totals();
        let known = totals.delivered.bytes + totals.dropped_all().bytes + fabric.bytes_inside();
        assert_eq!(totals.injected.bytes, known, "seed {seed}: bytes vanished or appeared");
    }
    for reason in DropReason::ALL {
        let at_ports = fabric.port_stats().map(|(.., stats)| stats.dropped(reason).packets);
        let all = fabric.totals().dropped(reason).packets;
        assert_eq!(at_ports.sum::<u64>(), all, "seed {seed}: {reason:?} at ports, and in all");
    }
    let dropped = fabric.totals().dropped_all().packets;
    Seen { deliveries, pauses: fabric.take_pauses().len(), dropped }
}

#[test]
fn bytes_are_delivered_dropped_or_inside_and_buffers_hold_what_they_have() {
    let mut all = (0, 0, 0);
    for seed in 0..SEEDS {
        let seen = run(seed);
        all.0 += seen.deliveries.len();
        all.1 += seen.pauses;
        all.2 += seen.dropped;
    }
    assert!(all.0 > 0 && all.1 > 0 && all.2 > 0, "deliveries, pauses and drops: {all:?}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..20 {
        assert_eq!(run(seed), run(seed));
    }
}
