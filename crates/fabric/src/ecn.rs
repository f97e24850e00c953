//! ECN marking by the length of the egress queue (RED on the instantaneous length).

use alloc::vec::Vec;

use crate::Rate;

/// When a queue marks packets.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct EcnConfig {
    /// At most so many bytes: no mark.
    pub kmin: u64,
    /// More bytes than this: every packet is marked.
    pub kmax: u64,
    /// The probability at `kmax`; between the two it grows from zero.
    pub pmax: f64,
}

impl EcnConfig {
    /// The thresholds of ConnectX deployments: 100 KB, 400 KB and 0.2 at 25 Gb/s, in proportion to
    /// the rate.
    pub fn for_rate(rate: Rate) -> Self {
        let scaled =
            |bytes: u64| (u128::from(bytes) * u128::from(rate.bps()) / 25_000_000_000) as u64;
        Self { kmin: scaled(100_000), kmax: scaled(400_000), pmax: 0.2 }
    }

    /// The probability that a packet is marked which leaves so many bytes behind.
    pub fn probability(&self, bytes: u64) -> f64 {
        if bytes <= self.kmin {
            0.0
        } else if bytes > self.kmax {
            1.0
        } else {
            self.pmax * (bytes - self.kmin) as f64 / (self.kmax - self.kmin) as f64
        }
    }
}

/// Which ports mark, and when.
#[derive(Clone, PartialEq, Debug, Default)]
pub enum Ecn {
    /// None.
    #[default]
    Off,
    /// All, by [`EcnConfig::for_rate`].
    ByRate,
    /// All, with the same thresholds.
    All(EcnConfig),
    /// Those of the rates in the list.
    Rates(Vec<(Rate, EcnConfig)>),
}

impl Ecn {
    /// When ports of a rate mark.
    pub(crate) fn of(&self, rate: Rate) -> Option<EcnConfig> {
        match self {
            Self::Off => None,
            Self::ByRate => Some(EcnConfig::for_rate(rate)),
            Self::All(config) => Some(*config),
            Self::Rates(list) => list.iter().find(|(r, _)| *r == rate).map(|(_, config)| *config),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probability_grows_between_the_thresholds() {
        let ecn = EcnConfig::for_rate(Rate::from_gbps(100));
        assert_eq!((ecn.kmin, ecn.kmax), (400_000, 1_600_000));
        let close = |bytes, p: f64| (ecn.probability(bytes) - p).abs() < 1e-9;
        assert!(close(400_000, 0.0) && close(1_000_000, 0.1) && close(1_600_000, 0.2));
        assert!(close(1_600_001, 1.0));
    }
}
