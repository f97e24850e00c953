//! The UDP link over the loopback interface.

use crate::common;
use std::io::ErrorKind;
use std::sync::Arc;

use crate::common::{SendOne as _, Sent};
use crate::common::{
    counter, flat, loopback, packets_of, path, receive_packets, send_alone, send_of,
};
use feroce_link::{
    Carrier, Control, IcrcPolicy, SharedPort as _, Steering, UdpConfig, UdpLink, Verified,
};
use feroce_train::{Ecn, Framing, Instant, Path};
use feroce_wire::{Gid, Qpn};

const NOW: Instant = Instant::ZERO;

/// Small buffers, so that many tests fit the limits of a machine.
fn config() -> UdpConfig {
    UdpConfig { rcvbuf: 1 << 20, sndbuf: 1 << 20, flows: 2, ..UdpConfig::default() }
}

fn udp(config: UdpConfig, addr: Gid) -> UdpLink {
    UdpLink::new(config, &[addr]).expect("a link")
}

fn strict(config: UdpConfig, addr: Gid) -> Verified<UdpLink> {
    Verified::new(udp(config, addr), IcrcPolicy::Strict)
}

#[test]
fn a_train_arrives_as_one_train() {
    let (a, b) = (loopback(1), loopback(2));
    let (mut tx, mut rx) = (udp(config(), a), strict(config(), b));
    for (count, stride, last) in [(1, 64, 0), (2, 256, 1), (15, 4096, 4096), (64, 1000, 3)] {
        let train = send_of(path(a, b), count, stride, last);
        assert_eq!(tx.send_one(NOW, &train).expect("sent"), Sent::Done);
        let got = receive_packets(&mut rx, count as usize);
        assert_eq!(got.len(), 1, "{count} packets came as {} trains", got.len());
        assert_eq!(got[0].packets, packets_of(&train));
        let meta = got[0].meta;
        assert_eq!((meta.src.gid, meta.dst.gid, meta.framing), (a, b, Framing::RoceV2));
        assert_eq!((meta.ecn, meta.traffic_class, meta.hop_limit), (Ecn::Capable, 0, 64));
        assert_eq!(meta.udp_sport, tx.headers(&train.path).udp_sport);
    }
    assert_eq!((counter(&tx, "udp_tx_trains"), counter(&rx, "udp_rx_trains")), (4, 4));
    assert_eq!(counter(&tx, "udp_tx_packets"), 82);
    assert_eq!(counter(&rx, "rx_icrc_encapsulated"), 0);
}

/// A packet that is sent without a train is the same on the wire.
#[test]
fn a_packet_by_itself_arrives_as_a_train_of_one() {
    let (a, b) = (loopback(80), loopback(81));
    let (mut tx, mut rx) = (strict(config(), a), strict(config(), b));
    for len in [4, 64, 4096] {
        let train = send_of(path(a, b), 1, len, len);
        assert!(send_alone(&mut tx, &train));
        let got = receive_packets(&mut rx, 1);
        assert_eq!((&got[0].packets, got[0].meta.src.gid), (&packets_of(&train), a));
        assert_eq!(got[0].meta.udp_sport, tx.headers(&train.path).udp_sport);
    }
    assert_eq!((counter(&tx, "udp_tx_trains"), counter(&tx, "udp_tx_packets")), (3, 3));
    assert_eq!(counter(&rx, "rx_icrc_encapsulated"), 0);
}

/// One that cannot be sent goes in a train, which says why.
#[test]
fn a_packet_by_itself_that_cannot_be_sent_is_not_counted() {
    let (a, b) = (loopback(82), loopback(83));
    let mut tx = udp(config(), a);
    for (src, len) in [(b, 64), (a, 65_520), (a, 66_000)] {
        assert!(!send_alone(&mut tx, &send_of(path(src, b), 1, len, len)), "{len} from {src}");
    }
    assert_eq!((counter(&tx, "udp_tx_trains"), counter(&tx, "udp_tx_errors")), (0, 0));
}

