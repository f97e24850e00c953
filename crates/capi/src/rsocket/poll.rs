//! Waiting at many sockets at once, and at descriptors of the kernel with them.

use core::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use super::bell::{self, Bell, PROBE_AFTER, Waitable as _, readable};
use super::table::{self, Socket};
use crate::errno::Errno;

/// How often everything is looked at before the thread goes to sleep.
const SPINS: u32 = 20;

/// What is waited at.
struct Set<'a> {
    asked: &'a mut [libc::pollfd],
    /// Sockets of ours, and their place in `asked`.
    sockets: Vec<(usize, Socket)>,
    /// Descriptors of the kernel, and their place in `asked`.
    others: Vec<(usize, libc::pollfd)>,
}

impl<'a> Set<'a> {
    fn new(asked: &'a mut [libc::pollfd]) -> Self {
        let (mut sockets, mut others) = (Vec::new(), Vec::new());
        for (place, entry) in asked.iter().enumerate() {
            match table::find(entry.fd) {
                Some(socket) => sockets.push((place, socket)),
                None => others.push((place, *entry)),
            }
        }
        Self { asked, sockets, others }
    }

    /// Looks at everything; says how many have something.
    fn look(&mut self) -> Result<usize, Errno> {
        for (place, socket) in &self.sockets {
            let entry = &mut self.asked[*place];
            entry.revents = socket.events(entry.events);
        }
        if !self.others.is_empty() {
            let mut fds: Vec<_> = self.others.iter().map(|(_, entry)| *entry).collect();
            bell::sleep(&mut fds, Some(Duration::ZERO))?;
            for ((place, _), found) in self.others.iter().zip(fds) {
                self.asked[*place].revents = found.revents;
            }
        }
        Ok(self.asked.iter().filter(|entry| entry.revents != 0).count())
    }

    /// Sleeps until there may be news. Everything is looked at once more before, since news that
    /// came before anybody listened were told to nobody.
    fn sleep(&mut self, bell: &Arc<Bell>, most: Option<Duration>) -> Result<usize, Errno> {
        let watches: Vec<_> = self.sockets.iter().map(|(_, socket)| socket.watch(bell)).collect();
        let found = self.look();
        let slept = match found {
            Ok(0) => {
                let ours = watches.iter().flat_map(|watch| watch.fds());
                let theirs = self.others.iter().map(|(_, entry)| *entry);
                let mut fds: Vec<_> =
                    [readable(bell.fd())].into_iter().chain(ours).chain(theirs).collect();
                bell::sleep(&mut fds, most).map(|woken| woken == 0)
            }
            _ => Ok(false),
        };
        self.sockets.iter().for_each(|(_, socket)| socket.unwatch(bell));
        if slept? && most.is_none_or(|most| most >= PROBE_AFTER) {
            self.sockets.iter().for_each(|(_, socket)| socket.probe());
        }
        found
    }

    /// Waits until something is there, at most so long; says how many have something.
    fn wait(&mut self, most: Option<Duration>) -> Result<usize, Errno> {
        let deadline = most.and_then(|most| bell::now().checked_add(most));
        for _ in 0..if most == Some(Duration::ZERO) { 1 } else { SPINS } {
            let found = self.look()?;
            if found > 0 {
                return Ok(found);
            }
        }
        let bell = bell::mine()?;
        loop {
            let left = deadline.map(|at| at.saturating_duration_since(bell::now()));
            if left == Some(Duration::ZERO) {
                return self.look();
            }
            let found = self.sleep(&bell, Some(left.unwrap_or(PROBE_AFTER).min(PROBE_AFTER)))?;
            if found > 0 {
                return Ok(found);
            }
        }
    }
}

/// What `poll` does, with sockets of ours among the descriptors.
pub(super) fn poll(fds: &mut [libc::pollfd], most: Option<Duration>) -> Result<usize, Errno> {
    let mut set = Set::new(fds);
    if set.sockets.is_empty() {
        return bell::sleep(fds, most);
    }
    set.wait(most)
}

/// For calls that return how many, or -1.
fn count(found: Result<usize, Errno>) -> c_int {
    found.map_or_else(
        |errno| {
            crate::errno::set(errno.0);
            -1
        },
        |found| c_int::try_from(found).unwrap_or(c_int::MAX),
    )
}

