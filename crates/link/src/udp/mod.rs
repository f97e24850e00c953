//! RoCEv2 over UDP sockets, without privilege.
//!
//! One socket per address receives on port 4791; a few more send, each from a port of its own, so
//! that flows spread over equal-cost paths. They are not connected and never fragment: the ICRC
//! depends on it (see `icrc`). Whoever talks to one peer gets sockets besides that are
//! connected to it (`lane` and `gate`). Trains go out in one call with segmentation
//! offload and come in merged; where the kernel refuses, the link falls back to one packet per call
//! for good and says so once.

mod gate;
mod header;
mod lane;
mod merge;
mod rx;
mod socket;
mod tx;
mod watch;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use feroce_train::{Instant, LinkCaps, Path, RxTrain, Single, Train};
use feroce_wire::{Gid, ROCE_UDP_PORT};
use nix::sys::epoll::{Epoll, EpollCreateFlags};
use socket2::Socket;

use crate::icrc::{MAX_TRAIN_PACKETS, Sealer};
use crate::sys::{Inbox, unsent};
use crate::{Link, LinkCounters, Sent};
use gate::Gates;
use lane::Lanes;
use merge::Merging;
use rx::MAX_STREAK;
use watch::{Hot, Watch};

/// Most bytes of packets in one train: what one UDP datagram may hold, less the ICRCs.
const MAX_TRAIN_BYTES: u32 = 65_000;
/// Hop limit of the sockets, and of paths that have none.
const DEFAULT_HOP_LIMIT: u8 = 64;

/// How a [`UdpLink`] is made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UdpConfig {
    /// Interface by name and index: for multicast, and for link-local addresses.
    pub interface: Option<(String, u32)>,
    /// Receive buffer to ask for; the kernel may grant less.
    pub rcvbuf: usize,
    /// Send buffer to ask for.
    pub sndbuf: usize,
    /// Source ports to spread flows over.
    pub flows: usize,
    /// Mark packets as ECN-capable.
    pub ecn: bool,
    /// Try segmentation offload when sending.
    pub gso: bool,
    /// Try to receive merged packets.
    pub gro: bool,
    /// Exchange packets with one peer through connected sockets.
    pub connect: bool,
    /// Receive at every address; else only where [`UdpLink::listen`] says so.
    pub listen: bool,
}

impl Default for UdpConfig {
    fn default() -> Self {
        Self {
            interface: None,
            rcvbuf: 8 << 20,
            sndbuf: 4 << 20,
            flows: 8,
            ecn: true,
            gso: true,
            gro: true,
            connect: true,
            listen: true,
        }
    }
}

/// Counters of the link.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    tx_trains: u64,
    tx_packets: u64,
    tx_full: u64,
    /// Packets that followed one that filled the buffer, where a train is not one call.
    tx_lost: u64,
    /// Packets longer than the path allows.
    tx_too_long: u64,
    /// Packets from an address that the port does not have.
    tx_no_address: u64,
    tx_errors: u64,
    rx_trains: u64,
    rx_errors: u64,
    rx_foreign: u64,
    /// Multicasts of our own that came back: the engine has had its copy.
    rx_own: u64,
    /// Connected sockets that were made to send, and to receive.
    tx_lanes: u64,
    rx_gates: u64,
    /// Packets that were not asked what their headers say.
    rx_unasked: u64,
}

/// An address of the port, with its sockets.
#[derive(Debug)]
struct Port {
    addr: Gid,
    /// Receives, unless somebody else does at this address.
    rx: Option<Socket>,
    /// That socket is somebody else's.
    is_lent: bool,
    tx: Vec<Flow>,
}

impl Port {
    /// Whether it is this socket that receives.
    fn has(&self, fd: RawFd) -> bool {
        self.rx.as_ref().is_some_and(|rx| rx.as_raw_fd() == fd)
    }
}

/// A socket that sends.
#[derive(Debug)]
struct Flow {
    socket: Socket,
    port: u16,
    /// Known to the epoll instance.
    watched: bool,
    /// Was full, and nobody has heard yet that it no longer is.
    waits: bool,
}

impl Flow {
    /// Whether all that was sent from it has left, and nobody waits for that.
    fn is_idle(&self) -> bool {
        !self.waits && unsent(self.socket.as_raw_fd()) == Ok(0)
    }
}

/// A multicast group that the port has joined.
#[derive(Debug)]
struct Group {
    gid: Gid,
    rx: Socket,
}

/// A link over UDP sockets.
#[derive(Debug)]
pub struct UdpLink {
    config: UdpConfig,
    ports: Vec<Port>,
    groups: Vec<Group>,
    epoll: Epoll,
    hot: Option<Hot>,
    watch: Watch,
    merging: Merging,
    lanes: Lanes,
    gates: Gates,
    /// A sending socket waits for room.
    is_full: bool,
    /// How often in a row only the hot socket was asked.
    streak: u32,
    /// Which of the sockets that have something is asked first.
    turn: usize,
    sealer: Sealer,
    tx_buf: Vec<u8>,
    inbox: Inbox,
    gso: bool,
    warned_size: bool,
    counters: Counters,
}

