//! Direct access: memory of a process that its peers on the host may read and write by
//! themselves.
//!
//! A responder opens direct access to some memory for one requester on the host and with one key.
//! The requester hears of it through the ring. If the memory is in a file (see `shared`), it maps
//! that; if it is ordinary, the kernel copies short messages (see `distant`). From then on its
//! engine can ask whether a read or write may go that way. All direct accesses of a member are shut
//! at once, by the word that revokes loans in its answers: whoever goes by direct access says so
//! first, and looks at the word then.

use std::cell::Cell;
use std::sync::{Arc, Weak};

use feroce_mem::{Access, Landing, Reach, Source};
use feroce_train::{DirectPath, RxMeta};
use feroce_wire::{Qpn, Rkey};

use super::loan::LenderProcess;
use super::member::Wake;
use super::proc_mem::ProcMem;
use super::record::{self, META};
use super::shared::{Files, Mapped};
use crate::sys::{FileId, FilePlace};

/// Most direct accesses that a member remembers; one that would have the place of another takes it.
const PLACES: usize = 256;

/// Most direct accesses that wait to be told to those they are for.
const MAX_OFFERS: usize = 64;

/// How many messages go to processes one by one although nothing comes from others meanwhile, and
/// how many do not after that.
const ROW: u32 = 8;
const PAUSE: u32 = 256;

/// Bytes of a record after what every record has.
const TERMS: usize = 72;

/// direct access that was opened, and that its requester has not heard of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    pub(super) way: DirectPath,
    reach: Reach,
    /// Where it is, if it is in a file.
    file: Option<FilePlace>,
    /// The word that shuts it, as it was when it was opened.
    answers: u32,
}

impl Offer {
    /// direct access to what a key reaches, or to that part of it which is in a file, if any is.
    pub(super) fn new(way: DirectPath, reach: Reach, files: &Files, answers: u32) -> Self {
        let Some((at, len, file)) = files.part(reach.at, reach.len) else {
            return Self { way, reach, file: None, answers };
        };
        let iova = reach.iova.wrapping_add(at - reach.at);
        Self { way, reach: Reach { iova, at, len, ..reach }, file: Some(file), answers }
    }

    /// Length of its record.
    pub(super) const RECORD_LEN: usize = META + TERMS;

