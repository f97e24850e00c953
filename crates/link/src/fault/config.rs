//! Which faults to inject, and the text form in which users write them.

use std::fmt;
use std::str::FromStr;

use crate::parse_size;

/// How likely something is, in parts per billion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Probability(u32);

impl Probability {
    /// Never.
    pub const NEVER: Self = Self(0);
    /// Always.
    pub const ALWAYS: Self = Self(Self::ONE);

    const ONE: u32 = 1_000_000_000;

    /// From parts per billion; more than a billion count as a billion.
    pub const fn from_ppb(ppb: u32) -> Self {
        if ppb > Self::ONE { Self::ALWAYS } else { Self(ppb) }
    }

    /// Parts per billion.
    pub const fn ppb(self) -> u32 {
        self.0
    }

    /// Whether it never happens.
    pub const fn is_never(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_decimal(f, self.0.into(), 7)?;
        f.write_str("%")
    }
}

/// Reads `1%`, `0.01%` and `0.25`. A whole number without `%` is refused: it might mean either.
impl FromStr for Probability {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let expected = "expected a probability such as 1% or 0.01";
        let ppb = match text.strip_suffix('%') {
            Some(percent) => decimal(percent.trim_end(), 7),
            None if text == "0" || text.contains('.') => decimal(text, 9),
            None => None,
        };
        match ppb.map(u32::try_from) {
            Some(Ok(ppb)) if ppb <= Self::ONE => Ok(Self(ppb)),
            Some(_) => Err("a probability is at most 100%"),
            None => Err(expected),
        }
    }
}

/// What should happen to received packets. Nothing, by default.
///
/// Written as `off`, or as `key=value` with commas between, in any order:
///
/// | key | value | meaning |
/// |---|---|---|
/// | `loss` | `1%` | a packet is lost |
/// | `dup` | `0.1%` | a packet comes twice |
/// | `reorder` | `1%:3` | a packet comes after the 3 that follow it; without number, 1 |
/// | `corrupt` | `0.01%` | up to eight neighbouring bits change |
/// | `delay` | `50us~20us` | packets take 30 to 70 us; without `~`, exactly 50. Order is kept |
/// | `rate` | `10Gbit:256KiB` | bits per second, and the queue in front; beyond it, loss |
/// | `cut` | `0.01%` | the peer closes the connection |
/// | `reset` | `0.01%` | the connection breaks |
/// | `seed` | `7` | the same seed gives the same packets the same fate |
///
/// iWARP runs on TCP connections, which repair `loss`, `dup` and `reorder`: the device refuses
/// those. There, `corrupt`, `cut` and `reset` are chances of each 1024 bytes that arrive, and what
/// does not fit into the queue of `rate` waits in TCP. Other devices refuse `cut` and `reset`.
///
/// ```
/// # use feroce_link::FaultConfig;
/// let faults: FaultConfig = "loss=1%,reorder=0.5%:3,seed=7".parse()?;
/// assert_eq!(faults.reorder_distance, 3);
/// # Ok::<(), feroce_link::FaultParseError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FaultConfig {
    /// A packet is lost.
    pub loss: Probability,
    /// A packet comes twice.
    pub duplicate: Probability,
    /// A packet is overtaken.
    pub reorder: Probability,
    /// By how many.
    pub reorder_distance: u32,
    /// Bits of a packet change.
    pub corrupt: Probability,
    /// Nanoseconds that every packet takes.
    pub delay_ns: u64,
    /// Nanoseconds by which that varies, up and down.
    pub jitter_ns: u64,
    /// Bits per second, counted from the IP header; 0 is no limit.
    pub rate_bps: u64,
    /// Bytes that may wait where the rate is limited.
    pub queue_bytes: u64,
    /// The peer of a TCP connection closes it.
    pub cut: Probability,
    /// A TCP connection breaks.
    pub reset: Probability,
    /// Seed of the random number generators.
    pub seed: u64,
}

