//! What a host on the cable cannot do to a link.

use crate::common::netns::{Cable, global, ip, with_cable};
use crate::common::{
    SendOne as _, Sent, counter, flat, icmp, packets_of, path, receive_packets, send_of,
};
use feroce_link::{Carrier as _, IcrcPolicy, UdpConfig, UdpLink, Verified};
use feroce_train::Instant;
use feroce_wire::{Gid, ROCE_UDP_PORT};

const NOW: Instant = Instant::ZERO;

fn link(addr: Gid) -> Verified<UdpLink> {
    let link = UdpLink::new(UdpConfig::default(), &[addr]).expect("a link");
    Verified::new(link, IcrcPolicy::Strict)
}

/// Waits until the kernel of this namespace believes that the way to `peer` takes no more than
/// `mtu` bytes: then the forged message has arrived and was taken for a real one.
fn wait_until_believed(peer: &str, mtu: u16) {
    while !ip(&format!("route get {peer}")).contains(&format!(" mtu {mtu}")) {}
}

/// The message names the socket that receives, whose port every attacker knows, or one that sends.
fn survives(cable: &Cable, (a, b): (Gid, Gid), peer: &str, mtu: u16) {
    let (mut tx, mut rx) = (cable.in_a(|| link(a)), cable.in_b(|| link(b)));
    let way = path(a, b);
    let sport = tx.headers(&way).udp_sport;
    for claimed_sport in [ROCE_UDP_PORT, sport] {
        cable.in_a(|| ip("route flush cache"));
        cable.in_b(|| icmp::claim_mtu(a, claimed_sport, b, mtu));
        cable.in_a(|| wait_until_believed(peer, mtu));
        for (count, stride) in [(1, 4096), (9, 4096), (1, 1024), (9, 1024)] {
            let train = send_of(way, count, stride, stride);
            assert_eq!(tx.send_one(NOW, &train).expect("sent"), Sent::Done);
            assert_eq!(counter(&tx, "udp_tx_too_long"), 0, "{count} packets of {stride} bytes");
            assert_eq!(flat(&receive_packets(&mut rx, count as usize)), packets_of(&train));
        }
    }
}

#[test]
fn a_forged_fragmentation_needed_stops_nothing() {
    with_cable(9000, |cable| survives(cable, (Cable::a4(), Cable::b4()), "10.9.0.2", 552));
}

#[test]
fn a_forged_packet_too_big_stops_nothing() {
    with_cable(9000, |cable| survives(cable, (global(1), global(2)), "fd09::2", 1280));
}
