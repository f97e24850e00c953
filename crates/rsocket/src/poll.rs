//! Waiting on many sockets at once, together with descriptors of the kernel.

use std::sync::Arc;
use std::time::Duration;

use feroce::Errno;

use crate::socket::{self, Socket};
use crate::wakeup::{self, PROBE_AFTER, Waitable as _, Wakeup, readable};

/// How often a waiting thread checks all descriptors before it sleeps.
const SPINS: u32 = 20;

/// The descriptors of one call.
struct Set<'a> {
    entries: &'a mut [libc::pollfd],
    /// Sockets of this crate, by index into `entries`.
    sockets: Vec<(usize, Socket)>,
    /// Descriptors of the kernel, by index into `entries`.
    others: Vec<(usize, libc::pollfd)>,
}

impl<'a> Set<'a> {
    fn new(entries: &'a mut [libc::pollfd]) -> Self {
        let (mut sockets, mut others) = (Vec::new(), Vec::new());
        for (index, entry) in entries.iter().enumerate() {
            match socket::find(entry.fd) {
                Ok(socket) => sockets.push((index, socket)),
                Err(_) => others.push((index, *entry)),
            }
        }
        Self { entries, sockets, others }
    }

    /// Checks all descriptors; returns how many have events.
    fn check(&mut self) -> Result<usize, Errno> {
        for (index, socket) in &self.sockets {
            let entry = &mut self.entries[*index];
            entry.revents = socket.events(entry.events);
        }
        if !self.others.is_empty() {
            let mut fds: Vec<_> = self.others.iter().map(|(_, entry)| *entry).collect();
            wakeup::sleep(&mut fds, Some(Duration::ZERO))?;
            for ((index, _), found) in self.others.iter().zip(fds) {
                self.entries[*index].revents = found.revents;
            }
        }
        Ok(self.entries.iter().filter(|entry| entry.revents != 0).count())
    }

    /// Sleeps until a descriptor may have events. Checks all once more after it has registered
    /// its wakeup, because progress before that woke no thread.
    fn sleep(&mut self, wakeup: &Arc<Wakeup>, limit: Duration) -> Result<usize, Errno> {
        let watched: Vec<_> = self.sockets.iter().map(|(_, socket)| socket.watch(wakeup)).collect();
        let found = self.check();
        let timed_out = match found {
            Ok(0) => {
                let own = [readable(wakeup.fd())];
                let ours = watched.iter().flat_map(|set| set.fds());
                let others = self.others.iter().map(|(_, entry)| *entry);
                let mut fds: Vec<_> = own.into_iter().chain(ours).chain(others).collect();
                wakeup::sleep(&mut fds, Some(limit)).map(|woken| woken == 0)
            }
            _ => Ok(false),
        };
        self.sockets.iter().for_each(|(_, socket)| socket.unwatch(wakeup));
        if timed_out? && limit >= PROBE_AFTER {
            self.sockets.iter().for_each(|(_, socket)| socket.probe());
        }
        found
    }

    /// Waits until a descriptor has events, for at most `limit`; returns how many have.
    fn wait(&mut self, limit: Option<Duration>) -> Result<usize, Errno> {
        let deadline = limit.and_then(|limit| wakeup::now().checked_add(limit));
        for _ in 0..if limit == Some(Duration::ZERO) { 1 } else { SPINS } {
            let found = self.check()?;
            if found > 0 {
                return Ok(found);
            }
        }
        let wakeup = wakeup::of_this_thread()?;
        loop {
            let left = deadline.map(|at| at.saturating_duration_since(wakeup::now()));
            if left == Some(Duration::ZERO) {
                return self.check();
            }
            let found = self.sleep(&wakeup, left.unwrap_or(PROBE_AFTER).min(PROBE_AFTER))?;
            if found > 0 {
                return Ok(found);
            }
        }
    }
}

/// Waits for events, as poll(2) does, on sockets of this crate and descriptors of the kernel;
/// returns how many have events. Without a limit it waits until one has.
pub fn poll(entries: &mut [libc::pollfd], limit: Option<Duration>) -> Result<usize, Errno> {
    let mut set = Set::new(entries);
    if set.sockets.is_empty() {
        return wakeup::sleep(entries, limit);
    }
    set.wait(limit)
}
