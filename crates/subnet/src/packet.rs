//! Management datagrams on their way.

use feroce_wire::mad::MAD_LEN;
use feroce_wire::{Gid, Lid, Pkey, Qkey, Qpn};

/// A port: the index of its node, and its number there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortRef {
    /// The node.
    pub node: usize,
    /// The number of the port, from 1; 0 is the management port of a switch.
    pub port: u8,
}

/// A management datagram with what its packet says of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MadPacket {
    /// Source.
    pub slid: Lid,
    /// Destination.
    pub dlid: Lid,
    /// Service level.
    pub sl: u8,
    /// Partition; of no meaning for queue pair 0.
    pub pkey: Pkey,
    /// Queue pair of the sender.
    pub src_qpn: Qpn,
    /// Queue pair of the receiver: 0 or 1.
    pub dst_qpn: Qpn,
    /// Q_Key.
    pub qkey: Qkey,
    /// Source and destination of the GRH, if there is one.
    pub gids: Option<(Gid, Gid)>,
    /// The datagram.
    pub mad: [u8; MAD_LEN],
}

impl MadPacket {
    /// Words of four bytes from the local route header to the ICRC.
    pub(crate) const fn words(&self) -> u64 {
        // LRH, BTH, DETH, datagram, ICRC; GRH.
        let len = 8 + 12 + 8 + MAD_LEN + 4 + if self.gids.is_some() { 40 } else { 0 };
        len as u64 / 4
    }

    /// A packet back to the sender of this one.
    pub(crate) fn reply(&self, mad: [u8; MAD_LEN]) -> Self {
        Self {
            slid: self.dlid,
            dlid: self.slid,
            sl: self.sl,
            pkey: self.pkey,
            src_qpn: self.dst_qpn,
            dst_qpn: self.src_qpn,
            qkey: self.qkey,
            gids: self.gids.map(|(sgid, dgid)| (dgid, sgid)),
            mad,
        }
    }
}
