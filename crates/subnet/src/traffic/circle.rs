//! Lanes that wait for each other in a circle: none of them ever gets credits again, unless the
//! lifetime of a packet ends the wait.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use feroce_train::Instant;

use super::flight::Held;
use super::lane::LANES;
use super::{Receipt, Traffic};
use crate::packet::PortRef;
use crate::subnet::Subnet;

/// A lane of a port.
type Lane = (PortRef, u8);

impl<B: Clone> Traffic<B> {
    /// Ports of switches that have waited for credits of each other on a lane for so long, in the
    /// order in which each waits for the next; empty if there is no such circle.
    pub fn find_circle(&self, now: Instant, subnet: &Subnet, waited_ns: u64) -> Vec<PortRef> {
        // The lanes in which the packets wait that occupy a receive buffer.
        let mut holders: BTreeMap<Lane, BTreeSet<Lane>> = BTreeMap::new();
        let mut blocked: BTreeSet<Lane> = BTreeSet::new();
        for &at in &self.waiting {
            let Some(lanes) = self.lanes(at) else { continue };
            for (lane, queue) in (0..LANES as u8).zip(&lanes.queues) {
                if queue.blocked_since.is_some_and(|since| now.nanos_since(since) >= waited_ns) {
                    blocked.insert((at, lane));
                }
                for flight in &queue.flights {
                    let held = match &flight.held {
                        Held::Nothing => continue,
                        Held::Buffer(receipt) => receipt,
                        Held::Shared(shared) => &**shared,
                    };
                    let Receipt { at: buffer, lane: buffer_lane, .. } = *held;
                    holders.entry((buffer, buffer_lane)).or_default().insert((at, lane));
                }
            }
        }
        let waits_for = |(at, lane): Lane| {
            let buffer = subnet.port(at).and_then(|port| port.peer)?;
            holders.get(&(buffer, lane))
        };
        // A lane that waits for one that may go on is in no circle, nor one that waits for an
        // adapter.
        loop {
            let is_stuck =
                |lane: &Lane| waits_for(*lane).is_some_and(|for_| for_.is_subset(&blocked));
            let stuck: BTreeSet<Lane> = blocked.iter().copied().filter(is_stuck).collect();
            if stuck.len() == blocked.len() {
                break;
            }
            blocked = stuck;
        }
        let mut way: Vec<Lane> = blocked.first().copied().into_iter().collect();
        while let Some(next) = way.last().and_then(|last| waits_for(*last)?.first().copied()) {
            if let Some(begin) = way.iter().position(|lane| *lane == next) {
                return way.into_iter().skip(begin).map(|(at, _)| at).collect();
            }
            way.push(next);
        }
        Vec::new()
    }
}
