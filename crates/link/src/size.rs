//! Numbers of bytes as people write them.

/// Parses a number of bytes, with K, M or G (or KiB, MiB, GiB) for powers of 1024.
///
/// ```
/// # use feroce_link::parse_size;
/// assert_eq!(parse_size("17"), Some(17));
/// assert_eq!(parse_size("64K"), Some(64 << 10));
/// assert_eq!(parse_size("2mib"), Some(2 << 20));
/// assert_eq!(parse_size("1 K"), None);
/// ```
pub fn parse_size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}
