//! Listeners: connections that peers open.

use std::io;
use std::net::SocketAddr;

use feroce_train::Instant;
use nix::errno::Errno;
use nix::sys::epoll::{EpollEvent, EpollFlags};
use socket2::Socket;

use super::socket::{address_of, give_patience, mss_of, socket_for};
use super::stream::{Phase, Stream};
use super::{StreamId, TcpEvent, TcpLink, TcpListenId};

/// How long a listener waits before it accepts again, if there was no descriptor or no memory for a
/// connection. The epoll instance reports the connection all the time, and a driver that waits for
/// events would not sleep.
const ACCEPT_AGAIN_NS: u64 = 50_000_000;

/// Connections that the kernel keeps until they are accepted, at least.
const MIN_BACKLOG: i32 = 128;

/// A socket that accepts connections.
#[derive(Debug)]
pub(super) struct Listener {
    socket: Socket,
    /// The caller takes connections.
    accepts: bool,
    /// There was no descriptor or no memory for the last connection.
    pub(super) rests: bool,
}

impl TcpLink {
    /// Listens at an address, and returns it with the port that the kernel chose if that was 0.
    pub fn listen(
        &mut self,
        address: SocketAddr,
        backlog: u32,
    ) -> io::Result<(TcpListenId, SocketAddr)> {
        let socket = socket_for(address)?;
        // A server that is started again need not wait for the connections of its predecessor.
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.bind(&address.into())?;
        socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX).max(MIN_BACKLOG))?;
        let local = address_of(&socket.local_addr()?)?;
        let id = self.number();
        self.epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, id))?;
        self.listeners.insert(id, Listener { socket, accepts: true, rests: false });
        Ok((TcpListenId(id), local))
    }

    /// Takes further connections, or leaves them to the kernel.
    pub fn set_accepting(&mut self, listener: TcpListenId, accepts: bool) {
        if let Some(listening) = self.listeners.get_mut(&listener.0) {
            listening.accepts = accepts;
            self.watch_listener(listener.0);
        }
    }

    /// Tells the epoll instance whether to report connections.
    pub(super) fn watch_listener(&self, id: u64) {
        let Some(Listener { socket, accepts, rests }) = self.listeners.get(&id) else { return };
        let is_watched = *accepts && !rests;
        let flags = if is_watched { EpollFlags::EPOLLIN } else { EpollFlags::empty() };
        // It fails for lack of memory only; a connection that is reported all the same is left.
        let _ = self.epoll.modify(socket, &mut EpollEvent::new(flags, id));
    }

    /// No longer listens.
    pub fn unlisten(&mut self, listener: TcpListenId) {
        if let Some(Listener { socket, .. }) = self.listeners.remove(&listener.0) {
            // Closing is not enough while a forked process has the socket open.
            let _ = self.epoll.delete(&socket);
            self.again.remove(listener.0);
        }
    }

    /// Accepts one connection: the others wait until the caller has had a look at it.
    pub(super) fn accept(
        &mut self,
        now: Instant,
        id: u64,
        sink: &mut dyn FnMut(TcpEvent<'_>),
    ) -> usize {
        let Some(listener) = self.listeners.get_mut(&id).filter(|listener| listener.accepts) else {
            return 0;
        };
        let (socket, peer) = match listener.socket.accept() {
            Ok(accepted) => accepted,
            Err(error) => {
                let errno = error.raw_os_error().map(Errno::from_raw);
                let lacks = [Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM, Errno::ENOBUFS];
                if errno.is_some_and(|errno| lacks.contains(&errno)) {
                    listener.rests = true;
                    self.counters.rested += 1;
                    self.again.set(id, now.plus_nanos(ACCEPT_AGAIN_NS));
                    self.watch_listener(id);
                }
                // Other errors concern one connection, which is gone.
                return 0;
            }
        };
        self.has_more = true;
        let made = || -> io::Result<(SocketAddr, SocketAddr, usize)> {
            socket.set_nonblocking(true)?;
            socket.set_tcp_nodelay(true)?;
            self.patience.map_or(Ok(()), |patience| give_patience(&socket, patience))?;
            Ok((address_of(&socket.local_addr()?)?, address_of(&peer)?, mss_of(&socket)))
        };
        let Ok((local, peer, mss)) = made() else { return 0 };
        let number = self.number();
        let stream = Stream::new(socket, Phase::Open);
        let event = EpollEvent::new(stream.interest(), number);
        if self.epoll.add(stream.socket(), event).is_err() {
            return 0;
        }
        self.streams.insert(number, stream);
        self.counters.accepted += 1;
        let (listener, stream) = (TcpListenId(id), StreamId(number));
        sink(TcpEvent::Accepted { listener, stream, local, peer, mss });
        1
    }
}
