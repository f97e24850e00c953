//! Events that the manager reports to consumers.

use alloc::boxed::Box;

use feroce_wire::cm::{IpCm, Rej, Rep, Req, SidrRep, SidrReq};

use crate::listen::ListenId;
use crate::params::{ConnId, Peer};

/// A request for a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Incoming {
    /// The listener that the request is for.
    pub listener: ListenId,
    /// The new connection, to accept, reject or destroy.
    pub conn: ConnId,
    /// Our port and the requesting port.
    pub peer: Peer,
    /// The request.
    pub req: Req,
    /// The IP addresses and ports in its private data, if the service is a port (annex A11).
    pub ip: Option<IpCm>,
}

/// A request for a datagram service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IncomingSidr {
    /// The listener that the request is for.
    pub listener: ListenId,
    /// Identifies the request in `reply`, `reject` and `destroy`.
    pub conn: ConnId,
    /// Our port and the requesting port.
    pub peer: Peer,
    /// The request.
    pub req: SidrReq,
    /// The IP addresses and ports in its private data, if the service is a port (annex A11).
    pub ip: Option<IpCm>,
}

/// Why an established connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cause {
    /// The peer sent DREQ.
    Peer,
    /// Our consumer disconnected, and the peer sent DREP.
    Agreed,
    /// Our consumer disconnected, and the peer did not answer DREQ.
    NoAnswer,
    /// The peer sent REJ: it does not know the connection any more.
    Refused,
    /// The process of the peer has ended without a message.
    Gone,
}

/// An event of a connection or request, for its consumer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A peer asks for a connection: accept, reject or destroy it.
    Request(Box<Incoming>),
    /// A peer asks for a datagram service: reply, reject or destroy it.
    SidrRequest(Box<IncomingSidr>),
    /// The peer accepted (REP): bring up the queue pair and call [`ready`](crate::Manager::ready),
    /// or reject.
    Replied {
        /// The connection.
        conn: ConnId,
        /// The answer.
        rep: Box<Rep>,
    },
    /// The connection that the consumer accepted is established: RTU or data arrived.
    Established {
        /// The connection.
        conn: ConnId,
    },
    /// The peer rejected the connection. Final.
    Rejected {
        /// The connection.
        conn: ConnId,
        /// Why.
        rej: Box<Rej>,
    },
    /// The peer does not answer. Final.
    Unreachable {
        /// The connection.
        conn: ConnId,
    },
    /// The connection has ended. Final.
    Disconnected {
        /// The connection.
        conn: ConnId,
        /// Why.
        cause: Cause,
    },
    /// Time-wait is over: no packet of the connection can be in the network any more, and the
    /// consumer may reuse its queue pair.
    TimewaitExit {
        /// The connection.
        conn: ConnId,
    },
    /// The peer answered a request for a datagram service. Final.
    SidrReplied {
        /// The request.
        conn: ConnId,
        /// The answer.
        rep: Box<SidrRep>,
    },
}

impl Event {
    /// The connection that it is about.
    pub fn conn(&self) -> ConnId {
        match self {
            Self::Request(incoming) => incoming.conn,
            Self::SidrRequest(incoming) => incoming.conn,
            Self::Replied { conn, .. }
            | Self::Established { conn }
            | Self::Rejected { conn, .. }
            | Self::Unreachable { conn }
            | Self::Disconnected { conn, .. }
            | Self::TimewaitExit { conn }
            | Self::SidrReplied { conn, .. } => *conn,
        }
    }

    /// Whether nothing but [`Event::TimewaitExit`] can follow.
    pub fn is_final(&self) -> bool {
        matches!(
            self,
            Self::Rejected { .. }
                | Self::Unreachable { .. }
                | Self::Disconnected { .. }
                | Self::SidrReplied { .. }
        )
    }
}
