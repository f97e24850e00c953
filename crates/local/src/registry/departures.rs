//! Processes that have gone, for a consumer that ends their connections.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use feroce_wire::Gid;

use super::Registry;

/// A process that has gone: it has closed its device, or has died.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Departure {
    /// What [`Registry::prefix`] was there.
    pub prefix: u8,
    /// The addresses that it had.
    pub addresses: Vec<Gid>,
}

/// Departures that the consumer has not taken yet.
#[derive(Debug, Default)]
pub(super) struct Departures {
    /// A consumer takes them.
    is_wanted: AtomicBool,
    is_any: AtomicBool,
    list: Mutex<Vec<Departure>>,
}

impl Registry {
    /// From now on, [`Registry::take_departures`] returns other processes that have gone.
    pub fn want_departures(&self) {
        self.departures.is_wanted.store(true, Ordering::Relaxed);
    }

    /// Whether [`Registry::take_departures`] would return one.
    #[inline]
    pub fn has_departures(&self) -> bool {
        self.departures.is_any.load(Ordering::Acquire)
    }

    /// The processes that have gone since the last call. Everything that they sent was received
    /// before.
    pub fn take_departures(&self) -> Vec<Departure> {
        let mut list = self.departures.list.lock().unwrap_or_else(PoisonError::into_inner);
        self.departures.is_any.store(false, Ordering::Release);
        std::mem::take(&mut *list)
    }

    pub(crate) fn wants_departures(&self) -> bool {
        self.departures.is_wanted.load(Ordering::Relaxed)
    }

    pub(crate) fn add_departure(&self, departure: Departure) {
        let mut list = self.departures.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.push(departure);
        self.departures.is_any.store(true, Ordering::Release);
    }
}
