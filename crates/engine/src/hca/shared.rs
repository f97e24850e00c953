//! The objects that the queue pairs of every transport share: memory, completion queues, shared
//! receive queues, address handles, timers, events and the lists of queue pairs with work.
//!
//! The engine keeps them apart from the table of queue pairs, so that it can borrow a queue pair
//! and these objects at the same time.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hint::cold_path;

use feroce_mem::{HostMemory, MrLimits, MrTable, Revocation};
use feroce_train::{Framing, GidEntry, LinkLayer, Path, PortAddr, Train};
use feroce_wire::{Gid, Lid, Pkey, Qpn};

use crate::hca::attr::AddrVec;
use crate::hca::config::Config;
use crate::hca::counters::{Counters, Drop, DropCounters, QpCounters, StreamCounters};
use crate::hca::cq::{Cq, CqPoller};
use crate::hca::cqe::{Cqe, WcStatus};
use crate::hca::event::{AsyncEvent, Event, StreamEvent};
use crate::hca::id::{AhId, CqId, SrqId};
use crate::hca::revocation::Revocations;
use crate::hca::srq::Srq;
use crate::hca::table::Table;
use crate::hca::timer::Timers;

/// An address handle: a path that datagrams take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ah {
    pub(crate) pd: feroce_mem::PdId,
    pub(crate) av: AddrVec,
}

/// What the queue pairs of an adapter share; see the module documentation.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) counters: Counters,
    pub(crate) stream_counters: StreamCounters,
    pub(crate) drops: DropCounters,
    /// What queue pairs did that do not exist any more.
    pub(crate) departed: QpCounters,
    pub(crate) mrs: MrTable,
    pub(crate) cqs: Table<Cq>,
    pub(crate) srqs: Table<Srq>,
    pub(crate) ahs: Table<Ah>,
    /// Users of each protection domain other than memory.
    pub(crate) pds: Table<u32>,
    /// Users of each XRC domain.
    pub(crate) xrcds: Table<u32>,
    /// The GID table of the port.
    pub(crate) gids: Vec<GidEntry>,
    /// LID of the port; zero on Ethernet.
    pub(crate) lid: Lid,
    /// LIDs of the port, as a power of two.
    pub(crate) lmc: u8,
    pub(crate) timers: Timers,
    /// Slots of queue pairs that may have something to send.
    pub(crate) ready: VecDeque<u32>,
    /// Slots to be made ready at the next opportunity.
    pub(crate) kicked: Vec<u32>,
    pub(crate) events: VecDeque<Event>,
    /// Streams of iWARP that have ended.
    pub(crate) stream_ends: VecDeque<StreamEvent>,
    /// Completion queues with fresh entries.
    fresh_cqs: Vec<CqId>,
    /// Completion queues that overran and whose queue pairs must be stopped.
    pub(crate) dead_cqs: Vec<CqId>,
    /// Lets peer processes of the host access registered memory.
    pub(crate) host_memory: Option<Arc<dyn HostMemory>>,
    /// What waits until peer processes have finished their copies.
    pub(crate) revocations: Revocations,
}

impl Shared {
    pub(crate) fn new(config: Config) -> Self {
        let limits = MrLimits { max_entries: config.limits.max_mr };
        Self {
            counters: Counters::default(),
            stream_counters: StreamCounters::default(),
            drops: DropCounters::default(),
            departed: QpCounters::default(),
            mrs: MrTable::new(config.seed, limits),
            cqs: Table::new(),
            srqs: Table::new(),
            ahs: Table::new(),
            pds: Table::new(),
            xrcds: Table::new(),
            gids: Vec::new(),
            lid: Lid::default(),
            lmc: 0,
            timers: Timers::default(),
            ready: VecDeque::new(),
            kicked: Vec::new(),
            events: VecDeque::new(),
            stream_ends: VecDeque::new(),
            fresh_cqs: Vec::new(),
            dead_cqs: Vec::new(),
            host_memory: None,
            revocations: Revocations::default(),
            config,
        }
    }

    /// Counts a dropped packet.
    #[cold]
    pub(crate) fn drop(&mut self, reason: Drop) {
        self.drops.count(reason);
    }

    /// A right to memory has ended: peer processes must no longer fetch payload of answers that was
    /// offered under it.
    pub(crate) fn revoke_answers(&self) {
        if let Some(host_memory) = &self.host_memory {
            host_memory.revoke_answers();
        }
    }

    /// What has been revoked so far from the process that has a queue pair, or from all.
    pub(crate) fn revocation(&self, peer: Option<Qpn>) -> Option<Revocation> {
        self.host_memory
            .as_ref()
            .map(|host_memory| Revocation { since: host_memory.revocation_epoch(), peer })
    }

    /// Completions of a queue pair wait until the process that has the queue pair `peer`, or any
    /// process, does not copy any more under a right that has been revoked so far.
    pub(crate) fn hold_until_quiet(&mut self, qpn: Qpn, peer: Option<Qpn>) {
        let Some((host_memory, revocation)) = self.host_memory.as_ref().zip(self.revocation(peer))
        else {
            return;
        };
        if !host_memory.is_quiet(revocation) {
            self.revocations.wait(qpn, revocation);
        }
    }

    /// Reports an asynchronous event.
    pub(crate) fn event(&mut self, event: AsyncEvent) {
        self.events.push_back(Event::Async(event));
    }

    /// Reports a completion, unless its queue pair waits for a revocation.
    #[inline]
    pub(crate) fn complete(&mut self, id: CqId, cqe: Cqe) {
        if !self.revocations.hold(id, cqe) {
            self.report(id, cqe);
        }
    }

