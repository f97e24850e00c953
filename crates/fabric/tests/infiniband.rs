//! InfiniBand links and switches: credits, lanes, tables, lifetime.

use feroce_fabric::{
    Config, DropReason, Fabric, FlowKey, InfinibandConfig, Link, MANAGEMENT, MULTICAST, Node,
    Output, Packet, Rate, Time, Topology, VlArbitration,
};
use feroce_train::Ecn;

const RATE: Rate = Rate::from_gbps(100);
/// Bytes of most packets.
const LEN: u32 = 4096;

fn packet(to: u32, sl: u8, len: u32) -> Packet<u64> {
    let key = FlowKey::default();
    Packet { to, len, priority: sl, ecn: Ecn::NotCapable, key, body: 0 }
}

fn fabric(topology: Topology, infiniband: InfinibandConfig) -> Fabric<u64> {
    let config = Config { infiniband: Some(infiniband), pfc: None, ..Config::default() };
    Fabric::new(topology, config).expect("a sound topology")
}

/// Hosts that always have packets, and what they send; runs until `end` or until nothing moves.
pub(crate) fn run(
    fabric: &mut Fabric<u64>,
    end: Time,
    mut next: impl FnMut(u32) -> Option<Packet<u64>>,
) -> Vec<(Time, Packet<u64>)> {
    let mut delivered = Vec::new();
    let mut pump = |fabric: &mut Fabric<u64>, now, host| {
        while fabric.has_room(host) {
            let Some(packet) = next(host) else { break };
            fabric.inject(now, host, packet);
        }
    };
    for host in 0..fabric.hosts() as u32 {
        pump(fabric, Time::ZERO, host);
    }
    while let Some(at) = fabric.next_at().filter(|&at| at <= end) {
        match fabric.poll(at) {
            Some(Output::Delivered(packet)) => delivered.push((fabric.now(), packet)),
            Some(Output::Ready(host)) => pump(fabric, at, host),
            None => {}
        }
    }
    delivered
}

fn rate_of(delivered: &[(Time, Packet<u64>)], end: Time, f: impl Fn(&Packet<u64>) -> bool) -> f64 {
    let bytes: u64 =
        delivered.iter().filter(|(_, p)| f(p)).map(|(_, packet)| u64::from(packet.len)).sum();
    bytes as f64 * 8.0 / end.as_ns() as f64
}

#[test]
fn throughput_is_the_line_or_the_buffer_per_round_trip() {
    let end = Time::from_ns(2_000_000);
    // A link of 10 us: credits return after about 20 us, so that 64 KiB make 26 Gb/s.
    for (buffer, delay_us) in [(64 << 10, 10), (32 << 10, 10), (128 << 10, 10), (128 << 10, 1)] {
        let mut fabric = fabric(
            Topology::star(2, RATE, delay_us * 1_000_000),
            InfinibandConfig { lane_buffer: buffer, ..InfinibandConfig::default() },
        );
        let delivered = run(&mut fabric, end, |host| (host == 0).then(|| packet(1, 0, LEN)));
        let gbps = rate_of(&delivered, end, |_| true);
        // There and back, a packet into the buffer and on, and a flow control packet.
        let rtt_ns = 2.0 * delay_us as f64 * 1000.0 + 2.0 * f64::from(LEN) * 0.08 + 0.64;
        let expected = (buffer as f64 * 8.0 / rtt_ns).min(100.0);
        assert!((gbps / expected - 1.0).abs() < 0.1, "{buffer} {delay_us}: {gbps} {expected}");
        assert_eq!(fabric.totals().dropped_all().packets, 0);
    }
}

