//! The protocol of rsockets, as librdmacm speaks it: numbers and bytes only, no memory and no
//! queue pair.
//!
//! A stream is two rings of bytes, one at each end, into which the other end writes. Each end tells
//! the other which half of its ring is free by writing a [`Buffer`] into one of the two places
//! that the other end has for that, and every write carries a [`Message`] as immediate data. How
//! many messages an end may send is counted by credits. [`Hello`] is how it begins, [`Receiving`]
//! and [`Sending`] are the two directions.
//!
//! All input from the peer is checked here; a [`Violation`] ends the connection.

mod datagram;
mod hello;
mod message;
mod receiving;
mod sending;

pub(crate) use datagram::{Header, Operation, UdpHeader};
pub(crate) use hello::{Buffer, Hello, Iomap, Order, scale, unscale};
pub(crate) use message::{Message, Posted};
pub(crate) use receiving::{Grant, Receiving};
pub(crate) use sending::{Chunk, Sending};

/// The peer violated the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Violation;
