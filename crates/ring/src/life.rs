//! Ending an object once, however many threads ask for it.
//!
//! An object that many threads hold has a name in a table, and the name goes to another object
//! after the first has left the table. A thread that ends an object therefore claims that first.
//!
//! # Why an object ends once
//!
//! `state` leaves [`ALIVE`] only by the compare-and-exchange of [`Life::claim`], so that of several
//! threads one gets the [`Claim`]. `state` comes back to [`ALIVE`] only when that claim is dropped,
//! and never after [`Claim::finish`]. A thread that gets the claim after another gave it back sees
//! what the other did: the drop releases, and the exchange acquires. The same holds for a thread
//! that learns that the object has ended.

use core::fmt;
use core::mem;

use crate::sync::{AtomicU32, Ordering};

/// No thread ends the object.
const ALIVE: u32 = 0;
/// A thread is ending it, and may fail to.
const ENDING: u32 = 1;
/// It has ended for good.
const ENDED: u32 = 2;

/// Whether an object is still there.
pub struct Life {
    state: AtomicU32,
}

/// Why a thread does not get the [`Claim`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unclaimed {
    /// Another thread is ending the object.
    Ending,
    /// The object has ended.
    Ended,
}

impl Life {
    /// The life of an object that is there.
    pub fn new() -> Self {
        Self { state: AtomicU32::new(ALIVE) }
    }

    /// Claims the right to end the object. Never waits for a thread that has claimed it.
    pub fn claim(&self) -> Result<Claim<'_>, Unclaimed> {
        let (won, lost) = (Ordering::Acquire, Ordering::Acquire);
        match self.state.compare_exchange(ALIVE, ENDING, won, lost) {
            Ok(_) => Ok(Claim { life: self }),
            Err(ENDED) => Err(Unclaimed::Ended),
            Err(_) => Err(Unclaimed::Ending),
        }
    }
}

impl Default for Life {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state.load(Ordering::Relaxed) {
            ALIVE => "Alive",
            ENDING => "Ending",
            _ => "Ended",
        })
    }
}

/// The right of one thread to end an object. Dropping it leaves the object alive.
#[derive(Debug)]
pub struct Claim<'a> {
    life: &'a Life,
}

impl Claim<'_> {
    /// The object has ended.
    pub fn finish(self) {
        self.life.state.store(ENDED, Ordering::Release);
        mem::forget(self);
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.life.state.store(ALIVE, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_claim_that_is_dropped_can_be_had_again() {
        let life = Life::new();
        let claim = life.claim().unwrap();
        assert_eq!(life.claim().unwrap_err(), Unclaimed::Ending);
        drop(claim);
        life.claim().unwrap().finish();
        assert_eq!(life.claim().unwrap_err(), Unclaimed::Ended);
    }
}
