//! Execution of requests of the peer, one function per operation (IBTA vol1 9.4, 9.7.4).

use feroce_mem::{Access, Atomic, Read, Write};
use feroce_train::Instant;
use feroce_wire::{
    AtomicEth, Feth, FlushPlacement, FlushSelectivity, Ieth, Imm, ImmDt, Op, Psn, Reth, Rkey, Srqn,
};

use super::buffers::{ScatterError, lend_whole};
use super::qp::Qp;
use super::receive::Receive;
use super::receive_queue::NoReceive;
use super::replay::{Memory, Remembered};
use super::reply_queue::{ReadReply, Reply};
use super::responder::{Refusal, Request, Taken};
use super::responder_state::Inbound;
use super::rx_payload::{RxPacket, RxPayload};
use crate::hca::cqe::{Cqe, WcFlags, WcOpcode, WcStatus};
use crate::hca::qp::RecvSource;
use crate::hca::wr::{MAX_MESSAGE, RecvWr};
use crate::ib::port::Port;

impl Qp {
    /// Executes a request that is next in sequence.
    #[inline]
    pub(super) fn execute(
        &mut self,
        port: &mut Port,
        now: Instant,
        request: &Request<'_>,
    ) -> Taken {
        let op = request.op;
        if op.starts() == self.rsp.inbound.is_some() {
            // A new message before the last one ended, or a continuation without a start.
            return Err(Refusal::Invalid);
        }
        if op == Op::WriteOnly {
            self.execute_write_only(port, request)
        } else if op.is_send() {
            self.execute_send(port, now, request)
        } else if op.is_write() {
            self.execute_write(port, now, request)
        } else {
            match op {
                Op::ReadRequest => self.execute_read(port, request),
                Op::CmpSwap | Op::FetchAdd => self.execute_atomic(port, request),
                Op::AtomicWrite => self.execute_atomic_write(port, request),
                Op::Flush => self.execute_flush(port, request),
                _ => Err(Refusal::Invalid),
            }
        }
    }

    /// Whether the payload of one packet of a message, or of a run of them, has a length that it
    /// may have.
    #[inline]
    fn check_length(&self, op: Op, body: &RxPayload<'_>) -> Result<(), Refusal> {
        let (len, packets) = (body.len(), body.packets() as usize);
        let most = packets.saturating_mul(self.pmtu);
        let fits = if op.is_only() && packets == 1 {
            len <= most
        } else if op.ends() {
            len <= most && len > most - self.pmtu
        } else {
            len == most
        };
        if fits { Ok(()) } else { Err(Refusal::Invalid) }
    }

    #[inline(never)]
    fn execute_send(&mut self, port: &mut Port, now: Instant, request: &Request<'_>) -> Taken {
        let op = request.op;
        if !op.starts() && self.rsp.inbound != Some(Inbound::Send) {
            return Err(Refusal::Invalid);
        }
        let (imm, body) = take_imm(op, request.body)?;
        let (inv, data) = if op.has_ieth() {
            let (eth, body) = Ieth::parse(body)?;
            (Some(eth.rkey), body)
        } else {
            (None, body)
        };
        let data = request.payload(data)?;
        self.check_length(op, &data)?;
        if op.starts() && self.rsp.receive.is_none() {
            self.rsp.receive = Some(self.next_receive(port, request.srqn)?);
        }
        let Some(receive) = self.rsp.receive.as_mut() else {
            return Err(Refusal::Invalid);
        };
        receive.fill(&port.hca.mrs, data).map_err(|e| match e {
            ScatterError::TooLong => Refusal::TooLong,
            ScatterError::Protection => Refusal::Protection,
            ScatterError::Gone => Refusal::Gone,
        })?;
        self.common.counters.served_bytes += data.len() as u64;
        self.rsp.inbound = Some(Inbound::Send);
        if op.ends() {
            if let Some(rkey) = inv {
                port.hca.mrs.invalidate_remote(request.pd, self.common.qpn, rkey)?;
                port.hca.revoke_answers();
                // The consumer may use the memory otherwise when it sees the completion.
                port.hca.hold_until_quiet(self.common.qpn, None);
            }
            self.rsp.inbound = None;
            self.finish_receive(port, now, WcOpcode::Recv, request.solicited, imm, inv);
            self.finish_message(port);
        }
        Ok(data.packets())
    }

