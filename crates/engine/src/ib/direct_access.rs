//! Direct access: the requester of one process executes READs and WRITEs in the memory of another
//! process of the host, without a packet.
//!
//! A responder that has executed a READ or WRITE grants its peer direct access to everything the
//! key reaches, until a right ends. A requester that has direct access, and nothing under way on
//! the queue pair, copies the bytes itself when it starts the next request. The order of requests
//! is therefore the same as with packets, and so are the rights, which the responder has checked.
//! All other requests, and all requests that fail a check, go by packets.

use core::cell::LazyCell;

use feroce_mem::{Access, DirectPath, DirectWrite, PdId};
use feroce_train::{Instant, RemotePayload};
use feroce_wire::{Qpn, Rkey};

use super::buffers::{Keys, Outgoing, SHORT, scatter};
use super::qp::Qp;
use super::responder_state::Opened;
use super::rx_payload::RxPayload;
use crate::hca::cqe::{Cqe, WcStatus};
use crate::hca::shared::Shared;
use crate::hca::state::{QpState, QpType};
use crate::hca::wr::{Data, Remote, SendFlags, SendOp, SendWr};
use crate::ib::port::Port;

/// Longest message, and most bytes in a row, that go by direct access: no other queue pair is
/// served during the copy.
pub(super) const MOST: u64 = 1 << 20;

/// From this length on, a message is worth waiting for until nothing is under way.
const WORTH_IT: u64 = 16 << 10;

