//! Sleeping, and waking who sleeps.
//!
//! A completion is reported once, but several threads may wait for what it brings: one reads,
//! another writes, a third polls. So whoever finds news rings for all others that wait at the same
//! socket.

use core::ffi::c_int;
use std::cell::OnceCell;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd, FromRawFd as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use feroce::CompChannel;

use crate::errno::Errno;

/// How often a socket is looked at before a thread that waits goes to sleep.
const SPINS: u32 = 50;

/// After this time without news, a thread that waits for its peer looks whether it still lives.
pub(crate) const PROBE_AFTER: Duration = Duration::from_secs(2);

/// Wakes a thread that polls its descriptor.
#[derive(Debug)]
pub(crate) struct Bell {
    counter: File,
}

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no preconditions.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just made, and nobody else has it.
        Ok(Self { counter: unsafe { File::from_raw_fd(fd) } })
    }

    pub(crate) fn ring(&self) {
        // A counter that is already high wakes just as well.
        let _ = (&self.counter).write(&1_u64.to_ne_bytes());
    }

    pub(crate) fn silence(&self) {
        // It need not have been rung.
        let _ = (&self.counter).read(&mut [0; 8]);
    }

    pub(crate) fn fd(&self) -> c_int {
        self.counter.as_raw_fd()
    }
}

thread_local! {
    static BELL: OnceCell<Arc<Bell>> = const { OnceCell::new() };
}

/// The bell of this thread.
pub(crate) fn mine() -> Result<Arc<Bell>, Errno> {
    let known = BELL.try_with(|bell| bell.get().cloned()).ok().flatten();
    if let Some(bell) = known {
        return Ok(bell);
    }
    let made = Bell::new().map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::EMFILE)))?;
    let made = Arc::new(made);
    // A thread that is about to end has no place for it, and gets a new one each time.
    let _ = BELL.try_with(|bell| bell.set(Arc::clone(&made)));
    Ok(made)
}

/// Who waits at a socket.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    bells: Mutex<Vec<Arc<Bell>>>,
    /// How many there are, so that nobody needs the lock to see that there are none.
    count: AtomicUsize,
}

impl Waiters {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Bell>>> {
        self.bells.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on whoever finds news rings this bell.
    pub(crate) fn add(&self, bell: &Arc<Bell>) {
        let mut bells = self.lock();
        bells.push(Arc::clone(bell));
        self.count.store(bells.len(), Ordering::SeqCst);
    }

    pub(crate) fn remove(&self, bell: &Arc<Bell>) {
        let mut bells = self.lock();
        if let Some(at) = bells.iter().position(|other| Arc::ptr_eq(other, bell)) {
            bells.swap_remove(at);
        }
        self.count.store(bells.len(), Ordering::SeqCst);
    }

    /// Rings for everybody else. To be called after the news are there to be seen: who waits has
    /// said so before it looked.
    pub(crate) fn tell_others(&self) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let own = BELL.try_with(|bell| bell.get().map(Arc::as_ptr)).ok().flatten();
        self.lock().iter().filter(|bell| Some(Arc::as_ptr(bell)) != own).for_each(|b| b.ring());
    }
}

/// What a thread that sleeps at a socket must hold on to.
#[derive(Debug)]
pub(crate) struct Watch {
    fds: Vec<c_int>,
    /// So that their descriptors stay.
    _channels: Vec<CompChannel>,
}

impl Watch {
    /// Sleeps on a descriptor, or none if it is negative, and on channels of completion queues.
    pub(crate) fn at(fd: c_int, channels: impl Iterator<Item = CompChannel>) -> Self {
        let _channels: Vec<_> = channels.collect();
        let fds = [fd].into_iter().chain(_channels.iter().map(|channel| channel.as_raw_fd()));
        Self { fds: fds.filter(|fd| *fd >= 0).collect(), _channels }
    }

    /// Descriptors that are readable when there are news.
    pub(crate) fn fds(&self) -> impl Iterator<Item = libc::pollfd> {
        self.fds.iter().copied().map(readable)
    }
}

/// A socket that a thread can sleep at.
pub(crate) trait Waitable {
    /// From now on the bell rings, or a descriptor is readable, when there are news.
    fn watch(&self, bell: &Arc<Bell>) -> Watch;

    /// The bell need not ring any more.
    fn unwatch(&self, bell: &Arc<Bell>);

    /// Looks whether an idle peer still lives.
    fn probe(&self);
}

/// Looks until there is a result; only once, if it does not block.
pub(crate) fn until<R>(
    socket: &impl Waitable,
    blocks: bool,
    deadline: Option<Instant>,
    mut look: impl FnMut() -> Option<Result<R, Errno>>,
) -> Result<R, Errno> {
    for _ in 0..if blocks { SPINS } else { 1 } {
        if let Some(result) = look() {
            return result;
        }
    }
    if !blocks {
        return Err(Errno(libc::EAGAIN));
    }
    let bell = mine()?;
    loop {
        let watch = socket.watch(&bell);
        let looked = look();
        let woken = match &looked {
            Some(_) => Ok(1),
            None => {
                let mut fds: Vec<_> =
                    [readable(bell.fd())].into_iter().chain(watch.fds()).collect();
                let left = deadline.map(|at| at.saturating_duration_since(now()));
                sleep(&mut fds, Some(left.unwrap_or(PROBE_AFTER).min(PROBE_AFTER)))
            }
        };
        socket.unwatch(&bell);
        if let Some(result) = looked {
            return result;
        }
        if deadline.is_some_and(|at| at <= now()) {
            return Err(Errno(libc::ETIMEDOUT));
        }
        if woken? == 0 {
            socket.probe();
        }
    }
}

/// What time it is.
#[expect(clippy::disallowed_methods, reason = "calls with a time limit need a clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// A descriptor that is to be readable.
pub(crate) fn readable(fd: c_int) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// Waits until something happens to one of the descriptors; says to how many.
pub(crate) fn sleep(fds: &mut [libc::pollfd], most: Option<Duration>) -> Result<usize, Errno> {
    // Rounded up, so that who sleeps until a moment does not wake just before it.
    let rounded = |time: Duration| time.as_nanos().div_ceil(1_000_000);
    let most = most.map_or(-1, |time| c_int::try_from(rounded(time)).unwrap_or(c_int::MAX));
    let _uncancelled = Uncancelled::new();
    // SAFETY: a slice of descriptors, which nobody else has.
    let found = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, most) };
    usize::try_from(found).map_err(|_| Errno::last())
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// While it lives, the thread is not cancelled: sleeping is done in the middle of what must be
/// undone.
struct Uncancelled {
    before: c_int,
}

impl Uncancelled {
    /// `PTHREAD_CANCEL_DISABLE`
    const DISABLE: c_int = 1;

    fn new() -> Self {
        let mut before = 0;
        // SAFETY: a state that there is, and a place for the old one.
        unsafe { pthread_setcancelstate(Self::DISABLE, &raw mut before) };
        Self { before }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        let errno = crate::errno::get();
        // SAFETY: the state that was there before.
        unsafe { pthread_setcancelstate(self.before, core::ptr::null_mut()) };
        crate::errno::set(errno);
    }
}
