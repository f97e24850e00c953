//! RoCEv1 over a cable between two network namespaces, and what is seen on the cable.

use std::os::fd::AsRawFd as _;
use std::process::Command;

use crate::common::netns::{
    Cable, give_away, global, index_of, ip, link_local, new_namespace, with_cable,
};
use crate::common::sniff::{capture, captured};
use crate::common::{SendOne as _, Sent};
use crate::common::{
    counter, flat, is_readable, packets_of, path, receive, receive_packets, send_alone, send_of,
};
use feroce_link::{
    Carrier, Control, EtherConfig, EtherLink, IcrcPolicy, Logger, RoceLink, UdpConfig, UdpLink,
    Verified,
};
use feroce_train::{Ecn, Framing, Instant, Path, RxMeta, Train};
use feroce_wire::{Frame, Gid, Net, Qpn};
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{MsgFlags, sendto};
use socket2::{Domain, Protocol, Socket, Type};

const NOW: Instant = Instant::ZERO;

fn config(interface: &str, prefix: Option<u8>) -> EtherConfig {
    EtherConfig {
        interface: (interface.to_owned(), index_of(interface)),
        vlan: None,
        prefix,
        rcvbuf: 8 << 20,
        sndbuf: 4 << 20,
        log: Logger::default(),
    }
}

type Link = Verified<EtherLink>;

/// A link in the namespace of this thread.
fn ether(interface: &str, addr: Gid) -> Link {
    of(config(interface, None), addr)
}

fn of(config: EtherConfig, addr: Gid) -> Link {
    let mut link = EtherLink::new(config).expect("a link");
    link.control(Control::Addresses(&[addr])).expect("addresses");
    Verified::new(link, IcrcPolicy::Strict)
}

fn v1(src: Gid, dst: Gid) -> Path {
    Path { framing: Framing::RoceV1, ..path(src, dst) }
}

fn at_priority(sl: u8, path: Path) -> Path {
    Path { sl, ..path }
}

fn send(link: &mut impl Carrier, train: &Train) {
    assert_eq!(link.send_one(NOW, train).expect("sent"), Sent::Done);
}

/// Shows that nothing else has arrived: what is sent last arrives, and nothing before it.
fn only(link: &mut impl Carrier, expected: &Train) -> RxMeta {
    let got = receive_packets(link, 1);
    assert_eq!(flat(&got), packets_of(expected));
    got[0].meta
}

#[test]
fn trains_cross_as_they_were_sent() {
    with_cable(9000, |cable| {
        let families =
            [(Cable::a4(), Cable::b4()), (global(1), global(2)), (link_local(1), link_local(2))];
        for (a, b) in families {
            let (mut tx, mut rx) =
                (cable.in_a(|| ether("wire", a)), cable.in_b(|| ether("wire", b)));
            for stride in [256, 1024, 4096] {
                let count = tx.caps().packets_of(stride + 12);
                let way = Path { traffic_class: 0x28, hop_limit: 3, ..v1(a, b) };
                let train = send_of(way, count, stride, stride - 3);
                send(&mut tx, &train);
                let got = receive_packets(&mut rx, count as usize);
                assert_eq!(flat(&got), packets_of(&train));
                let expected = RxMeta {
                    src: a.into(),
                    dst: b.into(),
                    traffic_class: 0x28,
                    hop_limit: 3,
                    ecn: Ecn::NotCapable,
                    framing: Framing::RoceV1,
                    ..RxMeta::default()
                };
                assert!(got.iter().all(|train| train.meta == expected), "{:?}", got[0].meta);
                assert_eq!(tx.headers(&train.path), expected);
            }
            let alone = send_of(v1(a, b), 1, 64, 61);
            assert!(send_alone(&mut tx, &alone));
            only(&mut rx, &alone);
        }
    });
}

