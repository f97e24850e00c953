//! The responder of a reliable service: requests of the peer (IBTA vol1 9.7.4, 9.7.5).

use core::hint::cold_path;

use feroce_mem::{AccessError, FetchError, PdId};
use feroce_train::{Instant, RemotePayload};
use feroce_wire::{NakCode, Op, Psn, Reth, Rkey, RnrTimer, Srqn, XrcEth};

use super::qp::Qp;
use super::replay::{Memory, Remembered};
use super::reply_queue::Reply;
use super::responder_state::Missing;
use super::rx_payload::{RxPacket, RxPayload};
use crate::hca::attr::LossPolicy;
use crate::hca::counters::Drop;
use crate::hca::cqe::{Cqe, WcOpcode, WcStatus};
use crate::hca::event::AsyncEvent;
use crate::hca::qp::RecvSource;
use crate::hca::state::QpState;
use crate::hca::wr::MAX_MESSAGE;
use crate::ib::port::Port;

/// Why a request is not executed. It selects the NAK for the peer and the status for the consumer.
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
    /// Its payload could not be fetched: it counts as lost.
    Gone,
}

impl From<FetchError> for Refusal {
    fn from(e: FetchError) -> Self {
        match e {
            FetchError::Gone => Self::Gone,
            _ => Self::Access,
        }
    }
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

/// A parsed request packet, or one that stands for a run of packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub(super) op: Op,
    pub(super) psn: Psn,
    pub(super) solicited: bool,
    /// Which shared receive queue, on XRC.
    pub(super) srqn: Option<Srqn>,
    /// Protection domain whose memory it reaches.
    pub(super) pd: PdId,
    /// What follows the headers that every packet of the service has.
    pub(super) body: &'a [u8],
    /// The payload, if it is not in `body`.
    pub(super) remote: Option<RemotePayload<'a>>,
}

impl<'a> Request<'a> {
    /// The payload, where `bytes` is what follows all headers.
    #[inline]
    pub(super) fn payload(&self, bytes: &'a [u8]) -> Result<RxPayload<'a>, Refusal> {
        RxPacket::payload(self.remote, bytes).ok_or(Refusal::Invalid)
    }

    /// What is left of a run without its first `packets`, which were executed before.
    fn without(&self, packets: u32, pmtu: usize) -> Option<Self> {
        let remote = self.remote?.without(packets, pmtu)?;
        let body = if self.op.has_reth() { self.body.get(Reth::LEN..)? } else { self.body };
        let (op, psn) = (self.op.continued()?, self.psn.wrapping_add(packets));
        Some(Self { op, psn, body, remote: Some(remote), ..*self })
    }
}

/// How many PSNs a request took.
pub(super) type Taken = Result<u32, Refusal>;

impl Qp {
    /// A request packet arrived.
    #[inline]
    pub(super) fn handle_request(&mut self, port: &mut Port, now: Instant, rest: &RxPacket<'_>) {
        self.take_request(port, now, rest);
        if !self.rsp.early.is_empty() {
            self.take_early(port, now);
        }
    }

    /// The packets that arrived too early, as far as they are next.
    #[cold]
    fn take_early(&mut self, port: &mut Port, now: Instant) {
        while self.rsp.missing == Missing::Nothing
            && let Some(early) = self.rsp.early.take(&mut port.reorder, self.rsp.expected)
        {
            self.take_request(port, now, &early.packet());
            early.discard(&mut port.reorder);
        }
        // If another packet is missing behind these, the next that is too early shows it: a peer
        // that goes back sends it now without being asked.
        if self.rsp.missing == Missing::Receive {
            self.rsp.early.clear(&mut port.reorder);
        }
    }

    /// A request packet is to be executed, unless it is not its turn.
    #[inline]
    fn take_request(&mut self, port: &mut Port, now: Instant, rest: &RxPacket<'_>) {
        let ahead = rest.psn.diff(self.rsp.expected);
        // The common short message: a SEND in one packet.
        if ahead == 0 && rest.op == Op::SendOnly && self.execute_send_only(port, now, rest) {
            self.rsp.missing = Missing::Nothing;
            return self.note_executed(port, rest, 1);
        }
        if ahead > 0 {
            return self.handle_gap(port, now, rest, ahead);
        }
        let mut request = match self.take_apart(port, rest) {
            Ok(request) => request,
            Err(refusal) if ahead == 0 => return self.refuse(port, now, refusal),
            Err(_) => return port.hca.drop(Drop::Truncated),
        };
        if ahead < 0 {
            self.handle_duplicate(port, &request);
            match request.without(ahead.unsigned_abs(), self.pmtu) {
                Some(unseen) => request = unseen,
                None => return,
            }
        }
        self.rsp.missing = Missing::Nothing;
        match self.execute(port, now, &request) {
            Ok(taken) => self.note_executed(port, rest, taken),
            Err(refusal) => self.refuse(port, now, refusal),
        }
    }

