//! Doors: memory of a process that its peers on the host may read and write by themselves.
//!
//! A responder opens a door to memory that is in a file (see `shared`), for one requester on the
//! host and with one key. The requester hears of it through the ring, maps the file, and from then
//! on its engine can ask whether a read or write may go that way. All doors of a member are shut at
//! once, by the word that revokes loans in its answers: whoever goes through a door says so first,
//! and looks at the word then.

use std::sync::{Arc, Weak};

use feroce_mem::{Access, Landing, Reach, Region, Source};
use feroce_train::{RxMeta, Way};
use feroce_wire::{Qpn, Rkey};

use super::loan::LenderProcess;
use super::member::Wake;
use super::record::{self, META};
use super::shared::{self, Files};
use crate::sys::FilePlace;

/// Most doors that a member remembers; one that would have the place of another takes it.
const PLACES: usize = 256;

/// Most doors that wait to be told to those they are for.
const MAX_OFFERS: usize = 64;

/// Bytes of a record after what every record has.
const TERMS: usize = 56;

/// A door that was opened, and that its requester has not heard of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    pub(super) way: Way,
    reach: Reach,
    file: FilePlace,
    /// The word that shuts it, as it was when it was opened.
    answers: u32,
}

impl Offer {
    /// A door to that part of what a key reaches which is in a file, if any is.
    pub(super) fn new(way: Way, reach: Reach, files: &Files, answers: u32) -> Option<Self> {
        let (at, len, file) = files.part(reach.at, reach.len)?;
        let iova = reach.iova.wrapping_add(at - reach.at);
        Some(Self { way, reach: Reach { iova, at, len, ..reach }, file, answers })
    }

    /// Length of its record.
    pub(super) const RECORD_LEN: usize = META + TERMS;

    /// Writes its record; `out` is [`Offer::RECORD_LEN`] bytes.
    pub(super) fn write(&self, out: &mut [u8]) {
        let Some((head, terms)) = out.split_first_chunk_mut() else { return };
        let meta = RxMeta { src: self.way.to.0, dst: self.way.from.0, ..RxMeta::default() };
        record::write_door_meta(meta, head);
        let (words, numbers) = terms.split_at_mut(24);
        let small = [
            self.way.from.1.get(),
            self.way.to.1.get(),
            self.way.rkey.0,
            self.reach.access.bits(),
            self.answers,
            self.file.fd,
        ];
        for (out, word) in words.chunks_exact_mut(4).zip(small) {
            out.copy_from_slice(&word.to_ne_bytes());
        }
        let large = [self.reach.iova, self.reach.len as u64, self.file.inode, self.file.offset];
        for (out, number) in numbers.chunks_exact_mut(8).zip(large) {
            out.copy_from_slice(&number.to_ne_bytes());
        }
    }

    /// Reads what follows the meta data of its record; `None` if it is none.
    pub(super) fn read(meta: &RxMeta, terms: &[u8]) -> Option<Self> {
        let (words, numbers) = terms.split_at_checked(24)?;
        let word = |i: usize| Some(u32::from_ne_bytes(*words.get(4 * i..)?.first_chunk()?));
        let number = |i: usize| Some(u64::from_ne_bytes(*numbers.get(8 * i..)?.first_chunk()?));
        let way = Way {
            from: (meta.dst, Qpn::new(word(0)?)),
            to: (meta.src, Qpn::new(word(1)?)),
            rkey: Rkey(word(2)?),
        };
        let access = Access::from_bits_truncate(word(3)?);
        let len = usize::try_from(number(1)?).ok()?;
        // Where it is in the other process is of no use here.
        let reach = Reach { iova: number(0)?, at: 0, len, access };
        let file = FilePlace { fd: word(5)?, inode: number(2)?, offset: number(3)? };
        Some(Self { way, reach, file, answers: word(4)? })
    }
}

/// Doors that wait to be told to those they are for.
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

/// A door that this member may go through.
#[derive(Debug)]
pub(super) struct Door {
    way: Way,
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
    /// The file, and where in it the first byte is.
    region: Arc<Region>,
    offset: usize,
}

impl Door {
    /// `len` bytes at `va`, if that may be done to all of them.
    #[inline]
    pub(super) fn place(&self, va: u64, len: usize, what: Access) -> Option<Inside<'_>> {
        let at = usize::try_from(va.checked_sub(self.iova)?).ok()?;
        let fits = len <= self.len && at <= self.len - len;
        let may = self.access.contains(what);
        (fits && may).then(|| Inside { region: &self.region, at: self.offset + at, len })
    }
}

/// Memory behind a door.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inside<'a> {
    pub(super) region: &'a Region,
    pub(super) at: usize,
    len: usize,
}

impl Source for Inside<'_> {
    fn fetch(&self, offset: usize, landing: &mut Landing<'_>) -> bool {
        let len = landing.len();
        let fits = len <= self.len && offset <= self.len - len;
        fits && self.region.land(self.at + offset, len, landing).is_ok()
    }
}

/// The doors that a member may go through.
#[derive(Debug, Default)]
pub(super) struct Doors {
    places: Vec<Option<Box<Door>>>,
    /// Files of others that are mapped as long as a door leads there, by number.
    maps: Vec<(u64, Weak<Region>)>,
}

impl Doors {
    /// Remembers a door that a member has opened, if it can be used.
    pub(super) fn add(
        &mut self,
        offer: &Offer,
        process: &LenderProcess,
        (slot, generation): (u8, u32),
        wake: &Arc<Wake>,
    ) {
        let Some(region) = self.map(process, offer.file) else { return };
        let Ok(offset) = usize::try_from(offer.file.offset) else { return };
        let Reach { iova, len, access, .. } = offer.reach;
        if len > region.len() || offset > region.len() - len {
            return;
        }
        self.places.resize_with(PLACES, || None);
        self.places[place_of(&offer.way)] = Some(Box::new(Door {
            way: offer.way,
            slot,
            generation,
            answers: offer.answers,
            wake: Arc::clone(wake),
            iova,
            len,
            access,
            region,
            offset,
        }));
    }

    /// Maps a file of another process, unless it is.
    fn map(&mut self, process: &LenderProcess, file: FilePlace) -> Option<Arc<Region>> {
        self.maps.retain(|(_, map)| map.strong_count() > 0);
        let known = self.maps.iter().find(|(inode, _)| *inode == file.inode);
        if let Some(map) = known.and_then(|(_, map)| map.upgrade()) {
            return Some(map);
        }
        let map = shared::map_to_write(process, file)?;
        self.maps.push((file.inode, Arc::downgrade(&map)));
        Some(map)
    }

    /// The door for a way.
    #[inline]
    pub(super) fn find(&self, way: &Way) -> Option<&Door> {
        self.places.get(place_of(way))?.as_deref().filter(|door| door.way == *way)
    }

    /// Forgets the doors that are not worth keeping.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&Door) -> bool) {
        for place in &mut self.places {
            if place.as_deref().is_some_and(|door| !keep(door)) {
                *place = None;
            }
        }
    }

    /// Forgets the doors to a queue pair.
    pub(super) fn forget(&mut self, peer: Qpn) {
        self.retain(|door| door.way.to.1 != peer);
    }
}

/// Where the door for a way is remembered.
#[inline]
fn place_of(way: &Way) -> usize {
    let numbers = [way.from.1.get(), way.to.1.get(), way.rkey.0];
    let mixed = numbers
        .into_iter()
        .fold(0_u32, |all, number| (all ^ number).wrapping_mul(0x9e37_79b1).rotate_left(15));
    mixed as usize % PLACES
}