/// Sends a packet from an interface and returns the VLAN tag that it has on the cable, and the
/// priority that the receiver sees.
fn tag_on_cable(cable: &Cable, config: fn() -> EtherConfig, sl: u8) -> (Option<u16>, u8) {
    let (a, b) = (Cable::a4(), Cable::b4());
    let mut tx = cable.in_a(|| of(config(), a));
    let mut rx = cable.in_b(|| of(config(), b));
    // What a host sends is seen as it sends it, with its tag.
    let sniffer = cable.in_a(capture);
    let train = send_of(at_priority(sl, v1(a, b)), 1, 100, 98);
    send(&mut tx, &train);
    send_waiting(&mut tx, 1);
    let meta = only(&mut rx, &train);
    let frames = captured(&sniffer);
    let frame = Frame::parse_ethernet(&frames[0]).expect("a frame");
    assert!(frame.icrc_ok());
    assert!(matches!(frame.net, Net::Grh(grh) if grh.sgid == a && grh.dgid == b));
    let ethernet = frame.eth.expect("an Ethernet header");
    assert_eq!((ethernet.src, ethernet.dst), ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]));
    (ethernet.vlan.map(|tag| tag.0), meta.sl)
}

/// Lets the link hear of neighbours until it has sent so many packets.
fn send_waiting(link: &mut Link, packets: u64) {
    while counter(link, "ether_tx_packets") < packets {
        assert!(is_readable(link, 10_000), "no neighbour: {:?}", link.counters());
        link.arm(NOW);
        receive(link, NOW);
    }
}

#[test]
fn service_levels_are_priorities() {
    with_cable(1500, |cable| {
        let config = || config("wire", None);
        assert_eq!(tag_on_cable(cable, config, 0), (None, 0));
        assert_eq!(tag_on_cable(cable, config, 5), (Some(5 << 13), 5));
    });
}

fn in_vlan(vid: u16) -> EtherConfig {
    EtherConfig { vlan: Some(vid), ..config("wire", None) }
}

#[test]
fn frames_of_a_vlan_have_its_tag() {
    with_cable(1500, |cable| {
        assert_eq!(tag_on_cable(cable, || in_vlan(100), 0), (Some(100), 0));
        assert_eq!(tag_on_cable(cable, || in_vlan(100), 7), (Some(7 << 13 | 100), 7));
    });
}

/// Sends from links that differ only in their VLAN; each receiver gets the frames of its own.
fn vlans_are_apart(mut ends: [(Link, Link); 3]) {
    let (a, b) = (Cable::a4(), Cable::b4());
    let trains = [64, 128, 256].map(|len| send_of(v1(a, b), 1, len, len));
    for ((tx, _), train) in ends.iter_mut().zip(&trains) {
        send(tx, train);
        send_waiting(tx, 1);
    }
    for ((_, rx), train) in ends.iter_mut().zip(&trains) {
        only(rx, train);
        assert_eq!(receive(rx, NOW), []);
    }
}

#[test]
fn a_vlan_has_its_frames_and_no_others() {
    with_cable(1500, |cable| {
        vlans_are_apart([0, 5, 6].map(|vid| {
            let end = |addr| of(in_vlan(vid), addr);
            (cable.in_a(|| end(Cable::a4())), cable.in_b(|| end(Cable::b4())))
        }));
    });
}

/// Adds the interface of a VLAN at both ends. False: this kernel has no VLANs, and no package can
/// give it any.
fn add_vlan(cable: &Cable, vid: u16) -> bool {
    let add = || {
        let args = format!("link add link wire name wire.{vid} type vlan id {vid}");
        let output = Command::new("ip").args(args.split(' ')).output().expect("`ip` is installed");
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr);
            assert!(why.contains("Unknown device type"), "{why}");
            eprintln!("SKIPPED: this kernel has no VLANs: {why}");
            return false;
        }
        ip(&format!("link set wire.{vid} up"));
        true
    };
    cable.in_a(add) && cable.in_b(add)
}

