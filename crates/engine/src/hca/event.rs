//! Events: asynchronous events and wake-ups that the engine reports to its owner.

use feroce_wire::iwarp::terminate::Cause;
use feroce_wire::{Gid, Lid, Qpn};

use crate::hca::id::{CqId, SrqId};

/// An asynchronous event.
///
/// ```
/// # use feroce_engine::AsyncEvent;
/// fn concerns_the_port(event: &AsyncEvent) -> bool {
///     use AsyncEvent::{GidChange, PkeyChange, PortActive, PortError};
///     matches!(event, PortActive | PortError | PkeyChange | GidChange { .. })
/// }
/// ```
#[doc(alias = "ibv_async_event")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AsyncEvent {
    /// A completion queue overran; it and its queue pairs are dead.
    #[doc(alias = "IBV_EVENT_CQ_ERR")]
    CqError(CqId),
    /// A queue pair met an error that no completion can report.
    #[doc(alias = "IBV_EVENT_QP_FATAL")]
    QpFatal(Qpn),
    /// A request that the peer sent was invalid.
    #[doc(alias = "IBV_EVENT_QP_REQ_ERR")]
    QpRequestError(Qpn),
    /// A request that the peer sent violated access rights.
    #[doc(alias = "IBV_EVENT_QP_ACCESS_ERR")]
    QpAccessError(Qpn),
    /// The first packet arrived on a queue pair that is still in RTR.
    #[doc(alias = "IBV_EVENT_COMM_EST")]
    CommEstablished(Qpn),
    /// The send queue is drained after a transition to SQD.
    #[doc(alias = "IBV_EVENT_SQ_DRAINED")]
    SqDrained(Qpn),
    /// A queue pair in error will take no more receives from its shared receive queue.
    #[doc(alias = "IBV_EVENT_QP_LAST_WQE_REACHED")]
    LastWqeReached(Qpn),
    /// A shared receive queue fell below its limit.
    #[doc(alias = "IBV_EVENT_SRQ_LIMIT_REACHED")]
    SrqLimitReached(SrqId),
    /// A shared receive queue met an error.
    #[doc(alias = "IBV_EVENT_SRQ_ERR")]
    SrqError(SrqId),
    /// The port came up, or it is up with another MTU: a consumer that caches its attributes
    /// queries them again.
    #[doc(alias = "IBV_EVENT_PORT_ACTIVE")]
    PortActive,
    /// The port went down.
    #[doc(alias = "IBV_EVENT_PORT_ERR")]
    PortError,
    /// An entry of the GID table changed.
    #[doc(alias = "IBV_EVENT_GID_CHANGE")]
    GidChange {
        /// Its index.
        index: u16,
        /// What it is now.
        gid: Gid,
    },
    /// The subnet manager gave the port another LID.
    #[doc(alias = "IBV_EVENT_LID_CHANGE")]
    LidChange {
        /// The LID now.
        lid: Lid,
    },
    /// The P_Key table changed.
    #[doc(alias = "IBV_EVENT_PKEY_CHANGE")]
    PkeyChange,
    /// Another subnet manager manages the port, or it has another LID or service level.
    #[doc(alias = "IBV_EVENT_SM_CHANGE")]
    SmChange,
    /// The subnet manager asks clients to register anew: it may have lost what they had joined.
    #[doc(alias = "IBV_EVENT_CLIENT_REREGISTER")]
    ClientReregister,
}

/// Something to pass on to a consumer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// An asynchronous event.
    Async(AsyncEvent),
    /// A completion queue that was armed has a completion.
    Completion(CqId),
    /// A completion queue whose polling thread naps ([`CqPoller::begin_nap`]) has a completion.
    ///
    /// [`CqPoller::begin_nap`]: crate::CqPoller::begin_nap
    Poller(CqId),
}

/// How a stream ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamEnd {
    /// This end found an error and sent a TERMINATE.
    Terminated(Cause),
    /// The peer found an error.
    PeerTerminated(Cause),
    /// The peer closed the stream between two segments.
    Closed,
    /// The stream broke, or was closed inside a segment.
    Cut,
    /// The rest of a segment has not arrived for long.
    Stalled,
}

/// The stream of a queue pair has ended; the queue pair is in error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamEvent {
    /// The queue pair.
    pub qpn: Qpn,
    /// How it ended.
    pub end: StreamEnd,
}
