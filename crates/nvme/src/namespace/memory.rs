//! A disk in memory.

use std::fmt;
use std::ops::Range;
use std::sync::{PoisonError, RwLock};

use super::{Io, Namespace, done, new_generation};
use crate::wire::Status;

/// Bytes in a block.
const BLOCK: u32 = 512;

/// A disk in the memory of this process, which ends with it.
///
/// ```
/// use feroce_nvme::{MemoryNamespace, Namespace as _};
///
/// let disk = MemoryNamespace::new(2048);
/// assert_eq!((disk.blocks(), disk.block_size()), (2048, 512));
/// ```
pub struct MemoryNamespace {
    bytes: RwLock<Vec<u8>>,
    generation: u64,
}

impl fmt::Debug for MemoryNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryNamespace").field("blocks", &self.blocks()).finish()
    }
}

impl MemoryNamespace {
    /// A disk of blocks of 512 bytes, all zeros.
    pub fn new(blocks: usize) -> Self {
        let bytes = RwLock::new(vec![0; blocks * BLOCK as usize]);
        Self { bytes, generation: new_generation() }
    }

    fn range(lba: u64, len: usize) -> Option<Range<usize>> {
        let start = usize::try_from(lba).ok()?.checked_mul(BLOCK as usize)?;
        Some(start..start.checked_add(len)?)
    }

    fn change(&self, lba: u64, len: usize, change: impl FnOnce(&mut [u8])) -> Result<(), Status> {
        let mut bytes = self.bytes.write().unwrap_or_else(PoisonError::into_inner);
        let range = Self::range(lba, len).ok_or(Status::LBA_RANGE)?;
        change(bytes.get_mut(range).ok_or(Status::LBA_RANGE)?);
        Ok(())
    }
}

impl Namespace for MemoryNamespace {
    fn blocks(&self) -> u64 {
        let bytes = self.bytes.read().unwrap_or_else(PoisonError::into_inner);
        bytes.len() as u64 / u64::from(BLOCK)
    }

    fn block_size(&self) -> u32 {
        BLOCK
    }

    fn generation(&self) -> u64 {
        self.generation
    }

    fn read<'a>(&'a self, lba: u64, into: &'a mut [u8]) -> Io<'a> {
        let bytes = self.bytes.read().unwrap_or_else(PoisonError::into_inner);
        let found = Self::range(lba, into.len()).and_then(|range| bytes.get(range));
        done(found.map(|found| into.copy_from_slice(found)).ok_or(Status::LBA_RANGE))
    }

    fn write<'a>(&'a self, lba: u64, from: &'a [u8]) -> Io<'a> {
        done(self.change(lba, from.len(), |place| place.copy_from_slice(from)))
    }

    fn flush(&self) -> Io<'_> {
        done(Ok(()))
    }

    fn write_zeroes(&self, lba: u64, blocks: u64) -> Io<'_> {
        let len = usize::try_from(blocks).ok().and_then(|n| n.checked_mul(BLOCK as usize));
        done(self.change(lba, len.unwrap_or(usize::MAX), |place| place.fill(0)))
    }
}
