//! What the engine tells its owner unasked.

use feroce_wire::{Gid, Qpn};

use crate::{CqId, SrqId};

/// An asynchronous event.
#[doc(alias = "ibv_async_event")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AsyncEvent {
    /// A completion queue overran; it and its queue pairs are dead.
    CqError(CqId),
    /// A queue pair met an error that no completion can report.
    QpFatal(Qpn),
    /// A request that the peer sent was invalid.
    QpRequestError(Qpn),
    /// A request that the peer sent violated access rights.
    QpAccessError(Qpn),
    /// The first packet arrived on a queue pair that is still in RTR.
    CommEstablished(Qpn),
    /// The send queue is drained after a transition to SQD.
    SqDrained(Qpn),
    /// A queue pair in error will take no more receives from its shared receive queue.
    LastWqeReached(Qpn),
    /// A shared receive queue fell below its limit.
    SrqLimitReached(SrqId),
    /// A shared receive queue met an error.
    SrqError(SrqId),
    /// The port came up.
    PortActive,
    /// The port went down.
    PortError,
    /// An entry of the GID table changed.
    GidChange {
        /// Its index.
        index: u16,
        /// What it is now.
        gid: Gid,
    },
    /// The P_Key table changed.
    PkeyChange,
}

/// Something to pass on to a consumer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// An asynchronous event.
    Async(AsyncEvent),
    /// A completion queue that was armed has a completion.
    Completion(CqId),
}
