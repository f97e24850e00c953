//! What passes between programs on hosts of an InfiniBand fabric and the process that runs it.
//!
//! Both run on one machine and are of one version, so numbers are in the machine's byte order. A
//! program connects to the socket of the fabric ([`Host`]) and sends a [`Request`], which is
//! answered. The connection of an opened port then carries management datagrams in both directions
//! until it ends, and with it all that the program has registered. It is a descriptor like any
//! other: a program can wait for it. The connection of a program that is attached to a port carries
//! packets of its queue pairs, and one that watches an adapter what has changed there.
//!
//! * `message`: requests and answers.
//! * `adapter`: what a fabric says of the adapter of a host.
//! * `pieces`: long datagrams in pieces that a socket takes.
#![forbid(unsafe_code)]

mod adapter;
mod bytes;
mod host;
mod message;
mod pieces;

pub use adapter::{Adapter, AdapterPort};
pub use host::{Claim, Host, Watch};
pub use message::{Answer, Attached, Registration, Request};
pub use pieces::{HEAD_LEN, Joiner, MAX_LEN, MAX_PIECE, Piece, pieces};
