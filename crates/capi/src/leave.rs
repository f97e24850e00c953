//! What the library does when the process exits.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::{files, lint, verbs};

static HAS_BEGUN: AtomicBool = AtomicBool::new(false);

/// Whether the process exits. Its other threads go on until it has.
pub(crate) fn has_begun() -> bool {
    HAS_BEGUN.load(Ordering::Relaxed)
}

extern "C" fn at_exit() {
    HAS_BEGUN.store(true, Ordering::Relaxed);
    verbs::adapter::take_leave();
    lint::list_leaks();
    files::leave();
}

/// Called by the dynamic linker at exit.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;
