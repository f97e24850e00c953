//! Queue pairs by number.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use feroce_mem::Numbers;
use feroce_wire::Qpn;

use super::transport::Transport;
use crate::hca::config::Config;
use crate::hca::error::CreateError;

/// The table does not reuse a freed slot before this many others were freed, so that what still
/// names the slot does not reach a new queue pair.
const QUARANTINE: usize = 64;

/// What the numbers drawn from the seed are for.
const NUMBERS: u64 = u64::from_be_bytes(*b"qp  nums");

/// Queue pairs by number: slot 0 is QP1, the others have unpredictable numbers of a range. A freed
/// number is used again only after all others, so that packets of the old queue pair do not reach a
/// new one.
#[derive(Debug)]
pub(super) struct QpTable {
    slots: Vec<Option<Box<Transport>>>,
    free: VecDeque<u32>,
    numbers: Numbers,
    count: u32,
    live: u32,
}

impl QpTable {
    pub(super) fn new(config: &Config) -> Self {
        // Numbers 0 and 1 are the management interfaces, the last is multicast.
        let first = config.qpn_first.clamp(2, 0x00ff_fffe);
        let count = config.qpn_count.clamp(1, 0x00ff_ffff - first);
        let numbers = Numbers::new(config.seed, NUMBERS, first, count);
        Self { slots: alloc::vec![None], free: VecDeque::new(), numbers, count, live: 0 }
    }

    /// How many queue pairs there are.
    pub(super) fn len(&self) -> u32 {
        self.live
    }

    /// The slot that the next queue pair gets; `None` if all numbers are taken.
    pub(super) fn next_slot(&self) -> Option<u32> {
        let fresh = self.slots.len() as u32;
        let is_fresh = fresh <= self.count && self.free.len() < QUARANTINE;
        if is_fresh { Some(fresh) } else { self.free.front().copied() }
    }

    /// Gives the slot that [`QpTable::next_slot`] returned a number.
    pub(super) fn reserve(&mut self, slot: u32) -> Result<Qpn, CreateError> {
        let is_fresh = slot as usize == self.slots.len();
        if is_fresh {
            self.slots.try_reserve(1).map_err(|_| CreateError::OutOfMemory)?;
            // Room for every slot to be free, so that `remove` never allocates.
            let missing = self.slots.len() + 1 - self.free.len();
            self.free.try_reserve(missing).map_err(|_| CreateError::OutOfMemory)?;
        }
        // There are as many numbers as slots, so that only memory can be missing.
        let number = self.numbers.draw(slot).ok_or(CreateError::OutOfMemory)?;
        if is_fresh {
            self.slots.push(None);
        } else {
            self.free.pop_front();
        }
        Ok(Qpn::new(number))
    }

    /// Puts a queue pair into the slot that was reserved for it.
    pub(super) fn put(&mut self, slot: u32, qp: Box<Transport>) {
        if let Some(place) = self.slots.get_mut(slot as usize) {
            *place = Some(qp);
            self.live += 1;
        }
    }

    pub(super) fn remove(&mut self, qpn: Qpn) -> Option<Box<Transport>> {
        let slot = self.slot_of(qpn)?;
        let qp = self.slots.get_mut(slot as usize)?.take()?;
        if slot != 0 {
            self.numbers.release(qpn.get());
            self.free.push_back(slot);
        }
        self.live -= 1;
        Some(qp)
    }

    /// The slot of a number, if it is one of ours.
    #[inline]
    pub(super) fn slot_of(&self, qpn: Qpn) -> Option<u32> {
        if qpn == Qpn::QP1 {
            return Some(0);
        }
        self.numbers.slot_of(qpn.get())
    }

    #[inline]
    pub(super) fn get(&mut self, qpn: Qpn) -> Option<&mut Transport> {
        self.at(self.slot_of(qpn)?)
    }

    #[inline]
    pub(super) fn peek(&self, qpn: Qpn) -> Option<&Transport> {
        self.slots.get(self.slot_of(qpn)? as usize)?.as_deref()
    }

    #[inline]
    pub(super) fn at(&mut self, slot: u32) -> Option<&mut Transport> {
        self.slots.get_mut(slot as usize)?.as_deref_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Transport> {
        self.slots.iter().filter_map(|slot| slot.as_deref())
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Transport> {
        self.slots.iter_mut().filter_map(|slot| slot.as_deref_mut())
    }
}
