//! Doors: requests that a process of this host executes in the memory of another by itself, with
//! no packet.
//!
//! A responder that has executed a read or write opens a door for its peer: to all that the key
//! reaches, until a right ends. A requester that has one, and nothing under way, copies the bytes
//! there, or from there, when the next one is started. So the order of requests is the same as on
//! the wire, and so are the rights, which the responder has checked. Anything else that a request
//! may meet, an error included, it meets on the wire.

use feroce_mem::{Access, PdId};
use feroce_train::{Instant, Lent, Way};
use feroce_wire::{Gid, Qpn, Rkey};

use super::buffers::{Outgoing, scatter};
use super::qp::Qp;
use super::responder_state::Opened;
use super::rx_payload::RxPayload;
use crate::hca::cq::{Cqe, WcStatus};
use crate::hca::state::{QpState, QpType};
use crate::hca::wr::{Data, Remote, SendFlags, SendOp, SendWr};
use crate::ib::port::Port;

/// Longest message that goes through a door, and how much does in a row: nobody else can use the
/// adapter meanwhile.
pub(super) const MOST: u64 = 1 << 20;

/// From this length on, a message is worth waiting for until nothing is under way.
const WORTH_IT: u64 = 16 << 10;

/// A peer that does not use the door for a key hears of it again after so many messages.
const REPEAT: u32 = 256;

/// The two ends of a connection, and what the requester may do.
#[derive(Clone, Copy)]
struct Ends {
    from: (Gid, Qpn),
    to: (Gid, Qpn),
    pd: PdId,
    /// It may have reads outstanding.
    reads: bool,
    /// Every request has a completion.
    signals_all: bool,
}

impl Ends {
    #[inline]
    fn signals(&self, wr: &SendWr) -> bool {
        self.signals_all || wr.flags.contains(SendFlags::SIGNALED)
    }

    /// Executes a request if there is a door.
    #[inline]
    fn pass(&self, port: &mut Port, wr: &SendWr) -> bool {
        let Some(lender) = &port.hca.lender else { return false };
        let len = wr.data.len();
        if !(1..=MOST).contains(&len) {
            return false;
        }
        let (mrs, len) = (&port.hca.mrs, len as usize);
        let way = |rkey| Way { from: self.from, to: self.to, rkey };
        let is_done = match (&wr.op, &wr.data) {
            (SendOp::Write(Remote { addr, rkey }), data) => {
                let source = Outgoing { mrs, pd: self.pd, data };
                lender.write(&way(*rkey), *addr, len, &source, self.signals(wr))
            }
            (SendOp::Read(Remote { addr, rkey }), Data::Sges(sges)) if self.reads => {
                lender.read(&way(*rkey), *addr, len, &mut |source| {
                    let body = RxPayload::Lent(Lent { source, offset: 0, len, packets: 1 });
                    scatter(mrs, self.pd, sges.as_slice(), 0, body).is_ok()
                })
            }
            _ => false,
        };
        port.hca.counters.rdma_sends += u64::from(is_done);
        is_done
    }

    /// Whether there is a door for a long message that moves it as fast as can be.
    fn is_wide(&self, port: &Port, wr: &SendWr) -> bool {
        let (len, lender) = (wr.data.len(), port.hca.lender.as_ref());
        let (&SendOp::Write(Remote { addr, rkey }) | &SendOp::Read(Remote { addr, rkey })) = &wr.op
        else {
            return false;
        };
        let what = if wr.op.is_fetch() { Access::REMOTE_READ } else { Access::REMOTE_WRITE };
        let way = Way { from: self.from, to: self.to, rkey };
        (WORTH_IT..=MOST).contains(&len)
            && lender.is_some_and(|lender| lender.is_wide(&way, addr, len as usize, what))
    }
}

impl Qp {
    /// Whether a request should wait until nothing is under way, and then go through a door:
    /// whoever has many under way when it hears of one would never use it. But if the one before
    /// cannot go that way, the next ones will not be alone either.
    #[inline]
    pub(super) fn waits_for_door(&mut self, port: &Port, index: usize, len: u64) -> bool {
        if index == 0 || len < WORTH_IT || self.common.init.qp_type != QpType::Rc {
            return false;
        }
        let ends = self.ends();
        let is_wide = |at| self.common.sq.peek(at).is_some_and(|wr| ends.is_wide(port, wr));
        is_wide(index) && is_wide(index - 1)
    }

    /// Executes the oldest request in the queue, with nothing under way, if there is a door. False:
    /// it must be sent.
    #[inline]
    pub(super) fn pass_oldest(&mut self, port: &mut Port) -> bool {
        if port.hca.lender.is_none() || self.common.init.qp_type != QpType::Rc {
            return false;
        }
        let ends = self.ends();
        let has_passed = self.common.sq.peek(0).is_some_and(|wr| ends.pass(port, wr));
        self.common.shared.set_may_pass(has_passed);
        has_passed
    }

    /// Executes a request before it is put into the queue, which is empty, and completes it, if
    /// there is a door.
    #[inline]
    pub(crate) fn pass(
        &mut self,
        port: &mut Port,
        now: impl FnOnce() -> Instant,
        wr: &SendWr,
    ) -> bool {
        let is_first =
            self.common.state == QpState::Rts && !self.req.halted && self.common.sq.is_empty();
        let is_first = is_first && !port.hca.revocations.concern(self.common.qpn);
        let ends = self.ends();
        if !is_first || !ends.pass(port, wr) {
            self.common.shared.set_may_pass(false);
            return false;
        }
        if ends.signals(wr) {
            let cqe =
                Cqe::new(wr.wr_id, self.common.qpn, wr.op.wc_opcode(), WcStatus::Success, now());
            let byte_len = if wr.op.is_fetch() { wr.data.len() as u32 } else { 0 };
            port.hca.complete_send(self.common.init.send_cq, Cqe { byte_len, ..cqe });
        }
        true
    }

    #[inline]
    fn ends(&self) -> Ends {
        let (from, to) =
            ((self.path.src.gid, self.common.qpn), (self.path.dst.gid, self.dest_qpn()));
        let (reads, signals_all) = (self.max_rd_atomic() > 0, self.common.init.sq_sig_all);
        Ends { from, to, pd: self.common.init.pd, reads, signals_all }
    }

    /// A read or write with this key was executed: the peer may do the next ones by itself.
    #[inline]
    pub(super) fn open_door(&mut self, port: &Port, rkey: Rkey) {
        let Some(lender) =
            port.hca.lender.as_ref().filter(|_| self.common.init.qp_type == QpType::Rc)
        else {
            return;
        };
        let opened = &mut self.rsp.opened;
        let door = Some((rkey, lender.lease().0));
        if opened.last == door && opened.since < REPEAT {
            opened.since += 1;
            return;
        }
        *opened = Opened { last: door, since: 0 };
        let Ends { from: here, to: peer, pd, .. } = self.ends();
        if let Some(mut reach) = port.hca.mrs.reach(pd, rkey) {
            reach.access &= self.common.attr.access.unwrap_or(Access::empty());
            if self.common.attr.max_dest_rd_atomic.unwrap_or(0) == 0 {
                reach.access -= Access::REMOTE_READ;
            }
            lender.open(&Way { from: peer, to: here, rkey }, &reach);
        }
    }
}
