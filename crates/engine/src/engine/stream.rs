//! Streams: what the driver does with the queue pairs of iWARP.

use feroce_train::{Burst, Instant, Scatter};
use feroce_wire::Qpn;

use super::Engine;
use super::transport::Transport;
use crate::hca::error::ModifyQpError;
use crate::hca::event::StreamEvent;
use crate::iwarp::qp::Qp;
use crate::iwarp::setup::StreamSetup;

/// Streams of the iWARP transport. The driver has one TCP connection per queue pair.
///
/// After any call, and after a consumer rang a doorbell: call [`Engine::poll_stream_ready`] until
/// it gives nothing; for each queue pair [`Engine::poll_stream`], and send the bytes; then
/// [`Engine::poll_stream_event`] and [`Engine::poll_event`].
impl Engine {
    /// The ends of a stream have agreed on a setup: the queue pair goes from INIT to RTS.
    pub fn attach_stream(
        &mut self,
        now: Instant,
        qpn: Qpn,
        setup: &StreamSetup,
    ) -> Result<(), ModifyQpError> {
        self.now = now;
        let qp = self.qps.get(qpn).and_then(Transport::iwarp).ok_or(ModifyQpError::Unknown)?;
        qp.attach(&mut self.port.hca, setup)
    }

    /// A responder does not wait any longer for the first message of its peer: it sends.
    pub fn stop_waiting(&mut self, now: Instant, qpn: Qpn) {
        self.with_stream(now, qpn, |qp, hca| qp.stop_waiting(hca));
    }

    /// The peer may have overlooked the empty WRITE by which this end lets it send: sends it once
    /// more. False: the peer has sent something since.
    pub fn announce_again(&mut self, now: Instant, qpn: Qpn) -> bool {
        self.with_stream(now, qpn, |qp, hca| qp.announce_again(hca)).unwrap_or(false)
    }

    /// Bytes of a stream have arrived, cut anywhere. True: [`Engine::lend_scatter`] would give the
    /// driver a place for the next ones.
    pub fn handle_stream(&mut self, now: Instant, qpn: Qpn, bytes: &[u8]) -> bool {
        let lends = self.with_stream(now, qpn, |qp, hca| {
            qp.handle_stream(hca, now, bytes);
            qp.payload_to_land() > 0
        });
        lends.unwrap_or(false)
    }

    /// Where the next bytes of a stream go, if they are payload of some length: the driver may
    /// receive them there, without a copy, and calls [`Engine::handle_stream_landed`] then. If
    /// `out` stays empty, it receives elsewhere.
    pub fn lend_scatter(&mut self, now: Instant, qpn: Qpn, out: &mut Scatter) {
        self.with_stream(now, qpn, |qp, hca| qp.lend_scatter(hca, out));
    }

    /// The driver has received the next `len` bytes of a stream where [`Engine::lend_scatter`] has
    /// said, and accesses that memory no more. No other bytes were given to
    /// [`Engine::handle_stream`] since; `len` may be 0.
    pub fn handle_stream_landed(&mut self, now: Instant, qpn: Qpn, len: usize) {
        self.with_stream(now, qpn, |qp, hca| qp.handle_landed(hca, now, len));
    }

    /// The peer has closed a stream, or it broke.
    pub fn handle_stream_end(&mut self, now: Instant, qpn: Qpn, is_broken: bool) {
        self.with_stream(now, qpn, |qp, hca| qp.on_stream_end(hca, now, is_broken));
    }

    /// TCP has taken as many bytes of what [`Engine::poll_stream`] gave out.
    pub fn handle_stream_sent(&mut self, now: Instant, qpn: Qpn, bytes: usize) {
        self.with_stream(now, qpn, |qp, hca| qp.on_sent(hca, now, bytes));
    }

    /// The next queue pair whose stream may have something to say.
    pub fn poll_stream_ready(&mut self, now: Instant) -> Option<Qpn> {
        self.now = now;
        self.collect_work(now);
        let next = loop {
            let Some(slot) = self.port.hca.ready.pop_front() else { break None };
            if let Some(qp) = self.qps.at(slot).and_then(Transport::iwarp) {
                qp.common.queued = false;
                break Some(qp.common.qpn);
            }
        };
        self.finish();
        next
    }

    /// Appends what the stream of a queue pair has to say, until `out` has `room` bytes or more. If
    /// there is more, the queue pair is ready again. True: the stream ends behind these bytes.
    pub fn poll_stream(&mut self, now: Instant, qpn: Qpn, room: usize, out: &mut Burst) -> bool {
        self.with_stream(now, qpn, |qp, hca| {
            let is_over = qp.poll_stream(hca, now, room, out);
            if out.len() >= room && qp.may_have_more() && !qp.common.queued {
                qp.common.queued = true;
                hca.ready.push_back(qp.common.slot);
            }
            is_over
        })
        .unwrap_or(true)
    }

    /// Whether a queue pair has no stream any more to which requests or answers are added: what
    /// [`Engine::poll_stream`] still gives out, if anything, is a TERMINATE.
    pub fn has_stream_ended(&mut self, qpn: Qpn) -> bool {
        self.qps.get(qpn).and_then(Transport::iwarp).is_none_or(|qp| qp.has_stream_ended())
    }

    /// The next stream that has ended.
    pub fn poll_stream_event(&mut self) -> Option<StreamEvent> {
        self.port.hca.stream_ends.pop_front()
    }

    fn with_stream<T>(
        &mut self,
        now: Instant,
        qpn: Qpn,
        act: impl FnOnce(&mut Qp, &mut crate::hca::shared::Shared) -> T,
    ) -> Option<T> {
        self.now = now;
        let qp = self.qps.get(qpn).and_then(Transport::iwarp)?;
        let result = act(qp, &mut self.port.hca);
        self.finish();
        Some(result)
    }
}
