//! DCQCN: rate control from congestion notifications.
//!
//! Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015. The rate is
//! cut in proportion to `alpha`, an estimate of how congested the path is, whenever a
//! notification arrives, and recovers in three stages (fast recovery to the rate before the cut,
//! additive increase, hyper increase) driven by a timer and by bytes sent. Timers are evaluated
//! lazily when a train is sent: the rate has no effect between two trains.

use feroce_train::Instant;

use crate::hca::congestion::CongestionControl;
use crate::hca::congestion_params::DcqcnConfig;

/// DCQCN at the reaction point.
#[derive(Debug)]
pub(super) struct Dcqcn {
    config: DcqcnConfig,
    /// Current rate and the rate to recover to.
    rate: f64,
    target: f64,
    alpha: f64,
    /// No notification has ever arrived: send at line rate and keep no timers.
    untouched: bool,
    alpha_at: Instant,
    increase_at: Instant,
    bytes_left: u64,
    time_rounds: u32,
    byte_rounds: u32,
}

impl Dcqcn {
    pub(super) fn new(config: DcqcnConfig) -> Self {
        let rate = config.line_rate_bps as f64;
        Self {
            config,
            rate,
            target: rate,
            alpha: 1.0,
            untouched: true,
            alpha_at: Instant::ZERO,
            increase_at: Instant::ZERO,
            bytes_left: config.increase_bytes,
            time_rounds: 0,
            byte_rounds: 0,
        }
    }

    /// Catches up with the timers that ran since the last look.
    fn advance(&mut self, now: Instant) {
        if self.untouched {
            return;
        }
        let decays = now.nanos_since(self.alpha_at) / self.config.alpha_timer_ns.max(1);
        for _ in 0..decays.min(4096) {
            self.alpha *= 1.0 - self.config.g;
        }
        self.alpha_at = self.alpha_at.plus_nanos(decays * self.config.alpha_timer_ns);
        let rounds = now.nanos_since(self.increase_at) / self.config.increase_timer_ns.max(1);
        for _ in 0..rounds.min(4096) {
            self.time_rounds += 1;
            self.increase();
        }
        self.increase_at = self.increase_at.plus_nanos(rounds * self.config.increase_timer_ns);
    }

    fn increase(&mut self) {
        let f = self.config.fast_recovery;
        if self.time_rounds > f && self.byte_rounds > f {
            self.target += self.config.rate_hai_bps as f64;
        } else if self.time_rounds > f || self.byte_rounds > f {
            self.target += self.config.rate_ai_bps as f64;
        }
        let line = self.config.line_rate_bps as f64;
        self.target = self.target.min(line);
        self.rate = f64::midpoint(self.rate, self.target).min(line);
    }
}

impl CongestionControl for Dcqcn {
    fn rate_bps(&self) -> f64 {
        self.rate
    }

    fn on_sent(&mut self, now: Instant, bytes: u64) {
        self.advance(now);
        if !self.untouched {
            self.bytes_left = self.bytes_left.saturating_sub(bytes);
            if self.bytes_left == 0 {
                self.bytes_left = self.config.increase_bytes;
                self.byte_rounds += 1;
                self.increase();
            }
        }
    }

    fn on_cnp(&mut self, now: Instant) {
        self.advance(now);
        self.untouched = false;
        self.target = self.rate;
        self.rate = (self.rate * (1.0 - self.alpha / 2.0)).max(self.config.min_rate_bps as f64);
        self.alpha = (1.0 - self.config.g) * self.alpha + self.config.g;
        self.alpha_at = now;
        self.increase_at = now;
        self.bytes_left = self.config.increase_bytes;
        self.time_rounds = 0;
        self.byte_rounds = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1000)
    }

    #[test]
    fn a_notification_halves_the_rate_and_it_recovers() {
        let config = DcqcnConfig { line_rate_bps: 10_000_000_000, ..DcqcnConfig::default() };
        let mut cc = Dcqcn::new(config);
        cc.on_sent(at(0), 4096);
        assert!((cc.rate_bps() - 10e9).abs() < 1.0);
        cc.on_cnp(at(10));
        assert!((cc.rate_bps() - 5e9).abs() < 1.0);
        cc.on_sent(at(10_000), 4096);
        assert!(cc.rate_bps() > 9.9e9, "{}", cc.rate_bps());
    }

    #[test]
    fn the_rate_never_falls_below_the_minimum() {
        let mut cc = Dcqcn::new(DcqcnConfig::default());
        for i in 0..1000 {
            cc.on_cnp(at(i));
        }
        let least = DcqcnConfig::default().min_rate_bps as f64;
        assert!((cc.rate_bps() - least).abs() < 1.0);
    }
}
