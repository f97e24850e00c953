//! What must be true, whatever the fabric does.
//!
//! * [`Memory`]: every byte of every region is what the model says, so no byte outside a grant was
//!   written.
//! * [`SendLedger`], [`RecvLedger`]: every work request completes once and in order.

mod memory;
mod queue;

use std::fmt;

pub use memory::Memory;
pub use queue::{RecvLedger, SendLedger};

/// A property does not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Which oracle found it.
    pub oracle: &'static str,
    /// What it found.
    pub what: String,
}

impl Violation {
    /// Found by `oracle`.
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
