//! A disk of a target.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::paths::Paths;
use super::queue::{HostQueue, Payload};
use crate::controller::TRANSFER;
use crate::error::HostError;
use crate::namespace::{Io, Namespace};
use crate::wire::{Command, DataRange, IdentifyNamespace, Rw, Status, io};

/// Blocks that a command names at most.
const BLOCKS: u64 = 1 << 16;

/// I/O queues of an association.
#[derive(Debug)]
pub(super) struct Queues {
    all: Vec<HostQueue>,
    /// Commands so far: each goes to the next queue.
    turn: AtomicUsize,
}

impl Queues {
    pub(super) fn new(all: Vec<HostQueue>) -> Self {
        Self { all, turn: AtomicUsize::new(0) }
    }

    pub(super) fn all(&self) -> &[HostQueue] {
        &self.all
    }

    pub(super) fn into_all(self) -> Vec<HostQueue> {
        self.all
    }

    pub(super) async fn call(
        &self,
        command: Command,
        payload: Payload<'_>,
    ) -> Result<(), HostError> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        self.all[turn % self.all.len()].call(command, payload).await.map(drop)
    }
}

/// How commands get to the target.
#[derive(Debug)]
pub(super) enum Way {
    /// By one association, while it lasts.
    One(Arc<Queues>),
    /// By any of several, which come and go.
    Many(Arc<Paths>),
}

/// A disk of a target. It is a [`Namespace`] like any other, so a target can serve it again.
#[derive(Debug)]
pub struct RemoteNamespace {
    way: Way,
    nsid: u32,
    identity: IdentifyNamespace,
    /// Bytes that a command moves at most: a multiple of the block.
    most: usize,
}

impl RemoteNamespace {
    pub(super) fn new(
        way: Way,
        nsid: u32,
        identity: IdentifyNamespace,
        most: Option<usize>,
    ) -> Self {
        let block = 1_usize << identity.block_bits;
        let most = most.unwrap_or(TRANSFER).min(TRANSFER).min(block << 16);
        let most = (most / block).max(1) * block;
        Self { way, nsid, identity, most }
    }

    /// What the target says of it.
    pub fn identity(&self) -> &IdentifyNamespace {
        &self.identity
    }

    async fn call(&self, command: Command, payload: Payload<'_>) -> Result<(), Status> {
        let command = Command { nsid: self.nsid, ..command };
        let called = match &self.way {
            Way::One(queues) => queues.call(command, payload).await,
            Way::Many(paths) => paths.call(command, payload).await,
        };
        called.map_err(HostError::into)
    }

    fn command(&self, opcode: u8, lba: u64, len: usize) -> Command {
        let blocks = (len >> self.identity.block_bits) as u32;
        Command::new(opcode).with_rw(Rw { lba, blocks, force_unit_access: false })
    }

    fn blocks_of(&self, len: usize) -> u64 {
        (len >> self.identity.block_bits) as u64
    }

    /// Compares blocks, from `lba` on, with `with`; [`Status::COMPARE`] if they differ.
    pub async fn compare(&self, lba: u64, with: &[u8]) -> Result<(), Status> {
        let mut lba = lba;
        for part in with.chunks(self.most) {
            self.call(self.command(io::COMPARE, lba, part.len()), Payload::Out(part)).await?;
            lba += self.blocks_of(part.len());
        }
        Ok(())
    }
}

impl Namespace for RemoteNamespace {
    fn blocks(&self) -> u64 {
        self.identity.blocks
    }

    fn block_size(&self) -> u32 {
        1 << self.identity.block_bits
    }

    fn is_read_only(&self) -> bool {
        self.identity.read_only
    }

    fn generation(&self) -> u64 {
        // Targets that serve one disk again say the same of it.
        u64::from_le_bytes(self.identity.guid[..8].try_into().unwrap_or_default())
    }

    fn read<'a>(&'a self, lba: u64, into: &'a mut [u8]) -> Io<'a> {
        Box::pin(async move {
            let mut lba = lba;
            for part in into.chunks_mut(self.most) {
                let (command, len) = (self.command(io::READ, lba, part.len()), part.len());
                self.call(command, Payload::In(part)).await?;
                lba += self.blocks_of(len);
            }
            Ok(())
        })
    }

    fn write<'a>(&'a self, lba: u64, from: &'a [u8]) -> Io<'a> {
        Box::pin(async move {
            let mut lba = lba;
            for part in from.chunks(self.most) {
                self.call(self.command(io::WRITE, lba, part.len()), Payload::Out(part)).await?;
                lba += self.blocks_of(part.len());
            }
            Ok(())
        })
    }

    fn flush(&self) -> Io<'_> {
        Box::pin(self.call(Command::new(io::FLUSH), Payload::None))
    }

    fn write_zeroes(&self, lba: u64, blocks: u64) -> Io<'_> {
        Box::pin(async move {
            let (mut lba, mut left) = (lba, blocks);
            while left > 0 {
                let now = left.min(BLOCKS);
                let rw = Rw { lba, blocks: now as u32, force_unit_access: false };
                let command = Command::new(io::WRITE_ZEROES).with_rw(rw);
                self.call(command, Payload::None).await?;
                (lba, left) = (lba + now, left - now);
            }
            Ok(())
        })
    }

    fn deallocate(&self, lba: u64, blocks: u64) -> Io<'_> {
        Box::pin(async move {
            let (mut lba, mut left) = (lba, blocks);
            while left > 0 {
                let now = left.min(u32::MAX.into());
                let range = DataRange { lba, blocks: now as u32 };
                let mut command = Command::new(io::DATASET);
                // Deallocate.
                command.cdw[1] = 1 << 2;
                self.call(command, Payload::Out(&range.emit())).await?;
                (lba, left) = (lba + now, left - now);
            }
            Ok(())
        })
    }
}
