//! Sockets of either kind, and their descriptors.

use core::ffi::{c_int, c_void};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};

use feroce::Errno;

use crate::datagram::Datagram;
use crate::settings::Settings;
use crate::stream::Stream;
use crate::wakeup::{PollSet, Waitable, Wakeup};
use crate::{ManagerFn, options, service};

/// Addresses of InfiniBand itself.
const AF_IB: c_int = 27;

/// A socket. Clones are the same socket.
#[derive(Clone, Debug)]
pub struct Socket(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Stream(Arc<Stream>),
    Datagram(Arc<Datagram>),
}

/// All sockets of the program, by descriptor.
static SOCKETS: RwLock<BTreeMap<c_int, Socket>> = RwLock::new(BTreeMap::new());

/// The socket with this descriptor, or `EBADF`.
pub fn find(fd: c_int) -> Result<Socket, Errno> {
    let sockets = SOCKETS.read().unwrap_or_else(PoisonError::into_inner);
    sockets.get(&fd).cloned().ok_or(Errno(libc::EBADF))
}

/// Closes a socket. The kernel does not reuse the descriptor while a thread is in a call on it.
pub(crate) fn close(fd: c_int) -> Result<(), Errno> {
    let removed = SOCKETS.write().unwrap_or_else(PoisonError::into_inner).remove(&fd);
    let socket = removed.ok_or(Errno(libc::EBADF))?;
    match &socket.0 {
        Kind::Stream(stream) => stream.close(),
        Kind::Datagram(datagram) => datagram.close(),
    }
    drop(socket);
    service::wake();
    Ok(())
}

