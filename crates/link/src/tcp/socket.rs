//! Sockets of streams.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};

/// The kernel counts the times of probes in seconds.
const LEAST_KEEPALIVE: Duration = Duration::from_secs(1);

pub(super) fn socket_for(address: SocketAddr) -> io::Result<Socket> {
    // socket2 makes sockets that close on exec.
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Has the kernel end a connection when the peer's host has not answered for so long: neither bytes
/// that were sent nor, if none were, the probes that begin after half of that.
pub(super) fn give_patience(socket: &Socket, patience: Duration) -> io::Result<()> {
    let [idle, interval] = [patience / 2, patience / 8].map(|time| time.max(LEAST_KEEPALIVE));
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(idle).with_interval(interval))?;
    socket.set_tcp_user_timeout(Some(patience))
}

pub(super) fn address_of(address: &SockAddr) -> io::Result<SocketAddr> {
    address.as_socket().ok_or_else(|| ErrorKind::AddrNotAvailable.into())
}

/// Bytes that one packet of a connection carries; the least that IPv4 hosts take if that is
/// unknown.
pub(super) fn mss_of(socket: &Socket) -> usize {
    socket.tcp_mss().map_or(536, |mss| mss as usize)
}