/// Sender and receiver with and without offload, in every combination.
#[test]
fn offload_is_optional_on_either_side() {
    for (n, (gso, gro)) in
        [(false, false), (false, true), (true, false), (true, true)].into_iter().enumerate()
    {
        let (a, b) = (loopback(10 + n as u8), loopback(20 + n as u8));
        let mut tx = udp(UdpConfig { gso, ..config() }, a);
        let mut rx = strict(UdpConfig { gro, ..config() }, b);
        let train = send_of(path(a, b), 30, 1024, 17);
        assert_eq!(tx.send_one(NOW, &train).expect("sent"), Sent::Done);
        let got = receive_packets(&mut rx, 30);
        assert_eq!(flat(&got), packets_of(&train), "gso {gso}, gro {gro}");
        assert_eq!(got.len(), if gso && gro { 1 } else { 30 }, "gso {gso}, gro {gro}");
        assert_eq!(counter(&rx, "rx_icrc_encapsulated"), 0);
    }
}

#[test]
fn the_longest_trains_fit() {
    let (a, b) = (loopback(30), loopback(31));
    let (mut tx, mut rx) = (udp(config(), a), strict(config(), b));
    let caps = tx.caps();
    for stride in [4, 256, 1012, 1024, 2048, 4096] {
        let count = caps.packets_of(stride + 12);
        let train = send_of(path(a, b), count, stride, stride);
        assert_eq!(tx.send_one(NOW, &train).expect("sent"), Sent::Done);
        let got = receive_packets(&mut rx, count as usize);
        assert_eq!((got.len(), flat(&got)), (1, packets_of(&train)), "{count} of {stride}");
    }
}

/// A train beyond what the link said it can take goes out packet by packet.
#[test]
fn a_train_that_is_too_long_is_sent_in_pieces() {
    let (a, b) = (loopback(32), loopback(33));
    let (mut tx, mut rx) = (udp(config(), a), strict(config(), b));
    let train = send_of(path(a, b), 100, 1024, 1024);
    assert_eq!(tx.send_one(NOW, &train).expect("sent"), Sent::Done);
    let got = receive_packets(&mut rx, 100);
    assert_eq!(flat(&got), packets_of(&train));
}

#[test]
fn source_ports_follow_the_path() {
    let (a, b) = (loopback(40), loopback(41));
    let mut tx = udp(UdpConfig { flows: 4, ..config() }, a);
    let mut rx = strict(config(), b);
    let mut seen = Vec::new();
    for entropy in 0..5 {
        let path = Path { entropy, ..path(a, b) };
        tx.send_one(NOW, &send_of(path, 2, 64, 64)).expect("sent");
        let got = receive_packets(&mut rx, 2);
        assert_eq!(got[0].meta.udp_sport, tx.headers(&path).udp_sport);
        seen.push(got[0].meta.udp_sport);
    }
    assert!(seen.iter().all(|port| *port >= 0xc000), "{seen:x?}");
    assert_eq!(seen[0], seen[4]);
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 4);
}

#[test]
fn traffic_class_hop_limit_and_ecn_are_those_of_the_path() {
    let (a, b) = (loopback(42), loopback(43));
    let mut rx = strict(config(), b);
    for ecn in [true, false] {
        let mut tx = udp(UdpConfig { ecn, ..config() }, a);
        for (traffic_class, hop_limit, seen) in [(0, 64, 64), (0x68, 1, 1), (0xfb, 255, 255)] {
            for count in [1, 3] {
                let path = Path { traffic_class, hop_limit, ..path(a, b) };
                tx.send_one(NOW, &send_of(path, count, 64, 64)).expect("sent");
                let meta = receive_packets(&mut rx, count as usize)[0].meta;
                assert_eq!((meta.traffic_class, meta.hop_limit), (traffic_class & !3, seen));
                assert_eq!(meta.ecn, if ecn { Ecn::Capable } else { Ecn::NotCapable });
            }
        }
    }
}

