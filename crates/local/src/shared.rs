//! Memory that other processes of the host can map.
//!
//! Reading the memory of another process through the kernel costs more than copying it. Memory that
//! a process allocates is a file without a name, so its peers can map the file and copy from there.
//! They open it through the descriptors of the owning process (`/proc/<pid>/fd`), which the kernel
//! allows to the same processes that may read its memory. The file is sealed against truncation, so
//! mapped memory never disappears. Memory that a program shares by itself (see `map_shared`) may be
//! truncated (see `guard`).

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use feroce_mem::{Landing, Region};
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::statfs::{HUGETLBFS_MAGIC, fstatfs};

use super::guard::{Guard, Watched};
use super::map::{Mapping, ReadMap};
use super::peer_process::PeerProcess;
use crate::room;
use crate::sys::{Extent, FileId, FilePlace};

/// Most files of one peer that stay mapped.
const MAX_MAPS: usize = 64;

/// From this length on, memory always gets a descriptor of its own.
const LONG: usize = 64 << 10;

/// How many shorter allocations get one.
const MAX_SHORT: usize = 64;

/// The seals that fix the length of a file; no process can remove them.
const SEALS: SealFlag = SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW);

/// The files that a process has allocated memory in.
#[derive(Clone, Debug, Default)]
pub(super) struct Files(Arc<Shelf>);

#[derive(Debug, Default)]
struct Shelf {
    all: RwLock<Vec<Listed>>,
    /// A stopped peer process may still write to a file although its right has ended.
    has_late_writer: AtomicBool,
    /// How many files belong to the program, which keeps them after the registration has ended.
    of_program: AtomicUsize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Listed {
    base: u64,
    len: usize,
    fd: u32,
    file: FileId,
    /// The offset of the first byte in the file.
    offset: u64,
}

impl Files {
    /// Allocates `len` bytes of zeros. It is an error if the allocation is short and there are many
    /// short ones already, because the number of descriptors of a process is limited.
    pub(super) fn alloc(&self, len: usize) -> io::Result<Arc<Region>> {
        let len = NonZeroUsize::new(len).ok_or(io::ErrorKind::InvalidInput)?;
        if !self.has_room(len.get()) {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let file = new_file("feroce", len.get())?;
        let mapping = Mapping::new(&file, len)?;
        let entry = self.list(file, 0, mapping.address(), len.get())?;
        Ok(mapping.into_region(Allocated(entry)))
    }

    /// Whether memory of this length may have a descriptor of its own.
    pub(super) fn has_room(&self, len: usize) -> bool {
        let all = self.0.all.read().unwrap_or_else(PoisonError::into_inner);
        len >= LONG || all.iter().filter(|listed| listed.len < LONG).count() < MAX_SHORT
    }

    /// Records that the `len` bytes at `base` are those of a file at `offset`, as long as the entry
    /// lives.
    pub(super) fn list(&self, file: File, offset: u64, base: u64, len: usize) -> io::Result<Entry> {
        let fd = u32::try_from(file.as_raw_fd()).map_err(|_| io::ErrorKind::InvalidData)?;
        let listed = Listed { base, len, fd, file: FileId::of(&file)?, offset };
        self.0.all.write().unwrap_or_else(PoisonError::into_inner).push(listed);
        Ok(Entry { file, listed, files: self.clone(), is_of_program: false })
    }

    /// How many listed files belong to the program.
    pub(super) fn count_of_program(&self) -> usize {
        self.0.of_program.load(Ordering::Relaxed)
    }

    /// Records that a peer process was stopped when it was about to write to a file, and may write
    /// when it continues.
    pub(super) fn expect_late_writer(&self) {
        self.0.has_late_writer.store(true, Ordering::Relaxed);
    }

    /// Whether a stopped peer process may still write to a file although its right has ended.
    pub(super) fn has_late_writer(&self) -> bool {
        self.0.has_late_writer.load(Ordering::Relaxed)
    }

    /// The place of some memory in a file, if all of it is in one of the files.
    pub(super) fn place(&self, at: u64, len: usize) -> Option<FilePlace> {
        let (start, part, place) = self.part(at, len)?;
        (start == at && part == len).then_some(place)
    }

    /// The first part of some memory that is in one of the files: its address, its length, and its
    /// place in the file.
    pub(super) fn part(&self, at: u64, len: usize) -> Option<(u64, usize, FilePlace)> {
        let end = at.checked_add(len as u64)?;
        let all = self.0.all.read().unwrap_or_else(PoisonError::into_inner);
        all.iter().find_map(|&Listed { base, len, fd, file, offset }| {
            let (start, end) = (at.max(base), end.min(base.checked_add(len as u64)?));
            let len = usize::try_from(end.checked_sub(start).filter(|len| *len > 0)?).ok()?;
            Some((start, len, FilePlace { fd, file, offset: offset + (start - base) }))
        })
    }
}

/// A file of `len` zeros that is in no directory, whose length no process can change. `/proc` shows
/// its name.
pub(super) fn new_file(name: &str, len: usize) -> io::Result<File> {
    room::may_have(len)?;
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let file = File::from(memfd_create(name, flags)?);
    file.set_len(len as u64)?;
    fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS))?;
    Ok(file)
}

