//! Transmit path: takes trains from queue pairs in turn.

use alloc::vec::Vec;
use core::hint::cold_path;

use feroce_train::{Instant, LinkCaps, Path, RxTrain, Single, SingleBuf, Train};
use feroce_wire::Qpn;

use super::Engine;
use super::transport::Transport;
use crate::hca::config::TransportKind;
use crate::hca::wr::SendWr;
use crate::ib::direct_access::DirectPosted;

/// Trains to ourselves that one call of `poll_transmit` delivers before it returns.
const LOOPBACK_BURST: u32 = 64;

impl Engine {
    /// Sets whether the engine holds bare acknowledgements back, so that they leave in the same
    /// call as another train. If the consumer answers what it receives, they then cost no call of
    /// their own. The caller ends this within microseconds, because the peer waits for them.
    #[inline]
    pub fn hold_acks(&mut self, held: bool) {
        self.acks.held = held;
        if held {
            return;
        }
        for slot in self.acks.slots.drain(..) {
            let qp = self.qps.at(slot).and_then(Transport::ib);
            if let Some(qp) = qp.filter(|qp| !qp.common.queued) {
                qp.common.queued = true;
                self.port.hca.ready.push_back(slot);
            }
        }
    }

    /// Whether acknowledgements wait because [`Engine::hold_acks`] allowed it.
    #[inline]
    pub fn has_held_acks(&self) -> bool {
        !self.acks.slots.is_empty()
    }

    /// Since when they do.
    #[inline]
    pub fn acks_held_since(&self) -> Option<Instant> {
        self.has_held_acks().then_some(self.acks.since)
    }

    /// Acknowledges everything that was executed, requested or not: the engine is about to end, and
    /// cannot answer a retransmission afterwards.
    pub fn acknowledge_all(&mut self) {
        for qp in self.qps.iter_mut().filter_map(Transport::ib) {
            qp.acknowledge_all(&mut self.port);
        }
    }

    /// Executes a request at once, before the posting thread puts it into the queue, if a process
    /// of this host has granted direct access to its memory and nothing is under way on the queue
    /// pair. False: it must be posted. Calls `now` only if a completion needs the time.
    #[inline]
    pub fn try_direct(&mut self, now: impl FnOnce() -> Instant, qpn: Qpn, wr: &SendWr) -> bool {
        let qp = self.qps.get(qpn).and_then(Transport::ib);
        let is_done = qp.is_some_and(|qp| qp.try_direct(&mut self.port, now, wr));
        if is_done {
            self.finish();
        }
        is_done
    }

    /// Executes requests that were posted, before the doorbell is rung for them, from the oldest
    /// one on, as far as [`Engine::try_direct`] can, about a megabyte at most.
    pub fn try_direct_posted(&mut self, now: impl FnOnce() -> Instant, qpn: Qpn) -> DirectPosted {
        let qp = self.qps.get(qpn).and_then(Transport::ib);
        let done = qp.map(|qp| qp.try_direct_posted(&mut self.port, now));
        self.finish();
        done.unwrap_or(DirectPosted::UpToOne)
    }

