//! Remote payload: the record has only headers, and the receiver copies the payload from the memory
//! of the sender, in one copy.
//!
//! The record has the headers of one packet, which stands for a run of packets, and says where in
//! the memory of the sender the payload is. The sender leaves the payload unchanged until the peer
//! has responded. If it cannot, it *revokes* the payload: it changes a word in its area of the
//! registry. The record has the value that the word had before. A receiver that has fetched payload
//! compares the word again, and treats payload that was revoked meanwhile as lost.
//!
//! The kernel lets processes of one user read each other's memory unless a policy (such as Yama)
//! forbids it. The receiver tries once, when it opens the ring, and says in the ring whether the
//! sender may send remote payload. With every payload the receiver also reads the *witness* of the
//! sender, a random word in its memory whose address and value are in its area of the registry. If
//! the process has ended and another process has its process id, that value is not there.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU32, Ordering, fence};

use feroce_mem::{Landing, Source};
use feroce_train::{Payload, RemotePayload, RxMeta, RxTrain, Train};
use feroce_wire::{Bth, Qpn};

use super::peer_process::PeerProcess;
use super::record::{self, META};
use super::run::PacketRun;
use super::shared::{Files, Maps};
use crate::sys::{self, Extent, FileId, FilePlace};

/// Shorter payload is copied into the ring, because fetching it would take longer.
pub(super) const REMOTE_FROM: usize = 8 << 10;

/// Most bytes of several trains in one remote payload.
const REMOTE_MOST: usize = 1 << 20;

/// Most pieces of memory that one record describes.
const MAX_EXTENTS: usize = 8;

/// Words in an area of the registry that revoke remote payload. The destination queue pair selects
/// the word.
pub(super) const EPOCHS: usize = 64;

/// Bytes between the metadata that every record has and the extents.
const TERMS: usize = 24;
const EXTENT: usize = 48;

/// A run of packets, and the memory that its payload is in.
#[derive(Debug)]
pub(super) struct PayloadRecord<'a> {
    run: PacketRun<'a>,
    peer: Qpn,
    extents: Extents,
}

/// The pieces of memory that a payload is in.
#[derive(Clone, Copy, Debug, Default)]
struct Extents {
    all: [Extent; MAX_EXTENTS],
    count: usize,
}

impl Extents {
    fn as_slice(&self) -> &[Extent] {
        &self.all[..self.count]
    }

    /// Appends a piece. False: there are too many.
    fn push(&mut self, extent: Extent) -> bool {
        if let Some(last) = self.all[..self.count].last_mut()
            && last.at.checked_add(last.len as u64) == Some(extent.at)
            && last.file.map(|place| place.plus(last.len)) == extent.file
        {
            last.len += extent.len;
            return true;
        }
        let Some(place) = self.all.get_mut(self.count) else { return false };
        *place = extent;
        self.count += 1;
        true
    }

    fn push_payload(&mut self, payload: &Payload, files: &Files) -> bool {
        let grants = match payload {
            Payload::One(grant) => std::slice::from_ref(grant),
            Payload::Gather(grants) => grants,
            _ => return false,
        };
        grants.iter().filter(|grant| !grant.is_empty()).all(|grant| match grant.place() {
            Some((at, len)) => self.push(Extent { at, len, file: files.place(at, len) }),
            None => false,
        })
    }
}

impl<'a> PayloadRecord<'a> {
    /// The run that `trains` begin with, and how many trains it has; `None` if the payload is not
    /// worth sending as remote payload, or cannot be.
    pub(super) fn new(trains: &'a [Train], files: &Files) -> Option<(Self, usize)> {
        let (first, others) = trains.split_first()?;
        if first.payload_len < first.stride.min(REMOTE_FROM) {
            // A single short packet.
            return None;
        }
        let mut run = first.revocation_epoch.and_then(|_| PacketRun::new(first))?;
        let mut extents = Extents::default();
        if !extents.push_payload(&first.payload, files) {
            return None;
        }
        let mut taken = 1;
        for next in others {
            let (longer, mut more) = (run.and(next), extents);
            match longer.filter(|run| run.payload_len() <= REMOTE_MOST) {
                Some(longer) if more.push_payload(&next.payload, files) => {
                    (run, extents) = (longer, more);
                }
                _ => break,
            }
            taken += 1;
        }
        let peer = first.bth.dest_qp;
        (run.payload_len() >= REMOTE_FROM).then_some((Self { run, peer, extents }, taken))
    }

