//! Queries of devices and ports.

use core::ffi::{c_char, c_int, c_uint};
use core::ptr;

use feroce::{Framing, GidEntry, LinkLayer, PortAttr};

use super::context::Context;
use super::shared::MAX_DM_SIZE;
use crate::abi::*;
use crate::errno::{Errno, code, status};
use crate::zeroed::Zeroed;

/// Longest period and greatest count that completions can be held back for.
const MAX_MODERATION: u16 = u16::MAX;

/// Everything that can be done with memory that is paged in on demand: all memory is.
const ODP_CAPS: u32 = IBV_ODP_SUPPORT_SEND
    | IBV_ODP_SUPPORT_RECV
    | IBV_ODP_SUPPORT_WRITE
    | IBV_ODP_SUPPORT_READ
    | IBV_ODP_SUPPORT_ATOMIC
    | IBV_ODP_SUPPORT_SRQ_RECV;

pub(crate) unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    // SAFETY: ibv_query_device(3): `context` is a live context.
    let context = unsafe { Context::behind(context) };
    // SAFETY: ibv_query_device(3): `attr` points to room for the attributes.
    unsafe { attr.write(device_attr(context)) };
    0
}

fn device_attr(context: &Context) -> ibv_device_attr {
    let facts = context.adapter().attr();
    let limits = &facts.limits;
    let int = |n: u32| c_int::try_from(n).unwrap_or(c_int::MAX);
    let mut attr = ibv_device_attr::zeroed();
    for (to, from) in attr.fw_ver.iter_mut().zip(facts.fw_ver.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
    ibv_device_attr {
        node_guid: facts.guid.to_be(),
        sys_image_guid: facts.sys_image_guid.to_be(),
        max_mr_size: facts.max_mr_size,
        page_size_cap: facts.page_size_cap,
        vendor_id: facts.vendor_id,
        vendor_part_id: facts.vendor_part_id,
        hw_ver: facts.hw_ver,
        max_qp: int(limits.max_qp),
        max_qp_wr: int(limits.max_qp_wr),
        device_cap_flags: facts.caps.bits(),
        max_sge: int(limits.max_sge),
        max_sge_rd: int(facts.max_sge_rd),
        max_cq: int(limits.max_cq),
        max_cqe: int(limits.max_cqe),
        max_mr: int(limits.max_mr),
        max_pd: int(limits.max_pd),
        max_qp_rd_atom: limits.max_rd_atomic.into(),
        max_res_rd_atom: int(facts.max_res_rd_atomic),
        max_qp_init_rd_atom: limits.max_rd_atomic.into(),
        atomic_cap: facts.atomic_cap as c_uint,
        max_mw: int(facts.max_mw),
        max_mcast_grp: int(limits.max_mcast_grp),
        max_mcast_qp_attach: int(limits.max_mcast_qp_attach),
        max_total_mcast_qp_attach: int(facts.max_total_mcast_qp_attach),
        max_ah: int(limits.max_ah),
        max_srq: int(limits.max_srq),
        max_srq_wr: int(limits.max_srq_wr),
        max_srq_sge: int(facts.max_srq_sge),
        max_pkeys: facts.max_pkeys,
        local_ca_ack_delay: facts.local_ca_ack_delay,
        phys_port_cnt: facts.ports,
        ..attr
    }
}

pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    // SAFETY: ibv_query_device_ex(3): `context` is a live context.
    let context = unsafe { Context::behind(context) };
    // SAFETY: ibv_query_device_ex(3): `input` is NULL or points to an input structure.
    let input = unsafe { input.as_ref() };
    if input.is_some_and(|input| input.comp_mask != 0) {
        return code(Err(Errno::INVALID));
    }
    if attr_size < size_of::<ibv_device_attr>() {
        return code(Err(Errno::INVALID));
    }
    let facts = context.adapter().attr();
    let mut known = ibv_device_attr_ex::zeroed();
    known.orig_attr = device_attr(context);
    known.odp_caps.general_caps = (IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT).into();
    known.odp_caps.per_transport_caps = ibv_odp_caps__per_transport_caps {
        rc_odp_caps: ODP_CAPS,
        uc_odp_caps: ODP_CAPS & !(IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC),
        ud_odp_caps: IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV,
    };
    known.xrc_odp_caps = ODP_CAPS;
    known.completion_timestamp_mask = facts.completion_timestamp_mask;
    known.hca_core_clock = facts.core_clock_khz;
    known.device_cap_flags_ex = facts.caps.bits().into();
    known.cq_mod_caps =
        ibv_cq_moderation_caps { max_cq_count: MAX_MODERATION, max_cq_period: MAX_MODERATION };
    known.max_dm_size = MAX_DM_SIZE;
    known.phys_port_cnt_ex = facts.ports.into();
    // SAFETY: the inline function of `verbs.h` passes the size of the structure to which `attr`
    // points.
    unsafe { give_sized(&known, attr, attr_size) };
    0
}

