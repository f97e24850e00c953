//! Modify and query, and how a stream and its queue pair end.

use feroce_train::Instant;
use feroce_wire::iwarp::terminate::{Cause, Terminate};

use super::qp::{Phase, Qp, Stream};
use super::setup::StreamSetup;
use crate::hca::attr::{AttrMask, QpAttr};
use crate::hca::cqe::{Cqe, WcOpcode, WcStatus};
use crate::hca::error::ModifyQpError;
use crate::hca::event::{AsyncEvent, StreamEnd, StreamEvent};
use crate::hca::id::SrqId;
use crate::hca::qp::RecvSource;
use crate::hca::shared::Shared;
use crate::hca::state::QpState;

/// How long the rest of an FPDU may take to arrive, from the last byte on.
///
/// A length field that was damaged on its way makes this end wait for bytes that the peer does not
/// have. The CRC cannot tell before they are there, and if the peer waits for an answer, both would
/// wait forever.
pub(super) const STALLED_NS: u64 = 60_000_000_000;

impl Qp {
    /// Changes attributes and state. A queue pair gets to RTS by its stream only
    /// ([`Qp::attach`]), and of the attributes iWARP has but the rights of the peer.
    pub(crate) fn modify(
        &mut self,
        hca: &mut Shared,
        now: Instant,
        attr: &QpAttr,
    ) -> Result<(), ModifyQpError> {
        if attr.cur_state.is_some_and(|state| state != self.common.state) {
            return Err(ModifyQpError::NotInState { actual: self.common.state });
        }
        let (from, to) = (self.common.state, attr.state.unwrap_or(self.common.state));
        let is_connected = matches!(from, QpState::Rts | QpState::Sqd);
        match to {
            QpState::Reset => self.reset(hca),
            QpState::Err => self.stop(hca, now),
            QpState::Init if matches!(from, QpState::Reset | QpState::Init) => {
                self.common.set_state(to);
            }
            QpState::Rts if is_connected => self.common.set_state(to),
            QpState::Rtr | QpState::Rts if from == QpState::Init => {
                let why = "the connection manager connects the queue pairs of iWARP";
                return Err(ModifyQpError::BadValue(AttrMask::STATE, why));
            }
            _ => return Err(ModifyQpError::NoTransition { from, to }),
        }
        if to != QpState::Reset {
            self.common.attr.access = attr.access.or(self.common.attr.access);
        }
        Ok(())
    }

    /// What query shows.
    pub(crate) fn query(&self) -> QpAttr {
        let reads = |n: u16| Some(u8::try_from(n).unwrap_or(u8::MAX));
        let setup = self.stream.as_ref().map(|stream| stream.setup);
        QpAttr {
            state: Some(self.common.state),
            cur_state: Some(self.common.state),
            max_rd_atomic: setup.and_then(|setup| reads(setup.ord)),
            max_dest_rd_atomic: setup.and_then(|setup| reads(setup.ird)),
            ..self.common.attr
        }
    }

    /// Two ends have agreed: the queue pair goes to RTS.
    pub(crate) fn attach(
        &mut self,
        hca: &mut Shared,
        setup: &StreamSetup,
    ) -> Result<(), ModifyQpError> {
        if self.common.state != QpState::Init {
            return Err(ModifyQpError::NotInState { actual: self.common.state });
        }
        self.stream = Some(Stream::new(setup));
        self.common.set_state(QpState::Rts);
        hca.kicked.push(self.common.slot);
        Ok(())
    }

    /// TCP has taken bytes of the stream: requests whose last byte is among them are done.
    pub(crate) fn on_sent(&mut self, hca: &mut Shared, now: Instant, bytes: usize) {
        if let Some(stream) = &mut self.stream {
            stream.taken = (stream.taken + bytes as u64).min(stream.given);
        }
        self.retire(hca, now);
        // A local invalidate may have waited for that. TCP that takes nothing changes nothing.
        if bytes > 0 && self.may_have_more() {
            hca.kicked.push(self.common.slot);
        }
    }

    /// The peer has closed the stream, or it broke.
    pub(crate) fn on_stream_end(&mut self, hca: &mut Shared, now: Instant, is_broken: bool) {
        let Some(stream) = &self.stream else { return };
        let is_whole = stream.deframer.is_between() && !is_broken;
        self.end_stream(hca, now, if is_whole { StreamEnd::Closed } else { StreamEnd::Cut });
    }

    /// A timer of the queue pair is due: ends the stream if an FPDU has stalled.
    pub(crate) fn handle_timeout(&mut self, hca: &mut Shared, now: Instant) {
        let Some(stream) = self.stream.as_ref().filter(|stream| stream.phase == Phase::Open) else {
            return;
        };
        if stream.deframer.is_between() {
            return;
        }
        let deadline = stream.heard_at.plus_nanos(STALLED_NS);
        if deadline <= now {
            self.end_stream(hca, now, StreamEnd::Stalled);
        } else {
            hca.timers.arm(self.common.slot, &mut self.common.armed, deadline);
        }
    }

