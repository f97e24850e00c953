//! Doorbells: how many threads tell one owner which of its queues have work.
//!
//! This module owns the list of rung bells. It is a stack of ids linked through the bells
//! themselves and taken whole, so that ringing never allocates, never fails and never waits for
//! the owner. It does not wake the owner: [`Doorbell::ring`] says whether the caller should.
//!
//! # Why no work is overlooked
//!
//! A thread first makes its work visible (say, with [`Producer::publish`](crate::Producer)), then
//! rings. The owner first clears `rung`, then looks for work. Both are read-modify-write operations
//! on `rung`, so one comes first:
//!
//! * Clear, then ring: the ring found `rung` clear and puts the id on the list. The owner will
//!   drain it and look again.
//! * Ring, then clear: the clear read the value that the ring stored (or that of a ring after it,
//!   in the same release sequence). Ring releases and clear acquires, so the look that follows
//!   sees the work. A clear by plain store would read nothing and lose this edge.
//!
//! # Why every bell is answered
//!
//! The owner may be the thread that has the outer lock of a [`LockPair`](crate::LockPair). A thread
//! that has rung tries to get it; if it cannot, the thread that has it answers the bell. That
//! thread releases the lock first, and then looks at the list with
//! [`DoorbellSet::is_rung_meanwhile`]. Ringing, the attempt, the release and the look are
//! sequentially consistent, so that all threads agree on their order:
//!
//! * Ring, then look: the bell is seen.
//! * Look, then ring: the ringer, which tries the lock afterwards, sees that it was released.
//!
//! A thread that has rung may also leave the lock to one that waits for it, and is counted as long
//! as it does. The one that waits gets the lock, leaves the count, and does the same as every other
//! thread that has the lock; so a ringer that comes after its look sees that it does not wait.
//!
//! # Why the list stays whole
//!
//! `next` of a bell is written only by the thread that turned `rung` from false to true, until the
//! id is on the list, and after that only by the owner, until `rung` is cleared. It passes to the
//! owner by the list: pushes release and the take acquires, and pushes in between are
//! read-modify-writes, which pass the edge on. It passes back by `rung`: the clear releases and the
//! ring acquires. A push whose head was taken and came back meanwhile links to that head, which is
//! again the list.

use alloc::{collections::VecDeque, sync::Arc, vec::Vec};
use core::fmt;

use crate::sync::{AtomicBool, AtomicU32, Ordering, order_like_seq_cst};

/// The end of a list of ids.
const NONE: u32 = u32::MAX;

/// The bells that were rung since the owner last looked, as seen by every thread.
pub struct DoorbellSet {
    /// The id rung last, or [`NONE`].
    head: AtomicU32,
}

impl DoorbellSet {
    /// Whether a bell is waiting to be drained: one load.
    #[inline]
    pub fn is_rung(&self) -> bool {
        self.head.load(Ordering::Acquire) != NONE
    }

    /// Whether a bell is waiting to be drained, for a thread that has just released the outer lock
    /// of a [`LockPair`](crate::LockPair). If none is, the thread that rings next sees that the
    /// lock is free; see the module documentation.
    #[inline]
    pub fn is_rung_meanwhile(&self) -> bool {
        self.head.load(Ordering::SeqCst) != NONE
    }
}

impl fmt::Debug for DoorbellSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DoorbellSet").field("is_rung", &self.is_rung()).finish()
    }
}

/// The bell of one slot of an owner, for all threads that give that slot work.
pub struct Doorbell {
    id: u32,
    /// The id rung before this one, while this one is on the list.
    next: AtomicU32,
    /// Whether the id is on the list, or about to be.
    rung: AtomicBool,
    set: Arc<DoorbellSet>,
}

impl Doorbell {
    /// Tells the owner that the slot has work. Call it after the work is visible.
    ///
    /// Returns true if this call put the bell on the list, and so the caller has to see that
    /// the owner runs. False means that an earlier ring, not yet drained, covers this one.
    #[inline]
    pub fn ring(&self) -> bool {
        if self.rung.swap(true, Ordering::AcqRel) {
            return false;
        }
        // The list is mostly empty, and the first exchange tells if it is not. A load to find out
        // beforehand would cost a transfer of the cache line, and hide races from loom.
        let mut head = NONE;
        loop {
            self.next.store(head, Ordering::Relaxed);
            let list = &self.set.head;
            match list.compare_exchange(head, self.id, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => {
                    order_like_seq_cst();
                    return true;
                }
                Err(now) => head = now,
            }
        }
    }

