//! Remote payload and direct access: what a process offers to its peers, and how it uses what they
//! offer.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

use feroce_mem::{
    Access, DirectPath, DirectWrite, HostMemory, Reach, Region, Revocation, RevocationEpoch,
    Source, WriteSome,
};
use feroce_wire::Qpn;

use super::{Registry, Wake};
use crate::direct_access::{DirectAccess, DirectAccessTable, Inside, Offer};
use crate::guard::Guard;
use crate::layout::Slot;
use crate::peer_process::PeerProcess;
use crate::remote_payload::{Fetching, Words, word_of};
use crate::shared::Files;
use crate::sys;

/// What peers need to fetch from the memory of a process.
impl Registry {
    /// The process in a slot, as far as peers need to know it.
    pub(crate) fn host_memory(&self, slot: u8) -> PeerProcess {
        let area = self.area(slot);
        let [at, says] = [0, 1].map(|i: usize| area.witness[i].load(Ordering::Relaxed));
        let pid = area.pid.load(Ordering::Relaxed);
        PeerProcess { pid, witness: (at, says), guard: self.guard.get().copied() }
    }

    /// The words with which the process in a slot revokes remote payload.
    pub(crate) fn words_of(&self, slot: u8) -> Words<'_> {
        let area = self.area(slot);
        (&area.epochs, &area.answers)
    }

    /// The word in which this process announces that it fetches from the process in a slot.
    pub(crate) fn fetching_from(&self, slot: u8) -> Fetching<'_> {
        Fetching { word: &self.area(self.slot).fetching, from: Fetching::of(slot) }
    }

    /// Publishes that this process polls its rings and finds nothing.
    #[inline]
    pub(crate) fn show_polling(&self) {
        let polling = &self.area(self.slot).polling;
        if polling.load(Ordering::Relaxed) == 0 {
            polling.store(1, Ordering::Relaxed);
        }
    }

    /// Memory of this process that peers can map.
    pub(crate) fn files(&self) -> &Files {
        &self.files
    }

    /// Allocates `len` bytes of zeros that other processes can map, so that they copy remote
    /// payload from there without the kernel.
    pub fn alloc(&self, len: usize) -> io::Result<Arc<Region>> {
        self.files.alloc(len)
    }

    /// Lets every process of this user read the memory of this one, where the kernel would only let
    /// its ancestors do so (Yama). Processes need it to fetch remote payload from this one.
    pub fn let_all_read(&self) {
        sys::let_all_read();
    }

    /// From now on, this process also maps files of peers that may be truncated, and `guard` keeps
    /// this process alive if that happens.
    pub fn guard_with(&self, guard: &'static dyn Guard) {
        // If a guard is set already, that one serves as well.
        let _ = self.guard.set(guard);
    }

    /// Makes `len` bytes of the program a region that other processes can map, if the program
    /// shares that memory already; otherwise the error is the reason.
    ///
    /// # Safety
    /// As for [`Region::from_raw`].
    pub unsafe fn map_shared(&self, base: *mut u8, len: usize) -> io::Result<Arc<Region>> {
        let entry = self.files.map_shared(base.addr() as u64, len)?;
        // SAFETY: as the caller says.
        Ok(unsafe { Region::from_raw(base, len, Some(Box::new(entry))) })
    }

    /// Makes `len` bytes of the program a region, and their whole pages shareable in place, so that
    /// peers copy remote payload from there without the kernel; otherwise the error is the reason.
    ///
    /// # Safety
    /// As for [`Region::from_raw`]. In addition, no thread writes to the bytes until this returns,
    /// and the program accepts that a child of a fork shares them with its parent.
    pub unsafe fn remap_shared(&self, base: *mut u8, len: usize) -> io::Result<Arc<Region>> {
        // SAFETY: as the caller says; the region owns the entry, so the memory outlives the entry.
        let entry = unsafe { self.files.remap_shared(base, len) }?;
        // SAFETY: as the caller says; the exchanged pages are as readable and writable.
        Ok(unsafe { Region::from_raw(base, len, Some(Box::new(entry))) })
    }
}

impl HostMemory for Registry {
    fn revocation_epoch(&self) -> RevocationEpoch {
        RevocationEpoch(self.revoked.load(Ordering::Relaxed))
    }

    fn revoke_from(&self, peer: Qpn) {
        self.direct_table().forget(peer);
        self.revoke(&self.area(self.slot).epochs[word_of(peer)]);
    }

    fn revoke_answers(&self) {
        self.revoke(&self.area(self.slot).answers);
    }

    fn is_quiet(&self, revocation: Revocation) -> bool {
        self.has_finished(revocation)
    }

    fn open(&self, path: &DirectPath, reach: &Reach) {
        let answers = self.area(self.slot).answers.load(Ordering::Relaxed);
        let offer = Offer::new(*path, *reach, &self.files, answers);
        self.offers.lock().unwrap_or_else(PoisonError::into_inner).push(offer);
        self.has_offers.store(true, Ordering::Relaxed);
    }

    #[inline]
    fn write(&self, path: &DirectPath, write: &DirectWrite<'_>) -> bool {
        let DirectWrite { va, len, source, is_awaited } = *write;
        let what = (Access::REMOTE_WRITE, is_awaited);
        self.go_through(path, va, len, what, |inside, is_open| match inside {
            Inside::File(part) => part.write(source),
            Inside::Process(process, at) => {
                process.write(at, (len, source), &self.area(self.slot).aim, is_open)
            }
        })
    }

