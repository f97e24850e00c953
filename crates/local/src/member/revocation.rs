//! Revocation: peer processes begin no copy under a right that has ended, and those that have begun
//! one are watched until it is over.
//!
//! A word in this member's area of the registry changes with each revocation. A peer announces a
//! copy in its own area before it looks at the word. So of a revocation and a copy, the later one
//! sees the earlier. A revocation remembers the announcements that it finds; it is over when each
//! of them has changed. Nothing here waits: the caller asks again.

use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use feroce_train::{Revocation, RevocationEpoch};
use feroce_wire::Qpn;

use super::Member;
use crate::loan::Fetching;

/// How often the announcement of a peer is looked at before the kernel is asked what has become of
/// the process. Most copies are over much sooner.
const LOOKS: u32 = 16;

/// A copy that a peer may have begun before a revocation.
#[derive(Clone, Copy, Debug)]
struct Copy {
    since: RevocationEpoch,
    slot: u8,
    /// What the peer has announced.
    announced: u32,
    looks: u32,
}

/// Copies that may be under way although the right to make them has ended.
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

/// The slot of the member that has a queue pair, if it is on this host.
fn slot_of(qpn: Qpn) -> Option<u8> {
    u8::try_from(qpn.get() >> 16).ok()?.checked_sub(1)
}

impl Member {
    /// Changes a word that rights depend on, and remembers which peers may be copying.
    pub(super) fn revoke(&self, word: &AtomicU32) {
        if self.has_left() {
            // The area belongs to the next member in this slot.
            return;
        }
        let since = RevocationEpoch(self.revoked.fetch_add(1, Ordering::Relaxed).wrapping_add(1));
        word.fetch_add(1, Ordering::Release);
        // What is written to the memory afterwards is seen after this. Pairs with the exchange in
        // `Fetching::announce`: either the peer sees that the right has ended, or its announcement
        // is seen here.
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

    /// Whether every copy is over that a peer may have begun before a revocation.
    pub(super) fn has_finished(&self, revocation: Revocation) -> bool {
        if self.copies.count.load(Ordering::Acquire) == 0 {
            return true;
        }
        let mut all = self.copies.lock();
        if self.has_left() && !all.is_empty() {
            // The announcements cannot be read any more.
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
    /// A process that is stopped does not say that it has finished. But it is stopped outside the
    /// kernel: a copy by the kernel is complete, or it has not begun, and is taken away here. What
    /// the process has fetched by then it finds revoked. Only what it writes with its own
    /// instructions it goes on to write, so that such a copy is over when the process says so or is
    /// dead.
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
        // Should the process be copying something else already, that takes the ring instead.
        area.aim.clear();
        self.lives(copy.slot) && !self.host_memory(copy.slot).is_stopped()
    }
}
