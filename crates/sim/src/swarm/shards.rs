//! Control operations of a device with shards, as the driver makes them: protection domains,
//! registrations and completion queues are in every shard under the name that the first gives them.

use feroce_engine::{CqId, CqPoller, Cqe, DestroyError, Engine, Notify, ResizeError};
use feroce_mem::{Access, Dereg, DeregError, MrInfo, PdId};
use feroce_testkit::Mr;
use feroce_wire::Lkey;

use crate::dice::Dice;
use crate::kernel::Host;
use crate::oracle::Memory;
use crate::swarm::Sabotage;

/// A completion queue: a ring for each shard.
#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) id: CqId,
    rings: Vec<CqPoller>,
    /// Whether queue pairs of a shard complete to the queue, by shard. The others are not polled.
    homes: Vec<bool>,
    /// Whether the consumer waits for an event, of which one shard gives one.
    asked: bool,
}

impl Cq {
    /// Makes a completion queue in all shards.
    pub(crate) fn create(host: &mut Host, depth: u32) -> Self {
        let (id, first) = host.first().create_cq(depth).expect("a completion queue");
        let mut rings = vec![first];
        for shard in &mut host.shards[1..] {
            let copy = shard.engine.create_cq_as(Some(id), depth);
            rings.push(copy.expect("the name is free in every shard").1);
        }
        let homes = vec![false; rings.len()];
        Self { id, rings, homes, asked: false }
    }

    /// A queue pair of this shard is about to complete to the queue.
    pub(crate) fn add_home(&mut self, shard: usize) {
        self.homes[shard] = true;
    }

    /// Takes a completion, if one waits. The ring to begin with is drawn if there are several; the
    /// completions of a queue pair are in one, and so in order.
    pub(crate) fn take_one(&mut self, dice: &mut Dice) -> Option<Cqe> {
        let count = self.rings.len();
        let start = if count > 1 { dice.size(0..=count - 1) } else { 0 };
        let mut shards = (start..count).chain(0..start).filter(|&shard| self.homes[shard]);
        shards.find_map(|shard| self.rings[shard].poll())
    }

    /// Whether completions wait to be polled.
    pub(crate) fn has_completions(&self) -> bool {
        self.rings.iter().any(|ring| !ring.is_empty())
    }

    /// Asks for an event: of the first shard that has a completion.
    pub(crate) fn arm(&mut self) {
        if !self.asked {
            self.rings.iter().for_each(CqPoller::disarm);
        }
        self.asked = true;
        self.rings.iter().for_each(|ring| ring.arm(Notify::Next));
    }

    /// A shard gives an event. True: the consumer waits for it, and gets it.
    pub(crate) fn take_event(&mut self) -> bool {
        std::mem::take(&mut self.asked)
    }

    /// Changes the depth of every ring.
    pub(crate) fn resize(&mut self, host: &mut Host, depth: u32) -> Result<(), ResizeError> {
        let mut rings = self.rings.iter_mut().zip(&mut host.shards);
        rings.try_for_each(|(ring, shard)| shard.engine.resize_cq(self.id, ring, depth))
    }

    /// Destroys it in all shards, unless one of them uses it.
    pub(crate) fn destroy(&self, host: &mut Host) -> Result<(), DestroyError> {
        host.shards.iter().try_for_each(|shard| shard.engine.may_destroy_cq(self.id))?;
        host.shards.iter_mut().try_for_each(|shard| shard.engine.destroy_cq(self.id))
    }
}

/// Objects of a node that no flow uses.
#[derive(Debug)]
pub(crate) struct Spare {
    pub(super) pd: PdId,
    pub(super) mr: Mr,
    pub(super) cq: Cq,
}

/// The engines of the shards but the first.
fn others(host: &mut Host) -> impl Iterator<Item = &mut Engine> {
    host.shards[1..].iter_mut().map(|shard| &mut shard.engine)
}

/// Makes a protection domain in all shards.
pub(crate) fn alloc_pd(host: &mut Host) -> PdId {
    let pd = host.first().alloc_pd().expect("a protection domain");
    for other in others(host) {
        assert_eq!(other.alloc_pd_as(Some(pd)), Ok(pd), "the name is free in every shard");
    }
    pd
}

/// Destroys a protection domain in all shards, unless one of them uses it.
pub(crate) fn dealloc_pd(host: &mut Host, pd: PdId) -> Result<(), DestroyError> {
    host.shards.iter().try_for_each(|shard| shard.engine.may_dealloc_pd(pd))?;
    host.shards.iter_mut().try_for_each(|shard| shard.engine.dealloc_pd(pd))
}

/// What a key names, if all shards agree.
pub(crate) fn query_mr(host: &Host, key: Lkey) -> Result<Option<MrInfo>, String> {
    let mut infos = host.shards.iter().map(|shard| shard.engine.query_mr(key));
    let first = infos.next().flatten();
    match infos.position(|other| other != first) {
        None => Ok(first),
        Some(at) => Err(format!("key {:#x} is {first:?} in shard 0, not in {}", key.0, at + 1)),
    }
}

/// Ends a registration in all shards. Only the first refuses: a host with several shards has no
/// windows.
pub(crate) fn deregister(
    host: &mut Host,
    key: Lkey,
    sabotage: Option<Sabotage>,
) -> Result<Vec<Dereg>, DeregError> {
    let mut ended = vec![host.first().dereg_mr(key)?];
    let left_out = usize::from(sabotage == Some(Sabotage::ForgetDereg));
    let copies = (host.shards.len() - 1).saturating_sub(left_out);
    for other in others(host).take(copies) {
        ended.push(other.dereg_mr(key).expect("every shard has the key"));
    }
    Ok(ended)
}

/// Registers part of the memory of a host in all shards.
pub(crate) fn register(
    host: &mut Host,
    memory: &Memory,
    pd: PdId,
    range: (usize, usize),
    access: Access,
    (sabotage, dice): (Option<Sabotage>, &mut Dice),
) -> Mr {
    let iova = if dice.chance(0.3) { 0 } else { (dice.any() >> 2) & !7 };
    let iova = (iova != 0).then_some(iova);
    let mr = Mr::register(host.first(), pd, &memory.region, range, iova, access);
    let left_out = usize::from(sabotage == Some(Sabotage::ForgetReg));
    let copies = (host.shards.len() - 1).saturating_sub(left_out);
    if let Some((first, others)) = host.shards.split_first_mut() {
        for other in &mut others[..copies] {
            let copied = other.engine.copy_mr(&first.engine, mr.lkey());
            assert_eq!(copied, Ok(()), "the key is free in every shard");
        }
    }
    mr
}