impl Default for FaultConfig {
    fn default() -> Self {
        Self {
            loss: Probability::NEVER,
            duplicate: Probability::NEVER,
            reorder: Probability::NEVER,
            reorder_distance: 1,
            corrupt: Probability::NEVER,
            delay_ns: 0,
            jitter_ns: 0,
            rate_bps: 0,
            queue_bytes: 256 << 10,
            cut: Probability::NEVER,
            reset: Probability::NEVER,
            seed: 0,
        }
    }
}

impl FaultConfig {
    /// Reads a list of faults; see the type for how they are written.
    pub fn parse(text: &str) -> Result<Self, FaultParseError> {
        let mut config = Self::default();
        if text.trim() == "off" {
            return Ok(config);
        }
        let mut seen = Vec::new();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let fail = |why| FaultParseError { item: item.to_owned(), why };
            let (key, value) = item.split_once('=').ok_or_else(|| fail("expected key=value"))?;
            let (key, value) = (key.trim(), value.trim());
            if seen.contains(&key) {
                return Err(fail("is there twice"));
            }
            seen.push(key);
            config.set(key, value).map_err(fail)?;
        }
        Ok(config)
    }

    /// Whether nothing happens to any packet.
    pub fn is_harmless(&self) -> bool {
        let of_packets = [self.loss, self.duplicate, self.reorder, self.corrupt];
        let mut chances = [self.cut, self.reset].into_iter().chain(of_packets);
        chances.all(|p| p.is_never()) && (self.delay_ns, self.jitter_ns, self.rate_bps) == (0, 0, 0)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), &'static str> {
        match key {
            "loss" => self.loss = value.parse()?,
            "dup" | "duplicate" => self.duplicate = value.parse()?,
            "corrupt" => self.corrupt = value.parse()?,
            "cut" => self.cut = value.parse()?,
            "reset" => self.reset = value.parse()?,
            "reorder" => {
                let (chance, distance) = value.split_once(':').unwrap_or((value, "1"));
                self.reorder = chance.parse()?;
                self.reorder_distance = distance
                    .parse()
                    .ok()
                    .filter(|n| *n > 0)
                    .ok_or("expected a number of packets after the colon")?;
            }
            "delay" => {
                let (delay, jitter) = value.split_once('~').unwrap_or((value, "0"));
                (self.delay_ns, self.jitter_ns) = (duration(delay)?, duration(jitter)?);
            }
            "rate" => {
                let (rate, queue) = value.split_once(':').unwrap_or((value, ""));
                self.rate_bps = bits(rate)?;
                if !queue.is_empty() {
                    self.queue_bytes = bytes(queue)?;
                }
            }
            "seed" => self.seed = value.parse().map_err(|_| "expected a whole number")?,
            _ => {
                return Err("unknown key; there are loss, dup, reorder, corrupt, delay, rate, \
                     cut, reset, seed");
            }
        }
        Ok(())
    }
}

impl FromStr for FaultConfig {
    type Err = FaultParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

/// What [`FaultConfig::parse`] reads.
impl fmt::Display for FaultConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = List { f: &mut *f, first: true };
        let chances = [
            ("loss", self.loss),
            ("dup", self.duplicate),
            ("corrupt", self.corrupt),
            ("cut", self.cut),
            ("reset", self.reset),
        ];
        for (key, p) in chances {
            if !p.is_never() {
                list.item(format_args!("{key}={p}"))?;
            }
        }
        if !self.reorder.is_never() {
            list.item(format_args!("reorder={}:{}", self.reorder, self.reorder_distance))?;
        }
        let (delay, jitter) = (Nanos(self.delay_ns), Nanos(self.jitter_ns));
        match (self.delay_ns, self.jitter_ns) {
            (0, 0) => {}
            (_, 0) => list.item(format_args!("delay={delay}"))?,
            _ => list.item(format_args!("delay={delay}~{jitter}"))?,
        }
        if self.rate_bps != 0 {
            list.item(format_args!("rate={}:{}B", Bits(self.rate_bps), self.queue_bytes))?;
        }
        if self.seed != 0 {
            list.item(format_args!("seed={}", self.seed))?;
        }
        if list.first {
            return f.write_str("off");
        }
        Ok(())
    }
}

/// Writes items with commas between.
struct List<'a, 'b> {
    f: &'a mut fmt::Formatter<'b>,
    first: bool,
}

