//! The completer: answers to our requests (IBTA vol1 9.7.6, 9.7.7).

use feroce_train::{Instant, Path};
use feroce_wire::{Aeth, AtomicAckEth, NakCode, Op, Psn, Qpn, Syndrome};

use super::buffers::{ScatterError, scatter};
use super::outstanding::Kind;
use super::qp::Qp;
use super::rx_payload::{RxPacket, RxPayload};
use crate::hca::attr::LossPolicy;
use crate::hca::counters::Drop;
use crate::hca::cqe::{Cqe, WcStatus};
use crate::hca::event::AsyncEvent;
use crate::hca::state::{QpState, QpType};
use crate::hca::wr::{Data, SendFlags, SendOp, SendWr};
use crate::ib::port::Port;

/// For how long timeouts do not count while the peer process has not read what was sent to it. One
/// that takes longer counts as lost.
const EXCUSED_NS: u64 = 20_000_000_000;

/// A queue pair whose peer did not answer in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SilentPeer {
    /// The queue pair that waits.
    pub qpn: Qpn,
    /// How its packets reach the peer.
    pub path: Path,
    /// The queue pair of the peer.
    pub dest: Qpn,
}

impl Qp {
    /// A response packet arrived.
    #[inline(never)]
    pub(super) fn handle_response(&mut self, port: &mut Port, now: Instant, rest: &RxPacket<'_>) {
        if !matches!(self.common.state, QpState::Rts | QpState::Sqd) {
            return port.hca.drop(Drop::BadState);
        }
        let (mut psn, mut op, mut remote) = (rest.psn, rest.op, rest.remote.copied());
        let (aeth, rest) = if op.has_aeth() {
            match Aeth::parse(rest.bytes) {
                Ok((aeth, rest)) => (Some(aeth), rest),
                Err(_) => return port.hca.drop(Drop::Truncated),
            }
        } else {
            (None, rest.bytes)
        };
        let outstanding = &self.req.outstanding;
        if let Some(run) = remote {
            // Packets of the run that arrived before are not fetched again.
            let known = outstanding.una.diff(psn).max(0).cast_unsigned();
            let unseen = run.without(known, self.pmtu).filter(|_| op.is_read_response());
            let continued = if known == 0 { Some(op) } else { op.continued() };
            let (Some(unseen), Some(continued)) = (unseen, continued) else {
                return port.hca.drop(Drop::GhostResponse);
            };
            (psn, op, remote) = (psn.wrapping_add(known), continued, Some(unseen));
            if !psn.wrapping_add(unseen.packets - 1).is_before(outstanding.high) {
                return port.hca.drop(Drop::GhostResponse);
            }
        }
        // Only what was sent and not yet answered can be answered; the PSN before `una` is an
        // repeated acknowledgement, which may bring credits.
        if !psn.is_before(outstanding.high) || psn.next().is_before(outstanding.una) {
            return port.hca.drop(Drop::GhostResponse);
        }
        self.req.unanswered = false;
        if let Some(Aeth { syndrome: Syndrome::Ack { credits }, msn }) = aeth {
            self.req.grant(credits.credits().map(|n| msn.wrapping_add(n)));
        }
        match (op, aeth) {
            (Op::Acknowledge, Some(aeth)) => self.handle_ack(port, now, psn, aeth),
            (Op::AtomicAcknowledge, Some(_)) => match AtomicAckEth::parse(rest) {
                Ok((eth, _)) => {
                    let original = eth.original.to_ne_bytes();
                    self.handle_fetched(port, now, psn, op, RxPayload::Here(&original));
                }
                Err(_) => port.hca.drop(Drop::Truncated),
            },
            _ => match RxPacket::payload(remote, rest) {
                Some(data) => self.handle_fetched(port, now, psn, op, data),
                None => port.hca.drop(Drop::GhostResponse),
            },
        }
        self.retire(port, now);
    }

