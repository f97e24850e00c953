//! What is said next: a TERMINATE, responses and requests in turn, message by message.

use feroce_mem::Read;
use feroce_train::{Burst, Instant};
use feroce_wire::Rkey;
use feroce_wire::iwarp::Crc32c;
use feroce_wire::iwarp::atomic::{AtomicRequest, AtomicResponse, Immediate};
use feroce_wire::iwarp::ddp::{Control, Header, QueueNumber, Tagged};
use feroce_wire::iwarp::fpdu;
use feroce_wire::iwarp::rdmap::{RdmaOp, ReadRequest};
use feroce_wire::iwarp::terminate::Terminate;

use super::buffers::{Parts, copy_out, filled, gather, keep_parts, keep_with_place};
use super::qp::{Phase, Qp, Stream};
use super::requester::Next;
use super::requester_state::{Flight, Sink, untagged};
use super::responder_state::Reply;
use super::setup::{Begin, ReadyToReceive};
use crate::hca::shared::Shared;
use crate::hca::wr::{Data, SendOp};

/// The shortest payload that is sent from where it is: copying less is quicker than to tell the
/// kernel of another place.
const APART: usize = 2048;

impl Qp {
    /// Appends segments to `out` until it has `room` bytes or more, or there are none. True: the
    /// stream ends behind them.
    pub(crate) fn poll_stream(
        &mut self,
        hca: &mut Shared,
        now: Instant,
        room: usize,
        out: &mut Burst,
    ) -> bool {
        let before = out.len();
        self.announce(out);
        while out.len() < room && self.is_open() && self.transmit(hca, now, out) {}
        if let Some(stream) = &mut self.stream
            && let Phase::Terminating(message) = stream.phase
        {
            emit_terminate(stream, &message, out);
            stream.phase = Phase::Over;
        }
        hca.counters.sent_bytes += (out.len() - before) as u64;
        self.stream.as_ref().is_none_or(|stream| stream.phase == Phase::Over)
    }

    /// Whether there may be more to say.
    pub(crate) fn may_have_more(&self) -> bool {
        let Some(stream) = &self.stream else { return false };
        match stream.phase {
            Phase::Open => {
                stream.req.sending().is_some()
                    || stream.req.telling().is_some()
                    || !stream.rsp.replies.is_empty()
                    || self.common.sq.peek(stream.req.flights.len()).is_some()
            }
            Phase::Terminating(_) => true,
            Phase::Over => false,
        }
    }

    /// Whether the stream has ended, or there is none.
    pub(crate) fn has_stream_ended(&self) -> bool {
        !self.is_open()
    }

