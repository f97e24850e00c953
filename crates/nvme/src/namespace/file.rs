//! A disk in a file, or on a block device.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::resource::{Resource, getrlimit};

use super::{Io, Namespace, ZEROES, done};
use crate::wire::Status;

/// Bytes in a block.
const BLOCK: u32 = 512;

/// A disk in a file, or on a block device of the system. Its operations block the thread that runs
/// them. A flush is `fdatasync`.
///
/// While it is open, other processes cannot open the same file as a disk, unless both share it.
#[derive(Debug)]
pub struct FileNamespace {
    file: File,
    blocks: u64,
    is_read_only: bool,
    /// Bytes that the process may write of it. A write beyond would end the process with SIGXFSZ.
    limit: u64,
}

impl FileNamespace {
    /// Opens a file for reading and writing. Bytes beyond the last whole block of 512 are left
    /// alone.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        file.try_lock()?;
        Self::of(file, false)
    }

    /// Opens a file for reading and writing that other processes serve as well, so that hosts have
    /// several paths to it. All of them open it in this way.
    pub fn open_shared(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        file.try_lock_shared()?;
        Self::of(file, false)
    }

    /// Opens a file for reading.
    pub fn open_read_only(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        file.try_lock_shared()?;
        Self::of(file, true)
    }

    fn of(mut file: File, is_read_only: bool) -> io::Result<Self> {
        // The length that the metadata of a block device tell is zero.
        let blocks = file.seek(SeekFrom::End(0))? / u64::from(BLOCK);
        if blocks == 0 {
            let message = "a disk has at least one block of 512 bytes: `truncate -s 1G FILE`";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        // Block devices have no limit.
        let limit = if file.metadata()?.is_file() {
            getrlimit(Resource::RLIMIT_FSIZE).map_or(u64::MAX, |(soft, _)| soft)
        } else {
            u64::MAX
        };
        Ok(Self { file, blocks, is_read_only, limit })
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        if at.saturating_add(bytes.len() as u64) > self.limit {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.file.write_all_at(bytes, at)
    }

    /// Tells the file system; what it cannot do is not supported.
    fn fallocate(&self, flags: FallocateFlags, lba: u64, blocks: u64) -> io::Result<()> {
        let bytes = |n: u64| i64::try_from(n * u64::from(BLOCK)).map_err(io::Error::other);
        let flags = flags | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        Ok(fallocate(&self.file, flags, bytes(lba)?, bytes(blocks)?)?)
    }

    fn zero(&self, lba: u64, blocks: u64) -> io::Result<()> {
        let zeroes = [0; ZEROES];
        let (mut at, mut left) = (lba * u64::from(BLOCK), blocks * u64::from(BLOCK));
        while left > 0 {
            let now = left.min(ZEROES as u64);
            self.write_at(&zeroes[..now as usize], at)?;
            (at, left) = (at + now, left - now);
        }
        Ok(())
    }
}

fn write_status(error: &io::Error) -> Status {
    Status::of_io(error, Status::WRITE_FAULT)
}

impl Namespace for FileNamespace {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn block_size(&self) -> u32 {
        BLOCK
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    fn read<'a>(&'a self, lba: u64, into: &'a mut [u8]) -> Io<'a> {
        let read = self.file.read_exact_at(into, lba * u64::from(BLOCK));
        done(read.map_err(|e| Status::of_io(&e, Status::READ_ERROR)))
    }

    fn write<'a>(&'a self, lba: u64, from: &'a [u8]) -> Io<'a> {
        let written = self.write_at(from, lba * u64::from(BLOCK));
        done(written.map_err(|e| write_status(&e)))
    }

    fn flush(&self) -> Io<'_> {
        done(self.file.sync_data().map_err(|e| write_status(&e)))
    }

    fn write_zeroes(&self, lba: u64, blocks: u64) -> Io<'_> {
        let zeroed = self
            .fallocate(FallocateFlags::FALLOC_FL_ZERO_RANGE, lba, blocks)
            .or_else(|_| self.zero(lba, blocks));
        done(zeroed.map_err(|e| write_status(&e)))
    }

    fn deallocate(&self, lba: u64, blocks: u64) -> Io<'_> {
        let punched = self
            .fallocate(FallocateFlags::FALLOC_FL_PUNCH_HOLE, lba, blocks)
            .or_else(|_| self.zero(lba, blocks));
        done(punched.map_err(|e| write_status(&e)))
    }
}
