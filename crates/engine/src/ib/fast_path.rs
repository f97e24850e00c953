//! The fast path: a short message that is sent as soon as it is posted.
//!
//! The general path handles other queue pairs that want a turn, messages of many packets, several
//! messages at once, answers, pacing and retransmission. Where none of these apply, the message is
//! one packet, and the requester writes it into a buffer of the caller, without a train. All other
//! requests, and all that fail a check here, take the general path in `requester`.

use core::hint::cold_path;

use feroce_mem::{Loan, MrTable, PdId, Read};
use feroce_train::{Instant, Single, SingleBuf};
use feroce_wire::{Bth, Opcode, Service};

use super::account::Sent;
use super::outstanding::Kind;
use super::qp::Qp;
use super::requester::Start;
use super::train_layout::OnlyPacket;
use crate::hca::state::{QpState, QpType};
use crate::hca::wr::{Data, SendFlags, SendOp};
use crate::ib::destination::PACKET_COST;
use crate::ib::port::Port;

/// Longest message. It is not longer than a packet of the smallest path MTU.
const SHORT: u32 = 256;

/// The bytes of a message, with the right to read them.
enum Bytes<'a> {
    Inline(&'a [u8]),
    One(Loan<'a, Read>),
}

impl<'a> Bytes<'a> {
    /// `None`: they are in several pieces, or the consumer has no right to them.
    #[inline]
    fn of(data: &'a Data, mrs: &'a MrTable, pd: PdId) -> Option<Self> {
        match data {
            Data::Inline(bytes) => Some(Self::Inline(bytes.as_slice())),
            Data::Sges(sges) => match sges.as_slice() {
                [] => Some(Self::Inline(&[])),
                [sge] => mrs.lend_local(pd, sge.lkey, sge.addr, sge.len).ok().map(Self::One),
                _ => None,
            },
        }
    }

    #[inline]
    fn len(&self) -> usize {
        match self {
            Self::Inline(bytes) => bytes.len(),
            Self::One(loan) => loan.len(),
        }
    }

    /// Writes them to `out`, which is as long.
    #[inline]
    fn copy(&self, out: &mut [u8]) {
        match self {
            Self::Inline(bytes) => out.copy_from_slice(bytes),
            Self::One(loan) => {
                // The loan has as many bytes as `out`, so this does not fail. If it did, stale
                // bytes of the buffer must not leave.
                if loan.copy_out(out).is_err() {
                    out.fill(0);
                }
            }
        }
    }
}

impl Qp {
    /// Whether its only work is one request that was just posted, which need not wait.
    #[inline]
    fn is_free(&self) -> bool {
        let posted = self.req.outstanding.flights.len();
        self.common.init.qp_type == QpType::Rc
            && self.common.state == QpState::Rts
            && self.common.sq.len() == posted + 1
            && self.req.outstanding.cursor == posted
            && !self.req.is_held()
            && !self.req.halted
            && !self.req.unanswered
            && !self.common.queued
            && !self.rsp.has_replies()
            && self.cc.is_none()
    }

    /// Puts the one request in the queue that was not sent into `out`, if it is a short message and
    /// may go now, and calls `show` with it. Calls `now` afterwards, and only if a timer has to be
    /// set.
    #[inline]
    pub(crate) fn try_fast_path(
        &mut self,
        port: &mut Port,
        out: &mut SingleBuf,
        show: impl FnOnce(Single<'_>),
        now: impl FnOnce() -> Instant,
    ) -> bool {
        if !self.is_free() || port.hca.revocations.concern(self.common.qpn) {
            cold_path();
            return false;
        }
        let index = self.req.outstanding.flights.len();
        let (Some(wr), Some(peer)) = (self.common.sq.peek(index), self.destination) else {
            cold_path();
            return false;
        };
        let Some(bytes) = Bytes::of(&wr.data, &port.hca.mrs, self.common.init.pd) else {
            cold_path();
            return false;
        };
        let Some(only) = OnlyPacket::of(wr, bytes.len() as u64) else {
            cold_path();
            return false;
        };
        let (flags, takes_receive) = (wr.flags, wr.op.consumes_receive());
        // A write may be copied directly (see `direct_access`), if nothing is under way.
        let may_go_direct = index == 0 && matches!(wr.op, SendOp::Write(_));
        if only.payload > SHORT
            || may_go_direct
            || flags.contains(SendFlags::FENCE)
            || !self.req.may_start(1, takes_receive)
        {
            cold_path();
            return false;
        }
        let cost = u64::from(only.payload) + PACKET_COST;
        let full = self.pmtu as u64 + PACKET_COST;
        let destination = port.destinations.get(peer);
        if destination.room() < cost + full || destination.has_waiters() {
            cold_path();
            return false;
        }
        let is_long = self.req.ack_requests.unrequested + cost >= destination.window() / 4;
        let requests_ack = is_long || self.wants_ack(takes_receive, flags);
        let bth = self.bth(Opcode::new(Service::Rc, only.op), self.req.outstanding.next);
        let (solicited, pad) = (flags.contains(SendFlags::SOLICITED), only.pad());
        let mut head = [0; Bth::LEN];
        Bth { solicited, ack_req: requests_ack, pad, ..bth }.emit(&mut head);
        let write = |out: &mut [u8]| {
            let Some((place, rest)) = out.split_first_chunk_mut() else { return };
            *place = head;
            let Some((data, padding)) = only.emit(rest) else { return };
            bytes.copy(data);
            if !padding.is_empty() {
                padding.fill(0);
            }
        };
        let packet_len = only.packet_len();
        if !out.put(&self.path, bth.dest_qp, packet_len, write) {
            cold_path();
            return false;
        }
        show(out.get());
        port.hca.counters.sent_pkts += 1;
        port.hca.counters.sent_bytes += packet_len as u64;
        let (kind, packets, len) = (Kind::Acked, 1, only.payload);
        self.give_psns(port, Start { kind, packets, len, takes_receive, flags }, requests_ack);
        let sent = Sent::train(packets, cost, requests_ack, self.req.outstanding.next);
        if let Some(now) = self.account_sent(port, now, sent)
            && let Some(deadline) = self.deadline(now)
        {
            port.hca.timers.arm(self.common.slot, &mut self.common.armed, deadline);
        }
        true
    }
}
