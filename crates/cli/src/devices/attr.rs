//! The attributes of a device under the names that `ibv_devinfo` gives them.

use feroce::{
    AtomicCap, Device, DeviceAttr, Error, Framing, LaneSpeed, LinkLayer, LinkWidth, PhysState,
    Pmtu, PortAttr, PortState, Settings, TransportKind,
};
use serde::Serialize;

/// A code and its name.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Coded {
    pub(super) name: &'static str,
    pub(super) code: u32,
}

const fn coded(name: &'static str, code: u32) -> Coded {
    Coded { name, code }
}

/// A device.
#[derive(Debug, Serialize)]
pub(super) struct Info {
    pub(super) hca_id: String,
    pub(super) interface: Option<String>,
    pub(super) transport: Coded,
    pub(super) fw_ver: String,
    pub(super) node_guid: String,
    pub(super) sys_image_guid: String,
    pub(super) vendor_id: u32,
    pub(super) vendor_part_id: u32,
    pub(super) hw_ver: u32,
    pub(super) phys_port_cnt: u8,
    pub(super) limits: Limits,
    pub(super) ports: Vec<Port>,
}

/// Capabilities and limits of a device.
#[derive(Debug, Serialize)]
pub(super) struct Limits {
    pub(super) max_mr_size: u64,
    pub(super) page_size_cap: u64,
    pub(super) max_qp: u32,
    pub(super) max_qp_wr: u32,
    pub(super) device_cap_flags: u32,
    pub(super) device_caps: Vec<&'static str>,
    pub(super) max_sge: u32,
    pub(super) max_sge_rd: u32,
    pub(super) max_cq: u32,
    pub(super) max_cqe: u32,
    pub(super) max_mr: u32,
    pub(super) max_pd: u32,
    pub(super) max_qp_rd_atom: u8,
    pub(super) max_res_rd_atom: u32,
    pub(super) atomic_cap: Coded,
    pub(super) max_mw: u32,
    pub(super) max_mcast_grp: u32,
    pub(super) max_mcast_qp_attach: u32,
    pub(super) max_total_mcast_qp_attach: u32,
    pub(super) max_ah: u32,
    pub(super) max_srq: u32,
    pub(super) max_srq_wr: u32,
    pub(super) max_srq_sge: u32,
    pub(super) max_pkeys: u16,
    pub(super) local_ca_ack_delay: u8,
    pub(super) completion_timestamp_mask: u64,
    pub(super) hca_core_clock_khz: u64,
    pub(super) num_comp_vectors: u32,
    pub(super) shards: u8,
}

/// The port of a device.
#[derive(Debug, Serialize)]
pub(super) struct Port {
    pub(super) port: u32,
    pub(super) state: Coded,
    pub(super) max_mtu: usize,
    pub(super) active_mtu: usize,
    pub(super) lid: u16,
    pub(super) lmc: u8,
    pub(super) sm_lid: u16,
    pub(super) sm_sl: u8,
    pub(super) subnet_timeout: u8,
    pub(super) init_type_reply: u8,
    pub(super) max_vl_num: Coded,
    pub(super) link_layer: &'static str,
    pub(super) max_msg_sz: u64,
    pub(super) port_cap_flags: u32,
    pub(super) bad_pkey_cntr: u64,
    pub(super) qkey_viol_cntr: u64,
    pub(super) pkey_tbl_len: usize,
    pub(super) gid_tbl_len: u32,
    pub(super) active_width: Coded,
    pub(super) active_speed: Coded,
    pub(super) phys_state: Coded,
    pub(super) gids: Vec<GidEntry>,
    /// Why there are no GIDs of RoCEv1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) without_rocev1: Option<String>,
}

/// An entry of the GID table.
#[derive(Debug, Serialize)]
pub(super) struct GidEntry {
    pub(super) index: usize,
    pub(super) gid: String,
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
}

impl Info {
    /// Everything about a device.
    pub(super) fn of(device: &Device) -> Result<Self, Error> {
        let attr = device.attr()?;
        Ok(Self {
            hca_id: device.name().to_owned(),
            interface: device.interface_name().map(str::to_owned),
            transport: match attr.transport {
                TransportKind::InfiniBand => coded("InfiniBand", 0),
                TransportKind::Iwarp => coded("iWARP", 1),
            },
            fw_ver: attr.fw_ver.clone(),
            node_guid: guid(attr.guid),
            sys_image_guid: guid(attr.sys_image_guid),
            vendor_id: attr.vendor_id,
            vendor_part_id: attr.vendor_part_id,
            hw_ver: attr.hw_ver,
            phys_port_cnt: attr.ports,
            limits: Limits::of(&attr),
            ports: vec![Port {
                without_rocev1: device.without_rocev1(&Settings::load()?),
                ..Port::of(&device.port()?)
            }],
        })
    }
}

