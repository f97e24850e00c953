//! Files of others that may become shorter while they are mapped here.
//!
//! Whoever touches what is not there any more gets a signal, which ends its process. A signal is
//! the affair of a whole process, so somebody above has to take it.

use std::any::Any;
use std::io;
use std::num::NonZeroUsize;

/// Keeps this process alive when it touches mapped memory that is not in its file any more.
pub trait Guard: Send + Sync + std::fmt::Debug {
    /// From now on, whoever touches what is gone of `len` mapped bytes from `at` on finds zeros
    /// there, and goes on. `None`: nothing more can be watched.
    fn watch(&self, at: u64, len: NonZeroUsize) -> Option<Watch>;
}

/// Mapped memory is watched as long as this lives.
pub type Watch = Box<dyn Any + Send + Sync>;

/// Has some memory watched, if there has to be a guard.
pub(super) fn watch(
    guard: Option<&'static dyn Guard>,
    at: u64,
    len: NonZeroUsize,
) -> io::Result<Option<Watch>> {
    let watch = guard.map(|guard| guard.watch(at, len).ok_or(io::ErrorKind::QuotaExceeded));
    Ok(watch.transpose()?)
}
