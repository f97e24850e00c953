//! CRC-32C (Castagnoli), which protects FPDUs (RFC 5044 4.4).

/// The polynomial, bit 31 for x^0.
const POLY: u32 = 0x82f6_3b78;

/// Bytes that one step folds.
const STEP: usize = 16;

/// `TABLES[k][b]`: what the byte `b` contributes with `k` bytes behind it.
static TABLES: [[u32; 256]; STEP] = tables();

const fn tables() -> [[u32; 256]; STEP] {
    let mut tables = [[0; 256]; STEP];
    let mut byte = 0_u8;
    loop {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ ((crc & 1).wrapping_neg() & POLY);
            bit += 1;
        }
        tables[0][byte as usize] = crc;
        if byte == u8::MAX {
            break;
        }
        byte += 1;
    }
    let mut behind = 1;
    while behind < STEP {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[behind - 1][byte];
            tables[behind][byte] = (before >> 8) ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        behind += 1;
    }
    tables
}

/// A running CRC-32C.
///
/// ```
/// # use feroce_wire::iwarp::Crc32c;
/// let mut crc = Crc32c::new();
/// crc.update(b"1234");
/// crc.update(b"56789");
/// assert_eq!(crc.finish(), 0xe306_9283);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crc32c(u32);

impl Crc32c {
    /// Of no bytes.
    pub const fn new() -> Self {
        Self(!0)
    }

    /// Adds the next piece.
    pub fn update(&mut self, bytes: &[u8]) {
        let (steps, rest) = bytes.as_chunks::<STEP>();
        for step in steps {
            let mut folded = *step;
            for (byte, crc) in folded.iter_mut().zip(self.0.to_le_bytes()) {
                *byte ^= crc;
            }
            let tables = TABLES.iter().rev();
            self.0 = tables.zip(folded).fold(0, |crc, (table, b)| crc ^ table[usize::from(b)]);
        }
        for byte in rest {
            let [low, ..] = self.0.to_le_bytes();
            self.0 = (self.0 >> 8) ^ TABLES[0][usize::from(low ^ byte)];
        }
    }

    /// The CRC.
    pub const fn finish(self) -> u32 {
        !self.0
    }

    /// The CRC in the bytes that end an FPDU.
    pub const fn seal(self) -> [u8; 4] {
        self.finish().to_le_bytes()
    }
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crc(bytes: &[u8]) -> u32 {
        let mut crc = Crc32c::new();
        crc.update(bytes);
        crc.finish()
    }

    /// The examples of RFC 3720 B.4.
    #[test]
    fn known_values() {
        let ascending: [u8; 32] = core::array::from_fn(|i| u8::try_from(i).expect("small"));
        let mut descending = ascending;
        descending.reverse();
        assert_eq!(crc(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc(&ascending), 0x46dd_794e);
        assert_eq!(crc(&descending), 0x113f_db5c);
    }

    #[test]
    fn pieces_give_what_the_whole_gives() {
        let bytes: [u8; 100] = core::array::from_fn(|i| u8::try_from(i * 2).expect("small"));
        for cut in 0..=bytes.len() {
            let mut pieces = Crc32c::new();
            pieces.update(&bytes[..cut]);
            pieces.update(&bytes[cut..]);
            assert_eq!(pieces.finish(), crc(&bytes), "cut at {cut}");
        }
    }
}
