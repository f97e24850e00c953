//! The attributes of a device under the names that `ibv_devinfo` gives them.

use feroce::{Device, Error, Pmtu, PortState};
use serde::Serialize;

/// Entries that the GID table may have.
const GID_TABLE: u32 = 1024;

/// Connection management, and GIDs made from IP addresses.
const PORT_CAPS: u32 = 1 << 16 | 1 << 26;

/// What the adapter can do, of what verbs have a flag for: name and bit.
const CAPS: [(&str, u32); 11] = [
    ("BAD_PKEY_CNTR", 1 << 1),
    ("BAD_QKEY_CNTR", 1 << 2),
    ("CURR_QP_STATE_MOD", 1 << 7),
    ("PORT_ACTIVE_EVENT", 1 << 10),
    ("SYS_IMAGE_GUID", 1 << 11),
    ("RC_RNR_NAK_GEN", 1 << 12),
    ("N_NOTIFY_CQ", 1 << 14),
    ("MEM_WINDOW", 1 << 17),
    ("XRC", 1 << 20),
    ("MEM_MGT_EXTENSIONS", 1 << 21),
    ("MEM_WINDOW_TYPE_2B", 1 << 24),
];

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
    pub(super) fw_ver: &'static str,
    pub(super) node_guid: String,
    pub(super) sys_image_guid: String,
    pub(super) vendor_id: u32,
    pub(super) vendor_part_id: u32,
    pub(super) hw_ver: u32,
    pub(super) phys_port_cnt: u32,
    pub(super) limits: Limits,
    pub(super) ports: Vec<Port>,
}

/// What a device can do, and how much of it.
#[derive(Debug, Serialize)]
pub(super) struct Limits {
    pub(super) max_mr_size: u64,
    pub(super) page_size_cap: u64,
    pub(super) max_qp: u32,
    pub(super) max_qp_wr: u32,
    pub(super) device_cap_flags: u32,
    pub(super) device_caps: Vec<&'static str>,
    pub(super) max_sge: u32,
    pub(super) max_cq: u32,
    pub(super) max_cqe: u32,
    pub(super) max_mr: u32,
    pub(super) max_pd: u32,
    pub(super) max_qp_rd_atom: u32,
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
    pub(super) max_pkeys: usize,
    pub(super) local_ca_ack_delay: u32,
    pub(super) completion_timestamp_mask: u64,
    pub(super) hca_core_clock_khz: u64,
    pub(super) num_comp_vectors: u32,
}

/// The port of a device.
#[derive(Debug, Serialize)]
pub(super) struct Port {
    pub(super) port: u32,
    pub(super) state: Coded,
    pub(super) max_mtu: usize,
    pub(super) active_mtu: usize,
    pub(super) link_layer: &'static str,
    pub(super) max_msg_sz: u64,
    pub(super) port_cap_flags: u32,
    pub(super) pkey_tbl_len: usize,
    pub(super) gid_tbl_len: u32,
    pub(super) active_width: Coded,
    pub(super) active_speed: Coded,
    pub(super) phys_state: Coded,
    pub(super) gids: Vec<GidEntry>,
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
            transport: coded("InfiniBand", 0),
            fw_ver: env!("CARGO_PKG_VERSION"),
            node_guid: guid(attr.guid),
            sys_image_guid: guid(attr.guid),
            // A number that nobody else can have: it is locally administered.
            vendor_id: 0xfe_0ce0,
            vendor_part_id: 1,
            hw_ver: 0,
            phys_port_cnt: 1,
            limits: Limits::of(&attr.limits, device)?,
            ports: vec![Port::of(device, attr.max_msg_size)?],
        })
    }
}

