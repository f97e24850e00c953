//! Queue pairs by number.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use feroce_wire::Qpn;

use super::transport::Transport;
use crate::hca::shared::Shared;

/// The table does not reuse a freed number before this many others were freed, so that packets of
/// the old queue pair do not reach a new one.
const QUARANTINE: usize = 64;

/// Queue pairs by number: slot 0 is QP1, slot `i` the `i`-th number of a range that starts at a
/// random place.
#[derive(Debug)]
pub(super) struct QpTable {
    slots: Vec<Option<Box<Transport>>>,
    free: VecDeque<u32>,
    first: u32,
    count: u32,
    /// Where in the range slot 1 lies.
    start: u32,
    live: u32,
}

impl QpTable {
    pub(super) fn new(hca: &mut Shared) -> Self {
        // Numbers 0 and 1 are the management interfaces, the last is multicast.
        let first = hca.config.qpn_first.clamp(2, 0x00ff_fffe);
        let count = hca.config.qpn_count.clamp(1, 0x00ff_ffff - first);
        Self {
            slots: alloc::vec![None],
            free: VecDeque::new(),
            first,
            count,
            start: hca.rng.u32(..count),
            live: 0,
        }
    }

    /// How many queue pairs there are.
    pub(super) fn len(&self) -> u32 {
        self.live
    }

    /// A free slot and its number.
    pub(super) fn reserve(&mut self) -> Option<(u32, Qpn)> {
        let fresh = self.slots.len() as u32;
        let slot = if fresh <= self.count && self.free.len() < QUARANTINE {
            self.slots.push(None);
            fresh
        } else {
            self.free.pop_front()?
        };
        let index = (u64::from(self.start) + u64::from(slot - 1)) % u64::from(self.count);
        Some((slot, Qpn::new(self.first + index as u32)))
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
        let index = qpn.get().checked_sub(self.first).filter(|&i| i < self.count)?;
        let distance =
            if index >= self.start { index - self.start } else { index + self.count - self.start };
        Some(distance + 1)
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

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Transport> {
        self.slots.iter_mut().filter_map(|slot| slot.as_deref_mut())
    }
}
