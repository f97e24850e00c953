//! Priorities of packets by their DSCP, or by the PCP of their VLAN tag.

use crate::buffer::PRIORITIES;

/// Values of the DSCP, which has six bits.
const DSCPS: usize = 64;

/// Values of the PCP, which has three bits.
const PCPS: usize = 8;

/// Bytes of a VLAN tag.
const TAG_LEN: u32 = 4;

/// What switches and adapters take the priority of a packet from: what an operator writes into all
/// of them alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PriorityMap {
    /// The priority of each DSCP.
    Dscp([u8; DSCPS]),
    /// The priority of each PCP. Every packet has a VLAN tag, and its PCP is its service level, as
    /// adapters have it.
    Pcp([u8; PCPS]),
}

impl Default for PriorityMap {
    fn default() -> Self {
        Self::dscp()
    }
}

impl PriorityMap {
    /// By the class selector of the DSCP: the upper three bits.
    pub fn dscp() -> Self {
        Self::Dscp(core::array::from_fn(|dscp| dscp as u8 >> 3))
    }

    /// By the PCP as it is.
    pub fn pcp() -> Self {
        Self::Pcp(core::array::from_fn(|pcp| pcp as u8))
    }

    /// Sets the priority of a DSCP or PCP. False: there is no such one, or no such priority.
    pub fn set(&mut self, value: u8, priority: u8) -> bool {
        let entry = match self {
            Self::Dscp(map) => map.get_mut(usize::from(value)),
            Self::Pcp(map) => map.get_mut(usize::from(value)),
        };
        match entry {
            Some(entry) if usize::from(priority) < PRIORITIES => {
                *entry = priority;
                true
            }
            _ => false,
        }
    }

    /// The priority of packets with this traffic class, of which the DSCP is the upper six bits,
    /// and this service level, of which the PCP is the lower three.
    #[inline]
    pub fn priority(&self, traffic_class: u8, sl: u8) -> u8 {
        match self {
            Self::Dscp(map) => map[usize::from(traffic_class >> 2)],
            Self::Pcp(map) => map[usize::from(sl) % PCPS],
        }
    }

    /// By how many bytes a packet is longer than without VLAN tag.
    #[inline]
    pub fn tag_len(&self) -> u32 {
        match self {
            Self::Dscp(_) => 0,
            Self::Pcp(_) => TAG_LEN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dscp_has_the_priority_of_its_class_or_its_own() {
        let mut map = PriorityMap::dscp();
        assert_eq!((map.priority(26 << 2, 6), map.priority(0xff, 6)), (3, 7));
        assert!(map.set(26, 5));
        assert_eq!((map.priority(26 << 2 | 1, 6), map.priority(27 << 2, 6)), (5, 3));
        assert!(!map.set(64, 1) && !map.set(1, 8));
    }

    #[test]
    fn a_pcp_is_the_priority_or_has_its_own() {
        let mut map = PriorityMap::pcp();
        assert_eq!((map.priority(0xff, 3), map.priority(0xff, 15)), (3, 7));
        assert!(map.set(3, 5));
        assert_eq!((map.priority(0, 3), map.priority(0, 4)), (5, 4));
        assert!(!map.set(8, 1) && !map.set(1, 8));
    }
}