impl Socket {
    /// Makes a socket, as socket(2) does; returns its descriptor.
    pub fn open(
        domain: c_int,
        kind: c_int,
        protocol: c_int,
        manager: ManagerFn,
    ) -> Result<c_int, Errno> {
        let flags = kind & (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
        let is_stream = match (kind & !flags, protocol) {
            (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => true,
            // librspreload leaves a datagram socket that is refused here to the kernel. The UDP
            // sockets that the adapter itself opens have flags, so they do not come back here.
            (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) if flags == 0 => false,
            _ => return Err(Errno::UNSUPPORTED),
        };
        let is_known = match domain {
            libc::AF_INET | libc::AF_INET6 => true,
            AF_IB => is_stream,
            _ => false,
        };
        if !is_known {
            return Err(Errno::UNSUPPORTED);
        }
        let mut settings = Settings::new();
        settings.is_v6 = domain != libc::AF_INET;
        settings.is_native = domain == AF_IB;
        if flags & libc::SOCK_NONBLOCK != 0 {
            settings.status_flags |= libc::O_NONBLOCK;
        }
        if flags & libc::SOCK_CLOEXEC != 0 {
            settings.descriptor_flags |= libc::FD_CLOEXEC;
        }
        Self::insert(match is_stream {
            true => Kind::Stream(Arc::new(Stream::new(settings, manager)?)),
            false => Kind::Datagram(Arc::new(Datagram::new(settings, manager)?)),
        })
    }

    fn insert(kind: Kind) -> Result<c_int, Errno> {
        let fd = match &kind {
            Kind::Stream(stream) => stream.number()?,
            Kind::Datagram(datagram) => datagram.number(),
        };
        SOCKETS.write().unwrap_or_else(PoisonError::into_inner).insert(fd, Self(kind));
        Ok(fd)
    }

    /// The stream; calls that only streams have fail on datagram sockets.
    fn stream(&self) -> Result<&Arc<Stream>, Errno> {
        match &self.0 {
            Kind::Stream(stream) => Ok(stream),
            Kind::Datagram(_) => Err(Errno::UNSUPPORTED),
        }
    }

    /// Reads or changes the settings.
    fn settings<R>(&self, f: impl FnOnce(&mut Settings) -> R) -> R {
        match &self.0 {
            Kind::Stream(stream) => stream.settings(f),
            Kind::Datagram(datagram) => datagram.settings(f),
        }
    }

    /// Whether its addresses are those of InfiniBand, of which an address here is the GID and the
    /// port.
    pub fn is_native(&self) -> bool {
        self.settings(|settings| settings.is_native)
    }

    /// Gives the socket an address, as bind(2) does.
    pub fn bind(&self, addr: SocketAddr) -> Result<(), Errno> {
        match &self.0 {
            Kind::Stream(stream) => stream.bind(addr),
            Kind::Datagram(datagram) => datagram.bind(addr),
        }
    }

    /// Accepts connections from now on, as listen(2) does.
    pub fn listen(&self, backlog: u32) -> Result<(), Errno> {
        self.stream()?.listen(backlog)
    }

    /// Takes a connection, as accept(2) does; returns its descriptor and the address of the peer.
    pub fn accept(&self) -> Result<(c_int, Option<SocketAddr>), Errno> {
        let accepted = self.stream()?.accept()?;
        let peer = accepted.peer_addr();
        Ok((Self::insert(Kind::Stream(accepted))?, peer))
    }

    /// Connects to a peer, as connect(2) does.
    pub fn connect(&self, peer: SocketAddr) -> Result<(), Errno> {
        match &self.0 {
            Kind::Stream(stream) => stream.connect(peer),
            Kind::Datagram(datagram) => datagram.connect(peer),
        }
    }

    /// Ends one direction of a stream or both, as shutdown(2) does.
    pub fn shut_down(&self, how: c_int) -> Result<(), Errno> {
        self.stream()?.shut_down(how)
    }

    /// The address of the socket; the unspecified address if it has none.
    pub fn local_addr(&self) -> SocketAddr {
        let local = match &self.0 {
            Kind::Stream(stream) => stream.local_addr(),
            Kind::Datagram(datagram) => datagram.local_addr(),
        };
        local.unwrap_or_else(|| match self.settings(|settings| settings.is_v6) {
            true => (Ipv6Addr::UNSPECIFIED, 0).into(),
            false => (Ipv4Addr::UNSPECIFIED, 0).into(),
        })
    }

    /// The address of the peer, or `ENOTCONN`.
    pub fn peer_addr(&self) -> Result<SocketAddr, Errno> {
        let peer = match &self.0 {
            Kind::Stream(stream) => stream.peer_addr(),
            Kind::Datagram(datagram) => datagram.peer_addr(),
        };
        peer.ok_or(Errno(libc::ENOTCONN))
    }

    /// Sends the parts as one message, as sendmsg(2) does; returns how many bytes were sent.
    pub fn send(
        &self,
        parts: &[&[u8]],
        flags: c_int,
        to: Option<SocketAddr>,
    ) -> Result<usize, Errno> {
        match &self.0 {
            Kind::Datagram(datagram) => datagram.send(parts, to, flags),
            Kind::Stream(_) if to.is_some() => Err(Errno(libc::EISCONN)),
            Kind::Stream(stream) => stream.send(parts, flags),
        }
    }

    /// Fills the parts, as recvmsg(2) does; returns how many bytes were received, and from which
    /// peer.
    pub fn receive(
        &self,
        parts: &mut [&mut [u8]],
        flags: c_int,
    ) -> Result<(usize, Option<SocketAddr>), Errno> {
        match &self.0 {
            Kind::Datagram(datagram) => {
                datagram.receive(parts, flags).map(|(len, from)| (len, Some(from)))
            }
            Kind::Stream(stream) => Ok((stream.receive(parts, flags)?, stream.peer_addr())),
        }
    }

    /// Sets an option, as setsockopt(2) does.
    pub fn set_option(&self, level: c_int, name: c_int, value: &[u8]) -> Result<(), Errno> {
        match &self.0 {
            Kind::Stream(stream) => stream.set_option(level, name, options::integer(value)?),
            Kind::Datagram(datagram) => datagram.set_option(level, name, value),
        }
    }

    /// Copies the value of an option to `room`, as getsockopt(2) does; returns its length.
    pub fn option(&self, level: c_int, name: c_int, room: &mut [u8]) -> Result<usize, Errno> {
        match &self.0 {
            Kind::Stream(stream) => Ok(stream.option(level, name)?.copy_to(room)),
            Kind::Datagram(datagram) => datagram.option(level, name, room),
        }
    }

    /// Reads or sets flags, as fcntl(2) does.
    pub fn control(&self, command: c_int, value: c_int) -> Result<c_int, Errno> {
        self.settings(|settings| match command {
            libc::F_GETFL => Ok(libc::O_RDWR | settings.status_flags),
            libc::F_SETFL => {
                settings.status_flags = value & (libc::O_NONBLOCK | libc::O_ASYNC);
                Ok(0)
            }
            libc::F_GETFD => Ok(settings.descriptor_flags),
            libc::F_SETFD => {
                settings.descriptor_flags = value;
                Ok(0)
            }
            _ => Err(Errno::UNSUPPORTED),
        })
    }

    /// Maps memory for the peer, as riomap(3) does: with `PROT_WRITE` the peer may write to it,
    /// under `offset` or, if that is -1, under its address. Returns the offset.
    ///
    /// # Safety
    /// `buf` points to `len` bytes that stay mapped, and that the program accesses only as shared
    /// memory, until it unmaps them or closes the socket.
    pub unsafe fn map(
        &self,
        buf: *mut c_void,
        len: usize,
        prot: c_int,
        offset: i64,
    ) -> Result<i64, Errno> {
        // SAFETY: the contract of `Stream::map` is that of this function.
        unsafe { self.stream()?.map(buf, len, prot, offset) }
    }

    /// Ends a mapping, as riounmap(3) does.
    pub fn unmap(&self, addr: u64, len: usize) -> Result<(), Errno> {
        self.stream()?.unmap(addr, len)
    }

    /// Writes into memory that the peer has mapped, as riowrite(3) does; returns how many bytes.
    pub fn write_mapped(&self, bytes: &[u8], offset: u64, flags: c_int) -> Result<usize, Errno> {
        self.stream()?.write_mapped(bytes, offset, flags)
    }

    /// The events that `poll` reports.
    pub(crate) fn events(&self, wanted: libc::c_short) -> libc::c_short {
        match &self.0 {
            Kind::Stream(stream) => stream.events(wanted),
            Kind::Datagram(datagram) => datagram.events(wanted),
        }
    }
}

impl Waitable for Socket {
    fn watch(&self, wakeup: &Arc<Wakeup>) -> PollSet {
        match &self.0 {
            Kind::Stream(stream) => stream.watch(wakeup),
            Kind::Datagram(datagram) => datagram.watch(wakeup),
        }
    }

    fn unwatch(&self, wakeup: &Arc<Wakeup>) {
        match &self.0 {
            Kind::Stream(stream) => stream.unwatch(wakeup),
            Kind::Datagram(datagram) => datagram.unwatch(wakeup),
        }
    }

    fn probe(&self) {
        match &self.0 {
            Kind::Stream(stream) => stream.probe(),
            Kind::Datagram(datagram) => datagram.probe(),
        }
    }
}
