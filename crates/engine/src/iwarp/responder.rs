//! Places what arrives, and executes the requests of the peer.
//!
//! Payload of tagged segments is placed as it arrives, before the CRC is known: a wrong CRC ends
//! the stream, and memory that a peer may write has no meaning before a later message says so. No
//! request completes, no READ is answered and no segment is refused before its CRC is verified:
//! what looks like a wrong key may be a damaged one.

use feroce_mem::{Access, Read, Write};
use feroce_train::Instant;
use feroce_wire::iwarp::atomic::{AtomicRequest, AtomicResponse, Immediate};
use feroce_wire::iwarp::ddp::{Header, QueueNumber, Tagged, Untagged, VERSION};
use feroce_wire::iwarp::fpdu::Piece;
use feroce_wire::iwarp::rdmap::{RdmaOp, ReadRequest};
use feroce_wire::iwarp::terminate::{Cause, Terminate};
use feroce_wire::{Lkey, Rkey};

use super::buffers::{copy_in, scatter};
use super::control::STALLED_NS;
use super::extensions::is_immediate;
use super::failure::{self, Failure};
use super::qp::{Phase, Qp, Stream};
use super::responder_state::{Receive, Reply, Segment, Target};
use super::setup::{Begin, ReadyToReceive};
use crate::hca::cqe::{Cqe, WcFlags, WcOpcode, WcStatus};
use crate::hca::event::StreamEnd;
use crate::hca::qp::RecvSource;
use crate::hca::shared::Shared;

/// The layer of what is wrong with the framing.
const MPA: u8 = Cause::MPA_CRC.layer;

impl Qp {
    /// Bytes of the stream have arrived.
    pub(crate) fn handle_stream(&mut self, hca: &mut Shared, now: Instant, mut bytes: &[u8]) {
        hca.counters.rcvd_bytes += bytes.len() as u64;
        while let Some(stream) = self.stream.as_mut().filter(|s| s.phase == Phase::Open) {
            let result = match stream.deframer.take_payload(&mut bytes) {
                Some(payload) => self.place(hca, payload),
                None => match stream.deframer.take_short(&mut bytes) {
                    Ok(Some((header, payload))) => self.take_whole(hca, now, header, payload),
                    Ok(None) => match stream.deframer.next(&mut bytes) {
                        Ok(None | Some(Piece::Payload(_))) => return self.await_rest(hca, now),
                        Ok(Some(Piece::Header { header, payload })) => {
                            self.begin(hca, header, payload)
                        }
                        Ok(Some(Piece::End)) => self.finish(hca, now),
                        Err(error) => Err(error.into()),
                    },
                    Err(error) => Err(error.into()),
                },
            };
            if let Err(failure) = result
                && !self.waits_for_crc(failure)
            {
                self.refuse(hca, now, &failure);
            }
        }
    }

    /// All bytes that have arrived are used. If they end inside an FPDU, its rest is awaited for
    /// [a while](STALLED_NS).
    fn await_rest(&mut self, hca: &mut Shared, now: Instant) {
        let Some(stream) = &mut self.stream else { return };
        stream.heard_at = now;
        if !stream.deframer.is_between() {
            let deadline = now.plus_nanos(STALLED_NS);
            hca.timers.arm(self.common.slot, &mut self.common.armed, deadline);
        }
    }

    /// Whether the segment that fails so may have been damaged on its way: the rest of it is
    /// discarded, and its end decides.
    fn waits_for_crc(&mut self, failure: Failure) -> bool {
        let Some(stream) = self.stream.as_mut().filter(|stream| stream.setup.crc) else {
            return false;
        };
        let is_inside = !stream.deframer.is_between();
        let Some(segment) = stream.rsp.segment.as_mut().filter(|_| is_inside) else {
            return false;
        };
        if matches!(segment.target, Target::Refused(_)) || failure.cause.layer == MPA {
            return false;
        }
        segment.target = Target::Refused(failure);
        true
    }

    /// A segment has arrived in one piece, and its CRC is right.
    fn take_whole(
        &mut self,
        hca: &mut Shared,
        now: Instant,
        header: Header,
        payload: &[u8],
    ) -> Result<(), Failure> {
        self.begin(hca, header, payload.len())?;
        if !payload.is_empty() {
            self.place_in_memory(hca, payload, true)?;
        }
        self.finish(hca, now)
    }

