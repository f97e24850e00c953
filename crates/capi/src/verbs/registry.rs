//! Which object of a context an event is about.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use feroce::{CqId, Qpn, SrqId};

use super::object::Object;
use crate::abi::*;

/// The objects of a context, by the names that the adapter gives them.
#[derive(Default)]
pub(crate) struct Registry(Mutex<Tables>);

/// The tables, locked. An object in them lives at least as long as the lock is held.
#[derive(Default)]
pub(crate) struct Tables {
    pub(crate) cqs: BTreeMap<CqId, Listed<ibv_cq_ex>>,
    pub(crate) qps: BTreeMap<Qpn, Listed<ibv_qp_ex>>,
    pub(crate) srqs: BTreeMap<SrqId, Listed<ibv_srq>>,
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

/// An object that the program owns, by the structure of the C header that it begins with. So the
/// tables stand below the objects, which find their context and its tables.
#[derive(Debug)]
pub(crate) struct Listed<C>(*mut C);

impl<C> Clone for Listed<C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C> Copy for Listed<C> {}

// SAFETY: the value is a pointer. `get` makes a reference from it only to a type that threads may
// share, and a destructor removes the object from the tables before it frees it.
unsafe impl<C> Send for Listed<C> {}

impl<C> Listed<C> {
    pub(crate) fn new<T: Object<C = C> + Sync>(object: &T) -> Self {
        Self(object.public())
    }

    /// Whether it is this object.
    pub(crate) fn is<T: Object<C = C>>(self, object: &T) -> bool {
        core::ptr::eq(self.0, object.public())
    }

    /// The object.
    ///
    /// # Safety
    /// The object is a `T` in the tables, whose lock this thread holds for `'a`.
    pub(crate) unsafe fn get<'a, T: Object<C = C> + Sync>(self) -> &'a T {
        // SAFETY: by this function's contract the object is in the tables and they stay locked for
        // `'a`; its destructor takes that lock before it frees the object.
        unsafe { T::of(self.0) }
    }
}
