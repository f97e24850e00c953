//! Events that a program has got and not yet acknowledged.
//!
//! An event names its object by pointer, so the object must not go away before the program says
//! that it is done with the event: destroying waits.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use feroce_lint as lint;

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

    /// Waits until every event has been acknowledged. If that takes long, the user is told which
    /// call waits, and for which call: a program that forgot it would hang without a word.
    pub(crate) fn settle(&self, call: &str, acknowledge: &str) {
        let owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        let patience = Duration::from_secs(if lint::is_on() { 1 } else { 10 });
        let waited = self.paid.wait_timeout_while(owed, patience, |owed| *owed > 0);
        let (owed, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if *owed > 0 {
            let events = if *owed == 1 { "event is" } else { "events are" };
            let text = format!(
                "{call} waits because {owed} {events} not acknowledged: call {acknowledge} for \
                 every event that you get"
            );
            if lint::is_on() { lint::call_hangs(&text) } else { tracing::warn!("{text}") }
        }
        let paid = self.paid.wait_while(owed, |owed| *owed > 0);
        drop(paid.unwrap_or_else(PoisonError::into_inner));
    }
}
