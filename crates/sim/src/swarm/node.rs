//! A node: what an application has at its host: memory with its model, registrations and queues.

use feroce_engine::{CqId, QpInitAttr, QpType, SrqId, SrqInitAttr, SrqQueue, XrcdId};
use feroce_mem::{Access, Dereg, PdId};
use feroce_testkit::Mr;
use feroce_train::Instant;

use crate::dice::Dice;
use crate::kernel::Host;
use crate::oracle::{Memory, RecvLedger};
use crate::swarm::Sabotage;
use crate::swarm::shards::{Cq, Spare, alloc_pd, register};
use crate::swarm::step::Recv;

/// Words that the flows of all nodes count up.
pub(crate) const COUNTERS: usize = 2;

/// Which protection domain of a node its shared receive queues are of.
pub(crate) const SRQ_DOMAIN: usize = 0;

/// How an application uses its queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Habits {
    /// It sleeps until a completion event wakes it, instead of polling.
    pub(crate) sleeps: bool,
    /// Sends and receives complete on different queues.
    pub(crate) two_cqs: bool,
}

/// A protection domain with the registrations that every flow in it uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Domain {
    pub(crate) pd: PdId,
    /// Bytes that never change: what is sent and read.
    pub(crate) pool: Mr,
    /// All of memory, for the node's own use.
    pub(crate) own: Mr,
    /// Words to count on.
    pub(crate) counters: Mr,
}

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) id: SrqId,
    pub(crate) queue: SrqQueue,
    pub(crate) recvs: Vec<Recv>,
    pub(crate) next: usize,
    pub(crate) ledger: RecvLedger,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) habits: Habits,
    pub(crate) memory: Memory,
    pub(crate) domains: Vec<Domain>,
    /// Every registration.
    pub(crate) mrs: Vec<Mr>,
    pub(crate) cqs: Vec<Cq>,
    /// Registrations that ended while traffic ran.
    pub(crate) ended: Vec<Dereg>,
    /// Objects that no flow uses.
    pub(super) spares: Vec<Spare>,
    /// For ordinary queue pairs, and for XRC.
    pub(crate) srqs: Vec<Shared>,
    pub(crate) xrcd: XrcdId,
    /// How many queue pairs were given a shard so far.
    placed: usize,
    /// What registrations leave out on purpose.
    pub(crate) sabotage: Option<Sabotage>,
    /// When the application runs next.
    pub(crate) tick_at: Option<Instant>,
    /// What fetch-and-add returned, by counter.
    pub(crate) counted: [Vec<u64>; COUNTERS],
}

impl Node {
    /// Objects at `host`, with `memory` bytes.
    pub(crate) fn new(
        host: &mut Host,
        (habits, sabotage): (Habits, Option<Sabotage>),
        memory: usize,
        srq_depth: u32,
        dice: &mut Dice,
    ) -> Self {
        let mut memory = Memory::new(memory, dice);
        let pool_len = memory.region.len() / 4;
        let pool = (memory.take(pool_len, false, dice).expect("room"), pool_len);
        let counters = memory.take(8 * COUNTERS, true, dice).expect("room");
        for i in 0..COUNTERS {
            let at = counters + 8 * i;
            memory.region.store_u64(at, 0).expect("aligned");
            memory.expect(at, &[0; 8]);
        }
        let domains = (0..2)
            .map(|_| {
                let pd = alloc_pd(host);
                let mut reg = |at, len, access| {
                    register(host, &memory, pd, (at, len), access, (sabotage, &mut *dice))
                };
                Domain {
                    pd,
                    pool: reg(pool.0, pool.1, Access::REMOTE_READ),
                    own: reg(0, memory.region.len(), Access::LOCAL_WRITE),
                    counters: reg(
                        counters,
                        8 * COUNTERS,
                        Access::LOCAL_WRITE | Access::REMOTE_ATOMIC,
                    ),
                }
            })
            .collect::<Vec<_>>();
        let mrs = domains.iter().flat_map(|d| [d.pool, d.own, d.counters]).collect();
        let mut cqs: Vec<_> =
            (0..if habits.two_cqs { 2 } else { 1 }).map(|_| Cq::create(host, 8192)).collect();
        let xrcd = host.first().alloc_xrcd().expect("an XRC domain");
        let last = cqs.len() - 1;
        let recv_cq = cqs[last].id;
        cqs[last].add_home(0);
        let srqs = [None, Some((xrcd, recv_cq))]
            .map(|xrc| {
                let attr = SrqInitAttr {
                    pd: domains[SRQ_DOMAIN].pd,
                    max_wr: srq_depth,
                    max_sge: 8,
                    limit: 0,
                    xrc,
                };
                let (id, queue) = host.first().create_srq(attr).expect("a shared receive queue");
                let ledger = RecvLedger::new(true);
                Shared { id, queue, recvs: Vec::new(), next: 0, ledger }
            })
            .into();
        Self {
            habits,
            memory,
            domains,
            mrs,
            cqs,
            ended: Vec::new(),
            spares: Vec::new(),
            srqs,
            xrcd,
            placed: 0,
            sabotage,
            tick_at: None,
            counted: [Vec::new(), Vec::new()],
        }
    }

    /// Registers part of the region, at a random address, in all shards.
    pub(crate) fn register(
        &mut self,
        host: &mut Host,
        domain: usize,
        range: (usize, usize),
        access: Access,
        dice: &mut Dice,
    ) -> Mr {
        let (pd, sabotage) = (self.domains[domain].pd, self.sabotage);
        let mr = register(host, &self.memory, pd, range, access, (sabotage, dice));
        self.mrs.push(mr);
        mr
    }

    /// Where sends complete.
    pub(crate) fn send_cq(&self) -> CqId {
        self.cqs[0].id
    }

    /// Where receives complete.
    pub(crate) fn recv_cq(&self) -> CqId {
        self.cqs[self.cqs.len() - 1].id
    }

    /// The shard of a new queue pair, which completes to the queues of the node: each gets one in
    /// turn, of those that may be in any.
    pub(crate) fn place(&mut self, init: &QpInitAttr, shards: usize) -> usize {
        let may_be_anywhere = matches!(init.qp_type, QpType::Rc | QpType::Uc) && init.srq.is_none();
        let shard = if may_be_anywhere { self.placed % shards } else { 0 };
        self.placed += usize::from(may_be_anywhere);
        // Nothing completes at a target of XRC: its shared receive queues have a queue for that.
        if init.qp_type != QpType::XrcTgt {
            let used = [init.send_cq, init.recv_cq];
            let cqs = self.cqs.iter_mut().filter(|cq| used.contains(&cq.id));
            cqs.for_each(|cq| cq.add_home(shard));
        }
        shard
    }

    /// Whether completions wait to be polled.
    pub(crate) fn has_completions(&self) -> bool {
        self.cqs.iter().any(Cq::has_completions)
    }
}
