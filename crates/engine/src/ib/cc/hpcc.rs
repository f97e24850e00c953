//! HPCC: a window from what switches say about their links.
//!
//! Li et al., "HPCC: High Precision Congestion Control", SIGCOMM 2019. Every acknowledgement brings
//! the length of the queues and the bytes sent of the links on the path. From two of them follows
//! how much the busiest link is used, bytes in its queue included; the window is set so that this
//! comes close to a target below one. The reference window changes once per round trip, so that one
//! queue is not answered twice.

use feroce_train::{Hop, Hops, Instant};

use crate::hca::congestion::{Ack, CongestionControl};
use crate::hca::congestion_params::HpccConfig;

/// See the module documentation. Windows are kept as rates: divided by the round trip.
#[derive(Debug)]
pub(super) struct Hpcc {
    config: HpccConfig,
    rate: f64,
    /// The rate that the next change starts from.
    reference: f64,
    stage: u32,
    /// Average utilization of the busiest link.
    utilization: f64,
    /// What the last acknowledgement said; no hops until there was one.
    last: Hops,
    /// What the next acknowledgement says.
    next: Option<Hops>,
    /// Bytes that must be acknowledged before the reference changes again.
    until_update: u64,
}

impl Hpcc {
    pub(super) fn new(config: HpccConfig) -> Self {
        let rate = config.line_rate_bps as f64;
        Self {
            config,
            rate,
            reference: rate,
            stage: 0,
            utilization: 1.0,
            last: Hops::default(),
            next: None,
            until_update: 0,
        }
    }

    /// Averages the utilization of the busiest link over the time since the last records.
    fn measure(&mut self, hops: &Hops) {
        let rtt = self.config.base_rtt_ns as f64;
        let (mut busiest, mut time) = (0.0, 0.0);
        for (new, old) in hops.as_slice().iter().zip(self.last.as_slice()) {
            let ns = new.at.nanos_since(old.at);
            let (capacity, sent) =
                (new.rate_bps as f64 / 8e9, new.sent_bytes.saturating_sub(old.sent_bytes));
            if ns == 0 || new.rate_bps == 0 {
                continue;
            }
            let queue = new.queue_bytes.min(old.queue_bytes) as f64;
            let used = sent as f64 / ns as f64 / capacity + queue / (capacity * rtt);
            if used >= busiest {
                (busiest, time) = (used, (ns as f64).min(rtt));
            }
        }
        self.utilization = (self.utilization * (rtt - time) + busiest * time) / rtt;
    }

    /// The rate that follows from the reference, and the stage.
    fn next_rate(&self) -> (f64, u32) {
        let excess = self.utilization / self.config.eta;
        let step = self.config.rate_ai_bps as f64;
        let (rate, stage) = match excess >= 1.0 || self.stage >= self.config.max_stage {
            true => (self.reference / excess.max(f64::EPSILON) + step, 0),
            false => (self.reference + step, self.stage + 1),
        };
        let (least, most) = (self.config.min_rate_bps, self.config.line_rate_bps);
        (rate.min(most as f64).max(least as f64), stage)
    }
}

impl CongestionControl for Hpcc {
    fn rate_bps(&self) -> f64 {
        self.rate
    }

    fn window(&self) -> u64 {
        (self.config.line_window as f64 * self.rate / self.config.line_rate_bps as f64) as u64
    }

    fn on_telemetry(&mut self, _: Instant, hops: &[Hop]) {
        let mut next = Hops::default();
        hops.iter().for_each(|hop| next.push(*hop));
        self.next = Some(next);
    }

