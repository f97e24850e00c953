//! The one error every fixed-length header shares.

use core::fmt;

/// The slice is shorter than what has to be read from it or written to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Truncated;

impl fmt::Display for Truncated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the bytes end before the header does")
    }
}

impl core::error::Error for Truncated {}
