//! Tables of ports and switches, in blocks of 64 bytes (IBTA vol1 14.2.5.5 to 14.2.5.12). The
//! modifier of the datagram says which block, and of which port.

use crate::Pkey;
use crate::layout::layout;

layout! {
    /// GUIDs of a port: eight of its table.
    GuidInfo, GuidInfoView, 64 {
        /// The GUIDs; zero where there is none.
        guids: [u64; 8] = 0, 512;
    }
}

layout! {
    /// Partitions of a port: 32 entries of its table.
    PkeyTable, PkeyTableView, 64 {
        /// The keys; zero where there is none.
        keys: [Pkey; 32] = 0, 512;
    }
}

layout! {
    /// The lane of each service level, between two ports.
    SlToVl, SlToVlView, 8 {
        /// Lane of each level; 15: drop.
        lanes: [u8; 16] = 0, 64;
    }
}

layout! {
    /// An entry of VL arbitration.
    VlWeight, VlWeightView, 2 {
        /// The lane.
        vl: u8 = 4, 4;
        /// How much it may send in its turn: so many times 64 bytes.
        weight: u8 = 8, 8;
    }
}

layout! {
    /// Weights of lanes: half of a table of VL arbitration.
    VlArbitrationBlock, VlArbitrationBlockView, 64 {
        /// The entries, in turn.
        entries: [VlWeight; 32] = 0, 512;
    }
}

layout! {
    /// Port of each of 64 LIDs.
    ForwardingBlock, ForwardingBlockView, 64 {
        /// The ports; 255: drop.
        ports: [u8; 64] = 0, 512;
    }
}

layout! {
    /// Ports of each of 32 multicast LIDs: 16 ports, a bit each, the lowest being the first.
    MulticastBlock, MulticastBlockView, 64 {
        /// The masks.
        masks: [u16; 32] = 0, 512;
    }
}