/// A file in the list.
#[derive(Debug)]
pub(super) struct Entry {
    file: File,
    listed: Listed,
    files: Files,
    is_of_program: bool,
}

impl Entry {
    /// Marks the file as one that belongs to the program.
    pub(super) fn of_program(mut self) -> Self {
        self.is_of_program = true;
        self.files.0.of_program.fetch_add(1, Ordering::Relaxed);
        self
    }

    /// The list that the entry is in.
    pub(super) fn files(&self) -> &Files {
        &self.files
    }

    /// The memory: its address and length.
    pub(super) fn memory(&self) -> (u64, usize) {
        (self.listed.base, self.listed.len)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut all = self.files.0.all.write().unwrap_or_else(PoisonError::into_inner);
        all.retain(|listed| *listed != self.listed);
        self.files.0.of_program.fetch_sub(self.is_of_program.into(), Ordering::Relaxed);
    }
}

/// Dropped together with memory that was allocated.
#[derive(Debug)]
struct Allocated(Entry);

impl Drop for Allocated {
    fn drop(&mut self) {
        // A peer process that has the file mapped keeps the file. The hole gives the memory back;
        // no process sends remote payload from it any more.
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let _ = fallocate(&self.0.file, flags, 0, self.0.listed.len as libc::off_t);
    }
}

/// The files of a peer that are mapped here.
#[derive(Debug, Default)]
pub(super) struct Maps {
    /// `None` for files that cannot be mapped.
    all: Vec<(FileId, Option<ReadMap>)>,
}

impl Maps {
    /// Fills `landing` from memory in files of a process. False: some of it cannot be copied that
    /// way.
    pub(super) fn fetch(
        &mut self,
        process: &PeerProcess,
        parts: &[Extent],
        landing: &mut Landing<'_>,
    ) -> bool {
        if !parts.iter().all(|part| self.open(process, part)) {
            return false;
        }
        let is_torn = |part: &&Extent| self.find(part).is_some_and(|(map, _)| map.is_torn());
        let append = |part: &Extent, landing: &mut Landing<'_>| {
            let map = self.find(part);
            map.is_some_and(|(map, offset)| map.append(offset, part.len, landing))
        };
        loop {
            let torn = parts.iter().filter(is_torn).count();
            landing.restart();
            if !parts.iter().all(|part| append(part, landing)) {
                return false;
            }
            // The guard has replaced a page during the copy: the next round reads that file
            // instead. The copy must not fall back to the owning process: that cannot read the
            // missing part either, and would end if it copied it.
            if parts.iter().filter(is_torn).count() == torn {
                return true;
            }
        }
    }

    /// Maps the file that some memory is in, unless it is mapped. False: that is impossible.
    fn open(&mut self, process: &PeerProcess, part: &Extent) -> bool {
        let Some(place) = part.file else { return false };
        if !self.all.iter().any(|(file, _)| *file == place.file) {
            if self.all.len() == MAX_MAPS {
                self.all.remove(0);
            }
            self.all.push((place.file, map(process, place)));
        }
        self.find(part).is_some()
    }

    fn find(&self, part: &Extent) -> Option<(&ReadMap, u64)> {
        let place = part.file?;
        let (_, map) = self.all.iter().find(|(file, _)| *file == place.file)?;
        Some((map.as_ref()?, place.offset))
    }
}

