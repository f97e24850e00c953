//! Waiting until processes of the host have finished copies under rights that were revoked: the
//! engine's queue pairs wait as a state, and are polled here; a caller of the API waits without the
//! lock.

use std::time::Duration;

use feroce_engine::Engine;
use feroce_train::{Instant, Revocation};

use super::{Driver, State};

/// How soon to look again whether a copy has ended, and how seldom at most if it lasts.
const SOON_NS: u64 = 10_000;
const SELDOM_NS: u64 = 1_000_000;

/// How often a caller offers its processor to the process that it waits for before it sleeps.
const YIELDS: u32 = 100;

/// When the revocations that the engine waits for are looked at.
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
    /// Lets queue pairs go on whose revocations are over. Says whether there were any.
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

    /// When to look again.
    pub(super) fn deadline(&self, engine: &Engine) -> Option<Instant> {
        engine.awaits_revocation().then_some(self.next)
    }
}

impl Driver {
    /// Runs a control operation that ends rights to memory, and waits, without the lock, until no
    /// process of the host copies under them any more. `revoked` says under the lock what to wait
    /// for.
    pub(crate) fn control_until_quiet<R>(
        &self,
        f: impl FnOnce(&mut State, Instant) -> (R, Option<Revocation>),
    ) -> R {
        let (result, revocation) = self.control(f);
        if let Some(revocation) = revocation {
            self.wait_until_quiet(revocation);
        }
        result
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
