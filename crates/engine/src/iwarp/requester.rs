//! Turns work requests into segments, and completes them in the order of the queue.

use feroce_mem::Write;
use feroce_train::Instant;
use feroce_wire::iwarp::atomic::{AtomicOp, AtomicRequest, Immediate};
use feroce_wire::iwarp::ddp::{Control, Header, QueueNumber, Tagged, Untagged};
use feroce_wire::iwarp::rdmap::{RdmaOp, ReadRequest};
use feroce_wire::iwarp::terminate::Cause;
use feroce_wire::{Lkey, Rkey};

use super::buffers::check_gather;
use super::qp::{Qp, Stream};
use super::requester_state::{Flight, NO_STAG, Sink, untagged};
use crate::hca::cqe::{Cqe, WcOpcode, WcStatus};
use crate::hca::local::execute_local;
use crate::hca::shared::Shared;
use crate::hca::wr::{Data, MAX_MESSAGE, Remote, SendFlags, SendOp, SendWr};

/// What the requester has to say next.
#[derive(Debug)]
pub(super) enum Next {
    /// Nothing.
    Nothing,
    /// A segment with this much of the data of a request behind its header.
    Segment { index: usize, header: Header, offset: u64, len: usize },
    /// A READ request.
    Read(Header, ReadRequest),
    /// The request of an atomic.
    Atomic(Header, AtomicRequest),
    /// The immediate data behind a WRITE.
    Tell(Header, Immediate),
    /// Something was done without sending; there may be more.
    Again,
    /// A request failed: the stream must end.
    Failed,
}

impl Qp {
    /// What to send next.
    pub(super) fn next_request(&mut self, hca: &mut Shared, now: Instant) -> Next {
        let Some(stream) = &mut self.stream else { return Next::Nothing };
        if let Some((index, offset)) = stream.req.sending() {
            return self.continue_request(hca, now, index, offset);
        }
        if let Some(index) = stream.req.telling() {
            return self.tell(index);
        }
        let index = stream.req.flights.len();
        let Some(wr) = self.common.sq.peek(index) else { return Next::Nothing };
        let is_fenced = wr.flags.contains(SendFlags::FENCE) && !stream.req.sinks.is_empty();
        let waits = match wr.op {
            SendOp::LocalInv(_) => index > 0,
            // What sends nothing need not wait until this end may send.
            _ if wr.op.is_local() => is_fenced,
            _ if !stream.may_send => true,
            SendOp::Read(_) => {
                let reads = stream.req.sinks.len();
                // Linux answers an empty READ behind others wrongly.
                is_fenced
                    || reads >= usize::from(stream.setup.ord)
                    || wr.data.is_empty() && reads > 0
            }
            _ if is_atomic(&wr.op) => {
                is_fenced || stream.req.sinks.len() >= usize::from(stream.setup.ord)
            }
            _ => is_fenced,
        };
        let is_fetch = matches!(wr.op, SendOp::Read(_)) || is_atomic(&wr.op);
        if waits && !(is_fetch && stream.setup.ord == 0) {
            return Next::Nothing;
        }
        match self.begin_request(hca, index) {
            Ok(next) => next,
            Err(status) => self.fail_request(hca, now, index, status),
        }
    }

