//! RoCEv2 over UDP sockets, without privilege.
//!
//! One socket per address receives on port 4791. Up to [`UdpConfig::flows`] more per address send,
//! each from a port of its own, so that flows spread over equal-cost paths; the first is opened
//! with the address, the others when a path needs them. No socket is connected and
//! none fragments: only then does the kernel choose IPv4 identifications that the ICRC can cover
//! (see `icrc`). A train leaves in one call with segmentation offload (`UDP_SEGMENT`) and arrives
//! merged (`UDP_GRO`); where the kernel refuses either, the link sends or receives one packet per
//! call from then on and logs one warning. ECN bits, hop limit and traffic class of every received
//! packet come from the control messages that arrived with it.

mod epoll_set;
mod rx;
mod socket;
mod steering;
mod tx;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use feroce_train::{Instant, LinkCaps, Path, RxMeta, RxTrain, Single, Train};
use feroce_wire::{Gid, ROCE_UDP_PORT};
use socket2::Socket;

use crate::icrc::{MAX_TRAIN_BYTES, MAX_TRAIN_PACKETS, Sealer};
use crate::sys::Inbox;
use crate::{Carrier, Control, LinkCounters, Logger, SharedPort};
use epoll_set::EpollSet;
pub(crate) use socket::set_buffers;
use steering::Seat;
pub use steering::Steering;
pub(crate) use tx::hop_limit;

/// Hop limit of the sockets, and of paths that have none: what Linux gives its own packets.
const DEFAULT_HOP_LIMIT: u8 = 64;

/// How a [`UdpLink`] is made.
#[derive(Clone, Debug)]
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
    /// Receive at every address; else only where [`SharedPort::listen`] says so.
    pub listen: bool,
    /// The other links of the device, with which this one shares its port, and the upper eight bits
    /// of the queue pair numbers of this one.
    pub steering: Option<(Arc<Steering>, u8)>,
    /// Where messages go.
    pub log: Logger,
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
            listen: true,
            steering: None,
            log: Logger::default(),
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
}

/// An address of the port, with its sockets.
#[derive(Debug)]
struct Port {
    addr: Gid,
    /// Receives, unless another process does at this address.
    rx: Option<Socket>,
    /// Its place among those of other links of the device.
    seat: Option<Seat>,
    /// Sending sockets. The first is opened with the address, so that a lack of descriptors shows
    /// then, and the others when a path first needs them.
    tx: Vec<TxSocket>,
    /// The socket of each flow in `tx`, once a packet of the flow was sent.
    flows: Vec<Option<usize>>,
}

/// A socket that sends.
#[derive(Debug)]
struct TxSocket {
    socket: Socket,
    port: u16,
    /// Known to the epoll instance.
    watched: bool,
    /// Was full, and the epoll instance has not reported yet that it has room again.
    waits: bool,
}

/// A multicast group that the port has joined.
#[derive(Debug)]
struct Group {
    gid: Gid,
    rx: Socket,
}

/// Bytes of the longest datagram, and some to align its payload.
const BUFFER: usize = 66_000;

/// What datagrams are written to before they are sent.
#[derive(Debug)]
struct Outbox {
    sealer: Sealer,
    bytes: Vec<u8>,
    /// Send trains in one call. Turned off for good when the kernel refuses.
    gso: bool,
    /// The warning about packets longer than the path MTU was logged.
    warned_size: bool,
}

/// A link over UDP sockets.
#[derive(Debug)]
pub struct UdpLink {
    config: UdpConfig,
    ports: Vec<Port>,
    groups: Vec<Group>,
    sockets: EpollSet,
    outbox: Outbox,
    inbox: Inbox,
    counters: Counters,
}

impl UdpLink {
    /// A link with the given addresses.
    pub fn new(config: UdpConfig, addresses: &[Gid]) -> io::Result<Self> {
        let (sealer, bytes) = (Sealer::default(), vec![0; BUFFER]);
        let mut link = Self {
            sockets: EpollSet::new()?,
            outbox: Outbox { sealer, bytes, gso: config.gso, warned_size: false },
            inbox: Inbox::new(BUFFER),
            config,
            ports: Vec::new(),
            groups: Vec::new(),
            counters: Counters::default(),
        };
        link.set_addresses(addresses)?;
        Ok(link)
    }

