//! Packets of data on their way through switches.

use feroce_subnet::{Counters, DataRun, PortRef, Traffic, TrafficEvent, Way};
use feroce_wire::mad::{Attribute, Method, PortInfo};
use feroce_wire::{Lid, Pkey};

use super::common::Bench;

/// Three packets of 1024 bytes with a BTH, from Host1.
fn run(dlid: u16) -> DataRun {
    DataRun {
        slid: Lid(1),
        dlid: Lid(dlid),
        sl: 0,
        pkey: Pkey::DEFAULT,
        packets: 3,
        words: 3 * 262,
        longest: 1048,
    }
}

fn counters(bench: &Bench, name: &str, port: u8) -> Counters {
    *bench.subnet.port(bench.port(name, port)).expect("a port").counters()
}

/// Has Host1 send a run. Returns the ports of adapters that it reaches.
fn carry(bench: &mut Bench, run: &DataRun) -> Vec<PortRef> {
    events(bench, run)
        .into_iter()
        .filter_map(|event| match event {
            TrafficEvent::Arrived(at, ..) => Some(at),
            _ => None,
        })
        .collect()
}

fn events(bench: &mut Bench, run: &DataRun) -> Vec<TrafficEvent<()>> {
    let mut traffic = Traffic::new(&bench.subnet, 0);
    traffic.send(bench.now, &mut bench.subnet, bench.host1, run, ());
    let events: Vec<_> = std::iter::from_fn(|| traffic.poll_event(&bench.subnet)).collect();
    let left = |event: &TrafficEvent<()>| match event {
        TrafficEvent::Left(part) => part.count,
        _ => 0,
    };
    assert_eq!(events.iter().map(left).sum::<u32>(), run.packets, "every packet leaves once");
    events
}

/// Ports that are watched and that a run has passed.
fn passed(bench: &mut Bench, run: &DataRun) -> Vec<(PortRef, Way)> {
    let passed = events(bench, run).into_iter().filter_map(|event| match event {
        TrafficEvent::Passed(at, way, _) => Some((at, way)),
        _ => None,
    });
    passed.collect()
}

/// What carrying a run has added at a port.
fn added(bench: &mut Bench, run: &DataRun, name: &str, port: u8) -> (Vec<PortRef>, [u64; 5]) {
    let before = counters(bench, name, port);
    let reached = carry(bench, run);
    let after = counters(bench, name, port);
    let of = |c: Counters| [c.unicast_xmit, c.xmit_words, c.unicast_rcv, c.rcv_words, discards(c)];
    let (before, after) = (of(before), of(after));
    (reached, core::array::from_fn(|i| after[i] - before[i]))
}

fn discards(counters: Counters) -> u64 {
    counters.xmit_discards + counters.relay_errors + counters.rcv_errors
}

#[test]
fn packets_follow_the_tables_and_are_counted_at_every_port() {
    let mut bench = Bench::up();
    let host4 = bench.port("Host4", 1);
    let (sent, received) = ([3, 786, 0, 0, 0], [0, 0, 3, 786, 0]);
    // Leaf1 sends to LID 8 by its port 8, to Spine2.
    for (name, port, counted) in [
        ("Host1", 1, sent),
        ("Leaf1", 1, received),
        ("Leaf1", 8, sent),
        ("Spine2", 1, received),
        ("Spine2", 2, sent),
        ("Leaf2", 8, received),
        ("Leaf2", 2, sent),
        ("Host4", 1, received),
        ("Spine1", 1, [0; 5]),
    ] {
        assert_eq!(added(&mut bench, &run(8), name, port), (vec![host4], counted), "{name}:{port}");
    }
    let host1 = bench.host1;
    assert_eq!(added(&mut bench, &run(1), "Host1", 1), (vec![host1], [0; 5]), "to itself");
}

