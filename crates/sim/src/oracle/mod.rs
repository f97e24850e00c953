//! What must be true, whatever the wire does.
//!
//! * `memory`: every byte of every region is what the model says, and so no byte outside a grant
//!   was ever touched.
//! * `queue`: every work request completes once, in order, with what it was told to report.

mod memory;
mod queue;

use std::fmt;

pub use memory::Memory;
pub use queue::{RecvLedger, SendLedger};

/// Something that must not happen did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Which oracle noticed.
    pub oracle: &'static str,
    /// What it saw.
    pub what: String,
}

impl Violation {
    /// Made by `oracle`.
    pub fn new(oracle: &'static str, what: impl Into<String>) -> Self {
        Self { oracle, what: what.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.oracle, self.what)
    }
}

impl core::error::Error for Violation {}
