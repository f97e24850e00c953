//! Whether the next hop on the way to a peer answers.
//!
//! The kernel resolves the address of a neighbour (ARP, neighbour discovery) when a packet is to be
//! sent to it, and knows then whether it answered. A routing socket (rtnetlink) says which
//! neighbour a route leads to, and what the kernel knows of it. If it knows nothing, an empty
//! datagram to the discard port of the neighbour (RFC 863) makes the kernel ask; a program without
//! privileges has no way to make it ask without a packet.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use feroce_link::rtnetlink::{
    self, BUFFER, Message, attribute, find, messages, query, u16_at, u32_at,
};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};

/// The port of the discard protocol.
const DISCARD: u16 = 9;

/// Announcements about neighbours (`RTMGRP_NEIGH`).
const NEIGHBOURS: u32 = libc::RTMGRP_NEIGH as u32;

/// Attributes of the messages.
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_VIA: u16 = 18;
const NDA_DST: u16 = 1;

/// A route to a host, as opposed to an address of this machine, a group or an error.
const RTN_UNICAST: u8 = 1;

/// Interfaces without neighbours to ask.
const IFF_LOOPBACK: u32 = 0x8;
const IFF_NOARP: u32 = 0x80;

/// States in which the kernel has an address to send to (`NUD_VALID`).
const VALID: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;
/// The neighbour has not answered (`NUD_FAILED`).
const FAILED: u16 = 0x20;

/// A neighbour that the kernel asks, and the announcements of the kernel.
#[derive(Debug)]
pub(super) struct Neighbour {
    netlink: OwnedFd,
    nudge: UdpSocket,
    at: SocketAddr,
    interface: u32,
}

/// What is known of a neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    Reachable,
    /// It has not answered yet.
    Open,
}

impl Neighbour {
    /// The next hop on the route from an own address to a peer, which the kernel begins to ask;
    /// `None` if packets can be sent at once, or it cannot be found out.
    pub(super) fn ask(from: IpAddr, to: SocketAddr) -> Option<Self> {
        let is_own = to.ip() == from || to.ip().is_loopback();
        if is_own || to.ip().is_multicast() {
            return None;
        }
        Self::try_ask(from, to).unwrap_or_else(|e| {
            tracing::debug!("cannot find out whether the neighbour for {to} answers: {e}");
            None
        })
    }

    fn try_ask(from: IpAddr, to: SocketAddr) -> io::Result<Option<Self>> {
        let netlink = rtnetlink::open(NEIGHBOURS)?;
        let Some((interface, hop)) = next_hop(&netlink, from, to)? else { return Ok(None) };
        let at = match hop {
            IpAddr::V4(ip) => (ip, DISCARD).into(),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, DISCARD, 0, interface).into(),
        };
        let nudge = UdpSocket::bind(own(from, interface))?;
        nudge.set_nonblocking(true)?;
        let neighbour = Self { netlink, nudge, at, interface };
        if neighbour.state()?.is_some_and(|state| state & VALID != 0) {
            return Ok(None);
        }
        neighbour.nudge();
        Ok(Some(neighbour))
    }

    /// Readable when the kernel has announced something.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.netlink.as_fd()
    }

    /// Takes the announcements of the kernel.
    pub(super) fn look(&self) -> Answer {
        let mut buffer = [0; BUFFER];
        loop {
            let state = match recv(self.netlink.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(len) => messages(&buffer[..len]).filter_map(|m| self.state_in(&m)).last(),
                // Announcements were lost: the kernel is asked.
                Err(Errno::ENOBUFS) => self.state().ok().flatten(),
                Err(Errno::EINTR) => None,
                Err(_) => return Answer::Open,
            };
            match state {
                Some(state) if state & VALID != 0 => return Answer::Reachable,
                // The kernel gives up after some seconds; the caller has more time.
                Some(FAILED) => self.nudge(),
                _ => {}
            }
        }
    }

    /// Makes the kernel ask the neighbour.
    fn nudge(&self) {
        // An error is no different from an answer that does not come.
        let _ = self.nudge.send_to(&[], self.at);
    }

    /// The state of the neighbour now; `None` if the kernel does not know it.
    fn state(&self) -> io::Result<Option<u16>> {
        let mut body = vec![family(self.at.ip()), 0, 0, 0];
        body.extend(self.interface.to_ne_bytes());
        body.extend([0; 4]);
        attribute(&mut body, NDA_DST, &octets(self.at.ip()));
        let found = query(&self.netlink, libc::RTM_GETNEIGH, &body, |m| self.state_in(m));
        match found {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            found => found.map(Some),
        }
    }

    /// The state of the neighbour, if a message is about it.
    fn state_in(&self, message: &Message<'_>) -> Option<u16> {
        let attributes = message.body.get(12..)?;
        let is_it = message.kind == libc::RTM_NEWNEIGH
            && u32_at(message.body, 4)? == self.interface
            && find(attributes, NDA_DST)? == octets(self.at.ip());
        if is_it { u16_at(message.body, 8) } else { None }
    }
}