/// Most WRITEs that go together, and most bytes in them: what they share takes as long as to copy
/// some hundred bytes. A peer that ends a right waits until they are done.
const TOGETHER: usize = 64;
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
    /// From here to the peer, with the key that the request names.
    path: DirectPath,
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
    fn try_direct(&mut self, port: &mut Port, wr: &SendWr) -> bool {
        let Some(host_memory) = &port.hca.host_memory else { return false };
        let (SendOp::Write(remote) | SendOp::Read(remote)) = &wr.op else { return false };
        let len = wr.data.len();
        if !(1..=MOST).contains(&len) {
            return false;
        }
        let (mrs, len, va) = (&port.hca.mrs, len as usize, remote.addr);
        self.path.rkey = remote.rkey;
        let is_done = match (&wr.op, &wr.data) {
            (SendOp::Write(_), data) => {
                let (keys, mut room) = (Keys::new(mrs, self.pd), [0; SHORT]);
                let source = &Outgoing::new(&keys, data, len, &mut room);
                let write = DirectWrite { va, len, source, is_awaited: self.signals(wr) };
                host_memory.write(&self.path, &write)
            }
            (_, Data::Sges(sges)) if self.reads => {
                host_memory.read(&self.path, va, len, &mut |source| {
                    let body = RxPayload::RemotePayload(RemotePayload {
                        source,
                        offset: 0,
                        len,
                        packets: 1,
                    });
                    scatter(mrs, self.pd, sges.as_slice(), 0, body).is_ok()
                })
            }
            _ => false,
        };
        port.hca.counters.rdma_sends += u64::from(is_done);
        is_done
    }

    /// Whether there is direct access for a long message that moves it as fast as can be.
    fn is_wide(&self, port: &Port, wr: &SendWr) -> bool {
        let (len, host_memory) = (wr.data.len(), port.hca.host_memory.as_ref());
        let (&SendOp::Write(Remote { addr, rkey }) | &SendOp::Read(Remote { addr, rkey })) = &wr.op
        else {
            return false;
        };
        let what = if wr.op.is_fetch() { Access::REMOTE_READ } else { Access::REMOTE_WRITE };
        let path = DirectPath { rkey, ..self.path };
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
        let mut ends = self.ends();
        let Some(wr) = self.common.sq.peek(0) else { return false };
        let (is_done, len) = (ends.try_direct(port, wr), wr.data.len());
        if is_done {
            self.count_direct(1, len);
        }
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
        let mut ends = self.ends();
        if !self.common.sq.is_empty() || !self.may_go_direct(port) || !ends.try_direct(port, wr) {
            self.common.shared.set_may_go_direct(false);
            return false;
        }
        self.count_direct(1, wr.data.len());
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
        let (mut ends, now, mut bytes) = (self.ends(), LazyCell::new(now), 0);
        while self.req.outstanding.flights.is_empty() && self.may_go_direct(port) {
            if bytes >= MOST {
                return DirectPosted::Some;
            }
            let Some(oldest) = self.common.sq.peek(0) else { break };
            let (before, len) = (bytes, oldest.data.len());
            match oldest.op {
                SendOp::Write(Remote { rkey, .. }) if len <= TOGETHER_BYTES => {
                    bytes += self.write_some(port, &ends, rkey, || *now);
                }
                _ if ends.try_direct(port, oldest) => {
                    bytes += len;
                    self.count_direct(1, len);
                    self.retire_direct(port, &ends, || *now);
                }
                _ => {}
            }
            if bytes == before {
                break;
            }
        }
        let is_done = self.common.sq.is_empty();
        self.common.shared.set_may_go_direct(is_done);
        if is_done { DirectPosted::All } else { DirectPosted::UpToOne }
    }

    /// Executes and completes the oldest requests of the queue that are short WRITEs by the same
    /// key, as far as there is direct access, and returns how many bytes they had. Looks at each
    /// once.
    fn write_some(
        &mut self,
        port: &mut Port,
        ends: &Ends,
        rkey: Rkey,
        now: impl Fn() -> Instant,
    ) -> u64 {
        let (send_cq, qpn, sq) = (self.common.init.send_cq, self.common.qpn, &mut self.common.sq);
        // No revocation holds the completions back: `may_go_direct` has checked that.
        let Shared { host_memory, mrs, cqs, .. } = &mut port.hca;
        let Some(host_memory) = host_memory else { return 0 };
        let Some(cq) = cqs.get_mut(send_cq.0).filter(|cq| !cq.overrun) else { return 0 };
        let path = DirectPath { rkey, ..ends.path };
        let (keys, mut room) = (Keys::new(mrs, ends.pd), [0; SHORT]);
        let (was_fresh, mut fits, mut bytes, mut most) = (cq.is_fresh(), true, 0, TOGETHER);
        let done = host_memory.write_some(&path, &mut |write| {
            sq.pop_while(|wr| {
                let (SendOp::Write(to), len) = (&wr.op, wr.data.len()) else { return false };
                let goes_with_others = to.rkey == rkey && most > 0;
                if !goes_with_others || !(1..=TOGETHER_BYTES - bytes).contains(&len) {
                    return false;
                }
                let (len, is_awaited) = (len as usize, ends.signals(wr));
                let source = &Outgoing::new(&keys, &wr.data, len, &mut room);
                if !write(&DirectWrite { va: to.addr, len, source, is_awaited }) {
                    return false;
                }
                (bytes, most) = (bytes + len as u64, most - 1);
                if is_awaited {
                    fits = fits && cq.stage(completion(wr, qpn, now()));
                }
                true
            })
        });
        // The thread that polls the completions may post at once: there is room in the queue now.
        cq.publish();
        port.hca.note_reported(send_cq, was_fresh, fits);
        port.hca.counters.rdma_sends += done as u64;
        self.count_direct(done as u64, bytes);
        bytes
    }

    /// Takes the oldest request, which was executed, out of the queue, and completes it.
    fn retire_direct(&mut self, port: &mut Port, ends: &Ends, now: impl Fn() -> Instant) {
        let qpn = self.common.qpn;
        let report = |wr: &SendWr| ends.signals(wr).then(|| completion(wr, qpn, now()));
        // First make room, then report: the thread that polls the completion may post at once.
        if let Some(Some(cqe)) = self.common.sq.pop_if(|wr| Some(report(wr))) {
            port.hca.complete_send(self.common.init.send_cq, cqe);
        }
    }

    /// Whether a request may be executed at once, if nothing is under way.
    #[inline]
    fn may_go_direct(&self, port: &Port) -> bool {
        let is_ready = self.common.state == QpState::Rts && !self.req.halted;
        is_ready && !port.hca.revocations.concern(self.common.qpn)
    }

    /// Requests were executed.
    #[inline]
    fn count_direct(&mut self, count: u64, bytes: u64) {
        let counters = &mut self.common.counters;
        counters.requests += count;
        counters.request_bytes += bytes;
        counters.direct_requests += count;
    }

    #[inline]
    fn ends(&self) -> Ends {
        let (from, to) =
            ((self.path.src.gid, self.common.qpn), (self.path.dst.gid, self.dest_qpn()));
        let (reads, signals_all) = (self.max_rd_atomic() > 0, self.common.init.sq_sig_all);
        let path = DirectPath { from, to, rkey: Rkey(0) };
        Ends { path, pd: self.common.init.pd, reads, signals_all }
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
        let Ends { path: DirectPath { from: here, to: peer, .. }, pd, .. } = self.ends();
        if let Some(mut reach) = port.hca.mrs.reach(pd, rkey) {
            reach.access &= self.common.attr.access.unwrap_or(Access::empty());
            if self.common.attr.max_dest_rd_atomic.unwrap_or(0) == 0 {
                reach.access -= Access::REMOTE_READ;
            }
            host_memory.open(&DirectPath { from: peer, to: here, rkey }, &reach);
        }
    }
}
