//! What a queue pair knows of the requests that it has begun.

use alloc::collections::VecDeque;

use feroce_wire::Rkey;
use feroce_wire::iwarp::ddp::{Control, Header, QueueNumber, Untagged};
use feroce_wire::iwarp::rdmap::RdmaOp;

/// What an untagged segment has where a SEND names a key to invalidate.
pub(super) const NO_STAG: Rkey = Rkey(0);

/// A request that has been begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Flight {
    /// Segments of it are still to be sent, from this offset on.
    Sending { offset: u64 },
    /// It is done when TCP has taken the stream up to here.
    Sent { end: u64 },
    /// The WRITE has been sent; its immediate data follows.
    Telling,
    /// Its response is awaited.
    Reading,
    /// Done.
    Done,
}

/// A READ or atomic under way: where its response goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sink {
    pub(super) stag: Rkey,
    pub(super) offset: u64,
    pub(super) left: u32,
    /// The READ of the handshake, which belongs to no request.
    pub(super) is_announcement: bool,
    /// The number of an atomic, which its response repeats.
    pub(super) atomic: Option<u32>,
}

/// The sending machine of a queue pair.
#[derive(Debug)]
pub(super) struct Requester {
    /// Requests that have been begun: the first of the send queue.
    pub(super) flights: VecDeque<Flight>,
    /// READs under way, oldest first.
    pub(super) sinks: VecDeque<Sink>,
    /// Numbers of the next SEND and READ request.
    pub(super) send_msn: u32,
    pub(super) read_msn: u32,
    /// Number of the next response to an atomic.
    pub(super) atomic_msn: u32,
    /// The message of the handshake has been sent, or there is none.
    pub(super) has_announced: bool,
}

impl Default for Requester {
    fn default() -> Self {
        let (flights, sinks) = (VecDeque::new(), VecDeque::new());
        Self { flights, sinks, send_msn: 1, read_msn: 1, atomic_msn: 1, has_announced: false }
    }
}

impl Requester {
    /// The request that is being sent, and how far it is.
    pub(super) fn sending(&self) -> Option<(usize, u64)> {
        match self.flights.back() {
            Some(Flight::Sending { offset }) => Some((self.flights.len() - 1, *offset)),
            _ => None,
        }
    }

    /// The request whose immediate data is to be sent.
    pub(super) fn telling(&self) -> Option<usize> {
        matches!(self.flights.back(), Some(Flight::Telling)).then(|| self.flights.len() - 1)
    }

    /// Header of a READ request, which takes its number.
    pub(super) fn read_request(&mut self) -> Header {
        self.request(RdmaOp::READ_REQUEST)
    }

    /// Header of the request of a READ or an atomic.
    pub(super) fn request(&mut self, opcode: RdmaOp) -> Header {
        let header = untagged(opcode, QueueNumber::READ_REQUEST, self.read_msn);
        self.read_msn = self.read_msn.wrapping_add(1);
        Header::Untagged(header)
    }
}

/// Header of an untagged message in one segment.
pub(super) fn untagged(opcode: RdmaOp, queue: QueueNumber, msn: u32) -> Untagged {
    Untagged { control: Control::new(opcode, true), invalidate: NO_STAG, queue, msn, mo: 0 }
}