pub(crate) unsafe extern "C" fn rpoll(
    fds: *mut libc::pollfd,
    len: libc::nfds_t,
    timeout_ms: c_int,
) -> c_int {
    let fds = if fds.is_null() || len == 0 {
        &mut []
    } else {
        // SAFETY: the program gives so many entries.
        unsafe { core::slice::from_raw_parts_mut(fds, len as usize) }
    };
    let most = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
    count(poll(fds, most))
}

/// The three sets of `select`, of which each may be missing.
struct Sets([*mut libc::fd_set; 3]);

impl Sets {
    /// Which events the sets stand for, when they are asked for and when they are found.
    const EVENTS: [(libc::c_short, libc::c_short); 3] = [
        (libc::POLLIN, libc::POLLIN | libc::POLLHUP),
        (libc::POLLOUT, libc::POLLOUT),
        (0, !(libc::POLLIN | libc::POLLOUT)),
    ];

    /// Takes out what is in the sets.
    ///
    /// # Safety
    /// The sets are of the program, and `len` is at most `FD_SETSIZE`.
    unsafe fn take(&self, len: c_int) -> Vec<libc::pollfd> {
        let mut fds = Vec::new();
        for fd in 0..len {
            let (mut is_in, mut events) = (false, 0);
            for (set, (asked, _)) in self.0.into_iter().zip(Self::EVENTS) {
                // SAFETY: a set of the program, and a number that it has a place for.
                if !set.is_null() && unsafe { libc::FD_ISSET(fd, set) } {
                    (is_in, events) = (true, events | asked);
                }
            }
            if is_in {
                fds.push(libc::pollfd { fd, events, revents: 0 });
            }
        }
        fds
    }

    /// Puts in what was found; says how much.
    ///
    /// # Safety
    /// As for [`Sets::take`], which gave the descriptors.
    unsafe fn put(&self, fds: &[libc::pollfd], asked: &[Vec<c_int>; 3]) -> usize {
        let mut found = 0;
        for ((set, (_, events)), asked) in self.0.into_iter().zip(Self::EVENTS).zip(asked) {
            if set.is_null() {
                continue;
            }
            // SAFETY: a set of the program.
            unsafe { libc::FD_ZERO(set) };
            for entry in fds {
                if entry.revents & events != 0 && asked.contains(&entry.fd) {
                    // SAFETY: as above, and it was in the set before.
                    unsafe { libc::FD_SET(entry.fd, set) };
                    found += 1;
                }
            }
        }
        found
    }

    /// Who is in which set.
    ///
    /// # Safety
    /// As for [`Sets::take`], which gave the descriptors.
    unsafe fn members(&self, fds: &[libc::pollfd]) -> [Vec<c_int>; 3] {
        self.0.map(|set| {
            let all = fds.iter().map(|entry| entry.fd);
            // SAFETY: a set of the program, and a number that it has a place for.
            all.filter(|fd| !set.is_null() && unsafe { libc::FD_ISSET(*fd, set) }).collect()
        })
    }
}

pub(crate) unsafe extern "C" fn rselect(
    len: c_int,
    read: *mut libc::fd_set,
    write: *mut libc::fd_set,
    except: *mut libc::fd_set,
    timeout: *mut libc::timeval,
) -> c_int {
    if !(0..=libc::FD_SETSIZE as c_int).contains(&len) {
        return count(Err(Errno::INVALID));
    }
    let sets = Sets([read, write, except]);
    let most = (!timeout.is_null()).then(|| {
        // SAFETY: the program gives a time.
        let libc::timeval { tv_sec, tv_usec } = unsafe { timeout.read() };
        let whole = Duration::from_secs(u64::try_from(tv_sec).unwrap_or(0));
        whole + Duration::from_micros(u64::try_from(tv_usec).unwrap_or(0))
    });
    // SAFETY: sets of the program, of the size that is usual.
    let mut fds = unsafe { sets.take(len) };
    // SAFETY: as above.
    let asked = unsafe { sets.members(&fds) };
    count(poll(&mut fds, most).map(|_| {
        // SAFETY: as above.
        unsafe { sets.put(&fds, &asked) }
    }))
}