/// An interface of a VLAN sends its tag, and hears the frames that have it.
#[test]
fn the_interface_of_a_vlan_has_its_frames_and_no_others() {
    with_cable(1500, |cable| {
        if !add_vlan(cable, 5) || !add_vlan(cable, 6) {
            return;
        }
        cable.in_a(|| {
            for name in ["wire.5", "wire.6"] {
                ip(&format!("neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev {name}"));
            }
        });
        assert_eq!(tag_on_cable(cable, || config("wire.5", None), 3), (Some(3 << 13 | 5), 3));
        vlans_are_apart(["wire", "wire.5", "wire.6"].map(|name| {
            (cable.in_a(|| ether(name, Cable::a4())), cable.in_b(|| ether(name, Cable::b4())))
        }));
    });
}

/// In a container the interface below a VLAN may be out of reach. Then the kernel writes the tag.
#[test]
fn a_vlan_without_its_lower_interface_has_the_tag_of_the_kernel() {
    with_cable(1500, |cable| {
        if !add_vlan(cable, 5) {
            return;
        }
        let (a, b) = (Gid::from_ipv4([10, 5, 0, 1]), Gid::from_ipv4([10, 5, 0, 2]));
        let container = new_namespace();
        cable.in_a(|| give_away("wire.5", &container));
        let mut rx = cable.in_b(|| {
            ip("addr add 10.5.0.2/24 dev wire.5");
            ether("wire.5", b)
        });
        let mut tx = cable.inside(&container, || {
            ip("addr add 10.5.0.1/24 dev wire.5");
            ip("link set wire.5 up");
            ether("wire.5", a)
        });
        let train = send_of(at_priority(3, v1(a, b)), 1, 100, 100);
        send(&mut tx, &train);
        send_waiting(&mut tx, 1);
        assert_eq!(only(&mut rx, &train).sl, 0, "the interface maps no priority");
        let back = send_of(at_priority(3, v1(b, a)), 1, 100, 100);
        send(&mut rx, &back);
        assert_eq!(only(&mut tx, &back).sl, 0, "the kernel has taken the tag");
    });
}

#[test]
fn unknown_neighbours_are_asked_and_frames_wait() {
    with_cable(1500, |cable| {
        for (a, b) in [(Cable::a4(), Cable::b4()), (global(1), global(2))] {
            cable.in_a(|| ip(&format!("neigh del {} dev wire", b.to_ip())));
            let (mut tx, mut rx) =
                (cable.in_a(|| ether("wire", a)), cable.in_b(|| ether("wire", b)));
            let train = send_of(v1(a, b), 20, 1024, 1000);
            assert!(!send_alone(&mut tx, &send_of(v1(a, b), 1, 64, 64)), "not at once");
            send(&mut tx, &train);
            send_waiting(&mut tx, 20);
            assert_eq!(flat(&receive_packets(&mut rx, 20)), packets_of(&train));

            // It moves: the kernel announces its new address.
            cable.in_a(|| {
                ip(&format!("neigh replace {} lladdr 02:00:00:00:00:07 dev wire", b.to_ip()))
            });
            assert!(is_readable(&tx, 10_000));
            tx.arm(NOW);
            receive(&mut tx, NOW);
            let sniffer = cable.in_a(capture);
            send(&mut tx, &send_of(v1(a, b), 1, 64, 64));
            let frames = captured(&sniffer);
            assert_eq!(frames[0][..6], [2, 0, 0, 0, 0, 7]);
        }
    });
}

