//! The driver thread: it drives the engine when no other thread does.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use feroce_link::Logger;
use feroce_train::Instant;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};

use super::state::State;
use super::{Driver, NEVER, Turn, Wakes};
use crate::device::monitor::{Known, Monitor};

/// How long the thread stays awake after it had something to do: a few times what it costs the
/// sender of the next packet to wake it.
const LINGER_NS: u64 = 20_000;

/// How often the thread looks for processes that look into the device, while it does not sleep.
const WATCH_NS: u64 = 20_000_000;

/// Starts the thread.
pub(super) fn spawn(
    driver: Arc<Driver>,
    name: &str,
    monitor: Option<Monitor>,
) -> io::Result<JoinHandle<()>> {
    let builder = std::thread::Builder::new().name(name.to_owned());
    // Signals are for the program: if it waits for them, or blocks them in its own threads, the
    // kernel must not deliver them to this thread, which inherits the mask set here. The exception
    // is SIGBUS, which the kernel delivers to the thread that accesses missing memory (see
    // `sigbus`).
    let mut others = SigSet::all();
    others.remove(Signal::SIGBUS);
    let before = others.thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let device = name.to_owned();
    let spawned = builder.spawn(move || run(&driver, &device, monitor.as_ref()));
    before.thread_set_mask()?;
    spawned
}

fn run(driver: &Driver, device: &str, monitor: Option<&Monitor>) {
    let monitor_fd = monitor.map(Monitor::fd);
    // Made when a consumer polls for the first time: a device that is not used costs less.
    let mut kick = None;
    // The kernel did not announce changes between the listing of the device and the start of this
    // thread's monitor, so the thread looks at the interface once.
    let mut follow = Follow { monitor, looks_left: 0 };
    follow.look(driver);
    while !driver.stop.load(Ordering::Relaxed) {
        let now = driver.now();
        if driver.idle_ns(now).is_some() {
            // A consumer polls, and drives the link and the timers, too. It may have asked for an
            // event just now and gone to sleep, so the loop checks again after `begin_idle`.
            driver.sleeper.begin_idle();
            if kick.is_none() {
                let fd = driver.at_link(|link| link.kick_fd().map(|fd| fd.try_clone_to_owned()));
                kick = fd.and_then(Result::ok);
            }
            while !driver.stop.load(Ordering::Relaxed)
                && let Some(wait_ns) = driver.idle_ns(driver.now())
            {
                let woken = driver.sleep(monitor_fd, kick.as_ref(), wait_ns);
                if woken.by_interface {
                    follow.look(driver);
                }
                if woken.by_watcher {
                    driver.answer_watchers(device);
                }
                if kick.as_ref().is_some_and(is_kicked) {
                    // A peer process kicked this one, so the consumer does not poll any more: it
                    // may read its memory, or do something else.
                    driver.kicked_at.store(driver.now().as_nanos(), Ordering::Relaxed);
                }
            }
            let link = driver.link();
            driver.sleeper.end_idle();
            drop(link);
            driver.answer_bell();
            continue;
        }
        let mut link = driver.link();
        let (of_engine, acks_wait) =
            driver.read(|state| (state.deadline(), state.engine.has_held_acks()));
        let deadline = of_engine.into_iter().chain(link.deadline(now)).min();
        link.set_looks(false);
        let may_sleep = link.arm(now);
        driver.sleeper.plan(deadline.map(Instant::as_nanos));
        drop(link);
        let wait_ns = deadline.map_or(NEVER, |at| at.nanos_since(now)).min(follow.wait_ns());
        // Another thread may have rung a doorbell while this one owned the link, and left the work
        // to it.
        let is_rung = driver.doorbells.is_rung_meanwhile();
        let woken = (wait_ns > 0 && !acks_wait && may_sleep && !is_rung)
            .then(|| driver.sleep(monitor_fd, Some(driver.backoff.link()), wait_ns));
        if let Some(woken) = woken {
            if woken.by_interface || follow.looks_left > 0 {
                follow.look(driver);
            }
            if woken.by_watcher {
                driver.answer_watchers(device);
            }
        }
        driver.sleeper.woke();
        linger(driver, device);
    }
}