    fn write_some(&self, path: &DirectPath, work: &mut WriteSome<'_>) -> usize {
        let mut direct_table = self.direct_table();
        let Some(direct) = direct_table.find(path) else { return 0 };
        if !direct.is_in_file() {
            drop(direct_table);
            return work(&|write| self.write(path, write));
        }
        let announced = self.fetching_from(direct.slot).announce(true);
        if !self.is_open(direct) {
            drop(announced);
            direct_table.retain(|direct| self.is_open(direct));
            return 0;
        }
        let done = work(&|write| {
            let inside = direct.place(write.va, write.len, Access::REMOTE_WRITE);
            matches!(inside, Some(Inside::File(part)) if part.write(write.source))
        });
        if done > 0 {
            self.note_passed(direct, done);
        }
        done
    }

    #[inline]
    fn read(
        &self,
        path: &DirectPath,
        va: u64,
        len: usize,
        take: &mut dyn FnMut(&dyn Source) -> bool,
    ) -> bool {
        let what = (Access::REMOTE_READ, true);
        self.go_through(path, va, len, what, |inside, is_open| match inside {
            Inside::File(part) => take(&inside) && part.is_true(),
            // This process may have been stopped between the check and the read, and access revoked
            // meanwhile. Then it has read what the peer stored there later.
            Inside::Process(..) => take(&inside) && is_open(),
        })
    }

    fn is_wide(&self, path: &DirectPath, va: u64, len: usize, what: Access) -> bool {
        let direct_table = self.direct_table();
        direct_table.find(path).is_some_and(|direct| {
            matches!(direct.place(va, len, what), Some(Inside::File(_))) && self.is_open(direct)
        })
    }

    #[inline]
    fn passed(&self) -> u64 {
        self.area(self.slot).passed.load(Ordering::Relaxed)
    }
}

/// Direct access.
impl Registry {
    fn direct_table(&self) -> MutexGuard<'_, DirectAccessTable> {
        self.direct_table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` on `len` bytes at `va` through the direct access of a path. False: there is
    /// none, it does not cover these bytes or this operation, `work` failed, or another route is
    /// quicker. `is_awaited`: the consumer waits for the completion.
    #[inline]
    fn go_through(
        &self,
        path: &DirectPath,
        va: u64,
        len: usize,
        (what, is_awaited): (Access, bool),
        work: impl FnOnce(Inside<'_>, &dyn Fn() -> bool) -> bool,
    ) -> bool {
        let mut direct_table = self.direct_table();
        let Some(direct) = direct_table.find(path) else { return false };
        let Some(inside) = direct.place(va, len, what) else { return false };
        if let Inside::Process(..) = inside {
            let area = self.area(direct.slot);
            // A peer that polls takes a message from its ring sooner than the kernel would copy it.
            // But the peer may do other work before it acknowledges the message, so an awaited one
            // goes by direct access.
            let is_polling = !is_awaited && area.polling.load(Ordering::Relaxed) != 0;
            if is_polling || !direct_table.is_turn_of_one(|| self.passed()) {
                return false;
            }
        }
        // A process that revokes the access from now on sees the announcement and waits until
        // `announced` is dropped.
        let stores = matches!(inside, Inside::File(_)) && what == Access::REMOTE_WRITE;
        let announced = self.fetching_from(direct.slot).announce(stores);
        if !self.is_open(direct) {
            drop(announced);
            direct_table.retain(|direct| self.is_open(direct));
            return false;
        }
        if !work(inside, &|| self.is_open(direct)) {
            return false;
        }
        self.note_passed(direct, 1);
        true
    }

    /// Counts messages that have gone by direct access, and wakes the peer for them.
    #[inline]
    fn note_passed(&self, direct: &DirectAccess, count: usize) {
        let area = self.area(direct.slot);
        // Pairs with the fence of a peer thread that falls asleep: either that thread sees the new
        // count, or this thread sees that the peer sleeps.
        area.passed.fetch_add(count as u64, Ordering::SeqCst);
        let naps = area.napping.load(Ordering::SeqCst) != 0;
        if naps && area.napping.swap(0, Ordering::Relaxed) != 0 {
            direct.wake.ring();
        }
    }

    /// Whether direct access was granted since the last call of [`Registry::take_offers`].
    #[inline]
    pub(crate) fn has_offers(&self) -> bool {
        // The thread that grants direct access and the one that calls this are the same, or one
        // runs after the other.
        self.has_offers.load(Ordering::Relaxed)
    }

    /// Takes the direct access that was granted since the last call.
    #[inline]
    pub(crate) fn take_offers(&self) -> Vec<Offer> {
        if !self.has_offers() {
            return Vec::new();
        }
        self.has_offers.store(false, Ordering::Relaxed);
        self.offers.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Records direct access that the process in a slot has granted to this one.
    pub(crate) fn add_direct(
        &self,
        (slot, generation): (u8, u32),
        wake: &Arc<Wake>,
        offer: &Offer,
    ) {
        let mut direct_table = self.direct_table();
        direct_table.retain(|direct| self.is_open(direct));
        direct_table.add(offer, &self.host_memory(slot), (slot, generation), wake);
    }

    /// Forgets direct access that was revoked, which keeps memory of peers mapped.
    pub(crate) fn forget_revoked(&self) {
        let mut direct_table = self.direct_table();
        direct_table.retain(|direct| self.is_open(direct));
        direct_table.unmap_unused();
    }

    #[inline]
    fn is_open(&self, direct: &DirectAccess) -> bool {
        self.area(direct.slot).answers.load(Ordering::SeqCst) == direct.answers
            && self.generation_of(direct.slot) == Some(direct.generation)
    }
}

/// Publishes the address of the witness of this process, and its value.
pub(super) fn show_witness(area: &Slot, witness: &u64) {
    area.pid.store(std::process::id(), Ordering::Relaxed);
    area.witness[0].store(std::ptr::from_ref(witness).addr() as u64, Ordering::Relaxed);
    area.witness[1].store(*witness, Ordering::Relaxed);
}
