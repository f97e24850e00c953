//! DCQCN as ConnectX-4 and later adapters run it: everything happens at ticks of timers.
//!
//! A notification only sets a flag. At each tick of one timer, `alpha` grows if a notification came
//! since the last one and decays otherwise; at each tick of another, the rate is cut if one came.
//! The rate recovers by time alone. Ticks are evaluated when a train is sent or a notification
//! arrives, because nothing else depends on them.

use feroce_train::Instant;

use crate::hca::congestion::CongestionControl;
use crate::hca::congestion_params::ConnectXConfig;

/// See the module documentation.
#[derive(Debug)]
pub(super) struct ConnectX {
    config: ConnectXConfig,
    rate: f64,
    target: f64,
    alpha: f64,
    /// The ticks that come next; `None` until the first notification.
    ticks: Option<Ticks>,
}

#[derive(Clone, Copy, Debug)]
struct Ticks {
    alpha_at: Instant,
    decrease_at: Instant,
    /// Starts anew with every cut.
    increase_at: Option<Instant>,
    /// Increases since the last cut.
    stage: u32,
    /// A notification came since the last tick.
    seen_by_alpha: bool,
    seen_by_decrease: bool,
}

impl ConnectX {
    pub(super) fn new(config: ConnectXConfig) -> Self {
        let rate = config.line_rate_bps as f64;
        Self { config, rate, target: rate, alpha: 1.0, ticks: None }
    }

    /// Catches up with the ticks up to `now`.
    fn advance(&mut self, now: Instant) {
        while let Some(mut ticks) = self.ticks {
            let increase_at = ticks.increase_at.unwrap_or(Instant::from_nanos(u64::MAX));
            let due = ticks.alpha_at.min(ticks.decrease_at).min(increase_at);
            if due > now {
                return;
            }
            if due == ticks.alpha_at {
                self.tick_alpha(&mut ticks, now);
            } else if due == ticks.decrease_at {
                self.tick_decrease(&mut ticks, now);
            } else {
                self.increase(ticks.stage);
                ticks.stage += 1;
                ticks.increase_at = Some(due.plus_nanos(self.config.increase_timer_ns.max(1)));
            }
            self.ticks = Some(ticks);
        }
    }

    fn tick_alpha(&mut self, ticks: &mut Ticks, now: Instant) {
        let (g, period) = (self.config.g, self.config.alpha_timer_ns.max(1));
        if ticks.seen_by_alpha {
            ticks.seen_by_alpha = false;
            self.alpha = (1.0 - g) * self.alpha + g;
            ticks.alpha_at = ticks.alpha_at.plus_nanos(period);
            return;
        }
        // Without a notification the ticks until the next cut are alike: all at once. A cut that is
        // due before the next notification must see the right value.
        let until = if ticks.seen_by_decrease { ticks.decrease_at.min(now) } else { now };
        let count = until.nanos_since(ticks.alpha_at) / period + 1;
        self.alpha *= power(1.0 - g, count);
        ticks.alpha_at = ticks.alpha_at.plus_nanos(count * period);
    }

    fn tick_decrease(&mut self, ticks: &mut Ticks, now: Instant) {
        let period = self.config.decrease_timer_ns.max(1);
        if !ticks.seen_by_decrease {
            let count = now.nanos_since(ticks.decrease_at) / period + 1;
            ticks.decrease_at = ticks.decrease_at.plus_nanos(count * period);
            return;
        }
        ticks.seen_by_decrease = false;
        if ticks.stage != 0 || self.config.clamp_target {
            self.target = self.rate;
        }
        self.rate = (self.rate * (1.0 - self.alpha / 2.0)).max(self.config.min_rate_bps as f64);
        ticks.stage = 0;
        let timer = self.config.increase_timer_ns;
        ticks.increase_at = Some(ticks.decrease_at.plus_nanos(timer));
        ticks.decrease_at = ticks.decrease_at.plus_nanos(period);
    }

    fn increase(&mut self, stage: u32) {
        let step = match stage.cmp(&self.config.fast_recovery) {
            core::cmp::Ordering::Less => 0,
            core::cmp::Ordering::Equal => self.config.rate_ai_bps,
            core::cmp::Ordering::Greater => self.config.rate_hai_bps,
        };
        self.target = (self.target + step as f64).min(self.config.line_rate_bps as f64);
        self.rate = f64::midpoint(self.rate, self.target);
    }
}

