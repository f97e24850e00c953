//! What hosts did with the disks of a subsystem.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::controller::{DiskCommand, DiskOp};
use crate::wire::{Health, Status};

/// Counts commands, from all hosts and queues.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
    media_errors: AtomicU64,
}

impl Counters {
    /// Counts a command that has ended.
    pub(crate) fn count(&self, command: &DiskCommand, status: Status) {
        let add = |to: &AtomicU64, more: usize| to.fetch_add(more as u64, Ordering::Relaxed);
        if status.is_of_the_medium() {
            add(&self.media_errors, 1);
        }
        if !status.is_ok() {
            return;
        }
        match command.op {
            DiskOp::Read | DiskOp::Compare => {
                add(&self.reads, 1);
                add(&self.read_bytes, command.len);
            }
            DiskOp::Write => {
                add(&self.writes, 1);
                add(&self.written_bytes, command.len);
            }
            DiskOp::WriteZeroes | DiskOp::Deallocate | DiskOp::Hint | DiskOp::Flush => {}
        }
    }

    /// The figures now.
    pub(crate) fn health(&self) -> Health {
        let get = |of: &AtomicU64| of.load(Ordering::Relaxed);
        Health {
            read_bytes: get(&self.read_bytes),
            written_bytes: get(&self.written_bytes),
            reads: get(&self.reads),
            writes: get(&self.writes),
            media_errors: get(&self.media_errors),
        }
    }
}