    /// An acknowledge packet: positive, negative, or receiver not ready.
    #[inline]
    fn handle_ack(&mut self, port: &mut Port, now: Instant, psn: Psn, aeth: Aeth) {
        let una = self.req.outstanding.una;
        match aeth.syndrome {
            Syndrome::Ack { .. } => {
                if !psn.is_before(una) {
                    self.acknowledge_through(port, now, psn);
                }
            }
            _ if psn.is_before(una) => port.hca.drop(Drop::GhostResponse),
            // A repeated RNR NAK while the RNR timer runs: nothing was sent that it could answer.
            Syndrome::RnrNak { .. } if psn == una && self.req.rnr_until.is_some() => {
                port.hca.drop(Drop::GhostResponse);
            }
            Syndrome::RnrNak { timer } => {
                if !self.acknowledge_before(port, now, psn) {
                    return;
                }
                self.common.counters.rnr_naks += 1;
                port.hca.counters.rcvd_rnr_err += 1;
                if self.req.rnr_left == 0 {
                    port.hca.counters.retry_rnr_exceeded_err += 1;
                    return self.fail_at(psn, WcStatus::RnrRetryExceeded);
                }
                // Seven means for ever (IBTA vol1 9.7.5.2.8).
                if self.common.attr.rnr_retry != Some(7) {
                    self.req.rnr_left -= 1;
                }
                self.go_back(port, psn);
                self.req.rnr_until = Some(now.plus_nanos(timer.nanos()));
                self.req.ack_deadline = None;
                self.req.probe_deadline = None;
            }
            Syndrome::Nak(NakCode::PsnSequence) => {
                if !self.acknowledge_before(port, now, psn) {
                    return;
                }
                port.hca.counters.rcvd_seq_err += 1;
                self.missed(port, now);
                self.retry_by(port, now, psn, |qp, port| {
                    if !qp.repair(port, now, psn) {
                        qp.congested(port, now);
                        qp.go_back(port, psn);
                        qp.req.repair.went_back_to(psn);
                    }
                });
            }
            Syndrome::Nak(code) => {
                if !self.acknowledge_before(port, now, psn) {
                    return;
                }
                let status = match code {
                    NakCode::RemoteAccess => {
                        port.hca.counters.req_remote_access_errors += 1;
                        WcStatus::RemoteAccess
                    }
                    NakCode::RemoteOperational => WcStatus::RemoteOperation,
                    _ => {
                        port.hca.counters.req_remote_invalid_request += 1;
                        WcStatus::RemoteInvalidRequest
                    }
                };
                self.fail_at(psn, status);
            }
            Syndrome::Reserved(_) => port.hca.drop(Drop::BadOpcode),
        }
    }

    /// Everything up to and including `psn` is acknowledged, unless an answer with data is
    /// missing before that: then that one was lost (IBTA vol1 9.7.6, implied NAK).
    #[inline]
    fn acknowledge_through(&mut self, port: &mut Port, now: Instant, psn: Psn) {
        match self.req.outstanding.missing_fetch(psn) {
            None => self.acknowledge(port, now, psn.next()),
            Some((_, missing)) => {
                self.acknowledge(port, now, missing);
                self.implied_nak(port, now, missing);
            }
        }
    }

    /// A negative answer to `psn` acknowledges everything before. False: an answer with data is
    /// missing before that and is requested again.
    fn acknowledge_before(&mut self, port: &mut Port, now: Instant, psn: Psn) -> bool {
        match self.req.outstanding.missing_fetch(psn.prev()) {
            Some((_, missing)) if missing.is_before(psn) => {
                self.acknowledge(port, now, missing);
                self.implied_nak(port, now, missing);
                false
            }
            _ => {
                self.acknowledge(port, now, psn);
                true
            }
        }
    }

    /// An answer that must have been sent before another did not arrive.
    fn implied_nak(&mut self, port: &mut Port, now: Instant, missing: Psn) {
        // Once per gap: the peer sent the later answers before it could know of the loss.
        if self.req.response_gap {
            return port.hca.drop(Drop::ResponseGap);
        }
        self.req.response_gap = true;
        port.hca.counters.implied_nak_seq_err += 1;
        self.missed(port, now);
        self.retry(port, now, missing);
    }

