//! Multicast groups: their members, and the tables of switches.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use slab::Slab;

use crate::port::PortId;
use crate::store::NONE;
use crate::topology::NodeId;

/// A packet to this host number and above goes to a multicast group: the number less this.
pub const MULTICAST: u32 = 1 << 31;

/// The groups of a fabric.
#[derive(Debug)]
pub(crate) struct Multicast<B> {
    /// Ports of a switch by which packets to a group leave.
    pub(crate) tables: BTreeMap<(u32, NodeId), Vec<PortId>>,
    pub(crate) members: BTreeMap<u32, Vec<u32>>,
    /// Copies a packet; set with the first group.
    pub(crate) copy: Option<fn(&B) -> B>,
    /// Copies of a packet in one switch that have not left: the buffer is free after the last.
    pub(crate) shares: Slab<u32>,
}

impl<B> Default for Multicast<B> {
    fn default() -> Self {
        let (tables, members) = (BTreeMap::new(), BTreeMap::new());
        Self { tables, members, copy: None, shares: Slab::new() }
    }
}

impl<B> Multicast<B> {
    /// A packet leaves the buffer of a switch: whether no other copy needs the buffer.
    #[inline]
    pub(crate) fn is_last(&mut self, share: u32) -> bool {
        if share == NONE {
            return true;
        }
        let left = &mut self.shares[share as usize];
        *left -= 1;
        let is_last = *left == 0;
        if is_last {
            self.shares.remove(share as usize);
        }
        is_last
    }
}