    /// Begins the request at `index` of the send queue.
    fn begin_request(&mut self, hca: &mut Shared, index: usize) -> Result<Next, WcStatus> {
        let pd = self.common.init.pd;
        let (Some(stream), Some(wr)) = (&mut self.stream, self.common.sq.peek(index)) else {
            return Ok(Next::Nothing);
        };
        if wr.op.is_local() {
            execute_local(hca, &self.common, &wr.op)?;
            stream.req.flights.push_back(Flight::Done);
            return Ok(Next::Again);
        }
        if wr.data.len() > MAX_MESSAGE {
            return Err(WcStatus::LocalLength);
        }
        self.common.counters.start(wr.data.len() as u32);
        hca.counters.rdma_sends += 1;
        let read = match wr.op {
            SendOp::Read(remote) => Some(remote),
            ref op if is_atomic(op) => None,
            _ => {
                stream.req.flights.push_back(Flight::Sending { offset: 0 });
                return Ok(Next::Again);
            }
        };
        if stream.setup.ord == 0 {
            return Err(WcStatus::LocalQpOperation);
        }
        let (Lkey(key), addr) = read_sink(wr)?;
        let len = wr.data.len() as u32;
        hca.mrs
            .lend_local::<Write>(pd, Lkey(key), addr, len)
            .map_err(|_| WcStatus::LocalProtection)?;
        let (sink_stag, is_announcement) = (Rkey(key), false);
        let sink = Sink { stag: sink_stag, offset: addr, left: len, is_announcement, atomic: None };
        stream.req.flights.push_back(Flight::Reading);
        let Some(remote) = read else {
            let request = atomic_request(&wr.op, stream.req.read_msn);
            stream.req.sinks.push_back(Sink { atomic: Some(request.request_id), ..sink });
            return Ok(Next::Atomic(stream.req.request(RdmaOp::ATOMIC_REQUEST), request));
        };
        stream.req.sinks.push_back(sink);
        let request = ReadRequest {
            sink_stag,
            sink_offset: addr,
            len,
            source_stag: remote.rkey,
            source_offset: remote.addr,
        };
        Ok(Next::Read(stream.req.read_request(), request))
    }

    /// The next segment of the request that is being sent.
    fn continue_request(
        &mut self,
        hca: &mut Shared,
        now: Instant,
        index: usize,
        offset: u64,
    ) -> Next {
        let pd = self.common.init.pd;
        let (Some(stream), Some(wr)) = (&mut self.stream, self.common.sq.peek(index)) else {
            return Next::Nothing;
        };
        let left = wr.data.len() - offset;
        let is_write = matches!(wr.op, SendOp::Write(_) | SendOp::WriteImm(..));
        let header_len = if is_write { Tagged::LEN } else { Untagged::LEN };
        let len =
            left.min(stream.setup.max_ulpdu.saturating_sub(header_len).max(1) as u64) as usize;
        if check_gather(&hca.mrs, pd, &wr.data, offset, len).is_err() {
            return self.fail_request(hca, now, index, WcStatus::LocalProtection);
        }
        let is_last = len as u64 == left;
        let header = header_of(stream, wr, offset, is_last);
        Next::Segment { index, header, offset, len }
    }

    /// The immediate data of the WRITE at `index`, which has been sent: the number of the consumer
    /// and the length of the WRITE.
    fn tell(&mut self, index: usize) -> Next {
        let (Some(stream), Some(wr)) = (&mut self.stream, self.common.sq.peek(index)) else {
            return Next::Nothing;
        };
        let SendOp::WriteImm(_, imm) = wr.op else { return Next::Nothing };
        let opcode = match wr.flags.contains(SendFlags::SOLICITED) {
            true => RdmaOp::IMMEDIATE_SE,
            false => RdmaOp::IMMEDIATE,
        };
        let header = untagged(opcode, QueueNumber::SEND, stream.req.send_msn);
        stream.req.send_msn = stream.req.send_msn.wrapping_add(1);
        let number = u64::from(imm.0) << 32 | wr.data.len();
        Next::Tell(Header::Untagged(header), Immediate { data: number.to_be_bytes() })
    }

    /// A request cannot be executed: it completes with the reason, the others are flushed, and the
    /// stream ends.
    fn fail_request(
        &mut self,
        hca: &mut Shared,
        now: Instant,
        index: usize,
        status: WcStatus,
    ) -> Next {
        hca.counters.send_err += 1;
        let begun = |qp: &Self| qp.stream.as_ref().map_or(0, |stream| stream.req.flights.len());
        let before = begun(self);
        self.retire(hca, now);
        // Those in front of it that are not done are flushed.
        for _ in before - begun(self)..index {
            self.complete_oldest(hca, now, WcStatus::Flushed);
        }
        self.complete_oldest(hca, now, status);
        self.terminate(hca, now, Cause::RDMAP_LOCAL_CATASTROPHIC);
        Next::Failed
    }

    /// Completes requests from the oldest on, as far as they are done.
    pub(super) fn retire(&mut self, hca: &mut Shared, now: Instant) {
        loop {
            let Some(stream) = &mut self.stream else { return };
            match stream.req.flights.front() {
                Some(Flight::Done) => {}
                Some(Flight::Sent { end }) if *end <= stream.taken => {}
                _ => return,
            }
            stream.req.flights.pop_front();
            self.complete_oldest(hca, now, WcStatus::Success);
        }
    }