    /// A segment begins.
    fn begin(&mut self, hca: &mut Shared, header: Header, payload: usize) -> Result<(), Failure> {
        hca.counters.rcvd_pkts += 1;
        let Some(stream) = &mut self.stream else { return Ok(()) };
        stream.rsp.collected_len = 0;
        // Known to `refuse` even if the segment is not taken.
        let unplaced = Segment { header, payload, target: Target::Collected };
        stream.rsp.segment = Some(unplaced);
        let target = match header {
            Header::Tagged(header) => self.begin_tagged(hca, &header, payload)?,
            Header::Untagged(header) => self.begin_untagged(hca, &header, payload)?,
        };
        if let Some(stream) = &mut self.stream {
            stream.rsp.segment = Some(Segment { target, ..unplaced });
        }
        Ok(())
    }

    fn begin_tagged(
        &self,
        hca: &Shared,
        header: &Tagged,
        payload: usize,
    ) -> Result<Target, Failure> {
        let Some(stream) = &self.stream else { return Ok(Target::Collected) };
        let control = header.control;
        if control.ddp_version != VERSION {
            return Err(Cause::TAGGED_VERSION.into());
        }
        if control.rdmap_version != VERSION {
            return Err(Cause::OPERATION_VERSION.into());
        }
        match control.opcode {
            RdmaOp::WRITE => {
                self.check_write(hca, header.stag, header.offset, payload)?;
                Ok(Target::Memory(header.stag, header.offset))
            }
            RdmaOp::READ_RESPONSE => {
                let sink = stream.req.sinks.front().filter(|sink| sink.atomic.is_none());
                let sink = sink.ok_or(Cause::OPERATION_OPCODE)?;
                if (header.stag, header.offset) != (sink.stag, sink.offset) && payload > 0 {
                    return Err(Cause::TAGGED_INVALID_STAG.into());
                }
                // All of it, and no more.
                let left = sink.left as usize;
                if payload > left || control.last != (payload == left) {
                    return Err(Cause::TAGGED_BOUNDS.into());
                }
                Ok(Target::Sink(sink.stag, sink.offset))
            }
            _ => Err(Cause::OPERATION_OPCODE.into()),
        }
    }

    /// Whether the peer may write `len` bytes. Nothing is checked of none (RFC 5040 5.1).
    fn check_write(
        &self,
        hca: &Shared,
        stag: Rkey,
        offset: u64,
        len: usize,
    ) -> Result<(), Failure> {
        let denied = |error| {
            let wraps = offset.checked_add(len as u64).is_none();
            failure::tagged(error, wraps)
        };
        if len > 0 && !self.allows(Access::REMOTE_WRITE) {
            return Err(denied(feroce_mem::AccessError::NotPermitted));
        }
        let (pd, qpn) = (self.common.init.pd, self.common.qpn);
        let loan = hca.mrs.lend_remote::<Write>(pd, qpn, stag, offset, len as u64);
        loan.map(|_| ()).map_err(denied)
    }

    /// Whether the queue pair lets the peer do so.
    pub(super) fn allows(&self, access: Access) -> bool {
        self.common.attr.access.is_none_or(|allowed| allowed.contains(access))
    }

