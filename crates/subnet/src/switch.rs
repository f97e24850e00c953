//! Forwarding tables of a switch (IBTA vol1 18.2.4), as the subnet manager wrote them.

use alloc::vec;
use alloc::vec::Vec;

use feroce_wire::Lid;
use feroce_wire::mad::SwitchInfo;

/// Entries of the linear forwarding table.
const LINEAR_CAP: u16 = 30_720;
/// Entries of the multicast forwarding table.
const MULTICAST_CAP: u16 = 1024;
/// Entries of the P_Key tables of ports other than 0.
const PARTITION_CAP: u16 = 64;
/// The first multicast LID.
const FIRST_MULTICAST: u16 = 0xc000;
/// The port that means to drop.
const NOWHERE: u8 = 255;
/// LIDs of a block of the linear table.
const LINEAR_BLOCK: usize = 64;
/// LIDs of a block of the multicast table, and ports of one of its positions.
const MULTICAST_BLOCK: usize = 32;
const POSITION_PORTS: usize = 16;

/// Where a packet goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Forward {
    /// Out of one port; port 0 is the switch itself.
    One(u8),
    /// Out of several.
    Many(Vec<u8>),
}

/// Why a switch does not forward a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Discard {
    /// No entry for the LID.
    NoEntry,
    /// The entry leads back to where the packet came from.
    Back,
}

/// The tables.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Switch {
    /// The switch as a whole.
    pub info: SwitchInfo,
    /// Port of each LID. Grows with the blocks that are written.
    linear: Vec<u8>,
    /// Mask of 16 ports for each position of each multicast LID.
    multicast: Vec<Vec<u16>>,
    ports: u8,
}

impl Switch {
    /// Empty tables.
    pub(crate) fn new(ports: u8) -> Self {
        let info = SwitchInfo {
            linear_cap: LINEAR_CAP,
            multicast_cap: MULTICAST_CAP,
            partition_enforcement_cap: PARTITION_CAP,
            inbound_enforcement: true,
            outbound_enforcement: true,
            ..SwitchInfo::default()
        };
        Self { info, linear: Vec::new(), multicast: Vec::new(), ports }
    }

    /// Where a packet that arrived by a port goes.
    pub fn forward(&self, dlid: Lid, arrived_by: u8) -> Result<Forward, Discard> {
        if dlid.is_multicast() {
            return self.forward_multicast(dlid, arrived_by);
        }
        let port = match self.linear.get(usize::from(dlid.0)) {
            Some(&port) if dlid.0 <= self.info.linear_top => port,
            _ => return Err(Discard::NoEntry),
        };
        match port {
            port if port > self.ports => Err(Discard::NoEntry),
            port if port == arrived_by => Err(Discard::Back),
            port => Ok(Forward::One(port)),
        }
    }

    fn forward_multicast(&self, dlid: Lid, arrived_by: u8) -> Result<Forward, Discard> {
        let masks = self.multicast.get(usize::from(dlid.0 - FIRST_MULTICAST));
        let masks = masks.map_or(&[][..], Vec::as_slice);
        let is_member = |port: &u8| {
            let port = usize::from(*port);
            let mask = masks.get(port / POSITION_PORTS).copied().unwrap_or_default();
            mask & (1 << (port % POSITION_PORTS)) != 0
        };
        let ports: Vec<u8> = (0..=self.ports).filter(is_member).collect();
        let others: Vec<u8> = ports.iter().copied().filter(|&port| port != arrived_by).collect();
        match (ports.is_empty(), others.is_empty()) {
            (true, _) => Err(Discard::NoEntry),
            (_, true) => Err(Discard::Back),
            _ => Ok(Forward::Many(others)),
        }
    }

    /// A block of the linear table; `None` if there is none.
    pub(crate) fn linear_block(&self, block: u32) -> Option<[u8; LINEAR_BLOCK]> {
        let first = self.linear_first(block)?;
        let entry = |i| self.linear.get(first + i).copied().unwrap_or(NOWHERE);
        Some(core::array::from_fn(entry))
    }

    /// Writes a block of the linear table.
    pub(crate) fn set_linear_block(&mut self, block: u32, ports: [u8; LINEAR_BLOCK]) -> Option<()> {
        let first = self.linear_first(block)?;
        let end = first + LINEAR_BLOCK;
        if self.linear.len() < end {
            self.linear.resize(end, NOWHERE);
        }
        self.linear.get_mut(first..end)?.copy_from_slice(&ports);
        Some(())
    }