#[test]
fn packets_that_may_not_pass_are_dropped_where_that_is_found() {
    let mut bench = Bench::up();
    let dropped = (vec![], [0, 0, 0, 0, 3]);
    let relayed = (vec![], [0, 0, 3, 786, 3]);
    let wrong = |change: fn(&mut DataRun)| {
        let mut run = run(8);
        change(&mut run);
        run
    };
    let other_lid = wrong(|run| run.slid = Lid(5));
    assert_eq!(added(&mut bench, &other_lid, "Host1", 1), dropped, "the LID of another port");
    let long = wrong(|run| run.longest = 2048 + 124 + 4);
    assert_eq!(added(&mut bench, &long, "Host1", 1), dropped, "longer than the MTU");
    assert_eq!(added(&mut bench, &run(9), "Leaf1", 1), relayed, "no such LID");
    assert_eq!(added(&mut bench, &run(2), "Leaf1", 1), relayed, "to a switch");
    let host4 = bench.port("Host4", 1);
    let leaf = bench.port("Leaf1", 8);
    bench.subnet.set_link(bench.now, leaf, false);
    assert_eq!(added(&mut bench, &run(8), "Leaf1", 8), dropped, "a link that is down");
    bench.subnet.set_link(bench.now, leaf, true);
    assert_eq!(added(&mut bench, &run(8), "Leaf1", 8), dropped, "a link that is not active yet");
    let mut bench = Bench::up();
    assert_eq!(carry(&mut bench, &run(8)), [host4]);
    let mut fresh = Bench::new();
    assert_eq!(added(&mut fresh, &run(8), "Host1", 1), dropped, "no subnet manager yet");
    fresh.host1.node = 99;
    assert_eq!(carry(&mut fresh, &run(8)), []);
}

#[test]
fn switches_enforce_partitions_and_lanes() {
    let mut bench = Bench::up();
    let other = DataRun { pkey: Pkey(0x8005), ..run(8) };
    let host4 = bench.port("Host4", 1);
    assert_eq!(carry(&mut bench, &other), [host4], "no switch enforces it");
    let path = &[1][..];
    let smp = bench.ask(path, Method::GET, Attribute::PORT_INFO, 1, &[]).expect("an answer");
    let (info, _) = PortInfo::parse(&smp.data).expect("whole");
    let set = |bench: &mut Bench, info: PortInfo| {
        let info =
            PortInfo { state: Default::default(), physical_state: Default::default(), ..info };
        let set = Attribute::PORT_INFO;
        bench.ask(path, Method::SET, set, 1, &info.to_bytes()).expect("an answer");
    };
    set(&mut bench, PortInfo { partition_enforcement_inbound: true, ..info });
    assert_eq!(carry(&mut bench, &other), []);
    assert_eq!(counters(&bench, "Leaf1", 1).rcv_constraint_errors, 3);
    assert_eq!(carry(&mut bench, &run(8)), [host4]);
    // Service level 9 has lane 1 of eight lanes; with one lane it has none.
    let level = DataRun { sl: 9, ..run(8) };
    assert_eq!(carry(&mut bench, &level), [host4]);
    let uplink = bench.ask(path, Method::GET, Attribute::PORT_INFO, 8, &[]).expect("an answer");
    let (uplink, _) = PortInfo::parse(&uplink.data).expect("whole");
    let uplink = PortInfo {
        operational_vls: 1,
        state: Default::default(),
        physical_state: Default::default(),
        ..uplink
    };
    let set = Attribute::PORT_INFO;
    bench.ask(path, Method::SET, set, 8, &uplink.to_bytes()).expect("an answer");
    assert_eq!(carry(&mut bench, &level), []);
    assert_eq!(counters(&bench, "Leaf1", 8).xmit_discards, 3);
    assert_eq!(carry(&mut bench, &run(8)), [host4]);
}

#[test]
fn what_passes_a_watched_port_is_copied() {
    let mut bench = Bench::up();
    let [inner, outer] = [bench.port("Leaf1", 8), bench.port("Leaf1", 1)];
    bench.subnet.watch(inner, true);
    bench.subnet.watch(outer, true);
    while bench.subnet.poll_seen().is_some() {}
    let expected = [(outer, Way::Received), (inner, Way::Sent)];
    assert_eq!(passed(&mut bench, &run(8)), expected);
    bench.subnet.watch(outer, false);
    assert_eq!(passed(&mut bench, &run(8)), [(inner, Way::Sent)]);
    bench.subnet.watch(inner, false);
    assert!(passed(&mut bench, &run(8)).is_empty());
}
