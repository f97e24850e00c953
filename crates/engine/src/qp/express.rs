//! Express: a short message that is sent as soon as it is posted.
//!
//! Most of what it takes to send is there for what mostly is not so: other queue pairs that want a
//! turn, messages of many packets, several messages at once, answers, pacing, going back. Where
//! nothing of that is so, a message is one packet, and it is written where the link wants it.
//! Whatever else there is, and whatever may fail, goes the way of everything.

use feroce_mem::{Loan, MrTable, PdId, Read};
use feroce_train::{Instant, Single};
use feroce_wire::{Bth, Opcode, Service};

use super::shape::Only;
use super::window::Kind;
use super::{Qp, QpState, QpType};
use crate::hca::Core;
use crate::peer::PACKET_COST;
use crate::wr::{Data, SendFlags, SendOp};

/// Longest message. It is not longer than a packet of the smallest path MTU.
const SHORT: u32 = 256;

/// The bytes of a message, with the right to read them.
enum Bytes<'a> {
    Inline(&'a [u8]),
    One(Loan<'a, Read>),
}

impl<'a> Bytes<'a> {
    /// `None`: they are in several places, or not to be had.
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

    /// Writes them to `out`, which is as long.
    #[inline]
    fn copy(&self, out: &mut [u8]) {
        match self {
            Self::Inline(bytes) => out.copy_from_slice(bytes),
            Self::One(loan) => {
                // It lends as many as there are. Whatever was there before is nobody's business.
                if loan.copy_out(out).is_err() {
                    out.fill(0);
                }
            }
        }
    }
}

impl Qp {
    /// Whether it has nothing to do and nothing to wait for but one request that was just posted.
    #[inline]
    fn is_free(&self) -> bool {
        let posted = self.req.window.flights.len();
        self.init.qp_type == QpType::Rc
            && self.state == QpState::Rts
            && self.sq.len() == posted + 1
            && self.req.window.cursor == posted
            && self.req.may_send(posted + 1)
            && !self.req.halted
            && !self.req.unanswered
            && !self.queued
            && !self.rsp.has_replies()
            && self.cc.is_none()
    }

    /// Sends the one request in the queue that was not sent, if it is a short message, may go now,
    /// and `send` takes it. The time is asked for only if a timer has to be set.
    #[inline]
    pub(crate) fn express(
        &mut self,
        core: &mut Core,
        now: impl FnOnce() -> Instant,
        send: &mut dyn FnMut(Single<'_>) -> bool,
    ) -> bool {
        if !self.is_free() {
            return false;
        }
        let index = self.req.window.flights.len();
        let (Some(wr), Some(peer)) = (self.sq.peek(index), self.peer) else { return false };
        let Some(only) = Only::of(wr) else { return false };
        let (flags, takes_receive) = (wr.flags, wr.op.consumes_receive());
        // A write may find a door, if nothing is under way.
        let may_pass = index == 0 && matches!(wr.op, SendOp::Write(_));
        if only.payload > SHORT
            || may_pass
            || flags.contains(SendFlags::FENCE)
            || !self.req.may_start(1, takes_receive)
        {
            return false;
        }
        let cost = u64::from(only.payload) + PACKET_COST;
        let full = self.pmtu as u64 + PACKET_COST;
        let destination = core.peers.get(peer);
        if destination.room() < cost + full || destination.has_waiters() {
            return false;
        }
        let is_long = self.req.asking.unasked + cost >= destination.window() / 4;
        let asks = is_long || self.wants_answer(core, takes_receive, flags);
        let (dest, psn, pkey) = (self.dest_qpn(), self.req.window.next, self.pkey);
        let Some(bytes) = Bytes::of(&wr.data, &core.mrs, self.init.pd) else { return false };
        let mut write = |out: &mut [u8]| {
            let Some((head, rest)) = out.split_first_chunk_mut() else { return };
            let Some((data, padding)) = only.emit(rest) else { return };
            bytes.copy(data);
            let (solicited, pad) = (flags.contains(SendFlags::SOLICITED), padding.len() as u8);
            if pad > 0 {
                padding.fill(0);
            }
            let bth = Bth::new(Opcode::new(Service::Rc, only.op), dest, psn);
            Bth { solicited, ack_req: asks, pkey, pad, ..bth }.emit(head);
        };
        let packet_len = only.packet_len();
        if !send(Single { path: &self.path, dest, len: packet_len, write: &mut write }) {
            return false;
        }
        core.counters.sent_pkts += 1;
        core.counters.sent_bytes += packet_len as u64;
        core.counters.rdma_sends += 1;
        core.peers.get(peer).sent(cost);
        self.req.count_request(takes_receive);
        self.req.asking.count_message(asks);
        self.req.window.start(Kind::Acked, 1, only.payload, asks);
        self.req.window.sent_whole(1, cost);
        let end = self.req.window.next;
        self.count_asked(asks, cost, end);
        if asks || self.req.ack_deadline.is_none() || self.req.probe_deadline.is_none() {
            let now = now();
            if asks {
                self.req.timed.get_or_insert((end, now));
            }
            self.after_send(core, now);
            if let Some(deadline) = self.deadline(now) {
                core.timers.arm(self.slot, &mut self.armed, deadline);
            }
        }
        true
    }
}
