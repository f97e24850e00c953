//! Random numbers: every random decision of a simulation comes from here.

use core::ops::RangeInclusive;

/// A stream of random numbers that follows from a seed.
///
/// A run uses several streams (limits and programs, fabric, applications): a change that draws more
/// numbers from one does not change the others.
#[derive(Debug)]
pub struct Dice(fastrand::Rng);

impl Dice {
    /// Stream number `stream` of `seed`.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        // The first numbers of neighbouring seeds are similar.
        for _ in 0..4 {
            rng.u64(..);
        }
        Self(rng)
    }

    /// True with probability `p`.
    #[inline]
    pub fn chance(&mut self, p: f64) -> bool {
        p > 0.0 && self.0.f64() < p
    }

    /// A number of the range.
    #[inline]
    pub fn range(&mut self, range: RangeInclusive<u64>) -> u64 {
        self.0.u64(range)
    }

    /// The same as an index or a length.
    #[inline]
    pub fn size(&mut self, range: RangeInclusive<usize>) -> usize {
        self.0.usize(range)
    }

    /// The same for small numbers.
    #[inline]
    pub fn small(&mut self, range: RangeInclusive<u8>) -> u8 {
        self.0.u8(range)
    }

    /// Any number.
    #[inline]
    pub fn any(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// One of the choices.
    ///
    /// # Panics
    /// If there are none.
    #[inline]
    pub fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.0.usize(..choices.len())].clone()
    }

    /// Random bytes.
    pub fn fill(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            let word = self.any().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}
