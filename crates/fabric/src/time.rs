//! Time in picoseconds, and rates.
//!
//! A byte takes 80 ps at 100 Gb/s: in nanoseconds, the error of every packet would add up.

use core::fmt;

use feroce_train::Instant;

/// Picoseconds in a nanosecond.
const PS_PER_NS: u64 = 1000;

/// A point in time, in picoseconds since the origin of the clock that drives the fabric.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// The origin.
    pub const ZERO: Self = Self(0);

    /// From picoseconds since the origin.
    #[inline]
    pub const fn from_ps(ps: u64) -> Self {
        Self(ps)
    }

    /// From nanoseconds since the origin.
    #[inline]
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns.saturating_mul(PS_PER_NS))
    }

    /// Picoseconds since the origin.
    #[inline]
    pub const fn as_ps(self) -> u64 {
        self.0
    }

    /// Whole nanoseconds since the origin.
    #[inline]
    pub const fn as_ns(self) -> u64 {
        self.0 / PS_PER_NS
    }

    /// `self` plus `ps` picoseconds; stays at the end of time rather than wrap.
    #[inline]
    #[must_use]
    pub const fn plus_ps(self, ps: u64) -> Self {
        Self(self.0.saturating_add(ps))
    }

    /// Picoseconds from `earlier` to `self`; zero if `earlier` is the later one.
    #[inline]
    pub const fn ps_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl From<Instant> for Time {
    #[inline]
    fn from(at: Instant) -> Self {
        Self::from_ns(at.as_nanos())
    }
}

/// The last whole nanosecond before it.
impl From<Time> for Instant {
    #[inline]
    fn from(at: Time) -> Self {
        Self::from_nanos(at.as_ns())
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}ns", self.0 / PS_PER_NS, self.0 % PS_PER_NS)
    }
}

/// Picoseconds that a byte takes at one bit per second.
const BYTE_AT_1_BPS_PS: u64 = 8_000_000_000_000;

const fn saturate(value: u128) -> u64 {
    if value > u64::MAX as u128 { u64::MAX } else { value as u64 }
}

/// Bits per second; never zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Rate(u64);

impl Rate {
    /// From bits per second; `None` if that is zero.
    #[inline]
    pub const fn from_bps(bps: u64) -> Option<Self> {
        if bps == 0 { None } else { Some(Self(bps)) }
    }

    /// From gigabits per second.
    ///
    /// # Panics
    /// If that is zero, or more than a [`u64`] of bits per second.
    #[inline]
    pub const fn from_gbps(gbps: u64) -> Self {
        let bps = gbps.checked_mul(1_000_000_000).expect("a rate that 64 bits hold");
        Self::from_bps(bps).expect("a rate above zero")
    }

    /// Bits per second.
    #[inline]
    pub const fn bps(self) -> u64 {
        self.0
    }

    /// How long so many bytes take; the end of time if that is longer than 213 days.
    #[inline]
    pub const fn ps_of(self, bytes: u32) -> u64 {
        match (bytes as u64).checked_mul(BYTE_AT_1_BPS_PS) {
            Some(product) => product / self.0,
            None => saturate(bytes as u128 * BYTE_AT_1_BPS_PS as u128 / self.0 as u128),
        }
    }

    /// Bytes that leave in so many picoseconds.
    #[inline]
    pub const fn bytes_in(self, ps: u64) -> u64 {
        saturate(ps as u128 * self.0 as u128 / BYTE_AT_1_BPS_PS as u128)
    }
}

/// How exact the time is that a packet takes to leave a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Quantize {
    /// To the picosecond.
    #[default]
    Picoseconds,
    /// Cut to whole nanoseconds, as the ns-3 of HPCC does: 1048 bytes take 83 ns at 100 Gb/s
    /// instead of 83.84.
    Ns3,
}

impl Quantize {
    /// Applies it to a time in picoseconds.
    #[inline]
    pub(crate) const fn apply(self, ps: u64) -> u64 {
        match self {
            Self::Picoseconds => ps,
            Self::Ns3 => ps / PS_PER_NS * PS_PER_NS,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_gives_the_time_of_bytes_and_the_bytes_of_a_time() {
        let rate = Rate::from_gbps(100);
        assert_eq!(rate.ps_of(1048), 83_840);
        assert_eq!(Quantize::Ns3.apply(rate.ps_of(1048)), 83_000);
        assert_eq!(rate.bytes_in(83_840), 1048);
        assert_eq!(Rate::from_bps(1).map(|rate| rate.ps_of(u32::MAX)), Some(u64::MAX));
        assert_eq!(Rate::from_bps(0), None);
    }
}
