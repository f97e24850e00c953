//! The two locks of a device: that of the link, and inside it that of the engine.

use std::hint::spin_loop;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use feroce_ring::{InnerGuard, LockPair, OuterGuard, Park};

use super::{LinkSide, State};

/// How often a thread that waits looks before it sleeps: other threads have the engine's lock for
/// less time than a sleep and a wake-up take.
const SPINS: u32 = 100;

pub(super) type Locks = LockPair<LinkSide, State, Parking>;
pub(super) type LinkGuard<'a> = OuterGuard<'a, LinkSide, State, Parking>;
pub(crate) type StateGuard<'a> = InnerGuard<'a, LinkSide, State, Parking>;

/// Where threads wait for a lock.
#[derive(Debug, Default)]
pub(crate) struct Parking {
    gate: Mutex<()>,
    released: Condvar,
}

impl Parking {
    /// Keeps every thread from waiting or being woken, while the process forks.
    pub(super) fn hold(&self) -> MutexGuard<'_, ()> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Park for Parking {
    fn park_until(&self, take: &mut dyn FnMut() -> bool) {
        for _ in 0..SPINS {
            if take() {
                return;
            }
            spin_loop();
        }
        let mut gate = self.hold();
        while !take() {
            gate = self.released.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn unpark_all(&self) {
        // A thread that has failed to take a lock sleeps before it gives the gate away.
        drop(self.hold());
        self.released.notify_all();
    }
}
