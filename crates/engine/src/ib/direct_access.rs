//! Direct access: the requester of one process executes READs and WRITEs in the memory of another
//! process of the host, without a packet.
//!
//! A responder that has executed a READ or WRITE grants its peer direct access to everything the
//! key reaches, until a right ends. A requester that has direct access, and nothing under way on
//! the queue pair, copies the bytes itself when it starts the next request. The order of requests
//! is therefore the same as with packets, and so are the rights, which the responder has checked.
//! All other requests, and all requests that fail a check, go by packets.

use core::array;
use core::cell::LazyCell;

use feroce_mem::{Access, DirectPath, DirectWrite, PdId};
use feroce_ring::Consumer;
use feroce_train::{Instant, RemotePayload};
use feroce_wire::{Gid, Qpn, Rkey};

use super::buffers::{Outgoing, scatter};
use super::qp::Qp;
use super::responder_state::Opened;
use super::rx_payload::RxPayload;
use crate::hca::cqe::{Cqe, WcStatus};
use crate::hca::state::{QpState, QpType};
use crate::hca::wr::{Data, Remote, SendFlags, SendOp, SendWr};
use crate::ib::port::Port;

/// Longest message, and most bytes in a row, that go by direct access: no other queue pair is
/// served during the copy.
pub(super) const MOST: u64 = 1 << 20;

/// From this length on, a message is worth waiting for until nothing is under way.
const WORTH_IT: u64 = 16 << 10;

/// Most WRITEs that go together, and most bytes in them: what they share takes as long as to copy
/// some hundred bytes.
const TOGETHER: usize = 16;
const TOGETHER_BYTES: u64 = 16 << 10;

/// How far [`Engine::try_direct_posted`](crate::Engine::try_direct_posted) has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DirectPosted {
    /// No request waits any more.
    All,
    /// The next ones may go, too, when other threads have had the engine.
    Some,
    /// The doorbell must be rung for the next one.
    UpToOne,
}

/// A peer that does not use the direct access for a key hears of it again after so many messages.
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

    /// Executes a request if there is direct access.
    #[inline]
    fn try_direct(&self, port: &mut Port, wr: &SendWr) -> bool {
        let Some(host_memory) = &port.hca.host_memory else { return false };
        let len = wr.data.len();
        if !(1..=MOST).contains(&len) {
            return false;
        }
        let (mrs, len) = (&port.hca.mrs, len as usize);
        let path = |rkey| DirectPath { from: self.from, to: self.to, rkey };
        let is_done = match (&wr.op, &wr.data) {
            (SendOp::Write(Remote { addr, rkey }), data) => {
                let source = &Outgoing { mrs, pd: self.pd, data };
                let write = DirectWrite { va: *addr, len, source, is_awaited: self.signals(wr) };
                host_memory.write(&path(*rkey), &write)
            }
            (SendOp::Read(Remote { addr, rkey }), Data::Sges(sges)) if self.reads => host_memory
                .read(&path(*rkey), *addr, len, &mut |source| {
                    let body = RxPayload::RemotePayload(RemotePayload {
                        source,
                        offset: 0,
                        len,
                        packets: 1,
                    });
                    scatter(mrs, self.pd, sges.as_slice(), 0, body).is_ok()
                }),
            _ => false,
        };
        port.hca.counters.rdma_sends += u64::from(is_done);
        is_done
    }

    /// Executes the oldest requests of the queue as far as there is direct access, and returns how
    /// many: those that go together, or one.
    fn try_direct_some(&self, port: &mut Port, sq: &Consumer<SendWr>) -> usize {
        let Some(oldest) = sq.peek(0) else { return 0 };
        match count_short_writes(sq) {
            0 | 1 => usize::from(self.try_direct(port, oldest)),
            count => self.write_some(port, sq, count),
        }
    }

    /// Executes the oldest `count` WRITEs of the queue, which [go together](count_short_writes),
    /// from the first one on, and returns how many.
    fn write_some(&self, port: &mut Port, sq: &Consumer<SendWr>, count: usize) -> usize {
        let Some(host_memory) = &port.hca.host_memory else { return 0 };
        let Some(oldest) = sq.peek(0) else { return 0 };
        let SendOp::Write(Remote { rkey, .. }) = oldest.op else { return 0 };
        let path = DirectPath { from: self.from, to: self.to, rkey };
        let at = |i: usize| sq.peek(i).filter(|_| i < count).unwrap_or(oldest);
        let (mrs, pd) = (&port.hca.mrs, self.pd);
        let sources: [_; TOGETHER] = array::from_fn(|i| Outgoing { mrs, pd, data: &at(i).data });
        let writes: [_; TOGETHER] = array::from_fn(|i| {
            let wr = at(i);
            let va = if let SendOp::Write(remote) = wr.op { remote.addr } else { 0 };
            let (len, is_awaited) = (wr.data.len() as usize, self.signals(wr));
            DirectWrite { va, len, source: &sources[i], is_awaited }
        });
        let done = host_memory.write_some(&path, &writes[..count.min(TOGETHER)]);
        port.hca.counters.rdma_sends += done as u64;
        done
    }

    /// Whether there is direct access for a long message that moves it as fast as can be.
    fn is_wide(&self, port: &Port, wr: &SendWr) -> bool {
        let (len, host_memory) = (wr.data.len(), port.hca.host_memory.as_ref());
        let (&SendOp::Write(Remote { addr, rkey }) | &SendOp::Read(Remote { addr, rkey })) = &wr.op
        else {
            return false;
        };
        let what = if wr.op.is_fetch() { Access::REMOTE_READ } else { Access::REMOTE_WRITE };
        let path = DirectPath { from: self.from, to: self.to, rkey };
        (WORTH_IT..=MOST).contains(&len)
            && host_memory
                .is_some_and(|host_memory| host_memory.is_wide(&path, addr, len as usize, what))
    }
}

