//! Attributes of a device and of its port.
//!
//! No other module defines attributes: commands print these, and other interfaces translate them.
//! Where verbs have a number for an attribute, it is the bits of a set or the discriminant of an
//! enumeration here.

use bitflags::bitflags;
use feroce_abi::{
    IBV_ATOMIC_HCA, IBV_ATOMIC_NONE, IBV_PORT_ACTIVE, IBV_PORT_ARMED, IBV_PORT_INIT, convert,
    ibv_device_attr,
};
use feroce_backend_rdma_core::{DeviceInfo, PortInfo};
use feroce_engine::{Limits, TransportKind};
use feroce_train::{Framing, GidEntry, LinkLayer};
use feroce_wire::{Gid, Lid, Pkey, Pmtu};

bitflags! {
    /// What an adapter can do, of what verbs have a flag for.
    ///
    /// ```
    /// use feroce::{Device, DeviceCaps};
    ///
    /// let attr = Device::at(["127.0.0.21".parse()?]).attr()?;
    /// assert!(attr.caps.contains(DeviceCaps::MEM_WINDOW));
    /// for (name, _) in attr.caps.iter_names() {
    ///     println!("{name}");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_device_cap_flags")]
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct DeviceCaps: u32 {
        /// Counts packets with a wrong partition key.
        const BAD_PKEY_CNTR = 1 << 1;
        /// Counts packets with a wrong queue key.
        const BAD_QKEY_CNTR = 1 << 2;
        /// Modifying a queue pair can name the state that it is expected to be in.
        const CURR_QP_STATE_MOD = 1 << 7;
        /// Raises an event when its port becomes active.
        const PORT_ACTIVE_EVENT = 1 << 10;
        /// Has a system image GUID.
        const SYS_IMAGE_GUID = 1 << 11;
        /// Answers "receiver not ready" on reliable connections.
        const RC_RNR_NAK_GEN = 1 << 12;
        /// Shared receive queues can be resized.
        const SRQ_RESIZE = 1 << 13;
        /// Can wait for a number of completions.
        const N_NOTIFY_CQ = 1 << 14;
        /// Has memory windows.
        const MEM_WINDOW = 1 << 17;
        /// Has extended reliable connections.
        const XRC = 1 << 20;
        /// Has local invalidation and registration by work request.
        const MEM_MGT_EXTENSIONS = 1 << 21;
        /// Has memory windows of type 2B, which belong to one queue pair.
        const MEM_WINDOW_TYPE_2B = 1 << 24;
    }
}

bitflags! {
    /// What a port can do, of what verbs have a flag for.
    ///
    /// ```
    /// use feroce::{Device, PortCaps};
    ///
    /// let port = Device::at(["127.0.0.21".parse()?]).port()?;
    /// assert!(port.caps.contains(PortCaps::IP_BASED_GIDS));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_port_cap_flags")]
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct PortCaps: u32 {
        /// Messages of connection management reach it.
        const CM = 1 << 16;
        /// Its GIDs are made from IP addresses.
        const IP_BASED_GIDS = 1 << 26;
    }
}

/// Which other accesses atomic operations are atomic with.
///
/// ```
/// let attr = feroce::Device::at(["127.0.0.21".parse()?]).attr()?;
/// assert_ne!(attr.atomic_cap, feroce::AtomicCap::None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ibv_atomic_cap")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AtomicCap {
    /// There are none.
    None = 0,
    /// Atomic operations of the same adapter.
    Hca = 1,
    /// All accesses to the memory, those of processors included.
    Global = 2,
}

