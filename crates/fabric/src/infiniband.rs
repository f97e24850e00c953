//! What InfiniBand links and switches are configured with, and their state.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::arbiter::{Arbiter, VlArbitration};
use crate::buffer::PRIORITIES;
use crate::credits::Lane;
use crate::port::PortId;
use crate::topology::NodeId;

/// A packet to this host number and above goes to a multicast group: the number less this.
pub const MULTICAST: u32 = 1 << 31;

/// InfiniBand instead of Ethernet: credits instead of pauses, a buffer for each port and lane
/// instead of a shared one, forwarding tables instead of a hash.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InfinibandConfig {
    /// The virtual lane of each service level. Packets have their service level as priority when
    /// hosts send them, and their lane on the way.
    pub sl_to_vl: [u8; PRIORITIES],
    /// Bytes of the receive buffer of each port and lane.
    pub lane_buffer: u64,
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
    /// So many lanes, from 1 to 8, that share links equally; service levels take them in turn.
    pub fn with_lanes(lanes: u8) -> Self {
        let lanes = lanes.clamp(1, PRIORITIES as u8);
        Self {
            sl_to_vl: core::array::from_fn(|sl| sl as u8 % lanes),
            lane_buffer: 64 << 10,
            arbitration: VlArbitration::equal(lanes),
            lifetime_ps: None,
        }
    }
}

/// The state of all links.
#[derive(Debug)]
pub(crate) struct Infiniband<B> {
    /// By port.
    pub(crate) lanes: Vec<[Lane; PRIORITIES]>,
    pub(crate) arbiters: Vec<Arbiter>,
    /// Ports of a switch that lead to members of a group.
    pub(crate) multicast: BTreeMap<(u32, NodeId), Vec<PortId>>,
    pub(crate) members: BTreeMap<u32, Vec<u32>>,
    /// Copies a packet; set with the first group.
    pub(crate) copy: Option<fn(&B) -> B>,
    /// Copies of a packet in one switch that have not left: the buffer is free after the last.
    pub(crate) shares: slab::Slab<u32>,
}

impl<B> Default for Infiniband<B> {
    fn default() -> Self {
        Self {
            lanes: Vec::new(),
            arbiters: Vec::new(),
            multicast: BTreeMap::new(),
            members: BTreeMap::new(),
            copy: None,
            shares: slab::Slab::new(),
        }
    }
}
