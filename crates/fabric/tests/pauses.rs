//! Priority flow control: nothing is dropped, senders stop and go on, circles are found.

use feroce_fabric::{
    BufferConfig, Config, DropReason, Fabric, FlowKey, Headroom, Output, Packet, PfcConfig, Rate,
    Time, Topology,
};
use feroce_train::Ecn;

const RATE: Rate = Rate::from_gbps(100);
const MTU: u32 = 1048;
const DELAY_PS: u64 = 5_000_000;

fn packet(to: u32, priority: u8) -> Packet<()> {
    let key = FlowKey::default();
    Packet { to, len: MTU, priority, ecn: Ecn::NotCapable, key, body: () }
}

/// Hosts that send to others as fast as they can until `until`, then until nothing moves, or for
/// the same time again. Every pair has a priority.
fn run(fabric: &mut Fabric<()>, pairs: &[(u32, u32, u8)], until: Time) -> Vec<u64> {
    let mut delivered = vec![0; fabric.hosts()];
    for &(from, ..) in pairs {
        send(fabric, pairs, from, Time::ZERO);
    }
    let end = until.plus_ps(until.as_ps());
    while let Some(at) = fabric.next_at().filter(|&at| at <= end) {
        match fabric.poll(at) {
            Some(Output::Delivered(packet)) => delivered[packet.to as usize] += 1,
            Some(Output::Ready(host)) if at < until => send(fabric, pairs, host, at),
            Some(Output::Ready(_)) | None => {}
        }
    }
    delivered
}

fn send(fabric: &mut Fabric<()>, pairs: &[(u32, u32, u8)], host: u32, now: Time) {
    while fabric.has_room(host) {
        let Some((_, to, priority)) = pairs.iter().find(|(from, ..)| *from == host) else { return };
        fabric.inject(now, host, packet(*to, *priority));
    }
}

fn config(buffer: u64, headroom: Headroom, pfc: PfcConfig) -> Config {
    let buffer = BufferConfig { bytes: buffer, headroom, ..BufferConfig::default() };
    Config { buffer, pfc: Some(pfc), log_pauses: true, ..Config::default() }
}

/// Packets dropped when four hosts send to a fifth, which sends to the first one: pause frames to
/// that host wait behind a packet.
fn drops(headroom: Headroom, delay_ps: u64) -> u64 {
    let pfc = PfcConfig { quanta: None, ..PfcConfig::default() };
    let topology = Topology::star(5, RATE, delay_ps);
    let mut fabric = Fabric::new(topology, config(2 << 20, headroom, pfc)).expect("a star");
    let pairs = [(0, 4, 3), (1, 4, 3), (2, 4, 3), (3, 4, 3), (4, 0, 3)];
    let delivered = run(&mut fabric, &pairs, Time::from_ns(1_000_000));
    assert!(delivered[4] > 1000, "the receiver's link is busy: {delivered:?}");
    assert_eq!(fabric.bytes_inside(), 0, "everything drains");
    fabric.totals().dropped(DropReason::Buffer).packets
}

#[test]
fn with_the_headroom_of_the_worst_case_nothing_is_dropped_and_with_a_packet_less_something_is() {
    let mtu = u64::from(MTU);
    let mut short = 0;
    // How the frames at both ends overlap depends on the delay.
    for delay_ps in (0..16).map(|i| DELAY_PS + i * 10_480) {
        assert_eq!(drops(Headroom::WorstCase { mtu: MTU }, delay_ps), 0, "{delay_ps} ps");
        let needed = 2 * RATE.bytes_in(delay_ps) + 2 * mtu + 84;
        short += drops(Headroom::Bytes(needed - mtu), delay_ps);
    }
    assert!(short > 0);
}

#[test]
fn a_pause_runs_out_unless_it_is_repeated() {
    let quanta = 1000;
    let pfc = PfcConfig { quanta: Some(quanta), ..PfcConfig::default() };
    let topology = Topology::star(2, RATE, 1000);
    let mut fabric = Fabric::new(topology, config(1 << 20, Headroom::Bytes(100_000), pfc)).unwrap();
    // The receiver stops its switch once, and says no more.
    fabric.pause_from_host(Time::ZERO, 1, 3, true);
    let at = Time::from_ns(100);
    while fabric.next_at().is_some_and(|next| next <= at) {
        fabric.poll(at);
    }
    fabric.inject(at, 0, packet(1, 3));
    let mut arrived = None;
    while let Some(at) = fabric.next_at() {
        if let Some(Output::Delivered(_)) = fabric.poll(at) {
            arrived = Some(fabric.now());
        }
    }
    let pause_ps = u64::from(quanta) * 512 * 10;
    let arrived = arrived.expect("the packet leaves when the pause is over");
    // The pause frame takes 84 bytes of time and the link's delay.
    assert_eq!(arrived.as_ps(), 84 * 80 + 1000 + pause_ps + u64::from(MTU) * 80 + 1000);
    let (.., stats) = fabric.port_stats().find(|&(node, port, _)| (node, port) == (2, 1)).unwrap();
    assert_eq!((stats.pauses, stats.paused_ps), (1, pause_ps));
}