/// Limits and identity of a device.
///
/// ```
/// let attr = feroce::Device::at(["127.0.0.21".parse()?]).attr()?;
/// println!("{} {:016x}: {} queue pairs", attr.name, attr.guid, attr.limits.max_qp);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ibv_device_attr")]
#[doc(alias = "ibv_device_attr_ex")]
#[non_exhaustive]
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceAttr {
    /// Name.
    pub name: String,
    /// What it speaks.
    #[doc(alias = "ibv_transport_type")]
    pub transport: TransportKind,
    /// Version of the adapter: of our own, the version of this crate.
    pub fw_ver: String,
    /// Node GUID.
    pub guid: u64,
    /// System image GUID: the same as the node GUID.
    pub sys_image_guid: u64,
    /// Vendor.
    pub vendor_id: u32,
    /// Model.
    pub vendor_part_id: u32,
    /// Revision of the model.
    pub hw_ver: u32,
    /// Ports.
    pub ports: u8,
    /// What it can do.
    pub caps: DeviceCaps,
    /// How many objects of each kind it can hold.
    pub limits: Limits,
    /// Scatter/gather elements in a READ: 1 with iWARP.
    pub max_sge_rd: u32,
    /// Longest message in bytes.
    pub max_msg_size: u64,
    /// Longest memory region in bytes.
    pub max_mr_size: u64,
    /// Page sizes that memory may have, as a sum.
    pub page_size_cap: u64,
    /// Reads and atomics of peers that it can hold, all queue pairs together.
    pub max_res_rd_atomic: u32,
    /// Which other accesses atomic operations are atomic with.
    pub atomic_cap: AtomicCap,
    /// Memory windows.
    pub max_mw: u32,
    /// Queue pairs attached to multicast groups, all groups together.
    pub max_total_mcast_qp_attach: u32,
    /// Scatter/gather elements in a receive of a shared receive queue.
    pub max_srq_sge: u32,
    /// Partition keys.
    pub max_pkeys: u16,
    /// How long the responder may take to send an acknowledgement: 4.096 us * 2^code.
    pub local_ca_ack_delay: u8,
    /// Valid bits of a completion's timestamp.
    pub completion_timestamp_mask: u64,
    /// Rate of timestamps: they are in nanoseconds.
    pub core_clock_khz: u64,
    /// Completion vectors.
    pub comp_vectors: u32,
    /// Engines with a thread each, among which it divides its queue pairs (the setting `shards`).
    pub shards: u8,
}

impl DeviceAttr {
    /// The attributes that rdma-core reports for a device of the kernel's drivers.
    pub(crate) fn of_kernel(name: &str, info: &DeviceInfo) -> Self {
        let attr = &info.attr;
        Self {
            name: name.to_owned(),
            transport: match info.is_iwarp {
                true => TransportKind::Iwarp,
                false => TransportKind::InfiniBand,
            },
            fw_ver: info.fw_ver.clone(),
            guid: u64::from_be(attr.node_guid),
            sys_image_guid: u64::from_be(attr.sys_image_guid),
            vendor_id: attr.vendor_id,
            vendor_part_id: attr.vendor_part_id,
            hw_ver: attr.hw_ver,
            ports: attr.phys_port_cnt,
            caps: DeviceCaps::from_bits_retain(attr.device_cap_flags),
            limits: limits(attr),
            max_sge_rd: count(attr.max_sge_rd),
            max_msg_size: info.max_msg_size,
            max_mr_size: attr.max_mr_size,
            page_size_cap: attr.page_size_cap,
            max_res_rd_atomic: count(attr.max_res_rd_atom),
            atomic_cap: match attr.atomic_cap {
                IBV_ATOMIC_NONE => AtomicCap::None,
                IBV_ATOMIC_HCA => AtomicCap::Hca,
                _ => AtomicCap::Global,
            },
            max_mw: count(attr.max_mw),
            max_total_mcast_qp_attach: count(attr.max_total_mcast_qp_attach),
            max_srq_sge: count(attr.max_srq_sge),
            max_pkeys: attr.max_pkeys,
            local_ca_ack_delay: attr.local_ca_ack_delay,
            // The polling thread stamps completions with the clock of the context.
            completion_timestamp_mask: u64::MAX,
            core_clock_khz: 1_000_000,
            comp_vectors: info.comp_vectors,
            shards: 1,
        }
    }
}

fn limits(attr: &ibv_device_attr) -> Limits {
    Limits {
        max_qp: count(attr.max_qp),
        max_qp_wr: count(attr.max_qp_wr),
        max_sge: count(attr.max_sge),
        // Drivers report it only for queue pairs that exist.
        max_inline: 0,
        max_cq: count(attr.max_cq),
        max_cqe: count(attr.max_cqe),
        max_mr: count(attr.max_mr),
        max_pd: count(attr.max_pd),
        max_srq: count(attr.max_srq),
        max_srq_wr: count(attr.max_srq_wr),
        max_ah: count(attr.max_ah),
        max_mcast_grp: count(attr.max_mcast_grp),
        max_mcast_qp_attach: count(attr.max_mcast_qp_attach),
        max_rd_atomic: u8::try_from(attr.max_qp_rd_atom).unwrap_or(u8::MAX),
    }
}

