//! Packets of the UDP link have on the wire the header fields that their ICRC covers, and a
//! receiver reports for each packet the header fields with which it arrived.

use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};

use crate::common::netns::{Cable, global, index_of, ip, with_cable};
use crate::common::sniff::{capture, captured};
use crate::common::{
    counter, flat, is_readable, loopback, packets_of, path, receive, receive_packets, send_alone,
    send_of,
};
use feroce_link::{Carrier, IcrcPolicy, UdpConfig, UdpLink, Verified};
use feroce_train::{Ecn, Instant, Path, RxMeta, Train};
use feroce_wire::{Frame, Gid, Net, Psn, ROCE_UDP_PORT};
use socket2::SockRef;

const NOW: Instant = Instant::ZERO;

/// Packets in a row: more than any adaptive behaviour of a kernel or a link needs to set in.
const MANY: u32 = 600;

fn udp(addr: Gid) -> UdpLink {
    UdpLink::new(UdpConfig { flows: 2, ..UdpConfig::default() }, &[addr]).expect("a link")
}

fn checked(addr: Gid, policy: IcrcPolicy) -> Verified<UdpLink> {
    Verified::new(udp(addr), policy)
}

/// A short packet that differs from all others.
fn packet(path: Path, n: u32) -> Train {
    let mut train = send_of(path, 1, 64, 8);
    train.bth.psn = Psn::new(n);
    train
}

/// One frame on the cable for each packet, nothing else. Any RoCE receiver accepts each.
#[test]
fn packets_are_right_on_the_cable() {
    with_cable(1500, |cable| {
        for (a, b) in [(Cable::a4(), Cable::b4()), (global(1), global(2))] {
            let on_wire = || UdpConfig {
                interface: Some(("wire".to_owned(), index_of("wire"))),
                ..UdpConfig::default()
            };
            let mut tx = cable.in_a(|| UdpLink::new(on_wire(), &[a]).expect("a link"));
            let mut rx = cable.in_b(|| UdpLink::new(on_wire(), &[b]).expect("a link"));
            let (path, socket) = (path(a, b), cable.in_b(capture));
            for n in 0..MANY {
                assert!(cable.in_a(|| send_alone(&mut tx, &packet(path, n))));
                let got = cable.in_b(|| receive_packets(&mut rx, 1).remove(0));
                let RxMeta { src, hop_limit, ecn, .. } = got.meta;
                assert_eq!((src.gid, hop_limit, ecn), (a, 64, Ecn::Capable));
            }
            let frames = captured(&socket);
            assert_eq!(frames.len(), MANY as usize, "frames on the cable");
            for (n, bytes) in (0..).zip(&frames) {
                let frame = Frame::parse_ethernet(bytes).expect("a RoCE frame");
                assert!(frame.icrc_ok(), "packet {n} from {a}: wrong ICRC");
                assert_eq!(frame.transport, packets_of(&packet(path, n))[0]);
                let (id, ecn, port) = match frame.net {
                    Net::V4(ip, udp) => {
                        assert!(ip.dont_fragment);
                        (ip.id, ip.ecn, udp.src_port)
                    }
                    Net::V6(ip, udp) => (0, ip.ecn, udp.src_port),
                    Net::Grh(_) => panic!("not RoCEv2"),
                };
                assert_eq!((id, ecn, port), (0, 2, tx.headers(&path).udp_sport));
            }
        }
    });
}

/// What call `n` sends: one packet, a train, or packets that make a train.
fn mixed(path: Path, n: u32) -> Vec<Train> {
    match n % 3 {
        0 => vec![packet(path, n)],
        1 => vec![send_of(path, 5, 64, 64)],
        _ => (0..7).map(|i| packet(path, 7 * n + i)).collect(),
    }
}

