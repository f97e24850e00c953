//! Records of subnet administration (IBTA vol1 15.2.5).

use crate::layout::layout;
use crate::mad::{NodeDescription, NodeInfo, PortInfo};
use crate::{Gid, Lid, Pkey, Qkey};

layout! {
    /// A path between two ports.
    PathRecord, PathRecordView, 64 {
        /// Service for which the path is.
        service_id: u64 = 0, 64;
        /// Destination.
        dgid: Gid = 64, 128;
        /// Source.
        sgid: Gid = 192, 128;
        /// LID of the destination.
        dlid: Lid = 320, 16;
        /// LID of the source.
        slid: Lid = 336, 16;
        /// Whether the path is for raw packets.
        raw_traffic: bool = 352, 1;
        /// Flow label.
        flow_label: u32 = 356, 20;
        /// Hop limit.
        hop_limit: u8 = 376, 8;
        /// Traffic class.
        traffic_class: u8 = 384, 8;
        /// Whether the path leads back, too.
        reversible: bool = 392, 1;
        /// Paths that the requester wants at most.
        number_of_paths: u8 = 393, 7;
        /// Partition.
        pkey: Pkey = 400, 16;
        /// Class of quality of service.
        qos_class: u16 = 416, 12;
        /// Service level.
        sl: u8 = 428, 4;
        /// How to compare the next field: above, below, equal, the largest.
        mtu_selector: u8 = 432, 2;
        /// Largest payload: 256 bytes are 1, 4096 are 5.
        mtu: u8 = 434, 6;
        /// How to compare the next field.
        rate_selector: u8 = 440, 2;
        /// Rate, as a code.
        rate: u8 = 442, 6;
        /// How to compare the next field.
        life_time_selector: u8 = 448, 2;
        /// Longest time through the subnet: 4.096 us times two to this power.
        life_time: u8 = 450, 6;
        /// Lower is better.
        preference: u8 = 456, 8;
    }
}

layout! {
    /// A member of a multicast group, and the group.
    McMemberRecord, McMemberRecordView, 52 {
        /// The group.
        mgid: Gid = 0, 128;
        /// The member.
        port_gid: Gid = 128, 128;
        /// Q_Key of the group.
        qkey: Qkey = 256, 32;
        /// LID of the group.
        mlid: Lid = 288, 16;
        /// How to compare the next field: above, below, equal, the largest.
        mtu_selector: u8 = 304, 2;
        /// Largest payload.
        mtu: u8 = 306, 6;
        /// Traffic class.
        traffic_class: u8 = 312, 8;
        /// Partition.
        pkey: Pkey = 320, 16;
        /// How to compare the next field.
        rate_selector: u8 = 336, 2;
        /// Rate, as a code.
        rate: u8 = 338, 6;
        /// How to compare the next field.
        life_time_selector: u8 = 344, 2;
        /// Longest time through the subnet.
        life_time: u8 = 346, 6;
        /// Service level.
        sl: u8 = 352, 4;
        /// Flow label.
        flow_label: u32 = 356, 20;
        /// Hop limit.
        hop_limit: u8 = 376, 8;
        /// Scope of the group.
        scope: u8 = 384, 4;
        /// How the member takes part: full, not counted, sender only, a bit each.
        join_state: u8 = 388, 4;
        /// Joined on behalf of another port.
        proxy_join: bool = 392, 1;
    }
}

layout! {
    /// A node.
    NodeRecord, NodeRecordView, 108 {
        /// LID of its port.
        lid: Lid = 0, 16;
        /// What it says about itself.
        info: NodeInfo = 32, 320;
        /// Its text.
        description: NodeDescription = 352, 512;
    }
}

layout! {
    /// A port.
    PortInfoRecord, PortInfoRecordView, 68 {
        /// LID of the adapter port or of the switch.
        lid: Lid = 0, 16;
        /// Port of the switch.
        port: u8 = 16, 8;
        /// Which attribute follows.
        options: u8 = 24, 8;
        /// Its state and settings.
        info: PortInfo = 32, 512;
    }
}

layout! {
    /// A link, in one direction.
    LinkRecord, LinkRecordView, 6 {
        /// LID of one end.
        from_lid: Lid = 0, 16;
        /// Its port.
        from_port: u8 = 16, 8;
        /// Port of the other end.
        to_port: u8 = 24, 8;
        /// LID of the other end.
        to_lid: Lid = 32, 16;
    }
}

layout! {
    /// A service that a port offers.
    ServiceRecord, ServiceRecordView, 176 {
        /// Number of the service.
        id: u64 = 0, 64;
        /// The port.
        gid: Gid = 64, 128;
        /// Partition.
        pkey: Pkey = 192, 16;
        /// Seconds for which the record stays; all ones: for ever.
        lease: u32 = 224, 32;
        /// Key that is needed to change it.
        key: [u8; 16] = 256, 128;
        /// Name of the service.
        name: [u8; 64] = 384, 512;
        /// Data of the service.
        data: [u8; 64] = 896, 512;
    }
}