/// Where packets to a peer go next: the interface, and the address there. `None` if no neighbour
/// has to be asked.
fn next_hop(netlink: &OwnedFd, from: IpAddr, to: SocketAddr) -> io::Result<Option<(u32, IpAddr)>> {
    let bits = |ip: IpAddr| if ip.is_ipv4() { 32 } else { 128 };
    let mut body = vec![family(to.ip()), bits(to.ip()), bits(from), 0, 0, 0, 0, 0, 0, 0, 0, 0];
    attribute(&mut body, RTA_DST, &octets(to.ip()));
    attribute(&mut body, RTA_SRC, &octets(from));
    if let SocketAddr::V6(to) = to
        && to.scope_id() != 0
    {
        attribute(&mut body, RTA_OIF, &to.scope_id().to_ne_bytes());
    }
    let route = |message: &Message<'_>| {
        let attributes = message.body.get(12..)?;
        let interface = u32_at(find(attributes, RTA_OIF)?, 0)?;
        let via = |via: &[u8]| address(via.get(2..)?);
        let gateway = find(attributes, RTA_GATEWAY).and_then(address);
        let gateway = gateway.or_else(|| find(attributes, RTA_VIA).and_then(via));
        let is_unicast = *message.body.get(7)? == RTN_UNICAST;
        Some((is_unicast, interface, gateway.unwrap_or_else(|| to.ip())))
    };
    let (is_unicast, interface, hop) = query(netlink, libc::RTM_GETROUTE, &body, route)?;
    if !is_unicast || link_flags(netlink, interface)? & (IFF_LOOPBACK | IFF_NOARP) != 0 {
        return Ok(None);
    }
    Ok(Some((interface, hop)))
}

/// The flags of an interface.
fn link_flags(netlink: &OwnedFd, interface: u32) -> io::Result<u32> {
    let mut body = vec![0; 4];
    body.extend(interface.to_ne_bytes());
    body.extend([0; 8]);
    let flags = |message: &Message<'_>| {
        (message.kind == libc::RTM_NEWLINK).then(|| u32_at(message.body, 8))?
    };
    query(netlink, libc::RTM_GETLINK, &body, flags)
}

/// An own address as a source, with the interface that link-local ones need.
fn own(ip: IpAddr, interface: u32) -> SocketAddr {
    match ip {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => {
            SocketAddrV6::new(ip, 0, 0, interface).into()
        }
        ip => (ip, 0).into(),
    }
}

fn family(ip: IpAddr) -> u8 {
    (if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(octets).map(|octets| Ipv4Addr::from(octets).into());
    let v6 = || <[u8; 16]>::try_from(octets).map(|octets| Ipv6Addr::from(octets).into());
    v4.or_else(|_| v6()).ok()
}