impl List<'_, '_> {
    fn item(&mut self, item: fmt::Arguments<'_>) -> fmt::Result {
        let comma = if std::mem::take(&mut self.first) { "" } else { "," };
        write!(self.f, "{comma}{item}")
    }
}

/// What is wrong with a list of faults.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FaultParseError {
    item: String,
    why: &'static str,
}

impl fmt::Display for FaultParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fault `{}`: {}", self.item, self.why)
    }
}

impl std::error::Error for FaultParseError {}

/// Units and their powers of ten.
type Units = &'static [(&'static str, u32)];

const TIMES: Units = &[("ns", 0), ("us", 3), ("ms", 6), ("s", 9)];
const RATES: Units = &[("bit", 0), ("kbit", 3), ("Mbit", 6), ("Gbit", 9), ("Tbit", 12)];
/// As scenarios of `feroce sim` write rates.
const SHORT_RATES: Units = &[("k", 3), ("M", 6), ("G", 9), ("T", 12)];

struct Nanos(u64);

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_unit(f, self.0, TIMES)
    }
}

struct Bits(u64);

impl fmt::Display for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_unit(f, self.0, RATES)
    }
}

fn duration(text: &str) -> Result<u64, &'static str> {
    let expected = "expected a time such as 50us, 1.5ms or 2s";
    if text == "0" { Ok(0) } else { with_unit(text, TIMES).ok_or(expected) }
}

fn bits(text: &str) -> Result<u64, &'static str> {
    let text = text.strip_suffix("/s").unwrap_or(text);
    let rate = with_unit(text, RATES).or_else(|| with_unit(text, SHORT_RATES));
    rate.filter(|n| *n > 0).ok_or("expected a rate such as 10Gbit or 1.5M")
}

fn bytes(text: &str) -> Result<u64, &'static str> {
    let has_unit = !text.ends_with(|c: char| c.is_ascii_digit());
    let found = if has_unit { parse_size(text) } else { None };
    let found = found.or_else(|| with_unit(text, &[("B", 0), ("kB", 3), ("MB", 6), ("GB", 9)]));
    found.ok_or("expected a size such as 256K, 256KiB or 1MB after the colon")
}

/// A number with one of `units`.
fn with_unit(text: &str, units: Units) -> Option<u64> {
    units.iter().find_map(|(unit, digits)| decimal(strip_unit(text, unit)?, *digits))
}

fn strip_unit<'a>(text: &'a str, unit: &str) -> Option<&'a str> {
    let at = text.len().checked_sub(unit.len())?;
    let (number, end) = text.split_at_checked(at)?;
    end.eq_ignore_ascii_case(unit).then(|| number.trim_end())
}

/// `text` times ten to the power of `digits`, if that is a whole number.
fn decimal(text: &str, digits: u32) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let fraction = fraction.trim_end_matches('0');
    let missing = digits.checked_sub(u32::try_from(fraction.len()).ok()?)?;
    let value = |part: &str| if part.is_empty() { Ok(0) } else { part.parse::<u64>() };
    let whole = value(whole).ok()?.checked_mul(10_u64.pow(digits))?;
    let fraction = value(fraction).ok()?.checked_mul(10_u64.pow(missing))?;
    whole.checked_add(fraction)
}

/// Writes a number in the largest unit that it has one of.
fn write_unit(f: &mut fmt::Formatter<'_>, n: u64, units: Units) -> fmt::Result {
    let fits = units.iter().rev().find(|(_, digits)| n >= 10_u64.pow(*digits));
    let (unit, digits) = fits.unwrap_or(&units[0]);
    write_decimal(f, n, *digits)?;
    f.write_str(unit)
}

