//! Identifiers that cannot be predicted.
//!
//! Queue pair numbers, keys, communication IDs and first PSNs travel in the clear to every peer.
//! A peer that knows its own must not learn those of others, with which it could forge their
//! packets. Therefore they are the outputs of a keyed function, SipHash-2-4, whose key the owner
//! draws from the random numbers of the operating system: the sequence follows from the key, so
//! that a run can be repeated, and looks random without it.

/// A keyed pseudorandom function from numbers to numbers: SipHash-2-4 of one word.
#[derive(Clone, Copy)]
pub struct Prf {
    key: [u64; 2],
}

/// The key is not shown.
impl core::fmt::Debug for Prf {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Prf").finish_non_exhaustive()
    }
}

impl Prf {
    /// The function of a seed. Functions for different purposes have nothing in common.
    pub const fn new(seed: u64, purpose: u64) -> Self {
        Self { key: [seed, purpose] }
    }

    /// Its value at `n`.
    pub const fn at(&self, n: u64) -> u64 {
        let [k0, k1] = self.key;
        let mut v = [
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        // One word of input, and one with the length in bytes in the upper eight bits.
        let words = [n, 8 << 56];
        let mut i = 0;
        while i < words.len() {
            v[3] ^= words[i];
            v = round(round(v));
            v[0] ^= words[i];
            i += 1;
        }
        v[2] ^= 0xff;
        v = round(round(round(round(v))));
        v[0] ^ v[1] ^ v[2] ^ v[3]
    }
}

const fn round(v: [u64; 4]) -> [u64; 4] {
    let [mut a, mut b, mut c, mut d] = v;
    a = a.wrapping_add(b);
    b = b.rotate_left(13) ^ a;
    a = a.rotate_left(32);
    c = c.wrapping_add(d);
    d = d.rotate_left(16) ^ c;
    a = a.wrapping_add(d);
    d = d.rotate_left(21) ^ a;
    c = c.wrapping_add(b);
    b = b.rotate_left(17) ^ c;
    c = c.rotate_left(32);
    [a, b, c, d]
}

/// A keyed permutation of the numbers below `count`: a Feistel network whose rounds are a [`Prf`].
/// Its values at 0, 1, 2… are all different, in an order that only the key tells.
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    prf: Prf,
    count: u32,
    /// Bits of each half of the network, which permutes at least `count` numbers.
    half: u32,
}

impl Permutation {
    const ROUNDS: u64 = 8;

    /// The permutation of the numbers below `count`, of which there is at least one.
    pub const fn new(seed: u64, purpose: u64, count: u32) -> Self {
        let count = if count == 0 { 1 } else { count };
        let bits = u32::BITS - (count - 1).leading_zeros();
        let half = if bits < 2 { 1 } else { bits.div_ceil(2) };
        Self { prf: Prf::new(seed, purpose), count, half }
    }

    /// How many numbers it permutes.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Its value at `n`; `n` counts modulo the number of values.
    pub const fn at(&self, n: u32) -> u32 {
        // The network permutes up to four times as many numbers. The walk along a cycle from a
        // number below `count` comes to another one, at the latest to itself.
        let mut x = self.network(n % self.count);
        while x >= self.count {
            x = self.network(x);
        }
        x
    }

    const fn network(&self, x: u32) -> u32 {
        let mask = (1 << self.half) - 1;
        let (mut left, mut right) = (x >> self.half, x & mask);
        let mut i = 0;
        while i < Self::ROUNDS {
            #[expect(clippy::cast_possible_truncation, reason = "only lower bits are used")]
            let mixed = self.prf.at(i << 32 | right as u64) as u32 & mask;
            (left, right) = (right, left ^ mixed);
            i += 1;
        }
        left << self.half | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test vectors of the authors of SipHash: key 00 01 … 0f, input 00 01 … 07.
    #[test]
    fn the_function_is_siphash() {
        let prf = Prf::new(0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908);
        assert_eq!(prf.at(0x0706_0504_0302_0100), 0x93f5_f579_9a93_2462);
    }

    #[test]
    fn a_permutation_takes_every_value_once() {
        for count in [1, 2, 3, 5, 40, 1000, 4096, 65_536, 70_000] {
            let permutation = Permutation::new(7, 1, count);
            let mut seen = alloc::vec![false; count as usize];
            for n in 0..count {
                assert!(!core::mem::replace(&mut seen[permutation.at(n) as usize], true));
            }
            assert_eq!(permutation.at(count), permutation.at(0));
        }
    }

    #[test]
    fn seeds_and_purposes_give_different_orders() {
        let of = |seed, purpose| {
            let permutation = Permutation::new(seed, purpose, 1 << 16);
            [0, 1, 2, 3].map(|n| permutation.at(n))
        };
        assert_eq!(of(1, 1), of(1, 1));
        assert_ne!(of(1, 1), of(2, 1));
        assert_ne!(of(1, 1), of(1, 2));
    }
}
