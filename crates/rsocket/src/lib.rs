//! rsockets: the calls of sockets on queue pairs, with the wire protocol of librdmacm.
//!
//! A [`Socket`] is a stream or a datagram socket. [`Socket::open`] makes one and gives it a
//! descriptor; [`find`] leads from the descriptor back to the socket. [`poll`] and [`epoll`] wait
//! on sockets of this crate and descriptors of the kernel alike. Errors are [`Errno`]s, because
//! callers of sockets depend on the number.
//!
//! `protocol` is what goes over the wire, without memory or queue pairs. An `endpoint` is a queue
//! pair with its rings; `stream` and `datagram` are the two kinds of socket.
//!
//! The calling thread drives its own socket. When it takes a completion that another waiting thread
//! may need, it wakes that thread (`wakeup`). One thread per process (`service`) does the work that
//! no call does: it accepts connections for listeners, probes idle peers, and takes datagrams that
//! arrive through the kernel.

mod datagram;
mod endpoint;
pub mod epoll;
mod mappings;
mod options;
mod poll;
mod protocol;
mod service;
mod settings;
mod socket;
mod stream;
mod wakeup;

pub use feroce::Errno;
pub use poll::poll;
pub use socket::{Socket, find};

/// Returns the connection manager of the calling process, through which a socket opens devices. A
/// function and not a value, because a child of `fork` needs another manager than its parent.
pub type ManagerFn = fn() -> feroce::cm::Manager;

/// Closes a socket or an epoll instance, as close(2) does.
pub fn close(fd: core::ffi::c_int) -> Result<(), Errno> {
    if epoll::close(fd) { Ok(()) } else { socket::close(fd) }
}
