//! What a node says about itself (IBTA vol1 14.2.5.2 to 14.2.5.4).

use crate::layout::{codes, layout};

codes! {
    /// Kind of a node.
    NodeType(u8) {
        /// Channel adapter.
        CHANNEL_ADAPTER = 1, "channel adapter";
        /// Switch.
        SWITCH = 2, "switch";
        /// Router.
        ROUTER = 3, "router";
    }
}

layout! {
    /// Text of the node: UTF-8, filled up with zeros.
    NodeDescription, NodeDescriptionView, 64 {
        /// The text.
        text: [u8; 64] = 0, 512;
    }
}

impl NodeDescription {
    /// As much of `text` as fits, in whole characters.
    pub fn new(text: &str) -> Self {
        let mut bytes = [0; 64];
        let end = text.floor_char_boundary(bytes.len());
        let (head, _) = text.as_bytes().split_at(end);
        for (out, byte) in bytes.iter_mut().zip(head) {
            *out = *byte;
        }
        Self { text: bytes }
    }

    /// The text up to the first zero, as far as it is UTF-8.
    pub fn as_str(&self) -> &str {
        let text = self.text.split(|byte| *byte == 0).next().unwrap_or_default();
        match core::str::from_utf8(text) {
            Ok(text) => text,
            Err(e) => text
                .get(..e.valid_up_to())
                .and_then(|valid| core::str::from_utf8(valid).ok())
                .unwrap_or_default(),
        }
    }
}

layout! {
    /// Kind and identity of the node.
    NodeInfo, NodeInfoView, 40 {
        /// Version of the header of management datagrams.
        base_version: u8 = 0, 8;
        /// Version of subnet management.
        class_version: u8 = 8, 8;
        /// Kind.
        node_type: NodeType = 16, 8;
        /// Ports, without port 0 of a switch.
        num_ports: u8 = 24, 8;
        /// GUID shared by the nodes of one system; zero if there is none.
        system_image_guid: u64 = 32, 64;
        /// GUID of the node.
        node_guid: u64 = 96, 64;
        /// GUID of the port of arrival; of port 0 on a switch.
        port_guid: u64 = 160, 64;
        /// Entries of the P_Key table of an adapter port, or of port 0 of a switch.
        partition_cap: u16 = 224, 16;
        /// Device, as the vendor numbers it.
        device_id: u16 = 240, 16;
        /// Its revision.
        revision: u32 = 256, 32;
        /// Port of arrival.
        local_port: u8 = 288, 8;
        /// Vendor.
        vendor_id: u32 = 296, 24;
    }
}

layout! {
    /// The switch as a whole.
    SwitchInfo, SwitchInfoView, 20 {
        /// Entries of the linear forwarding table.
        linear_cap: u16 = 0, 16;
        /// Entries of the random forwarding table; zero if the switch has none.
        random_cap: u16 = 16, 16;
        /// Entries of the multicast forwarding table.
        multicast_cap: u16 = 32, 16;
        /// Last entry of the linear forwarding table that is used.
        linear_top: u16 = 48, 16;
        /// Port for LIDs that the random forwarding table does not have.
        default_port: u8 = 64, 8;
        /// Port for multicast LIDs without an entry, unless the packet arrived there.
        default_multicast_primary: u8 = 72, 8;
        /// Port for those that did.
        default_multicast_not_primary: u8 = 80, 8;
        /// How long a packet may stay: 4.096 us times two to this power; above 19 for ever.
        life_time: u8 = 88, 5;
        /// The state of a port has changed since this bit was cleared.
        port_state_change: bool = 93, 1;
        /// Which entries of the mapping of service levels may be written at once.
        optimized_sl_to_vl: u8 = 94, 2;
        /// LIDs of each port of the random forwarding table.
        lids_per_port: u16 = 96, 16;
        /// Entries of the P_Key tables of ports other than 0.
        partition_enforcement_cap: u16 = 112, 16;
        /// Checks the P_Keys of what it receives.
        inbound_enforcement: bool = 128, 1;
        /// Checks the P_Keys of what it sends.
        outbound_enforcement: bool = 129, 1;
        /// Can drop raw packets that it receives.
        filter_raw_inbound: bool = 130, 1;
        /// Can drop raw packets that it would send.
        filter_raw_outbound: bool = 131, 1;
        /// Port 0 is a channel adapter.
        enhanced_port_0: bool = 132, 1;
        /// Last entry of the multicast forwarding table that is used.
        multicast_top: u16 = 144, 16;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_are_cut_between_characters() {
        let long = NodeDescription::new(&"ä".repeat(40));
        assert_eq!(long.as_str(), "ä".repeat(32));
        let odd = alloc::format!("x{}", "ä".repeat(40));
        assert_eq!(NodeDescription::new(&odd).as_str().len(), 63);
        let text = |bytes: &[u8]| {
            let mut text = [0; 64];
            text[..bytes.len()].copy_from_slice(bytes);
            alloc::string::String::from(NodeDescription { text }.as_str())
        };
        assert_eq!((text(b"a\xffb"), text(b"a\0b")), ("a".into(), "a".into()));
    }
}