#[test]
fn a_blocked_lane_does_not_block_others() {
    // Hosts 0 and 1 send over one link, host 0 to host 2, which takes only 1 Gb/s.
    let mut topology = Topology::default();
    let switches = [topology.add(Node::Switch), topology.add(Node::Switch)];
    topology.connect(switches[0], switches[1], RATE, 1_000_000);
    for (switch, gbps) in [(0, 100), (0, 100), (1, 1), (1, 100)] {
        let host = topology.add(Node::Host);
        topology.connect(switches[switch], host, Rate::from_gbps(gbps), 1_000_000);
    }
    let end = Time::from_ns(1_000_000);
    for (lanes, least) in [(1, 0.0), (2, 80.0)] {
        let mut fabric = fabric(topology.clone(), InfinibandConfig::with_lanes(lanes));
        let delivered =
            run(&mut fabric, end, |host| (host < 2).then(|| packet(host + 2, host as u8, LEN)));
        let gbps = rate_of(&delivered, end, |packet| packet.to == 3);
        assert!(gbps >= least, "{lanes} lanes: {gbps}");
        assert!(lanes == 2 || gbps < 5.0, "one lane waits for the slow host: {gbps}");
    }
}

#[test]
fn weights_divide_a_link() {
    let mut infiniband =
        InfinibandConfig { lane_buffer: 128 << 10, ..InfinibandConfig::with_lanes(2) };
    infiniband.arbitration =
        VlArbitration { low: vec![(0, 64), (1, 192)], ..VlArbitration::default() };
    let mut fabric = fabric(Topology::star(3, RATE, 500_000), infiniband);
    let end = Time::from_ns(2_000_000);
    let delivered = run(&mut fabric, end, |host| (host < 2).then(|| packet(2, host as u8, LEN)));
    let share = |lane| rate_of(&delivered, end, |packet| packet.priority == lane);
    assert!((share(1) / share(0) - 3.0).abs() < 0.15, "{} {}", share(0), share(1));
    assert!(share(0) + share(1) > 95.0, "{} {}", share(0), share(1));
}

/// A ring of five switches, each host sends to the second next one. Packets that pass the link from
/// the last switch to the first have the other service level.
fn ring(lanes: u8) -> (Fabric<u64>, usize) {
    let mut fabric =
        fabric(Topology::ring(5, RATE, 1_000_000), InfinibandConfig::with_lanes(lanes));
    let end = Time::from_ns(5_000_000);
    let sl = |host: u32| (host + 2 >= 5).into();
    let delivered = run(&mut fabric, end, |host| Some(packet((host + 2) % 5, sl(host), LEN)));
    let late = delivered.iter().filter(|(at, _)| *at > Time::from_ns(4_000_000)).count();
    (fabric, late)
}

#[test]
fn a_ring_without_a_dateline_deadlocks_and_is_named() {
    let (fabric, late) = ring(1);
    assert_eq!(late, 0, "nothing moves");
    let circle = fabric.find_deadlock(Time::from_ns(5_000_000), 1_000_000_000);
    assert_eq!(circle.expect("a circle").len(), 5);
    assert_eq!(fabric.totals().dropped_all().packets, 0);
}

#[test]
fn a_dateline_breaks_the_circle() {
    let (fabric, late) = ring(2);
    assert!(late > 1000, "{late}");
    assert_eq!(fabric.find_deadlock(Time::from_ns(5_000_000), 1_000_000_000), None);
    assert_eq!(fabric.totals().dropped_all().packets, 0);
}

#[test]
fn a_lifetime_empties_a_deadlock_with_drops() {
    let mut fabric = fabric(
        Topology::ring(5, RATE, 1_000_000),
        InfinibandConfig { lifetime_ps: Some(100_000_000), ..InfinibandConfig::default() },
    );
    let mut left = [300; 5];
    run(&mut fabric, Time::from_ns(1_000_000_000), |host| {
        let left = &mut left[host as usize];
        *left -= i32::from(*left > 0);
        (*left > 0).then(|| packet((host + 2) % 5, 0, LEN))
    });
    let totals = fabric.totals();
    assert_eq!((left, fabric.bytes_inside()), ([0; 5], 0));
    assert!(totals.dropped(DropReason::Lifetime).packets > 0);
    assert_eq!(totals.dropped_all(), totals.dropped(DropReason::Lifetime));
    assert_eq!(totals.injected.bytes, totals.delivered.bytes + totals.dropped_all().bytes);
}

