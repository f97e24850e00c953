//! What the library does when the process exits.

use std::sync::atomic::{AtomicBool, Ordering};

use feroce_lint as lint;

use crate::{files, verbs};

static HAS_BEGUN: AtomicBool = AtomicBool::new(false);

/// Whether the process is exiting. Its other threads run on until the end.
pub(crate) fn has_begun() -> bool {
    HAS_BEGUN.load(Ordering::Relaxed)
}

extern "C" fn at_exit() {
    HAS_BEGUN.store(true, Ordering::Relaxed);
    verbs::adapter::shut_down();
    if lint::is_on() {
        lint::process_exits(verbs::adapter::counters());
    }
    files::leave();
}

/// Called by the dynamic linker at exit.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;
