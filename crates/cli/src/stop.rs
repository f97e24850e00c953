//! Stops the command when the user interrupts it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Installs the handler: the first interrupt requests a stop, the second ends the process.
pub(crate) fn watch() -> anyhow::Result<()> {
    let stop = Arc::clone(FLAG.get_or_init(Arc::default));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(())
}

/// Whether a stop was requested.
pub(crate) fn requested() -> bool {
    FLAG.get().is_some_and(|stop| stop.load(Ordering::Relaxed))
}

/// Requests a stop as if the user had interrupted the program. An end that fails calls this, so
/// that the other end in this process does not wait for it.
pub(crate) fn request() {
    FLAG.get_or_init(Arc::default).store(true, Ordering::Relaxed);
}
