//! Which id of the program an event is about.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::id::Id;
use crate::verbs::registry::Listed;

/// Ids by their number. An id in the table lives at least as long as the lock is held.
pub(crate) type Ids = BTreeMap<u64, Listed<Id>>;

static IDS: Mutex<Ids> = Mutex::new(Ids::new());

/// Locks the table. Whoever holds it may call into the adapter, which never calls back.
pub(crate) fn lock() -> MutexGuard<'static, Ids> {
    IDS.lock().unwrap_or_else(PoisonError::into_inner)
}
