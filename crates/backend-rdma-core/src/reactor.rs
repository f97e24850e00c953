//! A thread that wakes tasks which wait for a descriptor of the library.
//!
//! A process has one such thread, which starts when the first task waits. A consumer that waits in
//! a thread of its own, or in a reactor of its own, does not need it.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::task::Waker;
use std::{io, thread};

use nix::sys::eventfd::{EfdFlags, EventFd};

#[derive(Debug)]
struct Reactor {
    wake: EventFd,
    /// The descriptors that tasks wait for, each with the waker of its task.
    waiting: Mutex<Vec<(RawFd, Waker)>>,
}

/// Calls a waker when a descriptor is readable, or closed.
pub(crate) fn wake_when_readable(fd: RawFd, waker: &Waker) {
    static REACTOR: OnceLock<Option<Reactor>> = OnceLock::new();
    let mut is_new = false;
    let reactor = REACTOR.get_or_init(|| {
        is_new = true;
        Reactor::new().inspect_err(|e| tracing::error!("no task can wait: {e}")).ok()
    });
    let Some(reactor) = reactor else { return };
    if is_new && let Err(e) = reactor.start() {
        tracing::error!("no task can wait: {e}");
    }
    reactor.lock().push((fd, waker.clone()));
    // The wake-up makes the reactor thread poll again, now with this descriptor. `poll` is
    // level-triggered, so an event that arrived before it is not missed.
    let _ = reactor.wake.write(1);
}

impl Reactor {
    fn new() -> io::Result<Self> {
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self { wake, waiting: Mutex::default() })
    }

    fn start(&'static self) -> io::Result<()> {
        thread::Builder::new().name("wake tasks".to_owned()).spawn(|| self.run()).map(drop)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(RawFd, Waker)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        loop {
            let waiting: Vec<RawFd> = self.lock().iter().map(|(fd, _)| *fd).collect();
            let own = self.wake.as_fd().as_raw_fd();
            let ready = readable(&[&[own], waiting.as_slice()].concat());
            let _ = self.wake.read();
            let all = std::mem::take(&mut *self.lock());
            let (woken, rest): (Vec<_>, Vec<_>) =
                all.into_iter().partition(|(fd, _)| ready.contains(fd));
            self.lock().extend(rest);
            woken.into_iter().for_each(|(_, waker)| waker.wake());
        }
    }
}

/// Waits until one of the descriptors is readable, and returns those that are. A descriptor that
/// was closed meanwhile counts as readable: the task that waits for it tries again and finds out.
pub(crate) fn readable(fds: &[RawFd]) -> Vec<RawFd> {
    let pollfd = |fd: &RawFd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 };
    let mut fds: Vec<libc::pollfd> = fds.iter().map(pollfd).collect();
    // SAFETY: the array has as many entries as the call is told.
    unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, -1) };
    fds.iter().filter(|fd| fd.revents != 0).map(|fd| fd.fd).collect()
}
