//! The UDP link over a cable between two network namespaces, and what is seen on the cable.

use std::os::fd::AsRawFd;

use crate::common::netns::{Cable, global, index_of, ip, link_local, with_cable};
use crate::common::sniff::{capture, captured};
use crate::common::{SendOne as _, Sent};
use crate::common::{
    counter, flat, is_readable, packets_of, path, receive_packets, send_alone, send_of, warnings,
};
use feroce_link::{Carrier, Control, IcrcPolicy, Pcap, PcapConfig, UdpConfig, UdpLink, Verified};
use feroce_train::{Ecn, Instant, Path};
use feroce_wire::{Frame, Gid, Net};

const NOW: Instant = Instant::ZERO;

/// A link in the namespace of this thread.
fn on_wire() -> UdpConfig {
    let interface = Some(("wire".to_owned(), index_of("wire")));
    UdpConfig { interface, ..UdpConfig::default() }
}

fn udp(addr: Gid) -> UdpLink {
    UdpLink::new(on_wire(), &[addr]).expect("a link")
}

fn strict(addr: Gid) -> Verified<UdpLink> {
    Verified::new(udp(addr), IcrcPolicy::Strict)
}

/// Both families: addresses of `a` and `b`.
fn families() -> [(Gid, Gid); 3] {
    [(Cable::a4(), Cable::b4()), (global(1), global(2)), (link_local(1), link_local(2))]
}

fn trains_cross(cable: &Cable, strides: &[usize]) {
    for (a, b) in families() {
        let (mut tx, mut rx) = (cable.in_a(|| udp(a)), cable.in_b(|| strict(b)));
        for &stride in strides {
            let count = tx.caps().packets_of(stride + 12);
            let train = send_of(path(a, b), count, stride, stride - 3);
            assert_eq!(tx.send_one(NOW, &train).expect("sent"), Sent::Done);
            let got = receive_packets(&mut rx, count as usize);
            assert_eq!(flat(&got), packets_of(&train));
            assert_eq!(got.len(), 1, "{count} packets from {a} came as {} trains", got.len());
            assert_eq!((got[0].meta.src.gid, got[0].meta.dst.gid), (a, b));
            assert_eq!((got[0].meta.ecn, got[0].meta.hop_limit), (Ecn::Capable, 64));
        }
        assert_eq!(counter(&rx, "rx_icrc_encapsulated"), 0);
    }
}

/// Makes a socket send no UDP checksum over IPv6.
fn leave_checksums_out(socket: &impl AsRawFd) {
    let (one, len) = (1_i32, size_of::<i32>() as libc::socklen_t);
    let (level, name) = (libc::IPPROTO_UDP, libc::UDP_NO_CHECK6_TX);
    // SAFETY: the pointer leads to `len` bytes, which live until the call returns.
    let rc =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const one).cast(), len) };
    assert_eq!(rc, 0);
}

/// Linux Soft-RoCE sends such.
#[test]
fn packets_without_udp_checksum_arrive() {
    with_cable(1500, |cable| {
        let (a, b) = (global(1), global(2));
        let mut rx = cable.in_b(|| udp(b));
        let address = |gid: Gid| std::net::Ipv6Addr::from(gid.0);
        let tx = cable.in_a(|| std::net::UdpSocket::bind((address(a), 0)).expect("a socket"));
        leave_checksums_out(&tx);
        let packet = packets_of(&send_of(path(a, b), 1, 64, 64)).remove(0);
        tx.send_to(&packet, (address(b), 4791)).expect("sent");
        assert_eq!(flat(&receive_packets(&mut rx, 1)), [packet]);
    });
}

#[test]
fn trains_cross_a_cable_of_mtu_1500() {
    with_cable(1500, |cable| trains_cross(cable, &[256, 512, 1024]));
}

#[test]
fn trains_cross_a_cable_of_mtu_9000() {
    with_cable(9000, |cable| trains_cross(cable, &[256, 1024, 2048, 4096]));
}

