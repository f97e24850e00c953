//! The state that queue pairs of the InfiniBand transport share beyond the adapter's objects:
//! destinations, multicast groups, and trains that belong to no queue pair.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use feroce_train::{Path, Train};
use feroce_wire::{Bth, Op, Opcode, Pkey, Psn, Qpn, Service};

use super::destination::{DestinationId, Destinations};
use super::mcast::Groups;
use super::reorder_queue::ReorderMemory;
use crate::hca::config::Config;
use crate::hca::counters::Drop;
use crate::hca::cqe::Cqe;
use crate::hca::id::CqId;
use crate::hca::shared::Shared;

/// Most answers that wait for the link without belonging to a queue pair.
const OUTBOX_LIMIT: usize = 1024;

/// The adapter's port to an InfiniBand or RoCE network, with the objects of the adapter.
#[derive(Debug)]
pub(crate) struct Port {
    /// The objects that every transport shares.
    pub(crate) hca: Shared,
    pub(crate) groups: Groups,
    pub(crate) destinations: Destinations,
    pub(crate) reorder: ReorderMemory,
    /// Slots that waited for the window of a destination, which has opened.
    pub(crate) woken: Vec<u32>,
    outbox: VecDeque<Train>,
    /// A train of an unreliable service was given out whose bytes may not have been read yet.
    pub(crate) unread: bool,
    /// Completions of unreliable sends that wait until the bytes of every train have been read.
    held_back: VecDeque<(CqId, Cqe)>,
}

impl Port {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            hca: Shared::new(config),
            groups: Groups::default(),
            destinations: Destinations::default(),
            reorder: ReorderMemory::default(),
            woken: Vec::new(),
            outbox: VecDeque::new(),
            unread: false,
            held_back: VecDeque::new(),
        }
    }

    /// Reports a completion of an unreliable send queue, but not before the bytes of the trains
    /// that were given out have been read: the consumer may reuse its buffer at once.
    pub(crate) fn complete_unreliable(&mut self, id: CqId, cqe: Cqe) {
        if self.awaits_reading() {
            self.held_back.push_back((id, cqe));
        } else {
            self.hca.complete_send(id, cqe);
        }
    }

    /// Whether completions wait, or will wait, until the bytes of trains have been read.
    #[inline]
    pub(crate) fn awaits_reading(&self) -> bool {
        self.unread || !self.held_back.is_empty()
    }

    /// The bytes of every train have been read.
    pub(crate) fn all_read(&mut self) {
        self.unread = false;
        while let Some((id, cqe)) = self.held_back.pop_front() {
            self.hca.complete_send(id, cqe);
        }
    }

    /// A completion queue goes away: nothing is reported there any more.
    pub(crate) fn forget_cq(&mut self, id: CqId) {
        self.hca.revocations.forget(id, None);
        self.held_back.retain(|(cq, _)| *cq != id);
    }

    /// Queues a train that belongs to no queue pair. The queue is bounded: packets from the network
    /// must not make it grow without limit.
    pub(crate) fn post_out(&mut self, train: Train) -> bool {
        if self.outbox.len() >= OUTBOX_LIMIT {
            self.hca.drop(Drop::RateLimited);
            return false;
        }
        self.outbox.push_back(train);
        true
    }

    /// The next train that no queue pair holds.
    #[inline]
    pub(crate) fn take_out(&mut self) -> Option<Train> {
        self.outbox.pop_front()
    }

    /// Whether a queue pair, or the outbox, may have something to send.
    #[inline]
    pub(crate) fn may_have_work(&self) -> bool {
        !self.hca.ready.is_empty()
            || !self.hca.kicked.is_empty()
            || !self.woken.is_empty()
            || !self.outbox.is_empty()
    }

    /// Whether such a train waits.
    pub(crate) fn has_out(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Lets the next queue pair that waits for the window of a destination try again.
    #[inline]
    pub(crate) fn wake_next(&mut self, peer: DestinationId) {
        if let Some(slot) = self.destinations.get(peer).wake() {
            self.woken.push(slot);
        }
    }
}

/// A congestion notification to `dest` (annex A17).
pub(crate) fn cnp(path: Path, dest: Qpn, pkey: Pkey) -> Train {
    let opcode = Opcode::new(Service::Cnp, Op::Cnp);
    let bth = Bth { becn: true, pkey, ..Bth::new(opcode, dest, Psn::new(0)) };
    Train {
        path,
        bth,
        ops: feroce_train::TrainOps::all(opcode),
        count: 1,
        stride: 0,
        payload_len: 0,
        head: feroce_train::Ext::NONE.with(|reserved: &mut [u8; 16]| *reserved = [0; 16]),
        body: feroce_train::Ext::NONE,
        tail: feroce_train::Ext::NONE,
        payload: feroce_train::Payload::Empty,
        revocation_epoch: None,
    }
}
