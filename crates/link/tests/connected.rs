//! Connected sockets of the UDP link: what takes them, what they change, and what they must not.

mod common;

use std::net::{Ipv4Addr, UdpSocket};

use common::netns::{Cable, global, index_of, ip, with_cable};
use common::sniff::{capture, captured};
use common::{
    Got, counter, flat, is_readable, loopback, packets_of, path, receive, receive_packets,
    send_alone, send_of,
};
use feroce_link::{Fault, FaultConfig, IcrcPolicy, Link, UdpConfig, UdpLink, Verified};
use feroce_train::{Ecn, Instant, Path, Train};
use feroce_wire::{Frame, Gid, Net, Psn, ROCE_UDP_PORT};
use socket2::SockRef;

const NOW: Instant = Instant::ZERO;

/// So many packets by themselves make any link connect.
const MANY: u32 = 600;

fn udp(addr: Gid) -> UdpLink {
    UdpLink::new(UdpConfig { flows: 2, ..UdpConfig::default() }, &[addr]).expect("a link")
}

fn checked(addr: Gid, policy: IcrcPolicy) -> Verified<UdpLink> {
    Verified::new(udp(addr), policy)
}

/// A short packet that no other is like.
fn packet(path: Path, n: u32) -> Train {
    let mut train = send_of(path, 1, 64, 8);
    train.bth.psn = Psn::new(n);
    train
}

/// Sends a packet by itself, and takes it.
fn cross(tx: &mut impl Link, rx: &mut impl Link, path: Path, n: u32) -> Got {
    let train = packet(path, n);
    assert!(send_alone(tx, &train));
    let got = receive_packets(rx, 1).remove(0);
    assert_eq!((&got.packets, got.meta.src), (&packets_of(&train), path.src), "packet {n}");
    got
}

/// The frames on the cable are what any RoCE receiver accepts, and say what they did before.
#[test]
fn packets_of_a_lane_are_right_on_the_cable() {
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
                assert_eq!((got.meta.hop_limit, got.meta.src), (64, a));
            }
            assert_eq!((counter(&tx, "udp_tx_lanes"), counter(&rx, "udp_rx_gates")), (1, 1));
            let frames = captured(&socket);
            assert_eq!(frames.len(), MANY as usize, "frames on the cable");
            let mut ids = Vec::new();
            for (n, bytes) in (0..).zip(&frames) {
                let frame = Frame::parse_ethernet(bytes).expect("a RoCE frame");
                assert!(frame.icrc_ok(), "packet {n} from {a}: wrong ICRC");
                assert_eq!(frame.transport, packets_of(&packet(path, n))[0]);
                let (ecn, port) = match frame.net {
                    Net::V4(ip, udp) => {
                        assert!(ip.dont_fragment);
                        ids.push(ip.id);
                        (ip.ecn, udp.src_port)
                    }
                    Net::V6(ip, udp) => (ip.ecn, udp.src_port),
                    Net::Grh(_) => panic!("not RoCEv2"),
                };
                assert_eq!((ecn, port), (2, tx.actual_path(&path).udp_sport));
            }
            // Until there was a lane, it was zero.
            let counting = ids.iter().position(|id| *id != 0).unwrap_or(ids.len());
            assert!((200..300).contains(&counting) || ids.is_empty(), "from {counting} on");
            let steps = ids[counting..].windows(2).map(|pair| pair[1].wrapping_sub(pair[0]));
            assert!(steps.into_iter().all(|step| step == 1), "{ids:?}");
        }
    });
}

/// A device on top of another shows what it sent twice: once on each. There are right
/// identifications or none that count.
#[test]
fn a_lane_through_a_bridge_is_right() {
    with_cable(1500, |cable| {
        let address = Gid::from_ipv4([10, 77, 0, 1]);
        let peer = Gid::from_ipv4([10, 77, 0, 2]);
        cable.in_a(|| {
            ip("link add above type bridge");
            ip("link set wire master above");
            ip("addr add 10.77.0.1/24 dev above");
            ip("link set above up");
        });
        cable.in_b(|| ip("addr add 10.77.0.2/24 dev wire"));
        let mut tx = cable.in_a(|| udp(address));
        let (mut rx, socket) = cable.in_b(|| (udp(peer), capture()));
        for n in 0..MANY {
            assert!(cable.in_a(|| send_alone(&mut tx, &packet(path(address, peer), n))));
            cable.in_b(|| receive_packets(&mut rx, 1));
        }
        let frames = captured(&socket);
        assert_eq!(frames.len(), MANY as usize);
        let is_right = |bytes: &Vec<u8>| Frame::parse_ethernet(bytes).is_ok_and(|f| f.icrc_ok());
        assert!(frames.iter().all(is_right));
        assert_eq!(counter(&tx, "udp_tx_lanes"), 1);
    });
}