impl UdpLink {
    /// A link with the given addresses.
    pub fn new(config: UdpConfig, addresses: &[Gid]) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let mut link = Self {
            hot: None,
            watch: Watch::new(&epoll)?,
            merging: Merging::default(),
            lanes: Lanes::default(),
            gates: Gates::default(),
            gso: config.gso,
            config,
            ports: Vec::new(),
            groups: Vec::new(),
            epoll,
            is_full: false,
            streak: 0,
            turn: 0,
            sealer: Sealer::default(),
            tx_buf: vec![0; 66_000],
            inbox: Inbox::new(66_000),
            warned_size: false,
            counters: Counters::default(),
        };
        link.set_addresses(addresses)?;
        Ok(link)
    }

    /// Receives at an address of the port. It is an error of kind [`io::ErrorKind::AddrInUse`] if
    /// somebody else does.
    pub fn listen(&mut self, addr: Gid) -> io::Result<()> {
        let Some(port) = self.ports.iter().position(|p| p.addr == addr) else {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        };
        if self.ports[port].rx.is_none() {
            let rx = socket::open_rx(&self.config, addr, self.interface_index())?;
            self.watch(&rx)?;
            (self.ports[port].rx, self.ports[port].is_lent) = (Some(rx), false);
            self.cool();
        }
        Ok(())
    }

    /// The addresses of the port.
    pub fn addresses(&self) -> impl Iterator<Item = Gid> {
        self.ports.iter().map(|port| port.addr)
    }

    /// The socket that receives at an address.
    pub fn receiver(&self, addr: Gid) -> Option<BorrowedFd<'_>> {
        let port = self.ports.iter().find(|p| p.addr == addr)?;
        port.rx.as_ref().map(|rx| rx.as_fd())
    }

    /// Receives at an address of the port with a socket that somebody else has made, and has still.
    /// False: it is none that receives there.
    pub fn borrow_receiver(&mut self, addr: Gid, socket: OwnedFd) -> bool {
        let (socket, scope) = (Socket::from(socket), self.interface_index());
        let expected = socket_addr(addr, ROCE_UDP_PORT, scope);
        let is_meant = socket.local_addr().is_ok_and(|a| a.as_socket() == Some(expected));
        let port = self.ports.iter().position(|p| p.addr == addr && p.rx.is_none());
        let Some(port) = port.filter(|_| is_meant && self.watch(&socket).is_ok()) else {
            return false;
        };
        (self.ports[port].rx, self.ports[port].is_lent) = (Some(socket), true);
        self.cool();
        true
    }

    /// No longer receives at an address.
    pub fn stop_listening(&mut self, addr: Gid) {
        self.cool();
        self.close_gate();
        let port = self.ports.iter_mut().find(|p| p.addr == addr);
        if let Some(rx) = port.and_then(|port| port.rx.take()) {
            forget(&self.epoll, [&rx]);
        }
    }

    /// Whether anything can arrive, or somebody waits for room.
    #[inline]
    pub fn is_watching(&self) -> bool {
        self.hot.is_some() || self.is_full || self.receivers() > 0
    }

    /// How many sockets receive.
    fn receivers(&self) -> usize {
        let ports = self.ports.iter().filter(|p| p.rx.is_some()).count();
        ports + self.groups.len() + usize::from(self.gates.gate.is_some())
    }

    /// Whether somebody waits for room in a socket that sends.
    fn awaits_room(&self) -> bool {
        let mut flows = self.ports.iter().flat_map(|p| &p.tx).chain(self.lanes.flow());
        flows.any(|flow| flow.waits)
    }

    /// Whether a packet was sent by this link.
    fn is_own(&self, src: Gid, udp_sport: u16) -> bool {
        let mut ports = self.ports.iter().filter(|p| p.addr == src);
        ports.any(|p| p.tx.iter().any(|flow| flow.port == udp_sport))
    }

    /// The port and the sending socket of a path, by index.
    fn flow_of(&self, path: &Path) -> Option<(usize, usize)> {
        let port = self.ports.iter().position(|p| p.addr == path.src)?;
        Some((port, usize::from(path.udp_sport) % self.ports[port].tx.len()))
    }

    fn interface_index(&self) -> u32 {
        self.config.interface.as_ref().map_or(0, |(_, index)| *index)
    }
}

impl Link for UdpLink {
    fn caps(&self) -> LinkCaps {
        LinkCaps { max_packets: MAX_TRAIN_PACKETS.into(), max_bytes: MAX_TRAIN_BYTES }
    }

