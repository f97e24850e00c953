//! Faults that change while a link runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::FaultConfig;

/// The faults of a [`Fault`](super::Fault), or of
/// [`StreamFaults`](crate::tcp::StreamFaults), for their owner to change while the link runs.
///
/// ```
/// # use feroce_link::{FaultConfig, FaultSwitch};
/// let switch = FaultSwitch::new(FaultConfig::default());
/// switch.set("loss=1%".parse()?);
/// assert_eq!(switch.get().to_string(), "loss=1%");
/// # Ok::<(), feroce_link::FaultParseError>(())
/// ```
#[derive(Debug)]
pub struct FaultSwitch {
    config: Mutex<FaultConfig>,
    /// How often it was set.
    changes: AtomicU64,
}

impl FaultSwitch {
    /// With these faults to begin with.
    pub fn new(config: FaultConfig) -> Self {
        Self { config: Mutex::new(config), changes: AtomicU64::new(0) }
    }

    /// The faults now.
    pub fn get(&self) -> FaultConfig {
        self.config.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Other faults, for packets that arrive from now on. Packets that the link has delayed arrive
    /// when they were to. The random number generators begin with the seed of `config`.
    pub fn set(&self, config: FaultConfig) {
        let mut current = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        *current = config;
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// How often it was set.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }
}
