//! Objects leave the adapter once: when a caller destroys them, or when the last handle is dropped.

use feroce_engine::DestroyError;
use feroce_ring::Unclaimed;

use crate::Error;

/// Whether an object is still in the adapter.
#[derive(Debug)]
pub(crate) struct Life(feroce_ring::Life);

impl Life {
    pub(crate) fn new() -> Self {
        Self(feroce_ring::Life::new())
    }

    /// Runs `end` unless it has succeeded before: another object may have the id by now. If another
    /// thread runs it at the moment, the object is busy.
    pub(crate) fn end<E: Into<Error>>(
        &self,
        end: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), Error> {
        match self.0.claim() {
            Ok(claim) => {
                end().map_err(Into::into)?;
                claim.finish();
                Ok(())
            }
            Err(Unclaimed::Ended) => Ok(()),
            Err(Unclaimed::Ending) => Err(DestroyError::Busy.into()),
        }
    }
}
