//! Memory of a program that is in a file already, because the program shares it with its own
//! processes.
//!
//! Peers can map such a file as they map those of the adapter (see `shared`), if this process can
//! still open it. The file remains the program's, which may truncate it (see `guard`).

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use nix::sys::stat::makedev;

use super::areas::{Area, areas};
use super::shared::{Entry, Files};

/// Shorter memory is not worth the search for its file.
const LEAST: usize = 4096;

/// Most files that are kept open for peers, because the program needs descriptors, too.
const MOST: usize = 256;

impl Files {
    /// Records that the `len` bytes at `base` are those of a file, as long as the entry lives, if
    /// they are shared memory; otherwise the error says why not.
    pub(super) fn map_shared(&self, base: u64, len: usize) -> io::Result<Entry> {
        let no = |why| io::Error::new(io::ErrorKind::Unsupported, why);
        if len < LEAST {
            return Err(no("it is too short to be worth it"));
        }
        if !self.has_room(len) || self.count_of_program() >= MOST {
            return Err(no("there are many already"));
        }
        let maps = std::fs::read_to_string("/proc/self/maps")?;
        let start = usize::try_from(base).map_err(|_| io::ErrorKind::InvalidInput)?;
        let area = areas(&maps).find(|area| area.range.contains(&start));
        let area = area.filter(|area| area.range.end - start >= len);
        let area = area.ok_or_else(|| no("it is not in one piece"))?;
        if !(area.rights.starts_with("rw") && area.rights.ends_with('s') && area.inode != 0) {
            return Err(no("it is not shared"));
        }
        let file = open(&area).ok_or_else(|| no("its file is not to be found"))?;
        let offset = area.offset + (start - area.range.start) as u64;
        self.list(file, offset, base, len).map(Entry::of_program)
    }
}

