//! Controllers: what a target answers, without I/O, clocks or waiting.
//!
//! ```text
//!             Connect (queue 0)          CC.EN = 1           CC.SHN
//!   (nothing) -----------------> disabled --------> ready ----------> shut down
//!                                   ^   CC.EN = 0     |
//!                                   +-----------------+
//! ```
//!
//! I/O queues connect while the controller is ready. Commands of the admin queue go to
//! [`Controller::handle`], which answers at once; those of I/O queues to [`disk_command`], whose
//! result says what to do with a disk.

mod admin;
mod disk;

pub use admin::{Answer, Controller, Identity};
pub(crate) use disk::check_range;
pub use disk::{DiskCommand, DiskOp, disk_command};

/// Asynchronous event requests that a controller holds.
pub const EVENTS: usize = 4;

/// Greatest queue, in entries.
pub const QUEUE: u16 = 128;

/// Entries of an admin queue that discovery recommends.
pub const ADMIN_QUEUE: u16 = 32;

/// I/O queues that a controller has at most.
pub const IO_QUEUES: u16 = 16;

/// Longest transfer: 4096 bytes times 2 to this power.
pub const MDTS: u8 = 5;

/// Longest transfer in bytes.
pub const TRANSFER: usize = 4096 << MDTS;

/// Data that a command capsule holds behind the command.
pub const IN_CAPSULE: usize = 4096;
