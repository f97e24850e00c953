//! Polling threads that sleep briefly, and what wakes them.
//!
//! A napping thread sleeps on the link's descriptor, so that an arriving packet wakes it, and on
//! one of its own, so that a completion which another thread of the process causes wakes it as
//! well. Each napping thread has a descriptor of its own: with one for all of them, the first
//! thread that wakes up would take the event from the others. Descriptors are made when a thread
//! first naps, and reused; a device whose consumers do not poll has none.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use feroce_engine::CqId;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;

use super::Signal;

/// Threads of a device that nap.
#[derive(Debug, Default)]
pub(super) struct Naps {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    slots: Vec<Slot>,
    /// Queues with completions whose threads are not woken yet.
    due: Vec<CqId>,
}

/// A descriptor, and the queue whose thread sleeps on it.
#[derive(Debug)]
struct Slot {
    fd: Arc<EventFd>,
    sleeper: Option<CqId>,
}

impl Naps {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until `link` is readable, `cq` has a completion or `longest` is over. Calls
    /// `may_sleep` when a completion would wake this thread already.
    pub(super) fn sleep(
        &self,
        cq: CqId,
        link: BorrowedFd<'_>,
        longest: Duration,
        may_sleep: impl FnOnce() -> bool,
    ) {
        // Without a descriptor of its own the thread would sleep through completions.
        let Ok((slot, fd)) = self.claim(cq) else { return };
        if may_sleep() {
            let ready = |fd| PollFd::new(fd, PollFlags::POLLIN);
            let mut fds = [ready(link), ready(fd.as_fd())];
            // A signal only makes the nap shorter.
            let _ = ppoll(&mut fds, Some(TimeSpec::from(longest)), None);
        }
        // A wake-up that comes after this only makes the next nap shorter.
        let _ = fd.read();
        self.inner().slots[slot].sleeper = None;
    }

    fn claim(&self, cq: CqId) -> io::Result<(usize, Arc<EventFd>)> {
        // In a forked child, a thread that exists in the parent only may hold the lock for ever.
        let Ok(mut inner) = self.inner.try_lock() else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        let free = inner.slots.iter().position(|slot| slot.sleeper.is_none());
        let index = free.unwrap_or(inner.slots.len());
        if free.is_none() {
            let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
            let fd = Arc::new(EventFd::from_flags(flags)?);
            inner.slots.push(Slot { fd, sleeper: None });
        }
        let slot = &mut inner.slots[index];
        slot.sleeper = Some(cq);
        Ok((index, Arc::clone(&slot.fd)))
    }

    /// A queue has a completion; its threads are woken by the next [`Signal::signal`].
    pub(super) fn note(&self, cq: CqId) {
        self.inner().due.push(cq);
    }
}

impl Signal for Naps {
    fn signal(&self) {
        let mut inner = self.inner();
        let due = std::mem::take(&mut inner.due);
        let naps = |slot: &&Slot| slot.sleeper.is_some_and(|cq| due.contains(&cq));
        let fds: Vec<_> = inner.slots.iter().filter(naps).map(|slot| slot.fd.clone()).collect();
        // The threads that wake up need the lock.
        drop(inner);
        for fd in fds {
            // The write fails only if the counter is at its maximum, and then the descriptor is
            // readable, too.
            let _ = fd.write(1);
        }
    }
}