    #[inline]
    fn report(&mut self, id: CqId, cqe: Cqe) {
        let Some(cq) = self.cqs.get_mut(id.0) else {
            return;
        };
        if cq.overrun {
            return;
        }
        let was_fresh = cq.is_fresh();
        let fits = cq.push(cqe);
        self.note_reported(id, was_fresh, fits);
    }

    /// Entries were put into a completion queue. `was_fresh`: there were others before, for which
    /// its consumer will be woken. `fits`: none was lost.
    #[inline]
    pub(crate) fn note_reported(&mut self, id: CqId, was_fresh: bool, fits: bool) {
        let Some(cq) = self.cqs.get_mut(id.0) else { return };
        if !was_fresh && cq.is_fresh() {
            self.fresh_cqs.push(id);
        }
        if !fits {
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

    /// Takes the completions of a queue pair out of a completion queue.
    pub(crate) fn forget_completions(&mut self, id: CqId, poller: &mut CqPoller, qpn: Qpn) {
        if let Some(cq) = self.cqs.get_mut(id.0) {
            cq.forget(poller, qpn);
        }
        self.revocations.forget(id, Some(qpn));
    }

    /// Ends the wait of a queue pair whose revocation is over: reports its completions.
    pub(crate) fn end_revocation(
        &mut self,
        is_over: &mut dyn FnMut(Revocation) -> bool,
    ) -> Option<Qpn> {
        let waiting = self.revocations.end(is_over)?;
        for (id, cqe) in waiting.held {
            self.report(id, cqe);
        }
        Some(waiting.qpn)
    }

    /// Reports a completion of a receive queue.
    #[inline]
    pub(crate) fn complete_recv(&mut self, id: CqId, cqe: Cqe) {
        self.counters.resp_cqe_error += u64::from(cqe.status != WcStatus::Success);
        self.complete(id, cqe);
    }

    /// Turns fresh completions into events for the consumers that armed their queue; see `cq`.
    #[inline]
    pub(crate) fn wake_consumers(&mut self) {
        while let Some(id) = self.fresh_cqs.pop() {
            let wake = self.cqs.get_mut(id.0).map(Cq::take_wake).unwrap_or_default();
            if wake.poller {
                self.events.push_back(Event::Poller(id));
            }
            if wake.event {
                self.events.push_back(Event::Completion(id));
            }
        }
    }

    /// Takes a receive from a shared receive queue, watching its limit.
    pub(crate) fn take_from_srq(&mut self, id: SrqId) -> Option<crate::hca::wr::RecvWr> {
        let (wr, limit_hit) = self.srqs.get_mut(id.0)?.take()?;
        if limit_hit {
            self.event(AsyncEvent::SrqLimitReached(id));
        }
        Some(wr)
    }

    /// The partition key at `index`.
    pub(crate) fn pkey(&self, index: u16) -> Option<Pkey> {
        self.config.pkeys.get(usize::from(index)).copied()
    }

    /// Whether packets of this framing to `addr` are for this port: on RoCE by GID, on InfiniBand
    /// by LID, and by GID too if they have a GRH (IBTA vol1 9.6.1).
    #[inline]
    pub(crate) fn is_own(&self, addr: &PortAddr, framing: Framing) -> bool {
        let is_listed = || self.gids.contains(&GidEntry { gid: addr.gid, framing });
        match framing.link_layer() {
            LinkLayer::Ethernet => is_listed() && !addr.gid.is_zero(),
            LinkLayer::InfiniBand => {
                let is_ours = addr.lid.0 & !self.path_bits() == self.lid.0 & !self.path_bits();
                is_ours && self.lid != Lid(0) && (addr.gid.is_zero() || is_listed())
            }
        }
    }

    /// The bits of a LID by which the LIDs of this port differ (IBTA vol1 7.11.1).
    #[inline]
    pub(crate) fn path_bits(&self) -> u16 {
        !(u16::MAX << self.lmc)
    }

    /// The path of an address vector; `entropy` is for one without a flow label.
    pub(crate) fn path(&self, av: &AddrVec, entropy: u32) -> Option<Path> {
        let entry = self.gids.get(usize::from(av.sgid_index)).filter(|entry| !entry.is_empty())?;
        let (src, dst) = match entry.framing.link_layer() {
            LinkLayer::Ethernet => (entry.gid.into(), av.dgid.into()),
            LinkLayer::InfiniBand => {
                // A packet to a port that has no GID in the address vector gets no GRH.
                let gid = if av.dgid.is_zero() { Gid::ZERO } else { entry.gid };
                let bits = u16::from(av.src_path_bits) & self.path_bits();
                let lid = Lid(self.lid.0 & !self.path_bits() | bits);
                (PortAddr { gid, lid }, PortAddr { gid: av.dgid, lid: av.dlid })
            }
        };
        let flow_label = av.flow_label & 0xf_ffff;
        Some(Path {
            src,
            dst,
            framing: entry.framing,
            flow_label,
            entropy: if flow_label == 0 { entropy } else { flow_label },
            traffic_class: av.traffic_class,
            hop_limit: if av.hop_limit == 0 { 64 } else { av.hop_limit },
            sl: av.sl,
        })
    }

    /// Whether an address handle may be used by a queue pair of `pd`.
    pub(crate) fn ah(&self, id: AhId, pd: feroce_mem::PdId) -> Option<&Ah> {
        self.ahs.get(id.0).filter(|ah| ah.pd == pd)
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
