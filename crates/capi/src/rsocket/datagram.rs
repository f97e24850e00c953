//! Datagram sockets.
//!
//! Each has a UDP socket of the kernel, whose address is its own, and a [`Way`] for every address
//! of this host that its datagrams leave from. The first datagram to a peer goes through the
//! kernel; its answer says which queue pair the peer has, and the rest goes there.

use core::ffi::c_int;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use feroce::Qpn;

use super::bell::{self, Bell, Waitable, Waiters, Watch};
use super::protocol::{Operation, UdpHeader};
use super::service;
use super::settings::Settings;
use super::way::{MOST, Target, Way};
use crate::errno::Errno;

/// Peers that are remembered; anybody can pretend to be one.
const PEERS: usize = 4096;

/// How long a socket that is closed waits until all that was sent is on its way.
const LINGER: Duration = Duration::from_secs(1);

/// A socket that ours has to do with.
#[derive(Debug)]
struct Peer {
    /// Our address on the way there.
    local: IpAddr,
    /// Its queue pair, once it is known.
    target: Option<Target>,
}

/// What the lock of a socket protects. Those who know a way go before it.
#[derive(Debug)]
pub(crate) struct Core {
    peers: BTreeMap<SocketAddr, Peer>,
    ways: Vec<Way>,
    connected: Option<SocketAddr>,
    arrived: VecDeque<(SocketAddr, Vec<u8>)>,
    is_served: bool,
    pub(super) settings: Settings,
}

/// A datagram socket.
#[derive(Debug)]
pub(crate) struct Datagram {
    core: Mutex<Core>,
    udp: UdpSocket,
    waiters: Waiters,
}

fn fault(e: &io::Error) -> Errno {
    Errno(e.raw_os_error().unwrap_or(libc::EIO))
}

impl Core {
    fn progress(&mut self) -> bool {
        let (arrived, ways) = (&mut self.arrived, &mut self.ways);
        let most = usize::from(self.settings.recv_depth);
        let mut any = false;
        for way in ways.iter_mut().filter(|way| !way.is_cut_off()) {
            any |= way.progress(|from, bytes| keep(arrived, most, from, bytes));
        }
        any
    }

    fn way(&mut self, local: IpAddr) -> Option<&mut Way> {
        self.ways.iter_mut().find(|way| way.local.ip() == local)
    }

    /// Makes sure that there is a way to a peer.
    fn meet(&mut self, udp: &UdpSocket, peer: SocketAddr) -> Result<(), Errno> {
        if self.peers.contains_key(&peer) {
            return Ok(());
        }
        if self.peers.len() >= PEERS {
            return Err(Errno(libc::ENOBUFS));
        }
        let own = udp.local_addr().map_err(|e| fault(&e))?;
        let local = source(own, peer).map_err(|e| fault(&e))?;
        if self.way(local).is_none() {
            let way = Way::new((local, own.port()).into(), &self.settings)?;
            self.ways.push(way);
        }
        self.peers.insert(peer, Peer { local, target: None });
        Ok(())
    }

    /// Sends a datagram; none if there is no room for it now.
    fn send(
        &mut self,
        udp: &UdpSocket,
        to: SocketAddr,
        parts: &[&[u8]],
    ) -> Option<Result<usize, Errno>> {
        let len = parts.iter().map(|part| part.len()).sum();
        let sent = self.meet(udp, to).and_then(|()| {
            let peer = self.peers.get(&to).ok_or(Errno(libc::EDESTADDRREQ))?;
            let way = self.ways.iter_mut().find(|way| way.local.ip() == peer.local);
            let way = way.ok_or(Errno(libc::EDESTADDRREQ))?;
            if len > way.most() {
                return Err(Errno(libc::EMSGSIZE));
            }
            match &peer.target {
                Some(target) => way.send(target, parts),
                None => say(udp, way, to, Operation::Data, parts).map(|()| true),
            }
        });
        match sent {
            Ok(true) => Some(Ok(len)),
            Ok(false) => None,
            Err(errno) => Some(Err(errno)),
        }
    }

    /// A datagram has come through the kernel.
    fn on_udp(&mut self, udp: &UdpSocket, from: SocketAddr, bytes: &[u8]) -> Result<(), Errno> {
        let Some((UdpHeader { operation, qpn, .. }, datagram)) = UdpHeader::parse(bytes) else {
            return Ok(());
        };
        self.meet(udp, from)?;
        let peer = self.peers.get_mut(&from).ok_or(Errno::INVALID)?;
        let way = self.ways.iter().find(|way| way.local.ip() == peer.local);
        let way = way.ok_or(Errno::INVALID)?;
        if operation == Operation::Data {
            say(udp, way, from, Operation::Control, &[])?;
        }
        let qpn = Qpn::new(qpn);
        if peer.target.as_ref().is_none_or(|target| target.qpn != qpn) {
            peer.target = Some(way.target(from.ip(), qpn)?);
        }
        if operation == Operation::Data {
            keep(&mut self.arrived, self.settings.recv_depth.into(), from, datagram);
        }
        Ok(())
    }
}

/// Keeps a datagram for the program, if there is room for it.
fn keep(
    arrived: &mut VecDeque<(SocketAddr, Vec<u8>)>,
    most: usize,
    from: SocketAddr,
    datagram: &[u8],
) {
    if arrived.len() < most {
        arrived.push_back((from, datagram.to_vec()));
    }
}

