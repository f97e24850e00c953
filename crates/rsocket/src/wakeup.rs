//! How threads sleep on sockets, and how they wake each other.
//!
//! A completion is reported once, but several threads may wait for its effect: one reads, another
//! writes, a third polls. So the thread that finds a completion wakes all other threads that wait
//! on the same socket.

use core::ffi::c_int;
use std::cell::OnceCell;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use feroce::{CompChannel, Errno};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// How often a waiting thread checks its socket before it sleeps.
const SPINS: u32 = 50;

/// A waiting thread that sees no progress for this long probes whether the peer still lives.
pub(crate) const PROBE_AFTER: Duration = Duration::from_secs(2);

/// An `eventfd` that wakes a thread which polls its descriptor.
#[derive(Debug)]
pub(crate) struct Wakeup {
    counter: EventFd,
}

impl Wakeup {
    pub(crate) fn new() -> Result<Self, Errno> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let counter = EventFd::from_value_and_flags(0, flags);
        Ok(Self { counter: counter.map_err(|e| Errno(e as i32))? })
    }

    /// Makes the descriptor readable.
    pub(crate) fn notify(&self) {
        // The write fails only if the counter is at its maximum; the descriptor is readable then.
        let _ = self.counter.write(1);
    }

    /// Makes the descriptor unreadable until the next [`Wakeup::notify`].
    pub(crate) fn clear(&self) {
        // The read fails if no thread has called `notify`.
        let _ = self.counter.read();
    }

    pub(crate) fn fd(&self) -> c_int {
        self.counter.as_fd().as_raw_fd()
    }
}

thread_local! {
    static WAKEUP: OnceCell<Arc<Wakeup>> = const { OnceCell::new() };
}

/// The wakeup of the calling thread.
pub(crate) fn of_this_thread() -> Result<Arc<Wakeup>, Errno> {
    let known = WAKEUP.try_with(|wakeup| wakeup.get().cloned()).ok().flatten();
    if let Some(wakeup) = known {
        return Ok(wakeup);
    }
    let made = Arc::new(Wakeup::new()?);
    // A thread that is ending has no thread-local storage any more, and gets a new one each time.
    let _ = WAKEUP.try_with(|wakeup| wakeup.set(Arc::clone(&made)));
    Ok(made)
}

/// The threads that wait on a socket.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    wakeups: Mutex<Vec<Arc<Wakeup>>>,
    /// Length of `wakeups`, so that a thread sees without the lock that the list is empty.
    count: AtomicUsize,
}

impl Waiters {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Wakeup>>> {
        self.wakeups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on, threads that make progress on the socket notify this wakeup.
    pub(crate) fn add(&self, wakeup: &Arc<Wakeup>) {
        let mut wakeups = self.lock();
        wakeups.push(Arc::clone(wakeup));
        self.count.store(wakeups.len(), Ordering::SeqCst);
    }

    pub(crate) fn remove(&self, wakeup: &Arc<Wakeup>) {
        let mut wakeups = self.lock();
        if let Some(at) = wakeups.iter().position(|other| Arc::ptr_eq(other, wakeup)) {
            wakeups.swap_remove(at);
        }
        self.count.store(wakeups.len(), Ordering::SeqCst);
    }

    /// Wakes all waiting threads except the calling one. The caller publishes its progress first:
    /// a waiting thread adds itself to the list before it checks the socket, so it either sees the
    /// progress or is in the list.
    pub(crate) fn notify_others(&self) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let own = WAKEUP.try_with(|wakeup| wakeup.get().map(Arc::as_ptr)).ok().flatten();
        let wakeups = self.lock();
        wakeups.iter().filter(|w| Some(Arc::as_ptr(w)) != own).for_each(|w| w.notify());
    }
}

/// The descriptors that a thread polls while it sleeps on a socket.
#[derive(Debug)]
pub(crate) struct PollSet {
    fds: Vec<c_int>,
    /// Keeps the descriptors of the channels open.
    _channels: Vec<CompChannel>,
}