impl CongestionControl for ConnectX {
    fn rate_bps(&self) -> f64 {
        self.rate
    }

    fn on_sent(&mut self, now: Instant, _: u64) {
        self.advance(now);
    }

    fn on_cnp(&mut self, now: Instant) {
        self.advance(now);
        let ConnectXConfig { alpha_timer_ns, decrease_timer_ns, .. } = self.config;
        match &mut self.ticks {
            Some(ticks) => (ticks.seen_by_alpha, ticks.seen_by_decrease) = (true, true),
            None => {
                self.alpha = 1.0;
                self.ticks = Some(Ticks {
                    alpha_at: now.plus_nanos(alpha_timer_ns),
                    decrease_at: now.plus_nanos(decrease_timer_ns),
                    increase_at: None,
                    stage: 0,
                    seen_by_alpha: false,
                    seen_by_decrease: true,
                });
            }
        }
    }
}

/// `base` to the power of `n`.
fn power(mut base: f64, mut n: u64) -> f64 {
    let mut product = 1.0;
    while n > 0 {
        if n & 1 == 1 {
            product *= base;
        }
        base *= base;
        n >>= 1;
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1000)
    }

    /// The same rules, tick by tick.
    #[derive(Debug)]
    struct TickByTick {
        config: ConnectXConfig,
        rate: f64,
        target: f64,
        alpha: f64,
        stage: u32,
        increase_in_us: u64,
        seen: (bool, bool),
    }

    impl TickByTick {
        /// The microsecond `us` after the first notification.
        fn tick(&mut self, us: u64) {
            let (c, g) = (self.config, self.config.g);
            let grown = if self.seen.0 { g } else { 0.0 };
            self.alpha = (1.0 - g) * self.alpha + grown;
            self.seen.0 = false;
            if us.is_multiple_of(4) && self.seen.1 {
                self.seen.1 = false;
                if self.stage != 0 {
                    self.target = self.rate;
                }
                self.rate = (self.rate * (1.0 - self.alpha / 2.0)).max(c.min_rate_bps as f64);
                (self.stage, self.increase_in_us) = (0, 300);
            } else if self.increase_in_us > 0 {
                self.increase_in_us -= 1;
                if self.increase_in_us == 0 {
                    let step = [0, c.rate_ai_bps, c.rate_hai_bps];
                    let step = step[self.stage.min(2) as usize] as f64;
                    self.target = (self.target + step).min(c.line_rate_bps as f64);
                    self.rate = f64::midpoint(self.rate, self.target);
                    self.stage += 1;
                    self.increase_in_us = 300;
                }
            }
        }
    }

    #[test]
    fn lazy_ticks_equal_ticks_one_by_one() {
        let config = ConnectXConfig { fast_recovery: 1, ..ConnectXConfig::default() };
        let mut lazy = ConnectX::new(config);
        let rate = config.line_rate_bps as f64;
        let mut eager = TickByTick {
            config,
            rate,
            target: rate,
            alpha: 1.0,
            stage: 0,
            increase_in_us: 0,
            seen: (false, true),
        };
        lazy.on_cnp(at(0));
        // Notifications at irregular times, with pauses from microseconds to milliseconds.
        let (mut us, mut x) = (0, 1u64);
        for _ in 0..400 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let gap = 1 + (x >> 33) % [3, 40, 400, 3000][(x >> 61) as usize % 4];
            for _ in 0..gap {
                us += 1;
                eager.tick(us);
            }
            lazy.on_cnp(at(us));
            eager.seen = (true, true);
            assert!((lazy.rate - eager.rate).abs() < 1.0, "{us} us: {} {}", lazy.rate, eager.rate);
            assert!((lazy.alpha - eager.alpha).abs() < 1e-9, "{us} us");
        }
        assert!(lazy.rate < rate);
    }

    #[test]
    fn a_rate_that_was_cut_once_recovers() {
        let mut cc = ConnectX::new(ConnectXConfig::default());
        cc.on_cnp(at(0));
        cc.on_sent(at(5), 1000);
        let alpha = (255.0 / 256.0) * (255.0 / 256.0) * (255.0 / 256.0) * (255.0 / 256.0);
        assert!((cc.rate - 100e9 * (1.0 - alpha / 2.0)).abs() < 1.0, "{}", cc.rate);
        cc.on_sent(at(100_000), 1000);
        assert!(cc.rate > 99e9, "{}", cc.rate);
    }
}