/// A number that C declares signed.
fn count(n: i32) -> u32 {
    u32::try_from(n).unwrap_or(0)
}

/// State of the port: whether packets can pass.
///
/// ```
/// use feroce::{Device, PortState};
///
/// let port = Device::at(["127.0.0.21".parse()?]).port()?;
/// assert_eq!(port.state, PortState::Active);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ibv_port_state")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PortState {
    /// The interface or the link is down.
    Down = 1,
    /// The link of an InfiniBand port is up, and its subnet manager has not configured it yet.
    Init = 2,
    /// The subnet manager has configured the port, and not activated it yet.
    Armed = 3,
    /// Packets can pass.
    Active = 4,
}

/// Physical state of the port.
///
/// ```
/// use feroce::{PhysState, PortState};
///
/// assert_eq!(PhysState::from(PortState::Active), PhysState::LinkUp);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PhysState {
    /// An InfiniBand port sleeps.
    Sleep = 1,
    /// An InfiniBand port looks for a peer.
    Polling = 2,
    /// The interface is down.
    Disabled = 3,
    /// An InfiniBand port negotiates with its peer.
    Training = 4,
    /// The interface or the link is up.
    LinkUp = 5,
    /// The link of an InfiniBand port recovers from errors.
    ErrorRecovery = 6,
}

impl From<PortState> for PhysState {
    fn from(state: PortState) -> Self {
        match state {
            PortState::Down => Self::Disabled,
            PortState::Init | PortState::Armed | PortState::Active => Self::LinkUp,
        }
    }
}

/// Lanes of a link.
///
/// ```
/// let port = feroce::Device::at(["127.0.0.21".parse()?]).port()?;
/// let lanes = if port.active_width == feroce::LinkWidth::X4 { 4 } else { 1 };
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LinkWidth {
    /// One.
    X1 = 1,
    /// Four.
    X4 = 2,
    /// Eight.
    X8 = 4,
    /// Twelve.
    X12 = 8,
    /// Two.
    X2 = 16,
}

impl LinkWidth {
    /// From its number in verbs; an unknown number counts as one lane.
    pub(crate) fn from_code(code: u8) -> Self {
        match code {
            2 => Self::X4,
            4 => Self::X8,
            8 => Self::X12,
            16 => Self::X2,
            _ => Self::X1,
        }
    }
}

/// Speed of a lane, by the name of its generation.
///
/// ```
/// let port = feroce::Device::at(["127.0.0.21".parse()?]).port()?;
/// assert_eq!(port.active_speed, feroce::LaneSpeed::Sdr);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LaneSpeed {
    /// 2.5 Gb/s.
    Sdr = 1,
    /// 5 Gb/s.
    Ddr = 2,
    /// 8 Gb/s of data at 10 Gb/s.
    Qdr = 4,
    /// 10 Gb/s.
    Fdr10 = 8,
    /// 14 Gb/s.
    Fdr = 16,
    /// 25 Gb/s.
    Edr = 32,
    /// 50 Gb/s.
    Hdr = 64,
    /// 100 Gb/s.
    Ndr = 128,
}

impl LaneSpeed {
    /// From its number in verbs; an unknown number counts as the lowest speed.
    pub(crate) fn from_code(code: u8) -> Self {
        match code {
            2 => Self::Ddr,
            4 => Self::Qdr,
            8 => Self::Fdr10,
            16 => Self::Fdr,
            32 => Self::Edr,
            64 => Self::Hdr,
            128 => Self::Ndr,
            _ => Self::Sdr,
        }
    }
}

