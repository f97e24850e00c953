//! Attributes of the software adapter and its port.

use feroce_engine::{Config, DropCounters, TransportKind};
use feroce_train::GidEntry;
use feroce_wire::{Lid, Pmtu};

use crate::attr::{
    AtomicCap, DeviceAttr, DeviceCaps, LaneSpeed, LinkWidth, PortAttr, PortCaps, PortState,
};
use crate::device::Device;

/// A vendor number that is not assigned to any vendor: it is locally administered.
const VENDOR_ID: u32 = 0xfe_0ce0;

/// Every page size from 4 KiB on: the software adapter has no page table that would limit it.
const PAGE_SIZES: u64 = 0xffff_f000;

/// Entries of the GID table. Programs query every entry, and some open a file for each, so the
/// table is short.
const GID_TABLE: u32 = 16;

/// The exponent of about 130 milliseconds: the thread that acknowledges may have to wait for a
/// processor.
const ACK_DELAY: u8 = 15;

/// What a device that speaks iWARP can do.
const RNIC_CAPS: DeviceCaps = DeviceCaps::CURR_QP_STATE_MOD
    .union(DeviceCaps::PORT_ACTIVE_EVENT)
    .union(DeviceCaps::SYS_IMAGE_GUID)
    .union(DeviceCaps::SRQ_RESIZE)
    .union(DeviceCaps::N_NOTIFY_CQ)
    .union(DeviceCaps::MEM_WINDOW)
    .union(DeviceCaps::MEM_MGT_EXTENSIONS)
    .union(DeviceCaps::MEM_WINDOW_TYPE_2B);

/// What a device with several shards cannot do: a queue pair binds a window in its own shard, and
/// the others would not know of it.
const WINDOW_CAPS: DeviceCaps = DeviceCaps::MEM_WINDOW.union(DeviceCaps::MEM_WINDOW_TYPE_2B);

/// Limits and identity of a device with this configuration and so many shards.
pub(crate) fn device_attr(device: &Device, config: &Config, shards: u8) -> DeviceAttr {
    let limits = config.limits;
    let is_iwarp = config.transport == TransportKind::Iwarp;
    let caps = if is_iwarp { RNIC_CAPS } else { DeviceCaps::all() };
    DeviceAttr {
        name: device.name().to_owned(),
        transport: config.transport,
        fw_ver: env!("CARGO_PKG_VERSION").to_owned(),
        guid: device.guid(),
        sys_image_guid: device.system_guid(),
        vendor_id: VENDOR_ID,
        vendor_part_id: 1,
        hw_ver: 0,
        ports: 1,
        caps: if shards > 1 { caps - WINDOW_CAPS } else { caps },
        limits,
        max_sge_rd: if is_iwarp { 1 } else { limits.max_sge },
        max_msg_size: feroce_engine::MAX_MESSAGE,
        max_mr_size: u64::MAX,
        page_size_cap: PAGE_SIZES,
        max_res_rd_atomic: limits.max_qp.saturating_mul(limits.max_rd_atomic.into()),
        // Atomics are processor instructions, so the adapter could promise atomicity with all
        // accesses. It promises less, because that is what programs are tested with on other
        // software adapters.
        atomic_cap: match is_iwarp && !config.iwarp_extensions {
            true => AtomicCap::None,
            false => AtomicCap::Hca,
        },
        max_mw: if shards > 1 { 0 } else { limits.max_mr },
        max_total_mcast_qp_attach: limits.max_mcast_grp.saturating_mul(limits.max_mcast_qp_attach),
        max_srq_sge: limits.max_sge,
        // iWARP has no partitions.
        max_pkeys: match is_iwarp {
            true => 0,
            false => u16::try_from(config.pkeys.len()).unwrap_or(u16::MAX),
        },
        local_ca_ack_delay: ACK_DELAY,
        completion_timestamp_mask: u64::MAX,
        core_clock_khz: 1_000_000,
        comp_vectors: 1,
        shards,
    }
}

/// The port of a device, as the engine knows it.
pub(crate) fn port_attr(
    device: &Device,
    config: &Config,
    is_up: bool,
    (gids, lid): (&[GidEntry], Lid),
    drops: &DropCounters,
) -> PortAttr {
    let state = if is_up { PortState::Active } else { PortState::Down };
    // Virtual interfaces have no speed.
    let (active_width, active_speed) = width_and_speed(device.speed_mbit().unwrap_or(1000));
    PortAttr {
        state,
        phys_state: state.into(),
        max_mtu: Pmtu::B4096,
        active_mtu: config.port_mtu,
        max_msg_size: feroce_engine::MAX_MESSAGE,
        caps: PortCaps::all(),
        link_layer: config.link_layer,
        lid,
        lmc: 0,
        sm_lid: Lid(0),
        sm_sl: 0,
        subnet_timeout: 0,
        init_type_reply: 0,
        max_vls: 1,
        gids: gids.to_vec(),
        gid_table_len: GID_TABLE.max(gids.len() as u32),
        pkeys: config.pkeys.clone(),
        bad_pkeys: drops.drop_bad_pkey,
        bad_qkeys: drops.drop_bad_qkey,
        active_width,
        active_speed,
    }
}

/// The width and lane speed of InfiniBand that come nearest to an interface, as Linux chooses
/// them for RoCE.
fn width_and_speed(mbit: u32) -> (LinkWidth, LaneSpeed) {
    match mbit {
        0..=1000 => (LinkWidth::X1, LaneSpeed::Sdr),
        1001..=10_000 => (LinkWidth::X1, LaneSpeed::Fdr10),
        10_001..=20_000 => (LinkWidth::X4, LaneSpeed::Ddr),
        20_001..=25_000 => (LinkWidth::X1, LaneSpeed::Edr),
        25_001..=40_000 => (LinkWidth::X4, LaneSpeed::Fdr10),
        40_001..=100_000 => (LinkWidth::X4, LaneSpeed::Edr),
        100_001..=200_000 => (LinkWidth::X4, LaneSpeed::Hdr),
        _ => (LinkWidth::X4, LaneSpeed::Ndr),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn width_and_speed_carry_what_the_interface_carries() {
        let lanes = |width| if width == LinkWidth::X1 { 1.0 } else { 4.0 };
        let gbit = |speed| match speed {
            LaneSpeed::Sdr => 2.5,
            LaneSpeed::Ddr => 5.0,
            LaneSpeed::Qdr | LaneSpeed::Fdr10 => 10.0,
            LaneSpeed::Fdr => 14.0,
            LaneSpeed::Edr => 25.0,
            LaneSpeed::Hdr => 50.0,
            LaneSpeed::Ndr => 100.0,
        };
        for mbit in [100, 1000, 2500, 10_000, 20_000, 25_000, 40_000, 50_000, 100_000, 400_000] {
            let (width, speed) = width_and_speed(mbit);
            let carried = lanes(width) * gbit(speed);
            let wanted = f64::from(mbit) / 1000.0;
            assert!(
                carried >= wanted && carried <= 4.0 * wanted.max(2.5),
                "{mbit} Mb/s: {carried}"
            );
        }
    }
}
