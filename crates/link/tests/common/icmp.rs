//! ICMP messages as an attacker forges them.

use std::net::{IpAddr, SocketAddr};

use feroce_wire::{Gid, ROCE_UDP_PORT};
use socket2::{Domain, Protocol, Socket, Type};

/// Sends `victim` the message that a packet from its port `sport` to port 4791 of `peer` was longer
/// than `mtu`: "fragmentation needed" of ICMP, or "packet too big" of ICMPv6.
pub(crate) fn claim_mtu(victim: Gid, sport: u16, peer: Gid, mtu: u16) {
    let is_v4 = victim.as_ipv4().is_some();
    let (domain, protocol) = match is_v4 {
        true => (Domain::IPV4, Protocol::ICMPV4),
        false => (Domain::IPV6, Protocol::ICMPV6),
    };
    let socket = Socket::new(domain, Type::RAW, Some(protocol)).expect("a raw socket");
    let message = match is_v4 {
        true => fragmentation_needed(victim, sport, peer, mtu),
        false => packet_too_big(victim, sport, peer, mtu),
    };
    let to: IpAddr = match victim.as_ipv4() {
        Some(v4) => v4.into(),
        None => victim.0.into(),
    };
    socket.send_to(&message, &SocketAddr::new(to, 0).into()).expect("sent");
}

fn fragmentation_needed(victim: Gid, sport: u16, peer: Gid, mtu: u16) -> Vec<u8> {
    let mut message = vec![3, 4, 0, 0, 0, 0];
    message.extend(mtu.to_be_bytes());
    let ip = message.len();
    // Total length, identification, DF, TTL, UDP, header checksum.
    message.extend([0x45, 0, 4, 0x78, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    message.extend(victim.as_ipv4().expect("IPv4"));
    message.extend(peer.as_ipv4().expect("IPv4"));
    let sum = checksum(&message[ip..]);
    message[ip + 10..ip + 12].copy_from_slice(&sum);
    message.extend(udp_header(sport));
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum);
    message
}

/// The kernel fills in the checksum of ICMPv6.
fn packet_too_big(victim: Gid, sport: u16, peer: Gid, mtu: u16) -> Vec<u8> {
    let mut message = vec![2, 0, 0, 0, 0, 0];
    message.extend(mtu.to_be_bytes());
    message.extend([0x60, 0, 0, 0, 4, 0x64, 17, 64]);
    message.extend(victim.0);
    message.extend(peer.0);
    message.extend(udp_header(sport));
    message
}

fn udp_header(sport: u16) -> [u8; 8] {
    let ([a, b], [c, d]) = (sport.to_be_bytes(), ROCE_UDP_PORT.to_be_bytes());
    [a, b, c, d, 4, 0x64, 0, 0]
}

/// The checksum of the internet protocols (RFC 1071).
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks(2).map(|pair| match *pair {
        [high, low] => u32::from(u16::from_be_bytes([high, low])),
        [high] => u32::from(high) << 8,
        _ => 0,
    });
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    (!((folded & 0xffff) + (folded >> 16)) as u16).to_be_bytes()
}