/// Maps a file of a process for reading.
fn map(process: &PeerProcess, place: FilePlace) -> Option<ReadMap> {
    let (file, len, guard) = open(process, place, false)?;
    ReadMap::new(file, len, guard).ok()
}

/// A file of a process that is mapped for reading and writing.
#[derive(Debug)]
pub(super) struct Mapped {
    /// Dropped before the memory is unmapped.
    watched: Watched,
    pub(super) region: Arc<Region>,
}

impl Mapped {
    /// Maps a file, if that is possible.
    pub(super) fn new(process: &PeerProcess, place: FilePlace) -> Option<Self> {
        let (file, len, guard) = open(process, place, true)?;
        let mapping = Mapping::new(&file, len).ok()?;
        let watched = Watched::new(guard, file, mapping.address(), len).ok()?;
        Some(Self { watched, region: mapping.into_region(()) })
    }

    /// Whether no process can truncate the file.
    pub(super) fn is_sealed(&self) -> bool {
        self.watched.is_sealed()
    }

    /// Whether the guard has replaced pages of the mapping.
    pub(super) fn is_torn(&self) -> bool {
        self.watched.is_torn()
    }

    /// Whether `len` bytes at `at` are those of the file, or beyond the end of a truncated one.
    #[inline]
    pub(super) fn is_true(&self, at: usize, len: usize) -> bool {
        self.watched.is_true_until(at.saturating_add(len) as u64)
    }
}

