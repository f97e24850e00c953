//! Requests that arrive before their listener.
//!
//! A program may tell its peer that it is about to listen, and the peer may then connect before the
//! program listens. Hardware adapters hide this race, because the peer needs milliseconds to create
//! a queue pair; here it takes much less. Therefore the manager keeps a request without a listener
//! for a moment before it refuses it.

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
    /// When the manager refuses it.
    pub(crate) until: Instant,
}

/// All requests that wait, in order of arrival. All wait equally long, so this is also the order of
/// their deadlines.
#[derive(Debug, Default)]
pub(crate) struct EarlyOnes {
    waiting: VecDeque<Early>,
}

impl EarlyOnes {
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether `message` is a duplicate of a request that already waits.
    pub(crate) fn has(&self, from: Peer, message: &CmMessage) -> bool {
        let name = name(message);
        self.waiting.iter().any(|early| early.from == from && self::name(&early.message) == name)
    }

    /// Keeps a request.
    pub(crate) fn keep(&mut self, early: Early) {
        self.waiting.push_back(early);
    }

    /// The earliest deadline.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.waiting.front().map(|early| early.until)
    }

    /// Removes one request whose deadline has passed.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<Early> {
        self.waiting.pop_front_if(|early| early.until <= now)
    }

    /// Removes the requests for a service, which has a listener now.
    pub(crate) fn take(&mut self, service: ServiceId) -> VecDeque<Early> {
        let is_for = |early: &Early| self::service(&early.message) == Some(service);
        let (found, others) = core::mem::take(&mut self.waiting).into_iter().partition(is_for);
        self.waiting = others;
        found
    }
}

/// The service that a request asks for.
fn service(message: &CmMessage) -> Option<ServiceId> {
    match message {
        CmMessage::Req(req) => Some(req.service_id),
        CmMessage::SidrReq(req) => Some(req.service_id),
        _ => None,
    }
}

/// How the sender identifies a request.
fn name(message: &CmMessage) -> Option<(Kind, CommId)> {
    match message {
        CmMessage::Req(req) => Some((Kind::Connection, req.local_id)),
        CmMessage::SidrReq(req) => Some((Kind::Sidr, req.request_id)),
        _ => None,
    }
}
