//! The part of a queue pair that all transports share: number, attributes, state and queues.

use alloc::sync::Arc;

use feroce_ring::Consumer;
use feroce_wire::Qpn;

use crate::hca::attr::{QpAttr, QpInitAttr};
use crate::hca::counters::QpCounters;
use crate::hca::id::{SrqId, XrcdId};
use crate::hca::queue::QpShared;
use crate::hca::state::QpState;
use crate::hca::timer::Armed;
use crate::hca::wr::{RecvWr, SendWr};

/// Where receives come from.
#[derive(Debug)]
pub(crate) enum RecvSource {
    /// A queue of its own.
    Own(Consumer<RecvWr>),
    /// A shared one.
    Srq(SrqId),
    /// Whichever shared one an XRC packet names, in this domain.
    Xrc(XrcdId),
    /// None: the queue pair only sends.
    None,
}

/// The part of a queue pair that does not depend on its transport.
#[derive(Debug)]
pub(crate) struct QpCommon {
    pub(crate) qpn: Qpn,
    pub(crate) slot: u32,
    /// How it was made: service, protection domain, completion queues, sizes.
    pub(crate) init: QpInitAttr,
    /// What modify has set.
    pub(crate) attr: QpAttr,
    pub(crate) state: QpState,
    /// What the consumer's ends of the queues see.
    pub(crate) shared: Arc<QpShared>,
    pub(crate) sq: Consumer<SendWr>,
    pub(crate) rq: RecvSource,
    /// Whether the slot is in the ready queue.
    pub(crate) queued: bool,
    /// Its entries in the timer heap.
    pub(crate) armed: Armed,
    pub(crate) counters: QpCounters,
}

impl QpCommon {
    /// A queue pair in RESET.
    pub(crate) fn new(
        (slot, qpn): (u32, Qpn),
        init: QpInitAttr,
        shared: Arc<QpShared>,
        sq: Consumer<SendWr>,
        rq: RecvSource,
    ) -> Self {
        Self {
            qpn,
            slot,
            init,
            attr: QpAttr::default(),
            state: QpState::Reset,
            shared,
            sq,
            rq,
            queued: false,
            armed: Armed::default(),
            counters: QpCounters::default(),
        }
    }

    /// Changes the state, also as the consumer's ends of the queues see it.
    pub(crate) fn set_state(&mut self, state: QpState) {
        self.state = state;
        self.attr.state = Some(state);
        self.shared.set_state(state);
    }
}
