//! Events that a program has got and not yet acknowledged.
//!
//! An event names its object by pointer, so the object must not go away before the program says
//! that it is done with the event: destroying waits.

use std::sync::{Condvar, Mutex, PoisonError};

/// Counts events of one object.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    owed: Mutex<u64>,
    paid: Condvar,
}

impl Acks {
    /// The program gets an event.
    pub(crate) fn deliver(&self) {
        *self.owed.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    /// The program acknowledges events.
    pub(crate) fn ack(&self, count: u64) {
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        *owed = owed.saturating_sub(count);
        if *owed == 0 {
            self.paid.notify_all();
        }
    }

    /// Waits until every event has been acknowledged.
    pub(crate) fn settle(&self) {
        let owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        let paid = self.paid.wait_while(owed, |owed| *owed > 0);
        drop(paid.unwrap_or_else(PoisonError::into_inner));
    }
}