/// A thread that has gone to another namespace, which has the same addresses, sends from where the
/// link is.
#[test]
fn connected_sockets_are_where_the_others_are() {
    with_cable(1500, |cable| {
        let (a, b) = (loopback(20), loopback(21));
        let (mut tx, mut rx) = cable.in_a(|| (udp(a), checked(b, IcrcPolicy::AnyId)));
        for n in 0..MANY {
            cable.in_b(|| cross(&mut tx, &mut rx, path(a, b), n));
        }
        assert_eq!((counter(&tx, "udp_tx_lanes"), counter(&rx, "udp_rx_gates")), (0, 0));
    });
}

/// It accepts what counts on: from where it begins, which the sender announces, when the numbers
/// begin again, when the sender has looked at them, and behind packets that were lost.
#[test]
fn a_strict_receiver_loses_nothing_to_a_lane() {
    let (a, b) = (loopback(22), loopback(23));
    let lossy: FaultConfig = "loss=1%,seed=7".parse().expect("a fault");
    let mut rx = Verified::new(Fault::new(udp(b), &lossy), IcrcPolicy::Strict);
    let (mut tx, all, mut came) = (udp(a), 70_000_u32, 0);
    for n in 0..all {
        assert!(send_alone(&mut tx, &packet(path(a, b), n)));
        came += flat(&receive(&mut rx, NOW)).len() as u64;
    }
    let lost = counter(&rx, "fault_lost");
    assert!((500..900).contains(&lost), "{lost} lost");
    let refused = counter(&rx, "rx_icrc_encapsulated");
    assert_eq!((counter(&tx, "udp_tx_lanes"), refused), (1, 0));
    assert_eq!(came + lost, u64::from(all));
}

/// What `n` sends, by itself or together: one packet, a train, or packets that make a train.
fn mixed(path: Path, n: u32) -> Vec<Train> {
    match n % 3 {
        0 => vec![packet(path, n)],
        1 => vec![send_of(path, 5, 64, 64)],
        _ => (0..7).map(|i| packet(path, 7 * n + i)).collect(),
    }
}