#[test]
fn the_loopback_address_of_ipv6_works() {
    with_cable(1500, |cable| {
        let mut here = [0; 16];
        here[15] = 1;
        let here = Gid(here);
        let make = || UdpLink::new(UdpConfig::default(), &[here]).expect("a link");
        let mut link = Verified::new(cable.in_a(make), IcrcPolicy::Strict);
        let train = send_of(path(here, here), 15, 4096, 1);
        link.send_one(NOW, &train).expect("sent");
        let got = receive_packets(&mut link, 15);
        assert_eq!((got.len(), flat(&got)), (1, packets_of(&train)));
    });
}

/// Every packet on the cable is one that any RoCE receiver accepts: right ICRC for the
/// identification it has, no fragmentation, the marks of the path.
fn frames_are_right(cable: &Cable, gso: bool, a: Gid, b: Gid) {
    let interface = Some(("wire".to_owned(), cable.in_a(|| index_of("wire"))));
    let config = UdpConfig { gso, interface, ..UdpConfig::default() };
    let mut tx = cable.in_a(|| UdpLink::new(config, &[a])).expect("a link");
    let mut rx = cable.in_b(|| strict(b));
    let cases = [(0, 64, 64), (0x68, 7, 5), (0, 64, 1), (0, 64, 1), (0x68, 7, 1)];
    for (n, (traffic_class, hop_limit, count)) in cases.into_iter().enumerate() {
        let socket = cable.in_b(capture);
        let path = Path { traffic_class, hop_limit, ..path(a, b) };
        let train = send_of(path, count, 1000, 333);
        match n {
            0..3 => assert_eq!(tx.send_one(NOW, &train).expect("sent"), Sent::Done),
            // A packet that is sent without a train has the same headers.
            _ => assert!(send_alone(&mut tx, &train)),
        }
        let got = receive_packets(&mut rx, count as usize);
        assert_eq!(flat(&got), packets_of(&train));
        let frames = captured(&socket);
        assert_eq!(frames.len(), count as usize, "frames on the cable");
        let packets = packets_of(&train);
        for (i, (bytes, packet)) in frames.iter().zip(&packets).enumerate() {
            let frame = Frame::parse_ethernet(bytes).expect("a RoCE frame");
            assert!(frame.icrc_ok(), "packet {i} from {a}: wrong ICRC");
            assert_eq!(frame.transport, packet);
            let (ecn, dscp, hops, udp) = match frame.net {
                Net::V4(ip, udp) => {
                    assert_eq!(ip.id, if gso { i as u16 } else { 0 }, "identification");
                    assert!(ip.dont_fragment);
                    (ip.ecn, ip.dscp, ip.ttl, udp)
                }
                Net::V6(ip, udp) => (ip.ecn, ip.dscp, ip.hop_limit, udp),
                Net::Grh(_) => panic!("not RoCEv2"),
            };
            assert_eq!((ecn, dscp, hops), (2, traffic_class >> 2, hop_limit));
            assert_eq!(udp.src_port, tx.headers(&path).udp_sport);
        }
    }
    assert_eq!(counter(&rx, "rx_icrc_encapsulated"), 0);
}

#[test]
fn every_segment_on_the_cable_has_its_icrc() {
    with_cable(1500, |cable| {
        cable.cut_trains();
        for (a, b) in families() {
            frames_are_right(cable, true, a, b);
        }
    });
}

#[test]
fn every_single_packet_on_the_cable_has_its_icrc() {
    with_cable(1500, |cable| {
        for (a, b) in families() {
            frames_are_right(cable, false, a, b);
        }
    });
}

/// Cut on one side and, where the kernel does so, merged on the other: other bounds of trains.
#[test]
fn packets_cut_and_merged_on_the_way_are_good() {
    with_cable(1500, |cable| {
        cable.cut_trains();
        for (a, b) in families() {
            let (mut tx, mut rx) = (cable.in_a(|| udp(a)), cable.in_b(|| strict(b)));
            let trains: Vec<_> = [30, 1, 2].map(|n| send_of(path(a, b), n, 800, 800)).into();
            for train in &trains {
                tx.send_one(NOW, train).expect("sent");
            }
            let got = receive_packets(&mut rx, 33);
            let sent: Vec<_> = trains.iter().flat_map(packets_of).collect();
            assert_eq!(flat(&got), sent);
            assert_eq!(counter(&rx, "rx_icrc_encapsulated"), 0);
        }
    });
}