/// Programs leave the hop limit at zero where it does not matter to them.
#[test]
fn no_hop_limit_means_the_usual_one() {
    let (a, b) = (loopback(44), loopback(45));
    let (mut tx, mut rx) = (udp(config(), a), strict(config(), b));
    let path = Path { hop_limit: 0, ..path(a, b) };
    for count in [1, 2] {
        tx.send_one(NOW, &send_of(path, count, 64, 64)).expect("sent");
        let got = receive_packets(&mut rx, count as usize);
        assert_eq!((got.len(), got[0].meta.hop_limit), (1, 64), "offload still works");
    }
}

#[test]
fn an_address_that_is_taken_is_named() {
    let a = loopback(50);
    let _first = udp(config(), a);
    let error = UdpLink::new(config(), &[a]).expect_err("taken");
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    let text = error.to_string();
    assert!(text.contains("4791") && text.contains(&a.to_ip().to_string()), "{text}");
    assert!(text.contains("another process has it"), "{text}");
}

#[test]
fn an_address_of_another_machine_is_named() {
    let error = UdpLink::new(config(), &[Gid::from_ipv4([192, 0, 2, 1])]).expect_err("foreign");
    assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
    assert!(error.to_string().contains("not one of this machine"), "{error}");
}

#[test]
fn a_link_local_address_without_interface_is_explained() {
    let error = UdpLink::new(config(), &[common::netns::link_local(1)]).expect_err("no interface");
    assert!(error.to_string().contains("needs an interface"), "{error}");
}

#[test]
fn sockets_come_and_go_with_addresses() {
    let [a, b, c] = [60, 61, 62].map(loopback);
    let mut tx = udp(config(), c);
    let mut rx = UdpLink::new(config(), &[Gid::ZERO, a]).expect("a link");
    rx.control(Control::Addresses(&[a, b, Gid::ZERO])).expect("b is free");
    for dst in [a, b, a] {
        tx.send_one(NOW, &send_of(path(c, dst), 1, 64, 64)).expect("sent");
        assert_eq!(receive_packets(&mut rx, 1)[0].meta.dst.gid, dst);
    }
    rx.control(Control::Addresses(&[b])).expect("nothing new");
    drop(udp(config(), a));
    rx.control(Control::Addresses(&[a, b])).expect("a is free again");
    tx.send_one(NOW, &send_of(path(c, a), 1, 64, 64)).expect("sent");
    assert_eq!(receive_packets(&mut rx, 1)[0].meta.dst.gid, a);
    rx.control(Control::Addresses(&[])).expect("nothing to do");
    assert_eq!(rx.receive(NOW, 8, &mut |_| panic!("no socket is left")).expect("no error"), 0);
    rx.send_one(NOW, &send_of(path(a, c), 3, 64, 64)).expect("lost, not an error");
    assert_eq!(counter(&rx, "udp_tx_no_address"), 3);
}

/// A busy address must not keep the others from being heard.
#[test]
fn no_address_starves() {
    let [busy, quiet, c] = [63, 64, 65].map(loopback);
    let mut tx = udp(config(), c);
    let mut rx = UdpLink::new(config(), &[busy, quiet]).expect("a link");
    let to_busy = send_of(path(c, busy), 1, 64, 64);
    tx.send_one(NOW, &to_busy).expect("sent");
    receive_packets(&mut rx, 1);
    tx.send_one(NOW, &send_of(path(c, quiet), 1, 64, 64)).expect("sent");
    let mut heard = false;
    for _ in 0..1000 {
        tx.send_one(NOW, &to_busy).expect("sent");
        rx.receive(NOW, 1, &mut |train| heard |= train.meta.dst.gid == quiet).expect("receive");
    }
    assert!(heard, "1000 packets to one address, and the other was never asked");
}