/// Copies as much of an answer as the program has room for: its structure may be older and
/// shorter, or newer and longer, and then the rest is zero.
///
/// # Safety
/// `place` points to `size` bytes.
unsafe fn give_sized<T: Copy>(answer: &T, place: *mut T, size: usize) {
    let known = size.min(size_of::<T>());
    let bytes: *mut u8 = place.cast();
    // SAFETY: no more than either has.
    unsafe { ptr::copy_nonoverlapping(ptr::from_ref(answer).cast(), bytes, known) };
    // SAFETY: within what the caller has, or at its end.
    let rest = unsafe { bytes.add(known) };
    // SAFETY: to the end of what the caller has.
    unsafe { rest.write_bytes(0, size - known) };
}

pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    attr_len: usize,
) -> c_int {
    // SAFETY: ibv_query_port(3): `context` is a live context.
    let context = unsafe { Context::behind(context) };
    if port != 1 {
        return code(Err(Errno::INVALID));
    }
    // SAFETY: the inline function of `verbs.h` passes the size of the structure to which `attr`
    // points.
    unsafe { give_sized(&port_attr(&context.adapter().port()), attr, attr_len) };
    0
}

/// The speed of the port in units of 100 Mb/s, which is that of its interface.
pub(crate) unsafe extern "C" fn ibv_query_port_speed(
    context: *mut ibv_context,
    port: u32,
    place: *mut u64,
) -> c_int {
    // SAFETY: ibv_query_port_speed(3): `context` is a live context.
    let context = unsafe { Context::behind(context) };
    if port != 1 {
        return code(Err(Errno::INVALID));
    }
    let mbit = context.adapter().device().speed_mbit().unwrap_or(1000);
    // SAFETY: ibv_query_port_speed(3): `place` points to room for the speed.
    unsafe { *place = u64::from(mbit / 100) };
    0
}

/// The version for programs that were built before the structure grew: they have room for the old
/// structure only.
pub(crate) unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut _compat_ibv_port_attr,
) -> c_int {
    // SAFETY: the old structure is the beginning of the new one, and no more of it is written.
    unsafe { query_port(context, port, attr.cast(), size_of::<_compat_ibv_port_attr>()) }
}

fn port_attr(facts: &PortAttr) -> ibv_port_attr {
    let count = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    let flags = match facts.link_layer {
        LinkLayer::Ethernet => IBV_QPF_GRH_REQUIRED,
        LinkLayer::InfiniBand => 0,
    };
    let attr = ibv_port_attr::zeroed();
    ibv_port_attr {
        state: facts.state as c_uint,
        max_mtu: convert::mtu(facts.max_mtu),
        active_mtu: convert::mtu(facts.active_mtu),
        gid_tbl_len: c_int::try_from(facts.gid_table_len).unwrap_or(c_int::MAX),
        port_cap_flags: facts.caps.bits(),
        max_msg_sz: count(facts.max_msg_size),
        bad_pkey_cntr: count(facts.bad_pkeys),
        qkey_viol_cntr: count(facts.bad_qkeys),
        pkey_tbl_len: u16::try_from(facts.pkeys.len()).unwrap_or(u16::MAX),
        max_vl_num: facts.max_vls,
        active_width: facts.active_width as u8,
        active_speed: facts.active_speed as u8,
        phys_state: facts.phys_state as u8,
        lid: facts.lid.0,
        lmc: facts.lmc,
        sm_lid: facts.sm_lid.0,
        sm_sl: facts.sm_sl,
        subnet_timeout: facts.subnet_timeout,
        init_type_reply: facts.init_type_reply,
        link_layer: convert::link_layer(facts.link_layer) as u8,
        flags,
        active_speed_ex: facts.active_speed as u32,
        ..attr
    }
}

/// The entry at an index of the GID table; it may be empty.
fn gid_at(context: &Context, port: u32, index: usize) -> Result<GidEntry, Errno> {
    let facts = context.adapter().port();
    if port != 1 || index >= facts.gid_table_len as usize {
        return Err(Errno::INVALID);
    }
    Ok(facts.gids.get(index).copied().unwrap_or_default())
}

pub(crate) unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    // SAFETY: ibv_query_gid(3): `context` is a live context.
    let context = unsafe { Context::behind(context) };
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    status(gid_at(context, port.into(), index).map(|found| {
        // SAFETY: ibv_query_gid(3): `gid` points to room for the answer.
        unsafe { gid.write(ibv_gid { raw: found.gid.0 }) };
    }))
}

