//! Requests that came before their listener.
//!
//! Programs tell each other that they are about to listen, and then one of them is faster. Adapters
//! hide that, since it takes them milliseconds to have a queue pair; nothing here takes as long. So
//! a request without a listener waits a moment before it is refused.

use alloc::collections::VecDeque;

use feroce_train::Instant;
use feroce_wire::cm::{CmMessage, CommId, ServiceId};

use crate::conn::Kind;
use crate::params::Peer;

/// A request for a service without a listener.
#[derive(Debug)]
pub(crate) struct Early {
    pub(crate) from: Peer,
    pub(crate) transaction: u64,
    pub(crate) message: CmMessage,
    /// Until when it waits.
    pub(crate) until: Instant,
}

/// All that wait, in the order in which they came. They all wait equally long.
#[derive(Debug, Default)]
pub(crate) struct EarlyOnes {
    waiting: VecDeque<Early>,
}

impl EarlyOnes {
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether a request waits already, and this is a repetition of it.
    pub(crate) fn has(&self, from: Peer, message: &CmMessage) -> bool {
        let name = name(message);
        self.waiting.iter().any(|early| early.from == from && self::name(&early.message) == name)
    }

    /// Lets a request wait.
    pub(crate) fn keep(&mut self, early: Early) {
        self.waiting.push_back(early);
    }

    /// When the first has waited long enough.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.waiting.front().map(|early| early.until)
    }

    /// One that has waited long enough.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<Early> {
        self.waiting.pop_front_if(|early| early.until <= now)
    }

    /// Those for a service that has a listener now.
    pub(crate) fn take(&mut self, service: ServiceId) -> VecDeque<Early> {
        let is_for = |early: &Early| self::service(&early.message) == Some(service);
        let (found, others) = core::mem::take(&mut self.waiting).into_iter().partition(is_for);
        self.waiting = others;
        found
    }
}

/// What a request asks for.
fn service(message: &CmMessage) -> Option<ServiceId> {
    match message {
        CmMessage::Req(req) => Some(req.service_id),
        CmMessage::SidrReq(req) => Some(req.service_id),
        _ => None,
    }
}

/// How its sender names a request.
fn name(message: &CmMessage) -> Option<(Kind, CommId)> {
    match message {
        CmMessage::Req(req) => Some((Kind::Connection, req.local_id)),
        CmMessage::SidrReq(req) => Some((Kind::Sidr, req.request_id)),
        _ => None,
    }
}
