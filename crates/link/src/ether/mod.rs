//! RoCEv1 over a packet socket (Ethertype 0x8915), with `CAP_NET_RAW`.
//!
//! Every process has a socket of its own: the kernel passes each the frames to its queue pairs
//! ([`filter`]), by the upper eight bits of their numbers, so no process receives for others.
//! Frames to queue pair 1 reach all of them, and the owner of the link decides whose they are.
//! Where the interface is a VLAN, frames pass the interface below it with the tag in them, because
//! only there a program writes and sees the priority; it is the service level of the path. RoCEv1
//! has neither ECN nor segmentation offload: a train leaves in one `sendmmsg` call.

mod filter;
mod interface;
mod neighbours;
mod rx;
mod tx;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use feroce_train::{Instant, LinkCaps, Path, RxMeta, RxTrain, Single, Train};
use feroce_wire::{Bth, Ethernet, Gid, Grh};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use socket2::{Domain, Protocol, Socket, Type};

use crate::icrc::{MAX_TRAIN_BYTES, MAX_TRAIN_PACKETS};
use crate::sys::{FrameInbox, bind_packet, set_int, set_membership};
use crate::udp::{hop_limit, set_buffers};
use crate::{Carrier, Control, LinkCounters, Logger, annotate, rtnetlink};
use interface::Interface;
use neighbours::{Neighbours, group_address};
use tx::Outbox;

/// Bytes of the longest frame: tagged, with the longest headers and 4096 bytes of payload.
const MAX_FRAME: usize = Ethernet::MAX_LEN + Grh::LEN + Bth::LEN + 32 + 4096 + 4;

/// What the epoll instance watches.
const SOCKET: u64 = 0;
const ANNOUNCEMENTS: u64 = 1;

/// Calls of [`Carrier::receive`] between two looks at the announcements of the kernel.
const LOOK_EVERY: u32 = 64;

/// How an [`EtherLink`] is made.
#[derive(Clone, Debug)]
pub struct EtherConfig {
    /// Interface by name and index.
    pub interface: (String, u32),
    /// VLAN of the frames, if it is not that of the interface. Addresses are resolved on the
    /// interface all the same.
    pub vlan: Option<u16>,
    /// The upper eight bits of the numbers of this process's queue pairs, if other processes use
    /// the interface as well.
    pub prefix: Option<u8>,
    /// Receive buffer to ask for; the kernel may grant less.
    pub rcvbuf: usize,
    /// Send buffer to ask for.
    pub sndbuf: usize,
    /// Where messages go.
    pub log: Logger,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    tx_trains: u64,
    tx_packets: u64,
    tx_full: u64,
    /// Packets that the interface had no room for, or that waited for an unknown neighbour in vain.
    tx_lost: u64,
    tx_too_long: u64,
    /// Packets to a neighbour that does not answer, or that no route leads to.
    tx_no_neighbour: u64,
    tx_errors: u64,
    rx_packets: u64,
    rx_errors: u64,
    /// Frames that are no RoCEv1 packets.
    rx_malformed: u64,
    /// Packets to an address that the port does not have.
    rx_foreign: u64,
}

/// A link over a packet socket.
#[derive(Debug)]
pub struct EtherLink {
    config: EtherConfig,
    interface: Interface,
    socket: Socket,
    epoll: Epoll,
    addresses: Vec<Gid>,
    groups: Vec<Gid>,
    neighbours: Neighbours,
    outbox: Outbox,
    inbox: FrameInbox,
    /// Frames that the next call asks for: one while few arrive, since asking for many costs time.
    most: usize,
    /// Calls until the next look at the announcements.
    until_look: u32,
    counters: Counters,
}

impl EtherLink {
    /// Whether a link on an interface can be opened; if not, the error says what to do.
    pub fn check(interface: u32) -> io::Result<()> {
        Interface::find(&rtnetlink::open(0)?, interface)?;
        // This socket needs the same privilege as a packet socket, and is closed at once; closing a
        // packet socket takes milliseconds.
        let raw = SockProtocol::Raw;
        let flags = SockFlag::SOCK_CLOEXEC;
        match socket(AddressFamily::Inet, SockType::Raw, flags, raw) {
            Ok(_) => Ok(()),
            Err(e) => Err(refused(e.into())),
        }
    }

