//! TIMELY: rate control from the change of round trip times.
//!
//! Mittal et al., "TIMELY: RTT-based Congestion Control for the Datacenter", SIGCOMM 2015. Between
//! two thresholds the rate follows the gradient of the round trip: it grows while round trips
//! shorten and is cut while they lengthen. Below the lower threshold it always grows, above the
//! upper one it is always cut.

use feroce_train::Instant;

use crate::hca::congestion::{Ack, CongestionControl};
use crate::hca::congestion_params::TimelyConfig;

/// Steps by which the rate grows after several round trips in a row that did not lengthen.
const HYPER_STEPS: u64 = 5;

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Timely {
    config: TimelyConfig,
    rate: f64,
    /// The round trip before, if there was one.
    last_ns: Option<u64>,
    /// Average difference of consecutive round trips, in nanoseconds.
    difference_ns: f64,
    /// Round trips in a row that did not lengthen.
    quiet: u32,
}

impl Timely {
    pub(super) fn new(config: TimelyConfig) -> Self {
        let rate = config.line_rate_bps as f64;
        Self { config, rate, last_ns: None, difference_ns: 0.0, quiet: 0 }
    }

    fn measured(&mut self, rtt_ns: u64) {
        let TimelyConfig { alpha, beta, t_low_ns, t_high_ns, .. } = self.config;
        let step = self.config.rate_ai_bps;
        let new = rtt_ns as f64;
        if let Some(last_ns) = self.last_ns.replace(rtt_ns) {
            let difference = new - last_ns as f64;
            self.difference_ns = (1.0 - alpha) * self.difference_ns + alpha * difference;
        }
        let gradient = self.difference_ns / self.config.min_rtt_ns.max(1) as f64;
        if rtt_ns < t_low_ns {
            self.quiet = 0;
            self.rate += step as f64;
        } else if rtt_ns > t_high_ns {
            self.quiet = 0;
            self.rate *= 1.0 - beta * (1.0 - t_high_ns as f64 / new);
        } else if gradient <= 0.0 {
            self.quiet += 1;
            let steps = if self.quiet >= self.config.hyper_after { HYPER_STEPS } else { 1 };
            self.rate += (steps * step) as f64;
        } else {
            self.quiet = 0;
            self.rate *= 1.0 - (beta * gradient).min(1.0);
        }
        let (least, most) = (self.config.min_rate_bps, self.config.line_rate_bps);
        self.rate = self.rate.min(most as f64).max(least as f64);
    }
}

impl CongestionControl for Timely {
    fn rate_bps(&self) -> f64 {
        self.rate
    }

    fn ack_every(&self) -> u64 {
        self.config.segment_bytes
    }

    fn on_ack(&mut self, _: Instant, ack: Ack) {
        if let Some(rtt_ns) = ack.rtt_ns {
            self.measured(rtt_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: TimelyConfig = TimelyConfig {
        line_rate_bps: 10_000_000_000,
        min_rate_bps: 10_000_000,
        rate_ai_bps: 10_000_000,
        alpha: 0.875,
        beta: 0.8,
        t_low_ns: 50_000,
        t_high_ns: 500_000,
        min_rtt_ns: 20_000,
        hyper_after: 5,
        segment_bytes: 16 << 10,
    };

    /// At 1 Gb/s, after these round trips in microseconds.
    fn after(us: &[u64]) -> f64 {
        let mut cc = Timely { rate: 1e9, ..Timely::new(CONFIG) };
        for us in us {
            let ack = Ack { rtt_ns: Some(us * 1000), ..Ack::default() };
            cc.on_ack(Instant::ZERO, ack);
        }
        cc.rate_bps()
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1.0
    }

    #[test]
    fn round_trips_beyond_the_thresholds_decide_alone() {
        assert!(close(after(&[20]), 1.01e9));
        // The gradient is steep, but the round trip is short.
        assert!(close(after(&[20, 40]), 1.02e9));
        assert!(close(after(&[1000]), 1e9 * (1.0 - 0.8 * 0.5)));
    }

    #[test]
    fn between_the_thresholds_the_gradient_decides() {
        // Ten microseconds longer: 0.875 of it counts, in units of 20 us.
        let cut = 1.0 - 0.8 * (0.875 * 10.0 / 20.0);
        assert!(close(after(&[100, 110]), 1.01e9 * cut), "{}", after(&[100, 110]));
        // Shorter, then longer by less than what the average still says.
        let gradient: f64 = 0.125 * (0.875 * -40.0) + 0.875 * 4.0;
        assert!(gradient < 0.0);
        assert!(close(after(&[140, 100, 104]), 1.03e9));
    }

    #[test]
    fn the_rate_grows_faster_after_five_quiet_round_trips_and_stays_in_its_bounds() {
        assert!(close(after(&[100; 4]), 1.04e9));
        assert!(close(after(&[100; 5]), 1.09e9));
        assert!(close(after(&[100; 1000]), 10e9));
        let lengthening: Vec<u64> = (0..30).map(|i| 100 + 12 * i).collect();
        assert!(close(after(&lengthening), 10e6));
    }

    #[test]
    fn acknowledgements_without_a_measurement_change_nothing() {
        let mut cc = Timely::new(CONFIG);
        cc.on_ack(Instant::ZERO, Ack { bytes: 1000, ..Ack::default() });
        assert!(close(cc.rate_bps(), 10e9));
    }

    use std::vec::Vec;
}