    fn on_ack(&mut self, _: Instant, ack: Ack) {
        let is_round_over = ack.bytes > self.until_update;
        self.until_update = self.until_update.saturating_sub(ack.bytes);
        let Some(hops) = self.next.take() else { return };
        let is_first = self.last.as_slice().len() != hops.as_slice().len();
        if !is_first {
            self.measure(&hops);
            let stage;
            (self.rate, stage) = self.next_rate();
            if is_round_over {
                (self.reference, self.stage) = (self.rate, stage);
            }
        }
        if is_round_over || is_first {
            self.until_update = ack.in_flight;
        }
        self.last = hops;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100 Gb/s are 12.5 bytes in a nanosecond; a round trip of 4 us holds 50,000.
    const CONFIG: HpccConfig = HpccConfig {
        line_rate_bps: 100_000_000_000,
        min_rate_bps: 100_000_000,
        rate_ai_bps: 40_000_000,
        base_rtt_ns: 4000,
        line_window: 50_000,
        eta: 0.95,
        max_stage: 0,
    };

    fn hop(ns: u64, sent_bytes: u64, queue_bytes: u64) -> Hop {
        let rate_bps = CONFIG.line_rate_bps;
        Hop { at: Instant::from_nanos(ns), queue_bytes, sent_bytes, rate_bps }
    }

    fn ack(cc: &mut Hpcc, hops: &[Hop], bytes: u64, in_flight: u64) {
        cc.on_telemetry(Instant::ZERO, hops);
        cc.on_ack(Instant::ZERO, Ack { bytes, in_flight, rtt_ns: None });
    }

    #[test]
    fn the_busiest_link_decides() {
        let mut cc = Hpcc::new(CONFIG);
        assert_eq!((cc.rate_bps(), cc.window()), (100e9, 50_000));
        ack(&mut cc, &[hop(0, 0, 0), hop(0, 0, 9000)], 1000, 49_000);
        assert_eq!(cc.window(), 50_000);
        // A round trip later: the first link was used by half, the second wholly, with a queue of
        // which the shorter of the two lengths counts.
        ack(&mut cc, &[hop(4000, 25_000, 0), hop(4000, 50_000, 5000)], 50_000, 49_000);
        let used = 1.0 + 5000.0 / 50_000.0;
        assert!((cc.utilization - used).abs() < 1e-9, "{}", cc.utilization);
        assert!((cc.rate_bps() - (100e9 / (used / 0.95) + 40e6)).abs() < 1.0);
        assert_eq!(cc.window(), (50_000.0 * cc.rate_bps() / 100e9) as u64);
    }

    #[test]
    fn short_times_count_for_little() {
        let mut cc = Hpcc::new(CONFIG);
        ack(&mut cc, &[hop(0, 0, 0)], 1000, 0);
        // A tenth of a round trip without a byte.
        ack(&mut cc, &[hop(400, 0, 0)], 1000, 0);
        assert!((cc.utilization - 0.9).abs() < 1e-9, "{}", cc.utilization);
    }

    #[test]
    fn one_queue_is_answered_once_per_round_trip() {
        let mut cc = Hpcc::new(CONFIG);
        ack(&mut cc, &[hop(0, 0, 50_000)], 1000, 49_000);
        // Every acknowledgement of the round trip sees the same queue, and the link in full use.
        for i in 1..=49 {
            ack(&mut cc, &[hop(80 * i, 1000 * i, 50_000)], 1000, 49_000);
        }
        let once = cc.rate_bps();
        assert!(once > 100e9 / (2.0 / 0.95), "{once}");
        assert!((cc.reference - 100e9).abs() < 1.0, "{}", cc.reference);
        ack(&mut cc, &[hop(4000, 50_000, 50_000)], 1000, 30_000);
        assert!((cc.reference - cc.rate_bps()).abs() < 1.0);
    }

    #[test]
    fn stages_of_additive_increase_come_before_the_utilization() {
        let mut cc = Hpcc::new(HpccConfig { max_stage: 2, ..CONFIG });
        (cc.rate, cc.reference, cc.utilization) = (10e9, 10e9, 0.1);
        ack(&mut cc, &[hop(0, 0, 0)], 1000, 0);
        for i in 1..=3 {
            ack(&mut cc, &[hop(4000 * i, 5000 * i, 0)], 1000, 0);
            let expected = [10.04e9, 10.08e9, 10.08e9 / (0.1 / 0.95) + 40e6][i as usize - 1];
            assert!((cc.rate_bps() - expected).abs() < 1.0, "{i}: {}", cc.rate_bps());
        }
    }

    #[test]
    fn without_telemetry_nothing_changes() {
        let mut cc = Hpcc::new(CONFIG);
        cc.on_ack(Instant::ZERO, Ack { bytes: 1 << 20, ..Ack::default() });
        assert_eq!((cc.rate_bps(), cc.window()), (100e9, 50_000));
    }
}
