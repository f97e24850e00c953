//! Somebody else who wants a processor.

use std::hint::spin_loop;

/// Keeps a processor busy until it is killed.
pub(crate) fn spin() -> ! {
    loop {
        spin_loop();
    }
}