    fn is_open(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.phase == Phase::Open)
    }

    /// Sends one segment, or does something else; false: there is nothing to do.
    fn transmit(&mut self, hca: &mut Shared, now: Instant, out: &mut Burst) -> bool {
        let Some(stream) = &self.stream else { return false };
        let has_reply = !stream.rsp.replies.is_empty();
        let in_reply = stream.rsp.replies.front().is_some_and(Reply::is_begun);
        let in_request = stream.req.sending().is_some() || stream.req.telling().is_some();
        if has_reply && !in_request && (in_reply || !stream.replied) {
            return self.send_reply(hca, now, out);
        }
        let progressed = self.send_request(hca, now, out);
        if !progressed && has_reply && self.is_open() {
            return self.send_reply(hca, now, out);
        }
        progressed
    }

    /// Sends a segment of a request.
    fn send_request(&mut self, hca: &mut Shared, now: Instant, out: &mut Burst) -> bool {
        let next = self.next_request(hca, now);
        let (pd, Some(stream)) = (self.common.init.pd, &mut self.stream) else { return false };
        stream.replied = false;
        match next {
            Next::Nothing => return false,
            Next::Again => {}
            Next::Failed => return true,
            Next::Read(header, request) => {
                let mut bytes = [0; ReadRequest::LEN];
                request.emit(&mut bytes);
                emit_bytes(stream, &header, &bytes, out);
                hca.counters.sent_pkts += 1;
            }
            Next::Atomic(header, request) => {
                let mut bytes = [0; AtomicRequest::LEN];
                request.emit(&mut bytes);
                emit_bytes(stream, &header, &bytes, out);
                hca.counters.sent_pkts += 1;
            }
            Next::Tell(header, immediate) => {
                let mut bytes = [0; Immediate::LEN];
                immediate.emit(&mut bytes);
                emit_bytes(stream, &header, &bytes, out);
                hca.counters.sent_pkts += 1;
                if let Some(flight) = stream.req.flights.back_mut() {
                    *flight = Flight::Sent { end: stream.given };
                }
            }
            Next::Segment { index, header, offset, len } => {
                let Some(wr) = self.common.sq.peek(index) else { return false };
                let tells = matches!(wr.op, SendOp::WriteImm(..));
                if is_sent_apart(stream, len)
                    && let Data::Sges(sges) = &wr.data
                    && let Some(parts) = keep_parts(&hca.mrs, pd, sges.as_slice(), offset, len)
                {
                    emit_apart(stream, &header, len, out, parts);
                } else {
                    emit(stream, &header, len, out, |at, out, crc| {
                        gather(&hca.mrs, pd, &wr.data, offset + at as u64, out, crc);
                    });
                }
                hca.counters.sent_pkts += 1;
                let offset = offset + len as u64;
                if let Some(flight) = stream.req.flights.back_mut() {
                    *flight = match header.control().last {
                        true if tells => Flight::Telling,
                        true => Flight::Sent { end: stream.given },
                        false => Flight::Sending { offset },
                    };
                }
            }
        }
        self.retire(hca, now);
        true
    }

    /// Sends a segment of a response.
    fn send_reply(&mut self, hca: &mut Shared, now: Instant, out: &mut Burst) -> bool {
        let (pd, qpn) = (self.common.init.pd, self.common.qpn);
        let front = self.stream.as_ref().and_then(|stream| stream.rsp.replies.front().copied());
        let (request, done) = match front {
            Some(Reply::Read { request, done }) => (request, done),
            Some(Reply::Atomic(response)) => return self.send_atomic_response(hca, response, out),
            None => return false,
        };
        // The key may have ended since the request arrived.
        if let Err(failure) = self.check_read(hca, &request) {
            let message = Terminate { request: failure.request, ..Terminate::new(failure.cause) };
            self.terminate_with(hca, now, message);
            return true;
        }
        let Some(stream) = &mut self.stream else { return false };
        let most = stream.setup.max_ulpdu.saturating_sub(Tagged::LEN).max(1);
        let len = (request.len - done).min(u32::try_from(most).unwrap_or(u32::MAX));
        let is_last = done + len == request.len;
        let header = Header::Tagged(Tagged {
            control: Control::new(RdmaOp::READ_RESPONSE, is_last),
            stag: request.sink_stag,
            offset: request.sink_offset.wrapping_add(done.into()),
        });
        let from = request.source_offset.wrapping_add(done.into());
        let lend = |from, len| hca.mrs.lend_remote::<Read>(pd, qpn, request.source_stag, from, len);
        if is_sent_apart(stream, len as usize)
            && let Some(part) = keep_with_place(lend(from, len.into()))
        {
            emit_apart(stream, &header, len as usize, out, Parts::from_iter([part]));
        } else {
            emit(stream, &header, len as usize, out, |at, out, crc| {
                let loan = lend(from.wrapping_add(at as u64), out.len() as u64);
                let is_copied = loan.is_ok_and(|loan| copy_out(&loan, out, crc).is_ok());
                filled(is_copied, out);
            });
        }
        hca.counters.sent_pkts += 1;
        if is_last {
            stream.rsp.replies.pop_front();
            stream.replied = true;
        } else if let Some(Reply::Read { done, .. }) = stream.rsp.replies.front_mut() {
            *done += len;
        }
        true
    }

    /// Sends the response to an atomic, which has been executed.
    fn send_atomic_response(
        &mut self,
        hca: &mut Shared,
        response: AtomicResponse,
        out: &mut Burst,
    ) -> bool {
        let Some(stream) = &mut self.stream else { return false };
        let (opcode, queue) = (RdmaOp::ATOMIC_RESPONSE, QueueNumber::ATOMIC_RESPONSE);
        let header = untagged(opcode, queue, stream.rsp.atomic_msn);
        stream.rsp.atomic_msn = stream.rsp.atomic_msn.wrapping_add(1);
        let mut bytes = [0; AtomicResponse::LEN];
        response.emit(&mut bytes);
        emit_bytes(stream, &Header::Untagged(header), &bytes, out);
        stream.rsp.replies.pop_front();
        stream.replied = true;
        hca.counters.sent_pkts += 1;
        true
    }

    /// Requests are sent although the peer has not sent anything yet.
    pub(crate) fn stop_waiting(&mut self, hca: &mut Shared) {
        if let Some(stream) = &mut self.stream {
            stream.may_send = true;
            hca.kicked.push(self.common.slot);
        }
    }

    /// Lets [`Qp::announce`] send an empty WRITE, between two messages, if this end has sent one,
    /// or another message as the first, and the peer has not sent anything yet. False: the peer
    /// needs no reminder.
    pub(crate) fn announce_again(&mut self, hca: &mut Shared) -> bool {
        let Some(stream) = self.stream.as_mut().filter(|stream| stream.phase == Phase::Open) else {
            return false;
        };
        let has_sent = stream.rsp.segment.is_some() || !stream.deframer.is_between();
        let reminds = [Begin::Announce(ReadyToReceive::Write), Begin::Send];
        if has_sent || !reminds.contains(&stream.setup.begin) {
            return false;
        }
        if stream.given > 0 && stream.req.sending().is_none() && stream.req.telling().is_none() {
            stream.req.has_announced = false;
            hca.kicked.push(self.common.slot);
        }
        true
    }

    /// Sends the message that lets the peer send, once, or a reminder.
    fn announce(&mut self, out: &mut Burst) {
        let Some(stream) = self.stream.as_mut().filter(|stream| stream.phase == Phase::Open) else {
            return;
        };
        let kind = match stream.setup.begin {
            Begin::Announce(kind) => kind,
            Begin::Send => ReadyToReceive::Write,
            Begin::Await(_) => return,
        };
        if core::mem::replace(&mut stream.req.has_announced, true) {
            return;
        }
        match kind {
            ReadyToReceive::Send => {
                let header = untagged(RdmaOp::SEND, QueueNumber::SEND, stream.req.send_msn);
                stream.req.send_msn = stream.req.send_msn.wrapping_add(1);
                emit_bytes(stream, &Header::Untagged(header), &[], out);
            }
            ReadyToReceive::Write => {
                let control = Control::new(RdmaOp::WRITE, true);
                let header = Tagged { control, stag: Rkey(0), offset: 0 };
                emit_bytes(stream, &Header::Tagged(header), &[], out);
            }
            ReadyToReceive::Read => {
                let (stag, is_announcement) = (Rkey(0), true);
                let (offset, left, atomic) = (0, 0, None);
                let sink = Sink { stag, offset, left, is_announcement, atomic };
                stream.req.sinks.push_back(sink);
                let header = stream.req.read_request();
                emit_bytes(stream, &header, &[0; ReadRequest::LEN], out);
            }
        }
    }
}