/// Opens a file of a process: with no guard if no process can truncate it, otherwise with the guard
/// that it needs.
fn open(
    process: &PeerProcess,
    place: FilePlace,
    writes: bool,
) -> Option<(File, NonZeroUsize, Option<&'static dyn Guard>)> {
    let path = format!("/proc/{}/fd/{}", process.pid, place.fd);
    let file = File::options().read(true).write(writes).open(path).ok()?;
    let seals =
        fcntl(&file, FcntlArg::F_GET_SEALS).map_or(SealFlag::empty(), SealFlag::from_bits_retain);
    let guard = if seals.contains(SealFlag::F_SEAL_SHRINK) {
        None
    } else if fstatfs(&file).ok()?.filesystem_type() == HUGETLBFS_MAGIC {
        // The guard cannot replace huge pages one by one.
        return None;
    } else {
        Some(process.guard?)
    };
    // The process may have closed the file or have ended, so that its descriptor number or process
    // id belongs to another one.
    if FileId::of(&file).ok()? != place.file || !process.is_readable() {
        return None;
    }
    let len = usize::try_from(file.metadata().ok()?.len()).ok().and_then(NonZeroUsize::new)?;
    Some((file, len, guard))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::os::unix::fs::FileExt as _;

    use super::*;

    #[test]
    fn memory_is_found_in_its_file_as_long_as_it_lives() {
        let files = Files::default();
        let (one, two) = (files.alloc(10_000).unwrap(), files.alloc(5000).unwrap());
        let place = files.place(one.addr() + 100, 9900).expect("all of it is there");
        assert_eq!(place.offset, 100);
        assert_ne!(Some(place.file), files.place(two.addr(), 5000).map(|place| place.file));
        assert_eq!(files.place(one.addr() + 100, 9901), None, "beyond its end");
        assert_eq!(files.place(8, 8), None);
        let at = one.addr();
        drop(one);
        assert_eq!(files.place(at, 1), None);
        assert!(files.alloc(0).is_err());
        let short: Vec<_> = (0..MAX_SHORT - 1).map(|_| files.alloc(8).unwrap()).collect();
        assert!(files.alloc(8).is_err(), "one of 5000 bytes is there, too");
        assert!(files.alloc(LONG).is_ok());
        drop(short);
        assert!(files.alloc(8).is_ok());
    }

    #[test]
    fn only_the_file_that_is_meant_is_mapped() {
        let files = Files::default();
        let region = files.alloc(10_000).unwrap();
        region.write_at(5000, b"here").unwrap();
        let witness = Box::new(77_u64);
        let at = std::ptr::from_ref(&*witness).addr() as u64;
        let process = PeerProcess { pid: std::process::id(), witness: (at, 77), guard: None };
        let place = files.place(region.addr() + 5000, 4).unwrap();
        let extent = Extent { at: 0, len: 4, file: Some(place) };
        let fetch = |process: PeerProcess, extent| {
            let (target, parts) = (Region::alloc(4).unwrap(), [extent]);
            let source = Once(process, parts);
            let mut bytes = [0; 4];
            let fetched = target.write_from(0, 4, &source, 0).is_ok();
            target.read_at(0, &mut bytes).unwrap();
            fetched.then_some(bytes)
        };
        assert_eq!(fetch(process, extent), Some(*b"here"));
        let FileId { device, inode } = place.file;
        let others = [(device + 1, inode), (device, inode + 1)];
        for file in others.map(|(device, inode)| FileId { device, inode }) {
            let other = FilePlace { file, ..place };
            assert_eq!(fetch(process, Extent { file: Some(other), ..extent }), None);
        }
        let beyond = FilePlace { offset: 9999, ..place };
        assert_eq!(fetch(process, Extent { file: Some(beyond), ..extent }), None);
        let stranger = PeerProcess { witness: (at, 78), ..process };
        assert_eq!(fetch(stranger, extent), None);
    }

    /// A guard that reports every mapping as torn, so that nothing is read through a mapping.
    #[derive(Debug)]
    struct Torn;

    impl Guard for Torn {
        fn watch(&self, _: u64, _: NonZeroUsize) -> Option<Box<dyn crate::Watch>> {
            Some(Box::new(Self))
        }
    }

    impl crate::Watch for Torn {
        fn is_torn(&self) -> bool {
            true
        }
    }

    #[test]
    fn a_torn_mapping_is_read_through_its_file_and_what_is_missing_is_zeros() {
        let file = File::from(memfd_create(c"a program", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(4 * 4096).unwrap();
        let witness = Box::new(77_u64);
        let at = std::ptr::from_ref(&*witness).addr() as u64;
        let guard: Option<&'static dyn Guard> = Some(&Torn);
        let process = PeerProcess { pid: std::process::id(), witness: (at, 77), guard };
        let (fd, id) = (file.as_raw_fd().cast_unsigned(), FileId::of(&file).unwrap());
        let part = |offset| {
            let file = Some(FilePlace { fd, file: id, offset });
            // The address in the process is not mapped.
            Extent { at: 0, len: 4, file }
        };
        let (maps, target) = (RefCell::default(), Region::alloc(8).unwrap());
        let fetch = |parts| {
            target.write_at(0, &[0xee; 8]).unwrap();
            let mut bytes = [0; 8];
            target.write_from(0, 8, &Parts(process, parts, &maps), 0).unwrap();
            target.read_at(0, &mut bytes).unwrap();
            bytes
        };
        file.write_all_at(b"here", 100).unwrap();
        file.write_all_at(b"away", 3 * 4096).unwrap();
        let both = [part(3 * 4096), part(100)];
        assert_eq!(&fetch(both), b"awayhere");
        file.set_len(4096).unwrap();
        assert_eq!(&fetch(both), b"\0\0\0\0here");
        assert_eq!(&fetch([part(100), part(4094)]), b"here\0\0\0\0", "across the end");
        file.set_len(4 * 4096).unwrap();
        file.write_all_at(b"back", 3 * 4096).unwrap();
        assert_eq!(&fetch(both), b"backhere");
    }

    /// A source of two parts, whose files stay mapped.
    #[derive(Debug)]
    struct Parts<'a>(PeerProcess, [Extent; 2], &'a RefCell<Maps>);

    impl feroce_mem::Source for Parts<'_> {
        fn fetch(&self, _: usize, landing: &mut Landing<'_>) -> bool {
            self.2.borrow_mut().fetch(&self.0, &self.1, landing)
        }
    }

    /// A source that maps what it needs each time.
    #[derive(Debug)]
    struct Once(PeerProcess, [Extent; 1]);

    impl feroce_mem::Source for Once {
        fn fetch(&self, _: usize, landing: &mut Landing<'_>) -> bool {
            Maps::default().fetch(&self.0, &self.1, landing)
        }
    }
}
