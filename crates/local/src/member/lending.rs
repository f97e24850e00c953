//! What a member has to do with loans and direct accesses: its own, and those of others.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

use feroce_mem::{Access, Reach, Region, Source};
use feroce_train::{DirectPath, HostMemory, Revocation, RevocationEpoch};
use feroce_wire::Qpn;

use super::{Member, Wake};
use crate::direct_access::{DirectAccess, DirectAccessTable, Inside, Offer};
use crate::guard::Guard;
use crate::layout::Slot;
use crate::loan::{Fetching, LenderProcess, Words, word_of};
use crate::shared::Files;
use crate::sys;

/// What others need who fetch from the memory of a member.
impl Member {
    /// The process of the member in a slot.
    pub(crate) fn host_memory(&self, slot: u8) -> LenderProcess {
        let area = self.area(slot);
        let [at, says] = [0, 1].map(|i: usize| area.witness[i].load(Ordering::Relaxed));
        let pid = area.pid.load(Ordering::Relaxed);
        LenderProcess { pid, witness: (at, says), guard: self.guard.get().copied() }
    }

    /// The words by which the member in a slot revokes loans.
    pub(crate) fn words_of(&self, slot: u8) -> Words<'_> {
        let area = self.area(slot);
        (&area.leases, &area.answers)
    }

    /// Where this member says that it fetches from the one in a slot.
    pub(crate) fn fetching_from(&self, slot: u8) -> Fetching<'_> {
        Fetching { word: &self.area(self.slot).fetching, from: Fetching::of(slot) }
    }

    /// Says that this member looks at its rings, and finds nothing.
    #[inline]
    pub(crate) fn show_polling(&self) {
        let polling = &self.area(self.slot).polling;
        if polling.load(Ordering::Relaxed) == 0 {
            polling.store(1, Ordering::Relaxed);
        }
    }

    /// Memory of this process that others can map.
    pub(crate) fn files(&self) -> &Files {
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

    /// From now on, files of others that may become shorter are mapped, too, and `guard` sees to it
    /// that this process does not end with them.
    pub fn guard_with(&self, guard: &'static dyn Guard) {
        // Whoever was first is as good.
        let _ = self.guard.set(guard);
    }

    /// `len` bytes of the program as a region that other members can map, if they are memory that
    /// it shares already; or the reason why they are not.
    ///
    /// # Safety
    /// As for [`Region::from_raw`].
    pub unsafe fn map_shared(&self, base: *mut u8, len: usize) -> io::Result<Arc<Region>> {
        let entry = self.files.map_shared(base.addr() as u64, len)?;
        // SAFETY: as the caller says.
        Ok(unsafe { Region::from_raw(base, len, Some(Box::new(entry))) })
    }

    /// `len` bytes of the program as a region, their whole pages made shareable in place, so that
    /// what is lent from there is copied without the kernel; or the reason why not.
    ///
    /// # Safety
    /// As for [`Region::from_raw`]. In addition nobody writes to the bytes until this returns, and
    /// nobody minds that a child of a fork has them in common with its parent.
    pub unsafe fn remap_shared(&self, base: *mut u8, len: usize) -> io::Result<Arc<Region>> {
        // SAFETY: as the caller says; the region keeps the entry and not the other way round.
        let entry = unsafe { self.files.remap_shared(base, len) }?;
        // SAFETY: as the caller says; the exchanged pages are as readable and writable.
        Ok(unsafe { Region::from_raw(base, len, Some(Box::new(entry))) })
    }
}

impl HostMemory for Member {
    fn revocation_epoch(&self) -> RevocationEpoch {
        RevocationEpoch(self.revoked.load(Ordering::Relaxed))
    }

    fn revoke_from(&self, peer: Qpn) {
        self.direct_table().forget(peer);
        self.revoke(&self.area(self.slot).leases[word_of(peer)]);
    }

    fn revoke_answers(&self) {
        self.revoke(&self.area(self.slot).answers);
    }

    fn is_quiet(&self, revocation: Revocation) -> bool {
        self.has_finished(revocation)
    }

    fn open(&self, way: &DirectPath, reach: &Reach) {
        let answers = self.area(self.slot).answers.load(Ordering::Relaxed);
        let offer = Offer::new(*way, *reach, &self.files, answers);
        self.offers.lock().unwrap_or_else(PoisonError::into_inner).push(offer);
        self.has_offers.store(true, Ordering::Relaxed);
    }

