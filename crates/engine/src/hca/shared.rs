//! Everything that queue pairs share: memory, completion queues, destinations, timers, output.
//!
//! The engine is cut in two so that a queue pair can be worked on while it uses the rest: the
//! table of queue pairs on one side, this on the other.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hint::cold_path;

use feroce_mem::{MrLimits, MrTable};
use feroce_train::{Lender, Path, Train};
use feroce_wire::{Bth, Gid, Op, Opcode, Pkey, Psn, Qpn, Service};
use slab::Slab;

use crate::hca::attr::AddrVec;
use crate::hca::config::Config;
use crate::hca::counters::{Counters, Drop, DropCounters};
use crate::hca::cq::{Cq, Cqe, WcStatus};
use crate::hca::event::{AsyncEvent, Event};
use crate::hca::id::{AhId, CqId, SrqId};
use crate::hca::srq::Srq;
use crate::hca::timer::Timers;
use crate::ib::destination::{PeerId, Peers};
use crate::ib::mcast::Groups;

/// Most answers that wait for the link without belonging to a queue pair.
const OUTBOX_LIMIT: usize = 1024;

/// An address handle: a path that datagrams take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ah {
    pub(crate) pd: feroce_mem::PdId,
    pub(crate) av: AddrVec,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) counters: Counters,
    pub(crate) drops: DropCounters,
    pub(crate) mrs: MrTable,
    pub(crate) cqs: Slab<Cq>,
    pub(crate) srqs: Slab<Srq>,
    pub(crate) ahs: Slab<Ah>,
    /// Users of each protection domain other than memory.
    pub(crate) pds: Slab<u32>,
    /// Users of each XRC domain.
    pub(crate) xrcds: Slab<u32>,
    pub(crate) groups: Groups,
    pub(crate) gids: Vec<Gid>,
    pub(crate) peers: Peers,
    pub(crate) timers: Timers,
    /// Slots of queue pairs that may have something to send.
    pub(crate) ready: VecDeque<u32>,
    /// Slots to be made ready at the next opportunity.
    pub(crate) kicked: Vec<u32>,
    /// Slots that waited for the window of a destination, which has opened.
    pub(crate) woken: Vec<u32>,
    pub(crate) events: VecDeque<Event>,
    outbox: VecDeque<Train>,
    /// A train of an unreliable service was given out whose bytes may not have been read yet.
    pub(crate) unread: bool,
    /// Completions of unreliable sends that wait until the bytes of every train have been read.
    held_back: VecDeque<(CqId, Cqe)>,
    /// Completion queues with fresh entries.
    fresh_cqs: Vec<CqId>,
    /// Completion queues that overran and whose queue pairs must be stopped.
    pub(crate) dead_cqs: Vec<CqId>,
    pub(crate) rng: fastrand::Rng,
    /// Whoever lets peers fetch payload.
    pub(crate) lender: Option<Arc<dyn Lender>>,
}

impl Core {
    pub(crate) fn new(config: Config) -> Self {
        let mut rng = fastrand::Rng::with_seed(config.seed);
        let limits = MrLimits { max_entries: config.limits.max_mr };
        Self {
            counters: Counters::default(),
            drops: DropCounters::default(),
            mrs: MrTable::new(rng.u64(..), limits),
            cqs: Slab::new(),
            srqs: Slab::new(),
            ahs: Slab::new(),
            pds: Slab::new(),
            xrcds: Slab::new(),
            groups: Groups::default(),
            gids: Vec::new(),
            peers: Peers::default(),
            timers: Timers::default(),
            ready: VecDeque::new(),
            kicked: Vec::new(),
            woken: Vec::new(),
            events: VecDeque::new(),
            outbox: VecDeque::new(),
            unread: false,
            held_back: VecDeque::new(),
            fresh_cqs: Vec::new(),
            dead_cqs: Vec::new(),
            rng,
            lender: None,
            config,
        }
    }

    /// Counts a dropped packet.
    #[cold]
    pub(crate) fn drop(&mut self, reason: Drop) {
        self.drops.count(reason);
    }

    /// A right to memory has ended: what was lent by it in answers must not be fetched any more.
    pub(crate) fn revoke_answers(&self) {
        if let Some(lender) = &self.lender {
            lender.revoke_answers();
        }
    }

    /// Reports an asynchronous event.
    pub(crate) fn event(&mut self, event: AsyncEvent) {
        self.events.push_back(Event::Async(event));
    }

    /// Reports a completion.
    #[inline]
    pub(crate) fn complete(&mut self, id: CqId, cqe: Cqe) {
        let Some(cq) = self.cqs.get_mut(id.0 as usize) else {
            return;
        };
        if cq.overrun {
            return;
        }
        let was_fresh = cq.is_fresh();
        if cq.push(cqe) {
            if !was_fresh {
                self.fresh_cqs.push(id);
            }
        } else {
            cold_path();
            // IBTA vol1 10.10: the entry is lost, which is fatal to the queue.
            cq.overrun = true;
            self.counters.cq_overrun += 1;
            self.dead_cqs.push(id);
            self.event(AsyncEvent::CqError(id));
        }
    }

