//! Queues and rates over time.

use feroce_fabric::{PortName, PortStats, Time};

/// Most numbers that a series keeps of each kind, ports and times together: 32 MiB.
const MOST_CELLS: usize = 1 << 22;
/// Least and most times of a series.
const TIMES: (usize, usize) = (64, 2048);

/// Bytes in a class of [`PortSeries::histogram`].
const HISTOGRAM_BYTES: u64 = 1000;

/// Queues and rates of all ports at equal intervals. When there are too many, two intervals become
/// one.
#[derive(Clone, Debug)]
pub struct Series {
    /// When the first interval begins.
    pub start: Time,
    /// How long an interval is, in picoseconds.
    pub interval_ps: u64,
    /// Every port.
    pub ports: Vec<PortSeries>,
    /// How often queues are looked at, in picoseconds.
    tick_ps: u64,
    /// Looks since the last interval ended.
    ticks: u64,
    most: usize,
}

/// Queue and rate of a port.
#[derive(Clone, Debug)]
pub struct PortSeries {
    /// The port.
    pub name: PortName,
    /// By interval: the longest of the queues that were seen in it, in bytes.
    pub queue: Vec<u64>,
    /// By interval: bytes that left.
    pub sent: Vec<u64>,
    /// How often the queue was seen with so many thousands of bytes, rounded down.
    pub histogram: Vec<u32>,
    /// Of the interval that has not ended: the longest queue, and what had left before it.
    longest: u64,
    sent_before: u64,
}

impl Series {
    pub(super) fn new(start: Time, tick_ps: u64, ports: impl Iterator<Item = PortName>) -> Self {
        let port = |name| PortSeries {
            name,
            queue: Vec::new(),
            sent: Vec::new(),
            histogram: Vec::new(),
            longest: 0,
            sent_before: 0,
        };
        let ports: Vec<_> = ports.map(port).collect();
        // An even number, so that two intervals can become one.
        let most = (MOST_CELLS / ports.len().max(1)).clamp(TIMES.0, TIMES.1) & !1;
        Self { start, interval_ps: tick_ps, ports, tick_ps, ticks: 0, most }
    }

    /// When the queues are looked at the next time.
    pub(super) fn next_at(&self, now: Time) -> Time {
        now.plus_ps(self.tick_ps)
    }

    /// Looks at all ports.
    pub(super) fn look<'a>(&mut self, stats: impl Iterator<Item = &'a PortStats>) {
        self.ticks += 1;
        let ends = self.ticks * self.tick_ps >= self.interval_ps;
        for (port, stats) in self.ports.iter_mut().zip(stats) {
            let queue = stats.queued();
            port.longest = port.longest.max(queue);
            let class = (queue / HISTOGRAM_BYTES) as usize;
            if port.histogram.len() <= class {
                port.histogram.resize(class + 1, 0);
            }
            port.histogram[class] += 1;
            if ends {
                port.queue.push(core::mem::take(&mut port.longest));
                port.sent.push(stats.sent.bytes - port.sent_before);
                port.sent_before = stats.sent.bytes;
            }
        }
        if ends {
            self.ticks = 0;
            if self.len() >= self.most {
                self.halve();
            }
        }
    }

    /// How many intervals there are.
    pub fn len(&self) -> usize {
        self.ports.first().map_or(0, |port| port.queue.len())
    }

    /// Whether there is no interval.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// When an interval ends.
    pub fn end_of(&self, interval: usize) -> Time {
        self.start.plus_ps(self.interval_ps.saturating_mul(interval as u64 + 1))
    }

    fn halve(&mut self) {
        self.interval_ps *= 2;
        for port in &mut self.ports {
            let longer = |pair: &[u64]| pair.iter().copied().max().unwrap_or(0);
            port.queue = port.queue.chunks(2).map(longer).collect();
            port.sent = port.sent.chunks(2).map(|pair| pair.iter().sum()).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_series_keeps_bytes_and_longest_queues() {
        let name = PortName { node: 0, port: 0 };
        let mut series = Series::new(Time::ZERO, 1000, [name].into_iter());
        let mut stats = PortStats::default();
        for _ in 0..10_000 {
            stats.sent.bytes += 3;
            series.look([&stats].into_iter());
        }
        assert_eq!(series.interval_ps, 8000);
        assert_eq!(series.ports[0].sent, vec![24; 1250]);
        assert_eq!(series.ports[0].histogram, [10_000]);
        assert_eq!(series.end_of(1249), Time::from_ns(10_000));
    }
}
