//! Arbitration between virtual lanes (IBTA vol1 7.6.9): two tables of lanes with weights.

use alloc::vec::Vec;

/// Bytes of a unit of weight, and of a unit of the limit.
const WEIGHT_BYTES: i64 = 64;
const LIMIT_BYTES: u64 = 4096;
/// The limit that is none.
const UNLIMITED: u8 = 255;

/// Which lanes go before others, and how they share what is left.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VlArbitration {
    /// Lanes that go first, with weights of 64 bytes: in turn, each until its weight is used up.
    pub high: Vec<(u8, u8)>,
    /// The other lanes.
    pub low: Vec<(u8, u8)>,
    /// How much lanes of the first table may send before one of the second has its turn: so many
    /// times 4096 bytes, or one packet if it is zero. 255 is no limit.
    pub high_limit: u8,
}

impl VlArbitration {
    /// So many lanes in turn, a packet of 4 KiB each.
    pub fn equal(lanes: u8) -> Self {
        Self { low: (0..lanes).map(|lane| (lane, 64)).collect(), ..Self::default() }
    }
}

/// A place in a table.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    entry: usize,
    left: i64,
}

impl Turn {
    /// The lane whose turn it is, of those that are ready.
    fn next(&mut self, table: &[(u8, u8)], ready: u8) -> Option<u8> {
        // Once around, and the first entry again with its full weight.
        for _ in 0..=table.len() {
            let (lane, _) = *table.get(self.entry)?;
            if self.left > 0 && ready & (1 << lane) != 0 {
                return Some(lane);
            }
            self.entry = (self.entry + 1) % table.len();
            self.left = i64::from(table[self.entry].1) * WEIGHT_BYTES;
        }
        None
    }
}

/// The arbiter of a port.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arbiter {
    high: Turn,
    low: Turn,
    /// Bytes of the first table since one of the second had its turn.
    high_sent: u64,
}

impl Arbiter {
    /// The lane that sends next, of those that are ready, a bit each.
    pub fn next(
        &mut self,
        config: &VlArbitration,
        ready: u8,
        len: impl FnOnce(u8) -> u32,
    ) -> Option<u8> {
        let limit = match config.high_limit {
            UNLIMITED => u64::MAX,
            n => (u64::from(n) * LIMIT_BYTES).max(1),
        };
        let is_low_turn = self.high_sent >= limit;
        if !is_low_turn && let Some(lane) = self.high.next(&config.high, ready) {
            return Some(self.take_high(lane, len));
        }
        if let Some(lane) = self.low.next(&config.low, ready) {
            self.low.left -= i64::from(len(lane));
            self.high_sent = 0;
            return Some(lane);
        }
        // No lane of the second table waits.
        self.high_sent = 0;
        let lane = self.high.next(&config.high, ready)?;
        Some(self.take_high(lane, len))
    }

    fn take_high(&mut self, lane: u8, len: impl FnOnce(u8) -> u32) -> u8 {
        let len = len(lane);
        self.high.left -= i64::from(len);
        self.high_sent += u64::from(len);
        lane
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec;

    use super::*;

    /// Bytes of each lane after so many packets of a length, while all are ready.
    fn shares(config: &VlArbitration, ready: u8, packets: usize, len: u32) -> [u64; 8] {
        let (mut arbiter, mut shares) = (Arbiter::default(), [0; 8]);
        for _ in 0..packets {
            if let Some(lane) = arbiter.next(config, ready, |_| len) {
                shares[usize::from(lane)] += u64::from(len);
            }
        }
        shares
    }

    #[test]
    fn lanes_share_by_weight() {
        let config = VlArbitration { low: vec![(0, 64), (1, 192)], ..VlArbitration::default() };
        let [a, b, ..] = shares(&config, 0b11, 4000, 1024);
        assert_eq!((a, b), (1_024_000, 3_072_000));
        // A lane that is alone gets everything.
        assert_eq!(shares(&config, 0b01, 100, 1024)[0], 102_400);
    }

    #[test]
    fn the_limit_lets_the_second_table_have_its_turn() {
        let table =
            |high_limit| VlArbitration { high: vec![(1, 255)], low: vec![(0, 1)], high_limit };
        // A packet of each in turn; eight KiB to one packet; and never.
        assert_eq!(shares(&table(0), 0b11, 100, 2048)[..2], [102_400, 102_400]);
        assert_eq!(shares(&table(2), 0b11, 100, 2048)[..2], [20 * 2048, 80 * 2048]);
        assert_eq!(shares(&table(255), 0b11, 100, 2048)[..2], [0, 204_800]);
    }

    #[test]
    fn lanes_without_weight_or_entry_send_nothing() {
        let config = VlArbitration { low: vec![(0, 0), (1, 1)], ..VlArbitration::default() };
        assert_eq!(shares(&config, 0b111, 10, 64), [0, 640, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Arbiter::default().next(&config, 0b100, |_| 64), None);
        assert_eq!(Arbiter::default().next(&VlArbitration::default(), 0xff, |_| 64), None);
    }
}
