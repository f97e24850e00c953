//! Polynomials over GF(2) modulo the CRC-32 polynomial, in the bit order of the CRC: bit 31 is
//! the coefficient of x^0.
//!
//! A CRC is affine: flipping message bits flips the same CRC bits whatever the message is, and
//! the flips of a message polynomial `d` followed by `n` bytes are `d * x^(32 + 8n)`. The modulus
//! has a constant term, so x has an inverse and the map can be undone.

/// x^32 modulo the polynomial.
const POLY: u32 = 0xedb8_8320;

/// The polynomial 1.
const ONE: u32 = 0x8000_0000;

/// `a * x`.
const fn mul_x(a: u32) -> u32 {
    let carry = (a & 1).wrapping_neg();
    (a >> 1) ^ (carry & POLY)
}

/// `a / x`.
const fn div_x(a: u32) -> u32 {
    let carry = (a >> 31).wrapping_neg();
    ((a ^ (carry & POLY)) << 1) | (a >> 31)
}

/// `a * b`.
const fn mul(mut a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    while a != 0 {
        product ^= b & (a >> 31).wrapping_neg();
        a <<= 1;
        b = mul_x(b);
    }
    product
}

/// x^(8 * 2^k), or its inverse, for k = 0, 1, 2 ...
const fn byte_powers(inverse: bool) -> [u32; 17] {
    let mut power = ONE;
    let mut bits = 0;
    while bits < 8 {
        power = if inverse { div_x(power) } else { mul_x(power) };
        bits += 1;
    }
    let mut table = [power; 17];
    let mut k = 1;
    while k < table.len() {
        table[k] = mul(table[k - 1], table[k - 1]);
        k += 1;
    }
    table
}

static FORWARD: [u32; 17] = byte_powers(false);
static BACKWARD: [u32; 17] = byte_powers(true);

/// `a * x^(8n)`, with the table of the wanted direction. Bits of `n` above 17 are ignored.
fn shift(mut a: u32, n: usize, table: &[u32; 17]) -> u32 {
    for (k, power) in table.iter().enumerate() {
        if n >> k & 1 != 0 {
            a = mul(*power, a);
        }
    }
    a
}

/// CRC bits that flip when the two bytes of `id` are flipped in and `after` bytes follow them.
pub(crate) fn id_to_crc(id: u16, after: usize) -> u32 {
    shift(u32::from(id.swap_bytes()) << 16, after + 4, &FORWARD)
}

/// CRC bits that flip for each value flipped into one byte with `after` bytes behind it.
pub(crate) const fn byte_flips(after: usize) -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut flips = byte << 24;
        let mut bits = 0;
        while bits < 8 * (after + 4) {
            flips = mul_x(flips);
            bits += 1;
        }
        table[byte as usize] = flips;
        byte += 1;
    }
    table
}

/// CRC bits that must flip before a byte with `before` others in front of it, to have the effect
/// of each value flipped into that byte.
pub(crate) const fn byte_flips_before(before: usize) -> [u32; 256] {
    let mut table = byte_flips(0);
    let mut byte = 0;
    while byte < table.len() {
        let mut bits = 0;
        while bits < 8 * (before + 1) {
            table[byte] = div_x(table[byte]);
            bits += 1;
        }
        byte += 1;
    }
    table
}

/// The two bytes whose flip, with `after` bytes behind them, flips exactly the bits `crc`;
/// `None` if no two bytes do, or if `after` is longer than any datagram.
pub(crate) fn crc_to_id(crc: u32, after: usize) -> Option<u16> {
    if after > usize::from(u16::MAX) {
        return None;
    }
    let flipped = shift(crc, after + 4, &BACKWARD);
    let [high, low, 0, 0] = flipped.to_be_bytes() else {
        return None;
    };
    Some(u16::from_be_bytes([low, high]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x_has_an_inverse() {
        for a in [1, 2, 0x8000_0000, 0xdead_beef, POLY, u32::MAX] {
            assert_eq!(div_x(mul_x(a)), a);
            assert_eq!(mul_x(div_x(a)), a);
            assert_eq!(mul(a, ONE), a);
            assert_eq!(shift(shift(a, 70_001, &FORWARD), 70_001, &BACKWARD), a);
        }
        for (f, b) in FORWARD.iter().zip(&BACKWARD) {
            assert_eq!(mul(*f, *b), ONE);
        }
    }

    #[test]
    fn flips_are_those_of_the_crc() {
        let message = [0x5a; 300];
        for (id, at) in [(0x0001_u16, 0), (0x8000, 4), (0x1234, 100), (0xffff, 298)] {
            let mut other = message;
            other[at] ^= id.to_be_bytes()[0];
            other[at + 1] ^= id.to_be_bytes()[1];
            let flips = crc32fast::hash(&message) ^ crc32fast::hash(&other);
            assert_eq!(id_to_crc(id, 298 - at), flips);
            assert_eq!(crc_to_id(flips, 298 - at), Some(id));
            assert_eq!(crc_to_id(flips ^ 0x10, 298 - at), None);
        }
        assert_eq!(crc_to_id(0, 65_536), None);
    }

    #[test]
    fn a_byte_can_be_flipped_before_it_comes() {
        for at in [0, 4, 11] {
            let table = byte_flips_before(at);
            for flipped in [1, 0x80, 0xa5, 0xff] {
                let (message, mut other) = ([0x5a; 20], [0x5a; 20]);
                other[at] ^= flipped;
                let mut hasher =
                    crc32fast::Hasher::new_with_initial(7 ^ table[usize::from(flipped)]);
                hasher.update(&message);
                let mut expected = crc32fast::Hasher::new_with_initial(7);
                expected.update(&other);
                assert_eq!(hasher.finalize(), expected.finalize(), "{flipped:#x} at {at}");
            }
        }
    }

    /// One CRC in 2^16 is that of some identification.
    #[test]
    fn few_crcs_have_an_identification() {
        let crcs = (0..1_u32 << 18).map(|i| i.wrapping_mul(0x9e37_79b9));
        let found = crcs.filter_map(|crc| crc_to_id(crc, 1000)).count();
        assert!((1..=16).contains(&found), "{found} of 2^18, expected about 4");
        for id in (0..=u16::MAX).step_by(97) {
            assert_eq!(crc_to_id(id_to_crc(id, 1000), 1000), Some(id));
        }
    }
}