    fn linear_first(&self, block: u32) -> Option<usize> {
        let first = usize::try_from(block).ok()?.checked_mul(LINEAR_BLOCK)?;
        (first < usize::from(self.info.linear_cap)).then_some(first)
    }

    /// A block of the multicast table: the masks of 16 ports.
    pub(crate) fn multicast_block(&self, modifier: u32) -> Option<[u16; MULTICAST_BLOCK]> {
        let (first, position) = self.multicast_first(modifier)?;
        let entry = |i| {
            let masks = self.multicast.get(first + i);
            masks.and_then(|masks: &Vec<u16>| masks.get(position)).copied().unwrap_or_default()
        };
        Some(core::array::from_fn(entry))
    }

    /// Writes a block of the multicast table.
    pub(crate) fn set_multicast_block(
        &mut self,
        modifier: u32,
        block: [u16; MULTICAST_BLOCK],
    ) -> Option<()> {
        let (first, position) = self.multicast_first(modifier)?;
        let end = first + MULTICAST_BLOCK;
        if self.multicast.len() < end {
            let positions = usize::from(self.ports) / POSITION_PORTS + 1;
            self.multicast.resize(end, vec![0; positions]);
        }
        for (masks, mask) in self.multicast.get_mut(first..end)?.iter_mut().zip(block) {
            *masks.get_mut(position)? = mask;
        }
        Some(())
    }

    /// The first entry and the position that a modifier means.
    fn multicast_first(&self, modifier: u32) -> Option<(usize, usize)> {
        let first = usize::try_from(modifier & 0x1ff).ok()? * MULTICAST_BLOCK;
        let position = usize::try_from(modifier >> 28).ok()?;
        let is_valid = first < usize::from(self.info.multicast_cap)
            && position * POSITION_PORTS <= usize::from(self.ports);
        is_valid.then_some((first, position))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_follow_the_linear_table_up_to_its_top() {
        let mut switch = Switch::new(8);
        let mut block = [NOWHERE; 64];
        (block[1], block[2], block[3], block[4]) = (0, 7, 9, 5);
        assert_eq!(switch.set_linear_block(0, block), Some(()));
        assert_eq!(switch.set_linear_block(480, block), None, "beyond the table");
        assert_eq!(switch.forward(Lid(2), 1), Err(Discard::NoEntry), "beyond the top");
        switch.info.linear_top = 4;
        assert_eq!(switch.forward(Lid(1), 1), Ok(Forward::One(0)));
        assert_eq!(switch.forward(Lid(2), 1), Ok(Forward::One(7)));
        assert_eq!(switch.forward(Lid(2), 7), Err(Discard::Back));
        assert_eq!(switch.forward(Lid(3), 1), Err(Discard::NoEntry), "no such port");
        assert_eq!(switch.forward(Lid(9), 1), Err(Discard::NoEntry));
        assert_eq!(switch.linear_block(0), Some(block));
        assert_eq!(switch.linear_block(479), Some([NOWHERE; 64]));
        assert_eq!(switch.linear_block(480), None);
    }

    #[test]
    fn groups_reach_every_member_but_the_sender() {
        let mut switch = Switch::new(20);
        let mut block = [0; 32];
        block[1] = 0b1001;
        assert_eq!(switch.set_multicast_block(0, block), Some(()));
        block[1] = 0b0011;
        assert_eq!(switch.set_multicast_block(1 << 28, block), Some(()));
        assert_eq!(switch.set_multicast_block(2 << 28, block), None, "no such ports");
        assert_eq!(switch.set_multicast_block(32, block), None, "beyond the table");
        let group = Lid(0xc001);
        assert_eq!(switch.forward(group, 3), Ok(Forward::Many(vec![0, 16, 17])));
        assert_eq!(switch.forward(group, 5), Ok(Forward::Many(vec![0, 3, 16, 17])));
        assert_eq!(switch.forward(Lid(0xc000), 5), Err(Discard::NoEntry));
        assert_eq!(switch.forward(Lid(0xc100), 5), Err(Discard::NoEntry));
        assert_eq!(switch.multicast_block(1 << 28), Some(block));
    }
}
