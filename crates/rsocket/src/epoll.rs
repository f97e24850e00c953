//! `epoll` for sockets of this crate and descriptors of the kernel alike.
//!
//! Every wait polls all members. Reports are level-triggered: a program that asked for edges gets
//! additional reports, and misses none.

use core::ffi::c_int;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use feroce::Errno;

use crate::poll::poll;
use crate::wakeup::{self, Wakeup, readable};

/// A waiting thread checks at least this often whether members have changed: of several waiting
/// threads, only the first one sees the wakeup.
const RECHECK: Duration = Duration::from_millis(500);

/// Flags that select how events are reported, not which.
const HOW: u32 =
    (libc::EPOLLET | libc::EPOLLONESHOT | libc::EPOLLEXCLUSIVE | libc::EPOLLWAKEUP).cast_unsigned();

/// The events that a program wants of a descriptor.
#[derive(Clone, Copy, Debug)]
struct Member {
    events: u32,
    data: u64,
    /// `EPOLLONESHOT` was set, and an event was reported.
    is_off: bool,
}

/// An instance. Its descriptor is that of its wakeup.
#[derive(Debug)]
struct Instance {
    members: Mutex<BTreeMap<c_int, Member>>,
    /// Notified when members change.
    wakeup: Wakeup,
}

static INSTANCES: RwLock<BTreeMap<c_int, Arc<Instance>>> = RwLock::new(BTreeMap::new());

fn get(fd: c_int) -> Result<Arc<Instance>, Errno> {
    let all = INSTANCES.read().unwrap_or_else(PoisonError::into_inner);
    all.get(&fd).cloned().ok_or(Errno(libc::EBADF))
}

/// Closes an instance; false if the descriptor is none.
pub(crate) fn close(fd: c_int) -> bool {
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
        self.wakeup.notify();
        Ok(())
    }

    /// Waits for events for at most `limit`; returns at most `most` of them.
    fn wait(&self, most: usize, limit: Option<Duration>) -> Result<Vec<libc::epoll_event>, Errno> {
        let deadline = limit.and_then(|limit| wakeup::now().checked_add(limit));
        loop {
            let left = deadline.map(|at| at.saturating_duration_since(wakeup::now()));
            let members = self.lock().clone();
            let active = members.iter().filter(|(_, member)| !member.is_off);
            // The events of `epoll` and `poll` have the same numbers.
            let asked = active.map(|(fd, member)| libc::pollfd {
                fd: *fd,
                events: (member.events & !HOW) as libc::c_short,
                revents: 0,
            });
            let mut fds: Vec<_> = [readable(self.wakeup.fd())].into_iter().chain(asked).collect();
            poll(&mut fds, Some(left.unwrap_or(RECHECK).min(RECHECK)))?;
            if fds[0].revents != 0 {
                self.wakeup.clear();
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
                // The program has closed it.
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

/// Makes an instance, as epoll_create(2) does; returns its descriptor.
pub fn create() -> Result<c_int, Errno> {
    let wakeup = Wakeup::new()?;
    let fd = wakeup.fd();
    let instance = Arc::new(Instance { members: Mutex::default(), wakeup });
    INSTANCES.write().unwrap_or_else(PoisonError::into_inner).insert(fd, instance);
    Ok(fd)
}

/// Adds, changes or removes a member, as epoll_ctl(2) does.
pub fn control(
    instance: c_int,
    op: c_int,
    fd: c_int,
    event: Option<libc::epoll_event>,
) -> Result<(), Errno> {
    let found = get(instance)?;
    match fd {
        _ if fd == instance => Err(Errno::INVALID),
        ..0 => Err(Errno(libc::EBADF)),
        _ => found.change(op, fd, event),
    }
}

/// Waits for events, as epoll_wait(2) does; returns at most `most` of them.
pub fn wait(
    instance: c_int,
    most: usize,
    limit: Option<Duration>,
) -> Result<Vec<libc::epoll_event>, Errno> {
    get(instance)?.wait(most, limit)
}
