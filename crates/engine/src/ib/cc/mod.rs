//! Congestion control at the sender: the algorithms, and what the engine does with their decisions.

mod connectx;
mod dcqcn;
mod hpcc;
mod swift;
mod timely;

use alloc::boxed::Box;

use feroce_train::Instant;

use crate::hca::congestion::{CongestionConfig, CongestionControl};

/// Makes an algorithm, for one that contains it. `None`: no congestion control.
pub fn create_congestion_control(config: &CongestionConfig) -> Option<Box<dyn CongestionControl>> {
    Some(match config {
        CongestionConfig::None => return None,
        CongestionConfig::Dcqcn(config) => Box::new(dcqcn::Dcqcn::new(*config)),
        CongestionConfig::ConnectX(config) => Box::new(connectx::ConnectX::new(*config)),
        CongestionConfig::Timely(config) => Box::new(timely::Timely::new(*config)),
        CongestionConfig::Swift(config) => Box::new(swift::Swift::new(*config)),
        CongestionConfig::Hpcc(config) => Box::new(hpcc::Hpcc::new(*config)),
        CongestionConfig::Custom(custom) => custom.make(),
    })
}

/// The algorithm of a queue pair, and the spacing of its trains.
#[derive(Debug)]
pub(crate) struct Controlled {
    pub(crate) control: Box<dyn CongestionControl>,
    pacer: Pacer,
    /// Bytes that were on their way when the algorithm was last told.
    pub(crate) in_flight: u64,
}

impl Controlled {
    /// The algorithm of a new queue pair.
    pub(crate) fn new(config: &CongestionConfig) -> Option<Box<Self>> {
        let control = create_congestion_control(config)?;
        Some(Box::new(Self { control, pacer: Pacer::default(), in_flight: 0 }))
    }

    /// A train of `bytes` leaves at `now`. Returns when the next one may.
    pub(crate) fn sent(&mut self, now: Instant, bytes: u64) -> Instant {
        self.control.on_sent(now, bytes);
        self.pacer.sent(now, bytes, self.control.rate_bps())
    }
}

/// Spaces trains by a rate. Fractions of nanoseconds are carried over: at 50 Gb/s they are half a
/// percent of a packet.
#[derive(Debug, Default)]
struct Pacer {
    next: Instant,
    fraction_ns: f64,
}

impl Pacer {
    /// A train of `bytes` leaves at `now`. Returns when the next one may.
    fn sent(&mut self, now: Instant, bytes: u64, rate_bps: f64) -> Instant {
        if self.next < now {
            (self.next, self.fraction_ns) = (now, 0.0);
        }
        let ns = self.fraction_ns + bytes as f64 * 8.0e9 / rate_bps;
        self.fraction_ns = ns - (ns as u64) as f64;
        self.next = self.next.plus_nanos(ns as u64);
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hca::congestion_params::DcqcnConfig;

    #[test]
    fn trains_are_spaced_by_the_rate() {
        let config = DcqcnConfig { line_rate_bps: 1_000_000_000, ..DcqcnConfig::default() };
        let mut cc = Controlled::new(&CongestionConfig::Dcqcn(config)).expect("an algorithm");
        let at = |us: u64| Instant::from_nanos(us * 1000);
        // 125,000 bytes at 1 Gb/s take a millisecond.
        assert_eq!(cc.sent(at(0), 125_000), at(1000));
        assert_eq!(cc.sent(at(1000), 125_000), at(2000));
    }
}