/// The port of a device. Every device has one, whose number is 1. A port on Ethernet has no LID and
/// no subnet manager.
///
/// ```
/// let port = feroce::Device::at(["127.0.0.21".parse()?]).port()?;
/// assert_eq!(port.active_mtu.bytes(), 4096);
/// println!("{:?} with {} addresses", port.state, port.gids.len());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ibv_port_attr")]
#[non_exhaustive]
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortAttr {
    /// State.
    pub state: PortState,
    /// Physical state.
    pub phys_state: PhysState,
    /// Greatest path MTU of any port.
    pub max_mtu: Pmtu,
    /// Greatest path MTU that its interface carries now.
    pub active_mtu: Pmtu,
    /// Longest message in bytes.
    pub max_msg_size: u64,
    /// What it can do.
    pub caps: PortCaps,
    /// Link layer of the port.
    pub link_layer: LinkLayer,
    /// LID of the port; zero on Ethernet.
    pub lid: Lid,
    /// LIDs of the port, as a power of two.
    pub lmc: u8,
    /// LID of the subnet manager; zero on Ethernet.
    pub sm_lid: Lid,
    /// Service level of the subnet manager.
    pub sm_sl: u8,
    /// Longest time through the subnet: 4.096 us times two to this power.
    pub subnet_timeout: u8,
    /// Initialisation that the subnet manager did.
    pub init_type_reply: u8,
    /// Virtual lanes, as a code: 1, 2, 4, 8 and 15 are 1 to 5.
    #[doc(alias = "max_vl_num")]
    pub max_vls: u8,
    /// The GID table by index, with the framing of each GID's packets; an entry may be empty.
    #[doc(alias = "ibv_query_gid")]
    #[doc(alias = "ibv_query_gid_type")]
    pub gids: Vec<GidEntry>,
    /// Entries of the table of addresses.
    pub gid_table_len: u32,
    /// Partition keys by index.
    #[doc(alias = "ibv_query_pkey")]
    pub pkeys: Vec<Pkey>,
    /// Received packets with a wrong partition key.
    pub bad_pkeys: u64,
    /// Received packets with a wrong queue key.
    pub bad_qkeys: u64,
    /// Lanes.
    pub active_width: LinkWidth,
    /// Speed of a lane.
    pub active_speed: LaneSpeed,
}

impl PortAttr {
    /// Index of the address to use if the program chooses none: the first of IPv4, or else the
    /// first.
    pub fn first_gid(&self) -> u16 {
        let ipv4 = self.gids.iter().position(|entry| entry.gid.as_ipv4().is_some());
        let any = || self.gids.iter().position(|entry| !entry.is_empty());
        ipv4.or_else(any).and_then(|index| u16::try_from(index).ok()).unwrap_or(0)
    }

    /// Index of an address of the port: of the entry whose packets are RoCEv2, where it has one for
    /// RoCEv1 as well.
    ///
    /// ```
    /// let port = feroce::Device::at(["127.0.0.21".parse()?]).port()?;
    /// assert_eq!(port.gid_index(feroce::Gid::from_ipv4([127, 0, 0, 21])), Some(0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn gid_index(&self, gid: Gid) -> Option<u16> {
        let index = self.gids.iter().position(|entry| entry.gid == gid)?;
        u16::try_from(index).ok()
    }

    /// The attributes that rdma-core reports for the port of a device of the kernel's drivers.
    pub(crate) fn of_kernel(info: &PortInfo) -> Self {
        let attr = &info.attr;
        let state = match attr.state {
            IBV_PORT_ACTIVE => PortState::Active,
            IBV_PORT_ARMED => PortState::Armed,
            IBV_PORT_INIT => PortState::Init,
            _ => PortState::Down,
        };
        Self {
            state,
            phys_state: PhysState::from(state),
            max_mtu: convert::mtu_of(attr.max_mtu).unwrap_or(Pmtu::B4096),
            active_mtu: convert::mtu_of(attr.active_mtu).unwrap_or(Pmtu::B256),
            max_msg_size: attr.max_msg_sz.into(),
            caps: PortCaps::from_bits_retain(attr.port_cap_flags),
            link_layer: convert::link_layer_of(attr.link_layer.into()).unwrap_or_default(),
            lid: Lid(attr.lid),
            lmc: attr.lmc,
            sm_lid: Lid(attr.sm_lid),
            sm_sl: attr.sm_sl,
            subnet_timeout: attr.subnet_timeout,
            init_type_reply: attr.init_type_reply,
            max_vls: attr.max_vl_num,
            gids: info.gids.clone(),
            gid_table_len: count(attr.gid_tbl_len),
            pkeys: info.pkeys.clone(),
            bad_pkeys: attr.bad_pkey_cntr.into(),
            bad_qkeys: attr.qkey_viol_cntr.into(),
            active_width: LinkWidth::from_code(attr.active_width),
            active_speed: LaneSpeed::from_code(attr.active_speed),
        }
    }
}

/// Index of the entry of an address whose packets have a framing.
pub(crate) fn entry_index(table: &[GidEntry], gid: Gid, framing: Framing) -> Option<u16> {
    let index = table.iter().position(|entry| *entry == GidEntry { gid, framing })?;
    u16::try_from(index).ok()
}
