//! Sockets of streams.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

pub(super) fn socket_for(address: SocketAddr) -> io::Result<Socket> {
    // socket2 makes sockets that close on exec.
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

pub(super) fn address_of(address: &SockAddr) -> io::Result<SocketAddr> {
    address.as_socket().ok_or_else(|| ErrorKind::AddrNotAvailable.into())
}

/// Bytes that one packet of a connection carries; the least that IPv4 hosts take if that is
/// unknown.
pub(super) fn mss_of(socket: &Socket) -> usize {
    socket.tcp_mss().map_or(536, |mss| mss as usize)
}
