//! A port that was chosen and is not listened on yet.

use std::io;
use std::net::SocketAddr;

use socket2::Socket;

use super::{address_of, socket_for};

/// A TCP port that the kernel has chosen and gives to no other socket that leaves the choice to it.
/// A listener of [`TcpLink`](super::TcpLink) may take it.
#[derive(Debug)]
pub struct ReservedPort {
    #[expect(dead_code, reason = "holds the port until it is dropped")]
    socket: Socket,
}

impl ReservedPort {
    /// Reserves a free port at an address.
    pub fn at(mut address: SocketAddr) -> io::Result<(Self, u16)> {
        address.set_port(0);
        let socket = socket_for(address)?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.bind(&address.into())?;
        // Now, so that the port was free; a listener has the option as well, and may share it.
        socket.set_reuse_address(true)?;
        let port = address_of(&socket.local_addr()?)?.port();
        Ok((Self { socket }, port))
    }
}
