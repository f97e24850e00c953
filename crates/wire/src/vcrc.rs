//! Variant CRC: covers a packet of an InfiniBand link from the local route header to the ICRC, and
//! is made anew on every link (IBTA vol1 7.8.2). Link packets end with the same CRC.
//!
//! It is a CRC-16 with the polynomial 0x100b, least significant bit first, which begins with ones
//! and is complemented. On the wire it goes least significant byte first.

/// Bytes on the wire.
pub const LEN: usize = 2;

/// The polynomial, reversed.
const POLYNOMIAL: u16 = 0xd008;

/// CRC of each byte.
static TABLE: [u16; 256] = table();

/// The variant CRC of these bytes.
pub fn vcrc(bytes: &[u8]) -> u16 {
    !begin(bytes)
}

/// The CRC of the first piece of a packet, before it is complemented.
pub(crate) fn begin(bytes: &[u8]) -> u16 {
    extend(u16::MAX, bytes)
}

/// Adds the next piece.
pub(crate) fn extend(crc: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(crc, |crc, byte| {
        let [low, _] = crc.to_le_bytes();
        (crc >> 8) ^ TABLE[usize::from(low ^ byte)]
    })
}

const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = (byte, 0);
        while bit < 8 {
            crc = if crc & 1 == 0 { crc >> 1 } else { (crc >> 1) ^ POLYNOMIAL };
            bit += 1;
        }
        table[byte as usize] = crc;
        byte += 1;
    }
    table
}
