//! The responder of a reliable service: requests of the peer (IBTA vol1 9.7.4, 9.7.5).

use feroce_mem::{Access, AccessError, Atomic, PdId, Read, Write};
use feroce_train::Instant;
use feroce_wire::{
    AtomicEth, Bth, Feth, FlushPlacement, FlushSelectivity, Ieth, Imm, ImmDt, Msn, NakCode, Op,
    Psn, Reth, Rkey, RnrTimer, Srqn, XrcEth,
};

use super::execute::ScatterError;
use super::receive::{NoReceive, Receive};
use super::replay::{Memory, Remembered, Replay};
use super::replies::{ReadReply, Replies, Reply};
use super::{LossPolicy, Qp, QpState, RecvSource};
use crate::counters::Drop;
use crate::cq::{Cqe, WcFlags, WcOpcode, WcStatus};
use crate::event::AsyncEvent;
use crate::hca::Core;
use crate::wr::MAX_MESSAGE;

/// A message of several packets that has begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Inbound {
    /// A send; its receive is in [`Responder::receive`].
    Send,
    /// A write: where the next byte goes and how many are to come.
    Write { va: u64, rkey: Rkey, left: u32, len: u32 },
}

/// State of the responder.
#[derive(Debug, Default)]
pub(crate) struct Responder {
    /// PSN expected next.
    pub(super) expected: Psn,
    /// Messages completed.
    pub(super) msn: Msn,
    pub(super) inbound: Option<Inbound>,
    /// The receive that the message in progress fills.
    pub(super) receive: Option<Receive>,
    /// A gap or an unready receive has been reported; packets after it are dropped silently.
    pub(super) nak_sent: bool,
    /// The first packet has been seen.
    pub(super) established: bool,
    pub(super) replies: Replies,
    pub(super) replay: Replay,
}

impl Responder {
    pub(super) fn new(expected: Psn) -> Self {
        Self { expected, ..Self::default() }
    }

    #[inline]
    pub(super) fn has_replies(&self) -> bool {
        !self.replies.is_empty()
    }

    pub(super) fn take_receive(&mut self) -> Option<Receive> {
        self.receive.take()
    }
}

/// Why a request is not executed, and so what the peer and the consumer hear.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    /// Malformed or out of order: NAK invalid request.
    Invalid,
    /// No right to the memory: NAK remote access error.
    Access,
    /// The receive is too short: NAK invalid request, local length error.
    TooLong,
    /// The receive's own memory is wrong: NAK remote operational error, local protection error.
    Protection,
    /// No receive yet: RNR NAK; the request will come again.
    NotReady,
    /// The packet is cut short: dropped.
    Truncated,
}

impl From<AccessError> for Refusal {
    fn from(e: AccessError) -> Self {
        match e {
            AccessError::Misaligned => Self::Invalid,
            _ => Self::Access,
        }
    }
}

impl From<feroce_wire::Truncated> for Refusal {
    fn from(_: feroce_wire::Truncated) -> Self {
        Self::Truncated
    }
}

/// A request packet, taken apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub(super) op: Op,
    psn: Psn,
    solicited: bool,
    /// Which shared receive queue, on XRC.
    srqn: Option<Srqn>,
    /// Protection domain whose memory it reaches.
    pd: PdId,
    /// What follows the headers that every packet of the service has.
    body: &'a [u8],
}

/// How many PSNs a request took.
pub(super) type Taken = Result<u32, Refusal>;

impl Qp {
    /// A request packet arrived: `rest` is what follows the BTH, without padding.
    #[inline]
    pub(super) fn handle_request(
        &mut self,
        core: &mut Core,
        now: Instant,
        bth: &Bth,
        op: Op,
        rest: &[u8],
    ) {
        let ahead = bth.psn.diff(self.rsp.expected);
        if ahead > 0 {
            return self.handle_gap(core, now);
        }
        let request = match self.take_apart(core, bth, op, rest) {
            Ok(request) => request,
            Err(refusal) if ahead == 0 => return self.refuse(core, now, refusal),
            Err(_) => return core.drop(Drop::Truncated),
        };
        if ahead < 0 {
            return self.handle_duplicate(core, &request);
        }
        self.rsp.nak_sent = false;
        match self.execute(core, now, &request) {
            Ok(taken) => {
                self.rsp.expected = self.rsp.expected.wrapping_add(taken);
                if bth.ack_req && !has_own_reply(op) {
                    let reply = Reply::Ack { psn: bth.psn, msn: self.rsp.msn };
                    core.counters.ack_deferred += u64::from(self.rsp.replies.push(reply));
                }
            }
            Err(refusal) => self.refuse(core, now, refusal),
        }
    }

