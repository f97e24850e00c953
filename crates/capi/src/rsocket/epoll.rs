//! `epoll` for rsockets and descriptors of the kernel alike.
//!
//! Every wait is a poll of all members. Reports are level-triggered: a program that asked for
//! edges gets more of them than it expects, and none too few.

use core::ffi::c_int;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use super::bell::{self, Bell, readable};
use super::poll::poll;
use crate::errno::{Errno, status};

/// A thread that waits looks at least this often whether members have changed: of several, only
/// one hears the bell.
const GLANCE: Duration = Duration::from_millis(500);

/// Flags that say how to report, not what.
const HOW: u32 =
    (libc::EPOLLET | libc::EPOLLONESHOT | libc::EPOLLEXCLUSIVE | libc::EPOLLWAKEUP).cast_unsigned();

/// What a program wants to know of a descriptor.
#[derive(Clone, Copy, Debug)]
struct Member {
    events: u32,
    data: u64,
    /// It was reported, and was to be reported once.
    is_off: bool,
}

/// An instance. Its number is that of its bell.
#[derive(Debug)]
struct Instance {
    members: Mutex<BTreeMap<c_int, Member>>,
    /// Rings when members change.
    bell: Bell,
}

static INSTANCES: RwLock<BTreeMap<c_int, Arc<Instance>>> = RwLock::new(BTreeMap::new());

fn get(fd: c_int) -> Result<Arc<Instance>, Errno> {
    let all = INSTANCES.read().unwrap_or_else(PoisonError::into_inner);
    all.get(&fd).cloned().ok_or(Errno(libc::EBADF))
}

/// The program is done with an instance; false if there is none.
pub(super) fn close(fd: c_int) -> bool {
    INSTANCES.write().unwrap_or_else(PoisonError::into_inner).remove(&fd).is_some()
}

impl Instance {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<c_int, Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, op: c_int, fd: c_int, event: Option<libc::epoll_event>) -> Result<(), Errno> {
        let wanted = || {
            let event = event.ok_or(Errno(libc::EFAULT));
            event.map(|event| Member { events: event.events, data: event.u64, is_off: false })
        };
        let mut members = self.lock();
        let is_there = members.contains_key(&fd);
        match op {
            libc::EPOLL_CTL_ADD if is_there => return Err(Errno(libc::EEXIST)),
            libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL if !is_there => {
                return Err(Errno(libc::ENOENT));
            }
            libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD => drop(members.insert(fd, wanted()?)),
            libc::EPOLL_CTL_DEL => drop(members.remove(&fd)),
            _ => return Err(Errno::INVALID),
        }
        drop(members);
        self.bell.ring();
        Ok(())
    }

    /// Waits at most so long for something to report, and reports at most so much.
    fn wait(&self, most: usize, limit: Option<Duration>) -> Result<Vec<libc::epoll_event>, Errno> {
        let deadline = limit.and_then(|limit| bell::now().checked_add(limit));
        loop {
            let left = deadline.map(|at| at.saturating_duration_since(bell::now()));
            let members = self.lock().clone();
            let active = members.iter().filter(|(_, member)| !member.is_off);
            // What to report has the same numbers for `poll`.
            let asked = active.map(|(fd, member)| libc::pollfd {
                fd: *fd,
                events: (member.events & !HOW) as libc::c_short,
                revents: 0,
            });
            let mut fds: Vec<_> = [readable(self.bell.fd())].into_iter().chain(asked).collect();
            poll(&mut fds, Some(left.unwrap_or(GLANCE).min(GLANCE)))?;
            if fds[0].revents != 0 {
                self.bell.silence();
            }
            let found = self.report(&fds[1..], most);
            if !found.is_empty() || left == Some(Duration::ZERO) {
                return Ok(found);
            }
        }
    }

    fn report(&self, fds: &[libc::pollfd], most: usize) -> Vec<libc::epoll_event> {
        let mut members = self.lock();
        let mut found = Vec::new();
        for entry in fds.iter().filter(|entry| entry.revents != 0).take(most) {
            if entry.revents & libc::POLLNVAL != 0 {
                // It was closed, and is a member no more.
                members.remove(&entry.fd);
                continue;
            }
            let Some(member) = members.get_mut(&entry.fd) else { continue };
            member.is_off |= member.events & libc::EPOLLONESHOT.cast_unsigned() != 0;
            let events = u32::from(entry.revents.cast_unsigned());
            found.push(libc::epoll_event { events, u64: member.data });
        }
        found
    }
}

pub(crate) extern "C" fn repoll_create(_flags: c_int) -> c_int {
    let bell = Bell::new().map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::EMFILE)));
    let made = bell.map(|bell| {
        let fd = bell.fd();
        let instance = Arc::new(Instance { members: Mutex::default(), bell });
        INSTANCES.write().unwrap_or_else(PoisonError::into_inner).insert(fd, instance);
        fd
    });
    made.unwrap_or_else(|errno| status(Err(errno)))
}

pub(crate) unsafe extern "C" fn repoll_ctl(
    instance: c_int,
    op: c_int,
    fd: c_int,
    event: *mut libc::epoll_event,
) -> c_int {
    // SAFETY: the program gives an event, or NULL where none is needed.
    let event = (!event.is_null()).then(|| unsafe { event.read_unaligned() });
    status(get(instance).and_then(|found| match fd {
        _ if fd == instance => Err(Errno::INVALID),
        ..0 => Err(Errno(libc::EBADF)),
        _ => found.change(op, fd, event),
    }))
}

pub(crate) unsafe extern "C" fn repoll_wait(
    instance: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    timeout_ms: c_int,
) -> c_int {
    let limit = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
    let most = usize::try_from(most).ok().filter(|most| *most > 0 && !events.is_null());
    let found = most.ok_or(Errno::INVALID).and_then(|most| get(instance)?.wait(most, limit));
    match found {
        Ok(found) => {
            for (i, event) in found.iter().enumerate() {
                // SAFETY: not more than the program has room for.
                let place = unsafe { events.add(i) };
                // SAFETY: in its room, as just said.
                unsafe { place.write_unaligned(*event) };
            }
            found.len() as c_int
        }
        Err(errno) => status(Err(errno)),
    }
}
