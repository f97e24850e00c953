//! Numbers with units.

/// A number in at most six characters: `12345`, `12.3k`, `4.56M`.
pub(super) fn count(n: u64) -> String {
    scaled(n as f64, 1000.0, &["", "k", "M", "G", "T", "P", "E"])
}

/// Bytes in at most seven characters, with binary prefixes: `512`, `64.0Ki`, `1.50Gi`.
pub(super) fn bytes(n: u64) -> String {
    scaled(n as f64, 1024.0, &["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"])
}

/// Bits per second: `0`, `12.3M`, `97.5G`.
pub(super) fn bit_rate(bytes: u64, seconds: f64) -> String {
    scaled_rate(if seconds > 0.0 { bytes as f64 * 8.0 / seconds } else { 0.0 })
}

/// A rate of bits or events: `12345`, `97.5G`.
pub(super) fn scaled_rate(per_second: f64) -> String {
    scaled(per_second, 1000.0, &["", "k", "M", "G", "T", "P", "E"])
}

/// Events per second.
pub(super) fn rate(events: u64, seconds: f64) -> String {
    scaled_rate(if seconds > 0.0 { events as f64 / seconds } else { 0.0 })
}

/// A duration: `850ns`, `12.3us`, `4.56ms`, `7.8s`; `-` for none.
pub(super) fn duration(ns: u64) -> String {
    match ns {
        0 => "-".to_owned(),
        1..1_000 => format!("{ns}ns"),
        1_000..1_000_000 => format!("{}us", digits(ns as f64 / 1e3)),
        1_000_000..1_000_000_000 => format!("{}ms", digits(ns as f64 / 1e6)),
        _ => format!("{}s", digits(ns as f64 / 1e9)),
    }
}

fn scaled(mut value: f64, step: f64, units: &[&str]) -> String {
    let mut unit = 0;
    // Up to here all digits are shown.
    let whole = if step > 1000.0 { step } else { 100_000.0 };
    if value < whole {
        return format!("{value:.0}");
    }
    while value >= step - 0.5 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    format!("{}{}", digits(value), units[unit])
}

/// Three digits that count.
fn digits(value: f64) -> String {
    match value {
        v if v < 9.995 => format!("{v:.2}"),
        v if v < 99.95 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!([0, 99_999, 123_456, 12_345_678].map(count), ["0", "99999", "123k", "12.3M"]);
        assert_eq!(
            [1023, 1024, 65_536, 3 << 30].map(bytes),
            ["1023", "1.00Ki", "64.0Ki", "3.00Gi"]
        );
        assert_eq!(bit_rate(12_500_000_000, 1.0), "100G");
        assert_eq!((bit_rate(5, 0.0), rate(3, 2.0)), ("0".to_owned(), "2".to_owned()));
        assert_eq!([0, 850, 12_300, 4_560_000].map(duration), ["-", "850ns", "12.3us", "4.56ms"]);
        assert_eq!(duration(7_800_000_000), "7.80s");
        for n in (0..64).map(|shift| u64::MAX >> shift) {
            assert!(count(n).len() <= 6 && bytes(n).len() <= 7, "{n}: {} {}", count(n), bytes(n));
        }
    }
}