/// Drives until nothing has happened for [`LINGER_NS`]. Where packets arrive one after the other,
/// sleeping between them and being woken by their sender costs both sides more than the packets do.
///
/// A consumer may wait for a message by reading its memory instead of polling. If it answers, the
/// acknowledgement travels with the answer, for the sake of a peer that polls: a peer that gets the
/// acknowledgement first takes its completion, stops polling and reads its own memory next, where
/// only its driver thread could deliver the answer.
fn linger(driver: &Driver, device: &str) {
    let mut now = driver.now();
    let (mut last, mut looked) = (now, now);
    driver.sleeper.begin_idle();
    // This thread waits for the link, because its current owner may not see the event that woke
    // this thread.
    let mut link = Some(driver.link());
    let claim = driver.claim_link();
    loop {
        let turn = if driver.is_consumer_about(now) { Turn::Serve } else { Turn::Receive };
        if link.is_some_and(|link| driver.finish(link, now, turn)) {
            last = now;
        }
        now = driver.now();
        if now.nanos_since(last) >= LINGER_NS
            || driver.stop.load(Ordering::Relaxed)
            || driver.idle_ns(now).is_some()
            || claim.as_ref().is_some_and(|claim| claim.is_over())
            || !driver.backoff.yield_processor(&driver.clock)
        {
            break;
        }
        if now.nanos_since(looked) >= WATCH_NS {
            looked = now;
            driver.answer_watchers(device);
        }
        link = match &claim {
            Some(claim) => claim.try_link(),
            None => driver.try_link(),
        };
    }
    drop(claim);
    let link = driver.link();
    driver.sleeper.end_idle();
    if driver.read(|state| state.engine.has_held_acks()) {
        driver.finish(link, now, Turn::Receive);
    } else {
        drop(link);
        driver.answer_bell();
    }
}

/// Whether a peer process has kicked this one since the last call.
fn is_kicked(kick: &OwnedFd) -> bool {
    let mut ignored = [0; 64];
    nix::unistd::read(kick, &mut ignored).is_ok_and(|len| len > 0)
}

/// How often the driver thread tries again to bind a port that is in use, and how long it waits in
/// between: a process that shares the address and has just ended may hold the port for a moment.
/// The kernel closes its descriptors within milliseconds; after 200 ms the port has another owner.
const BIND_LOOKS: u32 = 40;
const BIND_PAUSE_NS: u64 = 5_000_000;

/// Follows the interface of the device.
struct Follow<'a> {
    monitor: Option<&'a Monitor>,
    /// How often to look again although the kernel announces no change.
    looks_left: u32,
}

impl Follow<'_> {
    /// How long to sleep at most.
    fn wait_ns(&self) -> u64 {
        if self.looks_left > 0 { BIND_PAUSE_NS } else { NEVER }
    }

    /// The interface may have changed.
    fn look(&mut self, driver: &Driver) {
        let left = self.looks_left.checked_sub(1).unwrap_or(BIND_LOOKS);
        self.looks_left = 0;
        match self.monitor.map_or(Ok(None), Monitor::look) {
            Ok(Some(ground)) => {
                let is_complete = driver.control_link(|state, link, _| {
                    let log = Logger::new(Arc::<Wakes>::clone(state.dispatch.wakes()));
                    let State { engine, is_up, subnet, .. } = state;
                    ground.apply(engine, &mut **link, Known { is_up, subnet }, &log)
                });
                self.looks_left = if is_complete { 0 } else { left };
            }
            Ok(None) => {}
            Err(e) => tracing::warn!("cannot look at what the device stands on: {e}"),
        }
    }
}