#[test]
fn neighbours_that_do_not_answer_are_counted() {
    with_cable(1500, |cable| {
        let absent = Gid::from_ipv4([10, 9, 0, 77]);
        cable.in_a(|| {
            // The kernel asks once and waits for a moment.
            for (name, value) in
                [("neigh/wire/mcast_solicit", "1"), ("neigh/wire/retrans_time_ms", "10")]
            {
                let path = format!("/proc/sys/net/ipv4/{name}");
                std::fs::write(&path, value).expect(&path);
            }
        });
        let mut tx = cable.in_a(|| ether("wire", Cable::a4()));
        send(&mut tx, &send_of(v1(Cable::a4(), absent), 3, 1024, 1000));
        let lost = |tx: &mut Link, packets| {
            while counter(tx, "ether_tx_no_neighbour") < packets {
                assert!(is_readable(tx, 10_000));
                tx.arm(NOW);
                receive(tx, NOW);
            }
        };
        lost(&mut tx, 3);
        // It is asked once more.
        send(&mut tx, &send_of(v1(Cable::a4(), absent), 2, 1024, 1000));
        lost(&mut tx, 5);
        assert_eq!(counter(&tx, "ether_tx_packets"), 0);
    });
}

fn to_qp(path: Path, qpn: u32) -> Train {
    let mut train = send_of(path, 1, 64, 64);
    train.bth.dest_qp = Qpn::new(qpn);
    train
}

#[test]
fn a_process_gets_frames_to_its_queue_pairs() {
    with_cable(1500, |cable| {
        let (a, b) = (Cable::a4(), Cable::b4());
        let mut tx = cable.in_a(|| ether("wire", a));
        let mut first = cable.in_b(|| of(config("wire", Some(3)), b));
        let mut second = cable.in_b(|| of(config("wire", Some(4)), b));
        let trains = [0x03_0001, 0x04_ffff, 0x05_0001, 1].map(|qpn| to_qp(v1(a, b), qpn));
        trains.iter().for_each(|train| send(&mut tx, train));
        let dests = |link: &mut Link| {
            let got = flat(&receive_packets(link, 2));
            got.iter()
                .map(|packet| u32::from_be_bytes([0, packet[5], packet[6], packet[7]]))
                .collect()
        };
        let (at_first, at_second): (Vec<u32>, Vec<u32>) = (dests(&mut first), dests(&mut second));
        assert_eq!(at_first, [0x03_0001, 1]);
        assert_eq!(at_second, [0x04_ffff, 1]);
    });
}

fn group() -> Gid {
    let mut gid = [0; 16];
    (gid[0], gid[1], gid[15]) = (0xff, 0x0e, 9);
    Gid(gid)
}

#[test]
fn members_of_a_group_hear_it_on_both_hosts() {
    with_cable(1500, |cable| {
        let (a, b) = (Cable::a4(), Cable::b4());
        let mut tx = cable.in_a(|| ether("wire", a));
        let mut beside = cable.in_a(|| ether("wire", a));
        let mut member = cable.in_b(|| ether("wire", b));
        let mut other = cable.in_b(|| ether("wire", b));
        for link in [&mut tx, &mut beside, &mut member] {
            link.control(Control::Join(group())).expect("joined");
        }
        for sl in [0, 4] {
            let train = to_qp(at_priority(sl, v1(a, group())), 0xff_ffff);
            send(&mut tx, &train);
            for link in [&mut member, &mut beside] {
                let meta = only(link, &train);
                assert_eq!((meta.dst.gid, meta.sl), (group(), sl));
            }
        }
        // A unicast shows that nothing came before it.
        let last = to_qp(v1(a, b), 7);
        send(&mut tx, &last);
        only(&mut other, &last);
        only(&mut member, &last);
        assert_eq!(receive(&mut tx, NOW), [], "its own multicasts do not come back");
        assert_eq!(receive(&mut beside, NOW), [], "nor do unicasts of the host");

        member.control(Control::Leave(group())).expect("left");
        send(&mut tx, &to_qp(v1(a, group()), 0xff_ffff));
        send(&mut tx, &last);
        only(&mut member, &last);
    });
}