    fn begin_untagged(
        &mut self,
        hca: &mut Shared,
        header: &Untagged,
        payload: usize,
    ) -> Result<Target, Failure> {
        let Some(stream) = &mut self.stream else { return Ok(Target::Collected) };
        let Untagged { control, queue, msn, mo, .. } = *header;
        if control.ddp_version != VERSION {
            return Err(Cause::UNTAGGED_VERSION.into());
        }
        if control.rdmap_version != VERSION {
            return Err(Cause::OPERATION_VERSION.into());
        }
        let is_extended = hca.config.iwarp_extensions;
        let opcode = control.opcode;
        let (expected, is_expected) = match queue {
            QueueNumber::SEND => {
                let is_immediate = is_extended && is_immediate(opcode);
                (stream.rsp.send_msn, opcode.is_send() || is_immediate)
            }
            QueueNumber::READ_REQUEST => {
                let is_atomic = is_extended && opcode == RdmaOp::ATOMIC_REQUEST;
                (stream.rsp.read_msn, opcode == RdmaOp::READ_REQUEST || is_atomic)
            }
            QueueNumber::TERMINATE => (1, opcode == RdmaOp::TERMINATE),
            QueueNumber::ATOMIC_RESPONSE if is_extended => {
                let is_awaited = stream.req.sinks.front().is_some_and(|s| s.atomic.is_some());
                (stream.req.atomic_msn, is_awaited && opcode == RdmaOp::ATOMIC_RESPONSE)
            }
            _ => return Err(Cause::UNTAGGED_QUEUE.into()),
        };
        if !is_expected {
            return Err(Cause::OPERATION_OPCODE.into());
        }
        if msn != expected {
            return Err(Cause::UNTAGGED_MSN.into());
        }
        if queue == QueueNumber::SEND && opcode.is_send() {
            return self.begin_send(hca, mo, payload);
        }
        // These are one segment, and a READ request has one length.
        if mo != 0 || !control.last {
            return Err(Cause::UNTAGGED_MO.into());
        }
        if queue == QueueNumber::SEND {
            return self.begin_immediate(hca, payload);
        }
        if queue == QueueNumber::ATOMIC_RESPONSE && payload > AtomicResponse::LEN {
            return Err(Cause::UNTAGGED_TOO_LONG.into());
        }
        if queue == QueueNumber::READ_REQUEST {
            let is_read = opcode == RdmaOp::READ_REQUEST;
            let most = if is_read { ReadRequest::LEN } else { AtomicRequest::LEN };
            if payload > most {
                return Err(Cause::UNTAGGED_TOO_LONG.into());
            }
            let announced = Begin::Await(Some(ReadyToReceive::Read));
            let least = if stream.setup.begin == announced { 1 } else { 0 };
            if stream.rsp.replies.len() >= usize::from(stream.setup.ird.max(least)) {
                return Err(Cause::UNTAGGED_NO_BUFFER.into());
            }
        }
        Ok(Target::Collected)
    }

    /// A segment of a SEND begins.
    fn begin_send(&mut self, hca: &mut Shared, mo: u32, payload: usize) -> Result<Target, Failure> {
        if self.is_announcement(payload) {
            return Ok(Target::Collected);
        }
        let filled = match self.stream.as_ref().and_then(|stream| stream.rsp.receive.as_ref()) {
            Some(receive) => receive.filled,
            None => 0,
        };
        if u64::from(mo) != filled {
            return Err(Cause::UNTAGGED_MO.into());
        }
        let has_receive = self.stream.as_ref().is_some_and(|stream| stream.rsp.receive.is_some());
        if !has_receive {
            let receive = self.take_receive(hca).ok_or(Cause::UNTAGGED_NO_BUFFER)?;
            if let Some(stream) = &mut self.stream {
                stream.rsp.receive = Some(receive);
            }
        }
        let receive = self.stream.as_ref().and_then(|stream| stream.rsp.receive.as_ref());
        let room = receive.map_or(0, |receive| receive.wr.sges.total_len());
        // A completion has 32 bits for the length, even if the buffers have room for more.
        if filled + payload as u64 > room.min(u32::MAX.into()) {
            return Err(Cause::UNTAGGED_TOO_LONG.into());
        }
        Ok(Target::Receive)
    }

    /// Immediate data begins: it takes a receive, and leaves its memory alone.
    fn begin_immediate(&mut self, hca: &mut Shared, payload: usize) -> Result<Target, Failure> {
        if self.stream.as_ref().is_some_and(|stream| stream.rsp.receive.is_some()) {
            // A SEND has not arrived whole.
            return Err(Cause::UNTAGGED_MO.into());
        }
        if payload > Immediate::LEN {
            return Err(Cause::UNTAGGED_TOO_LONG.into());
        }
        let receive = self.take_receive(hca).ok_or(Cause::UNTAGGED_NO_BUFFER)?;
        if let Some(stream) = &mut self.stream {
            stream.rsp.receive = Some(receive);
        }
        Ok(Target::Collected)
    }

    /// Whether the SEND that begins only says that the peer is ready to receive.
    fn is_announcement(&self, payload: usize) -> bool {
        let announced = Begin::Await(Some(ReadyToReceive::Send));
        let stream = self.stream.as_ref();
        payload == 0 && stream.is_some_and(|s| s.setup.begin == announced && !s.may_send)
    }

    fn take_receive(&mut self, hca: &mut Shared) -> Option<Receive> {
        let pd = self.common.init.pd;
        let (wr, pd) = match &mut self.common.rq {
            RecvSource::Own(ring) => (ring.pop()?, pd),
            RecvSource::Srq(id) => {
                // Its receives were posted in its own protection domain, which need not be ours.
                let pd = hca.srqs.get(id.0).map_or(pd, |srq| srq.attr.pd);
                (hca.take_from_srq(*id)?, pd)
            }
            RecvSource::Xrc(_) | RecvSource::None => return None,
        };
        Some(Receive { wr, pd, filled: 0 })
    }

