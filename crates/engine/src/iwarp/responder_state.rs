//! What a queue pair knows of the messages that are arriving, and of the READs to be answered.

use alloc::collections::VecDeque;

use feroce_mem::PdId;
use feroce_wire::Rkey;
use feroce_wire::iwarp::atomic::AtomicResponse;
use feroce_wire::iwarp::ddp::Header;
use feroce_wire::iwarp::rdmap::ReadRequest;
use feroce_wire::iwarp::terminate::Terminate;

use super::failure::Failure;
use crate::hca::wr::RecvWr;

/// A receive that a message is being placed into.
#[derive(Debug)]
pub(super) struct Receive {
    pub(super) wr: RecvWr,
    /// Whose memory it is.
    pub(super) pd: PdId,
    /// Bytes placed.
    pub(super) filled: u64,
}

/// A request of the peer that is being answered.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reply {
    /// A READ, and the bytes of it that have been answered.
    Read { request: ReadRequest, done: u32 },
    /// An atomic, which has been executed.
    Atomic(AtomicResponse),
}

impl Reply {
    /// Whether a part of it has been sent.
    pub(super) const fn is_begun(&self) -> bool {
        matches!(self, Self::Read { done, .. } if *done > 0)
    }
}

/// Where the payload of the segment that is arriving goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Target {
    /// The receive.
    Receive,
    /// Memory that the peer names.
    Memory(Rkey, u64),
    /// Where the oldest READ wants it.
    Sink(Rkey, u64),
    /// The buffer of this struct: requests of READs and atomics, responses to atomics, immediate
    /// data and TERMINATEs.
    Collected,
    /// Nowhere: the segment is refused for this reason, unless its CRC is wrong.
    Refused(Failure),
}

/// The segment that is arriving.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Segment {
    pub(super) header: Header,
    pub(super) payload: usize,
    pub(super) target: Target,
}

/// The receiving machine of a queue pair.
#[derive(Debug)]
pub(super) struct Responder {
    /// The last that began; errors are about it.
    pub(super) segment: Option<Segment>,
    pub(super) receive: Option<Receive>,
    /// READs and atomics to be answered, oldest first.
    pub(super) replies: VecDeque<Reply>,
    /// Numbers of the next SEND and READ request.
    pub(super) send_msn: u32,
    pub(super) read_msn: u32,
    /// Number of the next response to an atomic.
    pub(super) atomic_msn: u32,
    pub(super) collected: [u8; Terminate::MAX_LEN],
    pub(super) collected_len: usize,
}

impl Default for Responder {
    fn default() -> Self {
        Self {
            segment: None,
            receive: None,
            replies: VecDeque::new(),
            send_msn: 1,
            read_msn: 1,
            atomic_msn: 1,
            collected: [0; Terminate::MAX_LEN],
            collected_len: 0,
        }
    }
}
