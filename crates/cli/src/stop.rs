//! Stopping when the user says so.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on, the first interrupt asks to stop and the second kills.
pub(crate) fn watch() -> anyhow::Result<()> {
    let stop = Arc::clone(FLAG.get_or_init(Arc::default));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(())
}

/// Whether the user wants to stop.
pub(crate) fn requested() -> bool {
    FLAG.get().is_some_and(|stop| stop.load(Ordering::Relaxed))
}

/// Requests a stop as if the user had interrupted the program. An end that fails calls this, so
/// that the other end in this process does not wait for it.
pub(crate) fn request() {
    FLAG.get_or_init(Arc::default).store(true, Ordering::Relaxed);
}
