//! Direct access: memory of a process that its peers on the host may read and write by themselves.
//!
//! A responder grants one requester on the host direct access to the memory behind one key. The
//! requester learns of it through the ring. If the memory is in a file (see `shared`), the
//! requester maps the file; if it is ordinary memory, the kernel copies short messages (see
//! `proc_mem`). From then on the engine of the requester can ask whether a READ or WRITE may go
//! that path. A process revokes all direct access that it has granted at once, by the word that
//! revokes the remote payload in its responses: a peer announces each direct access first, and
//! reads the word then.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use feroce_mem::{Access, DirectPath, Landing, Reach, Source};
use feroce_train::RxMeta;
use feroce_wire::{Qpn, Rkey};

use super::peer_process::PeerProcess;
use super::proc_mem::ProcMem;
use super::record::{self, META};
use super::registry::Wake;
use super::shared::{Files, Mapped};
use crate::sys::{FileId, FilePlace};

/// Places of the table of direct access.
const PLACES: usize = 1024;

/// Places that a path may have. One that finds all of them taken replaces another, which then goes
/// by packets for a while.
const WAYS: usize = 8;

const _: () = assert!(PLACES.is_power_of_two() && PLACES.is_multiple_of(WAYS), "sets of places");

/// How many files stay mapped although all direct access to them was revoked: a peer that registers
/// memory for each request anew grants access to the same files again.
const KEPT: usize = 16;

/// Most grants of direct access that wait to be announced.
const MAX_OFFERS: usize = 64;

/// How many consecutive messages the kernel copies to peer processes while no message arrives from
/// peers by direct access, and how many messages take the ring after that.
const ROW: u32 = 8;
const PAUSE: u32 = 256;

/// Bytes of the record after the metadata that every record has.
const TERMS: usize = 72;

/// Direct access that was granted, and that its requester has not heard of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    pub(super) path: DirectPath,
    reach: Reach,
    /// Where the memory is, if it is in a file.
    file: Option<FilePlace>,
    /// The value of the word that revokes it at the time of the grant.
    answers: u32,
}

impl Offer {
    /// Grants direct access to the memory that a key reaches, or to the part of it that is in a
    /// file, if any is.
    pub(super) fn new(path: DirectPath, reach: Reach, files: &Files, answers: u32) -> Self {
        let Some((at, len, file)) = files.part(reach.at, reach.len) else {
            return Self { path, reach, file: None, answers };
        };
        let iova = reach.iova.wrapping_add(at - reach.at);
        Self { path, reach: Reach { iova, at, len, ..reach }, file: Some(file), answers }
    }

    /// Length of its record.
    pub(super) const RECORD_LEN: usize = META + TERMS;

    /// Writes its record; `out` is [`Offer::RECORD_LEN`] bytes.
    pub(super) fn write(&self, out: &mut [u8]) {
        let Some((head, terms)) = out.split_first_chunk_mut() else { return };
        let meta = RxMeta {
            src: self.path.to.0.into(),
            dst: self.path.from.0.into(),
            ..RxMeta::default()
        };
        record::write_direct_meta(meta, head);
        let (words, numbers) = terms.split_at_mut(24);
        // No file has inode number zero.
        let file = self.file.unwrap_or_default();
        let small = [
            self.path.from.1.get(),
            self.path.to.1.get(),
            self.path.rkey.0,
            self.reach.access.bits(),
            self.answers,
            file.fd,
        ];
        for (out, word) in words.chunks_exact_mut(4).zip(small) {
            out.copy_from_slice(&word.to_ne_bytes());
        }
        let Reach { iova, at, len, .. } = self.reach;
        let FileId { device, inode } = file.file;
        let large = [iova, at, len as u64, inode, device, file.offset];
        for (out, number) in numbers.chunks_exact_mut(8).zip(large) {
            out.copy_from_slice(&number.to_ne_bytes());
        }
    }

    /// Parses what follows the metadata of its record; `None` if it is malformed.
    pub(super) fn read(meta: &RxMeta, terms: &[u8]) -> Option<Self> {
        let (words, numbers) = terms.split_at_checked(24)?;
        let word = |i: usize| Some(u32::from_ne_bytes(*words.get(4 * i..)?.first_chunk()?));
        let number = |i: usize| Some(u64::from_ne_bytes(*numbers.get(8 * i..)?.first_chunk()?));
        let path = DirectPath {
            from: (meta.dst.gid, Qpn::new(word(0)?)),
            to: (meta.src.gid, Qpn::new(word(1)?)),
            rkey: Rkey(word(2)?),
        };
        let access = Access::from_bits_truncate(word(3)?);
        let len = usize::try_from(number(2)?).ok()?;
        let reach = Reach { iova: number(0)?, at: number(1)?, len, access };
        let file = FileId { inode: number(3)?, device: number(4)? };
        let place = FilePlace { fd: word(5)?, file, offset: number(5)? };
        let file = (file.inode != 0).then_some(place);
        Some(Self { path, reach, file, answers: word(4)? })
    }
}

