//! Link packets of InfiniBand: flow control (IBTA vol1 7.9.4). They are not routed and have no
//! header; a port tells them from data packets by the symbol that begins them.

use core::fmt;

use crate::layout::{codes, layout};
use crate::vcrc::{self, vcrc};

codes! {
    /// Operation of a flow control packet.
    FlowControlOp(u8) {
        /// Grants credits.
        NORMAL = 0, "normal";
        /// Begins flow control on a link that comes up.
        INIT = 1, "init";
    }
}

layout! {
    /// Flow control of one virtual lane, without its CRC. Blocks are of 64 bytes and counted
    /// modulo 4096.
    FlowControl, FlowControlView, 4 {
        /// Operation.
        op: FlowControlOp = 0, 4;
        /// Blocks that the sender of this packet has sent on the lane.
        total_blocks_sent: u16 = 4, 12;
        /// The lane.
        vl: u8 = 16, 4;
        /// Blocks that the receiver of this packet may have sent on the lane.
        credit_limit: u16 = 20, 12;
    }
}

/// Why bytes are not a link packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkPacketError {
    /// Not the six bytes of a link packet.
    Length,
    /// The CRC is wrong.
    Crc,
}

impl fmt::Display for LinkPacketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Length => "a link packet has six bytes",
            Self::Crc => "the CRC of the link packet is wrong",
        })
    }
}

impl core::error::Error for LinkPacketError {}

impl FlowControl {
    /// Bytes of the packet, CRC included.
    pub const PACKET_LEN: usize = Self::LEN + vcrc::LEN;

    /// The packet with its CRC.
    pub fn sealed(&self) -> [u8; Self::PACKET_LEN] {
        let body = self.to_bytes();
        let ([a, b, c, d], [low, high]) = (body, vcrc(&body).to_le_bytes());
        [a, b, c, d, low, high]
    }

    /// Reads a packet and checks its CRC.
    pub fn open(packet: &[u8]) -> Result<Self, LinkPacketError> {
        let packet: &[u8; Self::PACKET_LEN] =
            packet.try_into().map_err(|_| LinkPacketError::Length)?;
        let [a, b, c, d, low, high] = *packet;
        let body = [a, b, c, d];
        if vcrc(&body) != u16::from_le_bytes([low, high]) {
            return Err(LinkPacketError::Crc);
        }
        Ok(FlowControlView::from(&body).to_repr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_control_packet_is_sealed_and_checked() {
        let packet = FlowControl {
            op: FlowControlOp::INIT,
            total_blocks_sent: 0x234,
            vl: 5,
            credit_limit: 0x678,
        };
        let sealed = packet.sealed();
        assert_eq!(sealed[..4], [0x12, 0x34, 0x56, 0x78]);
        assert_eq!(FlowControl::open(&sealed), Ok(packet));
        for bit in 0..48 {
            let mut damaged = sealed;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(FlowControl::open(&damaged), Err(LinkPacketError::Crc), "bit {bit}");
        }
        assert_eq!(FlowControl::open(&sealed[..5]), Err(LinkPacketError::Length));
    }
}
