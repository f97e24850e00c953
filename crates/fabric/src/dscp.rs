//! Priorities of packets by their DSCP.

use crate::buffer::PRIORITIES;

/// Values of the DSCP, which has six bits.
const VALUES: usize = 64;

/// The priority of each DSCP: what an operator writes into all switches and adapters alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DscpMap([u8; VALUES]);

impl Default for DscpMap {
    /// The class selector: the upper three bits.
    fn default() -> Self {
        Self(core::array::from_fn(|dscp| dscp as u8 >> 3))
    }
}

impl DscpMap {
    /// Sets the priority of a DSCP. False: there is no such DSCP, or no such priority.
    pub fn set(&mut self, dscp: u8, priority: u8) -> bool {
        match self.0.get_mut(usize::from(dscp)) {
            Some(entry) if usize::from(priority) < PRIORITIES => {
                *entry = priority;
                true
            }
            _ => false,
        }
    }

    /// The priority of packets with this traffic class, of which the DSCP is the upper six bits.
    #[inline]
    pub fn priority(&self, traffic_class: u8) -> u8 {
        self.0[usize::from(traffic_class >> 2)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dscp_has_the_priority_of_its_class_or_its_own() {
        let mut map = DscpMap::default();
        assert_eq!((map.priority(26 << 2), map.priority(0xff)), (3, 7));
        assert!(map.set(26, 5));
        assert_eq!((map.priority(26 << 2 | 1), map.priority(27 << 2)), (5, 3));
        assert!(!map.set(64, 1) && !map.set(1, 8));
    }
}
