//! Swift: a window from round trip times and a target.
//!
//! Kumar et al., "Swift: Delay is Simple and Effective for Congestion Control in the Datacenter",
//! SIGCOMM 2020. The window grows by a constant per round trip while round trips are below the
//! target, and is cut in proportion to the excess, at most once per round trip, while they are
//! above. Flow scaling raises the target of small windows, so that many flows share a link fairly.
//! A window of less than a packet spaces packets by time. The target has no part for the number of
//! hops: the parameters are for one network.

use feroce_train::Instant;

use crate::hca::congestion::{Ack, CongestionControl, Loss};
use crate::hca::congestion_params::SwiftConfig;

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Swift {
    config: SwiftConfig,
    /// In packets.
    cwnd: f64,
    /// The last round trip; zero until measured.
    rtt_ns: u64,
    /// No second cut before this time.
    cut_again_at: Instant,
    /// Timeouts since the last acknowledgement.
    timeouts: u32,
    /// Flow scaling adds `scale / sqrt(cwnd) - offset` to the target, within its range.
    scale_ns: f64,
    offset_ns: f64,
}

impl Swift {
    pub(super) fn new(config: SwiftConfig) -> Self {
        let (least, most) = (1.0 / sqrt(config.fs_min_cwnd), 1.0 / sqrt(config.fs_max_cwnd));
        let scale_ns = config.fs_range_ns as f64 / (least - most).max(f64::EPSILON);
        Self {
            config,
            cwnd: config.max_cwnd,
            rtt_ns: 0,
            cut_again_at: Instant::ZERO,
            timeouts: 0,
            scale_ns,
            offset_ns: scale_ns * most,
        }
    }

    /// The round trip that this window aims at.
    fn target_ns(&self) -> f64 {
        let range = self.config.fs_range_ns as f64;
        let scaled = self.scale_ns / sqrt(self.cwnd) - self.offset_ns;
        self.config.base_target_ns as f64 + scaled.clamp(0.0, range)
    }

    /// Multiplies the window, unless that happened less than a round trip ago.
    fn cut(&mut self, now: Instant, factor: f64) {
        if now >= self.cut_again_at {
            self.cwnd *= factor;
            self.cut_again_at = now.plus_nanos(self.rtt_ns);
        }
    }

    fn bound(&mut self) {
        self.cwnd = self.cwnd.min(self.config.max_cwnd).max(self.config.min_cwnd);
    }
}

impl CongestionControl for Swift {
    fn rate_bps(&self) -> f64 {
        let line = self.config.line_rate_bps as f64;
        if self.cwnd >= 1.0 || self.rtt_ns == 0 {
            return line;
        }
        // One packet in a round trip divided by the window.
        let packet_bits = 8.0 * self.config.packet_bytes as f64;
        (self.cwnd * packet_bits * 1e9 / self.rtt_ns as f64).min(line)
    }

    fn window(&self) -> u64 {
        (self.cwnd.max(1.0) * self.config.packet_bytes as f64) as u64
    }

    fn on_ack(&mut self, now: Instant, ack: Ack) {
        self.timeouts = 0;
        if let Some(rtt_ns) = ack.rtt_ns {
            self.rtt_ns = rtt_ns;
        }
        // Acknowledgements between two measurements count with the last one.
        let (delay, target) = (self.rtt_ns as f64, self.target_ns());
        if self.rtt_ns == 0 {
            return;
        }
        if delay < target {
            let acked = ack.bytes as f64 / self.config.packet_bytes.max(1) as f64;
            self.cwnd += self.config.ai * acked / self.cwnd.max(1.0);
        } else {
            let excess = self.config.beta * (delay - target) / delay;
            self.cut(now, 1.0 - excess.min(self.config.max_mdf));
        }
        self.bound();
    }

    fn on_loss(&mut self, now: Instant, loss: Loss) {
        if loss == Loss::Timeout {
            self.timeouts += 1;
            if self.timeouts >= self.config.reset_after {
                self.cwnd = self.config.min_cwnd;
                return;
            }
        }
        self.cut(now, 1.0 - self.config.max_mdf);
        self.bound();
    }
}