    #[inline]
    fn write(
        &self,
        way: &DirectPath,
        va: u64,
        len: usize,
        source: &dyn Source,
        is_awaited: bool,
    ) -> bool {
        let what = (Access::REMOTE_WRITE, is_awaited);
        self.go_through(way, va, len, what, |inside, is_open| match inside {
            Inside::File(part) => part.write(source),
            Inside::Process(process, at) => {
                process.write(at, (len, source), &self.area(self.slot).aim, is_open)
            }
        })
    }

    #[inline]
    fn read(
        &self,
        way: &DirectPath,
        va: u64,
        len: usize,
        take: &mut dyn FnMut(&dyn Source) -> bool,
    ) -> bool {
        let what = (Access::REMOTE_READ, true);
        self.go_through(way, va, len, what, |inside, is_open| match inside {
            Inside::File(part) => take(&inside) && part.is_true(),
            // One that was stopped meanwhile may have read what came to be there.
            Inside::Process(..) => take(&inside) && is_open(),
        })
    }

    fn is_wide(&self, way: &DirectPath, va: u64, len: usize, what: Access) -> bool {
        let direct_table = self.direct_table();
        direct_table.find(way).is_some_and(|direct| {
            matches!(direct.place(va, len, what), Some(Inside::File(_))) && self.is_open(direct)
        })
    }

    fn passed(&self) -> u64 {
        self.area(self.slot).passed.load(Ordering::Relaxed)
    }
}

/// Direct access.
impl Member {
    fn direct_table(&self) -> MutexGuard<'_, DirectAccessTable> {
        self.direct_table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something that may be awaited to `len` bytes at `va` behind the direct access of a way.
    /// False: there is none, it does not lead there or not for that, it could not be done, or there
    /// is a quicker way.
    #[inline]
    fn go_through(
        &self,
        way: &DirectPath,
        va: u64,
        len: usize,
        (what, is_awaited): (Access, bool),
        work: impl FnOnce(Inside<'_>, &dyn Fn() -> bool) -> bool,
    ) -> bool {
        let mut direct_table = self.direct_table();
        let Some(direct) = direct_table.find(way) else { return false };
        let Some(inside) = direct.place(va, len, what) else { return false };
        let area = self.area(direct.slot);
        if let Inside::Process(..) = inside {
            // Whoever polls takes what is in its ring sooner than the kernel copies it; but it may
            // do something else before it says that it has.
            let is_polling = !is_awaited && area.polling.load(Ordering::Relaxed) != 0;
            if is_polling || !direct_table.is_turn_of_one(|| self.passed()) {
                return false;
            }
        }
        // A process that shuts it from now on waits until this is done.
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
        // Pairs with the fence of whoever falls asleep: either it sees the count, or we see it
        // sleep.
        area.passed.fetch_add(1, Ordering::SeqCst);
        let naps = area.napping.load(Ordering::SeqCst) != 0;
        if naps && area.napping.swap(0, Ordering::Relaxed) != 0 {
            direct.wake.ring();
        }
        true
    }

    /// Whether direct accesses were opened since they were last asked for.
    #[inline]
    pub(crate) fn has_offers(&self) -> bool {
        // Whoever opens them and whoever asks are the same, or follow each other.
        self.has_offers.load(Ordering::Relaxed)
    }

    /// Direct access granted since this was last asked.
    #[inline]
    pub(crate) fn take_offers(&self) -> Vec<Offer> {
        if !self.has_offers() {
            return Vec::new();
        }
        self.has_offers.store(false, Ordering::Relaxed);
        self.offers.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The member in a slot has opened direct access for this one.
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

    /// Forgets direct accesses that are shut, which keep memory of others.
    pub(crate) fn forget_revoked(&self) {
        self.direct_table().retain(|direct| self.is_open(direct));
    }

    #[inline]
    fn is_open(&self, direct: &DirectAccess) -> bool {
        self.area(direct.slot).answers.load(Ordering::SeqCst) == direct.answers
            && self.generation_of(direct.slot) == Some(direct.generation)
    }
}

/// Shows where the witness of this process is, and what it says.
pub(super) fn show_witness(area: &Slot, witness: &u64) {
    area.pid.store(std::process::id(), Ordering::Relaxed);
    area.witness[0].store(std::ptr::from_ref(witness).addr() as u64, Ordering::Relaxed);
    area.witness[1].store(*witness, Ordering::Relaxed);
}
