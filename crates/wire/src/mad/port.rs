//! State and settings of a port (IBTA vol1 14.2.5.6).

use crate::Lid;
use crate::layout::{codes, layout};

codes! {
    /// State of the link layer of a port.
    PortState(u8) {
        /// In a change of settings: the state stays.
        NO_CHANGE = 0, "no change";
        /// No packets.
        DOWN = 1, "down";
        /// Subnet management packets only.
        INIT = 2, "init";
        /// As [`INIT`](Self::INIT); a packet of data makes it active.
        ARMED = 3, "armed";
        /// All packets.
        ACTIVE = 4, "active";
    }
}

codes! {
    /// State of the physical layer of a port.
    PhysicalState(u8) {
        /// In a change of settings: the state stays.
        NO_CHANGE = 0, "no change";
        /// Silent, and listens for a peer.
        SLEEP = 1, "sleep";
        /// Looks for a peer.
        POLLING = 2, "polling";
        /// Switched off.
        DISABLED = 3, "disabled";
        /// Negotiates with the peer.
        TRAINING = 4, "training";
        /// The link is up.
        LINK_UP = 5, "link up";
        /// Recovers from errors.
        ERROR_RECOVERY = 6, "error recovery";
    }
}

/// Bits of [`PortInfo::capability_mask`] that mean something to our nodes.
pub mod capability {
    /// A subnet manager runs behind the port.
    pub const IS_SM: u32 = 1 << 1;
    /// Keeps the last notice.
    pub const NOTICE: u32 = 1 << 2;
    /// Sends traps.
    pub const TRAP: u32 = 1 << 3;
    /// Has a mapping of service levels to lanes.
    pub const SL_MAPPING: u32 = 1 << 6;
    /// Has a system image GUID.
    pub const SYSTEM_IMAGE_GUID: u32 = 1 << 11;
    /// A communication manager runs behind the port.
    pub const COMMUNICATION: u32 = 1 << 16;
    /// Sends a trap when these bits change.
    pub const CAPABILITY_MASK_NOTICE: u32 = 1 << 22;
    /// Tells clients when they should register anew.
    pub const CLIENT_REREGISTRATION: u32 = 1 << 25;
}

layout! {
    /// State and settings of a port.
    PortInfo, PortInfoView, 64 {
        /// Key that a subnet manager must show.
        m_key: u64 = 0, 64;
        /// Upper half of the GIDs of the port.
        gid_prefix: u64 = 64, 64;
        /// Base LID.
        lid: Lid = 128, 16;
        /// LID of the subnet manager that manages the port.
        sm_lid: Lid = 144, 16;
        /// What is behind the port: bits of [`capability`].
        capability_mask: u32 = 160, 32;
        /// Diagnosis; zero if all is well.
        diag_code: u16 = 192, 16;
        /// Seconds after which the protection by the M_Key ends, unless its owner shows it; zero:
        /// never.
        m_key_lease: u16 = 208, 16;
        /// Port of arrival.
        local_port: u8 = 224, 8;
        /// Widths that may be used: 1, 4, 8, 12 lanes, a bit each.
        link_width_enabled: u8 = 232, 8;
        /// Widths that the port has.
        link_width_supported: u8 = 240, 8;
        /// Width in use.
        link_width_active: u8 = 248, 8;
        /// Speeds that the port has: 2.5, 5 and 10 Gb/s a lane, a bit each.
        link_speed_supported: u8 = 256, 4;
        /// State of the link layer.
        state: PortState = 260, 4;
        /// State of the physical layer.
        physical_state: PhysicalState = 264, 4;
        /// State of the physical layer when the link goes down.
        down_default: PhysicalState = 268, 4;
        /// What a requester without the M_Key may do.
        m_key_protect: u8 = 272, 2;
        /// LIDs of the port: two to this power.
        lmc: u8 = 277, 3;
        /// Speed in use.
        link_speed_active: u8 = 280, 4;
        /// Speeds that may be used.
        link_speed_enabled: u8 = 284, 4;
        /// Largest payload on this link: 256 bytes are 1, 4096 are 5.
        neighbor_mtu: u8 = 288, 4;
        /// Service level of the subnet manager.
        sm_sl: u8 = 292, 4;
        /// Lanes that the port has: 1, 2, 4, 8, 15, numbered from 1.
        vl_cap: u8 = 296, 4;
        /// Initialisation that the port asks for.
        init_type: u8 = 300, 4;
        /// How much lanes of the first table may send before those of the second.
        vl_high_limit: u8 = 304, 8;
        /// Entries of the first table of VL arbitration.
        vl_arb_high_cap: u8 = 312, 8;
        /// Entries of the second one.
        vl_arb_low_cap: u8 = 320, 8;
        /// Initialisation that the subnet manager did.
        init_type_reply: u8 = 328, 4;
        /// Largest payload that the port can take.
        mtu_cap: u8 = 332, 4;
        /// Packets in a row dropped for their age, after which a lane drops all.
        vl_stall_count: u8 = 336, 3;
        /// How long a packet may be the first of its lane: 4.096 us times two to this power; above
        /// 19 for ever.
        hoq_life: u8 = 339, 5;
        /// Lanes in use, numbered as [`vl_cap`](Self::vl_cap).
        operational_vls: u8 = 344, 4;
        /// Checks the P_Keys of what it receives (switches).
        partition_enforcement_inbound: bool = 348, 1;
        /// Checks the P_Keys of what it sends (switches).
        partition_enforcement_outbound: bool = 349, 1;
        /// Drops raw packets that it receives (switches).
        filter_raw_inbound: bool = 350, 1;
        /// Drops raw packets that it would send (switches).
        filter_raw_outbound: bool = 351, 1;
        /// Subnet management packets without the right M_Key.
        m_key_violations: u16 = 352, 16;
        /// Packets with a P_Key of another partition.
        p_key_violations: u16 = 368, 16;
        /// Packets with another Q_Key.
        q_key_violations: u16 = 384, 16;
        /// Entries of the table of GUIDs.
        guid_cap: u8 = 400, 8;
        /// Clients should register anew with subnet administration.
        client_reregister: bool = 408, 1;
        /// How traps about P_Keys of multicast packets are held back.
        multicast_pkey_trap_suppression: u8 = 409, 2;
        /// Longest time through the subnet: 4.096 us times two to this power. Also the least time
        /// between traps.
        subnet_timeout: u8 = 411, 5;
        /// Longest time to an answer, in the same unit.
        resp_time: u8 = 419, 5;
        /// Errors of the physical layer after which it recovers.
        local_phy_errors: u8 = 424, 4;
        /// Overruns after which the link is in error.
        overrun_errors: u8 = 428, 4;
        /// Credits that the port could give.
        max_credit_hint: u16 = 432, 16;
        /// Latency of the link, in intervals of 4 ns.
        round_trip_latency: u32 = 456, 24;
        /// More of what is behind the port.
        capability_mask_2: u16 = 480, 16;
        /// Speed above 10 Gb/s a lane in use.
        link_speed_ext_active: u8 = 496, 4;
        /// Such speeds that the port has.
        link_speed_ext_supported: u8 = 500, 4;
        /// Such speeds that may be used.
        link_speed_ext_enabled: u8 = 507, 5;
    }
}
