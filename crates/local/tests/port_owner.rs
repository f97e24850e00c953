//! Which process of a host receives packets to the address that they share.

use crate::common::{
    counter, flat, loopback, packets_of, path, receive, registry, send_alone, send_of,
};
use feroce_link::{Carrier as _, UdpConfig, UdpLink};
use feroce_local::HostLink;
use feroce_train::{Instant, Path, Train};
use feroce_wire::{Gid, Psn, Qpn};

const NOW: Instant = Instant::ZERO;

/// Consecutive packets: more than a kernel or a link needs to change how it delivers them.
const MANY: u32 = 600;

fn udp(addr: Gid) -> UdpLink {
    UdpLink::new(UdpConfig { flows: 2, ..UdpConfig::default() }, &[addr]).expect("a link")
}

/// A short packet with its own PSN.
fn packet(path: Path, n: u32) -> Train {
    let mut train = send_of(path, 1, 64, 8);
    train.bth.psn = Psn::new(n);
    train
}

/// The first process receives at the address until it ends, then the other one does.
#[test]
fn one_process_receives_and_another_takes_over() {
    let root = std::env::temp_dir().join(format!("feroce-connected-{}", std::process::id()));
    let (a, b) = (loopback(37), loopback(38));
    let mut tx = udp(a);
    let (_first, mut rx) = registry(&root, b, true);
    let mut arrive = |rx: &mut HostLink<UdpLink>, n: u32| {
        let train = packet(path(a, b), n);
        assert!(send_alone(&mut tx, &train));
        let mut looks = (0..3).map(|_| receive(rx, NOW));
        let got = looks.find(|got| !got.is_empty());
        u32::from(got.is_some_and(|got| flat(&got) == packets_of(&train)))
    };
    let came: u32 = (0..MANY).map(|n| arrive(&mut rx, n)).sum();
    assert_eq!(came, MANY);
    let (_second, mut neighbour) = registry(&root, b, true);
    let came: u32 = (0..MANY).map(|n| arrive(&mut rx, n)).sum();
    assert_eq!(came, MANY);
    assert_eq!(counter(&neighbour, "udp_rx_trains"), 0);
    drop(rx);
    // The port is free at once.
    assert!(receive(&mut neighbour, Instant::from_nanos(1_000_000_000)).is_empty());
    let came: u32 = (0..MANY).map(|n| arrive(&mut neighbour, n)).sum();
    assert!(came >= MANY - 2, "{came} of {MANY}: {:?}", neighbour.counters());
    drop(neighbour);
    std::fs::remove_dir_all(root).expect("no process uses it");
}

/// The process that owns the socket checks packets for another one and passes them on.
#[test]
fn packets_pass_by_the_owner_of_the_socket() {
    let root = std::env::temp_dir().join(format!("feroce-announced-{}", std::process::id()));
    let (a, b) = (loopback(44), loopback(45));
    let mut tx = udp(a);
    let (_first, mut owner) = registry(&root, b, true);
    let (second, mut rx) = registry(&root, b, true);
    let mut came = Vec::new();
    for n in 0..MANY {
        let mut train = packet(path(a, b), n);
        train.bth.dest_qp = Qpn::new(u32::from(second.prefix()) << 16 | 0x1234);
        assert!(send_alone(&mut tx, &train));
        for _ in 0..3 {
            assert!(receive(&mut owner, NOW).is_empty());
            came.extend(flat(&receive(&mut rx, NOW)));
        }
        assert_eq!(came.pop(), Some(packets_of(&train).remove(0)), "packet {n}");
    }
    assert_eq!(counter(&rx, "rx_icrc_encapsulated"), 0);
    drop((owner, rx));
    std::fs::remove_dir_all(root).expect("no process uses it");
}
