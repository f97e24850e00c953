//! Datagram sockets.
//!
//! Each has a UDP socket of the kernel, whose address is its own, and a [`DatagramQp`] for every
//! address of this host that its datagrams leave from. The first datagram to a peer goes through
//! the kernel; the answer names the peer's queue pair, and all later datagrams go there.

mod qp;

use core::ffi::c_int;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use feroce::{Errno, Qpn};
use feroce_abi::SOL_RDMA;
use socket2::{Domain, SockRef, Type};

use self::qp::{DatagramQp, MAX_LEN, Target};
use crate::ManagerFn;
use crate::options;
use crate::protocol::{Operation, UdpHeader};
use crate::service::{self, Served};
use crate::settings::Settings;
use crate::wakeup::{self, PollSet, Waitable, Waiters, Wakeup};

/// Most peers that a socket remembers. The source address of a datagram can be forged, so the
/// number must be bounded.
const MAX_PEERS: usize = 4096;

/// How long a closed socket waits until its datagrams have been sent.
const LINGER: Duration = Duration::from_secs(1);

/// A socket that ours exchanges datagrams with.
#[derive(Debug)]
struct Peer {
    /// Our address on the route to the peer.
    local: IpAddr,
    /// Its queue pair, once it is known.
    target: Option<Target>,
}

/// What the lock of a socket protects. `peers`, whose address handles belong to protection domains
/// in `qps`, is dropped first.
#[derive(Debug)]
struct Core {
    peers: BTreeMap<SocketAddr, Peer>,
    qps: Vec<DatagramQp>,
    connected: Option<SocketAddr>,
    arrived: VecDeque<(SocketAddr, Vec<u8>)>,
    is_served: bool,
    settings: Settings,
}

/// A datagram socket.
#[derive(Debug)]
pub(crate) struct Datagram {
    core: Mutex<Core>,
    udp: UdpSocket,
    waiters: Waiters,
    manager: ManagerFn,
}

impl Core {
    fn progress(&mut self) -> bool {
        let (arrived, qps) = (&mut self.arrived, &mut self.qps);
        let limit = usize::from(self.settings.recv_depth);
        let mut any = false;
        for qp in qps.iter_mut().filter(|qp| !qp.is_cut_off()) {
            any |= qp.progress(|from, bytes| enqueue(arrived, limit, from, bytes));
        }
        any
    }

    /// Remembers a peer, with a queue pair at the address from which the kernel would send to it.
    fn add_peer(
        &mut self,
        udp: &UdpSocket,
        peer: SocketAddr,
        manager: ManagerFn,
    ) -> Result<(), Errno> {
        if self.peers.contains_key(&peer) {
            return Ok(());
        }
        if self.peers.len() >= MAX_PEERS {
            return Err(Errno(libc::ENOBUFS));
        }
        let own = udp.local_addr()?;
        let local = source(own, peer)?;
        if !self.qps.iter().any(|qp| qp.local.ip() == local) {
            let qp = DatagramQp::new((local, own.port()).into(), &self.settings, manager)?;
            self.qps.push(qp);
        }
        self.peers.insert(peer, Peer { local, target: None });
        Ok(())
    }

    /// Sends a datagram to a known peer; none if all slots of the queue pair are in flight.
    fn send(
        &mut self,
        udp: &UdpSocket,
        to: SocketAddr,
        parts: &[&[u8]],
    ) -> Option<Result<usize, Errno>> {
        let len = parts.iter().map(|part| part.len()).sum();
        let mut send = || {
            let peer = self.peers.get(&to).ok_or(Errno(libc::EDESTADDRREQ))?;
            let qp = self.qps.iter_mut().find(|qp| qp.local.ip() == peer.local);
            let qp = qp.ok_or(Errno(libc::EDESTADDRREQ))?;
            if len > qp.max_payload() {
                return Err(Errno(libc::EMSGSIZE));
            }
            match &peer.target {
                Some(target) => qp.send(target, parts),
                None => send_udp(udp, qp, to, Operation::Data, parts).map(|()| true),
            }
        };
        match send() {
            Ok(true) => Some(Ok(len)),
            Ok(false) => None,
            Err(errno) => Some(Err(errno)),
        }
    }

    /// Handles a datagram that arrived through the kernel.
    fn on_udp(
        &mut self,
        udp: &UdpSocket,
        from: SocketAddr,
        bytes: &[u8],
        manager: ManagerFn,
    ) -> Result<(), Errno> {
        let Some((UdpHeader { operation, qpn, .. }, datagram)) = UdpHeader::parse(bytes) else {
            return Ok(());
        };
        self.add_peer(udp, from, manager)?;
        let peer = self.peers.get_mut(&from).ok_or(Errno::INVALID)?;
        let qp = self.qps.iter().find(|qp| qp.local.ip() == peer.local);
        let qp = qp.ok_or(Errno::INVALID)?;
        if operation == Operation::Data {
            send_udp(udp, qp, from, Operation::Control, &[])?;
        }
        let qpn = Qpn::new(qpn);
        if peer.target.as_ref().is_none_or(|target| target.qpn != qpn) {
            peer.target = Some(qp.target(from.ip(), qpn)?);
        }
        if operation == Operation::Data {
            enqueue(&mut self.arrived, self.settings.recv_depth.into(), from, datagram);
        }
        Ok(())
    }
}

