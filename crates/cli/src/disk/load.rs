//! What `feroce disk bench` does to a disk.

use std::fmt;
use std::time::Duration;

/// In which order blocks are read and written; the names are fio's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Pattern {
    /// Read from the beginning to the end, again and again.
    Read,
    /// Write likewise.
    Write,
    /// Read anywhere.
    Randread,
    /// Write anywhere.
    Randwrite,
    /// Read and write anywhere, half of each.
    Randrw,
}

impl Pattern {
    /// Its name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Randread => "randread",
            Self::Randwrite => "randwrite",
            Self::Randrw => "randrw",
        }
    }

    /// Whether it writes.
    pub(super) fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Randwrite | Self::Randrw)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// When a measurement ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Amount {
    Commands(u64),
    Time(Duration),
}
