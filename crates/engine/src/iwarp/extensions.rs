//! Atomics and immediate data of the peer (RFC 7306), if both ends are configured for them.

use feroce_mem::{Access, AccessError, Atomic, Grant, Write};
use feroce_train::Instant;
use feroce_wire::iwarp::atomic::{AtomicOp, AtomicRequest, AtomicResponse, Immediate};
use feroce_wire::iwarp::rdmap::RdmaOp;
use feroce_wire::iwarp::terminate::Cause;
use feroce_wire::{Imm, Lkey};

use super::failure::{self, Failure};
use super::qp::Qp;
use super::responder_state::Reply;
use crate::hca::cqe::{Cqe, WcFlags, WcOpcode, WcStatus};
use crate::hca::shared::Shared;

/// Whether a message is immediate data.
pub(super) const fn is_immediate(opcode: RdmaOp) -> bool {
    matches!(opcode, RdmaOp::IMMEDIATE | RdmaOp::IMMEDIATE_SE)
}

impl Qp {
    /// The request of an atomic has arrived whole: executes it. The response waits its turn.
    pub(super) fn execute_atomic(&mut self, hca: &mut Shared) -> Result<(), Failure> {
        let Some(stream) = &self.stream else { return Ok(()) };
        let collected = &stream.rsp.collected[..stream.rsp.collected_len];
        let (request, _) = AtomicRequest::parse(collected).map_err(|_| Cause::UNTAGGED_MO)?;
        if !self.allows(Access::REMOTE_ATOMIC) {
            return Err(failure::atomic(AccessError::NotPermitted));
        }
        if !request.offset.is_multiple_of(8) {
            return Err(Cause::OPERATION_STREAM_CATASTROPHIC.into());
        }
        let (pd, qpn) = (self.common.init.pd, self.common.qpn);
        let grant = hca
            .mrs
            .grant_remote::<Atomic>(pd, qpn, request.stag, request.offset, 8)
            .map_err(failure::atomic)?;
        let original = execute(&grant, &request).ok_or(Cause::OPERATION_OPCODE)?;
        self.common.counters.served += 1;
        self.common.counters.served_bytes += 8;
        let response = AtomicResponse { request_id: request.request_id, original };
        if let Some(stream) = &mut self.stream {
            stream.rsp.read_msn = stream.rsp.read_msn.wrapping_add(1);
            stream.rsp.replies.push_back(Reply::Atomic(response));
        }
        hca.kicked.push(self.common.slot);
        Ok(())
    }

    /// The response to the oldest request of this end, an atomic, has arrived whole.
    pub(super) fn finish_atomic(&mut self, hca: &mut Shared, now: Instant) -> Result<(), Failure> {
        let pd = self.common.init.pd;
        let Some(stream) = &mut self.stream else { return Ok(()) };
        let collected = &stream.rsp.collected[..stream.rsp.collected_len];
        let (response, _) = AtomicResponse::parse(collected).map_err(|_| Cause::UNTAGGED_MO)?;
        let Some(sink) = stream.req.sinks.front().copied() else { return Ok(()) };
        if sink.atomic != Some(response.request_id) {
            return Err(Cause::OPERATION_OPCODE.into());
        }
        stream.req.atomic_msn = stream.req.atomic_msn.wrapping_add(1);
        let loan = hca.mrs.lend_local::<Write>(pd, Lkey(sink.stag.0), sink.offset, sink.left);
        let placed = loan.and_then(|loan| Ok(loan.copy_in(&response.original.to_ne_bytes())?));
        placed.map_err(|error| failure::tagged(error, false))?;
        self.finish_read(hca, now);
        // Its place may be free for another.
        hca.kicked.push(self.common.slot);
        Ok(())
    }

    /// Immediate data has arrived whole: the number of the consumer, and the length of the WRITE
    /// in front of it.
    pub(super) fn finish_immediate(
        &mut self,
        hca: &mut Shared,
        now: Instant,
        opcode: RdmaOp,
    ) -> Result<(), Failure> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        let collected = &stream.rsp.collected[..stream.rsp.collected_len];
        let (immediate, _) = Immediate::parse(collected).map_err(|_| Cause::UNTAGGED_MO)?;
        let number = u64::from_be_bytes(immediate.data);
        let Some(receive) = stream.rsp.receive.take() else { return Ok(()) };
        self.common.counters.served += 1;
        hca.counters.rdma_recvs += 1;
        let op = WcOpcode::RecvWriteImm;
        let cqe = Cqe {
            byte_len: number as u32,
            flags: WcFlags::WITH_IMM,
            imm: Imm((number >> 32) as u32),
            solicited: opcode.is_solicited(),
            ..Cqe::new(receive.wr.wr_id, self.common.qpn, op, WcStatus::Success, now)
        };
        hca.complete_recv(self.common.init.recv_cq, cqe);
        Ok(())
    }
}

/// Executes an atomic, and returns what was in memory before. None: there is no such operation.
fn execute(grant: &Grant<Atomic>, request: &AtomicRequest) -> Option<u64> {
    let AtomicRequest { add_swap, add_swap_mask, compare, compare_mask, .. } = *request;
    match request.op.code() {
        AtomicOp::FETCH_ADD if add_swap_mask == 0 => Some(grant.fetch_add(add_swap)),
        AtomicOp::CMP_SWAP if add_swap_mask == u64::MAX && compare_mask == u64::MAX => {
            Some(grant.compare_swap(compare, add_swap))
        }
        AtomicOp::FETCH_ADD => {
            Some(update(grant, |old| Some(add_fields(old, add_swap, add_swap_mask))))
        }
        AtomicOp::CMP_SWAP => Some(update(grant, |old| {
            let is_equal = (old ^ compare) & compare_mask == 0;
            is_equal.then_some(old & !add_swap_mask | add_swap & add_swap_mask)
        })),
        _ => None,
    }
}

/// Adds fields one by one: no carry passes a bit of the mask, which is the highest of its field.
fn add_fields(old: u64, add: u64, mask: u64) -> u64 {
    // Without the highest bits nothing is carried out of a field; they are added without carry.
    let sum = (old & !mask).wrapping_add(add & !mask);
    sum ^ (old ^ add) & mask
}

/// Replaces the word by what `new` makes of it, if anything, and returns what it was.
fn update(grant: &Grant<Atomic>, new: impl Fn(u64) -> Option<u64>) -> u64 {
    let mut old = grant.fetch_add(0);
    while let Some(new) = new(old) {
        let found = grant.compare_swap(old, new);
        if found == old {
            break;
        }
        old = found;
    }
    old
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carries_stop_at_the_highest_bit_of_a_field() {
        assert_eq!(add_fields(0xff, 1, 0x80), 0);
        assert_eq!(add_fields(0x7f, 1, 0x80), 0x80);
        assert_eq!(add_fields(0x00ff_00ff, 0x0001_0001, 0x8000_8000), 0x0100_0100);
        assert_eq!(add_fields(u64::MAX, 1, 1 << 63), 0);
        assert_eq!(add_fields(u64::MAX, u64::MAX, u64::MAX), 0);
    }
}
