//! Disks: what a target serves and what a host gets.

mod direct;
mod file;
mod memory;

use std::fmt::Debug;
use std::hash::{BuildHasher as _, RandomState};
use std::pin::Pin;
use std::sync::Arc;

use feroce::Region;

use crate::wire::Status;

pub use direct::DirectNamespace;
pub use file::FileNamespace;
pub use memory::MemoryNamespace;

/// An operation of a disk.
pub type Io<'a> = Pin<Box<dyn Future<Output = Result<(), Status>> + Send + 'a>>;

/// Bytes of zeros that [`Namespace::write_zeroes`] writes at a time, unless a disk knows better.
const ZEROES: usize = 64 << 10;

/// A disk of numbered blocks.
///
/// Callers stay within the disk: they have compared block numbers with [`Namespace::blocks`], and
/// lengths are multiples of the length of a block. A write that has completed is visible to every
/// later read; it survives a crash of the machine once a flush that began after it has completed.
pub trait Namespace: Debug + Send + Sync {
    /// Number of blocks.
    fn blocks(&self) -> u64;

    /// Bytes in a block: a power of two, at least 512.
    fn block_size(&self) -> u32;

    /// Whether it cannot be written.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Becomes part of the identifier that hosts see. A disk that may come back under the same name
    /// without its bytes has another number then, so that hosts do not take it for the one they
    /// knew.
    fn generation(&self) -> u64 {
        0
    }

    /// The memory that has the blocks, one after the other from its beginning, if a target shall
    /// move data between it and hosts without a copy: [`Namespace::read`] and [`Namespace::write`]
    /// are not called for that data.
    fn memory(&self) -> Option<&Arc<Region>> {
        None
    }

    /// Reads blocks, from `lba` on.
    fn read<'a>(&'a self, lba: u64, into: &'a mut [u8]) -> Io<'a>;

    /// Writes blocks, from `lba` on.
    fn write<'a>(&'a self, lba: u64, from: &'a [u8]) -> Io<'a>;

    /// Makes every write that has completed durable.
    fn flush(&self) -> Io<'_>;

    /// Writes zeros.
    fn write_zeroes(&self, lba: u64, blocks: u64) -> Io<'_> {
        Box::pin(async move {
            let size = self.block_size() as usize;
            let zeroes = vec![0; ZEROES.max(size)];
            let (mut lba, mut left) = (lba, blocks);
            while left > 0 {
                let now = left.min((zeroes.len() / size) as u64);
                self.write(lba, &zeroes[..now as usize * size]).await?;
                (lba, left) = (lba + now, left - now);
            }
            Ok(())
        })
    }

    /// The blocks are not needed any more; they read as zeros from now on.
    fn deallocate(&self, lba: u64, blocks: u64) -> Io<'_> {
        self.write_zeroes(lba, blocks)
    }
}

/// The generation of a disk whose content does not outlive this process.
fn new_generation() -> u64 {
    // The keys of a hasher are random.
    RandomState::new().hash_one(0)
}

/// An operation that is complete.
fn done<'a>(result: Result<(), Status>) -> Io<'a> {
    Box::pin(std::future::ready(result))
}