/// Bytes of a management packet.
const MAD: u32 = 290;

#[test]
fn management_passes_where_data_lanes_have_no_credits() {
    let (mut fabric, _) = ring(1);
    let (now, stuck) = (Time::from_ns(5_000_000), fabric.bytes_inside());
    assert!(fabric.find_deadlock(now, 1_000_000_000).is_some());
    for host in 0..5 {
        for distance in 1..5 {
            fabric.inject(now, host, packet((host + distance) % 5, MANAGEMENT, MAD));
        }
    }
    // A link that is idle otherwise, and at most two more: every packet is at the head of VL15.
    let mut arrived = [0; 5];
    while let Some(at) = fabric.next_at().filter(|at| at.ps_since(now) < 10_000_000) {
        if let Some(Output::Delivered(packet)) = fabric.poll(at) {
            assert_eq!(packet.priority, MANAGEMENT);
            arrived[packet.to as usize] += 1;
        }
        fabric.check().expect("what always holds");
    }
    assert_eq!(arrived, [4; 5]);
    assert_eq!((fabric.bytes_inside(), fabric.totals().dropped_all().packets), (stuck, 0));
}

#[test]
fn management_without_room_is_dropped_and_data_is_not() {
    // Four hosts send management as fast as they can, and data to the same host.
    let management_buffer = 3 * u64::from(MAD);
    let infiniband = InfinibandConfig { management_buffer, ..InfinibandConfig::default() };
    let mut fabric = fabric(Topology::star(5, RATE, 1_000_000), infiniband);
    let mut left = [1000u64; 4];
    let delivered = run(&mut fabric, Time::from_ns(1_000_000_000), |host| {
        let left = left.get_mut(host as usize).filter(|left| **left > 0)?;
        *left -= 1;
        let (priority, len) = if *left % 2 == 0 { (MANAGEMENT, MAD) } else { (0, LEN) };
        Some(packet(4, priority, len))
    });
    fabric.check().expect("what always holds");
    let count = |priority| delivered.iter().filter(|(_, p)| p.priority == priority).count() as u64;
    assert_eq!((left, count(0), fabric.bytes_inside()), ([0; 4], 2000, 0));
    let dropped = fabric.totals().dropped(DropReason::Management).packets;
    assert!(dropped > 0, "{} arrived", count(MANAGEMENT));
    assert_eq!(count(MANAGEMENT) + dropped, 2000);
    assert_eq!(fabric.totals().dropped_all().packets, dropped);
}

#[test]
fn switches_have_tables() {
    let topology = Topology::leaf_spine(2, 2, 2, RATE, 1_000_000);
    let leaf = topology.nodes().iter().position(|node| *node == Node::Switch).expect("a switch");
    let fabric = fabric(topology, InfinibandConfig::default());
    let table = fabric.linear_forwarding_table(leaf);
    assert_eq!(table.len(), 5);
    assert_eq!(table[0], None, "LID 0 is reserved");
    // The two hosts of the leaf at ports of their own, the others by both spines.
    let ports: Vec<_> = table[1..].iter().map(|port| port.expect("a route")).collect();
    let mut sorted = ports.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), 4, "{ports:?}");
    assert!(fabric.linear_forwarding_table(99).is_empty());
}

#[test]
fn a_multicast_reaches_every_member_once() {
    let mut fabric = fabric(Topology::fat_tree(4, RATE, 1_000_000), InfinibandConfig::default());
    let members = [1, 2, 7, 11, 15];
    for member in members {
        fabric.join_multicast(9, member);
    }
    let mut left = 200;
    let delivered = run(&mut fabric, Time::from_ns(10_000_000), |host| {
        (host == 7 && left > 0).then(|| {
            left -= 1;
            packet(MULTICAST + 9, 0, LEN)
        })
    });
    for host in 0..16 {
        let expected = if host != 7 && members.contains(&host) { 200 } else { 0 };
        let count = delivered.iter().filter(|(_, packet)| packet.to == host).count();
        assert_eq!(count, expected, "host {host}");
    }
    let totals = fabric.totals();
    assert_eq!(totals.injected.packets + totals.copied.packets, 200 * 4);
    assert_eq!((totals.dropped_all().packets, fabric.bytes_inside()), (0, 0));
    assert_eq!(fabric.next_at(), None);
}