/// The bytes of an IP packet without what a user of sockets cannot know: the UDP checksum and, on
/// IPv6, the flow label.
fn knowable(ip: &[u8]) -> Vec<u8> {
    let mut bytes = ip.to_vec();
    let udp = if bytes[0] >> 4 == 4 { 20 } else { 40 };
    bytes[udp + 6..udp + 8].fill(0);
    if udp == 40 {
        bytes[1] &= 0xf0;
        bytes[2..4].fill(0);
    }
    bytes
}

/// The capture that a layer makes up is, byte for byte, what is on the cable.
#[test]
fn a_capture_shows_what_is_on_the_cable() {
    with_cable(1500, |cable| {
        cable.cut_trains();
        for (n, (a, b)) in families().into_iter().enumerate() {
            let name = format!("{}/cable{n}.pcapng", env!("CARGO_TARGET_TMPDIR"));
            let (tx, mut rx) = (cable.in_a(|| udp(a)), cable.in_b(|| strict(b)));
            let mut tx = Pcap::create(tx, &name, PcapConfig::default()).expect("a file");
            let socket = cable.in_b(capture);
            for (traffic_class, hop_limit) in [(0, 0), (0xb8, 3)] {
                let path = Path { traffic_class, hop_limit, entropy: 3, ..path(a, b) };
                tx.send_one(NOW, &send_of(path, 9, 700, 1)).expect("sent");
                receive_packets(&mut rx, 9);
            }
            drop(tx);
            let file = std::fs::read(&name).expect("written");
            let on_cable = captured(&socket);
            assert_eq!(on_cable.len(), 18);
            for frame in on_cable {
                let wanted = knowable(&frame[14..]);
                let found = file.windows(wanted.len()).any(|bytes| bytes == wanted);
                assert!(found, "a frame from {a} is not in the capture");
            }
        }
    });
}

fn group_v6() -> Gid {
    let mut gid = [0; 16];
    (gid[0], gid[1], gid[15]) = (0xff, 0x0e, 0x77);
    Gid(gid)
}

#[test]
fn groups_are_joined_and_left() {
    with_cable(1500, |cable| {
        let v4 = Gid::from_ipv4([239, 9, 9, 9]);
        let mut local = group_v6();
        local.0[1] = 0x02;
        for (a, b, group) in [
            (Cable::a4(), Cable::b4(), v4),
            (global(1), global(2), group_v6()),
            (link_local(1), link_local(2), local),
        ] {
            let (mut tx, mut rx) = (cable.in_a(|| udp(a)), cable.in_b(|| strict(b)));
            cable.in_b(|| rx.control(Control::Join(group))).expect("joined");
            cable.in_b(|| rx.control(Control::Join(group))).expect("joined again");
            let to_group = send_of(path(a, group), 3, 512, 100);
            let to_member = send_of(path(a, b), 2, 512, 100);
            tx.send_one(NOW, &to_group).expect("sent");
            let got = receive_packets(&mut rx, 3);
            assert_eq!((got[0].meta.src.gid, got[0].meta.dst.gid), (a, group));
            assert_eq!((flat(&got), got[0].meta.hop_limit), (packets_of(&to_group), 64));
            tx.send_one(NOW, &to_member).expect("sent");
            assert_eq!(receive_packets(&mut rx, 2)[0].meta.dst.gid, b);
            cable.in_b(|| rx.control(Control::Leave(group))).expect("left");
            tx.send_one(NOW, &to_group).expect("sent");
            tx.send_one(NOW, &to_member).expect("sent");
            assert_eq!(receive_packets(&mut rx, 2)[0].meta.dst.gid, b, "only the member is meant");
            assert_eq!(counter(&rx, "rx_icrc_encapsulated"), 0);
        }
    });
}

