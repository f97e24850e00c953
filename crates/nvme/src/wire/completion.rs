//! Completions: the completion queue entry that a response capsule is.

use super::bytes::{le16, le64, put};
use super::status::Status;

/// Length of a completion.
pub const COMPLETION: usize = 16;

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Completion {
    /// What the command returns.
    pub result: u64,
    /// The target's place in the submission queue.
    pub sq_head: u16,
    /// The queue; fabrics leave it zero on the admin queue.
    pub sq_id: u16,
    /// The command.
    pub cid: u16,
    /// How it ended.
    pub status: Status,
}

impl Completion {
    /// From the first 16 bytes of a message; a shorter one is none.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..COMPLETION)?;
        Some(Self {
            result: le64(bytes, 0),
            sq_head: le16(bytes, 8),
            sq_id: le16(bytes, 10),
            cid: le16(bytes, 12),
            // The phase tag in bit 0 has no meaning over fabrics.
            status: Status(le16(bytes, 14) >> 1),
        })
    }

    /// Its bytes.
    pub fn emit(&self) -> [u8; COMPLETION] {
        let mut out = [0; COMPLETION];
        put(&mut out, 0, &self.result.to_le_bytes());
        put(&mut out, 8, &self.sq_head.to_le_bytes());
        put(&mut out, 10, &self.sq_id.to_le_bytes());
        put(&mut out, 12, &self.cid.to_le_bytes());
        put(&mut out, 14, &(self.status.0 << 1).to_le_bytes());
        out
    }
}