/// Appends a datagram to those that the program has not received; drops it if there are `limit`.
fn enqueue(
    arrived: &mut VecDeque<(SocketAddr, Vec<u8>)>,
    limit: usize,
    from: SocketAddr,
    datagram: &[u8],
) {
    if arrived.len() < limit {
        arrived.push_back((from, datagram.to_vec()));
    }
}

/// Sends a datagram through the kernel.
fn send_udp(
    udp: &UdpSocket,
    qp: &DatagramQp,
    to: SocketAddr,
    operation: Operation,
    parts: &[&[u8]],
) -> Result<(), Errno> {
    let header = UdpHeader { operation, qpn: qp.qpn.get(), addr: qp.local.ip() };
    let mut bytes = [0; UdpHeader::MOST];
    let len = header.emit(&mut bytes);
    let bytes = [&[&bytes[..len]], parts].concat().concat();
    udp.send_to(&bytes, to)?;
    Ok(())
}

/// The address of this host from which datagrams to a peer leave: the socket's own, or the one
/// that the kernel's routing table selects.
fn source(own: SocketAddr, peer: SocketAddr) -> io::Result<IpAddr> {
    if !own.ip().is_unspecified() {
        return Ok(own.ip());
    }
    let asked = UdpSocket::bind(SocketAddr::new(own.ip(), 0))?;
    asked.connect(peer)?;
    Ok(asked.local_addr()?.ip())
}

impl Datagram {
    /// A new socket.
    pub(crate) fn new(settings: Settings, manager: ManagerFn) -> Result<Self, Errno> {
        let domain = if settings.is_v6 { Domain::IPV6 } else { Domain::IPV4 };
        let udp = socket2::Socket::new(domain, Type::DGRAM.nonblocking(), None)?.into();
        let core = Core {
            peers: BTreeMap::new(),
            qps: Vec::new(),
            connected: None,
            arrived: VecDeque::new(),
            is_served: false,
            settings,
        };
        Ok(Self { core: Mutex::new(core), udp, waiters: Waiters::default(), manager })
    }

    /// The descriptor that the program uses.
    pub(crate) fn number(&self) -> c_int {
        self.udp.as_raw_fd()
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes completions, and calls `f` with the state after them.
    fn update<R>(&self, f: impl FnOnce(&mut Core) -> R) -> R {
        let mut core = self.lock();
        let any = core.progress();
        let result = f(&mut core);
        drop(core);
        if any {
            self.waiters.notify_others();
        }
        result
    }

    fn blocks(&self, flags: c_int) -> bool {
        !self.lock().settings.is_nonblocking() && flags & libc::MSG_DONTWAIT == 0
    }

    /// Reads or changes the settings.
    pub(crate) fn settings<R>(&self, f: impl FnOnce(&mut Settings) -> R) -> R {
        f(&mut self.lock().settings)
    }

    /// Gives the socket an address.
    pub(crate) fn bind(self: &Arc<Self>, addr: SocketAddr) -> Result<(), Errno> {
        SockRef::from(&self.udp).bind(&addr.into())?;
        self.start()
    }

    /// Has the service take datagrams that arrive through the kernel.
    fn start(self: &Arc<Self>) -> Result<(), Errno> {
        if std::mem::replace(&mut self.lock().is_served, true) {
            return Ok(());
        }
        service::serve(Arc::<Self>::downgrade(self))
    }

    /// Sets the peer to which datagrams without a destination go.
    pub(crate) fn connect(self: &Arc<Self>, peer: SocketAddr) -> Result<(), Errno> {
        self.udp.connect(peer)?;
        self.start()?;
        self.update(|core| {
            core.connected = Some(peer);
            core.add_peer(&self.udp, peer, self.manager)
        })
    }

    /// Sends a datagram to a peer, or to the one that the socket is connected to.
    pub(crate) fn send(
        self: &Arc<Self>,
        parts: &[&[u8]],
        to: Option<SocketAddr>,
        flags: c_int,
    ) -> Result<usize, Errno> {
        self.start()?;
        let to = to.or(self.lock().connected).ok_or(Errno(libc::EDESTADDRREQ))?;
        wakeup::wait_until(self.as_ref(), self.blocks(flags), None, || {
            self.update(|core| match core.add_peer(&self.udp, to, self.manager) {
                Ok(()) => core.send(&self.udp, to, parts),
                Err(errno) => Some(Err(errno)),
            })
        })
    }

    /// Receives a datagram, cut to the length of `parts`; returns its length and its sender.
    pub(crate) fn receive(
        self: &Arc<Self>,
        parts: &mut [&mut [u8]],
        flags: c_int,
    ) -> Result<(usize, SocketAddr), Errno> {
        self.start()?;
        let peeks = flags & libc::MSG_PEEK != 0;
        let (from, bytes) = wakeup::wait_until(self.as_ref(), self.blocks(flags), None, || {
            self.update(|core| match peeks {
                true => core.arrived.front().cloned().map(Ok),
                false => core.arrived.pop_front().map(Ok),
            })
        })?;
        let mut rest = &bytes[..];
        for part in parts {
            let (now, later) = rest.split_at(part.len().min(rest.len()));
            part[..now.len()].copy_from_slice(now);
            rest = later;
        }
        Ok((bytes.len() - rest.len(), from))
    }

    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        self.udp.local_addr().ok()
    }

