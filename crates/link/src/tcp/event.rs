//! What happens to streams, and their names.

use std::io;
use std::net::SocketAddr;

use feroce_train::Scatter;

#[cfg(doc)]
use super::TcpLink;

/// Names a stream. No number is used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamId(pub(super) u64);

/// Names a listener. No number is used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TcpListenId(pub(super) u64);

/// What has happened.
#[derive(Debug)]
pub enum TcpEvent<'a> {
    /// A peer has connected.
    Accepted {
        /// The listener.
        listener: TcpListenId,
        /// The new stream.
        stream: StreamId,
        /// The address of this end.
        local: SocketAddr,
        /// The address of the peer.
        peer: SocketAddr,
        /// Bytes that one packet carries.
        mss: usize,
    },
    /// A stream that this end has opened is connected.
    Connected {
        /// Which one.
        stream: StreamId,
        /// The address of this end.
        local: SocketAddr,
        /// Bytes that one packet carries.
        mss: usize,
    },
    /// A stream could not be connected. It is gone.
    Failed {
        /// Which one.
        stream: StreamId,
        /// Why.
        error: io::Error,
    },
    /// The next bytes of a stream may go straight to memory: those that the caller of
    /// [`TcpLink::ask_where`] names. If it names some, [`TcpEvent::Landed`] follows at once.
    Where {
        /// Which stream.
        stream: StreamId,
        /// Takes the memory.
        scatter: &'a mut Scatter,
    },
    /// Bytes have arrived in that memory, or none have. It is not accessed any more.
    Landed {
        /// On which stream.
        stream: StreamId,
        /// How many.
        len: usize,
    },
    /// Bytes have arrived.
    Data {
        /// Where.
        stream: StreamId,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// TCP has taken bytes that waited, or the stream broke and they are discarded.
    Sent {
        /// Of which stream.
        stream: StreamId,
        /// How many TCP has taken.
        bytes: usize,
    },
    /// The peer has closed the stream, or it broke. The caller has to [finish](TcpLink::finish) it.
    Ended {
        /// Which one.
        stream: StreamId,
        /// What broke it, if something did.
        error: Option<io::Error>,
    },
}
