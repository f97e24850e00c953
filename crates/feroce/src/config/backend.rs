//! The backend: the setting, and what a command line chooses instead.

use std::str::FromStr;
use std::sync::atomic::{AtomicU8, Ordering};

use super::Settings;

/// The backend: which devices are listed.
///
/// ```
/// use feroce::{Backend, Device, Settings};
///
/// let settings = Settings { backend: Backend::RdmaCore, ..Settings::load()? };
/// match Device::list_with(&settings) {
///     Ok(devices) => println!("the kernel has {} devices", devices.len()),
///     Err(e) => println!("{e}"), // rdma-core is not installed
/// }
/// # Ok::<(), feroce::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Backend {
    /// The software adapter of this crate.
    #[default]
    Feroce,
    /// The kernel's drivers, by way of rdma-core: network adapters that speak RDMA, and Soft-RoCE.
    /// The libraries are loaded on first use.
    RdmaCore,
}

impl Backend {
    /// The names of the backends in settings.
    pub const NAMES: [&str; 2] = ["feroce", "rdma-core"];

    /// From now on, every [`Settings::load`] of this process returns this backend, regardless of
    /// the file and the environment.
    pub fn choose(self) {
        CHOSEN.store(self as u8 + 1, Ordering::Relaxed);
    }
}

/// The backend of [`Backend::choose`], plus one; 0 if it was not called.
static CHOSEN: AtomicU8 = AtomicU8::new(0);

impl FromStr for Backend {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "feroce" => Ok(Self::Feroce),
            "rdma-core" => Ok(Self::RdmaCore),
            _ => Err(format!("expected {}", Self::NAMES.join(" or "))),
        }
    }
}

/// The chosen backend overrides what the file and the environment say.
pub(super) fn apply_chosen(settings: &mut Settings) {
    match CHOSEN.load(Ordering::Relaxed) {
        0 => {}
        1 => settings.backend = Backend::Feroce,
        _ => settings.backend = Backend::RdmaCore,
    }
}
