//! Times that follow from rates and delays alone.

use feroce_fabric::{Config, Fabric, FlowKey, Output, Packet, Quantize, Rate, Time, Topology};
use feroce_train::Ecn;

const RATE: Rate = Rate::from_gbps(100);
const DELAY_PS: u64 = 1_000_000;

fn packet(to: u32, len: u32, number: u32) -> Packet<u32> {
    let key = FlowKey::default();
    Packet { to, len, priority: 3, ecn: Ecn::Capable, key, body: number }
}

/// When each of `n` packets of 1048 bytes reaches host 1 through one switch, in picoseconds.
fn arrivals(n: u32, quantize: Quantize) -> Vec<u64> {
    let topology = Topology::star(2, RATE, DELAY_PS);
    let mut fabric =
        Fabric::new(topology, Config { quantize, ..Config::default() }).expect("a star");
    let (mut sent, mut arrived) = (0, Vec::new());
    loop {
        while sent < n && fabric.has_room(0) {
            fabric.inject(fabric.now(), 0, packet(1, 1048, sent));
            sent += 1;
        }
        let Some(at) = fabric.next_at() else { break };
        if let Some(Output::Delivered(packet)) = fabric.poll(at) {
            assert_eq!(packet.body as usize, arrived.len(), "packets of a flow stay in order");
            arrived.push(fabric.now().as_ps());
        }
    }
    arrived
}

#[test]
fn packets_are_stored_and_forwarded_back_to_back() {
    let time = 83_840;
    for (i, at) in (0..).zip(arrivals(100, Quantize::Picoseconds)) {
        // Two links, and the packets before it on the first one.
        assert_eq!(at, 2 * DELAY_PS + 2 * time + i * time);
    }
}

#[test]
fn ns3_counts_whole_nanoseconds() {
    for (i, at) in (0..).zip(arrivals(100, Quantize::Ns3)) {
        assert_eq!(at, 2 * DELAY_PS + (2 + i) * 83_000);
    }
}

#[test]
fn a_host_may_send_as_soon_as_its_last_packet_is_on_the_link() {
    let mut fabric = Fabric::new(Topology::star(2, RATE, 0), Config::default()).unwrap();
    fabric.inject(Time::ZERO, 0, packet(1, 1000, 0));
    assert!(fabric.has_room(0), "the first packet leaves at once");
    fabric.inject(Time::ZERO, 0, packet(1, 1000, 1));
    assert!(!fabric.has_room(0), "the second one waits");
    assert_eq!(fabric.next_at(), Some(Time::from_ps(80_000)));
    let mut ready = None;
    while ready.is_none() {
        match fabric.poll(fabric.next_at().unwrap()) {
            Some(Output::Ready(host)) => ready = Some((host, fabric.now().as_ps())),
            Some(Output::Delivered(_)) | None => {}
        }
    }
    assert_eq!(ready, Some((0, 80_000)));
}

#[test]
fn a_link_that_goes_down_and_up_loses_what_it_carried() {
    // Two leaves and two spines: another path remains.
    let topology = Topology::leaf_spine(2, 2, 1, RATE, DELAY_PS);
    let to_spine = |topology: &Topology, spine: usize| {
        topology.links().iter().position(|link| link.ends == [2, 4 + spine]).unwrap()
    };
    let links = [to_spine(&topology, 0), to_spine(&topology, 1)];
    let mut fabric = Fabric::new(topology, Config::default()).unwrap();
    fn deliver(fabric: &mut Fabric<u32>, number: u32) -> bool {
        fabric.inject(fabric.now(), 0, packet(1, 1000, number));
        let mut delivered = false;
        while let Some(at) = fabric.next_at() {
            delivered |= matches!(fabric.poll(at), Some(Output::Delivered(p)) if p.body == number);
        }
        delivered
    }
    assert!(deliver(&mut fabric, 0));
    for down in links {
        fabric.set_link(fabric.now(), down, false);
        assert!(deliver(&mut fabric, 1), "the other spine is there");
        fabric.set_link(fabric.now(), down, true);
    }
    for down in links {
        fabric.set_link(fabric.now(), down, false);
    }
    assert!(!deliver(&mut fabric, 2), "no path is left");
    for up in links {
        fabric.set_link(fabric.now(), up, true);
    }
    assert!(deliver(&mut fabric, 3));
    let totals = fabric.totals();
    assert_eq!(totals.dropped_all().packets, 1);
    assert_eq!(totals.injected.bytes, totals.delivered.bytes + totals.dropped_all().bytes);
}

/// A driver in real time gets packets before they arrive, with the times at which they would have
/// been delivered, and sees what passes a port that it watches.
#[test]
fn announced_packets_arrive_when_they_would_have_been_delivered() {
    let run = |announce| {
        let topology = Topology::star(3, Rate::from_gbps(10), 5_000_000);
        let config = Config { announce, ..Config::default() };
        let mut fabric = Fabric::new(topology, config).expect("a star");
        fabric.watch(3, 2, true);
        for (host, id) in [(0, 10_u8), (0, 11), (1, 20), (1, 21)] {
            let (len, key) = (1000, FlowKey::default());
            let packet = Packet { to: 2, len, priority: 3, ecn: Ecn::NotCapable, key, body: id };
            fabric.inject(Time::from_ns(u64::from(id)), host, packet);
        }
        let mut arrivals = Vec::new();
        while let Some(at) = fabric.next_at() {
            if let Some(Output::Delivered(packet)) = fabric.poll(at) {
                arrivals.push((at, packet.body));
            }
            while let Some((due, packet)) = fabric.take_arriving() {
                assert!(due.ps_since(at) >= 5_000_000, "announced at {at:?}, arrives at {due:?}");
                arrivals.push((due, packet.body));
            }
        }
        assert_eq!(fabric.totals().delivered.packets, 4);
        let passed = fabric.take_passed().into_iter();
        let passed: Vec<_> = passed.map(|p| (p.at, p.is_sent, p.packet.body)).collect();
        (arrivals, passed)
    };
    let (delivered, passed) = run(false);
    assert_eq!(run(true), (delivered.clone(), passed.clone()));
    let bodies: Vec<u8> = delivered.iter().map(|(_, body)| *body).collect();
    assert_eq!(bodies, [10, 20, 11, 21]);
    assert_eq!(passed.iter().map(|(_, _, body)| *body).collect::<Vec<_>>(), bodies);
    assert!(passed.iter().all(|(_, is_sent, _)| *is_sent));
}