    /// Payload of the segment that is arriving, which its CRC does not cover yet.
    fn place(&mut self, hca: &mut Shared, bytes: &[u8]) -> Result<(), Failure> {
        let before = self.stream.as_mut().and_then(|stream| stream.deframer.crc().copied());
        let placed = self.place_in_memory(hca, bytes, false);
        if let (Some(mut crc), Some(stream)) = (before, &mut self.stream)
            && placed != Ok(true)
        {
            // None or a part of it was copied.
            crc.update(bytes);
            stream.deframer.crc().into_iter().for_each(|at| *at = crc);
        }
        placed.map(|_| ())
    }

    /// Copies payload to the memory that it is for, and extends the CRC by it, unless that is
    /// [verified already](feroce_wire::iwarp::fpdu::Deframer::take_short). False: it is for none,
    /// and the CRC is as before.
    fn place_in_memory(
        &mut self,
        hca: &mut Shared,
        bytes: &[u8],
        is_verified: bool,
    ) -> Result<bool, Failure> {
        let (pd, qpn) = (self.common.init.pd, self.common.qpn);
        let Some(stream) = &mut self.stream else { return Ok(false) };
        let Stream { rsp, deframer, .. } = stream;
        let Some(segment) = &rsp.segment else { return Ok(false) };
        let crc = deframer.crc().filter(|_| !is_verified);
        match segment.target {
            Target::Receive => {
                let Some(receive) = &rsp.receive else { return Ok(false) };
                let sges = receive.wr.sges.as_slice();
                scatter(&hca.mrs, receive.pd, sges, receive.filled, bytes, crc)
                    .map_err(|_| Failure::from(Cause::DDP_LOCAL_CATASTROPHIC))?;
            }
            Target::Memory(stag, offset) => {
                let len = bytes.len() as u64;
                let placed = hca.mrs.lend_remote::<Write>(pd, qpn, stag, offset, len);
                let placed = placed.and_then(|loan| Ok(copy_in(&loan, bytes, crc)?));
                placed.map_err(|error| failure::tagged(error, false))?;
            }
            Target::Sink(stag, offset) => {
                // A sink need not be open to the peer: the READ is ours.
                let loan =
                    hca.mrs.lend_local::<Write>(pd, Lkey(stag.0), offset, bytes.len() as u32);
                let placed = loan.and_then(|loan| Ok(copy_in(&loan, bytes, crc)?));
                placed.map_err(|error| failure::tagged(error, false))?;
            }
            Target::Refused(_) => return Ok(false),
            Target::Collected => {
                let room = rsp.collected.iter_mut().skip(rsp.collected_len);
                rsp.collected_len += room.zip(bytes).map(|(room, byte)| *room = *byte).count();
                return Ok(false);
            }
        }
        stream.advance(bytes.len());
        Ok(true)
    }

