//! Answers of the responder, in the order of the requests (IBTA vol1 9.7.5, 9.5).

use feroce_mem::Read;
use feroce_train::{Ext, Instant, LinkCaps, Payload, Train, TrainOps};
use feroce_wire::{Aeth, AtomicAckEth, Bth, CreditCode, NakCode, Op, Opcode, Syndrome};

use super::qp::Qp;
use super::reply_queue::{ReadReply, Reply};
use crate::hca::counters::Drop;
use crate::hca::event::AsyncEvent;
use crate::ib::port::Port;

impl Qp {
    /// Puts the next train of answers into `out`.
    #[inline]
    pub(super) fn poll_reply(
        &mut self,
        port: &mut Port,
        now: Instant,
        caps: &LinkCaps,
        out: &mut Option<Train>,
    ) {
        while let Some(&reply) = self.rsp.replies.queue.front() {
            let read = match reply {
                Reply::Read(read) => read,
                other => {
                    self.rsp.replies.queue.pop_front();
                    self.rsp.owes_ack &= other.psn().next() != self.rsp.expected;
                    *out = Some(self.short_reply(port, other));
                    return;
                }
            };
            *out = self.read_reply(port, caps, read);
            if out.is_none() && !read.again {
                *out = Some(self.read_failed(port, now, read));
            }
            if out.is_some() {
                return;
            }
            // The peer may have received the answer long ago, and the owner may rightly have
            // deregistered the memory since: a delayed duplicate must not end the connection.
            self.rsp.replies.queue.pop_front();
            port.hca.drop(Drop::StaleDuplicate);
        }
    }

    /// The memory went away under a read that was accepted (IBTA vol1 9.7.5.2).
    fn read_failed(&mut self, port: &mut Port, now: Instant, read: ReadReply) -> Train {
        self.rsp.replies.clear();
        let psn = read.psn.wrapping_add(read.sent);
        port.hca.counters.resp_remote_access_errors += 1;
        let code = NakCode::RemoteAccess;
        let nak = self.short_reply(port, Reply::Nak { psn, msn: read.msn, code });
        port.hca.event(AsyncEvent::QpAccessError(self.common.qpn));
        self.enter_error(port, now);
        nak
    }

    /// Acknowledges what was executed before the queue pair ends: afterwards it cannot answer a
    /// retransmission.
    pub(crate) fn acknowledge_all(&mut self, port: &mut Port) {
        let replies = &self.rsp.replies;
        if self.rsp.owes_ack && (replies.is_empty() || replies.is_bare_ack()) {
            let ack = Reply::Ack { psn: self.rsp.expected.prev(), msn: self.rsp.msn };
            port.post_out(self.short_reply(port, ack));
        }
        self.rsp.owes_ack = false;
    }

    /// An answer of one packet.
    #[inline]
    fn short_reply(&self, port: &Port, reply: Reply) -> Train {
        let (psn, aeth, original) = match reply {
            Reply::Ack { psn, msn } => {
                (psn, Aeth { syndrome: Syndrome::Ack { credits: self.credits(port) }, msn }, None)
            }
            Reply::Nak { psn, msn, code } => {
                (psn, Aeth { syndrome: Syndrome::Nak(code), msn }, None)
            }
            Reply::Rnr { psn, msn, timer } => {
                (psn, Aeth { syndrome: Syndrome::RnrNak { timer }, msn }, None)
            }
            Reply::Atomic { psn, msn, original, .. } => {
                let syndrome = Syndrome::Ack { credits: self.credits(port) };
                (psn, Aeth { syndrome, msn }, Some(AtomicAckEth { original }))
            }
            Reply::Read(read) => {
                let syndrome = Syndrome::Ack { credits: self.credits(port) };
                (read.psn, Aeth { syndrome, msn: read.msn }, None)
            }
        };
        let mut head = Ext::NONE.with(|out| aeth.emit(out));
        let mut op = Op::Acknowledge;
        if let Some(eth) = original {
            head = head.with(|out| eth.emit(out));
            op = Op::AtomicAcknowledge;
        }
        let opcode = Opcode::new(self.service(), op);
        Train {
            path: self.path,
            bth: self.bth(opcode, psn),
            ops: TrainOps::all(opcode),
            count: 1,
            stride: 0,
            payload_len: 0,
            head,
            body: Ext::NONE,
            tail: Ext::NONE,
            payload: Payload::Empty,
            revocation_epoch: None,
        }
    }