fn emit_terminate(stream: &mut Stream, message: &Terminate, out: &mut Burst) {
    let mut bytes = [0; Terminate::MAX_LEN];
    let len = message.emit(&mut bytes).unwrap_or(0);
    let header = untagged(RdmaOp::TERMINATE, QueueNumber::TERMINATE, 1);
    emit_bytes(stream, &Header::Untagged(header), bytes.get(..len).unwrap_or_default(), out);
}

fn emit_bytes(stream: &mut Stream, header: &Header, payload: &[u8], out: &mut Burst) {
    emit(stream, header, payload.len(), out, |at, out, crc| {
        let payload = payload.get(at..).unwrap_or_default();
        out.iter_mut().zip(payload).for_each(|(out, byte)| *out = *byte);
        crc.into_iter().for_each(|crc| crc.update(out));
    });
}

/// Appends an FPDU. Its ULPDU is not longer than the setup allows, so that it fits.
fn emit(
    stream: &mut Stream,
    header: &Header,
    payload: usize,
    out: &mut Burst,
    fill: impl FnMut(usize, &mut [u8], Option<&mut Crc32c>),
) {
    let len = stream.framer.wire_len(header.len() + payload);
    let room = out.append(len);
    let written = stream.framer.emit_covered(header, payload, room, fill);
    debug_assert_eq!(written, Ok(len));
    stream.given += len as u64;
}

/// Whether payload of this length is sent from where it is. A CRC covers what is sent, and memory
/// may change until it is: what a CRC covers is copied first. So is what markers cut into pieces.
fn is_sent_apart(stream: &Stream, payload: usize) -> bool {
    payload >= APART && !stream.framer.has_crc() && !stream.framer.has_markers()
}

/// Appends an FPDU whose payload is sent from where it is: from `parts`. It has neither a CRC nor
/// markers.
fn emit_apart(
    stream: &mut Stream,
    header: &Header,
    payload: usize,
    out: &mut Burst,
    parts: Parts<Read>,
) {
    let mut head = [0; fpdu::HEAD_LEN];
    let written = fpdu::emit_head(header, payload, &mut head);
    debug_assert!(written.is_ok(), "a segment is no longer than its length field says");
    let head = head.get(..written.unwrap_or(0)).unwrap_or_default();
    out.append(head.len()).copy_from_slice(head);
    parts.into_iter().for_each(|part| out.append_memory(part));
    let ulpdu = header.len() + payload;
    // Padding and CRC are zeros.
    out.append(fpdu::pad_len(ulpdu) + fpdu::CRC_LEN).fill(0);
    stream.given += fpdu::fpdu_len(ulpdu) as u64;
}