/// Grants of direct access that were not announced to their peers yet.
#[derive(Debug, Default)]
pub(super) struct Offers(Vec<Offer>);

impl Offers {
    /// A grant beyond the limit is dropped. The responder grants access again at the peer's next
    /// request.
    pub(super) fn push(&mut self, offer: Offer) {
        if self.0.len() < MAX_OFFERS {
            self.0.push(offer);
        }
    }

    pub(super) fn take(&mut self) -> Vec<Offer> {
        std::mem::take(&mut self.0)
    }
}

/// Direct access that this process may use.
#[derive(Debug)]
pub(super) struct DirectAccess {
    path: DirectPath,
    /// The slot of the process that the memory belongs to, and its generation.
    pub(super) slot: u8,
    pub(super) generation: u32,
    /// The value that the revoking word has while the access is valid.
    pub(super) answers: u32,
    /// Wakes the peer thread that may wait for what this process writes there.
    pub(super) wake: Arc<Wake>,
    iova: u64,
    len: usize,
    access: Access,
    behind: Behind,
}

/// The memory that direct access reaches, and where in it the first byte is.
#[derive(Debug)]
enum Behind {
    File(Arc<Mapped>, usize),
    Process(Arc<ProcMem>, u64),
}

impl DirectAccess {
    /// Whether the memory is in a file.
    pub(super) fn is_in_file(&self) -> bool {
        matches!(self.behind, Behind::File(..))
    }

    /// The memory of `len` bytes at `va`, if `what` is allowed for all of them.
    #[inline]
    pub(super) fn place(&self, va: u64, len: usize, what: Access) -> Option<Inside<'_>> {
        let at = usize::try_from(va.checked_sub(self.iova)?).ok()?;
        let fits = len <= self.len && at <= self.len - len;
        let may = self.access.contains(what);
        if !fits || !may {
            return None;
        }
        match &self.behind {
            Behind::File(map, start) => {
                let part = Part { map, at: start + at, len };
                part.is_true().then_some(Inside::File(part))
            }
            Behind::Process(process, start) => {
                let at = start.wrapping_add(at as u64);
                (len <= ProcMem::MOST).then_some(Inside::Process(process, at))
            }
        }
    }
}

/// Memory that direct access reaches.
#[derive(Clone, Copy, Debug)]
pub(super) enum Inside<'a> {
    File(Part<'a>),
    /// The memory of a process, beginning at an address.
    Process(&'a ProcMem, u64),
}

/// A part of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'a> {
    map: &'a Mapped,
    at: usize,
    len: usize,
}

impl Part<'_> {
    /// Writes all of it.
    #[inline]
    pub(super) fn write(&self, source: &dyn Source) -> bool {
        self.map.region.write_from(self.at, self.len, source, 0).is_ok() && self.is_true()
    }

    /// Whether its bytes are those of the file, or beyond the end of a truncated one.
    #[inline]
    pub(super) fn is_true(&self) -> bool {
        self.map.is_true(self.at, self.len)
    }
}

impl Source for Inside<'_> {
    fn fetch(&self, offset: usize, landing: &mut Landing<'_>) -> bool {
        match *self {
            Self::File(Part { map, at, len: all }) => {
                let len = landing.len();
                let fits = len <= all && offset <= all - len;
                fits && map.region.land(at + offset, len, landing).is_ok()
            }
            Self::Process(process, at) => process.read(at.wrapping_add(offset as u64), landing),
        }
    }
}

/// All direct access that a process may use.
#[derive(Debug, Default)]
pub(super) struct DirectAccessTable {
    places: Vec<Option<Box<DirectAccess>>>,
    /// Files of peers, mapped as long as an entry needs them.
    maps: Vec<(FileId, Weak<Mapped>)>,
    /// Files that were mapped or found last. Each is sealed: a peer that frees it gives its memory
    /// back to the system although it stays mapped here.
    kept: VecDeque<Arc<Mapped>>,
    /// Peer processes by slot and generation, whose memory is open as long as an entry needs it.
    processes: Vec<((u8, u32), Weak<ProcMem>)>,
    /// How many consecutive messages were to be copied by the kernel, and how many messages from
    /// peers had arrived by direct access at the last check.
    row: Cell<(u32, u64)>,
}

impl DirectAccessTable {
    /// Records direct access that a process has granted, if this process can use it.
    pub(super) fn add(
        &mut self,
        offer: &Offer,
        process: &PeerProcess,
        (slot, generation): (u8, u32),
        wake: &Arc<Wake>,
    ) {
        let Reach { iova, at, len, access } = offer.reach;
        let file = offer.file.and_then(|file| {
            let (map, offset) = (self.map(process, file)?, usize::try_from(file.offset).ok()?);
            let all = map.region.len();
            let fits = len <= all && offset <= all - len;
            fits.then_some(Behind::File(map, offset))
        });
        // Memory in a file that cannot be mapped is treated as ordinary memory.
        let open = |direct_table: &mut Self| direct_table.open(process, (slot, generation));
        let behind = file.or_else(|| open(self).map(|open| Behind::Process(open, at)));
        let Some(behind) = behind else { return };
        self.places.resize_with(PLACES, || None);
        let place = self.place_for(&offer.path);
        self.places[place] = Some(Box::new(DirectAccess {
            path: offer.path,
            slot,
            generation,
            answers: offer.answers,
            wake: Arc::clone(wake),
            iova,
            len,
            access,
            behind,
        }));
    }