    /// The index of the word in an area that revokes it.
    pub(super) fn word(&self) -> usize {
        word_of(self.peer)
    }

    /// Length of its record.
    pub(super) fn record_len(&self) -> usize {
        META + TERMS + self.extents.count * EXTENT + self.run.header_len()
    }

    /// Writes its record; `out` has the length that [`PayloadRecord::record_len`] says.
    /// `revocation_epoch` and `answers` are the present values of the words that revoke it.
    pub(super) fn write(
        &self,
        meta: RxMeta,
        (revocation_epoch, answers): (u32, u32),
        out: &mut [u8],
    ) {
        let Some((start, rest)) = out.split_first_chunk_mut() else { return };
        record::write_remote_meta(meta, self.run.header_len(), start);
        let (terms, rest) = rest.split_at_mut(TERMS);
        terms[..4].copy_from_slice(&self.run.packets().to_ne_bytes());
        terms[4..8].copy_from_slice(&(self.run.payload_len() as u32).to_ne_bytes());
        terms[8..12].copy_from_slice(&revocation_epoch.to_ne_bytes());
        terms[12..16].copy_from_slice(&answers.to_ne_bytes());
        terms[16..].copy_from_slice(&(self.extents.count as u64).to_ne_bytes());
        let (places, headers) = rest.split_at_mut(self.extents.count * EXTENT);
        for (place, extent) in places.chunks_exact_mut(EXTENT).zip(self.extents.as_slice()) {
            let file = extent.file.unwrap_or_default();
            let FileId { device, inode } = file.file;
            let (len, fd) = (extent.len as u64, u64::from(file.fd));
            let numbers = [extent.at, len, inode, device, file.offset, fd];
            for (out, number) in place.chunks_exact_mut(8).zip(numbers) {
                out.copy_from_slice(&number.to_ne_bytes());
            }
        }
        self.run.emit(headers);
    }
}

/// The index of the word in an area that revokes remote payload to a queue pair.
pub(super) fn word_of(peer: Qpn) -> usize {
    peer.get() as usize % EPOCHS
}

/// A remote payload that was received.
#[derive(Debug)]
pub(super) struct Received<'a> {
    host_memory: PeerProcess,
    extents: Extents,
    packets: u32,
    len: usize,
    headers: &'a [u8],
    /// The words that revoke it, and the values that they must have.
    revocation_epoch: (&'a AtomicU32, u32),
    answers: Option<(&'a AtomicU32, u32)>,
    /// The word in which this process announces a copy.
    fetching: Fetching<'a>,
    /// Files of the sending process that are mapped here.
    maps: &'a RefCell<Maps>,
    /// No attempt to fetch it through the kernel has failed.
    is_good: Cell<bool>,
    /// The payload was copied from a file that is mapped here.
    is_mapped: Cell<bool>,
}

/// The words of an area that revoke remote payload: by queue pair, and that of all responses.
pub(super) type Words<'a> = (&'a [AtomicU32; EPOCHS], &'a AtomicU32);

/// The word with which a process announces from whose memory, or with direct access to whose
/// memory, it is copying.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fetching<'a> {
    pub(super) word: &'a AtomicU32,
    /// How the word names the process that the memory belongs to.
    pub(super) from: u32,
}

/// The bits of the word that name the owner of the memory.
const OWNER_BITS: u32 = 0xff;
/// The bit that says that the announcing process writes with its own instructions, and not through
/// the kernel.
const STORES: u32 = 0x100;
/// The other bits count announcements, so that a process that revokes can tell one copy from the
/// next.
const ONE_COPY: u32 = 0x200;

impl<'a> Fetching<'a> {
    /// The bits that name the process in a slot.
    pub(super) fn of(slot: u8) -> u32 {
        u32::from(slot) + 1
    }

    /// Whether a word says that memory of the process in a slot is being copied.
    pub(super) fn is_from(word: u32, slot: u8) -> bool {
        word & OWNER_BITS == Self::of(slot)
    }

    /// Whether a word says that the process writes with its own instructions.
    pub(super) fn stores(word: u32) -> bool {
        word & STORES != 0
    }

