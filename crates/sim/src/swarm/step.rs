//! The steps of a program: a request or a receive, and what it must lead to.

use feroce_engine::{RecvWr, SendFlags, SendOp, SendWr, WcOpcode};
use feroce_wire::Rkey;

/// A send to be posted, and what it must lead to.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) wr: SendWr,
    pub(crate) opcode: WcOpcode,
    /// What a receive of the peer gets, or a write leaves behind.
    pub(crate) payload: Vec<u8>,
    /// Where an unreliable write leaves it.
    pub(crate) target: Option<usize>,
    pub(crate) fetched: Option<Fetched>,
    /// Posted only when that step of that end has completed.
    pub(crate) after: Option<(usize, usize)>,
    /// Arrived, on an unreliable flow.
    pub(crate) seen: bool,
}

impl Step {
    pub(crate) fn is_signaled(&self) -> bool {
        self.wr.flags.contains(SendFlags::SIGNALED)
    }

    /// The key of the peer of which it touches at least a byte: the key of a request for none is
    /// not looked at.
    pub(crate) fn touches(&self) -> Option<Rkey> {
        let fetched = self.fetched.as_ref().map_or(0, |fetched| fetched.len);
        let (remote, len) = match self.wr.op {
            SendOp::Write(remote) | SendOp::WriteImm(remote, _) | SendOp::AtomicWrite(remote) => {
                (remote, self.payload.len())
            }
            SendOp::Read(remote)
            | SendOp::CmpSwap { remote, .. }
            | SendOp::FetchAdd { remote, .. } => (remote, fetched),
            _ => return None,
        };
        (len > 0).then_some(remote.rkey)
    }
}

/// What a read or atomic brings back.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) pieces: Vec<(usize, usize)>,
    pub(crate) len: usize,
    pub(crate) what: Expected,
}

/// What is fetched.
#[derive(Debug)]
pub(crate) enum Expected {
    /// Exactly these bytes.
    Bytes(Vec<u8>),
    /// Any bytes: steps before may have been executed or not.
    Anything,
    /// What a counter of a node showed.
    Count { node: usize, counter: usize },
}

/// A receive to be posted.
#[derive(Debug)]
pub(crate) struct Recv {
    pub(crate) wr: RecvWr,
    pub(crate) pieces: Vec<(usize, usize)>,
}