    /// The segment has arrived whole.
    fn finish(&mut self, hca: &mut Shared, now: Instant) -> Result<(), Failure> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        let Some(Segment { header, target, .. }) = stream.rsp.segment else { return Ok(()) };
        if let Target::Refused(failure) = target {
            return Err(failure);
        }
        let control = *header.control();
        let is_first = !stream.may_send;
        stream.may_send = true;
        if is_first {
            hca.kicked.push(self.common.slot);
        }
        match (target, header) {
            (Target::Receive, Header::Untagged(header)) if control.last => {
                stream.rsp.send_msn = stream.rsp.send_msn.wrapping_add(1);
                self.finish_send(hca, now, &header)
            }
            (Target::Sink(..), _) if control.last => {
                self.finish_read(hca, now);
                // Its place may be free for another.
                hca.kicked.push(self.common.slot);
                Ok(())
            }
            (Target::Collected, _) if control.opcode == RdmaOp::READ_REQUEST => {
                self.execute_read(hca)
            }
            (Target::Collected, _) if control.opcode == RdmaOp::ATOMIC_REQUEST => {
                self.execute_atomic(hca)
            }
            (Target::Collected, _) if control.opcode == RdmaOp::ATOMIC_RESPONSE => {
                self.finish_atomic(hca, now)
            }
            (Target::Collected, _) if is_immediate(control.opcode) => {
                stream.rsp.send_msn = stream.rsp.send_msn.wrapping_add(1);
                self.finish_immediate(hca, now, control.opcode)
            }
            (Target::Collected, _) if control.opcode == RdmaOp::TERMINATE => {
                let collected = &stream.rsp.collected[..stream.rsp.collected_len];
                let cause = match Terminate::parse(collected) {
                    Ok((message, _)) => message.cause,
                    Err(_) => Cause::RDMAP_LOCAL_CATASTROPHIC,
                };
                self.end_stream(hca, now, StreamEnd::PeerTerminated(cause));
                Ok(())
            }
            (Target::Collected, _) if control.opcode.is_send() => {
                stream.rsp.send_msn = stream.rsp.send_msn.wrapping_add(1);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A SEND has arrived whole.
    fn finish_send(
        &mut self,
        hca: &mut Shared,
        now: Instant,
        header: &Untagged,
    ) -> Result<(), Failure> {
        let (pd, qpn) = (self.common.init.pd, self.common.qpn);
        let opcode = header.control.opcode;
        let mut flags = WcFlags::empty();
        if opcode.invalidates() {
            let done = hca.mrs.invalidate_remote(pd, qpn, header.invalidate);
            done.map_err(|_| Failure::from(Cause::OPERATION_INVALIDATE))?;
            hca.revoke_answers();
            hca.hold_until_quiet(qpn, None);
            flags = WcFlags::WITH_INV;
        }
        let receive = self.stream.as_mut().and_then(|stream| stream.rsp.receive.take());
        let Some(receive) = receive else { return Ok(()) };
        self.common.counters.served += 1;
        self.common.counters.served_bytes += receive.filled;
        hca.counters.rdma_recvs += 1;
        let cqe = Cqe {
            byte_len: receive.filled as u32,
            flags,
            invalidated: if flags.is_empty() { Rkey(0) } else { header.invalidate },
            solicited: opcode.is_solicited(),
            ..Cqe::new(receive.wr.wr_id, qpn, WcOpcode::Recv, WcStatus::Success, now)
        };
        hca.complete_recv(self.common.init.recv_cq, cqe);
        Ok(())
    }

    /// A READ request has arrived whole.
    fn execute_read(&mut self, hca: &mut Shared) -> Result<(), Failure> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        let collected = &stream.rsp.collected[..stream.rsp.collected_len];
        let (request, _) = ReadRequest::parse(collected).map_err(|_| Cause::UNTAGGED_MO)?;
        self.check_read(hca, &request)?;
        if let Some(stream) = &mut self.stream {
            stream.rsp.read_msn = stream.rsp.read_msn.wrapping_add(1);
            stream.rsp.replies.push_back(Reply::Read { request, done: 0 });
        }
        hca.kicked.push(self.common.slot);
        Ok(())
    }

    /// Whether the peer may read what it asks for. Nothing is checked of no bytes.
    pub(super) fn check_read(&self, hca: &Shared, request: &ReadRequest) -> Result<(), Failure> {
        let denied = |error| failure::read(error, *request);
        if request.len > 0 && !self.allows(Access::REMOTE_READ) {
            return Err(denied(feroce_mem::AccessError::NotPermitted));
        }
        let (pd, qpn) = (self.common.init.pd, self.common.qpn);
        let ReadRequest { source_stag, source_offset, len, .. } = *request;
        let loan = hca.mrs.lend_remote::<Read>(pd, qpn, source_stag, source_offset, len.into());
        loan.map(|_| ()).map_err(denied)
    }

    /// Ends the stream because of what arrived.
    fn refuse(&mut self, hca: &mut Shared, now: Instant, failure: &Failure) {
        let Some(stream) = &mut self.stream else { return };
        let about = stream.rsp.segment.filter(|_| failure.cause.layer != MPA);
        let message = Terminate {
            segment_len: about.map(|s| (s.header.len() + s.payload) as u16),
            header: about.map(|segment| segment.header),
            request: failure.request,
            ..Terminate::new(failure.cause)
        };
        let status = match failure.cause {
            Cause::UNTAGGED_TOO_LONG => WcStatus::LocalLength,
            Cause::DDP_LOCAL_CATASTROPHIC => WcStatus::LocalProtection,
            _ => WcStatus::Flushed,
        };
        if let Some(receive) = stream.rsp.receive.take() {
            let cqe = Cqe::new(receive.wr.wr_id, self.common.qpn, WcOpcode::Recv, status, now);
            hca.complete_recv(self.common.init.recv_cq, cqe);
        }
        if let Some(event) = failure.notice.event(self.common.qpn) {
            hca.event(event);
        }
        self.terminate_with(hca, now, message);
    }
}