/// The budget is kept, and what is left makes the descriptor readable.
#[test]
fn the_budget_limits_trains() {
    let (a, b) = (loopback(70), loopback(71));
    let (mut tx, mut rx) = (udp(config(), a), udp(config(), b));
    for _ in 0..5 {
        tx.send_one(NOW, &send_of(path(a, b), 2, 64, 64)).expect("sent");
    }
    let mut trains = 0;
    for expected in [2, 2, 1, 0] {
        assert_eq!(common::is_readable(&rx, if expected > 0 { 10_000 } else { 0 }), expected > 0);
        assert_eq!(rx.receive(NOW, 2, &mut |_| trains += 1).expect("receive"), expected);
    }
    assert_eq!(trains, 5);
}

/// Asks a link as often as a consumer that polls for a while.
fn poll(link: &mut impl Carrier) {
    for _ in 0..1000 {
        link.receive(NOW, 1, &mut |_| panic!("nothing was sent")).expect("receive");
    }
}

/// A thread that polled for long is woken when it sleeps.
#[test]
fn a_sleeping_thread_is_woken() {
    let (a, b) = (loopback(74), loopback(75));
    let (mut tx, mut rx) = (udp(config(), a), udp(config(), b));
    let train = send_of(path(a, b), 1, 64, 64);
    for round in 0..3 {
        poll(&mut rx);
        assert!(rx.arm(NOW) && !common::is_readable(&rx, 0), "round {round}");
        tx.send_one(NOW, &train).expect("sent");
        assert!(common::is_readable(&rx, 10_000), "round {round}");
        receive_packets(&mut rx, 1);
        poll(&mut rx);
        tx.send_one(NOW, &train).expect("sent");
        assert!(rx.arm(NOW) && common::is_readable(&rx, 10_000), "round {round}");
        receive_packets(&mut rx, 1);
    }
}

/// A thread that polls one socket for long also hears the others.
#[test]
fn every_address_is_heard_by_a_polling_thread() {
    let [a, b, c] = [77, 78, 79].map(loopback);
    let mut tx = udp(config(), c);
    let mut rx = UdpLink::new(config(), &[a, b]).expect("a link");
    for dst in [a, a, b, b, a] {
        tx.send_one(NOW, &send_of(path(c, dst), 1, 64, 64)).expect("sent");
        assert_eq!(receive_packets(&mut rx, 1)[0].meta.dst.gid, dst);
        poll(&mut rx);
        let mut heard = Vec::new();
        for dst in [a, b] {
            tx.send_one(NOW, &send_of(path(c, dst), 1, 64, 64)).expect("sent");
        }
        for _ in 0..100 {
            rx.receive(NOW, 1, &mut |train| heard.push(train.meta.dst.gid)).expect("receive");
        }
        heard.sort_unstable();
        assert_eq!(heard, [a, b]);
    }
    // Nor is a socket forgotten that goes while another is polled.
    poll(&mut rx);
    rx.control(Control::Addresses(&[b])).expect("nothing new");
    rx.control(Control::Addresses(&[a, b])).expect("a is free");
    for dst in [a, b] {
        assert!(rx.arm(NOW) && !common::is_readable(&rx, 0));
        tx.send_one(NOW, &send_of(path(c, dst), 1, 64, 64)).expect("sent");
        assert_eq!(receive_packets(&mut rx, 1)[0].meta.dst.gid, dst);
    }
}

/// Sends packets that come by themselves, and takes each.
fn send_singles(tx: &mut impl Carrier, rx: &mut impl Carrier, path: Path, n: usize) {
    for _ in 0..n {
        tx.send_one(NOW, &send_of(path, 1, 64, 64)).expect("sent");
        receive_packets(rx, 1);
    }
}