/// Members on the machine of the sender hear a group, too; the sender itself does not: its engine
/// has had its copy.
#[test]
fn a_group_is_heard_at_home() {
    with_cable(1500, |cable| {
        for (a, group) in [(Cable::a4(), Gid::from_ipv4([239, 9, 9, 8])), (global(1), group_v6())] {
            let silent = || UdpConfig { listen: false, ..on_wire() };
            let home = || cable.in_a(|| UdpLink::new(silent(), &[a])).expect("a link");
            let (mut tx, mut rx) = (home(), Verified::new(home(), IcrcPolicy::Strict));
            cable.in_a(|| tx.control(Control::Join(group))).expect("joined");
            cable.in_a(|| rx.control(Control::Join(group))).expect("joined");
            let train = send_of(path(a, group), 4, 256, 1);
            tx.send_one(NOW, &train).expect("sent");
            assert_eq!(flat(&receive_packets(&mut rx, 4)), packets_of(&train));
            assert!(is_readable(&tx, 10_000), "the kernel has a copy for the sender");
            tx.receive(NOW, 8, &mut |_| panic!("it is not for us")).expect("fine");
            assert!(counter(&tx, "udp_rx_own") > 0);
        }
    });
}

#[test]
fn a_packet_longer_than_the_mtu_is_counted_and_warned_of() {
    with_cable(1500, |cable| {
        for (a, b) in families() {
            let (mut tx, mut rx) = (cable.in_a(|| udp(a)), cable.in_b(|| strict(b)));
            let ((), said) = warnings::during(|| {
                for count in [1, 3, 1] {
                    let train = send_of(path(a, b), count, 4096, 4096);
                    assert_eq!(tx.send_one(NOW, &train).expect("lost"), Sent::Done);
                }
            });
            assert_eq!(counter(&tx, "udp_tx_too_long"), 5);
            assert_eq!(said.len(), 1, "{said:?}");
            assert!(said[0].contains("smaller path MTU"), "{said:?}");
            let train = send_of(path(a, b), 3, 1024, 1024);
            tx.send_one(NOW, &train).expect("sent");
            assert_eq!(receive_packets(&mut rx, 3).len(), 1, "offload still works");
        }
    });
}

/// Packets to a neighbour who does not answer stay in the kernel, so the send buffer fills.
#[test]
fn a_full_send_buffer_says_so_and_says_when_there_is_room() {
    with_cable(1500, |cable| {
        let absent = Gid::from_ipv4([10, 9, 0, 99]);
        cable.in_a(|| ip("addr add 10.9.0.3/24 dev wire"));
        for (gso, a) in [(true, Cable::a4()), (false, Gid::from_ipv4([10, 9, 0, 3]))] {
            let config = UdpConfig { sndbuf: 16 << 10, flows: 1, gso, ..UdpConfig::default() };
            let mut tx = cable.in_a(|| UdpLink::new(config, &[a])).expect("a link");
            let train = send_of(path(a, absent), 12, 1024, 1024);
            let mut sent = 0;
            while tx.send_one(NOW, &train).expect("no error") == Sent::Done {
                sent += 1;
                assert!(sent < 100, "the buffer never fills");
            }
            assert!(counter(&tx, "udp_tx_full") > 0 && sent > 0);
            assert!(!is_readable(&tx, 0));
            cable.in_a(|| ip("neigh replace 10.9.0.99 lladdr 02:00:00:00:00:99 dev wire"));
            assert!(is_readable(&tx, 10_000), "no word of the room");
            assert_eq!(tx.receive(NOW, 8, &mut |_| panic!("no packet was sent")).expect("fine"), 0);
            assert!(!is_readable(&tx, 0), "the word is said once");
            assert_eq!(tx.send_one(NOW, &train).expect("sent"), Sent::Done);
            cable.in_a(|| ip("neigh del 10.9.0.99 dev wire"));
        }
    });
}

/// What cannot be delivered is lost, and neither stops the link nor its offload.
#[test]
fn unreachable_addresses_are_counted() {
    with_cable(1500, |cable| {
        let (a, b) = (Cable::a4(), Cable::b4());
        let (mut tx, mut rx) = (cable.in_a(|| udp(a)), cable.in_b(|| strict(b)));
        let nowhere = send_of(path(a, Gid::from_ipv4([192, 0, 2, 1])), 3, 512, 512);
        assert_eq!(tx.send_one(NOW, &nowhere).expect("lost"), Sent::Done);
        assert_eq!(counter(&tx, "udp_tx_errors"), 3);
        let train = send_of(path(a, b), 3, 512, 512);
        tx.send_one(NOW, &train).expect("sent");
        assert_eq!(receive_packets(&mut rx, 3).len(), 1);
    });
}
