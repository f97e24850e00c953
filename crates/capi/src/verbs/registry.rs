//! Which object of a context an event is about.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use feroce::{CqId, Qpn, SrqId};

use crate::verbs::cq::Cq;
use crate::verbs::qp::Qp;
use crate::verbs::srq::Srq;

/// The objects of a context, by the names that the adapter gives them.
#[derive(Default)]
pub(crate) struct Registry(Mutex<Tables>);

/// The tables, locked. An object in them lives at least as long as the lock is held.
#[derive(Default)]
pub(crate) struct Tables {
    pub(crate) cqs: BTreeMap<CqId, Listed<Cq>>,
    pub(crate) qps: BTreeMap<Qpn, Listed<Qp>>,
    pub(crate) srqs: BTreeMap<SrqId, Listed<Srq>>,
}

impl Tables {
    /// Whether there is nothing in them.
    pub(crate) fn is_empty(&self) -> bool {
        self.cqs.is_empty() && self.qps.is_empty() && self.srqs.is_empty()
    }
}

impl Registry {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Tables> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An object that the program owns.
#[derive(Debug)]
pub(crate) struct Listed<T>(*const T);

impl<T> Clone for Listed<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Listed<T> {}

// SAFETY: the value is a pointer to an object that threads may share, and a destructor removes it
// from the tables before it frees the object.
unsafe impl<T: Sync> Send for Listed<T> {}

impl<T> Listed<T> {
    pub(crate) fn new(object: &T) -> Self {
        Self(object)
    }

    /// The object.
    ///
    /// # Safety
    /// The object is in the tables, whose lock this thread holds for `'a`.
    pub(crate) unsafe fn get<'a>(self) -> &'a T {
        // SAFETY: by this function's contract the object is in the tables and they stay locked for
        // `'a`; its destructor takes that lock before it frees the object.
        unsafe { &*self.0 }
    }
}