    /// Takes the oldest request out of the send queue and reports how it went.
    pub(super) fn complete_oldest(&mut self, hca: &mut Shared, now: Instant, status: WcStatus) {
        let Some(wr) = self.common.sq.pop() else { return };
        let is_wanted = wr.flags.contains(SendFlags::SIGNALED) || self.common.init.sq_sig_all;
        if status == WcStatus::Success && !is_wanted {
            return;
        }
        let opcode = wr.op.wc_opcode();
        let is_fetch = opcode == WcOpcode::Read || is_atomic(&wr.op);
        let fetched = is_fetch && status == WcStatus::Success;
        let byte_len = if fetched { wr.data.len() as u32 } else { 0 };
        let cqe = Cqe::new(wr.wr_id, self.common.qpn, opcode, status, now);
        hca.complete_send(self.common.init.send_cq, Cqe { byte_len, ..cqe });
    }

    /// The response to the oldest READ has arrived.
    pub(super) fn finish_read(&mut self, hca: &mut Shared, now: Instant) {
        let Some(stream) = &mut self.stream else { return };
        let Some(sink) = stream.req.sinks.pop_front() else { return };
        let mut flights = stream.req.flights.iter_mut();
        if !sink.is_announcement
            && let Some(flight) = flights.find(|flight| **flight == Flight::Reading)
        {
            *flight = Flight::Done;
        }
        self.retire(hca, now);
    }
}

/// Whether an operation is an atomic that fetches.
const fn is_atomic(op: &SendOp) -> bool {
    matches!(op, SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. })
}

/// The request of an atomic, with a number of its own. No bit is masked.
fn atomic_request(op: &SendOp, request_id: u32) -> AtomicRequest {
    let (op, remote, add_swap, compare) = match *op {
        SendOp::CmpSwap { remote, compare, swap } => (AtomicOp::CMP_SWAP, remote, swap, compare),
        SendOp::FetchAdd { remote, add } => (AtomicOp::FETCH_ADD, remote, add, 0),
        _ => (AtomicOp::FETCH_ADD, Remote::default(), 0, 0),
    };
    let is_swap = op == AtomicOp::CMP_SWAP;
    let mask = if is_swap { u64::MAX } else { 0 };
    AtomicRequest {
        op,
        request_id,
        stag: remote.rkey,
        offset: remote.addr,
        add_swap,
        add_swap_mask: mask,
        compare,
        compare_mask: mask,
    }
}

/// Where the response to a READ goes: one element at most, because the request names one key.
fn read_sink(wr: &SendWr) -> Result<(Lkey, u64), WcStatus> {
    let Data::Sges(sges) = &wr.data else { return Err(WcStatus::LocalQpOperation) };
    match sges.as_slice() {
        [] => Ok((Lkey(0), 0)),
        [sge] => Ok((sge.lkey, sge.addr)),
        _ => Err(WcStatus::LocalQpOperation),
    }
}

/// Header of the segment of a SEND or WRITE that begins at `offset` of its data.
fn header_of(stream: &mut Stream, wr: &SendWr, offset: u64, is_last: bool) -> Header {
    if let SendOp::Write(remote) | SendOp::WriteImm(remote, _) = wr.op {
        let control = Control::new(RdmaOp::WRITE, is_last);
        let offset = remote.addr.wrapping_add(offset);
        return Header::Tagged(Tagged { control, stag: remote.rkey, offset });
    }
    let invalidate = match wr.op {
        SendOp::SendInv(rkey) => Some(rkey),
        _ => None,
    };
    let opcode = RdmaOp::send(wr.flags.contains(SendFlags::SOLICITED), invalidate.is_some());
    let msn = stream.req.send_msn;
    if is_last {
        stream.req.send_msn = msn.wrapping_add(1);
    }
    Header::Untagged(Untagged {
        control: Control::new(opcode, is_last),
        invalidate: invalidate.unwrap_or(NO_STAG),
        mo: offset as u32,
        ..untagged(opcode, QueueNumber::SEND, msn)
    })
}