impl PollSet {
    /// `fd`, unless it is negative, and the completion channels.
    pub(crate) fn new(fd: c_int, channels: impl Iterator<Item = CompChannel>) -> Self {
        let _channels: Vec<_> = channels.collect();
        let fds = [fd].into_iter().chain(_channels.iter().map(|channel| channel.as_raw_fd()));
        Self { fds: fds.filter(|fd| *fd >= 0).collect(), _channels }
    }

    /// Descriptors that become readable when the socket may make progress.
    pub(crate) fn fds(&self) -> impl Iterator<Item = libc::pollfd> {
        self.fds.iter().copied().map(readable)
    }
}

/// A socket that a thread can sleep on.
pub(crate) trait Waitable {
    /// From now on, progress notifies `wakeup` or makes a descriptor of the result readable.
    fn watch(&self, wakeup: &Arc<Wakeup>) -> PollSet;

    /// Ends what [`Waitable::watch`] began.
    fn unwatch(&self, wakeup: &Arc<Wakeup>);

    /// Sends a probe to an idle peer, so that a dead one is found out.
    fn probe(&self);
}

/// Calls `check` until it has a result, sleeping on the socket in between. Without `blocks`,
/// calls it once and fails with `EAGAIN`.
pub(crate) fn wait_until<R>(
    socket: &impl Waitable,
    blocks: bool,
    deadline: Option<Instant>,
    mut check: impl FnMut() -> Option<Result<R, Errno>>,
) -> Result<R, Errno> {
    for _ in 0..if blocks { SPINS } else { 1 } {
        if let Some(result) = check() {
            return result;
        }
    }
    if !blocks {
        return Err(Errno(libc::EAGAIN));
    }
    let wakeup = of_this_thread()?;
    loop {
        let watched = socket.watch(&wakeup);
        let checked = check();
        let woken = match &checked {
            Some(_) => Ok(1),
            None => {
                let own = readable(wakeup.fd());
                let mut fds: Vec<_> = [own].into_iter().chain(watched.fds()).collect();
                let left = deadline.map(|at| at.saturating_duration_since(now()));
                sleep(&mut fds, Some(left.unwrap_or(PROBE_AFTER).min(PROBE_AFTER)))
            }
        };
        socket.unwatch(&wakeup);
        if let Some(result) = checked {
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

/// The current time.
#[expect(clippy::disallowed_methods, reason = "calls with a time limit need a clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// An entry for `poll` that waits until `fd` is readable.
pub(crate) fn readable(fd: c_int) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// Polls descriptors of the kernel for at most `limit`; returns how many have events.
pub(crate) fn sleep(fds: &mut [libc::pollfd], limit: Option<Duration>) -> Result<usize, Errno> {
    // Rounded up, so that a thread that sleeps until a deadline does not wake just before it.
    let rounded = |time: Duration| time.as_nanos().div_ceil(1_000_000);
    let limit = limit.map_or(-1, |time| c_int::try_from(rounded(time)).unwrap_or(c_int::MAX));
    let _uncancelled = Uncancelled::new();
    // SAFETY: `fds` is an exclusive slice, and the length passed is its own: the kernel reads and
    // writes exactly these entries.
    let found = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, limit) };
    usize::try_from(found).map_err(|_| Errno::last())
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Disables cancellation of the calling thread while it lives: the thread is in the lists of
/// sockets while it sleeps, and unwinding from `poll` would leave it there.
struct Uncancelled {
    before: c_int,
}

impl Uncancelled {
    /// `PTHREAD_CANCEL_DISABLE`
    const DISABLE: c_int = 1;

    fn new() -> Self {
        let mut before = 0;
        // SAFETY: pthread_setcancelstate(3) takes a valid state and a pointer to a `c_int`, here a
        // local variable.
        unsafe { pthread_setcancelstate(Self::DISABLE, &raw mut before) };
        Self { before }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: `before` is a state that pthread_setcancelstate(3) returned, and the second
        // argument may be NULL.
        unsafe { pthread_setcancelstate(self.before, core::ptr::null_mut()) };
    }
}
