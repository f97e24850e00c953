//! Which id of the program an event is about.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::abi::*;
use crate::verbs::registry::Listed;

/// Ids by their number. An id in the table lives at least as long as the lock is held.
pub(crate) type Ids = BTreeMap<u64, Listed<rdma_cm_id>>;

static IDS: Mutex<Ids> = Mutex::new(Ids::new());

/// Locks the table. A thread that holds the lock may call the adapter, which never calls back.
pub(crate) fn lock() -> MutexGuard<'static, Ids> {
    IDS.lock().unwrap_or_else(PoisonError::into_inner)
}
