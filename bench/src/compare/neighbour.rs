//! A process that keeps a processor busy beside the ends that are measured.

use std::hint::spin_loop;

/// Keeps a processor busy until it is killed.
pub(crate) fn spin() -> ! {
    loop {
        spin_loop();
    }
}