/// Opens the file of an area through one of three paths: a link of the kernel, which needs a
/// privilege, its name, or a descriptor of the program.
fn open(area: &Area<'_>) -> Option<File> {
    let range = &area.range;
    let link = format!("/proc/self/map_files/{:x}-{:x}", range.start, range.end);
    let named = [PathBuf::from(link), PathBuf::from(area.name)].into_iter();
    let descriptors = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let device = makedev(area.device.0, area.device.1);
    let is_it = |found: &Metadata| (found.dev(), found.ino()) == (device, area.inode);
    // Check before opening: other files may be anything, and opening them may have side effects.
    let mut paths = named.chain(descriptors.map(|entry| entry.path()));
    paths.find_map(|path| {
        std::fs::metadata(&path).ok().filter(is_it)?;
        let file = File::options().read(true).write(true).open(path).ok()?;
        file.metadata().ok().filter(is_it).map(|_| file)
    })
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use nix::fcntl::{FcntlArg, SealFlag, fcntl};
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

    use super::super::guard::{Guard, Watch};
    use super::super::peer_process::PeerProcess;
    use super::super::shared::Mapped;
    use super::*;
    use crate::sys::FileId;

    const PAGE: usize = 4096;

    /// Memory of a program: some pages of a file, from the second one on.
    struct Pages(std::ptr::NonNull<std::ffi::c_void>);

    impl Pages {
        const LEN: usize = 4 * PAGE;

        fn of(file: &File, flags: MapFlags) -> Self {
            file.set_len((PAGE + Self::LEN) as u64).unwrap();
            let len = NonZeroUsize::new(Self::LEN).unwrap();
            let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
            // SAFETY: the kernel chooses the address, so the new mapping replaces no other memory.
            Self(unsafe { mmap(None, len, prot, flags, file, PAGE as i64) }.unwrap())
        }

        fn at(&self, offset: usize) -> u64 {
            (self.0.addr().get() + offset) as u64
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            // SAFETY: the test owns it, and is over.
            unsafe { munmap(self.0, Self::LEN) }.unwrap();
        }
    }

    fn memory_file() -> File {
        File::from(memfd_create(c"a program", MFdFlags::MFD_ALLOW_SEALING).unwrap())
    }

    #[test]
    fn shared_memory_is_found_in_its_file() {
        let (files, file) = (Files::default(), memory_file());
        let pages = Pages::of(&file, MapFlags::MAP_SHARED);
        let entry = files.map_shared(pages.at(100), 2 * PAGE).unwrap();
        let place = files.place(pages.at(200), PAGE).expect("it is listed");
        let id = FileId::of(&file).unwrap();
        assert_eq!((place.file, place.offset), (id, 4096 + 200));
        assert_ne!(place.fd, std::os::fd::AsRawFd::as_raw_fd(&file).cast_unsigned());
        assert_eq!(files.place(pages.at(0), PAGE), None, "that was not registered");
        assert_eq!(files.count_of_program(), 1);
        drop(entry);
        assert_eq!(files.place(pages.at(200), PAGE), None);
        assert_eq!(files.count_of_program(), 0);

        let path = std::env::temp_dir().join(format!("feroce-adopt-{}", std::process::id()));
        let named = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        let pages = Pages::of(&named, MapFlags::MAP_SHARED);
        drop(named);
        let found = files.map_shared(pages.at(0), Pages::LEN);
        std::fs::remove_file(&path).unwrap();
        assert!(found.is_ok() && files.place(pages.at(0), Pages::LEN).is_some(), "by its name");
    }

    #[test]
    fn what_is_not_shared_is_not_adopted() {
        let (files, file) = (Files::default(), memory_file());
        let why = |at, len| files.map_shared(at, len).expect_err("refused").to_string();
        let pages = Pages::of(&file, MapFlags::MAP_PRIVATE);
        assert!(why(pages.at(0), Pages::LEN).contains("not shared"));
        let pages = Pages::of(&file, MapFlags::MAP_SHARED);
        assert!(why(pages.at(0), 100).contains("too short"));
        assert!(why(pages.at(0), 1 << 40).contains("in one piece"));
        assert_eq!(files.count_of_program(), 0);
        let kept: Vec<_> = (0..).map_while(|_| files.map_shared(pages.at(0), PAGE).ok()).collect();
        assert!((1..=MOST).contains(&kept.len()), "{}", kept.len());
        assert!(why(pages.at(0), PAGE).contains("many already"));
    }

    #[test]
    fn what_may_become_shorter_is_mapped_under_guard() {
        let (files, file) = (Files::default(), memory_file());
        let pages = Pages::of(&file, MapFlags::MAP_SHARED);
        let _entry = files.map_shared(pages.at(0), Pages::LEN).unwrap();
        let place = files.place(pages.at(0), 8).unwrap();
        let witness = Box::new(77_u64);
        let at = std::ptr::from_ref(&*witness).addr() as u64;
        let process = |guard| PeerProcess { pid: std::process::id(), witness: (at, 77), guard };
        assert!(Mapped::new(&process(None), place).is_none(), "without a guard");
        assert!(Mapped::new(&process(Some(&Blind)), place).is_none(), "the guard refuses");
        let region = Mapped::new(&process(Some(&Trusting)), place).expect("mapped").region;
        region.write_at(PAGE, b"hello").unwrap();
        // SAFETY: in bounds, and no thread writes there now.
        let there = unsafe { std::slice::from_raw_parts(pages.0.as_ptr().cast::<u8>(), 5) };
        assert_eq!(there, b"hello");
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
        assert!(Mapped::new(&process(None), place).is_some(), "it stays as long as it is");
    }

    /// A guard for files that are never truncated.
    #[derive(Debug)]
    struct Trusting;

    impl Guard for Trusting {
        fn watch(&self, _: u64, _: NonZeroUsize) -> Option<Box<dyn Watch>> {
            Some(Box::new(Self))
        }
    }

    impl Watch for Trusting {
        fn is_torn(&self) -> bool {
            false
        }
    }

    #[derive(Debug)]
    struct Blind;

    impl Guard for Blind {
        fn watch(&self, _: u64, _: NonZeroUsize) -> Option<Box<dyn Watch>> {
            None
        }
    }
}
