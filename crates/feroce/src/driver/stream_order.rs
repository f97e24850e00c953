//! What connection management and the streams of a device tell each other.

use feroce_link::tcp::{StreamId, TcpEvent, TcpListenId};
use feroce_wire::Qpn;

/// What the agent wants done with streams, in this order.
#[derive(Debug)]
pub(crate) enum StreamOrder {
    /// Send bytes.
    Send(StreamId, Vec<u8>),
    /// Hand over bytes that arrive, or leave them to TCP.
    Read(StreamId, bool),
    /// The stream belongs to this queue pair from now on.
    Attach(StreamId, Qpn),
    /// End it behind what was sent.
    Finish(StreamId),
    /// Take connections, or leave them to the kernel.
    Accept(TcpListenId, bool),
}

/// What the agent is told of its streams: all that happens before they are attached.
pub(crate) type StreamInput<'a> = TcpEvent<'a>;