/// Writes `n` with the comma `digits` places to the left.
fn write_decimal(f: &mut fmt::Formatter<'_>, n: u64, digits: u32) -> fmt::Result {
    let one = 10_u64.pow(digits);
    let fraction = format!("{:0width$}", n % one, width = digits as usize);
    match fraction.trim_end_matches('0') {
        "" => write!(f, "{}", n / one),
        fraction => write!(f, "{}.{fraction}", n / one),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_grammar() {
        let text = "loss=1%,dup=0.1%,reorder=1%:3,corrupt=0.01%,delay=50us~20us,rate=10Gbit,seed=7";
        let config = FaultConfig {
            loss: Probability::from_ppb(10_000_000),
            duplicate: Probability::from_ppb(1_000_000),
            reorder: Probability::from_ppb(10_000_000),
            reorder_distance: 3,
            corrupt: Probability::from_ppb(100_000),
            delay_ns: 50_000,
            jitter_ns: 20_000,
            rate_bps: 10_000_000_000,
            queue_bytes: 256 << 10,
            seed: 7,
            ..FaultConfig::default()
        };
        assert_eq!(FaultConfig::parse(text), Ok(config.clone()));
        assert_eq!(
            config.to_string(),
            "loss=1%,dup=0.1%,corrupt=0.01%,reorder=1%:3,delay=50us~20us,rate=10Gbit:262144B,seed=7"
        );
        assert_eq!("".parse(), Ok(FaultConfig::default()));
        assert_eq!("off".parse(), Ok(FaultConfig::default()));
        assert_eq!(FaultConfig::default().to_string(), "off");
        let spaced = FaultConfig::parse(" loss = 0.25 , rate=1.5 mbit/s:1MB,delay=0~1ms,");
        let spaced = spaced.expect("spaces are fine");
        assert_eq!(spaced.loss, Probability::from_ppb(250_000_000));
        assert_eq!((spaced.rate_bps, spaced.queue_bytes), (1_500_000, 1_000_000));
        assert_eq!((spaced.delay_ns, spaced.jitter_ns), (0, 1_000_000));
        assert_eq!("loss=100%".parse::<FaultConfig>().expect("all").loss, Probability::ALWAYS);
    }

    #[test]
    fn rates_and_sizes_have_short_units() {
        let long = FaultConfig::parse("rate=10Gbit:256KiB").unwrap();
        for text in ["rate=10G:256K", "rate=10g/s:262144B", "rate=10000M:256kib"] {
            assert_eq!(FaultConfig::parse(text).as_ref(), Ok(&long), "{text}");
        }
    }

    #[test]
    fn errors_say_what_to_write() {
        for (text, part) in [
            ("loss", "expected key=value"),
            ("loss=1", "such as 1% or 0.01"),
            ("loss=-1%", "such as 1% or 0.01"),
            ("loss=.%", "such as 1% or 0.01"),
            ("loss=101%", "at most 100%"),
            ("loss=1.5", "at most 100%"),
            ("loss=99999999999999999999%", "such as 1%"),
            ("loss=0.00000001%", "such as 1%"),
            ("los=1%", "there are loss, dup"),
            ("seed=1,seed=2", "twice"),
            ("reorder=1%:0", "number of packets"),
            ("delay=50", "such as 50us"),
            ("delay=1us~", "such as 50us"),
            ("rate=0bit", "such as 10Gbit"),
            ("rate=1Gbit:4", "such as 256K"),
            ("seed=x", "whole number"),
            ("delay=1µs", "such as 50us"),
        ] {
            let error = FaultConfig::parse(text).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
            assert!(error.starts_with("fault `"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(
            chances in prop::array::uniform6(0_u32..=1_000_000_000),
            distance in 1_u32..,
            times in prop::array::uniform2(any::<u64>()),
            rate in 1_u64..,
            queue_bytes: u64,
            seed: u64,
        ) {
            let chances = chances.map(Probability::from_ppb);
            let [loss, duplicate, reorder, corrupt, cut, reset] = chances;
            let reorder_distance = if reorder.is_never() { 1 } else { distance };
            let [delay_ns, jitter_ns] = times;
            let config = FaultConfig {
                loss, duplicate, reorder, reorder_distance, corrupt, delay_ns, jitter_ns,
                rate_bps: rate, queue_bytes, cut, reset, seed,
            };
            prop_assert_eq!(FaultConfig::parse(&config.to_string()), Ok(config));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC*", key in "loss|dup|rate|delay|reorder") {
            let _ = FaultConfig::parse(&text);
            let _ = FaultConfig::parse(&format!("{key}={text}"));
        }
    }
}
