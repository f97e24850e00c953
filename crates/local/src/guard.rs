//! Files of others that may become shorter while they are mapped here.
//!
//! Whoever touches what is not there any more gets a signal, which ends its process. A signal is
//! the affair of a whole process, so somebody above has to take it. It puts something else in the
//! place of what is missing; from then on, that part of the memory is not that of the file.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt as _;

/// Keeps this process alive when it touches mapped memory that is not in its file any more.
pub trait Guard: Send + Sync + std::fmt::Debug {
    /// From now on, whoever touches what is gone of `len` mapped bytes from `at` on finds zeros
    /// there, and goes on. `None`: nothing more can be watched.
    fn watch(&self, at: u64, len: NonZeroUsize) -> Option<Box<dyn Watch>>;
}

/// Mapped memory is watched as long as this lives.
pub trait Watch: Send + Sync + std::fmt::Debug {
    /// Whether something was missing, so that not all of the memory is that of the file.
    fn is_torn(&self) -> bool;
}

/// A file that may become shorter, and who watches its memory; or one that may not.
#[derive(Debug)]
pub(super) struct Watched(Option<(File, Box<dyn Watch>)>);

impl Watched {
    /// Has the memory of a file watched, if there has to be a guard.
    pub(super) fn new(
        guard: Option<&'static dyn Guard>,
        file: File,
        at: u64,
        len: NonZeroUsize,
    ) -> io::Result<Self> {
        let watch = guard.map(|guard| guard.watch(at, len).ok_or(io::ErrorKind::QuotaExceeded));
        Ok(Self(watch.transpose()?.map(|watch| (file, watch))))
    }

    /// Whether something was missing.
    pub(super) fn is_torn(&self) -> bool {
        self.0.as_ref().is_some_and(|(_, watch)| watch.is_torn())
    }

    /// Whether all up to `end` is as it should be: it is what others see, or it is not in the file,
    /// so that nobody sees it. Something may be missing although the file is as long as before, as
    /// there is no memory left, or it may be there again.
    #[inline]
    pub(super) fn is_true_until(&self, end: u64) -> bool {
        let Some((file, watch)) = &self.0 else { return true };
        !watch.is_torn() || file.metadata().is_ok_and(|now| now.len() < end)
    }

    /// Whether the file may become shorter and now ends before `end`.
    pub(super) fn is_shorter_than(&self, end: u64) -> bool {
        let len = |file: &File| file.metadata().map(|now| now.len());
        self.0.as_ref().is_some_and(|(file, _)| len(file).is_ok_and(|len| len < end))
    }

    /// Reads `len` bytes at `offset` of a file that may become shorter, without its memory: what
    /// the file does not have reads as zeros.
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

    /// Ends before the memory does: others may have its addresses next.
    pub(super) fn end(&mut self) {
        self.0 = None;
    }
}
