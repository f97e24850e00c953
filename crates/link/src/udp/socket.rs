//! Sockets as the link needs them.

use std::io;

use feroce_wire::{Gid, ROCE_UDP_PORT};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{IpRecvTos, Ipv6RecvHopLimit, Ipv6RecvTClass, UdpGroSegment};
use nix::unistd::geteuid;
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, SockAddr, Socket, Type};

use super::{DEFAULT_HOP_LIMIT, TxSocket, UdpConfig, socket_addr};
use crate::annotate;
use crate::sys::set_int;

/// Ports that RoCEv2 senders use as sources (annex A17.9.2).
const FIRST_SOURCE_PORT: u16 = 0xc000;

/// ECT(0), as the low bits of the traffic class.
pub(super) const ECT0: u8 = 2;

/// The socket that receives at an address.
pub(super) fn open_rx(config: &UdpConfig, addr: Gid, scope: u32) -> io::Result<Socket> {
    let rx = open(config, addr)?;
    if config.steering.is_some() {
        rx.set_reuse_port(true)?;
    }
    let bind_to: SockAddr = socket_addr(addr, ROCE_UDP_PORT, scope).into();
    rx.bind(&bind_to).map_err(|e| describe(e, BIND, addr))?;
    prepare_rx(config, &rx, addr)?;
    Ok(rx)
}

/// The socket that sends the packets of a flow from an address.
pub(super) fn open_flow(
    config: &UdpConfig,
    addr: Gid,
    scope: u32,
    flow: usize,
) -> io::Result<TxSocket> {
    open_tx(config, addr, scope, flow).map_err(|e| describe(e, "send from", addr))
}

/// A sending socket on a free port; `flow` says where the search begins.
fn open_tx(config: &UdpConfig, addr: Gid, scope: u32, flow: usize) -> io::Result<TxSocket> {
    let socket = open(config, addr)?;
    set_sender(&socket, addr, scope)?;
    let start = u16::try_from(flow * 97 % 0x4000).unwrap_or(0);
    for step in 0..0x4000_u16 {
        let port = FIRST_SOURCE_PORT | (start.wrapping_add(step) & 0x3fff);
        match socket.bind(&socket_addr(addr, port, scope).into()) {
            Ok(()) => return Ok(TxSocket { socket, port, watched: false, waits: false }),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {}
            Err(e) => return Err(e),
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, "no UDP source port is free above 0xc000"))
}

/// Sets the hop limit and the multicast interface of a sending socket.
fn set_sender(socket: &Socket, addr: Gid, scope: u32) -> io::Result<()> {
    let hops = u32::from(DEFAULT_HOP_LIMIT);
    if let Some(v4) = addr.as_ipv4() {
        socket.set_ttl_v4(hops)?;
        socket.set_multicast_ttl_v4(hops)?;
        socket.set_multicast_if_v4(&v4.into())?;
    } else {
        socket.set_unicast_hops_v6(hops)?;
        socket.set_multicast_hops_v6(hops)?;
        if scope != 0 {
            socket.set_multicast_if_v6(scope)?;
        }
    }
    // A sending socket receives nothing that the link needs: RoCEv2 packets go to port 4791.
    let _ = socket.set_recv_buffer_size(2048);
    Ok(())
}

/// A socket that receives a multicast group on interface `scope`, or that of `local`.
pub(super) fn open_group(
    config: &UdpConfig,
    group: Gid,
    local: Option<Gid>,
    scope: u32,
) -> io::Result<Socket> {
    let rx = open(config, group)?;
    rx.set_reuse_address(true)?;
    rx.bind(&socket_addr(group, ROCE_UDP_PORT, scope).into())
        .map_err(|e| describe(e, BIND, group))?;
    match group.as_ipv4() {
        Some(v4) => {
            let on = match (scope, local.and_then(Gid::as_ipv4)) {
                (0, Some(local)) => InterfaceIndexOrAddress::Address(local.into()),
                (scope, _) => InterfaceIndexOrAddress::Index(scope),
            };
            rx.join_multicast_v4_n(&v4.into(), &on)?;
            rx.set_multicast_all_v4(false)?;
        }
        None => {
            rx.join_multicast_v6(&group.0.into(), scope)?;
            rx.set_multicast_all_v6(false)?;
        }
    }
    prepare_rx(config, &rx, group)?;
    Ok(rx)
}