    /// Announces a copy; `stores`: this process writes with its own instructions.
    pub(super) fn announce(self, stores: bool) -> Announced<'a> {
        let last = self.word.load(Ordering::Relaxed) & !(OWNER_BITS | STORES);
        let count = last.wrapping_add(ONE_COPY);
        let how = if stores { STORES } else { 0 };
        // Pairs with the fence in `Registry::revoke`: either that call sees this announcement, or
        // this process sees the revocation. An exchange takes less time than a store and a fence.
        self.word.swap(count | how | self.from, Ordering::SeqCst);
        Announced(self.word, count)
    }
}

/// Ends the announcement when it is dropped.
pub(super) struct Announced<'a>(&'a AtomicU32, u32);

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        self.0.store(self.1, Ordering::Release);
    }
}

impl<'a> Received<'a> {
    /// Parses what follows the metadata in the record of a remote payload; `None` if it is
    /// malformed.
    pub(super) fn read(
        host_memory: PeerProcess,
        maps: &'a RefCell<Maps>,
        words: Words<'a>,
        fetching: Fetching<'a>,
        bytes: &'a [u8],
    ) -> Option<Self> {
        let (terms, rest) = bytes.split_at_checked(TERMS)?;
        let word = |at: usize| Some(u32::from_ne_bytes(*terms.get(at..)?.first_chunk()?));
        let (packets, len) = (word(0)?, word(4)? as usize);
        let count = usize::try_from(word(16)?).ok().filter(|count| *count <= MAX_EXTENTS)?;
        let (places, headers) = rest.split_at_checked(count * EXTENT)?;
        let mut extents = Extents { count, ..Extents::default() };
        let mut total = 0_usize;
        for (extent, place) in extents.all.iter_mut().zip(places.chunks_exact(EXTENT)) {
            let number = |at: usize| Some(u64::from_ne_bytes(*place.get(at..)?.first_chunk()?));
            let file = FileId { inode: number(16)?, device: number(24)? };
            let fd = u32::try_from(number(40)?).ok()?;
            let place = FilePlace { file, offset: number(32)?, fd };
            *extent = Extent {
                at: number(0)?,
                len: usize::try_from(number(8)?).ok()?,
                file: (file.inode != 0).then_some(place),
            };
            total = total.checked_add(extent.len)?;
        }
        let (bth, _) = Bth::parse(headers).ok()?;
        let (_, op) = bth.opcode.decode()?;
        (total == len && packets > 0).then_some(Self {
            host_memory,
            extents,
            packets,
            len,
            headers,
            revocation_epoch: (&words.0[word_of(bth.dest_qp)], word(8)?),
            answers: if op.is_response() { Some((words.1, word(12)?)) } else { None },
            fetching,
            maps,
            is_good: Cell::new(true),
            is_mapped: Cell::new(false),
        })
    }

    /// The received train that it stands for.
    pub(super) fn train(&self, meta: RxMeta) -> RxTrain<'_> {
        let remote =
            RemotePayload { source: self, offset: 0, len: self.len, packets: self.packets };
        let (bytes, stride) = (self.headers, self.headers.len());
        RxTrain { meta, bytes, stride, trailer: 0, remote: Some(remote) }
    }

    /// Whether every attempt to fetch it through the kernel has succeeded.
    pub(super) fn is_good(&self) -> bool {
        self.is_good.get()
    }

    /// Whether it was copied from a file that is mapped here.
    pub(super) fn is_mapped(&self) -> bool {
        self.is_mapped.get()
    }

    fn is_revoked(&self) -> bool {
        // The loads of the copy come before the loads of the words.
        fence(Ordering::Acquire);
        let changed = |(word, was): (&AtomicU32, u32)| word.load(Ordering::SeqCst) != was;
        changed(self.revocation_epoch) || self.answers.is_some_and(changed)
    }

    /// The extents of `len` bytes, beginning at offset `from`.
    fn part(&self, from: usize, len: usize) -> Extents {
        let (mut part, mut skip, mut left) = (Extents::default(), from, len);
        for extent in self.extents.as_slice() {
            let skipped = skip.min(extent.len);
            let taken = (extent.len - skipped).min(left);
            (skip, left) = (skip - skipped, left - taken);
            if taken > 0 {
                let at = extent.at.wrapping_add(skipped as u64);
                let file = extent.file.map(|place| place.plus(skipped));
                part.push(Extent { at, len: taken, file });
            }
        }
        part
    }
}

