//! State of the requester.

use core::hint::cold_path;

use feroce_train::Instant;
use feroce_wire::{Msn, Psn};

use super::outstanding::Outstanding;
use super::repair_state::Repair;

/// State of the requester of a reliable queue pair.
#[derive(Debug, Default)]
pub(crate) struct Requester {
    pub(crate) outstanding: Outstanding,
    /// How many requests were started, and up to how many the peer has receives for; `None`: no
    /// limit (IBTA vol1 9.7.7.2).
    pub(crate) ssn: Msn,
    pub(crate) credit_limit: Option<Msn>,
    /// Retries left before giving up.
    pub(crate) retries_left: u8,
    pub(crate) rnr_left: u8,
    /// The peer sent an RNR NAK: nothing is sent before this time.
    pub(crate) rnr_until: Option<Instant>,
    /// When the transport timer expires, which watches for an answer to outstanding packets.
    pub(crate) ack_deadline: Option<Instant>,
    /// When that answer is overdue by the measured round trip time, and how often in a row one was.
    pub(crate) probe_deadline: Option<Instant>,
    pub(crate) probes: u32,
    /// Nothing was answered since a timer ran out. The peer may be gone, so no more than one
    /// request is under way: the window belongs to other queue pairs, too.
    pub(crate) unanswered: bool,
    /// When the first of the timeouts in a row expired.
    pub(crate) silent_since: Option<Instant>,
    /// A packet whose round trip is being measured: it is acknowledged from this PSN on.
    pub(crate) timed: Option<(Psn, Instant)>,
    pub(super) ack_requests: AckRequests,
    pub(super) repair: Repair,
    /// The answers after a gap are being ignored until the missing one comes.
    pub(crate) response_gap: bool,
    /// A request cannot be executed: nothing after it is started.
    pub(crate) halted: bool,
    /// Waiting at the destination for its window to open.
    pub(crate) waiting: bool,
    /// The send queue drains, and whether the consumer wants an event when it has.
    pub(crate) draining: bool,
    pub(crate) drain_notify: bool,
}

impl Requester {
    /// Starts with `psn`.
    pub(super) fn new(psn: Psn) -> Self {
        Self {
            outstanding: Outstanding::new(psn),
            ack_requests: AckRequests::new(psn),
            ..Self::default()
        }
    }

    /// Whether there may be something to send, now that `posted` requests are in the queue.
    #[inline]
    pub(crate) fn may_send(&self, posted: usize) -> bool {
        (!self.is_held() && self.outstanding.cursor < posted) || self.repair.is_due()
    }

    /// Whether it must wait for an answer, a time or room at the destination.
    #[inline]
    pub(super) fn is_held(&self) -> bool {
        self.waiting || self.rnr_until.is_some() || (self.unanswered && self.outstanding.cost > 0)
    }

    /// Whether a request of so many packets need not wait for an answer.
    #[inline]
    pub(super) fn may_start(&self, packets: u32, takes_receive: bool) -> bool {
        let ssn = self.ssn.wrapping_add(1);
        // One request beyond the credits may go: its answer brings new ones.
        let is_limited = |limit: Msn| ssn.diff(limit) > 1;
        let has_none = takes_receive && self.credit_limit.is_some_and(is_limited);
        if has_none {
            cold_path();
            if self.outstanding.has_unacked() {
                return false;
            }
        }
        self.outstanding.has_psns(packets)
    }

    /// Counts a request that is started. One that needs no receive moves the limit along.
    #[inline]
    pub(super) fn count_request(&mut self, consumes_receive: bool) {
        self.ssn = self.ssn.wrapping_add(1);
        if !consumes_receive {
            self.credit_limit = self.credit_limit.map(|limit| limit.wrapping_add(1));
        }
    }

    /// The peer advertised receives up to `limit`. Requests in flight that need no receive have
    /// moved the limit already, so it never goes back.
    #[inline]
    pub(super) fn grant(&mut self, limit: Option<Msn>) {
        self.credit_limit = match (self.credit_limit, limit) {
            (Some(old), Some(new)) if old.diff(new) > 0 => Some(old),
            (_, limit) => limit,
        };
    }

    /// Whether the peer is known to have no more than `few` receives for further requests.
    #[inline]
    pub(super) fn has_few_credits(&self, few: i32) -> bool {
        self.credit_limit.is_some_and(|limit| limit.diff(self.ssn) <= few)
    }

    /// When the requester wants to be called.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        earliest(self.rnr_until, earliest(self.ack_deadline, self.probe_deadline))
    }

    /// Whether an acknowledgement was requested and has not arrived.
    #[inline]
    pub(super) fn awaits_ack(&self) -> bool {
        self.ack_requests.until.is_after(self.outstanding.una)
    }
}

/// Which acknowledgements were requested.
#[derive(Debug, Default)]
pub(super) struct AckRequests {
    /// Cost of what was sent since the last ACK request.
    pub(super) unrequested: u64,
    /// Messages started since the last one with an ACK request.
    pub(super) messages: usize,
    /// End of the newest packet with an ACK request.
    pub(super) until: Psn,
}

impl AckRequests {
    /// Nothing was sent before `psn`.
    pub(super) fn new(psn: Psn) -> Self {
        Self { until: psn, ..Self::default() }
    }

    /// What was sent from `psn` on is sent again, and may carry its ACK requests elsewhere.
    pub(super) fn go_back(&mut self, psn: Psn) {
        if self.until.is_after(psn) {
            self.until = psn;
        }
    }

    /// Counts a message that is started, and whether it requests an acknowledgement at its end.
    #[inline]
    pub(super) fn count_message(&mut self, requests_ack: bool) {
        self.messages = if requests_ack { 0 } else { self.messages + 1 };
    }
}

/// The earlier of two times, either of which may be missing.
#[inline]
pub(super) fn earliest(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
