//! What is seen on the cable.

use std::io::{ErrorKind, Read};

use feroce_wire::Frame;
use socket2::{Domain, Protocol, Socket, Type};

/// Sees every frame of the namespace of this thread.
pub(crate) fn capture() -> Socket {
    let all = Protocol::from(i32::from((libc::ETH_P_ALL as u16).to_be()));
    let socket = Socket::new(Domain::PACKET, Type::RAW.nonblocking(), Some(all)).expect("root");
    socket.set_recv_buffer_size(8 << 20).expect("a buffer");
    socket
}

/// The RoCE frames that were captured.
pub(crate) fn captured(mut socket: &Socket) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut buf = vec![0; 70_000];
    loop {
        match socket.read(&mut buf) {
            Ok(n) if Frame::parse_ethernet(&buf[..n]).is_ok() => frames.push(buf[..n].to_vec()),
            Ok(_) => {}
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::WouldBlock, "{e}");
                return frames;
            }
        }
    }
}