/// A socket that neither blocks nor fragments.
///
/// `PROBE` sets DF, which the ICRC covers, and takes the MTU of the interface for that of the path.
/// With `DO` the kernel would also believe ICMP messages that claim a smaller one. To forge such a
/// message, an attacker needs to know two addresses and port 4791, and no packet of the path MTU
/// would leave for the ten minutes that the kernel remembers it.
fn open(config: &UdpConfig, addr: Gid) -> io::Result<Socket> {
    let is_v4 = addr.as_ipv4().is_some();
    let domain = if is_v4 { Domain::IPV4 } else { Domain::IPV6 };
    let socket = Socket::new(domain, Type::DGRAM.nonblocking().cloexec(), Some(Protocol::UDP))?;
    let tos = if config.ecn { u32::from(ECT0) } else { 0 };
    if is_v4 {
        set_int(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
        socket.set_tos_v4(tos)?;
    } else {
        socket.set_only_v6(true)?;
        let (level, name) = (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER);
        set_int(&socket, level, name, libc::IPV6_PMTUDISC_PROBE)?;
        socket.set_tclass_v6(tos)?;
    }
    set_buffers(&socket, config.rcvbuf, config.sndbuf);
    Ok(socket)
}

/// Asks for buffers. Beyond its limits, the kernel grants them to privileged processes only.
pub(crate) fn set_buffers(socket: &Socket, rcvbuf: usize, sndbuf: usize) {
    if set_size(socket, libc::SO_RCVBUFFORCE, rcvbuf).is_err() {
        let _ = socket.set_recv_buffer_size(rcvbuf);
    }
    if set_size(socket, libc::SO_SNDBUFFORCE, sndbuf).is_err() {
        let _ = socket.set_send_buffer_size(sndbuf);
    }
}

fn set_size(socket: &Socket, name: i32, bytes: usize) -> io::Result<()> {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    set_int(socket, libc::SOL_SOCKET, name, bytes)
}

/// Asks for merged packets and for the header fields that we want to see.
fn prepare_rx(config: &UdpConfig, socket: &Socket, addr: Gid) -> io::Result<()> {
    if config.gro && setsockopt(socket, UdpGroSegment, &true).is_err() {
        config.log.warn(format_args!("UDP_GRO refused: packets are received one by one"));
    }
    if addr.as_ipv4().is_some() {
        setsockopt(socket, IpRecvTos, &true)?;
        set_int(socket, libc::IPPROTO_IP, libc::IP_RECVTTL, 1)?;
    } else {
        setsockopt(socket, Ipv6RecvTClass, &true)?;
        setsockopt(socket, Ipv6RecvHopLimit, &true)?;
        // Packets of RoCE may go without the checksum of UDP (IBTA vol1, annex A17), and those of
        // Linux Soft-RoCE do: the ICRC covers more. The kernel would drop them.
        set_int(socket, libc::IPPROTO_UDP, libc::UDP_NO_CHECK6_RX, 1)?;
    }
    Ok(())
}

/// What is done with addresses that receive.
const BIND: &str = "bind UDP port 4791 of";

/// Says what to do about an address that cannot be used.
fn describe(e: io::Error, what: &str, addr: Gid) -> io::Error {
    let hint = match e.kind() {
        io::ErrorKind::AddrInUse if what == BIND => match holder(addr) {
            Some(user) if user != geteuid().as_raw() => &format!(
                ": user {user} has it, and shares it with other users only through `feroce portd \
                 --all-users`, which root starts before all programs: do that, or use another \
                 address of this machine (`ip address add` adds one)"
            ),
            _ => {
                ": another process has it and does not share it with this one; \
                 `ss -ulpn sport = 4791` names the process"
            }
        },
        io::ErrorKind::AddrNotAvailable if addr.to_ip().is_loopback() => {
            ": is the loopback interface down? `ip link set lo up` (as root) starts it"
        }
        io::ErrorKind::AddrNotAvailable => {
            ": the address is not one of this machine: `feroce devices` lists those there are"
        }
        io::ErrorKind::InvalidInput if addr.as_ipv4().is_none() => {
            ": a link-local address needs an interface"
        }
        _ => "",
    };
    let text = format!("cannot {what} {}: {e}{hint}", addr.to_ip());
    annotate(e, text)
}

/// The user who has bound port 4791 of an address, or of all addresses. The kernel's Soft-RoCE
/// counts as root.
fn holder(addr: Gid) -> Option<u32> {
    // Words of an address are printed as this processor reads them from memory.
    let word = |bytes: &[u8]| {
        let bytes: [u8; 4] = bytes.try_into().unwrap_or_default();
        format!("{:08X}", u32::from_ne_bytes(bytes))
    };
    let words = |bytes: &[u8]| bytes.chunks(4).map(word).collect::<String>();
    let v4 = addr.as_ipv4().map(|octets| words(&octets));
    let v6 = words(&addr.0);
    // Sockets of the network namespace of this thread.
    let tables = ["udp", "udp6"].map(|name| format!("/proc/thread-self/net/{name}"));
    let tables = tables.map(|path| std::fs::read_to_string(path).unwrap_or_default());
    tables.iter().flat_map(|table| table.lines()).find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (at, port) = fields.get(1)?.split_once(':')?;
        let is_meant = v4.as_deref() == Some(at) || v6 == at || at.bytes().all(|b| b == b'0');
        let is_port = u16::from_str_radix(port, 16) == Ok(ROCE_UDP_PORT);
        (is_meant && is_port).then(|| fields.get(7)?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};

    use super::*;

    #[test]
    fn the_holder_of_a_port_is_found() {
        let v4 = Ipv4Addr::new(127, 98, 7, 6);
        assert_eq!(holder(Gid::from_ipv4(v4.octets())), None);
        let _socket = UdpSocket::bind((v4, ROCE_UDP_PORT)).expect("a free address");
        assert_eq!(holder(Gid::from_ipv4(v4.octets())), Some(geteuid().as_raw()));
    }
}
