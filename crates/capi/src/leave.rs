//! What the library does when the process exits.

use core::ffi::{c_int, c_void};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

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
    let status = STATUS.load(Ordering::Relaxed);
    let fails = lint::is_on() && lint::process_exits(status, verbs::adapter::counters());
    files::leave();
    if fails {
        // The C library would write its buffers after the functions that run at exit.
        // SAFETY: the call has no preconditions, and NULL stands for all streams.
        unsafe { libc::fflush(core::ptr::null_mut()) };
        // SAFETY: the call has no preconditions.
        unsafe { libc::_exit(1) };
    }
}

/// The exit status of the process, once it exits.
static STATUS: AtomicI32 = AtomicI32::new(0);

extern "C" fn remember(status: c_int, _: *mut c_void) {
    STATUS.store(status, Ordering::Relaxed);
}

unsafe extern "C" {
    /// Of the C library, as `atexit`, for functions that want to know the exit status.
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// Makes the exit status known to what lint says at exit. Called once lint is on.
pub(crate) fn watch_status() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: `remember` may be called at any time and uses no argument. The library is never
        // unloaded before the process exits, because it is linked or preloaded (`-z nodelete`).
        unsafe { on_exit(remember, core::ptr::null_mut()) };
    });
}

/// Called by the dynamic linker at exit.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;
