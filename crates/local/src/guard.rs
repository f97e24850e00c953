//! Files of peer processes that may be truncated while they are mapped here.
//!
//! A thread that touches a page beyond the end of a truncated file gets `SIGBUS`, which ends its
//! process. Signal handlers belong to a whole process, so a layer above this crate has to install
//! one. The handler puts other memory in the place of the missing page; from then on, that part of
//! the mapping does not show the file.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt as _;

/// Keeps this process alive when it touches mapped memory that is no longer in its file.
pub trait Guard: Send + Sync + std::fmt::Debug {
    /// From now on, a thread that touches a missing page of the `len` mapped bytes from `at` on
    /// finds zeros there, and continues. `None`: the guard can watch no further mapping.
    fn watch(&self, at: u64, len: NonZeroUsize) -> Option<Box<dyn Watch>>;
}

/// The guard watches a mapping as long as this lives.
pub trait Watch: Send + Sync + std::fmt::Debug {
    /// Whether the guard has replaced a page, so that not all of the memory is that of the file.
    fn is_torn(&self) -> bool;
}

/// A file that may be truncated, and the watch on its mapping; `None` for a file that cannot be.
#[derive(Debug)]
pub(super) struct Watched(Option<(File, Box<dyn Watch>)>);

impl Watched {
    /// Lets `guard` watch the mapping of a file; without a guard, the file cannot be truncated.
    pub(super) fn new(
        guard: Option<&'static dyn Guard>,
        file: File,
        at: u64,
        len: NonZeroUsize,
    ) -> io::Result<Self> {
        let watch = guard.map(|guard| guard.watch(at, len).ok_or(io::ErrorKind::QuotaExceeded));
        Ok(Self(watch.transpose()?.map(|watch| (file, watch))))
    }

    /// Whether no process can truncate the file.
    pub(super) fn is_sealed(&self) -> bool {
        self.0.is_none()
    }

    /// Whether the guard has replaced a page.
    pub(super) fn is_torn(&self) -> bool {
        self.0.as_ref().is_some_and(|(_, watch)| watch.is_torn())
    }

    /// Whether all bytes up to `end` are as they should be: they are those of the file, or they are
    /// beyond its end, where no process sees them. A page may be missing although the file is as
    /// long as before, because there was no memory left, or the file may have grown again.
    #[inline]
    pub(super) fn is_true_until(&self, end: u64) -> bool {
        let Some((file, watch)) = &self.0 else { return true };
        !watch.is_torn() || file.metadata().is_ok_and(|now| now.len() < end)
    }

    /// Whether the file may be truncated and now ends before `end`.
    pub(super) fn is_shorter_than(&self, end: u64) -> bool {
        let len = |file: &File| file.metadata().map(|now| now.len());
        self.0.as_ref().is_some_and(|(file, _)| len(file).is_ok_and(|len| len < end))
    }

    /// Reads `len` bytes at `offset` of a file that may be truncated, without its mapping: bytes
    /// beyond the end of the file read as zeros.
    pub(super) fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let (file, _) = self.0.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let mut bytes = vec![0; len];
        let mut done = 0;
        while done < len {
            match file.read_at(&mut bytes[done..], offset.saturating_add(done as u64)) {
                Ok(0) => break,
                Ok(some) => done += some,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(bytes)
    }

    /// Ends the watch. The owner calls this before it unmaps the memory, because the kernel may
    /// give its addresses to another mapping next.
    pub(super) fn end(&mut self) {
        self.0 = None;
    }
}
