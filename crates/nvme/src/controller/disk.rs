//! Commands of I/O queues, checked.

use super::TRANSFER;
use crate::namespace::Namespace;
use crate::wire::{Command, DataRange, Status, io};

/// What to do with a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskOp {
    /// Read blocks, and send them to the host.
    Read,
    /// Write the blocks that the host sends.
    Write,
    /// Compare the blocks that the host sends with those of the disk.
    Compare,
    /// Write zeros.
    WriteZeroes,
    /// The host sends ranges of blocks that it does not need any more.
    Deallocate,
    /// Ranges with other attributes, which are only hints.
    Hint,
    /// Make writes durable.
    Flush,
}

/// A command that a disk can execute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskCommand {
    /// What.
    pub op: DiskOp,
    /// First block.
    pub lba: u64,
    /// Blocks.
    pub blocks: u64,
    /// Bytes that pass between host and target.
    pub len: usize,
    /// Whether what was written must be durable when the command completes.
    pub durable: bool,
}

impl DiskCommand {
    /// Whether the host sends the bytes.
    pub fn takes_data(&self) -> bool {
        matches!(self.op, DiskOp::Write | DiskOp::Compare | DiskOp::Deallocate | DiskOp::Hint)
    }
}

/// Checks a command for a disk.
pub fn disk_command(command: &Command, disk: &dyn Namespace) -> Result<DiskCommand, Status> {
    let op = match command.opcode {
        io::FLUSH => DiskOp::Flush,
        io::WRITE => DiskOp::Write,
        io::READ => DiskOp::Read,
        io::COMPARE => DiskOp::Compare,
        io::WRITE_ZEROES => DiskOp::WriteZeroes,
        io::DATASET if command.cdw[1] & 1 << 2 != 0 => DiskOp::Deallocate,
        io::DATASET => DiskOp::Hint,
        _ => return Err(Status::INVALID_OPCODE.do_not_retry()),
    };
    // Fused operations, and data that no SGL describes.
    if command.flags & 0xc3 != 0x40 {
        return Err(Status::INVALID_FIELD.do_not_retry());
    }
    let writes = matches!(op, DiskOp::Write | DiskOp::WriteZeroes | DiskOp::Deallocate);
    if writes && disk.is_read_only() {
        return Err(Status::WRITE_PROTECTED.do_not_retry());
    }
    let nothing = DiskCommand { op, lba: 0, blocks: 0, len: 0, durable: false };
    match op {
        DiskOp::Flush => return Ok(nothing),
        DiskOp::Deallocate | DiskOp::Hint => {
            let ranges = (command.cdw[0] & 0xff) as usize + 1;
            return Ok(DiskCommand { len: ranges * DataRange::LEN, ..nothing });
        }
        DiskOp::Read | DiskOp::Write | DiskOp::Compare | DiskOp::WriteZeroes => {}
    }
    // Protection information, which disks here do not have.
    if command.cdw[2] >> 26 & 0xf != 0 {
        return Err(Status::INVALID_FIELD.do_not_retry());
    }
    let rw = command.rw();
    check_range(disk, rw.lba, rw.blocks.into())?;
    let len = rw.blocks as usize * disk.block_size() as usize;
    let len = if op == DiskOp::WriteZeroes { 0 } else { len };
    if len > TRANSFER {
        return Err(Status::INVALID_FIELD.do_not_retry());
    }
    let durable = writes && rw.force_unit_access;
    Ok(DiskCommand { op, lba: rw.lba, blocks: rw.blocks.into(), len, durable })
}

/// Whether blocks are on the disk.
pub(crate) fn check_range(disk: &dyn Namespace, lba: u64, blocks: u64) -> Result<(), Status> {
    match lba.checked_add(blocks) {
        Some(end) if end <= disk.blocks() => Ok(()),
        _ => Err(Status::LBA_RANGE.do_not_retry()),
    }
}