impl Limits {
    fn of(attr: &DeviceAttr) -> Self {
        let limits = &attr.limits;
        Self {
            max_mr_size: attr.max_mr_size,
            page_size_cap: attr.page_size_cap,
            max_qp: limits.max_qp,
            max_qp_wr: limits.max_qp_wr,
            device_cap_flags: attr.caps.bits(),
            device_caps: attr.caps.iter_names().map(|(name, _)| name).collect(),
            max_sge: limits.max_sge,
            max_sge_rd: attr.max_sge_rd,
            max_cq: limits.max_cq,
            max_cqe: limits.max_cqe,
            max_mr: limits.max_mr,
            max_pd: limits.max_pd,
            max_qp_rd_atom: limits.max_rd_atomic,
            max_res_rd_atom: attr.max_res_rd_atomic,
            atomic_cap: match attr.atomic_cap {
                cap @ AtomicCap::None => coded("ATOMIC_NONE", cap as u32),
                cap @ AtomicCap::Hca => coded("ATOMIC_HCA", cap as u32),
                cap @ AtomicCap::Global => coded("ATOMIC_GLOB", cap as u32),
            },
            max_mw: attr.max_mw,
            max_mcast_grp: limits.max_mcast_grp,
            max_mcast_qp_attach: limits.max_mcast_qp_attach,
            max_total_mcast_qp_attach: attr.max_total_mcast_qp_attach,
            max_ah: limits.max_ah,
            max_srq: limits.max_srq,
            max_srq_wr: limits.max_srq_wr,
            max_srq_sge: attr.max_srq_sge,
            max_pkeys: attr.max_pkeys,
            local_ca_ack_delay: attr.local_ca_ack_delay,
            completion_timestamp_mask: attr.completion_timestamp_mask,
            hca_core_clock_khz: attr.core_clock_khz,
            num_comp_vectors: attr.comp_vectors,
            shards: attr.shards,
        }
    }
}

impl Port {
    fn of(port: &PortAttr) -> Self {
        let entry = |(index, entry): (usize, &feroce::GidEntry)| GidEntry {
            index,
            gid: entry.gid.to_string(),
            kind: match entry.framing {
                Framing::RoceV2 => "RoCE v2",
                Framing::RoceV1 => "RoCE v1",
                Framing::InfiniBand => "IB",
            },
        };
        let gids = port.gids.iter().enumerate().filter(|(_, entry)| !entry.is_empty());
        Self {
            port: 1,
            state: state(port.state),
            max_mtu: port.max_mtu.bytes(),
            active_mtu: port.active_mtu.bytes(),
            lid: port.lid.0,
            lmc: port.lmc,
            sm_lid: port.sm_lid.0,
            sm_sl: port.sm_sl,
            subnet_timeout: port.subnet_timeout,
            init_type_reply: port.init_type_reply,
            max_vl_num: vls(port.max_vls),
            link_layer: match port.link_layer {
                LinkLayer::Ethernet => "Ethernet",
                LinkLayer::InfiniBand => "InfiniBand",
            },
            max_msg_sz: port.max_msg_size,
            port_cap_flags: port.caps.bits(),
            bad_pkey_cntr: port.bad_pkeys,
            qkey_viol_cntr: port.bad_qkeys,
            pkey_tbl_len: port.pkeys.len(),
            gid_tbl_len: port.gid_table_len,
            active_width: width(port.active_width),
            active_speed: speed(port.active_speed),
            phys_state: phys_state(port.phys_state),
            gids: gids.map(entry).collect(),
            without_rocev1: None,
        }
    }
}

fn guid(guid: u64) -> String {
    let part = |shift: u32| guid >> shift & 0xffff;
    format!("{:04x}:{:04x}:{:04x}:{:04x}", part(48), part(32), part(16), part(0))
}

fn state(state: PortState) -> Coded {
    let name = match state {
        PortState::Down => "PORT_DOWN",
        PortState::Init => "PORT_INIT",
        PortState::Armed => "PORT_ARMED",
        PortState::Active => "PORT_ACTIVE",
    };
    coded(name, state as u32)
}

fn phys_state(state: PhysState) -> Coded {
    let name = match state {
        PhysState::Sleep => "SLEEP",
        PhysState::Polling => "POLLING",
        PhysState::Disabled => "DISABLED",
        PhysState::Training => "PORT_CONFIGURATION_TRAINING",
        PhysState::LinkUp => "LINK_UP",
        PhysState::ErrorRecovery => "LINK_ERROR_RECOVERY",
    };
    coded(name, state as u32)
}

impl Port {
    /// The rate of the link: that of a lane times the number of lanes.
    pub(super) fn rate(&self) -> String {
        let lanes: f64 = self.active_width.name.parse().unwrap_or_default();
        let lane = self.active_speed.name.split(' ').next().unwrap_or_default();
        let lane: f64 = lane.parse().unwrap_or_default();
        format!("{} Gb/s", lanes * lane)
    }
}

/// Virtual lanes by their code.
fn vls(code: u8) -> Coded {
    let name = match code {
        1 => "1",
        2 => "2",
        3 => "4",
        4 => "8",
        5 => "15",
        _ => "invalid",
    };
    coded(name, code.into())
}

fn width(width: LinkWidth) -> Coded {
    let name = match width {
        LinkWidth::X1 => "1",
        LinkWidth::X4 => "4",
        LinkWidth::X8 => "8",
        LinkWidth::X12 => "12",
        LinkWidth::X2 => "2",
    };
    coded(name, width as u32)
}

fn speed(speed: LaneSpeed) -> Coded {
    let name = match speed {
        LaneSpeed::Sdr => "2.5 Gbps",
        LaneSpeed::Ddr => "5.0 Gbps",
        LaneSpeed::Qdr | LaneSpeed::Fdr10 => "10.0 Gbps",
        LaneSpeed::Fdr => "14.0 Gbps",
        LaneSpeed::Edr => "25.0 Gbps",
        LaneSpeed::Hdr => "50.0 Gbps",
        LaneSpeed::Ndr => "100.0 Gbps",
    };
    coded(name, speed as u32)
}

/// The code of a path MTU.
pub(super) fn mtu_code(bytes: usize) -> u8 {
    Pmtu::from_bytes(bytes).map_or(0, |mtu| mtu as u8)
}