    /// Executes a SEND in one packet into a receive of this queue pair with one buffer, without
    /// taking the receive out of the queue first. False: it is another case or an error, and
    /// nothing has changed; the general path handles it.
    #[inline]
    pub(super) fn execute_send_only(
        &mut self,
        port: &mut Port,
        now: Instant,
        rest: &RxPacket<'_>,
    ) -> bool {
        let (RecvSource::Own(receives), None, None, None) =
            (&mut self.common.rq, &self.rsp.inbound, &self.rsp.receive, &rest.remote)
        else {
            return false;
        };
        let (pd, data) = (self.common.init.pd, rest.bytes);
        let place = |wr: &RecvWr| {
            let loan = lend_whole(&port.hca.mrs, pd, wr.sges.as_slice(), data.len())?;
            loan.copy_in(data).ok().map(|()| wr.wr_id)
        };
        if data.len() > self.pmtu {
            return false;
        }
        let Some(wr_id) = receives.pop_if(place) else { return false };
        let cqe = Cqe::new(wr_id, self.common.qpn, WcOpcode::Recv, WcStatus::Success, now);
        let (byte_len, solicited) = (data.len() as u32, rest.solicited);
        let cqe = Cqe { byte_len, solicited, src_qp: self.dest_qpn(), ..cqe };
        port.hca.complete_recv(self.common.init.recv_cq, cqe);
        self.common.counters.served_bytes += u64::from(byte_len);
        self.finish_message(port);
        true
    }

    /// A receive for a request that needs one now.
    #[inline]
    fn next_receive(&mut self, port: &mut Port, srqn: Option<Srqn>) -> Result<Receive, Refusal> {
        self.take_receive(port, srqn).map_err(|e| match e {
            NoReceive::NotReady => Refusal::NotReady,
            NoReceive::BadSrq => Refusal::Invalid,
        })
    }

    /// A whole write, whose only check is that of its whole range.
    #[inline]
    fn execute_write_only(&mut self, port: &mut Port, request: &Request<'_>) -> Taken {
        self.require(Access::REMOTE_WRITE)?;
        let (Reth { va, rkey, len }, data) = Reth::parse(request.body)?;
        if u64::from(len) > MAX_MESSAGE {
            return Err(Refusal::Invalid);
        }
        let loan = port.hca.mrs.lend_remote::<Write>(
            request.pd,
            self.common.qpn,
            rkey,
            va,
            u64::from(len),
        )?;
        let data = request.payload(data)?;
        self.check_length(request.op, &data)?;
        if data.len() != len as usize {
            return Err(Refusal::Invalid);
        }
        data.place(&loan)?;
        self.common.counters.served_bytes += u64::from(len);
        self.offer_direct(port, rkey);
        self.finish_message(port);
        Ok(data.packets())
    }

    #[inline(never)]
    fn execute_write(&mut self, port: &mut Port, now: Instant, request: &Request<'_>) -> Taken {
        let op = request.op;
        self.require(Access::REMOTE_WRITE)?;
        let (pd, qpn) = (request.pd, self.common.qpn);
        let (target, body) = if op.starts() {
            let (Reth { va, rkey, len }, body) = Reth::parse(request.body)?;
            if u64::from(len) > MAX_MESSAGE {
                return Err(Refusal::Invalid);
            }
            // The whole range is checked before the first byte is written.
            port.hca.mrs.lend_remote::<Write>(pd, qpn, rkey, va, u64::from(len))?;
            ((va, rkey, len, len), body)
        } else {
            match self.rsp.inbound {
                Some(Inbound::Write { va, rkey, left, len }) => {
                    ((va, rkey, left, len), request.body)
                }
                _ => return Err(Refusal::Invalid),
            }
        };
        let (va, rkey, left, len) = target;
        let (imm, data) = take_imm(op, body)?;
        let data = request.payload(data)?;
        self.check_length(op, &data)?;
        let piece = data.len() as u32;
        if piece > left || (op.ends() && piece != left) || (!op.ends() && piece == left) {
            return Err(Refusal::Invalid);
        }
        if imm.is_some() && self.rsp.receive.is_none() {
            // No receive is taken for what may not be written.
            port.hca.mrs.lend_remote::<Write>(pd, qpn, rkey, va, u64::from(piece))?;
            self.rsp.receive = Some(self.next_receive(port, request.srqn)?);
        }
        let loan = port.hca.mrs.lend_remote::<Write>(pd, qpn, rkey, va, u64::from(piece))?;
        data.place(&loan)?;
        self.common.counters.served_bytes += u64::from(piece);
        if op.ends() {
            self.rsp.inbound = None;
            if imm.is_some() {
                self.finish_write_imm(port, now, request.solicited, imm, len);
            }
            self.offer_direct(port, rkey);
            self.finish_message(port);
        } else {
            let (va, left) = (va.wrapping_add(u64::from(piece)), left - piece);
            self.rsp.inbound = Some(Inbound::Write { va, rkey, left, len });
        }
        Ok(data.packets())
    }

