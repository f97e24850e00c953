//! A ring of six switches with the forwarding tables that opensm wrote for it: those of its minhop
//! engine have a loop of credits, those of its lash engine, with the service levels of its path
//! records, have none.

use feroce_fabric::{
    Config, DropReason, Fabric, FlowKey, InfinibandConfig, Node, NodeId, Packet, Rate, Route, Time,
    Topology,
};
use feroce_train::Ecn;

use crate::infiniband::run;

const MINHOP: &str =
    include_str!("../../subnet/examples/opensm/recorded/ring6-minhop/opensm-lfts.dump");
const LASH: &str =
    include_str!("../../subnet/examples/opensm/recorded/ring6-lash/opensm-lfts.dump");

/// Switches, and hosts.
const COUNT: usize = 6;

/// The service levels from each host to the next but one, as `saquery PR` prints them with lash.
const LASH_LEVELS: [u8; COUNT] = [0, 1, 1, 2, 1, 2];

const MS: u64 = 1_000_000_000;
const END: Time = Time::from_ns(5_000_000);

/// The topology `ring6.net` with the tables of a dump. Hosts come first, then switches.
fn ring(dump: &str) -> Topology {
    let mut topology = Topology::default();
    let hosts: Vec<NodeId> = (0..COUNT).map(|_| topology.add(Node::Host)).collect();
    let switches: Vec<NodeId> = (0..COUNT).map(|_| topology.add(Node::Switch)).collect();
    for n in 0..COUNT {
        topology.connect(hosts[n], switches[n], Rate::from_gbps(10), 100_000);
        topology.connect(switches[n], switches[(n + 1) % COUNT], Rate::from_gbps(10), 100_000);
    }
    let mut at = None;
    for line in dump.lines() {
        let name = line.split('\'').nth(1);
        let number = |prefix| name?.strip_prefix(prefix)?.parse::<usize>().ok();
        if line.starts_with("Unicast") {
            at = number("Sw");
        } else if let (Some(at), Some(host)) = (at, number("Host")) {
            let port = line.split_whitespace().nth(1).expect("a port");
            // Port 1 leads to the host, 2 to the next switch and 3 to the one before.
            let next = match port {
                "001" => hosts[at - 1],
                "002" => switches[at % COUNT],
                "003" => switches[(at + COUNT - 2) % COUNT],
                _ => panic!("{line}"),
            };
            let (at, to) = (switches[at - 1], hosts[host - 1]);
            topology.route(Route { at, to, via: vec![next] });
        }
    }
    assert_eq!(topology.routes().len(), COUNT * COUNT);
    topology
}

/// Each host sends to the next but one for as long as it can, or so many packets. Returns the
/// fabric, and how many packets arrived in the last fifth of the time.
fn all_to_next_but_one(
    dump: &str,
    levels: [u8; COUNT],
    lifetime_ps: Option<u64>,
    most: Option<u32>,
) -> (Fabric<u64>, usize) {
    let infiniband = InfinibandConfig { lifetime_ps, ..InfinibandConfig::with_lanes(8) };
    let config = Config { infiniband: Some(infiniband), pfc: None, ..Config::default() };
    let mut fabric = Fabric::new(ring(dump), config).expect("a sound topology");
    let mut sent = [0; COUNT];
    // A packet that waits in vain holds those behind it up for its whole lifetime.
    let end = if lifetime_ps.is_some() { Time::from_ns(100_000_000) } else { END };
    let delivered = run(&mut fabric, end, |host| {
        let from = host as usize;
        if most.is_some_and(|most| sent[from] == most) {
            return None;
        }
        sent[from] += 1;
        let to = (host + 2) % COUNT as u32;
        let (priority, key) = (levels[from], FlowKey::default());
        Some(Packet { to, len: 2048, priority, ecn: Ecn::NotCapable, key, body: 0 })
    });
    let late = delivered.iter().filter(|(at, _)| *at > Time::from_ns(4_000_000)).count();
    (fabric, late)
}

#[test]
fn tables_of_minhop_deadlock_and_the_circle_is_named() {
    let (fabric, late) = all_to_next_but_one(MINHOP, [0; COUNT], None, None);
    assert_eq!(late, 0, "nothing moves");
    assert_eq!(fabric.find_deadlock(END, MS).expect("a circle").len(), COUNT);
    assert_eq!(fabric.totals().dropped_all().packets, 0);
}

#[test]
fn the_lifetime_of_packets_ends_the_deadlock() {
    let (fabric, _) = all_to_next_but_one(MINHOP, [0; COUNT], Some(MS / 10), Some(100));
    let (totals, lost) = (fabric.totals(), fabric.totals().dropped(DropReason::Lifetime));
    assert_eq!((fabric.bytes_inside(), fabric.find_deadlock(END, MS)), (0, None));
    assert!(lost.packets > 0);
    assert_eq!(totals.dropped_all(), lost);
    assert_eq!(totals.injected.packets, 100 * COUNT as u64);
    assert_eq!(totals.injected.packets, totals.delivered.packets + lost.packets);
}

#[test]
fn tables_of_lash_do_not_deadlock_with_their_service_levels() {
    let (fabric, late) = all_to_next_but_one(LASH, LASH_LEVELS, None, None);
    assert!(late > 1000, "{late}");
    assert_eq!(fabric.find_deadlock(END, MS), None);
    assert_eq!(fabric.totals().dropped_all().packets, 0);
    // It is the levels that do it.
    let (fabric, late) = all_to_next_but_one(LASH, [0; COUNT], None, None);
    assert_eq!((late, fabric.find_deadlock(END, MS).is_some()), (0, true));
}
