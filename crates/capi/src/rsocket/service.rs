//! A thread for what nobody calls for: those who ask a listener are accepted, datagrams that come
//! through the kernel are taken, and idle peers are probed where a program wants that. It starts
//! with the first socket that needs it, and sleeps when there is nothing to do.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::bell::{self, Bell, Waitable as _, readable};
use super::datagram::Datagram;
use super::stream::Stream;
use crate::errno::Errno;

/// Whom the thread serves.
#[derive(Debug, Default)]
struct Work {
    listeners: Vec<Weak<Stream>>,
    datagrams: Vec<Weak<Datagram>>,
    /// Idle peers, and when they are probed next.
    probes: Vec<(Weak<Stream>, Instant)>,
}

#[derive(Debug)]
struct Service {
    bell: Bell,
    work: Mutex<Work>,
}

/// The service, and the process that it is of: a child has none of its parent's threads.
static SERVICE: Mutex<Option<(u32, Arc<Service>)>> = Mutex::new(None);

fn slot() -> MutexGuard<'static, Option<(u32, Arc<Service>)>> {
    SERVICE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The service of this process, started if need be.
fn service() -> Result<Arc<Service>, Errno> {
    let mut slot = slot();
    let process = std::process::id();
    if let Some((of, service)) = &*slot
        && *of == process
    {
        return Ok(Arc::clone(service));
    }
    let errno = |e: std::io::Error| Errno(e.raw_os_error().unwrap_or(libc::EAGAIN));
    let bell = Bell::new().map_err(errno)?;
    let service = Arc::new(Service { bell, work: Mutex::default() });
    let runs = Arc::clone(&service);
    without_signals(|| {
        std::thread::Builder::new().name("rsocket".to_owned()).spawn(move || runs.run())
    })
    .map_err(errno)?;
    *slot = Some((process, Arc::clone(&service)));
    Ok(service)
}

/// Starts a thread that gets no signals: they are for the program. One is for whoever touches
/// memory that has gone. A thread inherits the mask.
fn without_signals<R>(start: impl FnOnce() -> R) -> R {
    let mut all = core::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = core::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: a place for the set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: the set was just made.
    unsafe { libc::sigdelset(all.as_mut_ptr(), libc::SIGBUS) };
    // SAFETY: the set was just made, and there is a place for the old one.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    let started = start();
    // SAFETY: the call above has filled it in.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), core::ptr::null_mut()) };
    started
}

/// Something has changed for the service, if there is one.
pub(crate) fn wake() {
    if let Some((_, service)) = &*slot() {
        service.bell.ring();
    }
}

/// From now on those who ask this socket are accepted.
pub(crate) fn serve_listener(stream: &Arc<Stream>) -> Result<(), Errno> {
    let service = service()?;
    service.lock().listeners.push(Arc::downgrade(stream));
    service.bell.ring();
    Ok(())
}

/// From now on datagrams that come through the kernel for this socket are taken.
pub(crate) fn serve_datagrams(socket: &Arc<Datagram>) -> Result<(), Errno> {
    let service = service()?;
    service.lock().datagrams.push(Arc::downgrade(socket));
    service.bell.ring();
    Ok(())
}

/// From now on the peer of this socket is probed, as its settings say.
pub(crate) fn keep_alive(stream: &Arc<Stream>) -> Result<(), Errno> {
    let service = service()?;
    let due = bell::now() + idle_time(stream);
    let mut work = service.lock();
    let known = work.probes.iter_mut().find(|(known, _)| known.as_ptr() == Arc::as_ptr(stream));
    match known {
        Some((_, at)) => *at = due,
        None => work.probes.push((Arc::downgrade(stream), due)),
    }
    drop(work);
    service.bell.ring();
    Ok(())
}

/// How long the peer of a socket may be idle.
fn idle_time(stream: &Stream) -> Duration {
    Duration::from_secs(stream.lock().settings.keep_idle.max(1).into())
}

impl Service {
    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        loop {
            self.bell.silence();
            let mut fds = vec![readable(self.bell.fd())];
            // Who is gone when the thread sleeps has rung before.
            let listeners = live(&mut self.lock().listeners);
            for listener in listeners {
                // One that is full says so when it has room again.
                if listener.welcome() {
                    fds.push(readable(listener.fd()));
                }
            }
            let datagrams = live(&mut self.lock().datagrams);
            for socket in datagrams {
                socket.serve();
                fds.push(readable(socket.number()));
            }
            let due = self.probe(bell::now());
            let wait = due.map(|at| at.saturating_duration_since(bell::now()));
            if bell::sleep(&mut fds, wait).is_err() {
                std::thread::yield_now();
            }
        }
    }

    /// Probes those whose time has come; says when that is next.
    fn probe(&self, now: Instant) -> Option<Instant> {
        let mut work = self.lock();
        let mut due = Vec::new();
        work.probes.retain_mut(|(stream, at)| {
            let Some(stream) = stream.upgrade() else { return false };
            if !stream.lock().settings.keepalive {
                return false;
            }
            if *at <= now {
                *at = now + idle_time(&stream);
                due.push(stream);
            }
            true
        });
        let next = work.probes.iter().map(|(_, at)| *at).min();
        drop(work);
        for stream in due {
            stream.probe();
            // Nobody else may be there to see what comes of it.
            stream.look(|_| ());
        }
        next
    }
}

/// Those that are still there.
fn live<T>(all: &mut Vec<Weak<T>>) -> Vec<Arc<T>> {
    all.retain(|one| one.strong_count() > 0);
    all.iter().filter_map(Weak::upgrade).collect()
}