    /// A read response or an atomic acknowledgement.
    #[inline]
    fn handle_fetched(
        &mut self,
        port: &mut Port,
        now: Instant,
        psn: Psn,
        op: Op,
        data: RxPayload<'_>,
    ) {
        let Some((index, expected)) = self.req.outstanding.missing_fetch(psn) else {
            return port.hca.drop(Drop::GhostResponse);
        };
        if psn.is_before(expected) {
            return port.hca.drop(Drop::GhostResponse);
        }
        // The answer acknowledges every request before it.
        self.acknowledge(port, now, expected);
        if psn != expected {
            return self.implied_nak(port, now, expected);
        }
        self.req.response_gap = false;
        let flight = self.req.outstanding.flights[index];
        let packet = psn.since(flight.first);
        let (packets, end) = (data.packets(), psn.wrapping_add(data.packets()));
        let Some(wr) = self.common.sq.peek(index) else {
            return;
        };
        let offset = u64::from(packet) * self.pmtu as u64;
        let fits = match (wr.op, op) {
            (SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. }, Op::AtomicAcknowledge) => true,
            (SendOp::Read(_), op) if op.is_read_response() => {
                let is_last = packet + packets == flight.packets;
                let may_end = is_last || self.req.outstanding.is_piece_end(end);
                let most = u64::from(packets) * self.pmtu as u64;
                (packet != 0 || op.starts())
                    && packets <= flight.packets - packet
                    && if op.ends() { may_end } else { !is_last }
                    && data.len() as u64 == (u64::from(flight.len) - offset).min(most)
            }
            // Annex A19: answered like a read of nothing.
            (SendOp::AtomicWrite(_) | SendOp::Flush { .. }, Op::ReadResponseOnly) => {
                data.len() == 0
            }
            _ => false,
        };
        if !fits {
            // IBTA vol1 9.9.2: a response that answers no such request.
            return self.fail_at(psn, WcStatus::BadResponse);
        }
        let sges = match &wr.data {
            Data::Sges(sges) => sges.as_slice(),
            Data::Inline(_) => &[],
        };
        match scatter(&port.hca.mrs, self.common.init.pd, sges, offset, data) {
            Ok(()) => self.acknowledge(port, now, end),
            Err(ScatterError::Gone) => self.fetch_again(port, psn),
            Err(ScatterError::TooLong) => self.fail_at(psn, WcStatus::LocalLength),
            Err(ScatterError::Protection) => self.fail_at(psn, WcStatus::LocalProtection),
        }
    }

    /// The peer's process revoked the payload of an answer before this one fetched it: one of its
    /// keys has ended, which need not be the key of this READ. No packet was lost, so this costs no
    /// retry.
    #[cold]
    fn fetch_again(&mut self, port: &mut Port, psn: Psn) {
        port.hca.drop(Drop::PayloadGone);
        // The answers behind this one were asked for before.
        self.req.response_gap = true;
        self.common.counters.retransmissions += 1;
        self.go_back(port, psn);
        self.req.ack_deadline = None;
        self.req.probe_deadline = None;
    }

    /// Everything before `psn` is done. Progress: counters and timers start afresh.
    #[inline]
    fn acknowledge(&mut self, port: &mut Port, now: Instant, psn: Psn) {
        if !psn.is_after(self.req.outstanding.una) {
            return;
        }
        self.req.repair.acknowledged(psn, self.req.outstanding.cursor_psn());
        let freed = self.req.outstanding.acknowledge(psn, self.pmtu);
        if !self.req.awaits_ack() {
            self.common.shared.set_awaits_answer(false);
        }
        if let Some(id) = self.destination {
            let window = port.hca.config.window;
            let peer = port.destinations.get(id);
            peer.release(freed);
            let timed = self.req.timed.take_if(|(end, _)| !end.is_after(psn));
            let rtt_ns = timed.map(|(_, sent)| now.nanos_since(sent));
            if let Some(rtt_ns) = rtt_ns {
                peer.measured(rtt_ns);
            }
            peer.acked(freed, &window);
            port.wake_next(id);
            if self.cc.is_some() {
                self.control_acked(&port.hca.config, now, rtt_ns);
            }
        }
        self.req.retries_left = self.common.attr.retry_cnt.unwrap_or(0);
        self.req.silent_since = None;
        self.req.rnr_left = self.common.attr.rnr_retry.unwrap_or(0);
        self.req.rnr_until = None;
        self.req.probes = 0;
        self.req.ack_deadline = None;
        self.req.probe_deadline = None;
        if self.req.outstanding.has_unacked() {
            self.req.ack_deadline = self.ack_timeout_ns().map(|ns| now.plus_nanos(ns));
            self.arm_probe(port, now);
        }
    }

    /// Sends again from `psn` on, if a retry is left.
    fn retry(&mut self, port: &mut Port, now: Instant, psn: Psn) {
        self.retry_by(port, now, psn, |qp, port| {
            qp.congested(port, now);
            qp.go_back(port, psn);
        });
    }

    /// The packet `psn` was lost, or its answer: sends `again`, if a retry is left.
    fn retry_by(
        &mut self,
        port: &mut Port,
        now: Instant,
        psn: Psn,
        again: impl FnOnce(&mut Self, &mut Port),
    ) {
        port.hca.counters.completer_retry_err += 1;
        if self.req.retries_left == 0 || self.common.init.loss == LossPolicy::Fatal {
            port.hca.counters.retry_exceeded_err += 1;
            return self.fail_at(psn, WcStatus::RetryExceeded);
        }
        self.req.retries_left -= 1;
        self.common.counters.retransmissions += 1;
        again(self, port);
        self.control_lost(&port.hca.config, now);
        self.req.ack_deadline = None;
        self.req.probe_deadline = None;
    }

    /// Tells the destination that packets were lost.
    pub(super) fn congested(&mut self, port: &mut Port, now: Instant) {
        let window = port.hca.config.window;
        if let Some(id) = self.destination {
            port.destinations.get(id).lost(now, &window);
        }
    }

    /// Tells the destination that a packet is missing between others, on the way there or back.
    fn missed(&self, port: &mut Port, now: Instant) {
        if let Some(id) = self.destination {
            port.destinations.get(id).missed(now);
        }
    }

    /// Moves the cursor back to `psn`.
    pub(super) fn go_back(&mut self, port: &mut Port, psn: Psn) {
        let freed = self.req.outstanding.go_back(psn, self.pmtu);
        self.req.ack_requests.go_back(psn);
        self.req.repair.go_back();
        // A round trip that includes a retransmission is ambiguous (Karn's algorithm).
        self.req.timed = None;
        if let Some(id) = self.destination {
            port.destinations.get(id).release(freed);
            port.wake_next(id);
        }
    }

    /// The request that `psn` belongs to fails when its turn comes; nothing after it is sent.
    fn fail_at(&mut self, psn: Psn, status: WcStatus) {
        let kind = self.halt(status);
        let flights = &mut self.req.outstanding.flights;
        if let Some(f) = flights.iter_mut().find(|f| f.reaches(psn)) {
            f.kind = kind;
        }
    }

    /// Whether the peer has not answered in time.
    pub(crate) fn is_silent(&self, now: Instant) -> bool {
        self.req.ack_deadline.is_some_and(|at| at <= now)
    }

    /// The peer that [`Qp::is_silent`] is about.
    pub(crate) fn silent_peer(&self) -> SilentPeer {
        SilentPeer { qpn: self.common.qpn, path: self.path, dest: self.dest_qpn() }
    }

    /// Timers of the requester.
    pub(crate) fn handle_timeout(&mut self, port: &mut Port, now: Instant) {
        if self.is_silent(now) {
            self.handle_silence(port, now, false);
        } else {
            self.end_rnr_wait(now);
            if self.req.probe_deadline.is_some_and(|at| at <= now) {
                self.probe(port, now);
            }
        }
    }

    fn end_rnr_wait(&mut self, now: Instant) {
        if self.req.rnr_until.is_some_and(|at| at <= now) {
            self.req.rnr_until = None;
        }
    }

    /// The peer has not answered in time. `has_unread`: the peer process has not read yet what was
    /// sent to it.
    pub(crate) fn handle_silence(&mut self, port: &mut Port, now: Instant, has_unread: bool) {
        self.end_rnr_wait(now);
        let since = *self.req.silent_since.get_or_insert(now);
        if has_unread && now.nanos_since(since) < EXCUSED_NS {
            // The peer process has the packets and has not read them: a retransmission would not
            // help.
            port.hca.counters.excused_timeouts += 1;
            self.req.ack_deadline = self.ack_timeout_ns().map(|ns| now.plus_nanos(ns));
            return;
        }
        port.hca.counters.local_ack_timeout_err += 1;
        self.req.response_gap = false;
        self.req.unanswered = true;
        self.retry(port, now, self.req.outstanding.una);
        self.retire(port, now);
    }

    /// Completes requests that are done, oldest first.
    #[inline]
    pub(super) fn retire(&mut self, port: &mut Port, now: Instant) {
        while let Some(&flight) = self.req.outstanding.flights.front() {
            match flight.kind {
                Kind::Failed(status) => {
                    // Requests before it are all done: this is its turn.
                    return self.fail_oldest(port, now, status);
                }
                Kind::Local => {}
                Kind::Acked | Kind::Fetched => {
                    if flight.reaches(self.req.outstanding.una) {
                        break;
                    }
                }
            }
            self.req.outstanding.retire();
            let all = self.common.init.sq_sig_all;
            let look = |wr: &SendWr| {
                let signalled = wr.flags.contains(SendFlags::SIGNALED) || all;
                Some(signalled.then(|| (wr.wr_id, wr.op.wc_opcode(), wr.op.is_fetch())))
            };
            // First make room, then report: the thread that polls the completion may post at once.
            let Some(report) = self.common.sq.pop_if(look) else { break };
            if let Some((wr_id, opcode, is_fetch)) = report {
                let fetched = if is_fetch { flight.len } else { 0 };
                let cqe = Cqe::new(wr_id, self.common.qpn, opcode, WcStatus::Success, now);
                self.report_send(port, Cqe { byte_len: fetched, ..cqe });
            }
        }
        self.check_drained(port);
    }

    /// Reports a completion of the send queue.
    #[inline]
    pub(super) fn report_send(&self, port: &mut Port, cqe: Cqe) {
        if self.common.init.qp_type.is_reliable() {
            port.hca.complete_send(self.common.init.send_cq, cqe);
        } else {
            port.complete_unreliable(self.common.init.send_cq, cqe);
        }
    }

    /// In SQD, reports once that everything started is done (IBTA vol1 10.3.1.5).
    pub(super) fn check_drained(&mut self, port: &mut Port) {
        if self.req.draining && self.req.outstanding.flights.is_empty() {
            self.req.draining = false;
            if self.req.drain_notify {
                port.hca.event(AsyncEvent::SqDrained(self.common.qpn));
            }
        }
    }

    /// The oldest request failed: its completion says why, and the queue pair stops.
    pub(super) fn fail_oldest(&mut self, port: &mut Port, now: Instant, status: WcStatus) {
        self.revoke(port);
        port.hca.hold_until_quiet(self.common.qpn, Some(self.dest_qpn()));
        if let Some(wr) = self.common.sq.pop() {
            self.req.outstanding.retire();
            let cqe = Cqe::new(wr.wr_id, self.common.qpn, wr.op.wc_opcode(), status, now);
            self.report_send(port, cqe);
        }
        match self.common.init.qp_type {
            QpType::Uc | QpType::Ud => self.enter_send_error(port, now),
            _ => self.enter_error(port, now),
        }
    }
}
