//! Time codes, and messages that are retransmitted until the peer answers.

use alloc::boxed::Box;

use feroce_train::Instant;
use feroce_wire::mad::MAD_LEN;

/// Longest extension that a peer may ask for, as a code: about 275 seconds.
const MAX_MRA: u8 = 26;

/// A time given as a code: 4.096 us * 2^code (IBTA vol1 12.7.19).
pub const fn code_ns(code: u8) -> u64 {
    4096 << (code & 31)
}

/// The acknowledgement timeout, as a code, of a path with this packet life time to an adapter with
/// this delay: the smallest that is certain to be long enough.
pub const fn ack_timeout(ack_delay: u8, packet_life_time: u8) -> u8 {
    let (ack_delay, there_and_back) = (ack_delay & 31, (packet_life_time & 31) + 1);
    let sum = if there_and_back >= ack_delay {
        // If the shorter time is at least half the longer one, their sum is at most twice the
        // longer one: one code more.
        there_and_back + (ack_delay + 1 >= there_and_back) as u8
    } else {
        ack_delay + (there_and_back + 1 >= ack_delay) as u8
    };
    if sum > 31 { 31 } else { sum }
}

/// How long a request may stay without an answer before the consumer's user should hear of it.
const QUIET_NS: u64 = 3_000_000_000;

/// A message, and when to retransmit it.
#[derive(Clone, Debug)]
pub(crate) struct Retry {
    pub(crate) bytes: Box<[u8; MAD_LEN]>,
    pub(crate) deadline: Instant,
    /// When the next retry is due; retransmissions before it are probes, which do not count.
    counts_at: Instant,
    probe_ns: u64,
    interval_ns: u64,
    left: u8,
    /// When it is worth telling that the peer has not answered; `None` afterwards.
    tell_at: Option<Instant>,
}

impl Retry {
    /// A message that was just sent.
    pub(crate) fn new(now: Instant, bytes: [u8; MAD_LEN], interval_ns: u64, retries: u8) -> Self {
        let deadline = now.plus_nanos(interval_ns);
        let (bytes, counts_at, probe_ns) = (Box::new(bytes), deadline, 0);
        let tell_at = Some(now.plus_nanos(QUIET_NS));
        Self { bytes, deadline, counts_at, probe_ns, interval_ns, left: retries, tell_at }
    }

    /// Adds probes: retransmissions after `probe_ns`, after four times as long, and so on, until
    /// the first retry. Timeouts that are given as codes are long enough for the slowest peer, but
    /// the most frequent cause of a missing answer is the loss of one packet.
    pub(crate) fn probing(mut self, now: Instant, probe_ns: u64) -> Self {
        if probe_ns > 0 {
            self.probe_ns = probe_ns;
            self.deadline = self.deadline.min(now.plus_nanos(probe_ns));
        }
        self
    }

    /// The deadline has passed: true if the message is to be sent again, false if no retry is left.
    pub(crate) fn again(&mut self, now: Instant) -> bool {
        if now < self.counts_at {
            self.probe_ns = self.probe_ns.saturating_mul(4);
            self.deadline = self.counts_at.min(now.plus_nanos(self.probe_ns));
            return true;
        }
        self.counts_at = now.plus_nanos(self.interval_ns);
        self.deadline = self.counts_at;
        let left = self.left.checked_sub(1);
        self.left = left.unwrap_or(0);
        left.is_some()
    }

    /// Whether the peer has not answered for long; true once.
    pub(crate) fn is_silent_for_long(&mut self, now: Instant) -> bool {
        self.tell_at.take_if(|at| *at <= now).is_some()
    }

    /// The peer asks for more time, with the service timeout (a code) of its MRA.
    pub(crate) fn extend(&mut self, now: Instant, service_timeout: u8) {
        self.tell_at = None;
        let ns = code_ns(if service_timeout > MAX_MRA { MAX_MRA } else { service_timeout });
        self.counts_at = self.counts_at.max(now.plus_nanos(ns + self.interval_ns));
        self.deadline = self.counts_at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ack_timeouts_are_as_on_linux() {
        assert_eq!(ack_timeout(15, 18), 19);
        assert_eq!(ack_timeout(18, 18), 20);
        assert_eq!(ack_timeout(25, 18), 25);
        assert_eq!(ack_timeout(19, 18), 20);
        assert_eq!(ack_timeout(31, 30), 31);
    }

    #[test]
    fn a_message_is_repeated_as_often_as_allowed() {
        let mut retry = Retry::new(Instant::ZERO, [0; MAD_LEN], 10, 2);
        assert_eq!(retry.deadline, Instant::from_nanos(10));
        assert!(retry.again(Instant::from_nanos(10)));
        assert!(retry.again(Instant::from_nanos(20)));
        assert!(!retry.again(Instant::from_nanos(30)));
        assert!(!retry.again(Instant::from_nanos(40)));
    }

    #[test]
    fn probes_do_not_count() {
        let at = Instant::from_nanos;
        let mut retry = Retry::new(at(0), [0; MAD_LEN], 100, 1).probing(at(0), 10);
        for due in [10, 50, 100] {
            assert_eq!(retry.deadline, at(due));
            assert!(retry.again(at(due)));
        }
        assert_eq!(retry.deadline, at(200));
        assert!(!retry.again(at(200)));
    }

    #[test]
    fn who_asks_for_time_is_not_probed() {
        let at = Instant::from_nanos;
        let mut retry = Retry::new(at(0), [0; MAD_LEN], 100, 1).probing(at(0), 10);
        retry.extend(at(5), 0);
        assert_eq!(retry.deadline, at(5 + 4096 + 100));
    }

    #[test]
    fn extensions_never_shorten_and_have_an_end() {
        let mut retry = Retry::new(Instant::ZERO, [0; MAD_LEN], 1 << 40, 2);
        retry.extend(Instant::ZERO, 0);
        assert_eq!(retry.deadline, Instant::from_nanos((1 << 40) + 4096));
        retry.extend(Instant::ZERO, 31);
        assert_eq!(retry.deadline, Instant::from_nanos((1 << 40) + (4096 << 26)));
    }
}