/// The square root, by Newton's method: `core` has none.
fn sqrt(x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    // Half the exponent is close enough for four steps to be exact to the last digits.
    let mut root = f64::from_bits((x.to_bits() >> 1) + (1023_u64 << 51));
    for _ in 0..4 {
        root = f64::midpoint(root, x / root);
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1000)
    }

    fn ack(bytes: u64, rtt_us: u64) -> Ack {
        Ack { bytes, rtt_ns: Some(rtt_us * 1000), ..Ack::default() }
    }

    fn with_window(cwnd: f64) -> Swift {
        let config = SwiftConfig { packet_bytes: 1000, ..SwiftConfig::default() };
        Swift { cwnd, ..Swift::new(config) }
    }

    #[test]
    fn the_root_is_the_root() {
        for x in [0.001, 0.1, 0.5, 1.0, 2.0, 3.0, 100.0, 12345.678, 1e9] {
            assert!((sqrt(x) - x.sqrt()).abs() <= 1e-12 * x.sqrt(), "{x}");
        }
    }

    #[test]
    fn a_short_round_trip_adds_one_packet_per_window() {
        let mut cc = with_window(10.0);
        for _ in 0..10 {
            cc.on_ack(at(0), ack(1000, 10));
        }
        assert!((cc.cwnd - 10.95).abs() < 0.02, "{}", cc.cwnd);
        assert_eq!(cc.window(), (cc.cwnd * 1000.0) as u64);
    }

    #[test]
    fn a_long_round_trip_cuts_once_per_round_trip_and_no_more_than_half() {
        let mut cc = with_window(100.0);
        // 100 packets: flow scaling adds nothing to the target of 25 us.
        cc.on_ack(at(100), ack(1000, 30));
        assert!((cc.cwnd - 100.0 * (1.0 - 0.8 * 5.0 / 30.0)).abs() < 1e-9, "{}", cc.cwnd);
        let cut = cc.cwnd;
        cc.on_ack(at(110), ack(1000, 1000));
        assert!((cc.cwnd - cut).abs() < 1e-9, "no second cut within 30 us");
        cc.on_ack(at(130), ack(1000, 1000));
        assert!((cc.cwnd - cut / 2.0).abs() < 1e-9, "{}", cc.cwnd);
    }

    #[test]
    fn small_windows_have_a_higher_target() {
        let target = |cwnd| with_window(cwnd).target_ns();
        assert!((target(100.0) - 25_000.0).abs() < 1e-6);
        assert!((target(1000.0) - 25_000.0).abs() < 1e-6);
        assert!((target(0.1) - 75_000.0).abs() < 1e-6);
        // alpha / sqrt(1) + beta of the paper.
        let alpha = 50_000.0 / (1.0 / 0.1_f64.sqrt() - 0.1);
        assert!((target(1.0) - (25_000.0 + alpha - alpha * 0.1)).abs() < 1e-6);
    }

    #[test]
    fn less_than_a_packet_is_spaced_by_time() {
        let mut cc = with_window(0.5);
        cc.on_ack(at(0), ack(0, 80));
        let packet_ns = 8000.0 * 1e9 / cc.rate_bps();
        assert!((packet_ns - 80_000.0 / cc.cwnd).abs() < 1.0, "{packet_ns}");
        assert_eq!(cc.window(), 1000);
    }

    #[test]
    fn timeouts_end_at_the_least_window() {
        let mut cc = with_window(64.0);
        cc.on_loss(at(0), Loss::Gap);
        assert!((cc.cwnd - 32.0).abs() < 1e-9);
        for i in 1..5 {
            cc.on_loss(at(1000 * i), Loss::Timeout);
        }
        assert!((cc.cwnd - 2.0).abs() < 1e-9, "{}", cc.cwnd);
        cc.on_loss(at(5000), Loss::Timeout);
        assert!((cc.cwnd - 0.001).abs() < 1e-9);
    }
}
