//! What a device is like, from what the library says of it.

use std::ffi::{CStr, c_int};

use feroce_abi::*;
use feroce_engine::Limits;
use feroce_wire::{Gid, Pkey, Pmtu};

use super::adapter::Open;
use super::{checked, failed};
use crate::attr::{
    AtomicCap, DeviceAttr, DeviceCaps, LaneSpeed, LinkWidth, PhysState, PortAttr, PortCaps,
    PortState,
};
use crate::device::Device;
use crate::{Error, sys};

/// The one port that is used.
pub(super) const PORT: u8 = 1;

/// Most entries of a GID table that are asked for.
const MAX_GIDS: usize = 1024;

/// A structure of C to be filled in by the library.
pub(super) trait Plain: Sized {
    /// All zeros.
    fn zeroed() -> Self {
        // SAFETY: those that implement this consist of numbers and of pointers that may be NULL.
        unsafe { std::mem::zeroed() }
    }
}

impl Plain for ibv_device_attr {}
impl Plain for _compat_ibv_port_attr {}
impl Plain for ibv_gid_entry {}
impl Plain for ibv_ah_attr {}
impl Plain for ibv_qp_attr {}
impl Plain for ibv_qp_init_attr {}
impl Plain for ibv_srq_attr {}
impl Plain for ibv_srq_init_attr {}
impl Plain for ibv_async_event {}
impl Plain for ibv_wc {}
impl Plain for ibv_send_wr {}
impl Plain for ibv_recv_wr {}
impl Plain for ibv_mw_bind {}

/// A device in a list.
pub(super) fn device(open: &Open, name: &str) -> Result<Device, Error> {
    let port = port_attr(open)?;
    let interface = gid_entries(open)?.iter().find_map(|entry| match entry.ndev_ifindex {
        0 => None,
        index => Some((sys::interface_name(index).ok()?, index)),
    });
    Ok(Device::of_kernel(name, open.guid(), interface, &port))
}

/// Limits and identity.
pub(super) fn device_attr(open: &Open, name: &str) -> Result<DeviceAttr, Error> {
    let mut attr = ibv_device_attr::zeroed();
    // SAFETY: an open context, and a place for the answer.
    let code = unsafe { (open.verbs.ibv_query_device)(open.as_ptr(), &raw mut attr) };
    checked("ibv_query_device", code)?;
    // SAFETY: the library ends it with a zero, and it was all zeros before.
    let fw_ver = unsafe { CStr::from_ptr(attr.fw_ver.as_ptr()) };
    // SAFETY: the context is open.
    let vectors = unsafe { (*open.as_ptr()).num_comp_vectors };
    Ok(DeviceAttr {
        name: name.to_owned(),
        fw_ver: fw_ver.to_string_lossy().into_owned(),
        guid: u64::from_be(attr.node_guid),
        sys_image_guid: u64::from_be(attr.sys_image_guid),
        vendor_id: attr.vendor_id,
        vendor_part_id: attr.vendor_part_id,
        hw_ver: attr.hw_ver,
        ports: attr.phys_port_cnt,
        caps: DeviceCaps::from_bits_retain(attr.device_cap_flags),
        limits: limits(&attr),
        max_msg_size: max_msg_size(open)?,
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
        // Completions get their time from us.
        completion_timestamp_mask: u64::MAX,
        core_clock_khz: 1_000_000,
        comp_vectors: count(vectors),
    })
}

fn limits(attr: &ibv_device_attr) -> Limits {
    Limits {
        max_qp: count(attr.max_qp),
        max_qp_wr: count(attr.max_qp_wr),
        max_sge: count(attr.max_sge),
        // Drivers say it only of queue pairs that they have made.
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

fn count(n: c_int) -> u32 {
    u32::try_from(n).unwrap_or(0)
}

fn query_port(open: &Open) -> Result<_compat_ibv_port_attr, Error> {
    let mut attr = _compat_ibv_port_attr::zeroed();
    // SAFETY: an open context, and a place for the answer of the size that this function knows.
    let code = unsafe { (open.verbs.ibv_query_port)(open.as_ptr(), PORT, &raw mut attr) };
    checked("ibv_query_port", code)?;
    Ok(attr)
}

fn max_msg_size(open: &Open) -> Result<u64, Error> {
    Ok(query_port(open)?.max_msg_sz.into())
}

/// The port.
pub(super) fn port_attr(open: &Open) -> Result<PortAttr, Error> {
    let attr = query_port(open)?;
    let mtu = |code: ibv_mtu| u8::try_from(code).ok().and_then(Pmtu::from_code);
    let is_active = attr.state == IBV_PORT_ACTIVE;
    let state = if is_active { PortState::Active } else { PortState::Down };
    let pkeys = (0..attr.pkey_tbl_len).map(|index| pkey(open, index));
    Ok(PortAttr {
        state,
        phys_state: PhysState::from(state),
        max_mtu: mtu(attr.max_mtu).unwrap_or(Pmtu::B4096),
        active_mtu: mtu(attr.active_mtu).unwrap_or(Pmtu::B256),
        max_msg_size: attr.max_msg_sz.into(),
        caps: PortCaps::from_bits_retain(attr.port_cap_flags),
        gids: gids(&gid_entries(open)?),
        gid_table_len: count(attr.gid_tbl_len),
        pkeys: pkeys.collect::<Result<_, _>>()?,
        bad_pkeys: attr.bad_pkey_cntr.into(),
        bad_qkeys: attr.qkey_viol_cntr.into(),
        active_width: LinkWidth::from_code(attr.active_width),
        active_speed: LaneSpeed::from_code(attr.active_speed),
    })
}

fn pkey(open: &Open, index: u16) -> Result<Pkey, Error> {
    let mut key: be16 = 0;
    // SAFETY: an open context, and a place for the answer.
    let code =
        unsafe { (open.verbs.ibv_query_pkey)(open.as_ptr(), PORT, index.into(), &raw mut key) };
    checked("ibv_query_pkey", code)?;
    Ok(Pkey(u16::from_be(key)))
}

/// Entries of the GID table of the port that are in use.
fn gid_entries(open: &Open) -> Result<Vec<ibv_gid_entry>, Error> {
    let mut entries = vec![ibv_gid_entry::zeroed(); MAX_GIDS];
    // SAFETY: an open context, and room for as many entries of this size as it says.
    let found = unsafe {
        (open.verbs._ibv_query_gid_table)(
            open.as_ptr(),
            entries.as_mut_ptr(),
            entries.len(),
            0,
            size_of::<ibv_gid_entry>(),
        )
    };
    let found = usize::try_from(found).map_err(|_| failed("ibv_query_gid_table"))?;
    entries.truncate(found);
    entries.retain(|entry| entry.port_num == PORT.into());
    Ok(entries)
}

/// Addresses by index. Those of RoCE v1, which no peer of ours can reach, are holes.
fn gids(entries: &[ibv_gid_entry]) -> Vec<Gid> {
    let mut gids = Vec::new();
    for entry in entries.iter().filter(|entry| entry.gid_type != IBV_GID_TYPE_ROCE_V1) {
        let index = entry.gid_index as usize;
        if gids.len() <= index {
            gids.resize(index + 1, Gid::default());
        }
        // SAFETY: every bit pattern is an address.
        gids[index] = Gid(unsafe { entry.gid.raw });
    }
    gids
}