    /// Maps a file of a peer process, unless it is mapped already. `None` also if the guard had to
    /// replace pages of that mapping.
    fn map(&mut self, process: &PeerProcess, place: FilePlace) -> Option<Arc<Mapped>> {
        self.maps.retain(|(_, map)| map.strong_count() > 0);
        let known = self.maps.iter().find(|(file, _)| *file == place.file);
        if let Some(map) = known.and_then(|(_, map)| map.upgrade()) {
            self.keep(&map);
            return (!map.is_torn()).then_some(map);
        }
        let map = Arc::new(Mapped::new(process, place)?);
        self.maps.push((place.file, Arc::downgrade(&map)));
        self.keep(&map);
        Some(map)
    }

    fn keep(&mut self, map: &Arc<Mapped>) {
        let is_last = self.kept.back().is_some_and(|last| Arc::ptr_eq(last, map));
        if is_last || !map.is_sealed() {
            return;
        }
        self.kept.retain(|kept| !Arc::ptr_eq(kept, map));
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(Arc::clone(map));
    }

    /// Unmaps the files that no direct access needs. A process does so when its peers change.
    pub(super) fn unmap_unused(&mut self) {
        self.kept.clear();
    }

    /// Opens the memory of a peer process, unless it is open already.
    fn open(&mut self, process: &PeerProcess, who: (u8, u32)) -> Option<Arc<ProcMem>> {
        self.processes.retain(|(_, open)| open.strong_count() > 0);
        let known = self.processes.iter().find(|(known, _)| *known == who);
        if let Some(open) = known.and_then(|(_, open)| open.upgrade()) {
            return Some(open);
        }
        let open = Arc::new(ProcMem::open(process)?);
        self.processes.push((who, Arc::downgrade(&open)));
        Some(open)
    }

    /// Whether the kernel may copy the next message to a peer process. For many messages without a
    /// response that takes longer than letting the peer take them from its ring. `passed` returns
    /// how many messages have arrived from peers by direct access; it is called seldom, because
    /// peers write that word and reading it misses the cache.
    #[inline]
    pub(super) fn is_turn_of_one(&self, passed: impl FnOnce() -> u64) -> bool {
        let (asked, had) = self.row.get();
        if asked < ROW {
            self.row.set((asked + 1, had));
            return true;
        }
        let has = passed();
        let is_answered = has != had;
        let is_over = is_answered || asked == ROW + PAUSE;
        self.row.set((if is_over { 1 } else { asked + 1 }, has));
        is_over
    }

    /// The direct access for a path.
    #[inline]
    pub(super) fn find(&self, path: &DirectPath) -> Option<&DirectAccess> {
        let mut all = places_of(path).filter_map(|place| self.places.get(place)?.as_deref());
        all.find(|direct| direct.path == *path)
    }

    /// Where direct access for a path is recorded: where it is already, or where none is. If there
    /// is no such place, another path loses its own, which is granted again some time.
    fn place_for(&self, path: &DirectPath) -> usize {
        let is_own =
            |place: &usize| self.places[*place].as_ref().is_some_and(|at| at.path == *path);
        let is_free = |place: &usize| self.places[*place].is_none();
        let found = places_of(path).find(is_own).or_else(|| places_of(path).find(is_free));
        found.unwrap_or_else(|| place_of(path))
    }

    /// Forgets every entry for which `keep` returns false.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&DirectAccess) -> bool) {
        for place in &mut self.places {
            if place.as_deref().is_some_and(|direct| !keep(direct)) {
                *place = None;
            }
        }
    }

    /// Forgets all direct access to a queue pair.
    pub(super) fn forget(&mut self, peer: Qpn) {
        self.retain(|direct| direct.path.to.1 != peer);
    }
}

/// The indices in the table that a path may have, from the first choice on.
#[inline]
fn places_of(path: &DirectPath) -> impl Iterator<Item = usize> {
    let first = place_of(path);
    (0..WAYS).map(move |way| first ^ way)
}

/// The first choice of an index for a path.
#[inline]
fn place_of(path: &DirectPath) -> usize {
    let numbers = [path.from.1.get(), path.to.1.get(), path.rkey.0];
    let mixed = numbers
        .into_iter()
        .fold(0_u32, |all, number| (all ^ number).wrapping_mul(0x9e37_79b1).rotate_left(15));
    mixed as usize % PLACES
}
