//! Management datagrams (IBTA vol1 chapters 13 to 16): the header that all have, subnet
//! management, subnet administration, performance management.
//!
//! Records are tables of fields (`layout!`), each with a repr and a view.
//! Communication management has a module of its own, [`cm`](crate::cm).

mod class_port_info;
mod codes;
mod header;
mod node;
mod notice;
mod performance;
mod port;
mod rmpp;
mod sa;
mod sa_record;
mod sm_info;
mod smp;
mod tables;

pub use class_port_info::{ClassPortInfo, ClassPortInfoView};
pub use codes::{Attribute, Class, Method, SaAttribute, Status};
pub use header::{
    BASE_VERSION, CLASS_CM, CM_CLASS_VERSION, MAD_DATA_LEN, MAD_LEN, METHOD_SEND, MadHeader,
    MadHeaderView,
};
pub use node::{
    NodeDescription, NodeDescriptionView, NodeInfo, NodeInfoView, NodeType, SwitchInfo,
    SwitchInfoView,
};
pub use notice::{
    BadKey, BadKeyView, BadMkey, BadMkeyView, CapabilityChange, CapabilityChangeView, GidTrap,
    GidTrapView, InformInfo, InformInfoView, LidTrap, LidTrapView, Notice, NoticeView, PortTrap,
    PortTrapView, SystemImageChange, SystemImageChangeView, TrapNumber,
};
pub use performance::{
    PmMad, PmMadView, PortCounters, PortCountersExtended, PortCountersExtendedView,
    PortCountersView,
};
pub use port::{PhysicalState, PortInfo, PortInfoView, PortState, capability};
pub use rmpp::{Rmpp, RmppType, RmppView};
pub use sa::{SA_DATA_LEN, SaMad, SaMadView};
pub use sa_record::{
    LinkRecord, LinkRecordView, McMemberRecord, McMemberRecordView, NodeRecord, NodeRecordView,
    PathRecord, PathRecordView, PortInfoRecord, PortInfoRecordView, ServiceRecord,
    ServiceRecordView,
};
pub use sm_info::{SmInfo, SmInfoView, SmState};
pub use smp::{DirectedRoute, SMP_DATA_LEN, SMP_PATH_LEN, Smp, SmpView};
pub use tables::{
    ForwardingBlock, ForwardingBlockView, GuidInfo, GuidInfoView, MulticastBlock,
    MulticastBlockView, PkeyTable, PkeyTableView, SlToVl, SlToVlView, VlArbitrationBlock,
    VlArbitrationBlockView, VlWeight, VlWeightView,
};