    /// Reports a completion of a send queue.
    #[inline]
    pub(crate) fn complete_send(&mut self, id: CqId, cqe: Cqe) {
        self.counters.req_cqe_error += u64::from(cqe.status != WcStatus::Success);
        self.complete(id, cqe);
    }

    /// Reports a completion of an unreliable send queue, but not before the bytes of the trains
    /// that were given out have been read: the consumer may reuse its buffer at once.
    pub(crate) fn complete_unreliable(&mut self, id: CqId, cqe: Cqe) {
        if self.unread || !self.held_back.is_empty() {
            self.held_back.push_back((id, cqe));
        } else {
            self.complete_send(id, cqe);
        }
    }

    /// The bytes of every train have been read.
    pub(crate) fn all_read(&mut self) {
        self.unread = false;
        while let Some((id, cqe)) = self.held_back.pop_front() {
            self.complete_send(id, cqe);
        }
    }

    /// A completion queue goes away: nothing is reported there any more.
    pub(crate) fn forget_cq(&mut self, id: CqId) {
        self.held_back.retain(|(cq, _)| *cq != id);
    }

    /// Reports a completion of a receive queue.
    #[inline]
    pub(crate) fn complete_recv(&mut self, id: CqId, cqe: Cqe) {
        self.counters.resp_cqe_error += u64::from(cqe.status != WcStatus::Success);
        self.complete(id, cqe);
    }

    /// Turns fresh completions into wake-ups for those who asked; see `cq`.
    #[inline]
    pub(crate) fn wake_consumers(&mut self) {
        while let Some(id) = self.fresh_cqs.pop() {
            if self.cqs.get_mut(id.0 as usize).is_some_and(Cq::take_wake) {
                self.events.push_back(Event::Completion(id));
            }
        }
    }

    /// Takes a receive from a shared receive queue, watching its limit.
    pub(crate) fn take_from_srq(&mut self, id: SrqId) -> Option<crate::hca::wr::RecvWr> {
        let (wr, limit_hit) = self.srqs.get_mut(id.0 as usize)?.take()?;
        if limit_hit {
            self.event(AsyncEvent::SrqLimitReached(id));
        }
        Some(wr)
    }

    /// The partition key at `index`.
    pub(crate) fn pkey(&self, index: u16) -> Option<Pkey> {
        self.config.pkeys.get(usize::from(index)).copied()
    }

    /// Whether `gid` is an address of this port.
    #[inline]
    pub(crate) fn is_own_gid(&self, gid: Gid) -> bool {
        self.gids.contains(&gid) && !gid.is_zero()
    }

    /// The path of an address vector; `entropy` chooses the UDP source port if no flow label does.
    pub(crate) fn path(&self, av: &AddrVec, entropy: u32) -> Option<Path> {
        let src = *self.gids.get(usize::from(av.sgid_index))?;
        if src.is_zero() {
            return None;
        }
        let flow = if av.flow_label == 0 { entropy & 0xf_ffff } else { av.flow_label & 0xf_ffff };
        Some(Path {
            src,
            dst: av.dgid,
            flow_label: av.flow_label & 0xf_ffff,
            udp_sport: 0xc000 | (((flow & 0x3fff) ^ (flow >> 14)) as u16),
            dlid: av.dlid,
            traffic_class: av.traffic_class,
            hop_limit: if av.hop_limit == 0 { 64 } else { av.hop_limit },
            sl: av.sl,
        })
    }

    /// Whether an address handle may be used by a queue pair of `pd`.
    pub(crate) fn ah(&self, id: AhId, pd: feroce_mem::PdId) -> Option<&Ah> {
        self.ahs.get(id.0 as usize).filter(|ah| ah.pd == pd)
    }

    /// Puts a train that no queue pair holds into the output. Bounded: what the network asks for
    /// must not grow without limit.
    pub(crate) fn post_out(&mut self, train: Train) -> bool {
        if self.outbox.len() >= OUTBOX_LIMIT {
            self.drop(Drop::RateLimited);
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

    /// Whether anybody here may have something to send.
    #[inline]
    pub(crate) fn may_have_work(&self) -> bool {
        !self.ready.is_empty()
            || !self.kicked.is_empty()
            || !self.woken.is_empty()
            || !self.outbox.is_empty()
    }

    /// Whether such a train waits.
    pub(crate) fn has_out(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Counts packets that were received, with all their bytes.
    #[inline]
    pub(crate) fn count_received(&mut self, packets: u32, bytes: usize) {
        self.counters.rcvd_pkts += u64::from(packets);
        self.counters.rcvd_bytes += bytes as u64;
    }

    /// Counts a train that is sent.
    #[inline]
    pub(crate) fn count_sent(&mut self, train: &Train) {
        self.counters.sent_pkts += u64::from(train.count);
        self.counters.sent_bytes += train.total_len() as u64;
    }
}

impl Core {
    /// Lets the next queue pair that waits for the window of a destination try again.
    #[inline]
    pub(crate) fn wake_next(&mut self, peer: PeerId) {
        if let Some(slot) = self.peers.get(peer).wake() {
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
        lease: None,
    }
}
