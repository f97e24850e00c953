//! What the manager tells unasked.

use alloc::boxed::Box;

use feroce_wire::cm::{IpCm, Rej, Rep, Req, SidrRep, SidrReq};

use crate::listen::ListenId;
use crate::params::{ConnId, Peer};

/// A request for a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Incoming {
    /// Who was asked.
    pub listener: ListenId,
    /// The connection that is asked for.
    pub conn: ConnId,
    /// Who asks.
    pub peer: Peer,
    /// The request.
    pub req: Req,
    /// The addresses in its private data, if the service is a port.
    pub ip: Option<IpCm>,
}

/// A request for a datagram service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IncomingSidr {
    /// Who was asked.
    pub listener: ListenId,
    /// How to answer it.
    pub conn: ConnId,
    /// Who asks.
    pub peer: Peer,
    /// The request.
    pub req: SidrReq,
    /// The addresses in its private data, if the service is a port.
    pub ip: Option<IpCm>,
}

/// Why an established connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cause {
    /// The peer asked for it.
    Peer,
    /// We asked for it, and the peer agreed.
    Agreed,
    /// We asked for it, and the peer did not answer.
    NoAnswer,
    /// The peer does not know the connection any more.
    Refused,
}

/// Something to pass on to a consumer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A peer asks for a connection: accept, reject or destroy it.
    Request(Box<Incoming>),
    /// A peer asks for a datagram service: reply, reject or destroy it.
    SidrRequest(Box<IncomingSidr>),
    /// The peer accepted: bring up the queue pair and say so, or reject.
    Replied {
        /// The connection.
        conn: ConnId,
        /// The answer.
        rep: Box<Rep>,
    },
    /// The peer has heard that we accepted.
    Established {
        /// The connection.
        conn: ConnId,
    },
    /// The peer refused. Final.
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
    /// Nothing of the connection can be on its way any more; its queue pair may be used again.
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