    /// Ends the stream with a TERMINATE that says why.
    pub(super) fn terminate(&mut self, hca: &mut Shared, now: Instant, cause: Cause) {
        self.terminate_with(hca, now, Terminate::new(cause));
    }

    /// Ends the stream with this message.
    pub(super) fn terminate_with(&mut self, hca: &mut Shared, now: Instant, message: Terminate) {
        self.end_stream(hca, now, StreamEnd::Terminated(message.cause));
        if let Some(stream) = &mut self.stream {
            stream.phase = Phase::Terminating(message);
            hca.kicked.push(self.common.slot);
        }
    }

    /// The stream has ended: nothing is received any more, and everything posted is flushed.
    pub(super) fn end_stream(&mut self, hca: &mut Shared, now: Instant, end: StreamEnd) {
        let Some(stream) = self.stream.as_mut().filter(|s| s.phase == Phase::Open) else {
            return;
        };
        stream.phase = Phase::Over;
        match end {
            StreamEnd::Closed => {}
            StreamEnd::Cut => hca.stream_counters.iwarp_cut += 1,
            StreamEnd::Stalled => hca.stream_counters.iwarp_stalled += 1,
            StreamEnd::Terminated(cause) => hca.stream_counters.refuse(cause),
            StreamEnd::PeerTerminated(_) => hca.stream_counters.iwarp_terminated_by_peer += 1,
        }
        hca.stream_ends.push_back(StreamEvent { qpn: self.common.qpn, end });
        // The driver learns from an empty poll that it may close.
        hca.kicked.push(self.common.slot);
        self.enter_error(hca, now);
    }

    /// To ERR, for a reason that the stream has no part in: the driver closes it, and connection
    /// management tells the consumer.
    pub(crate) fn stop(&mut self, hca: &mut Shared, now: Instant) {
        self.end_stream(hca, now, StreamEnd::Closed);
        self.enter_error(hca, now);
    }

    /// To ERR: everything posted is flushed, oldest first.
    fn enter_error(&mut self, hca: &mut Shared, now: Instant) {
        if self.common.state != QpState::Err {
            let was = self.common.state;
            self.common.set_state(QpState::Err);
            hca.revoke_answers();
            if was != QpState::Reset && !self.is_landing() {
                self.tell_last_receive(hca);
            }
        }
        if let Some(stream) = &mut self.stream {
            if stream.phase == Phase::Open {
                stream.phase = Phase::Over;
            }
            stream.req.flights.clear();
            stream.req.sinks.clear();
            stream.rsp.replies.clear();
        }
        self.flush(hca, now);
    }

    /// The queue pair takes no more receives from its shared receive queue, and those that it has
    /// taken complete with this call at the latest.
    pub(super) fn tell_last_receive(&self, hca: &mut Shared) {
        if matches!(self.common.rq, RecvSource::Srq(_)) {
            hca.event(AsyncEvent::LastWqeReached(self.common.qpn));
        }
    }

    fn is_landing(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.is_landing)
    }

    /// Completes as flushed what is posted on a queue pair in ERR. While the driver receives
    /// payload into memory, that waits: a completion gives the memory back to the consumer.
    pub(crate) fn flush(&mut self, hca: &mut Shared, now: Instant) {
        if self.common.state != QpState::Err || self.is_landing() {
            return;
        }
        while self.common.sq.peek(0).is_some() {
            self.complete_oldest(hca, now, WcStatus::Flushed);
        }
        let begun = self.stream.as_mut().and_then(|stream| stream.rsp.receive.take());
        let (qpn, cq) = (self.common.qpn, self.common.init.recv_cq);
        let mut flush = |wr_id| {
            hca.complete_recv(cq, Cqe::new(wr_id, qpn, WcOpcode::Recv, WcStatus::Flushed, now));
        };
        if let Some(receive) = begun {
            flush(receive.wr.wr_id);
        }
        if let RecvSource::Own(ring) = &mut self.common.rq {
            while let Some(wr) = ring.pop() {
                flush(wr.wr_id);
            }
        }
    }

    /// Back to RESET: everything posted is forgotten without completions.
    pub(crate) fn reset(&mut self, hca: &mut Shared) {
        self.common.set_state(QpState::Reset);
        // The driver learns that it may close the stream.
        if self.stream.take().is_some_and(|stream| stream.phase == Phase::Open) {
            let (qpn, end) = (self.common.qpn, StreamEnd::Closed);
            hca.stream_ends.push_back(StreamEvent { qpn, end });
        }
        hca.mrs.unbind_qp(self.common.qpn);
        hca.revoke_answers();
        while self.common.sq.pop().is_some() {}
        if let RecvSource::Own(ring) = &mut self.common.rq {
            while ring.pop().is_some() {}
        }
        self.common.attr = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
    }

    /// A shared receive queue goes away, and with it a receive that a message had begun to fill.
    pub(crate) fn forget_receive_of(&mut self, srq: SrqId) {
        if matches!(self.common.rq, RecvSource::Srq(id) if id == srq)
            && let Some(stream) = &mut self.stream
        {
            stream.rsp.receive = None;
        }
    }
}
