//! rsockets: the calls of sockets on queue pairs.
//!
//! [`protocol`] is what goes over the wire, [`endpoint`] a queue pair with its memory, [`stream`]
//! and [`datagram`] the two kinds of socket; [`table`] leads from descriptors to sockets. The calls
//! themselves are in [`calls`], [`transfer`], [`poll`], [`epoll`], [`option`] and [`iomap`].
//!
//! Whoever calls drives its own socket. Threads that sleep on the same socket are told by their
//! [`bell`] what another has found; [`service`] is a thread for what nobody calls for: listeners,
//! probes of idle peers, datagrams that come through the kernel.

mod bell;
pub(crate) mod calls;
mod datagram;
mod endpoint;
pub(crate) mod epoll;
pub(crate) mod iomap;
pub(crate) mod option;
pub(crate) mod poll;
mod protocol;
mod service;
mod settings;
mod stream;
mod table;
pub(crate) mod transfer;
mod way;