/// Trains take the lane as well, whose identifications are those of all of their packets; whoever
/// receives them knows which come next.
#[test]
fn all_that_goes_to_one_peer_takes_the_lane() {
    with_cable(1500, |cable| {
        cable.cut_trains();
        let (a, b) = (Cable::a4(), Cable::b4());
        let mut tx = cable.in_a(|| udp(a));
        let (mut rx, socket) = cable.in_b(|| (checked(b, IcrcPolicy::Strict), capture()));
        let mut expected = Vec::new();
        for n in 0..MANY {
            let trains = mixed(path(a, b), n);
            cable.in_a(|| tx.send_all(NOW, &trains)).expect("sent");
            let packets: Vec<_> = trains.iter().flat_map(packets_of).collect();
            let got = cable.in_b(|| receive_packets(&mut rx, packets.len()));
            assert_eq!(flat(&got), packets, "what {n} sent");
            expected.extend(packets);
        }
        assert_eq!((counter(&tx, "udp_tx_lanes"), counter(&tx, "udp_tx_lost")), (1, 0));
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

/// What a connected socket has no room for stays with whoever sends, who is told when there is.
/// Nothing is lost or overtaken, and those who go elsewhere do not close it meanwhile.
#[test]
fn a_lane_may_be_full() {
    with_cable(1500, |cable| {
        let (a, b) = (Cable::a4(), Cable::b4());
        let config = UdpConfig { sndbuf: 16 << 10, flows: 1, ..UdpConfig::default() };
        let mut tx = cable.in_a(|| UdpLink::new(config, &[a]).expect("a link"));
        let mut rx = cable.in_b(|| checked(b, IcrcPolicy::Strict));
        for n in 0..MANY {
            cable.in_a(|| tx.send_all(NOW, &[packet(path(a, b), n)])).expect("sent");
            cable.in_b(|| receive_packets(&mut rx, 1));
        }
        assert_eq!(counter(&tx, "udp_tx_lanes"), 1);
        // Packets to a neighbour who does not answer stay in the kernel.
        cable.in_b(|| ip("link set wire arp off"));
        cable.in_a(|| ip("neigh del 10.9.0.2 dev wire"));
        let train = |n: u32| {
            let mut train = send_of(path(a, b), 12, 1024, 1024);
            train.bth.psn = Psn::new(12 * n);
            train
        };
        let trains: Vec<_> = (0..100).map(train).collect();
        let sent = cable.in_a(|| tx.send_all(NOW, &trains)).expect("no error");
        assert!((1..10).contains(&sent), "{sent} trains in a small buffer");
        assert_eq!(counter(&tx, "udp_tx_full"), 1);
        assert!(!send_alone(&mut tx, &packet(path(a, b), 0)), "it would overtake");
        let elsewhere = packet(path(a, Gid::from_ipv4([10, 9, 0, 77])), 0);
        cable.in_a(|| tx.send_all(NOW, &[elsewhere])).expect("sent");
        assert!(!is_readable(&tx, 0));
        cable.in_a(|| ip("neigh replace 10.9.0.2 lladdr 02:00:00:00:00:02 dev wire"));
        assert!(is_readable(&tx, 10_000), "no word of the room");
        assert_eq!(tx.receive(NOW, 8, &mut |_| panic!("nobody sends")).expect("fine"), 0);
        assert_eq!(cable.in_a(|| tx.send_all(NOW, &trains[sent..=sent])).expect("sent"), 1);
        let expected: Vec<_> = trains[..=sent].iter().flat_map(packets_of).collect();
        let got = cable.in_b(|| receive_packets(&mut rx, expected.len()));
        assert_eq!(flat(&got), expected);
        assert_eq!(counter(&rx, "rx_icrc_encapsulated"), 0);
        assert_eq!(counter(&tx, "udp_tx_lanes"), 1);
    });
}

/// Whoever sends to several in turn has none.
#[test]
fn a_lane_is_for_one_peer() {
    let (a, b) = (loopback(24), loopback(25));
    let (mut tx, mut rx) = (udp(a), checked(b, IcrcPolicy::AnyId));
    let (c, mut other) = (loopback(26), checked(loopback(26), IcrcPolicy::AnyId));
    for n in 0..MANY {
        cross(&mut tx, &mut rx, path(a, b), n);
        cross(&mut tx, &mut other, path(a, c), n);
    }
    assert_eq!(counter(&tx, "udp_tx_lanes"), 0);
    assert_eq!(counter(&rx, "rx_icrc_encapsulated"), 0);
}

#[test]
fn nothing_is_connected_where_nobody_wants_it() {
    let (a, b) = (loopback(39), loopback(40));
    let link = |addr| {
        let config = UdpConfig { connect: false, ..UdpConfig::default() };
        UdpLink::new(config, &[addr]).expect("a link")
    };
    let (mut tx, mut rx) = (link(a), Verified::new(link(b), IcrcPolicy::Strict));
    for n in 0..MANY {
        cross(&mut tx, &mut rx, path(a, b), n);
    }
    assert_eq!((counter(&tx, "udp_tx_lanes"), counter(&rx, "udp_rx_gates")), (0, 0));
}

/// A connected socket is told that nobody receives at the other end; nothing is lost by that when
/// somebody does again.
#[test]
fn a_lane_ends_with_its_peer() {
    let (a, b) = (loopback(27), loopback(28));
    let mut tx = udp(a);
    for lanes in 1..3 {
        let mut rx = checked(b, IcrcPolicy::AnyId);
        for n in 0..MANY {
            cross(&mut tx, &mut rx, path(a, b), n);
        }
        assert_eq!(counter(&tx, "udp_tx_lanes"), lanes);
        drop(rx);
        for n in 0..5 {
            assert!(send_alone(&mut tx, &packet(path(a, b), n)));
        }
    }
}

/// What comes from elsewhere is told as such, and ends the gate if there is much of it. Nothing is
/// lost or overtaken by what comes before or behind it.
#[test]
fn a_gate_is_for_one_flow() {
    let [a, b, c] = [29, 30, 31].map(loopback);
    let (mut tx, mut other) = (udp(a), udp(c));
    let mut rx = checked(b, IcrcPolicy::AnyId);
    for gates in 1..3 {
        for n in 0..MANY {
            cross(&mut tx, &mut rx, path(a, b), n);
        }
        assert_eq!(counter(&rx, "udp_rx_gates"), gates);
        for n in 0..10 {
            cross(&mut other, &mut rx, path(c, b), n);
            cross(&mut tx, &mut rx, path(a, b), n);
        }
        assert_eq!(counter(&rx, "udp_rx_gates"), gates);
        for n in 0..100 {
            cross(&mut other, &mut rx, path(c, b), n);
        }
        for n in 0..50 {
            assert!(send_alone(&mut tx, &packet(path(a, b), n)));
        }
        let expected = (0..50).flat_map(|n| packets_of(&packet(path(a, b), n)));
        assert_eq!(flat(&receive_packets(&mut rx, 50)), expected.collect::<Vec<_>>());
    }
    assert_eq!(counter(&rx, "rx_icrc_encapsulated"), 0);
}

/// Who has a gate and is then sent much at once, while nobody looks, gets all of it, in order,
/// though that ends the gate.
#[test]
fn what_is_in_a_gate_is_not_lost_with_it() {
    let (a, b) = (loopback(42), loopback(43));
    let (mut tx, mut rx) = (udp(a), checked(b, IcrcPolicy::AnyId));
    for n in 0..MANY {
        cross(&mut tx, &mut rx, path(a, b), n);
    }
    assert_eq!(counter(&rx, "udp_rx_gates"), 1);
    for n in 0..300 {
        assert!(send_alone(&mut tx, &packet(path(a, b), n)));
    }
    let mut got = Vec::new();
    // One at a time, as whoever polls takes them.
    for _ in 0..400 {
        let taken = rx.receive(NOW, 1, &mut |train| {
            got.extend(train.packets().map(<[u8]>::to_vec));
        });
        taken.expect("receive");
    }
    let expected = (0..300).flat_map(|n| packets_of(&packet(path(a, b), n)));
    assert_eq!(got, expected.collect::<Vec<_>>());
    // It did end: the next packets by themselves make another.
    for n in 0..MANY {
        cross(&mut tx, &mut rx, path(a, b), n);
    }
    assert_eq!(counter(&rx, "udp_rx_gates"), 2);
}

/// Whoever sleeps is woken by what comes to either socket.
#[test]
fn gates_wake() {
    let [a, b, c] = [32, 33, 34].map(loopback);
    let (mut tx, mut other) = (udp(a), udp(c));
    let mut rx = checked(b, IcrcPolicy::AnyId);
    for n in 0..MANY {
        cross(&mut tx, &mut rx, path(a, b), n);
    }
    assert_eq!(counter(&rx, "udp_rx_gates"), 1);
    for n in 0..4 {
        for (tx, from) in [(&mut tx, a), (&mut other, c)] {
            assert!(receive(&mut rx, NOW).is_empty());
            assert!(rx.arm(NOW, false) && !is_readable(&rx, 0));
            assert!(send_alone(tx, &packet(path(from, b), n)));
            assert!(is_readable(&rx, 10_000));
            assert_eq!(receive_packets(&mut rx, 1)[0].meta.src, from);
        }
    }
}

/// What headers say is asked of one packet in eight, until it changes.
#[test]
fn congestion_is_seen_through_a_gate() {
    let (a, b) = (loopback(46), loopback(47));
    let v4 = |gid: Gid| Ipv4Addr::from(gid.as_ipv4().expect("an IPv4 address"));
    let mut rx = udp(b);
    let tx = UdpSocket::bind((v4(a), 0)).expect("a port");
    let mut marks = |ecn: u32, packets: u32| -> Vec<Ecn> {
        SockRef::from(&tx).set_tos_v4(ecn).expect("the bits of congestion");
        let cross = |_| {
            tx.send_to(&[0; 32], (v4(b), ROCE_UDP_PORT)).expect("sent");
            receive_packets(&mut rx, 1)[0].meta.ecn
        };
        (0..packets).map(cross).collect()
    };
    assert_eq!(marks(2, MANY), vec![Ecn::Capable; MANY as usize]);
    let marked = marks(3, 40);
    let seen = marked.iter().position(|&ecn| ecn == Ecn::Congested).expect("congestion");
    assert!(seen < 8 && marked[seen..].iter().all(|&ecn| ecn == Ecn::Congested), "{marked:?}");
    let after = marks(2, 40);
    assert_eq!(after, vec![Ecn::Capable; 40], "every packet is asked");
    let (gates, unasked) = (counter(&rx, "udp_rx_gates"), counter(&rx, "udp_rx_unasked"));
    assert!(gates == 1 && unasked > 100, "{unasked} were not asked");
}

/// The port is free for others when the address has gone.
#[test]
fn connected_sockets_go_with_their_address() {
    let (a, b) = (loopback(35), loopback(36));
    let (mut tx, mut rx) = (udp(a), checked(b, IcrcPolicy::AnyId));
    for n in 0..MANY {
        cross(&mut tx, &mut rx, path(a, b), n);
    }
    assert_eq!((counter(&tx, "udp_tx_lanes"), counter(&rx, "udp_rx_gates")), (1, 1));
    assert!(UdpLink::new(UdpConfig::default(), &[b]).is_err(), "the port is taken");
    rx.set_addresses(&[]).expect("none");
    let mut next = checked(b, IcrcPolicy::AnyId);
    cross(&mut tx, &mut next, path(a, b), 7);
    tx.set_addresses(&[]).expect("none");
    assert!(!send_alone(&mut tx, &packet(path(a, b), 8)), "from an address that is gone");
}
