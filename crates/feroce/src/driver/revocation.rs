//! Waiting until peer processes of the host have finished copies under revoked access rights. For a
//! queue pair of the engine the wait is a state, which the driver polls here; a caller of the API
//! waits without the lock.

use std::time::Duration;

use feroce_engine::Engine;
use feroce_mem::Revocation;
use feroce_train::Instant;

use super::{Driver, State, Turn};

/// How long an operation that ends rights to memory waits for a link that is full: a network drains
/// within microseconds, a slow fabric within milliseconds.
const READS_NS: u64 = 20_000_000;

/// Shortest and longest pause between two checks whether a copy has ended; the pause doubles while
/// the copy lasts. A copy of 100 KB takes about the shortest; a check every millisecond costs next
/// to nothing where a process is stopped in the middle of a copy.
const SOON_NS: u64 = 10_000;
const SELDOM_NS: u64 = 1_000_000;

/// How often a waiting caller yields its processor to the peer process before it sleeps: some tens
/// of microseconds, within which most copies end and which a sleep would take at least.
const YIELDS: u32 = 100;

/// When the driver checks the revocations that the engine waits for.
#[derive(Debug)]
pub(super) struct Looks {
    next: Instant,
    pause_ns: u64,
}

impl Default for Looks {
    fn default() -> Self {
        Self { next: Instant::ZERO, pause_ns: SOON_NS }
    }
}

impl Looks {
    /// Lets queue pairs continue whose revocations are complete. Returns whether there were any.
    #[inline]
    pub(super) fn look(&mut self, engine: &mut Engine, now: Instant) -> bool {
        engine.awaits_revocation() && self.look_closer(engine, now)
    }

    #[cold]
    fn look_closer(&mut self, engine: &mut Engine, now: Instant) -> bool {
        let Some(host_memory) = engine.host_memory().cloned().filter(|_| now >= self.next) else {
            return false;
        };
        let any = engine.poll_revocations(&mut |revocation| host_memory.is_quiet(revocation));
        self.pause_ns = if any { SOON_NS } else { (2 * self.pause_ns).min(SELDOM_NS) };
        self.next = now.plus_nanos(self.pause_ns);
        any
    }

    /// When to check again.
    pub(super) fn deadline(&self, engine: &Engine) -> Option<Instant> {
        engine.awaits_revocation().then_some(self.next)
    }
}

impl Driver {
    /// Runs a control operation that revokes access rights to memory, and waits, without the lock,
    /// until no process of the host copies under them any more. `f` runs under the lock and returns
    /// the revocation to wait for.
    pub(crate) fn control_until_quiet<R>(
        &self,
        f: impl FnOnce(&mut State, Instant) -> (R, Option<Revocation>),
    ) -> R {
        let (result, revocation) = self.control(f);
        self.end_rights(revocation);
        result
    }

    /// Waits until no process of the host copies under revoked rights, and until no train reads
    /// memory under them.
    pub(super) fn end_rights(&self, revocation: Option<Revocation>) {
        if let Some(revocation) = revocation {
            self.wait_until_quiet(revocation);
        }
        self.end_reads();
    }

    /// Waits until the link has sent the trains that the engine has given out so far, which read
    /// memory: the program may unmap the memory of a queue pair that has ended. If the link stays
    /// full, those trains are discarded, and the transport repeats what still matters.
    fn end_reads(&self) {
        let (since, given) = (self.now(), self.link().given());
        loop {
            let mut link = self.link();
            let now = self.now();
            if link.waiting_of(given) == 0 {
                drop(link);
                self.answer_bell();
                return;
            }
            // In a simulated world time stands still meanwhile.
            let is_over = self.clock.is_virtual() || now.nanos_since(since) >= READS_NS;
            if is_over {
                link.discard_reads(given);
            }
            self.finish(link, now, Turn::Send);
            if is_over {
                return;
            }
            std::thread::yield_now();
        }
    }

    #[expect(clippy::disallowed_methods, reason = "the caller asked for something that takes time")]
    fn wait_until_quiet(&self, revocation: Revocation) {
        let Some(host_memory) = &self.host_memory else { return };
        let mut pause_ns = SOON_NS;
        for look in 0_u64.. {
            if host_memory.is_quiet(revocation) {
                return;
            }
            if look < u64::from(YIELDS) {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_nanos(pause_ns));
                pause_ns = (2 * pause_ns).min(SELDOM_NS);
            }
        }
    }
}
