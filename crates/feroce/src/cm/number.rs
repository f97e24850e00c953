//! Numbers of ids.

use std::sync::atomic::{AtomicU64, Ordering};

/// The next id number; each id of the process has its own.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// A number that no other id of the process has.
pub(crate) fn next_number() -> u64 {
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}