/// What anyone on the Ethernet can send.
#[test]
fn malformed_frames_are_counted() {
    with_cable(1500, |cable| {
        let (a, b) = (Cable::a4(), Cable::b4());
        let mut rx = cable.in_b(|| ether("wire", b));
        let (raw, to) = cable.in_a(|| {
            let none = Some(Protocol::from(0));
            let raw = Socket::new(Domain::PACKET, Type::RAW, none).expect("root");
            let mut all = getifaddrs().expect("interfaces");
            let to = all.find_map(|entry| {
                let is_it = entry.interface_name == "wire";
                entry.address.filter(|_| is_it)?.as_link_addr().copied()
            });
            (raw, to.expect("the cable has an Ethernet address"))
        });
        let good = {
            let sniffer = cable.in_a(capture);
            let mut tx = cable.in_a(|| ether("wire", a));
            send(&mut tx, &send_of(v1(a, b), 1, 256, 256));
            receive_packets(&mut rx, 1);
            captured(&sniffer).remove(0)
        };
        let mut random = fastrand::Rng::with_seed(7);
        let mut sent = 0;
        for _ in 0..5000 {
            let mut frame = good.clone();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(14..frame.len());
                frame[at] ^= 1 << random.u8(0..8);
            }
            if random.bool() {
                frame.truncate(random.usize(14..=frame.len()));
            }
            sent += usize::from(sendto(raw.as_raw_fd(), &frame, &to, MsgFlags::empty()).is_ok());
            receive(&mut rx, NOW);
        }
        assert!(sent > 4000, "{sent} frames were sent");
        // It still works.
        let mut tx = cable.in_a(|| ether("wire", a));
        let last = send_of(v1(a, b), 1, 512, 512);
        send(&mut tx, &last);
        let wanted = packets_of(&last);
        let mut got = Vec::new();
        while !got.ends_with(&wanted) {
            assert!(is_readable(&rx, 10_000));
            got.extend(flat(&receive(&mut rx, NOW)));
        }
        assert!(counter(&rx, "ether_rx_malformed") > 500);
        assert!(counter(&rx, "ether_rx_foreign") > 10);
    });
}

/// Both framings share one link, and each path takes its own.
#[test]
fn both_framings_share_a_link() {
    with_cable(1500, |cable| {
        let link = |addr: Gid| {
            let interface = Some(("wire".to_owned(), index_of("wire")));
            let config = UdpConfig { interface, ..UdpConfig::default() };
            let udp = UdpLink::new(config, &[addr]).expect("a link");
            let ether = EtherLink::new(self::config("wire", None)).expect("a link");
            Verified::new(RoceLink::new(udp, Some(ether)).expect("a link"), IcrcPolicy::Strict)
        };
        let (a, b) = (Cable::a4(), Cable::b4());
        let (mut tx, mut rx) = (cable.in_a(|| link(a)), cable.in_b(|| link(b)));
        let trains =
            [path(a, b), v1(a, b), v1(a, b), path(a, b)].map(|way| send_of(way, 2, 512, 500));
        assert_eq!(tx.send(NOW, &trains).expect("sent"), 4);
        let got = receive_packets(&mut rx, 8);
        let of = |framing| got.iter().filter(move |train| train.meta.framing == framing);
        let count = |framing| of(framing).map(|train| train.packets.len()).sum::<usize>();
        assert_eq!((count(Framing::RoceV2), count(Framing::RoceV1)), (4, 4));
        for way in [path(a, b), v1(a, b)] {
            let train = send_of(way, 1, 64, 64);
            assert!(send_alone(&mut tx, &train));
            assert_eq!(only(&mut rx, &train).framing, way.framing);
        }
    });
}

#[test]
fn other_interfaces_are_refused() {
    with_cable(1500, |cable| {
        let refused = cable.in_a(|| EtherLink::check(index_of("lo"))).expect_err("no Ethernet");
        assert_eq!(refused.kind(), std::io::ErrorKind::Unsupported);
        cable.in_a(|| EtherLink::check(index_of("wire"))).expect("Ethernet");
    });
}