    /// Puts the packet of the one request of a queue pair that waits into `out`, if it is a short
    /// message and no other queue pair has anything to send. The caller sends it before any train
    /// that it takes later. False: the doorbell must be rung.
    ///
    /// Calls `show` when the packet is complete and before the engine records that it was sent, so
    /// that a receiver in another process need not wait for that. Calls `now` afterwards, and only
    /// if a timer has to be set.
    #[inline]
    pub fn try_fast_path(
        &mut self,
        qpn: Qpn,
        out: &mut SingleBuf,
        show: impl FnOnce(Single<'_>),
        now: impl FnOnce() -> Instant,
    ) -> bool {
        if self.port.may_have_work() || self.has_held_acks() || !self.loopback.is_empty() {
            cold_path();
            return false;
        }
        let Some(slot) = self.qps.slot_of(qpn) else {
            cold_path();
            return false;
        };
        let peer = self.qps.at(slot).and_then(Transport::ib).map(|qp| qp.peer_end());
        if peer.is_none_or(|(path, qpn)| self.is_for_us(&path, qpn)) {
            cold_path();
            return false;
        }
        let qp = self.qps.at(slot).and_then(Transport::ib);
        qp.is_some_and(|qp| qp.try_fast_path(&mut self.port, out, show, now))
    }

    /// The next train to send. Trains to ourselves are delivered on the way and not shown.
    #[inline]
    pub fn poll_transmit(&mut self, now: Instant, caps: &LinkCaps) -> Option<Train> {
        let mut next = None;
        self.poll_next(now, caps, &mut next);
        next
    }

    /// Appends the next train to send, as [`Engine::poll_transmit`] gives it, to those in `out`.
    /// False: there is none.
    #[inline]
    pub fn transmit_into(&mut self, now: Instant, caps: &LinkCaps, out: &mut Vec<Train>) -> bool {
        let mut next = None;
        self.poll_next(now, caps, &mut next);
        // If there is no train, nothing is moved.
        let is_some = next.is_some();
        if let Some(train) = next {
            out.push(train);
        }
        is_some
    }

    /// Puts the next train into `next`, which is empty: a train is large, so it is made where it
    /// stays.
    #[inline]
    fn poll_next(&mut self, now: Instant, caps: &LinkCaps, next: &mut Option<Train>) {
        self.now = now;
        if self.port.hca.config.transport == TransportKind::Iwarp {
            // What there is goes into streams.
            return;
        }
        // The common case: there is nothing to send.
        if !self.port.may_have_work() && !self.bells.is_rung() && self.loopback.is_empty() {
            self.finish();
            return;
        }
        self.poll_busy(now, caps, next);
    }

    fn poll_busy(&mut self, now: Instant, caps: &LinkCaps, next: &mut Option<Train>) {
        let mut to_self = 0;
        loop {
            self.next_train(now, caps, next);
            let Some(train) = next else {
                if self.loopback.is_empty() {
                    break;
                }
                self.deliver_loopback(now);
                continue;
            };
            self.port.hca.count_sent(train);
            if !self.divert(train) {
                break;
            }
            *next = None;
            to_self += 1;
            if to_self >= LOOPBACK_BURST {
                self.deliver_loopback(now);
                self.finish();
                break;
            }
        }
    }

    /// Whether there may be more to transmit, or [`Engine::trains_read`] would complete something.
    #[inline]
    pub fn has_more(&self) -> bool {
        self.port.may_have_work()
            || self.bells.is_rung()
            || !self.loopback.is_empty()
            || self.port.awaits_reading()
    }

    /// Says that the bytes of every train given out so far have been read. Only then do sends of
    /// unreliable services complete, because their consumer may reuse the buffers at once.
    #[inline]
    pub fn trains_read(&mut self) {
        self.port.all_read();
        self.finish();
    }

    /// Puts the next train of any queue pair into `out`, which is empty; its destination may be
    /// ourselves.
    #[inline]
    fn next_train(&mut self, now: Instant, caps: &LinkCaps, out: &mut Option<Train>) {
        if self.port.has_out() {
            *out = self.port.take_out();
            return;
        }
        self.collect_work(now);
        while let Some(slot) = self.port.hca.ready.pop_front() {
            let Some(Transport::Ib(qp)) = self.qps.at(slot) else {
                continue;
            };
            qp.common.queued = false;
            if self.acks.held && qp.only_acknowledges() {
                if self.acks.slots.is_empty() {
                    self.acks.since = now;
                }
                self.acks.slots.push(slot);
                continue;
            }
            qp.poll_transmit(&mut self.port, now, caps, out);
            if out.is_some() && qp.may_have_more() {
                qp.common.queued = true;
                self.port.hca.ready.push_back(slot);
            }
            if let Some(deadline) = qp.deadline(now) {
                self.port.hca.timers.arm(slot, &mut qp.common.armed, deadline);
            }
            if out.is_some() {
                break;
            }
        }
        self.finish();
    }

    /// Makes the queue pairs ready that rang a doorbell or were kicked.
    #[inline]
    pub(super) fn collect_work(&mut self, now: Instant) {
        if self.bells.is_rung() {
            let kicked = &mut self.port.hca.kicked;
            self.bells.drain(|slot| kicked.push(slot));
        }
        while !self.port.hca.kicked.is_empty() || !self.port.woken.is_empty() {
            // A queue pair that is kicked may kick others: take the list, then look again.
            let mut kicked = core::mem::take(&mut self.port.hca.kicked);
            // Queue pairs that waited for the window go first: the one that gave them room because
            // its peer does not answer is kicked to send again, and would take the room back.
            let mut next = 0;
            while let Some(&slot) = self.port.woken.get(next) {
                next += 1;
                if let Some(Transport::Ib(qp)) = self.qps.at(slot) {
                    // This may wake another.
                    qp.on_window_open(&mut self.port);
                    self.make_ready(now, slot);
                }
            }
            self.port.woken.clear();
            for slot in kicked.drain(..) {
                self.make_ready(now, slot);
            }
            if self.port.hca.kicked.is_empty() {
                self.port.hca.kicked = kicked;
            }
        }
    }

    /// Gives a queue pair its turn to send.
    #[inline]
    fn make_ready(&mut self, now: Instant, slot: u32) {
        let common = match self.qps.at(slot) {
            Some(Transport::Ib(qp)) => {
                qp.on_kick(&mut self.port, now);
                &mut qp.common
            }
            Some(Transport::Iwarp(qp)) => {
                qp.flush(&mut self.port.hca, now);
                &mut qp.common
            }
            None => return,
        };
        if !common.queued {
            common.queued = true;
            self.port.hca.ready.push_back(slot);
        }
    }

    /// Keeps back what is for ourselves: a train to one of our own queue pairs, or our copy of a
    /// multicast. True: the link must not carry it.
    #[inline]
    fn divert(&mut self, train: &Train) -> bool {
        let dest = train.bth.dest_qp;
        if dest == Qpn::MULTICAST {
            if !self.port.groups.of(train.path.dst.gid).is_empty() {
                self.loopback.push(train);
            }
            return false;
        }
        let is_for_us = self.is_for_us(&train.path, dest);
        if is_for_us {
            self.loopback.push(train);
        }
        is_for_us
    }

    /// Whether packets on a path to a queue pair are to ourselves, and not for the link.
    #[inline]
    fn is_for_us(&self, path: &Path, qpn: Qpn) -> bool {
        // Every process at an address has a QP1; the link decides which one receives the packet.
        self.port.hca.config.loops_back
            && self.port.hca.is_own(&path.dst, path.framing)
            && qpn != Qpn::QP1
            && self.qps.peek(qpn).is_some()
    }

    /// Hands the packets to ourselves to the receiving side.
    fn deliver_loopback(&mut self, now: Instant) {
        for _ in 0..self.loopback.queue.len() {
            let Some((meta, stride, bytes)) = self.loopback.queue.pop_front() else {
                break;
            };
            let train = RxTrain { meta, bytes: &bytes, stride, trailer: 0, remote: None };
            self.port.hca.counters.loopback_pkts += train.packets().count() as u64;
            self.receive(now, &train);
            self.loopback.spare.push(bytes);
        }
        self.loopback.spare.truncate(16);
    }
}