/// The kernel numbers the packets of a call from 0, whatever was sent before.
#[test]
fn trains_and_packets_take_turns() {
    with_cable(1500, |cable| {
        cable.cut_trains();
        let (a, b) = (Cable::a4(), Cable::b4());
        let mut tx = cable.in_a(|| udp(a));
        let (mut rx, socket) = cable.in_b(|| (checked(b, IcrcPolicy::Strict), capture()));
        let mut expected = Vec::new();
        for n in 0..MANY {
            let trains = mixed(path(a, b), n);
            cable.in_a(|| tx.send(NOW, &trains)).expect("sent");
            let packets: Vec<_> = trains.iter().flat_map(packets_of).collect();
            let got = cable.in_b(|| receive_packets(&mut rx, packets.len()));
            assert_eq!(flat(&got), packets, "what {n} sent");
            expected.extend(packets);
        }
        assert_eq!(counter(&tx, "udp_tx_lost"), 0);
        assert_eq!(counter(&rx, "rx_icrc_encapsulated"), 0);
        let frames = captured(&socket);
        assert_eq!(frames.len(), expected.len(), "frames on the cable");
        for (bytes, packet) in frames.iter().zip(&expected) {
            let frame = Frame::parse_ethernet(bytes).expect("a RoCE frame");
            assert!(frame.icrc_ok(), "wrong ICRC");
            assert_eq!(frame.transport, *packet);
        }
    });
}

/// The sender keeps what a socket has no room for, and learns when there is room. Nothing is lost
/// or overtaken.
#[test]
fn a_socket_may_be_full() {
    with_cable(1500, |cable| {
        let (a, b) = (Cable::a4(), Cable::b4());
        let config = UdpConfig { sndbuf: 16 << 10, flows: 1, ..UdpConfig::default() };
        let mut tx = cable.in_a(|| UdpLink::new(config, &[a]).expect("a link"));
        let mut rx = cable.in_b(|| checked(b, IcrcPolicy::Strict));
        assert!(cable.in_a(|| send_alone(&mut tx, &packet(path(a, b), 0))));
        cable.in_b(|| receive_packets(&mut rx, 1));
        // Packets to a neighbour that does not answer stay in the kernel.
        cable.in_b(|| ip("link set wire arp off"));
        cable.in_a(|| ip("neigh del 10.9.0.2 dev wire"));
        let train = |n: u32| {
            let mut train = send_of(path(a, b), 12, 1024, 1024);
            train.bth.psn = Psn::new(12 * n);
            train
        };
        let trains: Vec<_> = (0..100).map(train).collect();
        let sent = cable.in_a(|| tx.send(NOW, &trains)).expect("no error");
        assert!((1..10).contains(&sent), "{sent} trains in a small buffer");
        assert_eq!(counter(&tx, "udp_tx_full"), 1);
        assert!(!send_alone(&mut tx, &packet(path(a, b), 0)), "it would overtake");
        assert!(!is_readable(&tx, 0));
        cable.in_a(|| ip("neigh replace 10.9.0.2 lladdr 02:00:00:00:00:02 dev wire"));
        assert!(is_readable(&tx, 10_000), "no word of the room");
        assert_eq!(tx.receive(NOW, 8, &mut |_| panic!("no packet was sent")).expect("fine"), 0);
        assert_eq!(cable.in_a(|| tx.send(NOW, &trains[sent..=sent])).expect("sent"), 1);
        let expected: Vec<_> = trains[..=sent].iter().flat_map(packets_of).collect();
        let got = cable.in_b(|| receive_packets(&mut rx, expected.len()));
        assert_eq!(flat(&got), expected);
        assert_eq!(counter(&rx, "rx_icrc_encapsulated"), 0);
    });
}

/// A host without a listener answers with ICMP errors; the flow goes on when the listener is back.
#[test]
fn a_peer_may_go_and_come_back() {
    let (a, b) = (loopback(27), loopback(28));
    let mut tx = udp(a);
    for round in 0..2 {
        let mut rx = checked(b, IcrcPolicy::AnyId);
        for n in 0..MANY {
            let train = packet(path(a, b), n);
            assert!(send_alone(&mut tx, &train));
            assert_eq!(flat(&receive_packets(&mut rx, 1)), packets_of(&train), "{round}: {n}");
        }
        drop(rx);
        for n in 0..5 {
            assert!(send_alone(&mut tx, &packet(path(a, b), n)));
        }
    }
}