    #[inline(never)]
    fn execute_read(&mut self, port: &mut Port, request: &Request<'_>) -> Taken {
        self.require(Access::REMOTE_READ)?;
        self.require_resource()?;
        let (reth, rest) = Reth::parse(request.body)?;
        if u64::from(reth.len) > MAX_MESSAGE || !rest.is_empty() {
            return Err(Refusal::Invalid);
        }
        let len = u64::from(reth.len);
        port.hca.mrs.lend_remote::<Read>(request.pd, self.common.qpn, reth.rkey, reth.va, len)?;
        let packets = (reth.len as usize).div_ceil(self.pmtu).max(1) as u32;
        let what = Memory::Read { va: reth.va, rkey: reth.rkey, len: reth.len };
        self.remember(request.psn, packets, what);
        self.common.counters.served_bytes += len;
        self.finish_message(port);
        self.push_read(request, &reth, false);
        self.offer_direct(port, reth.rkey);
        Ok(packets)
    }

    #[inline(never)]
    fn execute_atomic(&mut self, port: &mut Port, request: &Request<'_>) -> Taken {
        self.require(Access::REMOTE_ATOMIC)?;
        self.require_resource()?;
        let (eth, rest) = AtomicEth::parse(request.body)?;
        if !eth.va.is_multiple_of(8) || !rest.is_empty() {
            return Err(Refusal::Invalid);
        }
        let grant = port.hca.mrs.grant_remote::<Atomic>(
            request.pd,
            self.common.qpn,
            eth.rkey,
            eth.va,
            8,
        )?;
        let original = match request.op {
            Op::CmpSwap => grant.compare_swap(eth.compare, eth.swap_add),
            _ => grant.fetch_add(eth.swap_add),
        };
        self.remember(request.psn, 1, Memory::Atomic { original });
        self.common.counters.served_bytes += 8;
        self.finish_message(port);
        let (psn, msn) = (request.psn, self.rsp.msn);
        self.rsp.replies.push(Reply::Atomic { psn, msn, original, again: false });
        Ok(1)
    }

    #[inline(never)]
    fn execute_atomic_write(&mut self, port: &mut Port, request: &Request<'_>) -> Taken {
        self.require(Access::REMOTE_WRITE)?;
        self.require_resource()?;
        let (reth, data) = Reth::parse(request.body)?;
        let Ok(word) = <[u8; 8]>::try_from(data) else {
            return Err(Refusal::Invalid);
        };
        if reth.len != 8 || !reth.va.is_multiple_of(8) {
            return Err(Refusal::Invalid);
        }
        // An aligned word is written at once.
        let write = port.hca.mrs.lend_remote::<Write>(
            request.pd,
            self.common.qpn,
            reth.rkey,
            reth.va,
            8,
        )?;
        write.copy_in(&word).map_err(|_| Refusal::Access)?;
        self.finish_done(port, request);
        Ok(1)
    }

    #[inline(never)]
    fn execute_flush(&mut self, port: &mut Port, request: &Request<'_>) -> Taken {
        let (feth, body) = Feth::parse(request.body)?;
        let (reth, rest) = Reth::parse(body)?;
        let mut levels = Access::empty();
        if feth.placement.contains(FlushPlacement::GLOBAL) {
            levels |= Access::FLUSH_GLOBAL;
        }
        if feth.placement.contains(FlushPlacement::PERSISTENT) {
            levels |= Access::FLUSH_PERSISTENT;
        }
        if levels.is_empty() || !rest.is_empty() {
            return Err(Refusal::Invalid);
        }
        self.require(levels)?;
        self.require_resource()?;
        let (va, len) = match feth.selectivity {
            FlushSelectivity::Range => (reth.va, u64::from(reth.len)),
            FlushSelectivity::MemoryRegion => (reth.va, 0),
            FlushSelectivity::Other(_) => return Err(Refusal::Invalid),
        };
        port.hca.mrs.check_flush(request.pd, self.common.qpn, reth.rkey, va, len, levels)?;
        // Ordinary memory is globally visible as soon as it is written, and none of it persists
        // longer than its owner; there is nothing to wait for.
        self.finish_done(port, request);
        Ok(1)
    }

