//! Numbers of the header: classes, methods, attributes, status.

use crate::layout::codes;

codes! {
    /// Management class (IBTA vol1 13.4.4).
    Class(u8) {
        /// Subnet management, by LIDs.
        SUBNET_LID = 0x01, "SubnLid";
        /// Subnet management, by a directed route.
        SUBNET_DIRECTED = 0x81, "SubnDirected";
        /// Subnet administration.
        SUBNET_ADMINISTRATION = 0x03, "SubnAdm";
        /// Performance management.
        PERFORMANCE = 0x04, "Perf";
        /// Communication management.
        COMMUNICATION = 0x07, "CommMgt";
    }
}

impl Class {
    /// Whether datagrams of the class go to queue pair 0.
    pub const fn is_subnet(self) -> bool {
        matches!(self, Self::SUBNET_LID | Self::SUBNET_DIRECTED)
    }

    /// Whether datagrams of the class name the organisation that defined them.
    pub const fn has_oui(self) -> bool {
        self.0 >= 0x30 && self.0 <= 0x4f
    }

    /// Bytes in front of the data of each segment of a multi-packet transfer.
    pub const fn rmpp_header_len(self) -> usize {
        match self {
            Self::SUBNET_ADMINISTRATION => 56,
            class if class.has_oui() => 40,
            _ => 36,
        }
    }
}

codes! {
    /// Method (IBTA vol1 13.4.5).
    Method(u8) {
        /// Asks for an attribute.
        GET = 0x01, "Get";
        /// Changes an attribute.
        SET = 0x02, "Set";
        /// Sends without an answer of this class.
        SEND = 0x03, "Send";
        /// Reports an event, unasked.
        TRAP = 0x05, "Trap";
        /// Passes on an event to a subscriber.
        REPORT = 0x06, "Report";
        /// Ends the repetition of a trap.
        TRAP_REPRESS = 0x07, "TrapRepress";
        /// Asks for all records that match.
        GET_TABLE = 0x12, "GetTable";
        /// Deletes a record.
        DELETE = 0x15, "Delete";
        /// Answers a get or a set.
        GET_RESP = 0x81, "GetResp";
        /// Answers a report.
        REPORT_RESP = 0x86, "ReportResp";
        /// Answers a request for a table.
        GET_TABLE_RESP = 0x92, "GetTableResp";
        /// Answers a deletion.
        DELETE_RESP = 0x95, "DeleteResp";
    }
}

impl Method {
    /// Whether a requester waits for it: the response bit is set, or it represses a trap.
    pub const fn is_response(self) -> bool {
        self.0 & 0x80 != 0 || self.0 == Self::TRAP_REPRESS.0
    }
}

codes! {
    /// Attribute of subnet and performance management (IBTA vol1 14.2.5, 16.1.3).
    Attribute(u16) {
        /// What a class can do.
        CLASS_PORT_INFO = 0x0001, "ClassPortInfo";
        /// An event.
        NOTICE = 0x0002, "Notice";
        /// Text of the node.
        NODE_DESCRIPTION = 0x0010, "NodeDescription";
        /// Kind and GUIDs of the node.
        NODE_INFO = 0x0011, "NodeInfo";
        /// The switch as a whole.
        SWITCH_INFO = 0x0012, "SwitchInfo";
        /// GUIDs of the port.
        GUID_INFO = 0x0014, "GUIDInfo";
        /// State and settings of the port.
        PORT_INFO = 0x0015, "PortInfo";
        /// Partitions.
        PKEY_TABLE = 0x0016, "P_KeyTable";
        /// The lane of each service level.
        SL_TO_VL = 0x0017, "SLtoVLMappingTable";
        /// Weights of lanes.
        VL_ARBITRATION = 0x0018, "VLArbitrationTable";
        /// Port of each LID.
        LINEAR_FORWARDING = 0x0019, "LinearForwardingTable";
        /// Pairs of LID and port.
        RANDOM_FORWARDING = 0x001a, "RandomForwardingTable";
        /// Ports of each multicast LID.
        MULTICAST_FORWARDING = 0x001b, "MulticastForwardingTable";
        /// The subnet manager.
        SM_INFO = 0x0020, "SMInfo";
    }
}

impl Attribute {
    /// Counters of a port (performance management, where the number means this).
    pub const PORT_COUNTERS: Self = Self(0x0012);
    /// Counters of 64 bits (performance management).
    pub const PORT_COUNTERS_EXTENDED: Self = Self(0x001d);
}

codes! {
    /// Attribute of subnet administration (IBTA vol1 15.2.5).
    SaAttribute(u16) {
        /// What the class can do.
        CLASS_PORT_INFO = 0x0001, "ClassPortInfo";
        /// An event.
        NOTICE = 0x0002, "Notice";
        /// A subscription to events.
        INFORM_INFO = 0x0003, "InformInfo";
        /// A node.
        NODE = 0x0011, "NodeRecord";
        /// A port.
        PORT_INFO = 0x0012, "PortInfoRecord";
        /// A link.
        LINK = 0x0020, "LinkRecord";
        /// A service.
        SERVICE = 0x0031, "ServiceRecord";
        /// A path.
        PATH = 0x0035, "PathRecord";
        /// A member of a multicast group.
        MC_MEMBER = 0x0038, "MCMemberRecord";
    }
}

/// Status of a response (IBTA vol1 13.4.7). Zero is success.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Status(pub u16);

impl Status {
    /// Success.
    pub const OK: Self = Self(0);
    /// The version of the class is not supported.
    pub const BAD_VERSION: Self = Self(0x0004);
    /// The class has no such method.
    pub const BAD_METHOD: Self = Self(0x0008);
    /// The class, or this node, has no such attribute with such a method.
    pub const BAD_ATTRIBUTE: Self = Self(0x000c);
    /// A field of the attribute, or the modifier, has a value that it must not have.
    pub const BAD_VALUE: Self = Self(0x001c);
    /// The bit above the status of directed routes: the packet goes back to the requester.
    pub const DIRECTION: u16 = 0x8000;
}