#[test]
fn other_priorities_pass_one_that_is_paused() {
    let topology = Topology::star(3, RATE, 1000);
    let pfc = PfcConfig { quanta: None, ..PfcConfig::default() };
    let mut fabric =
        Fabric::new(topology, config(32 << 20, Headroom::Bytes(100_000), pfc)).unwrap();
    fabric.pause_from_host(Time::ZERO, 2, 3, true);
    let pairs = [(0, 2, 3), (1, 2, 4)];
    let delivered = run(&mut fabric, &pairs, Time::from_ns(100_000));
    assert!(delivered[2] > 1000, "priority 4 has the link: {delivered:?}");
    assert!(fabric.bytes_inside() > 0, "priority 3 waits");
    assert_eq!(fabric.totals().dropped_all().packets, 0);
}

#[test]
fn a_receiver_that_pauses_for_ever_stops_the_others_unless_there_is_a_watchdog() {
    let delivered = |watchdog_ps| {
        let topology = Topology::leaf_spine(2, 1, 2, RATE, 1000);
        let pfc = PfcConfig { quanta: None, watchdog_ps, ..PfcConfig::default() };
        let mut fabric =
            Fabric::new(topology, config(1 << 20, Headroom::Bytes(100_000), pfc)).unwrap();
        // Host 2 is broken. Host 1 sends to host 3, over links that host 0 fills with packets to
        // host 2.
        fabric.pause_from_host(Time::ZERO, 2, 3, true);
        let pairs = [(0, 2, 3), (1, 3, 3)];
        let delivered = run(&mut fabric, &pairs, Time::from_ns(2_000_000));
        (delivered[3], fabric.totals().dropped(DropReason::Watchdog).packets)
    };
    let (without, dropped) = delivered(None);
    assert_eq!(dropped, 0);
    let (with, dropped) = delivered(Some(200_000_000));
    assert!(dropped > 0);
    assert!(with > 10 * without, "{with} and {without}");
}

#[test]
fn a_ring_of_paused_ports_is_found_and_named() {
    let topology = Topology::ring(5, RATE, 1_000_000);
    let pfc = PfcConfig { quanta: None, ..PfcConfig::default() };
    let mut fabric = Fabric::new(topology, config(2 << 20, Headroom::Delays(3), pfc)).unwrap();
    let pairs: Vec<_> = (0..5).map(|i| (i, (i + 2) % 5, 3)).collect();
    let until = Time::from_ns(3_000_000);
    run(&mut fabric, &pairs, until);
    let circle = fabric.find_deadlock(until, 1_000_000_000).expect("the ring is closed");
    let mut nodes: Vec<_> = circle.iter().map(|port| port.node).collect();
    nodes.sort_unstable();
    assert_eq!(nodes, [5, 6, 7, 8, 9]);
    assert_eq!(fabric.totals().dropped_all().packets, 0);

    // With one flow less, the ring is open.
    let topology = Topology::ring(5, RATE, 1_000_000);
    let mut fabric = Fabric::new(topology, config(2 << 20, Headroom::Delays(3), pfc)).unwrap();
    run(&mut fabric, &pairs[1..], until);
    assert_eq!(fabric.find_deadlock(until, 1_000_000_000), None);
    assert_eq!(fabric.bytes_inside(), 0);
}

#[test]
fn a_buffer_without_a_pool_passes_packets_one_by_one() {
    // Pauses do not run out, and reserves and headroom take more than there is.
    let pfc = PfcConfig { quanta: None, ..PfcConfig::default() };
    let config = config(64 << 10, Headroom::Bytes(20 << 10), pfc);
    let mut fabric = Fabric::new(Topology::star(3, RATE, DELAY_PS), config).expect("a star");
    for sent in 1..=3 {
        fabric.inject(fabric.now(), 0, packet(2, 3));
        while let Some(at) = fabric.next_at() {
            let _ = fabric.poll(at);
        }
        assert_eq!(fabric.totals().delivered.packets, sent, "the sender was stopped for good");
    }
}

#[test]
fn a_drop_counts_at_the_port_that_had_no_room_and_a_loss_at_the_sender_of_the_link() {
    let topology = Topology::star(3, RATE, DELAY_PS);
    let buffer = BufferConfig { bytes: 16 * u64::from(MTU), ..BufferConfig::default() };
    let config = Config { buffer, ..Config::default() };
    let mut fabric = Fabric::new(topology, config).expect("a star");
    fabric.set_loss(0, 0.1);
    run(&mut fabric, &[(0, 2, 0), (1, 2, 0)], Time::from_ns(1_000_000));
    let totals = fabric.totals().clone();
    let switch = fabric.topology().nodes().len() - 1;
    for (node, port, stats) in fabric.port_stats() {
        let is_full = (node, port) == (switch, 2);
        let room = if is_full { totals.dropped(DropReason::Buffer).packets } else { 0 };
        assert_eq!(stats.dropped(DropReason::Buffer).packets, room, "{node}:{port}");
        let lost = if node == 0 { totals.dropped(DropReason::Loss).packets } else { 0 };
        assert_eq!(stats.dropped(DropReason::Loss).packets, lost, "{node}:{port}");
    }
    assert!(totals.dropped(DropReason::Buffer).packets > 0, "{totals:?}");
    assert!(totals.dropped(DropReason::Loss).packets > 0, "{totals:?}");
}
