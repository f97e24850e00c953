//! Numbers of bytes on the command line, and buffers as large as they ask for.

use std::fmt::Display;
use std::ops::RangeInclusive;

/// A number of bytes within `range`, with K, M or G for powers of 1024.
pub(crate) fn parse<T>(text: &str, range: &RangeInclusive<T>) -> Result<T, String>
where
    T: TryFrom<u64> + PartialOrd + Display,
{
    let bytes = feroce_link::parse_size(text).ok_or(EXPECTED)?;
    let bytes = T::try_from(bytes).ok().filter(|bytes| range.contains(bytes));
    bytes.ok_or_else(|| format!("{text} is not in {}..={}", range.start(), range.end()))
}

/// A buffer as large as the user wants, or an error where the machine has no room for it.
pub(crate) fn filled(byte: u8, len: usize) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let room = bytes.try_reserve_exact(len);
    room.map_err(|_| anyhow::anyhow!("there is no memory for a buffer of {len} bytes"))?;
    bytes.resize(len, byte);
    Ok(bytes)
}

const EXPECTED: &str = "expected a number of bytes, such as 4096, 64K or 1M";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_may_have_a_suffix() {
        let size = |text: &str| parse(text, &(0..=u32::MAX)).ok();
        assert_eq!(size("17"), Some(17));
        assert_eq!(size("64K"), Some(65536));
        assert_eq!(size("1m"), Some(1 << 20));
        assert_eq!(size("2MiB"), Some(2 << 20));
        assert_eq!(size("3g"), Some(3 << 30));
        for wrong in ["", "-1", "k", "1T", "1 k", "0x10", "4g", "99999999999999999999", "1µ"] {
            assert_eq!(size(wrong), None, "{wrong}");
        }
        assert_eq!(parse("1k", &(1..=1023_usize)), Err("1k is not in 1..=1023".to_owned()));
        assert_eq!(parse("1k", &(0..=1024_usize)), Ok(1024));
    }
}