/// A sleeping thread is woken by what arrives at any socket, also after long polling of one.
#[test]
fn every_socket_wakes() {
    let [a, b, c] = [32, 33, 34].map(loopback);
    let mut tx = udp(a);
    let config = UdpConfig { flows: 2, ..UdpConfig::default() };
    let mut rx = UdpLink::new(config, &[b, c]).expect("a link");
    for n in 0..MANY {
        assert!(send_alone(&mut tx, &packet(path(a, b), n)));
        receive_packets(&mut rx, 1);
    }
    for n in 0..4 {
        for to in [b, c] {
            assert!(receive(&mut rx, NOW).is_empty());
            assert!(rx.arm(NOW) && !is_readable(&rx, 0));
            assert!(send_alone(&mut tx, &packet(path(a, to), n)));
            assert!(is_readable(&rx, 10_000));
            assert_eq!(receive_packets(&mut rx, 1)[0].meta.dst.gid, to);
        }
    }
}

/// A single packet that differs from hundreds before it is seen to differ, and the next one is seen
/// not to.
#[test]
fn metadata_of_every_packet_is_what_arrived() {
    let v4 = |gid: Gid| Ipv4Addr::from(gid.as_ipv4().expect("an IPv4 address"));
    let (a, b) = (loopback(46), loopback(47));
    let v6 = Gid(Ipv6Addr::LOCALHOST.octets());
    let mut links = [udp(b), udp(v6)];
    let sockets = [UdpSocket::bind((v4(a), 0)), UdpSocket::bind((Ipv6Addr::LOCALHOST, 0))];
    let sockets = sockets.map(|socket| socket.expect("a port"));
    for n in 0..MANY {
        let (ecn, hops, class) = match n {
            400 => (Ecn::Congested, 64, 0x20),
            402 => (Ecn::Capable, 1, 0),
            404 => (Ecn::NotCapable, 255, 0xfc),
            _ => (Ecn::Capable, 64, 0),
        };
        let bits = match ecn {
            Ecn::NotCapable => 0,
            Ecn::Congested => 3,
            _ => 2,
        };
        let (four, six) = (SockRef::from(&sockets[0]), SockRef::from(&sockets[1]));
        four.set_tos_v4(class | bits).expect("a traffic class");
        six.set_tclass_v6(class | bits).expect("a traffic class");
        four.set_ttl_v4(hops).expect("a TTL");
        six.set_unicast_hops_v6(hops).expect("a hop limit");
        sockets[0].send_to(&[0; 32], (v4(b), ROCE_UDP_PORT)).expect("sent");
        sockets[1].send_to(&[0; 32], (Ipv6Addr::LOCALHOST, ROCE_UDP_PORT)).expect("sent");
        for (link, socket) in links.iter_mut().zip(&sockets) {
            let meta = receive_packets(link, 1)[0].meta;
            let from = socket.local_addr().expect("an address").port();
            assert_eq!((meta.ecn, meta.udp_sport), (ecn, from), "packet {n}");
            assert_eq!((u32::from(meta.hop_limit), u32::from(meta.traffic_class)), (hops, class));
        }
    }
}

/// RoCEv2 defines no packet without content: the check counts one as bad, and it changes nothing.
#[test]
fn an_empty_datagram_is_dropped() {
    let (a, b) = (loopback(48), loopback(49));
    let mut rx = checked(b, IcrcPolicy::Strict);
    let v4 = |gid: Gid| Ipv4Addr::from(gid.as_ipv4().expect("an IPv4 address"));
    let socket = UdpSocket::bind((v4(a), 0)).expect("a port");
    socket.send_to(&[], (v4(b), ROCE_UDP_PORT)).expect("sent");
    assert!(receive(&mut rx, NOW).is_empty());
    assert_eq!(counter(&rx, "rx_icrc_encapsulated"), 1);
}
