//! The responder's record of reads and atomics, from which it answers duplicates.
//!
//! The responder executes a duplicate read again; it must not execute an atomic again, so it keeps
//! the result (IBTA vol1 9.7.5.1). It remembers twice as many requests as the requester may have
//! outstanding.

use alloc::collections::VecDeque;

use feroce_wire::{Psn, Rkey};

/// What a remembered request did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Memory {
    /// Read of `len` bytes.
    Read { va: u64, rkey: Rkey, len: u32 },
    /// Atomic, with what it found.
    Atomic { original: u64 },
    /// Atomic write or flush: it is done.
    Done,
}

/// A remembered request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remembered {
    pub(super) first: Psn,
    pub(super) packets: u32,
    pub(super) what: Memory,
}

impl Remembered {
    fn contains(&self, psn: Psn) -> bool {
        psn.since(self.first) < self.packets
    }
}

/// The last few requests of their kind, oldest first.
#[derive(Debug, Default)]
pub(super) struct Replay {
    entries: VecDeque<Remembered>,
}

impl Replay {
    /// Remembers a request, forgetting the oldest beyond `depth`.
    pub(super) fn remember(&mut self, entry: Remembered, depth: usize) {
        while self.entries.len() >= depth.max(1) {
            self.entries.pop_front();
        }
        self.entries.push_back(entry);
    }

    /// The request that `psn` belongs to.
    pub(super) fn find(&self, psn: Psn) -> Option<Remembered> {
        self.entries.iter().copied().find(|e| e.contains(psn))
    }

    /// The first PSN of the oldest remembered request after `psn`.
    pub(super) fn first_after(&self, psn: Psn) -> Option<Psn> {
        self.entries.iter().map(|e| e.first).find(|first| first.is_after(psn))
    }
}
