//! What a queue pair knows of the messages that are arriving, and of the READs to be answered.

use alloc::collections::VecDeque;

use feroce_mem::PdId;
use feroce_wire::Rkey;
use feroce_wire::iwarp::ddp::Header;
use feroce_wire::iwarp::rdmap::ReadRequest;
use feroce_wire::iwarp::terminate::Terminate;

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

/// A READ of the peer that is being answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reply {
    pub(super) request: ReadRequest,
    /// Bytes answered.
    pub(super) done: u32,
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
    /// The buffer of this struct: READ requests and TERMINATEs.
    Collected,
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
    /// READs to be answered, oldest first.
    pub(super) replies: VecDeque<Reply>,
    /// Numbers of the next SEND and READ request.
    pub(super) send_msn: u32,
    pub(super) read_msn: u32,
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
            collected: [0; Terminate::MAX_LEN],
            collected_len: 0,
        }
    }
}