    /// A link without addresses.
    pub fn new(config: EtherConfig) -> io::Result<Self> {
        let neighbours = Neighbours::new(config.interface.clone())?;
        let interface = Interface::find(neighbours.questions(), config.interface.1)?;
        let interface = interface.in_vlan(config.vlan);
        let kind = Type::RAW.nonblocking().cloexec();
        // Protocol 0: it hears nothing before it has its filter.
        let socket = Socket::new(Domain::PACKET, kind, Some(Protocol::from(0))).map_err(refused)?;
        set_buffers(&socket, config.rcvbuf, config.sndbuf);
        set_int(&socket, libc::SOL_PACKET, libc::PACKET_AUXDATA, 1)?;
        set_int(&socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
        socket.attach_filter(&filter::program(&interface, config.prefix))?;
        bind_packet(&socket, libc::ETH_P_ALL as u16, interface.index)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, SOCKET))?;
        epoll.add(neighbours.fd(), EpollEvent::new(EpollFlags::EPOLLIN, ANNOUNCEMENTS))?;
        Ok(Self {
            interface,
            socket,
            epoll,
            addresses: Vec::new(),
            groups: Vec::new(),
            neighbours,
            outbox: Outbox::default(),
            inbox: FrameInbox::new(MAX_FRAME, Ethernet::MIN_LEN + Grh::LEN + Bth::LEN),
            most: 1,
            until_look: 0,
            counters: Counters::default(),
            config,
        })
    }

    /// Follows the interface: its Ethernet address may have changed.
    fn set_addresses(&mut self, addresses: &[Gid]) -> io::Result<()> {
        self.addresses = addresses.to_vec();
        let netlink = self.neighbours.questions();
        // An interface that is gone has no addresses.
        let Ok(interface) = Interface::find(netlink, self.config.interface.1) else {
            return Ok(());
        };
        let interface = interface.in_vlan(self.config.vlan);
        if interface != self.interface {
            self.socket.attach_filter(&filter::program(&interface, self.config.prefix))?;
            if interface.index != self.interface.index {
                bind_packet(&self.socket, libc::ETH_P_ALL as u16, interface.index)?;
            }
            self.interface = interface;
        }
        Ok(())
    }

    fn join(&mut self, group: Gid) -> io::Result<()> {
        if self.groups.contains(&group) {
            return Ok(());
        }
        set_membership(&self.socket, self.interface.index, group_address(group), true)?;
        self.groups.push(group);
        self.hear_own_host()
    }

    fn leave(&mut self, group: Gid) -> io::Result<()> {
        let Some(at) = self.groups.iter().position(|known| *known == group) else { return Ok(()) };
        self.groups.swap_remove(at);
        set_membership(&self.socket, self.interface.index, group_address(group), false)?;
        self.hear_own_host()
    }

    /// Members of a group hear what other processes of the host send to it. Otherwise the kernel
    /// need not show the socket what the host sends, which costs every packet of the interface.
    fn hear_own_host(&self) -> io::Result<()> {
        let is_deaf = i32::from(self.groups.is_empty());
        set_int(&self.socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, is_deaf)
    }

    /// Asks the epoll instance to report when the socket has room, or no longer.
    fn wait_for_room(&self, is_full: bool) -> io::Result<()> {
        let mut flags = EpollFlags::EPOLLIN;
        flags.set(EpollFlags::EPOLLOUT, is_full);
        Ok(self.epoll.modify(&self.socket, &mut EpollEvent::new(flags, SOCKET))?)
    }
}

/// Says what to do about a socket that may not be opened.
fn refused(e: io::Error) -> io::Error {
    if e.kind() != io::ErrorKind::PermissionDenied {
        return annotate(e, "packet sockets are not available here".to_owned());
    }
    let text = "CAP_NET_RAW is missing: run the program as root, give its file the capability \
                (`setcap cap_net_raw+ep`), or run it in `unshare -Urn`";
    annotate(e, text.to_owned())
}

impl Carrier for EtherLink {
    fn caps(&self) -> LinkCaps {
        LinkCaps { max_packets: MAX_TRAIN_PACKETS.into(), max_bytes: MAX_TRAIN_BYTES }
    }

    fn headers(&self, path: &Path) -> RxMeta {
        RxMeta { hop_limit: hop_limit(path), ..RxMeta::from(path) }
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    fn counters(&self) -> LinkCounters {
        let c = &self.counters;
        vec![
            ("ether_tx_trains", c.tx_trains),
            ("ether_tx_packets", c.tx_packets),
            ("ether_tx_full", c.tx_full),
            ("ether_tx_lost", c.tx_lost),
            ("ether_tx_too_long", c.tx_too_long),
            ("ether_tx_no_neighbour", c.tx_no_neighbour),
            ("ether_tx_errors", c.tx_errors),
            ("ether_rx_packets", c.rx_packets),
            ("ether_rx_errors", c.rx_errors),
            ("ether_rx_malformed", c.rx_malformed),
            ("ether_rx_foreign", c.rx_foreign),
        ]
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
        if self.outbox.has_frames() {
            self.flush()?;
        }
        if self.until_look == 0 || self.neighbours.has_waiting() {
            self.until_look = LOOK_EVERY;
            self.hear();
        }
        self.until_look -= 1;
        Ok(self.receive_frames(budget, sink))
    }

    fn arm(&mut self, _now: Instant) -> bool {
        self.until_look = 0;
        true
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn control(&mut self, control: Control<'_>) -> io::Result<()> {
        match control {
            Control::Addresses(addresses) => self.set_addresses(addresses),
            Control::Join(group) => self.join(group),
            Control::Leave(group) => self.leave(group),
            // The socket holds nothing back, and a child closes its own descriptors only.
            Control::Exit | Control::Fork => Ok(()),
        }
    }
}