/// Sends a datagram through the kernel.
fn say(
    udp: &UdpSocket,
    way: &Way,
    to: SocketAddr,
    operation: Operation,
    parts: &[&[u8]],
) -> Result<(), Errno> {
    let header = UdpHeader { operation, qpn: way.qpn.get(), addr: way.local.ip() };
    let mut bytes = [0; UdpHeader::MOST];
    let len = header.emit(&mut bytes);
    let bytes = [&[&bytes[..len]], parts].concat().concat();
    udp.send_to(&bytes, to).map(drop).map_err(|e| fault(&e))
}

/// The address from which the kernel would send to a peer; our own, if we have one.
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
    pub(crate) fn new(settings: Settings) -> Result<Self, Errno> {
        let domain = if settings.is_v6 { libc::AF_INET6 } else { libc::AF_INET };
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no preconditions.
        let fd = unsafe { libc::socket(domain, kind, 0) };
        if fd < 0 {
            return Err(Errno::last());
        }
        // SAFETY: just made, and nobody else has it.
        let udp = unsafe { UdpSocket::from_raw_fd(fd) };
        let core = Core {
            peers: BTreeMap::new(),
            ways: Vec::new(),
            connected: None,
            arrived: VecDeque::new(),
            is_served: false,
            settings,
        };
        Ok(Self { core: Mutex::new(core), udp, waiters: Waiters::default() })
    }

    /// The number under which the program knows it.
    pub(crate) fn number(&self) -> c_int {
        self.udp.as_raw_fd()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look<R>(&self, f: impl FnOnce(&mut Core) -> R) -> R {
        let mut core = self.lock();
        let any = core.progress();
        let result = f(&mut core);
        drop(core);
        if any {
            self.waiters.tell_others();
        }
        result
    }

    fn blocks(&self, flags: c_int) -> bool {
        !self.lock().settings.is_nonblocking() && flags & libc::MSG_DONTWAIT == 0
    }

    /// From now on datagrams that come through the kernel are taken.
    pub(crate) fn start(self: &Arc<Self>) -> Result<(), Errno> {
        if std::mem::replace(&mut self.lock().is_served, true) {
            return Ok(());
        }
        service::serve_datagrams(self)
    }

    /// Datagrams go to this peer, and come from it only.
    pub(crate) fn connect(self: &Arc<Self>, peer: SocketAddr) -> Result<(), Errno> {
        self.udp.connect(peer).map_err(|e| fault(&e))?;
        self.start()?;
        self.look(|core| {
            core.connected = Some(peer);
            core.meet(&self.udp, peer)
        })
    }

    pub(crate) fn send(
        self: &Arc<Self>,
        parts: &[&[u8]],
        to: Option<SocketAddr>,
        flags: c_int,
    ) -> Result<usize, Errno> {
        self.start()?;
        let to = to.or(self.lock().connected).ok_or(Errno(libc::EDESTADDRREQ))?;
        bell::until(self.as_ref(), self.blocks(flags), None, || {
            self.look(|core| core.send(&self.udp, to, parts))
        })
    }

    /// Takes a datagram, as much of it as there is room for, and says who sent it.
    pub(crate) fn receive(
        self: &Arc<Self>,
        parts: &mut [&mut [u8]],
        flags: c_int,
    ) -> Result<(usize, SocketAddr), Errno> {
        self.start()?;
        let stays = flags & libc::MSG_PEEK != 0;
        let (from, bytes) = bell::until(self.as_ref(), self.blocks(flags), None, || {
            self.look(|core| match stays {
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

    /// Takes what has come through the kernel.
    pub(super) fn serve(&self) {
        let mut bytes = [0; MOST];
        let mut any = false;
        while let Ok((len, from)) = self.udp.recv_from(&mut bytes) {
            any = true;
            // What cannot be answered is lost, as datagrams may be.
            let _ = self.lock().on_udp(&self.udp, from, &bytes[..len]);
        }
        if any {
            self.waiters.tell_others();
        }
    }

    pub(crate) fn local(&self) -> Option<SocketAddr> {
        self.udp.local_addr().ok()
    }

    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        self.lock().connected
    }

    /// What `poll` says of it.
    pub(crate) fn events(&self, wanted: libc::c_short) -> libc::c_short {
        self.look(|core| {
            let input = if core.arrived.is_empty() { 0 } else { libc::POLLIN };
            let has_room = core.ways.iter().all(Way::has_room);
            let output = if has_room { libc::POLLOUT } else { 0 };
            (input | output) & wanted
        })
    }

    /// The program is done with it.
    pub(crate) fn close(&self) {
        let deadline = Some(bell::now() + LINGER);
        // What is not on its way by then is lost.
        let _ = bell::until(self, true, deadline, || {
            let is_done = |way: &Way| way.is_done() || way.is_cut_off();
            self.look(|core| core.ways.iter().all(is_done).then_some(Ok(())))
        });
    }
}

impl Waitable for Datagram {
    fn watch(&self, bell: &Arc<Bell>) -> Watch {
        bell.silence();
        self.waiters.add(bell);
        let core = self.lock();
        core.ways.iter().for_each(Way::arm);
        Watch::at(-1, core.ways.iter().map(|way| way.channel().clone()))
    }

    fn unwatch(&self, bell: &Arc<Bell>) {
        self.waiters.remove(bell);
    }

    fn probe(&self) {}
}
