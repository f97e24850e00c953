//! Objects leave the adapter once: when they are told to, or when the last handle is dropped.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::Error;

/// Whether an object is still in the adapter.
#[derive(Debug)]
pub(crate) struct Life(AtomicBool);

impl Life {
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(true))
    }

    /// Runs `end` unless it has succeeded before: the name of the object may be another's by now.
    pub(crate) fn end<E: Into<Error>>(
        &self,
        end: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), Error> {
        if self.0.load(Ordering::Acquire) {
            end().map_err(Into::into)?;
            self.0.store(false, Ordering::Release);
        }
        Ok(())
    }
}
