//! Trains of one packet that leave in one call.

use crate::common::{counter, flat, loopback, packets_of, path, receive_packets, send_of};
use feroce_link::{Carrier, IcrcPolicy, UdpConfig, UdpLink, Verified};
use feroce_train::{Instant, Path, Train};
use feroce_wire::Gid;

fn config() -> UdpConfig {
    UdpConfig { rcvbuf: 1 << 20, sndbuf: 1 << 20, flows: 2, ..UdpConfig::default() }
}

fn pair(config: UdpConfig, a: Gid, b: Gid) -> (UdpLink, Verified<UdpLink>) {
    let rx = UdpLink::new(config.clone(), &[b]).expect("a link");
    let tx = UdpLink::new(config, &[a]).expect("a link");
    (tx, Verified::new(rx, IcrcPolicy::Strict))
}

fn all_packets(trains: &[Train]) -> Vec<Vec<u8>> {
    trains.iter().flat_map(packets_of).collect()
}

/// Sends them all and returns how many calls that took.
fn calls(tx: &mut UdpLink, rx: &mut Verified<UdpLink>, trains: &[Train]) -> u64 {
    let before = counter(tx, "udp_tx_trains");
    assert_eq!(tx.send(Instant::ZERO, trains).expect("sent"), trains.len());
    let sent = all_packets(trains);
    assert_eq!(flat(&receive_packets(rx, sent.len())), sent);
    assert_eq!(counter(rx, "rx_icrc_encapsulated"), 0);
    counter(tx, "udp_tx_trains") - before
}

#[test]
fn packets_of_one_length_go_together() {
    let (a, b) = (loopback(1), loopback(2));
    let (mut tx, mut rx) = pair(config(), a, b);
    let short = |len: usize| send_of(path(a, b), 1, 4096, len);
    let of = |lens: &[usize]| lens.iter().map(|&len| short(len)).collect::<Vec<_>>();
    assert_eq!(calls(&mut tx, &mut rx, &of(&[8; 40])), 1);
    // As many segments as the kernel takes, and the rest.
    assert_eq!(calls(&mut tx, &mut rx, &of(&[8; 65])), 2);
    // The last of a call may be shorter, none may be longer.
    assert_eq!(calls(&mut tx, &mut rx, &of(&[64, 64, 8])), 1);
    assert_eq!(calls(&mut tx, &mut rx, &of(&[64, 8, 64, 64])), 2);
    assert_eq!(calls(&mut tx, &mut rx, &of(&[8, 64])), 2);
    // As many bytes as a datagram takes.
    assert_eq!(calls(&mut tx, &mut rx, &of(&[4096; 20])), 2);
    assert_eq!(calls(&mut tx, &mut rx, &[]), 0);
}

#[test]
fn trains_and_other_paths_stay_apart() {
    let (a, b) = (loopback(3), loopback(4));
    let (mut tx, mut rx) = pair(config(), a, b);
    let other = Path { traffic_class: 0x20, ..path(a, b) };
    let trains = [
        send_of(path(a, b), 1, 64, 8),
        send_of(path(a, b), 3, 64, 8),
        send_of(path(a, b), 1, 64, 8),
        send_of(other, 1, 64, 8),
    ];
    assert_eq!(calls(&mut tx, &mut rx, &trains), 4);
}

#[test]
fn without_offload_each_goes_alone() {
    let (a, b) = (loopback(5), loopback(6));
    let (mut tx, mut rx) = pair(UdpConfig { gso: false, ..config() }, a, b);
    let trains: Vec<_> = (0..10).map(|_| send_of(path(a, b), 1, 64, 8)).collect();
    assert_eq!(calls(&mut tx, &mut rx, &trains), 10);
}

#[test]
fn an_address_that_is_not_ours_is_counted() {
    let (a, b) = (loopback(7), loopback(8));
    let (mut tx, _rx) = pair(config(), a, b);
    let trains: Vec<_> = (0..3).map(|_| send_of(path(loopback(9), b), 1, 64, 8)).collect();
    assert_eq!(tx.send(Instant::ZERO, &trains).expect("counted"), 3);
    assert_eq!(counter(&tx, "udp_tx_no_address"), 3);
}
