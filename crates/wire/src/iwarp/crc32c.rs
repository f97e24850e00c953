//! CRC-32C (Castagnoli), which protects FPDUs (RFC 5044 4.4).
//!
//! With the feature `std` it uses the instructions that the processor has for it, elsewhere tables.

#[cfg(any(test, not(feature = "std")))]
mod tables;

#[cfg(not(feature = "std"))]
use tables::append;

/// The CRC of bytes behind those whose CRC this is.
#[cfg(feature = "std")]
fn append(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
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
        Self(0)
    }

    /// Of bytes that have this CRC.
    pub const fn resume(crc: u32) -> Self {
        Self(crc)
    }

    /// Adds the next piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0 = append(self.0, bytes);
    }

    /// The CRC.
    pub const fn finish(self) -> u32 {
        self.0
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
    fn tables_and_instructions_agree() {
        let bytes: [u8; 5000] =
            core::array::from_fn(|i| u8::try_from(((i * i) >> 3) % 251).expect("small"));
        for len in (0..100).chain([255, 256, 1023, 1440, 4096, 5000]) {
            assert_eq!(append(7, &bytes[..len]), tables::append(7, &bytes[..len]), "{len} bytes");
        }
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
