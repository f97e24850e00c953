//! What the connection manager knows of connections that are being made.

use std::net::SocketAddr;
use std::sync::Arc;

use feroce_engine::iwarp::{Initiator, Request, Responder};
use feroce_link::tcp::TcpListenId;
use feroce_wire::Qpn;

use crate::cm::soft::shared::Shared;

/// A connection of an id.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) id: Arc<Shared>,
    pub(super) phase: Phase,
    /// Reminders that were due.
    pub(super) reminders: usize,
}

/// How far a connection is.
#[derive(Debug)]
pub(super) enum Phase {
    /// The TCP connection is being made.
    Connecting(Asking),
    /// The request was sent, for this queue pair.
    AwaitingReply(Initiator, Qpn),
    /// The consumer has to answer a request that came through this listener.
    Requested(Request, TcpListenId),
    /// The stream is the queue pair's.
    Connected(Qpn),
}

/// What this end asks for.
#[derive(Debug, Default)]
pub(super) struct Asking {
    pub(super) qpn: Qpn,
    pub(super) ird: u16,
    pub(super) ord: u16,
    pub(super) private_data: Vec<u8>,
}

/// A peer that has connected and not sent its request yet.
#[derive(Debug)]
pub(super) struct HalfOpen {
    pub(super) listener: TcpListenId,
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
    pub(super) responder: Responder,
}

/// An id that listens.
#[derive(Debug)]
pub(super) struct Listening {
    pub(super) id: Arc<Shared>,
    /// Requests that the consumer may leave unanswered; further ones wait in the kernel.
    pub(super) backlog: u32,
    pub(super) unanswered: u32,
}