impl Source for Received<'_> {
    fn fetch(&self, offset: usize, landing: &mut Landing<'_>) -> bool {
        // A process that revokes the payload from now on sees the announcement and waits until the
        // copy has ended.
        let _announced = self.fetching.announce(false);
        !self.is_revoked() && self.copy(offset, landing) && !self.is_revoked()
    }
}

impl Received<'_> {
    fn copy(&self, offset: usize, landing: &mut Landing<'_>) -> bool {
        let part = self.part(offset, landing.len());
        let mut maps = self.maps.borrow_mut();
        if maps.fetch(&self.host_memory, part.as_slice(), landing) {
            self.is_mapped.set(true);
            return true;
        }
        let witness = Extent { at: self.host_memory.witness.0, len: 8, file: None };
        let mut word = [0; 8];
        let mut extents = [Extent::default(); MAX_EXTENTS + 1];
        extents[..part.count].copy_from_slice(part.as_slice());
        extents[part.count] = witness;
        let extents = &extents[..=part.count];
        let is_read = sys::read_process(self.host_memory.pid, extents, Some(landing), &mut word)
            && u64::from_ne_bytes(word) == self.host_memory.witness.1;
        self.is_good.set(self.is_good.get() && is_read);
        is_read
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words() -> ([AtomicU32; EPOCHS], AtomicU32) {
        (std::array::from_fn(|_| AtomicU32::new(0)), AtomicU32::new(0))
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_remote_payload_or_none(
            counts in any::<[u32; 2]>(),
            extents in proptest::collection::vec((any::<u64>(), 0_u64..5000, 0_u64..3), 0..12),
            tail in proptest::collection::vec(any::<u8>(), 0..80),
            from in 0_usize..10_000,
        ) {
            let mut bytes = vec![0; TERMS];
            bytes[..4].copy_from_slice(&counts[0].to_ne_bytes());
            let total: u64 = extents.iter().map(|(_, len, _)| len).sum();
            let len = if counts[1] % 2 == 0 { total as u32 } else { counts[1] };
            bytes[4..8].copy_from_slice(&len.to_ne_bytes());
            bytes[16..24].copy_from_slice(&(extents.len() as u64).to_ne_bytes());
            for (at, len, file) in &extents {
                let numbers = [*at, *len, *file, *at, *file];
                bytes.extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
            }
            bytes.extend(&tail);
            let (words, host_memory) = (words(), PeerProcess::default());
            let (maps, words) = (RefCell::default(), (&words.0, &words.1));
            let word = AtomicU32::new(0);
            let fetching = Fetching { word: &word, from: 1 };
            if let Some(record) = Received::read(host_memory, &maps, words, fetching, &bytes) {
                let part = record.part(from, 3000);
                let len: usize = part.as_slice().iter().map(|extent| extent.len).sum();
                prop_assert_eq!(len, record.len.saturating_sub(from).min(3000));
            }
        }
    }

    #[test]
    fn only_what_follows_in_its_file_as_well_is_one_piece() {
        let file = FileId { device: 1, inode: 2 };
        let piece = |at, offset, file| Extent {
            at,
            len: 100,
            file: Some(FilePlace { fd: 3, file, offset }),
        };
        let mut extents = Extents::default();
        assert!(extents.push(piece(1000, 5000, file)));
        assert!(extents.push(piece(1100, 5100, file)));
        assert_eq!(extents.as_slice().len(), 1);
        assert!(extents.push(piece(1200, 9000, file)), "another part of the file");
        assert!(extents.push(piece(1300, 9100, FileId { device: 2, ..file })), "another file");
        let lens: Vec<_> = extents.as_slice().iter().map(|extent| extent.len).collect();
        assert_eq!(lens, [200, 100, 100]);
    }

    #[test]
    fn this_process_can_be_read_and_only_where_it_is_known() {
        let witness = Box::new(0x1234_5678_u64);
        let at = std::ptr::from_ref(&*witness).addr() as u64;
        let host_memory =
            |at, says| PeerProcess { pid: std::process::id(), witness: (at, says), guard: None };
        assert!(host_memory(at, *witness).is_readable());
        assert!(!host_memory(at, 1).is_readable(), "another process");
        assert!(!host_memory(8, *witness).is_readable(), "nothing is there");
    }
}
