//! What a member has to do with loans: as lender, and for those who fetch from others.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use feroce_mem::Region;
use feroce_train::{Lease, Lender};
use feroce_wire::Qpn;

use super::Member;
use crate::shm::layout::Slot;
use crate::shm::loan::{Fetching, LenderProcess, Words, word_of};
use crate::shm::shared::Files;
use crate::sys;

/// How often a processor is offered to somebody who copies from here.
const MOST_YIELDS: u32 = 10_000;

/// What others need who fetch from the memory of a member.
impl Member {
    /// The process of the member in a slot.
    pub(in crate::shm) fn lender(&self, slot: u8) -> LenderProcess {
        let area = self.area(slot);
        let [at, says] = [0, 1].map(|i: usize| area.witness[i].load(Ordering::Relaxed));
        LenderProcess { pid: area.pid.load(Ordering::Relaxed), witness: (at, says) }
    }

    /// The words by which the member in a slot revokes loans.
    pub(in crate::shm) fn words_of(&self, slot: u8) -> Words<'_> {
        let area = self.area(slot);
        (&area.leases, &area.answers)
    }

    /// Where this member says that it fetches from the one in a slot.
    pub(in crate::shm) fn fetching_from(&self, slot: u8) -> Fetching<'_> {
        Fetching { word: &self.area(self.slot).fetching, from: u32::from(slot) + 1 }
    }

    /// Memory of this process that others can map.
    pub(in crate::shm) fn files(&self) -> &Files {
        &self.files
    }

    /// Allocates `len` bytes of zeros that other members can map, so that what is lent from there
    /// is copied without the kernel.
    pub fn alloc(&self, len: usize) -> io::Result<Arc<Region>> {
        self.files.alloc(len)
    }

    /// Lets every process of this user read the memory of this one where the kernel would only let
    /// its parents do so (Yama), as members do that fetch what it lends.
    pub fn let_all_read(&self) {
        sys::let_all_read();
    }

    /// `len` bytes of the program as a region, their whole pages made shareable in place, so that
    /// what is lent from there is copied without the kernel; or the reason why not.
    ///
    /// # Safety
    /// As for [`Region::from_raw`]. In addition nobody writes to the bytes until this returns, and
    /// nobody minds that a child of a fork has them in common with its parent.
    pub unsafe fn convert(&self, base: *mut u8, len: usize) -> io::Result<Arc<Region>> {
        // SAFETY: as the caller says; the region keeps the entry and not the other way round.
        let entry = unsafe { self.files.convert(base, len) }?;
        // SAFETY: as the caller says; the exchanged pages are as readable and writable.
        Ok(unsafe { Region::from_raw(base, len, Some(Box::new(entry))) })
    }

    fn revoke(&self, word: &AtomicU32) {
        self.revoked.fetch_add(1, Ordering::Relaxed);
        word.fetch_add(1, Ordering::Release);
        // Whatever is written to the memory afterwards is seen after this. Pairs with the fence of
        // those who fetch: either they see that it is revoked, or we see that they are at it.
        fence(Ordering::SeqCst);
        self.others().for_each(|(slot, _)| self.let_finish(slot));
    }

    /// Waits until the member in a slot has copied what it is copying from here, for it would go on
    /// with whatever comes to be at the same addresses. One that is stopped may never say that it
    /// has, but a copy by the kernel is made whole before it stops.
    fn let_finish(&self, slot: u8) {
        let Fetching { from, .. } = self.fetching_from(self.slot);
        for _ in 0..MOST_YIELDS {
            if self.area(slot).fetching.load(Ordering::Acquire) != from {
                break;
            }
            std::thread::yield_now();
        }
    }
}

impl Lender for Member {
    fn lease(&self) -> Lease {
        Lease(self.revoked.load(Ordering::Relaxed))
    }

    fn revoke_from(&self, peer: Qpn) {
        self.revoke(&self.area(self.slot).leases[word_of(peer)]);
    }

    fn revoke_answers(&self) {
        self.revoke(&self.area(self.slot).answers);
    }
}

/// Shows where the witness of this process is, and what it says.
pub(super) fn show_witness(area: &Slot, witness: &u64) {
    area.pid.store(std::process::id(), Ordering::Relaxed);
    area.witness[0].store(std::ptr::from_ref(witness).addr() as u64, Ordering::Relaxed);
    area.witness[1].store(*witness, Ordering::Relaxed);
}
