//! Revocation: peer processes begin no copy under a right that has ended, and the process watches
//! copies that they have begun until these end.
//!
//! Each revocation changes a word in this process's area of the registry. A peer announces a copy
//! in its own area before it reads the word. So of a revocation and a copy, the later one sees the
//! earlier. A revocation records the announcements that it finds; it is complete when each of them
//! has changed. No function here waits: the caller asks again.

use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use feroce_mem::{Revocation, RevocationEpoch};
use feroce_wire::Qpn;

use super::Registry;
use crate::remote_payload::Fetching;

/// How often the process checks the announcement of a peer before it asks the kernel for the state
/// of the process. Most copies end much sooner.
const LOOKS: u32 = 16;

/// A copy that a peer may have begun before a revocation.
#[derive(Clone, Copy, Debug)]
struct Copy {
    since: RevocationEpoch,
    slot: u8,
    /// The word that the peer has announced.
    announced: u32,
    looks: u32,
}

/// Copies that may be under way although the right to make them was revoked.
#[derive(Debug, Default)]
pub(super) struct Copies {
    all: Mutex<Vec<Copy>>,
    /// How many there are.
    count: AtomicU32,
}

impl Copies {
    fn lock(&self) -> MutexGuard<'_, Vec<Copy>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The slot of the process that has a queue pair, if it is on this host.
fn slot_of(qpn: Qpn) -> Option<u8> {
    u8::try_from(qpn.get() >> 16).ok()?.checked_sub(1)
}

impl Registry {
    /// Changes a word that rights depend on, and records which peers may be copying.
    pub(super) fn revoke(&self, word: &AtomicU32) {
        if self.has_left() {
            // The area belongs to the next process in this slot.
            return;
        }
        let since = RevocationEpoch(self.revoked.fetch_add(1, Ordering::Relaxed).wrapping_add(1));
        word.fetch_add(1, Ordering::Release);
        // Later writes to the memory become visible after this. Pairs with the exchange in
        // `Fetching::announce`: either the peer sees the revocation, or this thread sees its
        // announcement.
        fence(Ordering::SeqCst);
        for (slot, _) in self.others() {
            let announced = self.area(slot).fetching.load(Ordering::Acquire);
            if Fetching::is_from(announced, self.slot) {
                self.watch_copy(Copy { since, slot, announced, looks: 0 });
            }
        }
    }

    #[cold]
    fn watch_copy(&self, copy: Copy) {
        let mut all = self.copies.lock();
        let same = |old: &Copy| (old.slot, old.announced) == (copy.slot, copy.announced);
        if !all.iter().any(same) {
            all.push(copy);
        }
        self.copies.count.store(all.len() as u32, Ordering::Release);
    }

    /// Whether every copy has ended that a peer may have begun before a revocation.
    pub(super) fn has_finished(&self, revocation: Revocation) -> bool {
        if self.copies.count.load(Ordering::Acquire) == 0 {
            return true;
        }
        let mut all = self.copies.lock();
        if self.has_left() && !all.is_empty() {
            // Once this process has left its slot, announcements may refer to the next process in
            // that slot.
            self.files.expect_late_writer();
            all.clear();
        }
        all.retain_mut(|copy| self.is_under_way(copy));
        self.copies.count.store(all.len() as u32, Ordering::Release);
        let is_meant = |copy: &Copy| {
            let is_peer = revocation.peer.is_none_or(|qpn| slot_of(qpn) == Some(copy.slot));
            is_peer && copy.since.is_at_most(revocation.since)
        };
        !all.iter().any(is_meant)
    }

    /// Whether a copy may still be under way.
    ///
    /// A stopped process does not say that it has finished. But a process stops only outside the
    /// kernel: a copy by the kernel is complete, or it has not begun and is prevented here, where
    /// its aim is cleared. The process finds out later that what it fetched was revoked. Only a
    /// copy with its own instructions continues when the process continues, so such a copy ends
    /// when the process says so or is dead.
    fn is_under_way(&self, copy: &mut Copy) -> bool {
        let area = self.area(copy.slot);
        if area.fetching.load(Ordering::Acquire) != copy.announced {
            return false;
        }
        copy.looks = copy.looks.saturating_add(1);
        if copy.looks < LOOKS {
            return true;
        }
        if Fetching::stores(copy.announced) {
            return self.lives(copy.slot);
        }
        // If the process is already making another copy, that message goes through the ring
        // instead.
        area.aim.clear();
        self.lives(copy.slot) && !self.host_memory(copy.slot).is_stopped()
    }
}
