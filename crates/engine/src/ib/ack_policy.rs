//! When the requester requests an acknowledgement, and what it does if none arrives in time
//! (IBTA vol1 9.7.3, 9.7.6.1.3).
//!
//! An acknowledgement costs both ends about as much as a short message. A signalled request needs
//! one. An unsignalled request is acknowledged together with a later one that requests it or, if
//! there is none, when a probe requests it.

use feroce_train::Instant;
use feroce_wire::Psn;

use super::qp::Qp;
use crate::hca::attr::LossPolicy;
use crate::hca::wr::SendFlags;
use crate::ib::port::Port;

/// Most messages in a row without an ACK request; never more than half of the send queue.
const MAX_UNREQUESTED: usize = 64;

/// With so few credits left, every message requests an acknowledgement, which brings new credits.
const FEW_CREDITS: i32 = 8;

/// When an answer is overdue before a round trip was measured (RFC 6298, 2.1), if the transport
/// timer is not shorter. The bytes of a request that is never answered would otherwise stay in the
/// window of the destination, where the other queue pairs need the room.
const INITIAL_OVERDUE_NS: u64 = 1_000_000_000;

/// By how much the minimal probe time is divided while packets are being lost.
const LOSSY_HURRY: u64 = 8;

impl Qp {
    /// A packet that ends at `end` requests an acknowledgement.
    #[inline]
    pub(super) fn note_ack_request(&mut self, end: Psn) {
        if !self.req.awaits_ack() {
            // The probe timer was set for the case that no answer is awaited.
            self.req.probe_deadline = None;
            self.common.shared.set_awaits_answer(true);
        }
        self.req.ack_requests.unrequested = 0;
        if end.is_after(self.req.ack_requests.until) {
            self.req.ack_requests.until = end;
        }
    }

    /// Whether a message that is started now requests an acknowledgement at its end.
    /// `takes_receive`: the peer needs a receive for it.
    #[inline]
    pub(super) fn wants_ack(&self, takes_receive: bool, flags: SendFlags) -> bool {
        flags.contains(SendFlags::SIGNALED)
            || self.common.shared.is_streaming()
            || self.req.ack_requests.messages >= self.max_unrequested
            || (takes_receive && self.req.has_few_credits(FEW_CREDITS))
    }

    /// Most messages in a row without an ACK request, with the attributes as they are.
    pub(super) fn unrequested_limit(&self, port: &Port) -> usize {
        match self.common.init.sq_sig_all || !self.may_request_later(port) {
            true => 0,
            false => (self.common.sq.capacity() / 2).min(MAX_UNREQUESTED),
        }
    }

    /// Whether a probe would request an acknowledgement long before the transport timer expires.
    fn may_request_later(&self, port: &Port) -> bool {
        let is_long = |timeout| timeout / 4 > port.hca.config.min_probe_ns;
        self.probes(port) && self.ack_timeout_ns().is_none_or(is_long)
    }

    /// Whether probes are sent at all.
    fn probes(&self, port: &Port) -> bool {
        port.hca.config.tail_probe && self.common.init.loss != LossPolicy::Fatal
    }

    /// Requests an acknowledgement now if the next request, or the drain of the send queue, waits
    /// for one that was not requested.
    #[inline]
    pub(super) fn request_ack_if_waiting(&mut self, now: Instant) {
        let outstanding = &self.req.outstanding;
        let waits = self.common.sq.len() > outstanding.flights.len() || self.req.draining;
        if waits && outstanding.has_unacked() && !self.req.awaits_ack() {
            self.req.probe_deadline = Some(now);
        }
    }

    /// Starts the timers that watch for an answer, if they do not run already.
    #[inline]
    pub(super) fn start_timers(&mut self, port: &mut Port, now: Instant) {
        if self.req.ack_deadline.is_none() {
            self.req.ack_deadline = self.ack_timeout_ns().map(|ns| now.plus_nanos(ns));
        }
        if self.req.probe_deadline.is_none() {
            self.arm_probe(port, now);
        }
    }

    /// Transport timer (IBTA vol1 9.7.6.1.3); `None`: for ever.
    pub(super) fn ack_timeout_ns(&self) -> Option<u64> {
        match self.common.attr.timeout.unwrap_or(0) {
            0 => None,
            t => Some(4096 << t.min(31)),
        }
    }

    /// Sets the time at which an answer is overdue by the measured round trip time, or at which the
    /// requester requests one.
    pub(super) fn arm_probe(&mut self, port: &mut Port, now: Instant) {
        self.req.probe_deadline = None;
        if !self.probes(port) {
            return;
        }
        let Some(peer) = self.destination else { return };
        let (peer, awaits_ack) = (port.destinations.get(peer), self.req.awaits_ack());
        let overdue = match peer.overdue_ns() {
            Some(ns) => ns,
            None if !awaits_ack => 0,
            None => INITIAL_OVERDUE_NS,
        };
        // A late answer usually means that the peer process sleeps; while packets are being lost,
        // it usually means that one was lost.
        let hurry = if awaits_ack && peer.is_lossy(now) { LOSSY_HURRY } else { 1 };
        let wait = overdue.max(port.hca.config.min_probe_ns / hurry) << self.req.probes.min(10);
        if self.ack_timeout_ns().is_none_or(|timeout| wait < timeout) {
            self.req.probe_deadline = Some(now.plus_nanos(wait));
        }
    }

    /// The probe timer has expired: sends the oldest packet again, with an ACK request.
    pub(super) fn probe(&mut self, port: &mut Port, now: Instant) {
        if self.req.awaits_ack() {
            self.common.counters.retransmissions += 1;
            port.hca.counters.tail_probes += 1;
            self.congested(port, now);
        } else {
            port.hca.counters.late_ack_requests += 1;
        }
        // Answers to earlier requests may still arrive from a peer that is only slow. They do not
        // answer the probe, and must not cost a retry each.
        self.req.probes += 1;
        self.req.unanswered = true;
        let is_overdue = self.req.awaits_ack();
        self.go_back(port, self.req.outstanding.una);
        if is_overdue {
            self.control_lost(&port.hca.config, now);
        }
        self.req.probe_deadline = None;
    }
}