/// The GID type as sysfs reports it, where InfiniBand and RoCE v1 are the same type.
pub(crate) unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: c_uint,
    kind: *mut ibv_gid_type_sysfs,
) -> c_int {
    // SAFETY: ibv_query_gid_type(3): `context` is a live context.
    let context = unsafe { Context::behind(context) };
    status(gid_at(context, port.into(), index as usize).map(|entry| {
        let found = match entry.framing {
            Framing::RoceV2 => IBV_GID_TYPE_SYSFS_ROCE_V2,
            Framing::RoceV1 | Framing::InfiniBand => IBV_GID_TYPE_SYSFS_IB_ROCE_V1,
        };
        // SAFETY: ibv_query_gid_type(3): `kind` points to room for the answer.
        unsafe { kind.write(found) };
    }))
}

/// An entry of the GID table as verbs show it.
fn gid_entry(context: &Context, index: usize, entry: GidEntry) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: entry.gid.0 },
        gid_index: u32::try_from(index).unwrap_or(u32::MAX),
        port_num: 1,
        gid_type: convert::gid_type(entry.framing),
        ndev_ifindex: context.adapter().device().interface_index().unwrap_or(0),
    }
}

pub(crate) unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    // SAFETY: ibv_query_gid_ex(3): `context` is a live context.
    let context = unsafe { Context::behind(context) };
    if flags != 0 {
        return code(Err(Errno::UNSUPPORTED));
    }
    let index = index as usize;
    code(gid_at(context, port, index).and_then(|found| {
        if found.is_empty() {
            return Err(Errno(libc::ENODATA));
        }
        // SAFETY: the inline function of `verbs.h` passes the size of the structure to which
        // `entry` points.
        unsafe { give_sized(&gid_entry(context, index, found), entry, entry_size) };
        Ok(())
    }))
}

pub(crate) unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    // SAFETY: ibv_query_gid_table(3): `context` is a live context.
    let context = unsafe { Context::behind(context) };
    if flags != 0 {
        return -(libc::EOPNOTSUPP as isize);
    }
    let gids = context.adapter().port().gids;
    let there = gids.iter().enumerate().filter(|(_, entry)| !entry.is_empty());
    if there.clone().count() > max_entries {
        return -(libc::EINVAL as isize);
    }
    let mut written = 0;
    for (index, &entry) in there {
        // SAFETY: `entries` points to `max_entries` entries of `entry_size` bytes, and `written` is
        // less than that.
        let place = unsafe { entries.byte_add(written * entry_size) };
        // SAFETY: `place` points to an entry of `entry_size` bytes: `written` is less than
        // `max_entries`.
        unsafe { give_sized(&gid_entry(context, index, entry), place, entry_size) };
        written += 1;
    }
    written.cast_signed()
}

pub(crate) unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut be16,
) -> c_int {
    // SAFETY: ibv_query_pkey(3): `context` is a live context.
    let context = unsafe { Context::behind(context) };
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    let found = context.adapter().port().pkeys.get(index).copied().filter(|_| port == 1);
    status(found.ok_or(Errno::INVALID).map(|found| {
        // SAFETY: ibv_query_pkey(3): `pkey` points to room for the answer.
        unsafe { pkey.write(found.0.to_be()) };
    }))
}

pub(crate) unsafe extern "C" fn ibv_get_pkey_index(
    context: *mut ibv_context,
    port: u8,
    pkey: be16,
) -> c_int {
    // SAFETY: ibv_get_pkey_index(3): `context` is a live context.
    let context = unsafe { Context::behind(context) };
    let wanted = u16::from_be(pkey);
    let pkeys = context.adapter().port().pkeys;
    let found = pkeys.iter().position(|key| key.0 == wanted).filter(|_| port == 1);
    found.and_then(|index| c_int::try_from(index).ok()).unwrap_or_else(|| {
        crate::errno::set(libc::EINVAL);
        -1
    })
}

/// The time on the clock that timestamps are taken from.
pub(crate) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    // SAFETY: ibv_query_rt_values_ex(3): `context` is a live context.
    let context = unsafe { Context::behind(context) };
    // SAFETY: ibv_query_rt_values_ex(3): `values` points to values, whose mask says which the
    // caller wants.
    let wanted = unsafe { (*values).comp_mask };
    if wanted & !IBV_VALUES_MASK_RAW_CLOCK != 0 {
        return code(Err(Errno::INVALID));
    }
    let now = context.adapter().now().as_nanos();
    let raw_clock = libc::timespec {
        tv_sec: (now / 1_000_000_000).cast_signed(),
        tv_nsec: (now % 1_000_000_000).cast_signed(),
    };
    // SAFETY: ibv_query_rt_values_ex(3): `values` points to room for the answer.
    unsafe { values.write(ibv_values_ex { comp_mask: wanted, raw_clock }) };
    0
}
