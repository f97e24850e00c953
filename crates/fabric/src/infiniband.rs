//! What InfiniBand links and switches are configured with, and their state.

use alloc::vec::Vec;

use crate::arbiter::{Arbiter, VlArbitration};
use crate::buffer::PRIORITIES;
use crate::credits::CreditLane;

/// Priority of management packets on InfiniBand: they travel on VL15, which no service level leads
/// to. VL15 has no credits and a buffer of its own at each port. Its packets go before those of all
/// data lanes and never wait for their credits; a port that has no room drops them.
pub const MANAGEMENT: u8 = 15;

/// VL15 inside the fabric: the queue behind those of the data lanes.
pub(crate) const MANAGEMENT_LANE: u8 = PRIORITIES as u8;

/// InfiniBand instead of Ethernet: credits instead of pauses, a buffer for each port and lane
/// instead of a shared one, forwarding tables instead of a hash.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InfinibandConfig {
    /// The virtual lane of each service level. Packets have their service level as priority when
    /// hosts send them, and their lane on the way.
    pub sl_to_vl: [u8; PRIORITIES],
    /// Bytes of the receive buffer of each port and lane.
    pub lane_buffer: u64,
    /// Bytes of the receive buffer of each port for VL15.
    pub management_buffer: u64,
    /// How lanes share a link.
    pub arbitration: VlArbitration,
    /// A packet that has been the first of its lane for so long without leaving is dropped
    /// (head-of-queue lifetime).
    pub lifetime_ps: Option<u64>,
}

impl Default for InfinibandConfig {
    /// One lane.
    fn default() -> Self {
        Self::with_lanes(1)
    }
}

impl InfinibandConfig {
    /// The queue of packets with this priority.
    pub(crate) fn lane(&self, priority: u8) -> u8 {
        match priority {
            MANAGEMENT => MANAGEMENT_LANE,
            level => self.sl_to_vl[usize::from(level)],
        }
    }

    /// So many lanes, from 1 to 8, that share links equally; service levels take them in turn.
    pub fn with_lanes(lanes: u8) -> Self {
        let lanes = lanes.clamp(1, PRIORITIES as u8);
        Self {
            sl_to_vl: core::array::from_fn(|sl| sl as u8 % lanes),
            lane_buffer: 64 << 10,
            management_buffer: 4 << 10,
            arbitration: VlArbitration::equal(lanes),
            lifetime_ps: None,
        }
    }
}

/// The priority that a host sees of a packet from this queue.
pub(crate) fn priority_outside(lane: u8) -> u8 {
    if lane == MANAGEMENT_LANE { MANAGEMENT } else { lane }
}

/// The state of all links.
#[derive(Debug, Default)]
pub(crate) struct Infiniband {
    /// By port.
    pub(crate) lanes: Vec<[CreditLane; PRIORITIES]>,
    /// Bytes in the buffer for VL15.
    pub(crate) management: Vec<u64>,
    pub(crate) arbiters: Vec<Arbiter>,
}
