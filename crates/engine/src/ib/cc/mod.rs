//! Congestion control at the sender: how fast a queue pair may send.

pub(crate) mod dcqcn;

use core::fmt;

use feroce_train::Instant;

/// A congestion control algorithm of one queue pair. Called per train, not per packet.
pub(crate) trait CongestionControl: fmt::Debug + Send {
    /// A train of `bytes` leaves at `now`. Returns when the next one may.
    fn on_sent(&mut self, now: Instant, bytes: u64) -> Instant;

    /// The peer reported congestion.
    fn on_cnp(&mut self, now: Instant);
}