    /// Writes its record; `out` is [`Offer::RECORD_LEN`] bytes.
    pub(super) fn write(&self, out: &mut [u8]) {
        let Some((head, terms)) = out.split_first_chunk_mut() else { return };
        let meta =
            RxMeta { src: self.way.to.0.into(), dst: self.way.from.0.into(), ..RxMeta::default() };
        record::write_direct_meta(meta, head);
        let (words, numbers) = terms.split_at_mut(24);
        // No file has the number zero.
        let file = self.file.unwrap_or_default();
        let small = [
            self.way.from.1.get(),
            self.way.to.1.get(),
            self.way.rkey.0,
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

    /// Reads what follows the meta data of its record; `None` if it is none.
    pub(super) fn read(meta: &RxMeta, terms: &[u8]) -> Option<Self> {
        let (words, numbers) = terms.split_at_checked(24)?;
        let word = |i: usize| Some(u32::from_ne_bytes(*words.get(4 * i..)?.first_chunk()?));
        let number = |i: usize| Some(u64::from_ne_bytes(*numbers.get(8 * i..)?.first_chunk()?));
        let way = DirectPath {
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
        Some(Self { way, reach, file, answers: word(4)? })
    }
}

/// Grants of direct access that their peers have not been told of yet.
#[derive(Debug, Default)]
pub(super) struct Offers(Vec<Offer>);

impl Offers {
    /// One that is too many is opened again when its peer comes again.
    pub(super) fn push(&mut self, offer: Offer) {
        if self.0.len() < MAX_OFFERS {
            self.0.push(offer);
        }
    }

    pub(super) fn take(&mut self) -> Vec<Offer> {
        std::mem::take(&mut self.0)
    }
}

/// direct access that this member may go through.
#[derive(Debug)]
pub(super) struct DirectAccess {
    way: DirectPath,
    /// Whose memory it leads to, and which generation of that.
    pub(super) slot: u8,
    pub(super) generation: u32,
    /// What the word must be that shuts it.
    pub(super) answers: u32,
    /// Wakes whoever may wait for what is written there.
    pub(super) wake: Arc<Wake>,
    iova: u64,
    len: usize,
    access: Access,
    behind: Behind,
}

/// What is behind direct access, and where in it the first byte is.
#[derive(Debug)]
enum Behind {
    File(Arc<Mapped>, usize),
    Process(Arc<ProcMem>, u64),
}

impl DirectAccess {
    /// `len` bytes at `va`, if that may be done to all of them.
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

/// Memory behind direct access.
#[derive(Clone, Copy, Debug)]
pub(super) enum Inside<'a> {
    File(Part<'a>),
    /// Of a process, from an address on.
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

    /// Whether it is as it should be.
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

/// The direct accesses that a member may go through.
#[derive(Debug, Default)]
pub(super) struct DirectAccessTable {
    places: Vec<Option<Box<DirectAccess>>>,
    /// Files of others that are mapped as long as direct access leads there.
    maps: Vec<(FileId, Weak<Mapped>)>,
    /// Processes whose memory is open as long as direct access leads there, by slot and generation.
    processes: Vec<((u8, u32), Weak<ProcMem>)>,
    /// How many messages in a row were to go to processes, and what others had sent when that was
    /// last asked.
    row: Cell<(u32, u64)>,
}

impl DirectAccessTable {
    /// Remembers direct access that a member has opened, if it can be used.
    pub(super) fn add(
        &mut self,
        offer: &Offer,
        process: &LenderProcess,
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
        // What is in a file that may not be mapped is memory as any other.
        let open = |direct_table: &mut Self| direct_table.open(process, (slot, generation));
        let behind = file.or_else(|| open(self).map(|open| Behind::Process(open, at)));
        let Some(behind) = behind else { return };
        self.places.resize_with(PLACES, || None);
        self.places[place_of(&offer.way)] = Some(Box::new(DirectAccess {
            way: offer.way,
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

    /// Maps a file of another process, unless it is, or something of it was missing.
    fn map(&mut self, process: &LenderProcess, place: FilePlace) -> Option<Arc<Mapped>> {
        self.maps.retain(|(_, map)| map.strong_count() > 0);
        let known = self.maps.iter().find(|(file, _)| *file == place.file);
        if let Some(map) = known.and_then(|(_, map)| map.upgrade()) {
            return (!map.is_torn()).then_some(map);
        }
        let map = Arc::new(Mapped::new(process, place)?);
        self.maps.push((place.file, Arc::downgrade(&map)));
        Some(map)
    }

    /// Opens the memory of another process, unless it is.
    fn open(&mut self, process: &LenderProcess, who: (u8, u32)) -> Option<Arc<ProcMem>> {
        self.processes.retain(|(_, open)| open.strong_count() > 0);
        let known = self.processes.iter().find(|(known, _)| *known == who);
        if let Some(open) = known.and_then(|(_, open)| open.upgrade()) {
            return Some(open);
        }
        let open = Arc::new(ProcMem::open(process)?);
        self.processes.push((who, Arc::downgrade(&open)));
        Some(open)
    }

    /// Whether a message may go to a process by itself. For many that are not answered that would
    /// take longer than to let the process fetch them. `passed` says how many others have sent, and
    /// is seldom asked, as others write it.
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

    /// The direct access for a way.
    #[inline]
    pub(super) fn find(&self, way: &DirectPath) -> Option<&DirectAccess> {
        self.places.get(place_of(way))?.as_deref().filter(|direct| direct.way == *way)
    }

    /// Forgets the direct accesses that are not worth keeping.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&DirectAccess) -> bool) {
        for place in &mut self.places {
            if place.as_deref().is_some_and(|direct| !keep(direct)) {
                *place = None;
            }
        }
    }

    /// Forgets the direct accesses to a queue pair.
    pub(super) fn forget(&mut self, peer: Qpn) {
        self.retain(|direct| direct.way.to.1 != peer);
    }
}

/// Where the direct access for a way is remembered.
#[inline]
fn place_of(way: &DirectPath) -> usize {
    let numbers = [way.from.1.get(), way.to.1.get(), way.rkey.0];
    let mixed = numbers
        .into_iter()
        .fold(0_u32, |all, number| (all ^ number).wrapping_mul(0x9e37_79b1).rotate_left(15));
    mixed as usize % PLACES
}
