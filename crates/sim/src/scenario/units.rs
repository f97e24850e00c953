//! Rates, times, sizes and probabilities as people write them.

use feroce_fabric::Rate;

/// The number at the start of a word, and the rest.
fn split(word: &str) -> Option<(f64, &str)> {
    let end = word.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(word.len());
    let value: f64 = word[..end].parse().ok()?;
    value.is_finite().then_some((value, word[end..].trim_start()))
}

/// A whole number that 64 bits hold.
fn whole(value: f64) -> Option<u64> {
    (value < u64::MAX as f64).then_some(value.round() as u64)
}

/// A rate such as `100G`, `100Gbps` or `20Mb/s`.
pub fn parse_rate(word: &str) -> Option<Rate> {
    let (value, unit) = split(word)?;
    let unit = unit.strip_suffix("bps").or_else(|| unit.strip_suffix("b/s")).unwrap_or(unit);
    let factor = match unit.trim_end_matches("bit/s") {
        "" => 1.0,
        "K" | "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        _ => return None,
    };
    Rate::from_bps(whole(value * factor)?)
}

/// A time such as `1us` or `1000ns`, in picoseconds.
pub fn parse_time(word: &str) -> Option<u64> {
    let (value, unit) = split(word)?;
    let factor = match unit {
        "ps" => 1.0,
        "ns" => 1e3,
        "us" => 1e6,
        "ms" => 1e9,
        "s" => 1e12,
        _ => return None,
    };
    whole(value * factor)
}

/// A size such as `64`, `25M` (decimal) or `32MiB`, in bytes.
pub fn parse_size(word: &str) -> Option<u64> {
    let (value, unit) = split(word)?;
    let factor = match unit.strip_suffix('B').unwrap_or(unit) {
        "" => 1.0,
        "K" | "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "Ki" => 1024.0,
        "Mi" => 1_048_576.0,
        "Gi" => 1_073_741_824.0,
        _ => return None,
    };
    whole(value * factor)
}

/// A probability such as `1%` or `0.01`.
pub fn parse_chance(word: &str) -> Option<f64> {
    let (value, scale) = match split(word)? {
        (value, "%") => (value, 100.0),
        (value, "") => (value, 1.0),
        _ => return None,
    };
    Some(value / scale).filter(|chance| (0.0..=1.0).contains(chance))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_units_are_read_and_others_refused() {
        let bps = |word| parse_rate(word).map(Rate::bps);
        assert_eq!(bps("100G"), Some(100_000_000_000));
        assert_eq!(bps("100Gbps"), Some(100_000_000_000));
        assert_eq!(bps("20Mb/s"), Some(20_000_000));
        assert_eq!(bps("2.5G"), Some(2_500_000_000));
        for bad in ["", "0G", "G", "-1G", "1X", "1e3", "1..2G", "99999999999999999999999G"] {
            assert_eq!(bps(bad), None, "{bad}");
        }
        assert_eq!(parse_time("1.5us"), Some(1_500_000));
        assert_eq!(parse_time("10"), None);
        assert_eq!(parse_size("4096"), Some(4096));
        assert_eq!(parse_size("32MiB"), Some(32 << 20));
        assert_eq!(parse_size("25 MB"), Some(25_000_000));
        assert_eq!(parse_size("25 apples"), None);
        assert_eq!(parse_chance("1%"), Some(0.01));
        assert_eq!(parse_chance("0.5 %"), Some(0.005));
        assert_eq!(parse_chance("0.5"), Some(0.5));
        for bad in ["101%", "-1%", "nan", "often", "1.5", "", "%"] {
            assert_eq!(parse_chance(bad), None, "{bad}");
        }
    }
}
