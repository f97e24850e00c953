//! Calls that wait on many sockets: `rpoll`, `rselect` and `repoll`.

use core::ffi::c_int;
use std::time::Duration;

use feroce_rsocket::{epoll, poll};

use crate::errno::{Errno, number, status};

/// For calls that return a count, or -1 with the reason in `errno`.
fn count(found: Result<usize, Errno>) -> c_int {
    number(found.map(|found| c_int::try_from(found).unwrap_or(c_int::MAX)))
}

/// A time limit in milliseconds; none if it is negative.
fn limit(timeout_ms: c_int) -> Option<Duration> {
    u64::try_from(timeout_ms).ok().map(Duration::from_millis)
}

pub(crate) unsafe extern "C" fn rpoll(
    fds: *mut libc::pollfd,
    len: libc::nfds_t,
    timeout_ms: c_int,
) -> c_int {
    let fds = if fds.is_null() || len == 0 {
        &mut []
    } else {
        // SAFETY: poll(2): `fds` points to `len` entries, which only the call accesses meanwhile.
        unsafe { core::slice::from_raw_parts_mut(fds, len as usize) }
    };
    count(poll(fds, limit(timeout_ms)))
}

/// A copy of one of the three sets of `select`. Descriptors are at least 0 and less than
/// `FD_SETSIZE`.
#[derive(Clone, Copy)]
struct FdSet(libc::fd_set);

impl FdSet {
    fn contains(&self, fd: c_int) -> bool {
        // SAFETY: the set is initialised, and has a bit for every `fd` less than `FD_SETSIZE`.
        unsafe { libc::FD_ISSET(fd, &raw const self.0) }
    }

    fn clear(&mut self) {
        // SAFETY: the pointer leads to a whole set, borrowed exclusively.
        unsafe { libc::FD_ZERO(&raw mut self.0) };
    }

    fn insert(&mut self, fd: c_int) {
        // SAFETY: the set is initialised, and has a bit for every `fd` less than `FD_SETSIZE`.
        unsafe { libc::FD_SET(fd, &raw mut self.0) };
    }
}

/// The events that the three sets (read, write, except) ask for, and those that they report.
const EVENTS: [(libc::c_short, libc::c_short); 3] = [
    (libc::POLLIN, libc::POLLIN | libc::POLLHUP),
    (libc::POLLOUT, libc::POLLOUT),
    (0, !(libc::POLLIN | libc::POLLOUT)),
];

/// The descriptors less than `len` that are in a set, with the events that the sets ask for.
fn entries(sets: &[Option<FdSet>; 3], len: c_int) -> Vec<libc::pollfd> {
    let entry = |fd| {
        let asking = sets.iter().zip(EVENTS).filter(|(set, _)| set.is_some_and(|s| s.contains(fd)));
        let events = asking.map(|(_, (asked, _))| asked).reduce(|a, b| a | b)?;
        Some(libc::pollfd { fd, events, revents: 0 })
    };
    (0..len).filter_map(entry).collect()
}

/// Leaves in each set the descriptors that have an event of its kind; returns how many.
fn report(sets: &mut [Option<FdSet>; 3], found: &[libc::pollfd]) -> usize {
    let mut count = 0;
    for (set, (_, events)) in sets.iter_mut().zip(EVENTS) {
        let Some(set) = set else { continue };
        let asked = *set;
        set.clear();
        for entry in found {
            if entry.revents & events != 0 && asked.contains(entry.fd) {
                set.insert(entry.fd);
                count += 1;
            }
        }
    }
    count
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
    let places = [read, write, except];
    // SAFETY: select(2): each pointer is NULL or leads to a set of the program.
    let copy = |place: *mut libc::fd_set| (!place.is_null()).then(|| FdSet(unsafe { *place }));
    let mut sets = places.map(copy);
    let limit = (!timeout.is_null()).then(|| {
        // SAFETY: select(2): `timeout`, which is not NULL, points to a time.
        let libc::timeval { tv_sec, tv_usec } = unsafe { timeout.read() };
        let whole = Duration::from_secs(u64::try_from(tv_sec).unwrap_or(0));
        whole + Duration::from_micros(u64::try_from(tv_usec).unwrap_or(0))
    });
    let mut fds = entries(&sets, len);
    count(poll(&mut fds, limit).map(|_| {
        let found = report(&mut sets, &fds);
        for (place, set) in places.into_iter().zip(sets) {
            if let Some(FdSet(set)) = set {
                // SAFETY: `place` is not NULL, since its set was copied; select(2) updates it.
                unsafe { *place = set };
            }
        }
        found
    }))
}

pub(crate) extern "C" fn repoll_create(_flags: c_int) -> c_int {
    number(epoll::create())
}

pub(crate) unsafe extern "C" fn repoll_ctl(
    instance: c_int,
    op: c_int,
    fd: c_int,
    event: *mut libc::epoll_event,
) -> c_int {
    // SAFETY: epoll_ctl(2): `event` is NULL or points to an event, which is packed on some targets.
    let event = (!event.is_null()).then(|| unsafe { event.read_unaligned() });
    status(epoll::control(instance, op, fd, event))
}

pub(crate) unsafe extern "C" fn repoll_wait(
    instance: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    timeout_ms: c_int,
) -> c_int {
    let most = usize::try_from(most).ok().filter(|most| *most > 0 && !events.is_null());
    let found = most.ok_or(Errno::INVALID);
    let found = found.and_then(|most| epoll::wait(instance, most, limit(timeout_ms)));
    count(found.map(|found| {
        for (i, event) in found.iter().enumerate() {
            // SAFETY: `events` has room for `most` events, and `i` is less than that.
            let place = unsafe { events.add(i) };
            // SAFETY: `place` is one of the `most` events that the program gives room for.
            unsafe { place.write_unaligned(*event) };
        }
        found.len()
    }))
}