    /// The slot this bell belongs to.
    #[inline]
    pub fn id(&self) -> u32 {
        self.id
    }
}

impl fmt::Debug for Doorbell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Doorbell")
            .field("id", &self.id)
            .field("rung", &self.rung.load(Ordering::Relaxed))
            .finish()
    }
}

/// The side that answers the doorbells. It makes them, keeps them, and learns who rang.
pub struct DoorbellOwner {
    set: Arc<DoorbellSet>,
    /// Bells by id.
    bells: Vec<Arc<Doorbell>>,
    /// Ids taken off the shared list and not yet yielded, oldest first.
    taken: u32,
}

impl DoorbellOwner {
    /// Makes an owner without bells.
    pub fn new() -> Self {
        Self {
            set: Arc::new(DoorbellSet { head: AtomicU32::new(NONE) }),
            bells: Vec::new(),
            taken: NONE,
        }
    }

    /// The bell of slot `id`, the same one each time.
    ///
    /// Bells are made up to `id` as needed and kept for good: number slots densely from 0.
    ///
    /// # Panics
    ///
    /// If `id` is `u32::MAX`, or there is no memory for the bell.
    pub fn bell(&mut self, id: u32) -> Arc<Doorbell> {
        self.try_bell(id).expect("memory for a doorbell")
    }

    /// As [`DoorbellOwner::bell`], and `None` if there is no memory for the list of bells.
    ///
    /// # Panics
    ///
    /// If `id` is `u32::MAX`.
    pub fn try_bell(&mut self, id: u32) -> Option<Arc<Doorbell>> {
        assert_ne!(id, NONE, "no slot has this id");
        self.bells.try_reserve((id as usize + 1).saturating_sub(self.bells.len())).ok()?;
        for id in self.bells.len() as u32..=id {
            self.bells.push(Arc::new(Doorbell {
                id,
                next: AtomicU32::new(NONE),
                rung: AtomicBool::new(false),
                set: self.set.clone(),
            }));
        }
        self.bells.get(id as usize).cloned()
    }

    /// The list of rung bells, for looking at it from other threads.
    pub fn set(&self) -> &Arc<DoorbellSet> {
        &self.set
    }

    /// Whether there is something to drain.
    #[inline]
    pub fn is_rung(&self) -> bool {
        self.taken != NONE || self.set.is_rung()
    }

    /// Calls `each` with every slot rung until now, once, in the order they were rung.
    ///
    /// The bell is cleared before its id is passed on: work that `each` does not find in the slot
    /// will ring again. Bells rung meanwhile are left for the next call.
    ///
    /// If `each` panics, the ids it was not called with are kept for the next call.
    pub fn drain(&mut self, mut each: impl FnMut(u32)) {
        if self.taken == NONE {
            self.take();
        }
        while self.taken != NONE {
            let id = self.taken;
            let bell = &self.bells[id as usize];
            self.taken = bell.next.load(Ordering::Relaxed);
            bell.rung.swap(false, Ordering::AcqRel);
            each(id);
        }
    }

    /// Appends to `out` every slot rung until now, as [`DoorbellOwner::drain`] does.
    pub fn drain_into(&mut self, out: &mut VecDeque<u32>) {
        self.drain(|id| out.push_back(id));
    }

    /// Takes the shared list, newest first, and turns it around in place.
    fn take(&mut self) {
        if !self.set.is_rung() {
            return;
        }
        let mut id = self.set.head.swap(NONE, Ordering::Acquire);
        while id != NONE {
            let next = &self.bells[id as usize].next;
            let older = next.load(Ordering::Relaxed);
            next.store(self.taken, Ordering::Relaxed);
            self.taken = id;
            id = older;
        }
    }
}

impl Default for DoorbellOwner {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for DoorbellOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DoorbellOwner")
            .field("bells", &self.bells.len())
            .field("is_rung", &self.is_rung())
            .finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