    pub(crate) fn peer_addr(&self) -> Option<SocketAddr> {
        self.lock().connected
    }

    /// The events that `poll` reports.
    pub(crate) fn events(&self, wanted: libc::c_short) -> libc::c_short {
        self.update(|core| {
            let input = if core.arrived.is_empty() { 0 } else { libc::POLLIN };
            let has_room = core.qps.iter().all(DatagramQp::has_room);
            let output = if has_room { libc::POLLOUT } else { 0 };
            (input | output) & wanted
        })
    }

    /// Sets an option. The UDP socket keeps those of the kernel.
    pub(crate) fn set_option(&self, level: c_int, name: c_int, value: &[u8]) -> Result<(), Errno> {
        let integer = || options::integer(value);
        match (level, name) {
            (SOL_RDMA, _) => {
                return options::set_rdma(&mut self.lock().settings, name, integer()?);
            }
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => {
                self.lock().settings.set_recv_bytes(integer()?.cast_unsigned());
            }
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => {
                self.lock().settings.set_send_bytes(integer()?.cast_unsigned());
            }
            _ => {}
        }
        let len = libc::socklen_t::try_from(value.len()).map_err(|_| Errno::INVALID)?;
        let (fd, value) = (self.number(), value.as_ptr().cast());
        // SAFETY: setsockopt(2): the kernel reads `len` bytes at `value`, which is a slice of that
        // length, and the descriptor is open as long as `self.udp` exists.
        match unsafe { libc::setsockopt(fd, level, name, value, len) } {
            0 => Ok(()),
            _ => Err(Errno::last()),
        }
    }

    /// Copies the value of an option to `room`; returns its length.
    pub(crate) fn option(
        &self,
        level: c_int,
        name: c_int,
        room: &mut [u8],
    ) -> Result<usize, Errno> {
        if level == SOL_RDMA {
            return Ok(options::rdma(&self.lock().settings, name)?.copy_to(room));
        }
        let mut len = libc::socklen_t::try_from(room.len()).map_err(|_| Errno::INVALID)?;
        let (fd, value) = (self.number(), room.as_mut_ptr().cast());
        // SAFETY: getsockopt(2): the kernel writes at most `len` bytes to `value`, which is an
        // exclusive slice of that length, and the length to a local variable.
        match unsafe { libc::getsockopt(fd, level, name, value, &raw mut len) } {
            0 => Ok(len as usize),
            _ => Err(Errno::last()),
        }
    }

    /// Waits until all datagrams have been sent. The program does not use the socket any more.
    pub(crate) fn close(&self) {
        let deadline = Some(wakeup::now() + LINGER);
        // Datagrams that have not been sent by then are lost.
        let _ = wakeup::wait_until(self, true, deadline, || {
            let is_done = |qp: &DatagramQp| qp.is_done() || qp.is_cut_off();
            self.update(|core| core.qps.iter().all(is_done).then_some(Ok(())))
        });
    }
}

impl Waitable for Datagram {
    fn watch(&self, wakeup: &Arc<Wakeup>) -> PollSet {
        wakeup.clear();
        self.waiters.add(wakeup);
        let core = self.lock();
        core.qps.iter().for_each(DatagramQp::arm);
        PollSet::new(-1, core.qps.iter().map(|qp| qp.channel().clone()))
    }

    fn unwatch(&self, wakeup: &Arc<Wakeup>) {
        self.waiters.remove(wakeup);
    }

    fn probe(&self) {}
}

impl Served for Datagram {
    fn serve(&self) -> Option<c_int> {
        let mut bytes = [0; MAX_LEN];
        let mut any = false;
        while let Ok((len, from)) = self.udp.recv_from(&mut bytes) {
            any = true;
            // A datagram that cannot be handled is lost, as datagrams may be.
            let _ = self.lock().on_udp(&self.udp, from, &bytes[..len], self.manager);
        }
        if any {
            self.waiters.notify_others();
        }
        Some(self.number())
    }
}
