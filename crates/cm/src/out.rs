//! The output of the manager, and the rate limit on answers to unknown senders.

use alloc::collections::VecDeque;

use feroce_train::Instant;
use feroce_wire::cm::CmMessage;
use feroce_wire::mad::MAD_LEN;

use crate::counters::Counters;
use crate::event::Event;
use crate::params::Peer;

/// A datagram to send from queue pair 1 to queue pair 1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// Source and destination port.
    pub peer: Peer,
    /// The datagram.
    pub bytes: [u8; MAD_LEN],
}

/// Most silent peers that wait to be reported.
const MOST_SILENT: usize = 64;

/// Datagrams to send and events to report.
#[derive(Debug)]
pub(crate) struct Out {
    pub(crate) mads: VecDeque<Transmit>,
    pub(crate) events: VecDeque<Event>,
    /// Peers that have not answered a connection request for long.
    pub(crate) silent: VecDeque<Peer>,
    pub(crate) counters: Counters,
    pub(crate) max_queued: usize,
}

impl Out {
    /// Sends a message and returns its bytes, for retransmission.
    pub(crate) fn send(
        &mut self,
        peer: Peer,
        transaction: u64,
        message: &CmMessage,
    ) -> [u8; MAD_LEN] {
        let bytes = message.emit(transaction);
        self.send_bytes(peer, bytes);
        bytes
    }

    /// Sends a datagram.
    pub(crate) fn send_bytes(&mut self, peer: Peer, bytes: [u8; MAD_LEN]) {
        if self.mads.len() >= self.max_queued {
            self.counters.drop_queue_full += 1;
            return;
        }
        self.counters.sent += 1;
        self.mads.push_back(Transmit { peer, bytes });
    }

    /// Retransmits a datagram.
    pub(crate) fn repeat(&mut self, peer: Peer, bytes: &[u8; MAD_LEN]) {
        self.counters.repeated += 1;
        self.send_bytes(peer, *bytes);
    }

    /// Reports a peer that has not answered for long. With too many, the others are left out.
    pub(crate) fn note_silence(&mut self, peer: Peer) {
        if self.silent.len() < MOST_SILENT {
            self.silent.push_back(peer);
        }
    }

    /// Reports an event to the consumer, unless `is_silent`.
    pub(crate) fn tell(&mut self, is_silent: bool, event: Event) {
        if !is_silent {
            self.events.push_back(event);
        }
    }
}

/// Token bucket: admits `per_second` answers per second, with a burst of 100 ms' worth.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    per_second: u64,
    /// Tokens, in nanoseconds: they accrue with time, and each answer spends some.
    saved_ns: u64,
    at: Instant,
}

impl Bucket {
    const MOST_NS: u64 = 100_000_000;

    pub(crate) fn new(per_second: u32) -> Self {
        Self { per_second: u64::from(per_second), saved_ns: Self::MOST_NS, at: Instant::ZERO }
    }

    /// Whether one more answer is within the limit; spends a token if so.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let Some(cost_ns) = 1_000_000_000_u64.checked_div(self.per_second) else { return false };
        let saved = self.saved_ns.saturating_add(now.nanos_since(self.at));
        self.saved_ns = saved.min(Self::MOST_NS.max(cost_ns));
        self.at = self.at.max(now);
        match self.saved_ns.checked_sub(cost_ns) {
            Some(left) => {
                self.saved_ns = left;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_gets_no_more_than_its_share() {
        let mut bucket = Bucket::new(1000);
        let mut passed = 0;
        for ms in 0..1000 {
            for _ in 0..50 {
                passed += u32::from(bucket.take(Instant::from_nanos(ms * 1_000_000)));
            }
        }
        assert!((1000..=1100).contains(&passed), "{passed}");
        assert!(!Bucket::new(0).take(Instant::ZERO));
    }
}