    fn send(&mut self, _now: Instant, train: &Train) -> io::Result<Sent> {
        self.send_train(train)
    }

    fn send_all(&mut self, _now: Instant, trains: &[Train]) -> io::Result<usize> {
        self.send_trains(trains)
    }

    fn send_single(&mut self, packet: Single<'_>) -> bool {
        self.send_packet(packet)
    }

    fn receive(
        &mut self,
        _now: Instant,
        budget: usize,
        sink: &mut dyn FnMut(&RxTrain<'_>),
    ) -> io::Result<usize> {
        self.receive_trains(budget, sink)
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    fn arm(&mut self, _now: Instant, _looks: bool) -> bool {
        // Whoever is woken may be so by any of them.
        self.streak = MAX_STREAK;
        self.watch_all()
    }

    fn actual_path(&self, path: &Path) -> Path {
        self.flow_of(path).map_or(*path, |(port, flow)| self.path_on_wire(path, port, flow))
    }

    fn set_addresses(&mut self, addresses: &[Gid]) -> io::Result<()> {
        let has = |addr: &Gid| self.ports.iter().any(|p| p.addr == *addr);
        let keeps_all = self.addresses().all(|addr| addresses.contains(&addr));
        if keeps_all && addresses.iter().all(|addr| addr.is_zero() || has(addr)) {
            return Ok(());
        }
        self.cool();
        self.close_gate();
        self.close_lane();
        for port in self.ports.extract_if(.., |p| !addresses.contains(&p.addr)) {
            let flows = port.tx.iter().filter(|flow| flow.watched).map(|flow| &flow.socket);
            forget(&self.epoll, flows.chain(&port.rx));
        }
        for &addr in addresses {
            if addr.is_zero() || self.ports.iter().any(|p| p.addr == addr) {
                continue;
            }
            let tx = socket::open_flows(&self.config, addr, self.interface_index())?;
            self.ports.push(Port { addr, rx: None, is_lent: false, tx });
            if self.config.listen
                && let Err(e) = self.listen(addr)
            {
                self.ports.pop();
                return Err(e);
            }
        }
        Ok(())
    }

    fn join(&mut self, gid: Gid) -> io::Result<()> {
        if self.groups.iter().any(|g| g.gid == gid) {
            return Ok(());
        }
        let local = self.ports.iter().map(|p| p.addr).find(|a| same_family(*a, gid));
        let rx = socket::open_group(&self.config, gid, local, self.interface_index())?;
        self.watch(&rx)?;
        self.groups.push(Group { gid, rx });
        self.cool();
        Ok(())
    }

    fn leave(&mut self, gid: Gid) -> io::Result<()> {
        self.cool();
        // Closing the socket leaves the group.
        for group in self.groups.extract_if(.., |g| g.gid == gid) {
            forget(&self.epoll, [&group.rx]);
        }
        Ok(())
    }

    fn counters(&self) -> LinkCounters {
        let c = &self.counters;
        vec![
            ("udp_tx_trains", c.tx_trains),
            ("udp_tx_packets", c.tx_packets),
            ("udp_tx_full", c.tx_full),
            ("udp_tx_lost", c.tx_lost),
            ("udp_tx_too_long", c.tx_too_long),
            ("udp_tx_no_address", c.tx_no_address),
            ("udp_tx_errors", c.tx_errors),
            ("udp_rx_trains", c.rx_trains),
            ("udp_rx_errors", c.rx_errors),
            ("udp_rx_foreign", c.rx_foreign),
            ("udp_rx_own", c.rx_own),
            ("udp_tx_lanes", c.tx_lanes),
            ("udp_rx_gates", c.rx_gates),
            ("udp_rx_unasked", c.rx_unasked),
        ]
    }
}

/// Stops watching sockets that are about to be closed. Closing is not enough where a process that
/// was forked still has them.
fn forget<'a>(epoll: &Epoll, sockets: impl IntoIterator<Item = &'a Socket>) {
    for socket in sockets {
        let _ = epoll.delete(socket);
    }
}

fn same_family(a: Gid, b: Gid) -> bool {
    a.as_ipv4().is_some() == b.as_ipv4().is_some()
}

/// The socket address of a GID; `scope` is the interface of link-local addresses.
pub(crate) fn socket_addr(gid: Gid, port: u16, scope: u32) -> SocketAddr {
    use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};
    match gid.as_ipv4() {
        Some(v4) => SocketAddrV4::new(Ipv4Addr::from(v4), port).into(),
        None => {
            let ip = Ipv6Addr::from(gid.0);
            let is_local = ip.is_unicast_link_local() || ip.is_multicast();
            SocketAddrV6::new(ip, port, 0, if is_local { scope } else { 0 }).into()
        }
    }
}
