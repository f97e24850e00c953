//! Whose devices commands use.

use feroce::{Backend, Error, Settings};

/// The names of backends, for the command line.
pub(crate) const NAMES: [&str; 2] = Backend::NAMES;

/// What the user said on the command line goes before everything that settings say.
pub(crate) fn choose(name: &str) {
    // The command line takes no other names.
    if let Ok(backend) = name.parse::<Backend>() {
        backend.choose();
    }
}

/// Whether devices are those of the kernel's drivers. They have addresses of interfaces, and none
/// of the loopback.
pub(crate) fn is_kernels() -> Result<bool, Error> {
    Ok(Settings::load()?.backend == Backend::RdmaCore)
}