impl Limits {
    fn of(limits: &feroce::Limits, device: &Device) -> Result<Self, Error> {
        let rd_atom = u32::from(limits.max_rd_atomic);
        Ok(Self {
            max_mr_size: u64::MAX,
            page_size_cap: 0xffff_f000,
            max_qp: limits.max_qp,
            max_qp_wr: limits.max_qp_wr,
            device_cap_flags: CAPS.iter().fold(0, |all, (_, bit)| all | bit),
            device_caps: CAPS.iter().map(|(name, _)| *name).collect(),
            max_sge: limits.max_sge,
            max_cq: limits.max_cq,
            max_cqe: limits.max_cqe,
            max_mr: limits.max_mr,
            max_pd: limits.max_pd,
            max_qp_rd_atom: rd_atom,
            max_res_rd_atom: limits.max_qp.saturating_mul(rd_atom),
            // Atomics are those of the processor.
            atomic_cap: coded("ATOMIC_GLOB", 2),
            max_mw: limits.max_mr,
            max_mcast_grp: limits.max_mcast_grp,
            max_mcast_qp_attach: limits.max_mcast_qp_attach,
            max_total_mcast_qp_attach: limits
                .max_mcast_grp
                .saturating_mul(limits.max_mcast_qp_attach),
            max_ah: limits.max_ah,
            max_srq: limits.max_srq,
            max_srq_wr: limits.max_srq_wr,
            max_srq_sge: limits.max_sge,
            max_pkeys: device.port()?.pkeys.len(),
            local_ca_ack_delay: 15,
            completion_timestamp_mask: u64::MAX,
            // Timestamps count nanoseconds.
            hca_core_clock_khz: 1_000_000,
            num_comp_vectors: 1,
        })
    }
}

impl Port {
    fn of(device: &Device, max_msg_sz: u64) -> Result<Self, Error> {
        let port = device.port()?;
        let is_active = port.state == PortState::Active;
        let (active_width, active_speed) = width_and_speed(interface_mbit(device));
        let entry = |(index, gid): (usize, &feroce::Gid)| GidEntry {
            index,
            gid: gid.to_string(),
            kind: "RoCE v2",
        };
        let gids = port.gids.iter().enumerate().filter(|(_, gid)| !gid.is_zero());
        Ok(Self {
            port: 1,
            state: if is_active { coded("PORT_ACTIVE", 4) } else { coded("PORT_DOWN", 1) },
            max_mtu: Pmtu::B4096.bytes(),
            active_mtu: port.active_mtu.bytes(),
            link_layer: "Ethernet",
            max_msg_sz,
            port_cap_flags: PORT_CAPS,
            pkey_tbl_len: port.pkeys.len(),
            gid_tbl_len: GID_TABLE,
            active_width,
            active_speed,
            phys_state: if is_active { coded("LINK_UP", 5) } else { coded("DISABLED", 3) },
            gids: gids.map(entry).collect(),
        })
    }
}

fn guid(guid: u64) -> String {
    let part = |shift: u32| guid >> shift & 0xffff;
    format!("{:04x}:{:04x}:{:04x}:{:04x}", part(48), part(32), part(16), part(0))
}

/// The speed of the interface, if it has one.
fn interface_mbit(device: &Device) -> Option<u32> {
    let path = format!("/sys/class/net/{}/speed", device.interface_name()?);
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The InfiniBand width and lane speed that come nearest, as Linux chooses them for RoCE.
fn width_and_speed(mbit: Option<u32>) -> (Coded, Coded) {
    match mbit.unwrap_or(1000) {
        0..=1000 => (coded("1", 1), coded("2.5 Gbps", 1)),
        1001..=10_000 => (coded("1", 1), coded("10.0 Gbps", 8)),
        10_001..=20_000 => (coded("4", 2), coded("5.0 Gbps", 2)),
        20_001..=25_000 => (coded("1", 1), coded("25.0 Gbps", 32)),
        25_001..=40_000 => (coded("4", 2), coded("10.0 Gbps", 8)),
        40_001..=100_000 => (coded("4", 2), coded("25.0 Gbps", 32)),
        100_001..=200_000 => (coded("4", 2), coded("50.0 Gbps", 64)),
        _ => (coded("4", 2), coded("100.0 Gbps", 128)),
    }
}

/// The code of a path MTU.
pub(super) fn mtu_code(bytes: usize) -> u8 {
    Pmtu::from_bytes(bytes).map_or(0, |mtu| mtu as u8)
}