fn random_topology(rng: &mut fastrand::Rng, loss: f64) -> Topology {
    let mut topology = Topology::default();
    let switches = rng.usize(1..=5);
    for _ in 0..switches {
        topology.add(Node::Switch);
    }
    let rate = |rng: &mut fastrand::Rng| Rate::from_gbps([10, 25, 100, 400][rng.usize(..4)]);
    for node in 1..switches {
        let ends = [rng.usize(..node), node];
        topology.link(Link { ends, rate: rate(rng), delay_ps: rng.u64(..5_000_000), loss });
    }
    for _ in 0..rng.usize(2..=6) {
        let ends = [topology.add(Node::Host), rng.usize(..switches)];
        topology.link(Link { ends, rate: rate(rng), delay_ps: rng.u64(..2_000_000), loss });
    }
    topology
}

#[test]
fn nothing_is_dropped_and_no_buffer_overflows() {
    for seed in 0..150 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let loss = if seed % 3 == 0 { 0.02 } else { 0.0 };
        let topology = random_topology(&mut rng, loss);
        let nodes = topology.nodes().len();
        let lanes = rng.u8(1..=8);
        // One packet of the longest, or more than counters can tell at once.
        let lane_buffer = [LEN.into(), 3 * u64::from(LEN), 64 << 10, 200 << 10][rng.usize(..4)];
        let infiniband = InfinibandConfig { lane_buffer, ..InfinibandConfig::with_lanes(lanes) };
        let mut fabric = fabric(topology, infiniband);
        let (hosts, mut left) = (fabric.hosts() as u32, 600);
        let mut inner = rng.fork();
        let mut check = Vec::new();
        let delivered = run(&mut fabric, Time::from_ns(50_000_000), |host| {
            left = left.max(1) - 1;
            let to = (host + inner.u32(1..hosts)) % hosts;
            (left > 0).then(|| packet(to, inner.u8(..8), inner.u32(64..=LEN)))
        });
        for node in 0..nodes {
            for port in 0.. {
                let Some(used) = fabric.lane_used(node, port, 0) else { break };
                check.push(used);
            }
        }
        assert!(check.iter().all(|&used| used <= lane_buffer), "seed {seed}");
        let totals = fabric.totals();
        assert_eq!(totals.dropped(DropReason::Buffer).packets, 0, "seed {seed}");
        assert_eq!(totals.dropped_all(), totals.dropped(DropReason::Loss), "seed {seed}");
        let bytes = totals.delivered.bytes + totals.dropped_all().bytes + fabric.bytes_inside();
        assert_eq!(totals.injected.bytes, bytes, "seed {seed}");
        // A tree has no circles: everything arrives, and lost credits come back.
        assert_eq!(fabric.bytes_inside(), 0, "seed {seed}: {} delivered", delivered.len());
    }
}

#[test]
fn a_link_that_comes_back_counts_anew() {
    let mut fabric = fabric(Topology::star(2, RATE, 1_000_000), InfinibandConfig::default());
    let endless = |host| (host == 0).then(|| packet(1, 0, LEN));
    run(&mut fabric, Time::from_ns(200_000), endless);
    fabric.set_link(Time::from_ns(200_000), 1, false);
    run(&mut fabric, Time::from_ns(300_000), endless);
    fabric.set_link(Time::from_ns(300_000), 1, true);
    let before = fabric.totals().delivered.packets;
    run(&mut fabric, Time::from_ns(400_000), endless);
    let totals = fabric.totals();
    assert!(totals.delivered.packets > before + 200, "{} {before}", totals.delivered.packets);
    assert_eq!(totals.dropped(DropReason::Buffer).packets, 0);
}
