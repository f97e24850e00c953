//! CRC-32C by tables, for any processor.

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

/// The CRC of bytes behind those whose CRC this is.
pub(super) fn append(crc: u32, bytes: &[u8]) -> u32 {
    let mut crc = !crc;
    let (steps, rest) = bytes.as_chunks::<STEP>();
    for step in steps {
        let mut folded = *step;
        for (byte, crc) in folded.iter_mut().zip(crc.to_le_bytes()) {
            *byte ^= crc;
        }
        let tables = TABLES.iter().rev();
        crc = tables.zip(folded).fold(0, |crc, (table, b)| crc ^ table[usize::from(b)]);
    }
    for byte in rest {
        let [low, ..] = crc.to_le_bytes();
        crc = (crc >> 8) ^ TABLES[0][usize::from(low ^ byte)];
    }
    !crc
}
