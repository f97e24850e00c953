//! A disk in memory whose blocks move between it and hosts without a copy in between.

use std::fmt;
use std::sync::Arc;

use feroce::Region;

use super::{Io, Namespace, done, new_generation};
use crate::wire::Status;

/// Bytes in a block.
const BLOCK: u32 = 512;

/// A disk in the memory of this process that a target registers: hosts get blocks by RDMA WRITE
/// straight from it, and what they write comes by RDMA READ straight into it.
///
/// [`MemoryNamespace`](super::MemoryNamespace) copies once, and in exchange a block that is read
/// while it is written is the old one or the new one. Here it may be a mixture, and so is a block
/// whose host is lost while its data arrives, where the packets of the path are shorter than a
/// block. Use this one where hosts do not read what they write at the same time, as file systems do
/// not. Over iWARP a target copies: what arrives there is placed before its checksum is known.
///
/// ```
/// use feroce_nvme::{DirectNamespace, Namespace as _};
///
/// let disk = DirectNamespace::new(2048).expect("a megabyte");
/// assert_eq!((disk.blocks(), disk.block_size()), (2048, 512));
/// ```
pub struct DirectNamespace {
    region: Arc<Region>,
    blocks: u64,
    generation: u64,
}

impl fmt::Debug for DirectNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectNamespace").field("blocks", &self.blocks).finish_non_exhaustive()
    }
}

impl DirectNamespace {
    /// A disk of blocks of 512 bytes, all zeros; none if there is not so much memory.
    pub fn new(blocks: usize) -> Option<Self> {
        let region = Region::alloc(blocks.checked_mul(BLOCK as usize)?).ok()?;
        Some(Self { region, blocks: blocks as u64, generation: new_generation() })
    }

    fn place(lba: u64) -> Result<usize, Status> {
        let place = usize::try_from(lba).ok().and_then(|lba| lba.checked_mul(BLOCK as usize));
        place.ok_or(Status::LBA_RANGE)
    }
}

impl Namespace for DirectNamespace {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn block_size(&self) -> u32 {
        BLOCK
    }

    fn generation(&self) -> u64 {
        self.generation
    }

    fn memory(&self) -> Option<&Arc<Region>> {
        Some(&self.region)
    }

    fn read<'a>(&'a self, lba: u64, into: &'a mut [u8]) -> Io<'a> {
        let read = |place| self.region.read_at(place, into).map_err(|_| Status::LBA_RANGE);
        done(Self::place(lba).and_then(read))
    }

    fn write<'a>(&'a self, lba: u64, from: &'a [u8]) -> Io<'a> {
        let write = |place| self.region.write_at(place, from).map_err(|_| Status::LBA_RANGE);
        done(Self::place(lba).and_then(write))
    }

    fn flush(&self) -> Io<'_> {
        done(Ok(()))
    }
}