    /// The next train of a read answer; `None` if the memory may no longer be read.
    fn read_reply(&mut self, port: &mut Port, caps: &LinkCaps, read: ReadReply) -> Option<Train> {
        let pmtu = self.pmtu;
        let packets = (read.len as usize).div_ceil(pmtu).max(1) as u32;
        let from = read.sent;
        let start = from as usize * pmtu;
        let aeth_len = Aeth::LEN;
        let at_start = from == 0;
        let mut count = (packets - from).min(caps.packets_of(Bth::LEN + pmtu));
        if at_start && count > 1 {
            // The first packet carries an AETH and is longer than those that follow, unless there
            // is only one that follows.
            count = if packets == 2 { 2 } else { 1 };
        }
        let last_len = (read.len as usize - (packets as usize - 1) * pmtu).next_multiple_of(4);
        let limit = pmtu + if at_start { aeth_len } else { 0 };
        if from + count == packets && count > 1 && aeth_len + last_len > limit {
            count -= 1;
        }
        let ends = from + count == packets;
        let len = (read.len as usize - start).min(count as usize * pmtu);
        let va = read.va.wrapping_add(start as u64);
        let grant = port
            .hca
            .mrs
            .grant_remote::<Read>(read.pd, self.common.qpn, read.rkey, va, len as u64)
            .ok()?;
        let aeth = Aeth { syndrome: Syndrome::Ack { credits: self.credits(port) }, msn: read.msn };
        let with_aeth = Ext::NONE.with(|out| aeth.emit(out));
        let opcode = |op| Opcode::new(self.service(), op);
        let first = match (at_start, ends && count == 1) {
            (true, true) => Op::ReadResponseOnly,
            (true, false) => Op::ReadResponseFirst,
            (false, true) => Op::ReadResponseLast,
            (false, false) => Op::ReadResponseMiddle,
        };
        let last = if ends { Op::ReadResponseLast } else { Op::ReadResponseMiddle };
        let train = Train {
            path: self.path,
            bth: self.bth(opcode(first), read.psn.wrapping_add(from)),
            ops: TrainOps {
                first: opcode(first),
                middle: opcode(Op::ReadResponseMiddle),
                last: opcode(last),
            },
            count,
            stride: pmtu,
            payload_len: len,
            head: if at_start || (ends && count == 1) { with_aeth } else { Ext::NONE },
            body: Ext::NONE,
            tail: if ends { with_aeth } else { Ext::NONE },
            payload: if len == 0 { Payload::Empty } else { Payload::One(grant) },
            // What is asked for again may have been revoked before the peer could fetch it. It goes
            // in the packets this time, so that no number of revocations stops the peer.
            revocation_epoch: match len == 0 || read.again {
                true => None,
                false => self.revocation_epoch(port),
            },
        };
        match self.rsp.replies.queue.front_mut() {
            Some(Reply::Read(front)) if !ends => front.sent += count,
            _ => {
                self.rsp.replies.queue.pop_front();
            }
        }
        Some(train)
    }

    /// The credits to advertise: receives posted, or no statement where they are shared.
    #[inline]
    fn credits(&self, port: &Port) -> CreditCode {
        match self.receives_posted() {
            Some(n) if port.hca.config.advertise_credits => CreditCode::at_most(n),
            _ => CreditCode::NONE,
        }
    }
}