/// The completion of a request that was executed.
#[inline]
fn completion(wr: &SendWr, qpn: Qpn, now: Instant) -> Cqe {
    let byte_len = if wr.op.is_fetch() { wr.data.len() as u32 } else { 0 };
    let opcode = wr.op.wc_opcode();
    Cqe { byte_len, ..Cqe::new(wr.wr_id, qpn, opcode, WcStatus::Success, now) }
}

/// How many of the oldest requests of a queue are WRITEs by the same key that go together.
fn count_short_writes(sq: &Consumer<SendWr>) -> usize {
    let (mut key, mut left) = (None, TOGETHER_BYTES);
    let goes_with_others = |wr: &&SendWr| {
        let SendOp::Write(Remote { rkey, .. }) = wr.op else { return false };
        let len = wr.data.len();
        let fits = (1..=left).contains(&len) && *key.get_or_insert(rkey) == rkey;
        left = left.saturating_sub(len);
        fits
    };
    (0..TOGETHER).map_while(|i| sq.peek(i)).take_while(goes_with_others).count()
}

impl Qp {
    /// Whether a request should wait until nothing is under way, and then go by direct access: a
    /// requester that has many requests under way when it is granted direct access would never use
    /// it otherwise. If the request before cannot go that way, this one does not wait either.
    #[inline]
    pub(super) fn waits_for_direct(&mut self, port: &Port, index: usize, len: u64) -> bool {
        if index == 0 || len < WORTH_IT || self.common.init.qp_type != QpType::Rc {
            return false;
        }
        let ends = self.ends();
        let is_wide = |at| self.common.sq.peek(at).is_some_and(|wr| ends.is_wide(port, wr));
        is_wide(index) && is_wide(index - 1)
    }

