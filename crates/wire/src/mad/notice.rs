//! Events (IBTA vol1 13.4.8.2, 14.2.5.1): notices, the details of traps, subscriptions.

use crate::layout::{codes, layout};
use crate::mad::{Attribute, Method};
use crate::{Gid, Lid, Qpn};

codes! {
    /// Number of a trap.
    TrapNumber(u16) {
        /// A port has come into service: [`GidTrap`](crate::mad::GidTrap).
        IN_SERVICE = 64, "port in service";
        /// A port has gone out of service: [`GidTrap`](crate::mad::GidTrap).
        OUT_OF_SERVICE = 65, "port out of service";
        /// A multicast group was made: [`GidTrap`](crate::mad::GidTrap).
        GROUP_CREATED = 66, "multicast group created";
        /// A multicast group was deleted: [`GidTrap`](crate::mad::GidTrap).
        GROUP_DELETED = 67, "multicast group deleted";
        /// The state of a link of a switch has changed: [`LidTrap`](crate::mad::LidTrap).
        LINK_STATE = 128, "link state change";
        /// A link has too many errors: [`PortTrap`](crate::mad::PortTrap).
        LINK_INTEGRITY = 129, "local link integrity";
        /// A buffer overruns: [`PortTrap`](crate::mad::PortTrap).
        BUFFER_OVERRUN = 130, "excessive buffer overrun";
        /// The peer sends no credits: [`PortTrap`](crate::mad::PortTrap).
        FLOW_CONTROL = 131, "flow control update";
        /// Capabilities or the description have changed:
        /// [`CapabilityChange`](crate::mad::CapabilityChange).
        CAPABILITY_MASK = 144, "capability mask change";
        /// Another system image GUID: [`SystemImageChange`](crate::mad::SystemImageChange).
        SYSTEM_IMAGE_GUID = 145, "system image GUID change";
        /// A requester without the M_Key: [`BadMkey`](crate::mad::BadMkey).
        BAD_M_KEY = 256, "bad M_Key";
        /// A packet of another partition: [`BadKey`](crate::mad::BadKey).
        BAD_P_KEY = 257, "bad P_Key";
        /// A packet with another Q_Key: [`BadKey`](crate::mad::BadKey).
        BAD_Q_KEY = 258, "bad Q_Key";
    }
}

layout! {
    /// An event.
    Notice, NoticeView, 64 {
        /// The specification defines it, and no vendor.
        is_generic: bool = 0, 1;
        /// How grave it is: fatal, urgent, security, subnet management, information; 0x7f: none.
        kind: u8 = 1, 7;
        /// Kind of the node that tells of it, or the vendor.
        producer: u32 = 8, 24;
        /// Which event, or the device of the vendor.
        trap: TrapNumber = 32, 16;
        /// LID of the port that tells of it.
        issuer_lid: Lid = 48, 16;
        /// Changes when the notice is read or replaced.
        toggle: bool = 64, 1;
        /// Notices that wait.
        count: u16 = 65, 15;
        /// Details, by trap.
        details: [u8; 54] = 80, 432;
    }
}

layout! {
    /// Details of traps 64 to 67.
    GidTrap, GidTrapView, 54 {
        /// The port or the group.
        gid: Gid = 48, 128;
    }
}

layout! {
    /// Details of trap 128.
    LidTrap, LidTrapView, 54 {
        /// The switch.
        lid: Lid = 0, 16;
    }
}

layout! {
    /// Details of traps 129 to 131.
    PortTrap, PortTrapView, 54 {
        /// The node.
        lid: Lid = 16, 16;
        /// Its port.
        port: u8 = 32, 8;
    }
}

layout! {
    /// Details of trap 144.
    CapabilityChange, CapabilityChangeView, 54 {
        /// The port.
        lid: Lid = 16, 16;
        /// [`flags`](Self::flags) says what has changed.
        other_changes: bool = 47, 1;
        /// The capabilities as they are now.
        capability_mask: u32 = 48, 32;
        /// Bit 0: the description; bit 1: enabled widths; bit 2: enabled speeds.
        flags: u16 = 80, 16;
        /// More capabilities as they are now.
        capability_mask_2: u16 = 96, 16;
    }
}

layout! {
    /// Details of trap 145.
    SystemImageChange, SystemImageChangeView, 54 {
        /// The node.
        lid: Lid = 16, 16;
        /// Its system image GUID now.
        guid: u64 = 48, 64;
    }
}

layout! {
    /// Details of trap 256.
    BadMkey, BadMkeyView, 54 {
        /// The port that refused.
        lid: Lid = 16, 16;
        /// LID at which the directed route of the request begins.
        dr_slid: Lid = 32, 16;
        /// Method of the request.
        method: Method = 48, 8;
        /// Attribute of the request.
        attribute: Attribute = 64, 16;
        /// Its modifier.
        modifier: u32 = 80, 32;
        /// The key of the request.
        m_key: u64 = 112, 64;
        /// The request had a directed route.
        is_directed: bool = 184, 1;
        /// The return path did not fit.
        is_truncated: bool = 185, 1;
        /// Hops of the directed route.
        hop_count: u8 = 186, 6;
        /// The way back.
        return_path: [u8; 30] = 192, 240;
    }
}

layout! {
    /// Details of traps 257 and 258.
    BadKey, BadKeyView, 54 {
        /// Source of the packet.
        slid: Lid = 16, 16;
        /// Its destination.
        dlid: Lid = 32, 16;
        /// Its key; a P_Key is in the lower half.
        key: u32 = 48, 32;
        /// Its service level.
        sl: u8 = 80, 4;
        /// Queue pair of the source.
        src_qpn: Qpn = 88, 24;
        /// Queue pair of the destination.
        dst_qpn: Qpn = 120, 24;
        /// Source, if the packet had a GRH.
        sgid: Gid = 144, 128;
        /// Destination, if the packet had a GRH.
        dgid: Gid = 272, 128;
    }
}

layout! {
    /// A subscription to events.
    InformInfo, InformInfoView, 36 {
        /// Events of this port; zero: by LIDs.
        gid: Gid = 0, 128;
        /// First LID; 0xffff: all.
        lid_first: Lid = 128, 16;
        /// Last LID.
        lid_last: Lid = 144, 16;
        /// Events of the specification, not of a vendor.
        is_generic: u8 = 176, 8;
        /// 1 subscribes, 0 ends the subscription.
        subscribe: u8 = 184, 8;
        /// How grave; all ones: any.
        kind: u16 = 192, 16;
        /// Which events; all ones: any.
        trap: TrapNumber = 208, 16;
        /// Queue pair that hears of them.
        qpn: Qpn = 224, 24;
        /// How long the subscriber takes to answer.
        resp_time: u8 = 251, 5;
        /// Kind of the node that tells of them.
        producer: u32 = 264, 24;
    }
}
