//! Pseudo-random numbers that depend only on a seed.

use crate::SHARE;

/// A small generator.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }

    /// Mostly small, sometimes large, often at a boundary.
    pub(crate) fn len(&mut self) -> usize {
        match self.below(6) {
            0 => self.below(16),
            1 => 4096 * self.below(4) + self.below(3),
            2 => self.below(SHARE / 2),
            _ => self.below(5000),
        }
    }

    /// Where `len` bytes could be in a share.
    pub(crate) fn place(&mut self, len: usize) -> usize {
        self.below(SHARE - len + 1)
    }
}

/// Bytes that tell which message they are of, and where in it.
pub(crate) fn pattern(seed: u32, len: usize) -> Vec<u8> {
    let mix = seed.wrapping_mul(0x9e37_79b9);
    (0..len).map(|i| (i as u8).wrapping_mul(7) ^ (mix >> (i % 4 * 8)) as u8).collect()
}
