//! Faults that change while a link runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

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
    /// What happened to packets of the train that arrived last, by their places in it.
    marks: Mutex<Vec<(usize, &'static str)>>,
    /// How often it was set.
    changes: AtomicU64,
}

impl FaultSwitch {
    /// With these faults to begin with.
    pub fn new(config: FaultConfig) -> Self {
        let (config, marks) = (Mutex::new(config), Mutex::default());
        Self { config, marks, changes: AtomicU64::new(0) }
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

    /// A train has arrived: what happened to the one before is forgotten.
    pub(super) fn begin(&self) {
        self.locked().clear();
    }

    /// Something has happened to a packet of the train.
    pub(super) fn mark(&self, place: usize, mark: &'static str) {
        self.locked().push((place, mark));
    }

    /// What happened to packets of the train that arrived last. Layers below that record packets
    /// ask this when they have passed a train on.
    pub(crate) fn marks(&self) -> Vec<(usize, &'static str)> {
        self.locked().clone()
    }

    fn locked(&self) -> MutexGuard<'_, Vec<(usize, &'static str)>> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often it was set.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }
}