/// Sends a train of four packets, and says in how many trains it came.
fn pieces_of_train(tx: &mut impl Carrier, rx: &mut impl Carrier, path: Path) -> usize {
    let train = send_of(path, 4, 64, 64);
    tx.send_one(NOW, &train).expect("sent");
    let got = receive_packets(rx, 4);
    assert_eq!(flat(&got), packets_of(&train));
    got.len()
}

/// Packets that arrived one by one before do not change how a train arrives.
#[test]
fn trains_arrive_merged_also_after_single_packets() {
    let (a, b) = (loopback(84), loopback(85));
    let (mut tx, mut rx) = (udp(config(), a), strict(config(), b));
    for round in 0..3 {
        send_singles(&mut tx, &mut rx, path(a, b), 200);
        assert_eq!(pieces_of_train(&mut tx, &mut rx, path(a, b)), 1, "round {round}");
    }
    assert_eq!(counter(&rx, "rx_icrc_encapsulated"), 0);
}

/// Datagrams that are no packets neither disturb nor pass.
#[test]
fn junk_is_counted_and_dropped() {
    let (a, b) = (loopback(72), loopback(73));
    let mut rx = strict(config(), b);
    let v4 = |gid: Gid| std::net::Ipv4Addr::from(gid.as_ipv4().expect("IPv4"));
    let junk = std::net::UdpSocket::bind((v4(a), 0)).expect("a socket");
    for bytes in [&b""[..], b"abc", b"abcd", b"sixteen bytes...", &[0; 5000]] {
        junk.send_to(bytes, (v4(b), 4791)).expect("sent");
    }
    let mut tx = udp(config(), a);
    tx.send_one(NOW, &send_of(path(a, b), 2, 64, 64)).expect("sent");
    let got = receive_packets(&mut rx, 2);
    assert_eq!(got[0].meta.src.gid, a);
    assert_eq!(counter(&rx, "udp_rx_trains"), 6);
    assert_eq!(counter(&rx, "rx_icrc_encapsulated"), 5);
}

/// Links that share an address receive what is for the queue pairs of each; what is for none of
/// them goes to the first.
#[test]
fn the_kernel_chooses_the_link_by_the_queue_pair() {
    let (a, b) = (loopback(90), loopback(91));
    let steering = Arc::<Steering>::default();
    let mut tx = udp(config(), a);
    let receiver =
        |prefix| udp(UdpConfig { steering: Some((Arc::clone(&steering), prefix)), ..config() }, b);
    let mut all = [7, 9, 200].map(receiver);
    assert!(all.iter().all(|link| link.is_steered(b) && !link.is_steered(a)));
    let to = |prefix: u8| {
        let mut train = send_of(path(a, b), 3, 256, 256);
        train.bth.dest_qp = Qpn::new(u32::from(prefix) << 16 | 0x12ab);
        train
    };
    for (prefix, place) in [(9, 1), (200, 2), (7, 0), (3, 0), (9, 1)] {
        tx.send_one(NOW, &to(prefix)).expect("sent");
        let got = flat(&receive_packets(&mut all[place], 3));
        assert!(got.iter().all(|packet| packet[5] == prefix), "what was sent to {prefix}");
    }
    // One that has gone leaves its packets to the others, whichever the kernel chooses.
    let [first, second, third] = all;
    drop(second);
    let mut left = [first, third];
    tx.send_one(NOW, &to(9)).expect("sent");
    let has_some = |link: &UdpLink| common::is_readable(link, 0);
    let place = (0..10_000).find_map(|_| left.iter().position(has_some)).expect("it arrives");
    assert_eq!(receive_packets(&mut left[place], 3).len(), 1);
    // The next link with this prefix has its packets again.
    let mut next = receiver(9);
    tx.send_one(NOW, &to(9)).expect("sent");
    assert_eq!(receive_packets(&mut next, 3).len(), 1);
    // A link that shares nothing cannot have the address.
    let refused = UdpLink::new(config(), &[b]).expect_err("the address is taken");
    assert_eq!(refused.kind(), ErrorKind::AddrInUse);
}