    /// Answers an atomic write or a flush, like a read of nothing (annex A19).
    fn finish_done(&mut self, port: &mut Port, request: &Request<'_>) {
        self.remember(request.psn, 1, Memory::Done);
        self.finish_message(port);
        self.push_read(request, &Reth { va: 0, rkey: Rkey(0), len: 0 }, false);
    }

    /// Whether this queue pair allows the peer that kind of access at all.
    #[inline]
    fn require(&self, access: Access) -> Result<(), Refusal> {
        let allowed = self.common.attr.access.unwrap_or(Access::empty());
        if allowed.contains(access) { Ok(()) } else { Err(Refusal::Invalid) }
    }

    /// Whether the peer keeps to the number of reads and atomics it may have outstanding.
    fn require_resource(&self) -> Result<(), Refusal> {
        let limit = usize::from(self.common.attr.max_dest_rd_atomic.unwrap_or(0));
        if self.rsp.replies.outstanding_new() < limit { Ok(()) } else { Err(Refusal::Invalid) }
    }

    fn remember(&mut self, first: Psn, packets: u32, what: Memory) {
        // Twice what the peer may have outstanding: when the requester goes back, its earlier
        // requests may still be in the network and arrive after the retransmitted ones.
        let depth = 2 * usize::from(self.common.attr.max_dest_rd_atomic.unwrap_or(0));
        self.rsp.replay.remember(Remembered { first, packets, what }, depth);
    }

    pub(super) fn push_read(&mut self, request: &Request<'_>, reth: &Reth, again: bool) {
        self.rsp.replies.push(Reply::Read(ReadReply {
            psn: request.psn,
            sent: 0,
            msn: self.rsp.msn,
            va: reth.va,
            rkey: reth.rkey,
            len: reth.len,
            pd: request.pd,
            again,
        }));
    }

    #[inline]
    fn finish_message(&mut self, port: &mut Port) {
        self.rsp.msn = self.rsp.msn.wrapping_add(1);
        self.common.counters.served += 1;
        port.hca.counters.rdma_recvs += 1;
    }

    /// Completes the receive of a message.
    #[inline]
    pub(super) fn finish_receive(
        &mut self,
        port: &mut Port,
        now: Instant,
        opcode: WcOpcode,
        solicited: bool,
        imm: Option<Imm>,
        inv: Option<Rkey>,
    ) {
        let Some(receive) = self.rsp.receive.take() else {
            return;
        };
        let mut cqe = receive.completion(self.common.qpn, opcode, WcStatus::Success, now);
        cqe.solicited = solicited;
        cqe.src_qp = self.dest_qpn();
        if let Some(imm) = imm {
            cqe.flags |= WcFlags::WITH_IMM;
            cqe.imm = imm;
        }
        if let Some(rkey) = inv {
            cqe.flags |= WcFlags::WITH_INV;
            cqe.invalidated = rkey;
        }
        port.hca.complete_recv(receive.cq(), cqe);
    }

    /// Completes the receive that a write with immediate consumed.
    pub(super) fn finish_write_imm(
        &mut self,
        port: &mut Port,
        now: Instant,
        solicited: bool,
        imm: Option<Imm>,
        len: u32,
    ) {
        let Some(receive) = self.rsp.receive.take() else {
            return;
        };
        let opcode = WcOpcode::RecvWriteImm;
        let cqe = receive.completion(self.common.qpn, opcode, WcStatus::Success, now);
        let (flags, src_qp) = (WcFlags::WITH_IMM, self.dest_qpn());
        let imm = imm.unwrap_or_default();
        let cqe = Cqe { byte_len: len, solicited, flags, imm, src_qp, ..cqe };
        port.hca.complete_recv(receive.cq(), cqe);
    }
}

/// Splits off immediate data where the operation has it.
#[inline]
pub(super) fn take_imm(
    op: Op,
    body: &[u8],
) -> Result<(Option<Imm>, &[u8]), feroce_wire::Truncated> {
    if !op.has_imm() {
        return Ok((None, body));
    }
    let (dt, body) = ImmDt::parse(body)?;
    Ok((Some(dt.imm), body))
}
