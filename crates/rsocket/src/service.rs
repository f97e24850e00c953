//! A thread for work that no call does: it accepts connections for listeners, takes datagrams that
//! arrive through the kernel, and probes idle peers of sockets with `SO_KEEPALIVE`. It starts with
//! the first socket that needs it, and sleeps while it has nothing to do.

use core::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use feroce::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};

use crate::wakeup::{self, Wakeup, readable};

/// A socket whose arrivals the thread takes.
pub(crate) trait Served: Send + Sync {
    /// Takes what has arrived. Returns the descriptor that becomes readable when more arrives;
    /// none if the socket cannot take more before it calls [`wake`].
    fn serve(&self) -> Option<c_int>;
}

/// A socket whose idle peer the thread probes.
pub(crate) trait KeptAlive: Send + Sync {
    /// Time between probes; none if the program does not want probes any more.
    fn keepalive_interval(&self) -> Option<Duration>;

    /// Sends a probe, and takes the result of earlier ones.
    fn probe_peer(&self);
}

/// A socket to be probed, and when.
type Probe = (Weak<dyn KeptAlive>, Instant);

/// The sockets of the thread. They are weak, so that a socket ends when the program closes it.
#[derive(Default)]
struct Sockets {
    served: Vec<Weak<dyn Served>>,
    probes: Vec<Probe>,
}

struct Service {
    wakeup: Wakeup,
    sockets: Mutex<Sockets>,
}

/// The service and the id of its process: a child has none of its parent's threads.
static SERVICE: Mutex<Option<(u32, Arc<Service>)>> = Mutex::new(None);

fn slot() -> MutexGuard<'static, Option<(u32, Arc<Service>)>> {
    SERVICE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The service of this process, started if it does not run yet.
fn service() -> Result<Arc<Service>, Errno> {
    let mut slot = slot();
    let process = std::process::id();
    if let Some((of, service)) = &*slot
        && *of == process
    {
        return Ok(Arc::clone(service));
    }
    let service = Arc::new(Service { wakeup: Wakeup::new()?, sockets: Mutex::default() });
    let runs = Arc::clone(&service);
    without_signals(|| {
        std::thread::Builder::new().name("rsocket".to_owned()).spawn(move || runs.run())
    })?;
    *slot = Some((process, Arc::clone(&service)));
    Ok(service)
}

/// Starts a thread, which inherits a mask that blocks all signals: their handlers belong to the
/// program's threads. `SIGBUS` stays open, because the thread itself causes it when it touches
/// mapped memory that has been truncated.
fn without_signals<R>(start: impl FnOnce() -> R) -> R {
    let mut mask = SigSet::all();
    mask.remove(Signal::SIGBUS);
    let before = mask.thread_swap_mask(SigmaskHow::SIG_SETMASK);
    let started = start();
    if let Ok(before) = before {
        // It was the mask of this thread before, so it is valid.
        let _ = before.thread_set_mask();
    }
    started
}

/// Wakes the service, if it runs, to look at its sockets again.
pub(crate) fn wake() {
    if let Some((_, service)) = &*slot() {
        service.wakeup.notify();
    }
}

/// From now on the service takes arrivals of this socket.
pub(crate) fn serve(socket: Weak<dyn Served>) -> Result<(), Errno> {
    let service = service()?;
    service.lock().served.push(socket);
    service.wakeup.notify();
    Ok(())
}

/// From now on the service probes the peer of this socket.
pub(crate) fn keep_alive(socket: Weak<dyn KeptAlive>, interval: Duration) -> Result<(), Errno> {
    let service = service()?;
    let due = wakeup::now() + interval;
    let mut sockets = service.lock();
    match sockets.probes.iter_mut().find(|(known, _)| known.ptr_eq(&socket)) {
        Some((_, at)) => *at = due,
        None => sockets.probes.push((socket, due)),
    }
    drop(sockets);
    service.wakeup.notify();
    Ok(())
}

impl Service {
    fn lock(&self) -> MutexGuard<'_, Sockets> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        loop {
            self.wakeup.clear();
            let mut fds = vec![readable(self.wakeup.fd())];
            // A socket that is closed while the thread sleeps calls `wake`, so that its descriptor
            // leaves the list.
            let served = live(&mut self.lock().served);
            fds.extend(served.iter().filter_map(|socket| socket.serve()).map(readable));
            drop(served);
            let due = self.probe(wakeup::now());
            let wait = due.map(|at| at.saturating_duration_since(wakeup::now()));
            if wakeup::sleep(&mut fds, wait).is_err() {
                std::thread::yield_now();
            }
        }
    }

    /// Sends the probes that are due; returns when the next one is.
    fn probe(&self, now: Instant) -> Option<Instant> {
        let mut sockets = self.lock();
        let mut due = Vec::new();
        sockets.probes.retain_mut(|(socket, at)| {
            let Some(socket) = socket.upgrade() else { return false };
            let Some(interval) = socket.keepalive_interval() else { return false };
            if *at <= now {
                *at = now + interval;
                due.push(socket);
            }
            true
        });
        let next = sockets.probes.iter().map(|(_, at)| *at).min();
        drop(sockets);
        due.iter().for_each(|socket| socket.probe_peer());
        next
    }
}

/// The sockets that the program has not closed.
fn live(all: &mut Vec<Weak<dyn Served>>) -> Vec<Arc<dyn Served>> {
    all.retain(|one| one.strong_count() > 0);
    all.iter().filter_map(Weak::upgrade).collect()
}