    /// Executes the oldest request in the queue, with nothing under way, if there is direct access.
    /// False: it must be sent.
    #[inline]
    pub(super) fn try_direct_oldest(&mut self, port: &mut Port) -> bool {
        if port.hca.host_memory.is_none() || self.common.init.qp_type != QpType::Rc {
            return false;
        }
        let ends = self.ends();
        let Some(wr) = self.common.sq.peek(0) else { return false };
        let (is_done, len) = (ends.try_direct(port, wr), wr.data.len());
        self.count_direct(is_done, len);
        self.common.shared.set_may_go_direct(is_done);
        is_done
    }

    /// Executes a request before it is put into the queue, which is empty, and completes it, if
    /// there is direct access.
    #[inline]
    pub(crate) fn try_direct(
        &mut self,
        port: &mut Port,
        now: impl FnOnce() -> Instant,
        wr: &SendWr,
    ) -> bool {
        let ends = self.ends();
        if !self.common.sq.is_empty() || !self.may_go_direct(port) || !ends.try_direct(port, wr) {
            self.common.shared.set_may_go_direct(false);
            return false;
        }
        self.count_direct(true, wr.data.len());
        if ends.signals(wr) {
            let cqe = completion(wr, self.common.qpn, now());
            port.hca.complete_send(self.common.init.send_cq, cqe);
        }
        true
    }

    /// Executes and completes the requests of the queue, from the oldest on, as far as there is
    /// direct access, with nothing under way.
    pub(crate) fn try_direct_posted(
        &mut self,
        port: &mut Port,
        now: impl FnOnce() -> Instant,
    ) -> DirectPosted {
        let (ends, now, mut bytes) = (self.ends(), LazyCell::new(now), 0);
        while self.req.outstanding.flights.is_empty() && self.may_go_direct(port) {
            if bytes >= MOST {
                return DirectPosted::Some;
            }
            let done = ends.try_direct_some(port, &self.common.sq);
            if done == 0 {
                break;
            }
            for _ in 0..done {
                let qpn = self.common.qpn;
                let report = |wr: &SendWr| ends.signals(wr).then(|| completion(wr, qpn, *now));
                let look = |wr: &SendWr| Some((wr.data.len(), report(wr)));
                // First make room, then report: the thread that polls the completion may post at
                // once.
                let Some((len, report)) = self.common.sq.pop_if(look) else { break };
                bytes += len;
                self.count_direct(true, len);
                if let Some(cqe) = report {
                    port.hca.complete_send(self.common.init.send_cq, cqe);
                }
            }
        }
        let is_done = self.common.sq.is_empty();
        self.common.shared.set_may_go_direct(is_done);
        if is_done { DirectPosted::All } else { DirectPosted::UpToOne }
    }

    /// Whether a request may be executed at once, if nothing is under way.
    #[inline]
    fn may_go_direct(&self, port: &Port) -> bool {
        let is_ready = self.common.state == QpState::Rts && !self.req.halted;
        is_ready && !port.hca.revocations.concern(self.common.qpn)
    }

    #[inline]
    fn count_direct(&mut self, is_done: bool, len: u64) {
        if is_done {
            self.common.counters.start(len as u32);
            self.common.counters.direct_requests += 1;
        }
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
    pub(super) fn offer_direct(&mut self, port: &Port, rkey: Rkey) {
        let Some(host_memory) =
            port.hca.host_memory.as_ref().filter(|_| self.common.init.qp_type == QpType::Rc)
        else {
            return;
        };
        let opened = &mut self.rsp.opened;
        let direct = Some((rkey, host_memory.revocation_epoch().0));
        if opened.last == direct && opened.since < REPEAT {
            opened.since += 1;
            return;
        }
        *opened = Opened { last: direct, since: 0 };
        let Ends { from: here, to: peer, pd, .. } = self.ends();
        if let Some(mut reach) = port.hca.mrs.reach(pd, rkey) {
            reach.access &= self.common.attr.access.unwrap_or(Access::empty());
            if self.common.attr.max_dest_rd_atomic.unwrap_or(0) == 0 {
                reach.access -= Access::REMOTE_READ;
            }
            host_memory.open(&DirectPath { from: peer, to: here, rkey }, &reach);
        }
    }
}