    /// Splits off the XRC header and finds out whose memory the request reaches.
    #[inline]
    pub(super) fn take_apart<'a>(
        &self,
        core: &Core,
        bth: &Bth,
        op: Op,
        rest: &'a [u8],
    ) -> Result<Request<'a>, Refusal> {
        let (srqn, pd, body) = match self.rq {
            RecvSource::Xrc(_) => {
                let (eth, body) = XrcEth::parse(rest)?;
                // Annex A14: the shared receive queue brings the protection domain.
                let (_, pd, _) = self.xrc_srq(core, Some(eth.srqn)).ok_or(Refusal::Invalid)?;
                (Some(eth.srqn), pd, body)
            }
            _ => (None, self.init.pd, rest),
        };
        Ok(Request { op, psn: bth.psn, solicited: bth.solicited, srqn, pd, body })
    }

    /// A packet came before one that is expected: say so, once per gap.
    fn handle_gap(&mut self, core: &mut Core, now: Instant) {
        core.counters.out_of_seq_request += 1;
        if self.rsp.nak_sent {
            return core.drop(Drop::AfterGap);
        }
        self.rsp.nak_sent = true;
        core.counters.out_of_sequence += 1;
        self.push_nak(NakCode::PsnSequence);
        if self.init.loss == LossPolicy::Fatal {
            core.event(AsyncEvent::QpFatal(self.qpn));
            self.stop_after_replies(core, now);
        }
    }

    /// A request that was executed before (IBTA vol1 9.7.5.1.4).
    fn handle_duplicate(&mut self, core: &mut Core, request: &Request<'_>) {
        core.counters.duplicate_request += 1;
        let known = self.rsp.replay.find(request.psn);
        match (request.op, known) {
            (Op::ReadRequest, Some(known)) => {
                let Ok((reth, _)) = Reth::parse(request.body) else {
                    return core.drop(Drop::Truncated);
                };
                if !self.is_part_of(&known, request.psn, &reth) {
                    return core.drop(Drop::StaleDuplicate);
                }
                self.rsp.replies.cut_from(request.psn);
                self.push_read(request, &reth);
            }
            (Op::CmpSwap | Op::FetchAdd, Some(known)) => {
                let Memory::Atomic { original } = known.what else {
                    return core.drop(Drop::StaleDuplicate);
                };
                self.rsp.replies.cut_from(request.psn);
                let (psn, msn) = (request.psn, self.rsp.msn);
                self.rsp.replies.push(Reply::Atomic { psn, msn, original });
            }
            (Op::ReadRequest | Op::CmpSwap | Op::FetchAdd, None) => {
                core.drop(Drop::StaleDuplicate);
            }
            _ => {
                // Acknowledge as far as we can without claiming to have answered a read or an
                // atomic whose answer may be lost.
                let psn = match self.rsp.replay.first_after(request.psn) {
                    Some(first) => first.prev(),
                    None => self.rsp.expected.prev(),
                };
                self.rsp.replies.push(Reply::Ack { psn, msn: self.rsp.msn });
            }
        }
    }

    /// Whether a repeated read asks for the end of what was read before.
    fn is_part_of(&self, known: &Remembered, psn: Psn, reth: &Reth) -> bool {
        let Memory::Read { va, rkey, len } = known.what else {
            return false;
        };
        let skipped = u64::from(psn.since(known.first)) * self.pmtu as u64;
        reth.rkey == rkey
            && reth.va == va.wrapping_add(skipped)
            && u64::from(reth.len) + skipped <= u64::from(len)
    }

    /// Executes a request that is next in sequence.
    #[inline]
    pub(super) fn execute(
        &mut self,
        core: &mut Core,
        now: Instant,
        request: &Request<'_>,
    ) -> Taken {
        let op = request.op;
        if op.starts() == self.rsp.inbound.is_some() {
            // Something new in the midst of a message, or a continuation of nothing.
            return Err(Refusal::Invalid);
        }
        if op.is_send() {
            self.execute_send(core, now, request)
        } else if op.is_write() {
            self.execute_write(core, now, request)
        } else {
            match op {
                Op::ReadRequest => self.execute_read(core, request),
                Op::CmpSwap | Op::FetchAdd => self.execute_atomic(core, request),
                Op::AtomicWrite => self.execute_atomic_write(core, request),
                Op::Flush => self.execute_flush(core, request),
                _ => Err(Refusal::Invalid),
            }
        }
    }

    /// Whether the payload of one packet of a message has a length that it may have.
    #[inline]
    fn check_length(&self, op: Op, len: usize) -> Result<(), Refusal> {
        let fits = if op.is_only() {
            len <= self.pmtu
        } else if op.is_last() {
            (1..=self.pmtu).contains(&len)
        } else {
            len == self.pmtu
        };
        if fits { Ok(()) } else { Err(Refusal::Invalid) }
    }

    #[inline]
    fn execute_send(&mut self, core: &mut Core, now: Instant, request: &Request<'_>) -> Taken {
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
        self.check_length(op, data.len())?;
        if op.starts() && self.rsp.receive.is_none() {
            self.rsp.receive = Some(self.next_receive(core, request.srqn)?);
        }
        let Some(receive) = self.rsp.receive.as_mut() else {
            return Err(Refusal::Invalid);
        };
        receive.fill(core, data).map_err(|e| match e {
            ScatterError::TooLong => Refusal::TooLong,
            ScatterError::Protection => Refusal::Protection,
        })?;
        self.rsp.inbound = Some(Inbound::Send);
        if op.ends() {
            if let Some(rkey) = inv {
                core.mrs.invalidate_remote(request.pd, self.qpn, rkey)?;
            }
            self.rsp.inbound = None;
            self.finish_receive(core, now, WcOpcode::Recv, request.solicited, imm, inv);
            self.finish_message(core);
        }
        Ok(1)
    }

    /// A receive for a request that needs one now.
    #[inline]
    fn next_receive(&mut self, core: &mut Core, srqn: Option<Srqn>) -> Result<Receive, Refusal> {
        self.take_receive(core, srqn).map_err(|e| match e {
            NoReceive::NotReady => Refusal::NotReady,
            NoReceive::BadSrq => Refusal::Invalid,
        })
    }

    #[inline]
    fn execute_write(&mut self, core: &mut Core, now: Instant, request: &Request<'_>) -> Taken {
        let op = request.op;
        self.require(Access::REMOTE_WRITE)?;
        let (target, body) = if op.starts() {
            let (reth, body) = Reth::parse(request.body)?;
            if u64::from(reth.len) > MAX_MESSAGE {
                return Err(Refusal::Invalid);
            }
            // The whole range is checked before the first byte is written.
            let whole = u64::from(reth.len);
            core.mrs.grant_remote::<Write>(request.pd, self.qpn, reth.rkey, reth.va, whole)?;
            ((reth.va, reth.rkey, reth.len, reth.len), body)
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
        self.check_length(op, data.len())?;
        let piece = data.len() as u32;
        if piece > left || (op.ends() && piece != left) || (!op.ends() && piece == left) {
            return Err(Refusal::Invalid);
        }
        let grant =
            core.mrs.grant_remote::<Write>(request.pd, self.qpn, rkey, va, u64::from(piece))?;
        if imm.is_some() && self.rsp.receive.is_none() {
            self.rsp.receive = Some(self.next_receive(core, request.srqn)?);
        }
        grant.copy_in(0, data).map_err(|_| Refusal::Access)?;
        if op.ends() {
            self.rsp.inbound = None;
            if imm.is_some() {
                self.finish_write_imm(core, now, request.solicited, imm, len);
            }
            self.finish_message(core);
        } else {
            let (va, left) = (va.wrapping_add(u64::from(piece)), left - piece);
            self.rsp.inbound = Some(Inbound::Write { va, rkey, left, len });
        }
        Ok(1)
    }

    fn execute_read(&mut self, core: &mut Core, request: &Request<'_>) -> Taken {
        self.require(Access::REMOTE_READ)?;
        self.require_resource()?;
        let (reth, rest) = Reth::parse(request.body)?;
        if u64::from(reth.len) > MAX_MESSAGE || !rest.is_empty() {
            return Err(Refusal::Invalid);
        }
        let len = u64::from(reth.len);
        core.mrs.grant_remote::<Read>(request.pd, self.qpn, reth.rkey, reth.va, len)?;
        let packets = (reth.len as usize).div_ceil(self.pmtu).max(1) as u32;
        let what = Memory::Read { va: reth.va, rkey: reth.rkey, len: reth.len };
        self.remember(request.psn, packets, what);
        self.finish_message(core);
        self.push_read(request, &reth);
        Ok(packets)
    }

    fn execute_atomic(&mut self, core: &mut Core, request: &Request<'_>) -> Taken {
        self.require(Access::REMOTE_ATOMIC)?;
        self.require_resource()?;
        let (eth, rest) = AtomicEth::parse(request.body)?;
        if !eth.va.is_multiple_of(8) || !rest.is_empty() {
            return Err(Refusal::Invalid);
        }
        let grant = core.mrs.grant_remote::<Atomic>(request.pd, self.qpn, eth.rkey, eth.va, 8)?;
        let original = match request.op {
            Op::CmpSwap => grant.compare_swap(eth.compare, eth.swap_add),
            _ => grant.fetch_add(eth.swap_add),
        };
        self.remember(request.psn, 1, Memory::Atomic { original });
        self.finish_message(core);
        let (psn, msn) = (request.psn, self.rsp.msn);
        self.rsp.replies.push(Reply::Atomic { psn, msn, original });
        Ok(1)
    }

    fn execute_atomic_write(&mut self, core: &mut Core, request: &Request<'_>) -> Taken {
        self.require(Access::REMOTE_WRITE)?;
        let (reth, data) = Reth::parse(request.body)?;
        let Ok(word) = <[u8; 8]>::try_from(data) else {
            return Err(Refusal::Invalid);
        };
        if reth.len != 8 || !reth.va.is_multiple_of(8) {
            return Err(Refusal::Invalid);
        }
        // An aligned word is written at once.
        let write = core.mrs.grant_remote::<Write>(request.pd, self.qpn, reth.rkey, reth.va, 8)?;
        write.copy_in(0, &word).map_err(|_| Refusal::Access)?;
        self.finish_message(core);
        Ok(1)
    }

    fn execute_flush(&mut self, core: &mut Core, request: &Request<'_>) -> Taken {
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
        let (va, len) = match feth.selectivity {
            FlushSelectivity::Range => (reth.va, u64::from(reth.len)),
            FlushSelectivity::MemoryRegion => (reth.va, 0),
            FlushSelectivity::Other(_) => return Err(Refusal::Invalid),
        };
        core.mrs.check_flush(request.pd, self.qpn, reth.rkey, va, len, levels)?;
        // Ordinary memory is globally visible as soon as it is written, and none of it persists
        // longer than its owner; there is nothing to wait for.
        self.finish_message(core);
        Ok(1)
    }

    /// Whether this queue pair allows the peer that kind of access at all (C9-30 and following).
    #[inline]
    fn require(&self, access: Access) -> Result<(), Refusal> {
        let allowed = self.attr.access.unwrap_or(Access::empty());
        if allowed.contains(access) { Ok(()) } else { Err(Refusal::Invalid) }
    }

    /// Whether the peer keeps to the number of reads and atomics it may have outstanding.
    fn require_resource(&self) -> Result<(), Refusal> {
        let limit = usize::from(self.attr.max_dest_rd_atomic.unwrap_or(0));
        if self.rsp.replies.outstanding() < limit { Ok(()) } else { Err(Refusal::Invalid) }
    }

    fn remember(&mut self, first: Psn, packets: u32, what: Memory) {
        let depth = usize::from(self.attr.max_dest_rd_atomic.unwrap_or(0));
        self.rsp.replay.remember(Remembered { first, packets, what }, depth);
    }

    fn push_read(&mut self, request: &Request<'_>, reth: &Reth) {
        self.rsp.replies.push(Reply::Read(ReadReply {
            psn: request.psn,
            sent: 0,
            msn: self.rsp.msn,
            va: reth.va,
            rkey: reth.rkey,
            len: reth.len,
            pd: request.pd,
        }));
    }

    #[inline]
    fn finish_message(&mut self, core: &mut Core) {
        self.rsp.msn = self.rsp.msn.wrapping_add(1);
        core.counters.rdma_recvs += 1;
    }

    /// Completes the receive of a message.
    #[inline]
    pub(super) fn finish_receive(
        &mut self,
        core: &mut Core,
        now: Instant,
        opcode: WcOpcode,
        solicited: bool,
        imm: Option<Imm>,
        inv: Option<Rkey>,
    ) {
        let Some(receive) = self.rsp.receive.take() else {
            return;
        };
        let mut cqe = receive.completion(self.qpn, opcode, WcStatus::Success, now);
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
        core.complete_recv(receive.cq(), cqe);
    }

    /// Completes the receive that a write with immediate consumed.
    pub(super) fn finish_write_imm(
        &mut self,
        core: &mut Core,
        now: Instant,
        solicited: bool,
        imm: Option<Imm>,
        len: u32,
    ) {
        let Some(receive) = self.rsp.receive.take() else {
            return;
        };
        let opcode = WcOpcode::RecvWriteImm;
        let cqe = receive.completion(self.qpn, opcode, WcStatus::Success, now);
        let (flags, src_qp) = (WcFlags::WITH_IMM, self.dest_qpn());
        let imm = imm.unwrap_or_default();
        let cqe = Cqe { byte_len: len, solicited, flags, imm, src_qp, ..cqe };
        core.complete_recv(receive.cq(), cqe);
    }

    fn push_nak(&mut self, code: NakCode) {
        let (psn, msn) = (self.rsp.expected, self.rsp.msn);
        self.rsp.replies.push(Reply::Nak { psn, msn, code });
    }

    /// Tells the peer why its request is not executed and, unless it only came too early, stops
    /// (IBTA vol1 9.9.3, table 58).
    fn refuse(&mut self, core: &mut Core, now: Instant, refusal: Refusal) {
        let (code, status) = match refusal {
            Refusal::Truncated => return core.drop(Drop::Truncated),
            Refusal::NotReady => {
                core.counters.out_of_buffer += 1;
                core.counters.send_rnr_err += 1;
                self.rsp.nak_sent = true;
                let timer = RnrTimer::new(self.attr.min_rnr_timer.unwrap_or(0));
                let (psn, msn) = (self.rsp.expected, self.rsp.msn);
                self.rsp.replies.push(Reply::Rnr { psn, msn, timer });
                return;
            }
            Refusal::Invalid => (NakCode::InvalidRequest, WcStatus::RemoteInvalidRequest),
            Refusal::Access => (NakCode::RemoteAccess, WcStatus::LocalAccess),
            Refusal::TooLong => (NakCode::InvalidRequest, WcStatus::LocalLength),
            Refusal::Protection => (NakCode::RemoteOperational, WcStatus::LocalProtection),
        };
        match refusal {
            Refusal::Access => {
                core.counters.resp_remote_access_errors += 1;
                core.event(AsyncEvent::QpAccessError(self.qpn));
            }
            Refusal::Invalid => {
                core.counters.resp_remote_invalid_request += 1;
                core.event(AsyncEvent::QpRequestError(self.qpn));
            }
            Refusal::TooLong => core.counters.resp_local_length_error += 1,
            _ => {}
        }
        self.push_nak(code);
        if let Some(receive) = self.rsp.receive.take() {
            let cqe = receive.completion(self.qpn, WcOpcode::Recv, status, now);
            core.complete_recv(receive.cq(), Cqe { byte_len: 0, ..cqe });
        }
        self.stop_after_replies(core, now);
    }

    /// Goes to the error state, but still sends the answers that are due: the peer must learn why.
    fn stop_after_replies(&mut self, core: &mut Core, now: Instant) {
        let replies = core::mem::take(&mut self.rsp.replies);
        self.enter_error(core, now);
        self.rsp.replies = replies;
    }

    /// The first packet on a queue pair in RTR tells that the peer is there.
    pub(super) fn note_established(&mut self, core: &mut Core) {
        if self.state == QpState::Rtr && !self.rsp.established {
            self.rsp.established = true;
            core.event(AsyncEvent::CommEstablished(self.qpn));
        }
    }
}

/// Whether the answer to a request is more than an acknowledgement.
const fn has_own_reply(op: Op) -> bool {
    matches!(op, Op::ReadRequest | Op::CmpSwap | Op::FetchAdd)
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
