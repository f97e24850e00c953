//! Health information: NVMe Base 5.16.1.3. Of its figures, those that say how much a disk is used.

use super::bytes::{array, put};

/// Length of the log page.
pub const HEALTH: usize = 512;

/// Bytes of a data unit, in which the page counts.
const UNIT: u64 = 512_000;

/// How much the disks of a controller were used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Health {
    /// Bytes that hosts have read, rounded up to units of 512000 on the wire.
    pub read_bytes: u64,
    /// Bytes that hosts have written, rounded likewise.
    pub written_bytes: u64,
    /// Commands that read: Read and Compare.
    pub reads: u64,
    /// Commands that write.
    pub writes: u64,
    /// Commands that failed because of the medium.
    pub media_errors: u64,
}

impl Health {
    /// From the log page. Numbers that do not fit become the greatest that do.
    pub fn parse(bytes: &[u8]) -> Self {
        let number = |at| {
            let wide = u128::from_le_bytes(array(bytes, at));
            u64::try_from(wide).unwrap_or(u64::MAX)
        };
        Self {
            read_bytes: number(32).saturating_mul(UNIT),
            written_bytes: number(48).saturating_mul(UNIT),
            reads: number(64),
            writes: number(80),
            media_errors: number(160),
        }
    }

    /// The log page.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = vec![0; HEALTH];
        // All of the spare blocks are available, as there are none.
        out[3] = 100;
        let figures = [
            (32, self.read_bytes.div_ceil(UNIT)),
            (48, self.written_bytes.div_ceil(UNIT)),
            (64, self.reads),
            (80, self.writes),
            (160, self.media_errors),
        ];
        for (at, figure) in figures {
            put(&mut out, at, &figure.to_le_bytes());
        }
        out
    }
}