    /// Opens and closes sockets so that the port has these addresses.
    fn set_addresses(&mut self, addresses: &[Gid]) -> io::Result<()> {
        let has = |addr: &Gid| self.ports.iter().any(|p| p.addr == *addr);
        let keeps_all = self.addresses().all(|addr| addresses.contains(&addr));
        if keeps_all && addresses.iter().all(|addr| addr.is_zero() || has(addr)) {
            return Ok(());
        }
        for port in self.ports.extract_if(.., |p| !addresses.contains(&p.addr)) {
            let flows = port.tx.iter().filter(|flow| flow.watched).map(|flow| &flow.socket);
            self.sockets.remove(flows.chain(&port.rx));
        }
        for &addr in addresses {
            if addr.is_zero() || self.ports.iter().any(|p| p.addr == addr) {
                continue;
            }
            let tx = vec![socket::open_flow(&self.config, addr, self.interface_index(), 0)?];
            let mut flows = vec![None; self.config.flows.max(1)];
            flows[0] = Some(0);
            self.ports.push(Port { addr, rx: None, seat: None, tx, flows });
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
        self.sockets.add(&rx)?;
        self.groups.push(Group { gid, rx });
        Ok(())
    }

    fn leave(&mut self, gid: Gid) {
        // Closing the socket leaves the group.
        for group in self.groups.extract_if(.., |g| g.gid == gid) {
            self.sockets.remove([&group.rx]);
        }
    }

    /// The addresses of the port.
    pub fn addresses(&self) -> impl Iterator<Item = Gid> {
        self.ports.iter().map(|port| port.addr)
    }

    /// Whether a packet was sent by this link.
    fn is_own(&self, src: Gid, udp_sport: u16) -> bool {
        let mut ports = self.ports.iter().filter(|p| p.addr == src);
        ports.any(|p| p.tx.iter().any(|flow| flow.port == udp_sport))
    }

    /// The port and the sending socket of a path, by index.
    fn flow_of(&self, path: &Path) -> Option<(usize, usize)> {
        let at = self.ports.iter().position(|p| p.addr == path.src.gid)?;
        let port = &self.ports[at];
        let flow = usize::from(path.udp_sport()) % port.flows.len();
        Some((at, port.flows[flow].unwrap_or(0)))
    }

    /// Opens the sending socket of a path, unless it is open. Without descriptors, its packets
    /// leave from the first one.
    #[inline]
    fn open_flow(&mut self, path: &Path) {
        let scope = self.interface_index();
        let Some(port) = self.ports.iter_mut().find(|p| p.addr == path.src.gid) else { return };
        let flow = usize::from(path.udp_sport()) % port.flows.len();
        if port.flows[flow].is_some() {
            return;
        }
        port.flows[flow] = Some(match socket::open_flow(&self.config, port.addr, scope, flow) {
            Ok(opened) => {
                port.tx.push(opened);
                port.tx.len() - 1
            }
            Err(e) => {
                tracing::debug!("{e}: its packets leave from another port");
                0
            }
        });
    }

    fn interface_index(&self) -> u32 {
        self.config.interface.as_ref().map_or(0, |(_, index)| *index)
    }
}

impl Carrier for UdpLink {
    fn caps(&self) -> LinkCaps {
        LinkCaps { max_packets: MAX_TRAIN_PACKETS.into(), max_bytes: MAX_TRAIN_BYTES }
    }

    fn send(&mut self, _now: Instant, trains: &[Train]) -> io::Result<usize> {
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
        self.sockets.fd()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn arm(&mut self, _now: Instant) -> bool {
        // Any socket may wake the thread.
        self.sockets.end_streak();
        true
    }

    fn headers(&self, path: &Path) -> RxMeta {
        let meta = RxMeta { hop_limit: hop_limit(path), ecn: self.ecn(), ..RxMeta::from(path) };
        match self.flow_of(path) {
            Some((port, flow)) => RxMeta { udp_sport: self.ports[port].tx[flow].port, ..meta },
            None => meta,
        }
    }

    fn control(&mut self, control: Control<'_>) -> io::Result<()> {
        match control {
            Control::Addresses(addresses) => self.set_addresses(addresses),
            Control::Join(group) => self.join(group),
            Control::Leave(group) => {
                self.leave(group);
                Ok(())
            }
            // Sockets hold nothing back, and a child closes its own descriptors only.
            Control::Exit | Control::Fork => Ok(()),
        }
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
        ]
    }
}

impl SharedPort for UdpLink {
    fn listen(&mut self, addr: Gid) -> io::Result<()> {
        let Some(port) = self.ports.iter().position(|p| p.addr == addr) else {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        };
        if self.ports[port].rx.is_none() {
            let open = || socket::open_rx(&self.config, addr, self.interface_index());
            let (rx, seat) = match &self.config.steering {
                Some((steering, prefix)) => {
                    let (rx, seat) = steering.open(addr, *prefix, open)?;
                    (rx, Some(seat))
                }
                None => (open()?, None),
            };
            self.sockets.add(&rx)?;
            (self.ports[port].rx, self.ports[port].seat) = (Some(rx), seat);
        }
        Ok(())
    }

    fn receiver(&self, addr: Gid) -> Option<BorrowedFd<'_>> {
        let port = self.ports.iter().find(|p| p.addr == addr)?;
        port.rx.as_ref().map(|rx| rx.as_fd())
    }

    fn borrow_receiver(&mut self, addr: Gid, socket: OwnedFd) -> bool {
        let (socket, scope) = (Socket::from(socket), self.interface_index());
        let expected = socket_addr(addr, ROCE_UDP_PORT, scope);
        let is_meant = socket.local_addr().is_ok_and(|a| a.as_socket() == Some(expected));
        let port = self.ports.iter().position(|p| p.addr == addr && p.rx.is_none());
        let Some(port) = port.filter(|_| is_meant && self.sockets.add(&socket).is_ok()) else {
            return false;
        };
        self.ports[port].rx = Some(socket);
        true
    }

    fn stop_listening(&mut self, addr: Gid) {
        let port = self.ports.iter_mut().find(|p| p.addr == addr);
        if let Some(port) = port
            && let Some(rx) = port.rx.take()
        {
            self.sockets.remove([&rx]);
            drop(rx);
            port.seat = None;
        }
    }

    fn is_steered(&self, addr: Gid) -> bool {
        let steering = self.config.steering.as_ref();
        steering.is_some_and(|(steering, prefix)| steering.is_shared(addr, *prefix))
    }

    #[inline]
    fn is_watching(&self) -> bool {
        let has_work = |p: &Port| p.rx.is_some() || p.tx.iter().any(|flow| flow.waits);
        !self.groups.is_empty() || self.ports.iter().any(has_work)
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