    /// A request was executed that took so many PSNs.
    #[inline]
    fn note_executed(&mut self, port: &mut Port, rest: &RxPacket<'_>, taken: u32) {
        self.rsp.expected = self.rsp.expected.wrapping_add(taken);
        self.rsp.owes_ack = !has_own_reply(rest.op);
        // An acknowledgement that was not requested goes along with one that was.
        let asked = rest.ack_req || self.rsp.replies.is_bare_ack();
        if asked && self.rsp.owes_ack {
            let reply = Reply::Ack { psn: self.rsp.expected.prev(), msn: self.rsp.msn };
            port.hca.counters.ack_deferred += u64::from(self.rsp.replies.push(reply));
        }
    }

    /// Splits off the XRC header and finds out whose memory the request reaches.
    #[inline]
    pub(super) fn take_apart<'a>(
        &self,
        port: &Port,
        rest: &RxPacket<'a>,
    ) -> Result<Request<'a>, Refusal> {
        let RxPacket { op, psn, solicited, bytes, remote, .. } = *rest;
        if remote.is_some_and(|remote| !may_be_remote(op, remote)) {
            return Err(Refusal::Invalid);
        }
        let (srqn, pd, body) = match self.common.rq {
            RecvSource::Xrc(_) => {
                let (eth, body) = XrcEth::parse(bytes)?;
                // Annex A14: the shared receive queue brings the protection domain.
                let (_, pd, _) = self.xrc_srq(port, Some(eth.srqn)).ok_or(Refusal::Invalid)?;
                (Some(eth.srqn), pd, body)
            }
            _ => (None, self.common.init.pd, bytes),
        };
        Ok(Request { op, psn, solicited, srqn, pd, body, remote: remote.copied() })
    }

    /// A packet arrived before the expected one: sends a NAK, once per gap, and keeps the packet.
    #[cold]
    fn handle_gap(&mut self, port: &mut Port, now: Instant, rest: &RxPacket<'_>, ahead: i32) {
        port.hca.counters.out_of_seq_request += 1;
        let was_known = self.rsp.missing != Missing::Nothing;
        if !was_known {
            self.rsp.missing = Missing::Packet;
            port.hca.counters.out_of_sequence += 1;
            self.push_nak(NakCode::PsnSequence);
            if self.common.init.loss == LossPolicy::Fatal {
                port.hca.event(AsyncEvent::QpFatal(self.common.qpn));
                return self.stop_after_replies(port, now);
            }
        }
        let may_keep = port.hca.config.selective_repeat && self.rsp.missing == Missing::Packet;
        if may_keep && self.rsp.early.keep(&mut port.reorder, rest, ahead) {
            port.hca.counters.kept_after_gap += 1;
        } else if was_known {
            port.hca.drop(Drop::AfterGap);
        }
    }

    /// A request that was executed before (IBTA vol1 9.7.5.1).
    #[cold]
    fn handle_duplicate(&mut self, port: &mut Port, request: &Request<'_>) {
        port.hca.counters.duplicate_request += 1;
        let known = self.rsp.replay.find(request.psn);
        match (request.op, known) {
            (Op::ReadRequest, Some(known)) => {
                let Ok((reth, _)) = Reth::parse(request.body) else {
                    return port.hca.drop(Drop::Truncated);
                };
                if !self.is_part_of(&known, request.psn, &reth) {
                    return port.hca.drop(Drop::StaleDuplicate);
                }
                if self.may_answer_again(port, request.psn) {
                    self.push_read(request, &reth, true);
                }
            }
            (Op::CmpSwap | Op::FetchAdd, Some(known)) => {
                let Memory::Atomic { original } = known.what else {
                    return port.hca.drop(Drop::StaleDuplicate);
                };
                if self.may_answer_again(port, request.psn) {
                    let (psn, msn) = (request.psn, self.rsp.msn);
                    self.rsp.replies.push(Reply::Atomic { psn, msn, original, again: true });
                }
            }
            (Op::AtomicWrite | Op::Flush, Some(Remembered { what: Memory::Done, .. })) => {
                if self.may_answer_again(port, request.psn) {
                    self.push_read(request, &Reth { va: 0, rkey: Rkey(0), len: 0 }, true);
                }
            }
            (op, _) if has_own_reply(op) => port.hca.drop(Drop::StaleDuplicate),
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

    /// Makes room for the answer to a duplicate. False: too many wait already; a peer that repeats
    /// its requests must not make the queue grow.
    fn may_answer_again(&mut self, port: &mut Port, psn: Psn) -> bool {
        self.rsp.replies.cut_from(psn);
        let limit = usize::from(self.common.attr.max_dest_rd_atomic.unwrap_or(0));
        if self.rsp.replies.outstanding() >= limit {
            port.hca.drop(Drop::RateLimited);
            return false;
        }
        true
    }

    /// Whether a repeated read covers the end of what was read before.
    fn is_part_of(&self, known: &Remembered, psn: Psn, reth: &Reth) -> bool {
        let Memory::Read { va, rkey, len } = known.what else {
            return false;
        };
        let skipped = u64::from(psn.since(known.first)) * self.pmtu as u64;
        reth.rkey == rkey
            && reth.va == va.wrapping_add(skipped)
            && u64::from(reth.len) + skipped <= u64::from(len)
    }

    fn push_nak(&mut self, code: NakCode) {
        let (psn, msn) = (self.rsp.expected, self.rsp.msn);
        self.rsp.replies.push(Reply::Nak { psn, msn, code });
    }

    /// Sends the peer a NAK that says why its request is not executed and, unless the request only
    /// came too early, stops the queue pair (IBTA vol1 9.9.3).
    #[cold]
    fn refuse(&mut self, port: &mut Port, now: Instant, refusal: Refusal) {
        let (code, status) = match refusal {
            Refusal::Truncated => return port.hca.drop(Drop::Truncated),
            Refusal::Gone => return port.hca.drop(Drop::PayloadGone),
            Refusal::NotReady => {
                port.hca.counters.out_of_buffer += 1;
                port.hca.counters.send_rnr_err += 1;
                self.rsp.missing = Missing::Receive;
                let timer = RnrTimer::new(self.common.attr.min_rnr_timer.unwrap_or(0));
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
                port.hca.counters.resp_remote_access_errors += 1;
                port.hca.event(AsyncEvent::QpAccessError(self.common.qpn));
            }
            Refusal::Invalid => {
                port.hca.counters.resp_remote_invalid_request += 1;
                port.hca.event(AsyncEvent::QpRequestError(self.common.qpn));
            }
            Refusal::TooLong => port.hca.counters.resp_local_length_error += 1,
            _ => {}
        }
        self.push_nak(code);
        if let Some(receive) = self.rsp.receive.take() {
            let cqe = receive.completion(self.common.qpn, WcOpcode::Recv, status, now);
            port.hca.complete_recv(receive.cq(), Cqe { byte_len: 0, ..cqe });
        }
        self.stop_after_replies(port, now);
    }

    /// Goes to the error state, but still sends the answers that are due: they tell the peer why.
    fn stop_after_replies(&mut self, port: &mut Port, now: Instant) {
        let replies = core::mem::take(&mut self.rsp.replies);
        self.rsp.owes_ack = false;
        self.enter_error(port, now);
        self.rsp.replies = replies;
    }

    /// The first packet on a queue pair in RTR shows that the connection is established.
    #[inline]
    pub(super) fn note_established(&mut self, port: &mut Port) {
        if self.common.state == QpState::Rtr && !self.rsp.established {
            cold_path();
            self.rsp.established = true;
            port.hca.event(AsyncEvent::CommEstablished(self.common.qpn));
        }
    }
}

/// Whether payload of this kind and length may be fetched.
fn may_be_remote(op: Op, remote: &RemotePayload<'_>) -> bool {
    (op.is_send() || op.is_write()) && remote.packets > 0 && remote.len as u64 <= MAX_MESSAGE
}

/// Whether the answer to a request is more than an acknowledgement.
const fn has_own_reply(op: Op) -> bool {
    matches!(op, Op::ReadRequest | Op::CmpSwap | Op::FetchAdd | Op::AtomicWrite | Op::Flush)
}
