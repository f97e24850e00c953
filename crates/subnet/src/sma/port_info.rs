//! State and settings of a port: PortInfo (IBTA vol1 14.2.5.6).

use feroce_wire::Lid;
use feroce_wire::mad::{PhysicalState, PortInfo, PortState, Smp, Status};

use super::{Effect, Request, fill};
use crate::node::Node;
use crate::port::{Change, Port};

/// The first LID of multicast groups.
const FIRST_MULTICAST: u16 = 0xc000;

pub(super) fn handle(
    node: &mut Node,
    request: &Request<'_>,
    response: &mut Smp,
    effects: &mut dyn FnMut(Effect),
) -> Status {
    let is_switch = node.switch.is_some();
    let Some(number) = port_number(node, request) else {
        return Status::BAD_VALUE;
    };
    let Some(port) = node.port_mut(number) else {
        return Status::BAD_VALUE;
    };
    let mut status = Status::OK;
    if let (true, Ok((wanted, _))) = (request.is_set, PortInfo::parse(&request.smp.data)) {
        let before = port.info;
        // An end port has LIDs and keys: the ports of an adapter, and port 0 of a switch.
        let is_end_port = !is_switch || number == 0;
        status = set(port, &wanted, is_switch, is_end_port);
        if status == Status::OK {
            status = set_state(port, number, &wanted, effects);
        }
        if port.info.m_key != before.m_key {
            port.lease_ends = None;
        }
        if is_end_port {
            tell_changes(&before, port, &wanted, number, effects);
        }
    }
    let mut info = port.info;
    info.local_port = request.arrived_by;
    if !request.is_trusted && info.m_key_protect > 0 {
        info.m_key = 0;
    }
    fill(response, &info.to_bytes());
    status
}

/// The port that the modifier names; 0 means the port of arrival at an adapter.
fn port_number(node: &Node, request: &Request<'_>) -> Option<u8> {
    let number = u8::try_from(request.smp.header.modifier & 0x7fff_ffff).ok()?;
    match (&node.switch, number) {
        (None, 0) => Some(request.arrived_by),
        _ => Some(number),
    }
}

/// Takes over settings. Those that must not be are left as they are, and spoil the status.
fn set(port: &mut Port, wanted: &PortInfo, is_switch: bool, is_end_port: bool) -> Status {
    let mut is_valid = true;
    let info = &mut port.info;
    if is_end_port {
        info.m_key = wanted.m_key;
        info.m_key_lease = wanted.m_key_lease;
        info.m_key_protect = wanted.m_key_protect;
        info.gid_prefix = wanted.gid_prefix;
        let is_unicast = |lid: Lid| lid != Lid(0) && lid.0 < FIRST_MULTICAST;
        if is_unicast(wanted.lid) && is_unicast(wanted.sm_lid) {
            (info.lid, info.sm_lid, info.lmc) = (wanted.lid, wanted.sm_lid, wanted.lmc);
            info.sm_sl = wanted.sm_sl;
        } else {
            is_valid = false;
        }
        info.client_reregister = false;
        info.subnet_timeout = wanted.subnet_timeout;
        info.multicast_pkey_trap_suppression = wanted.multicast_pkey_trap_suppression;
        info.init_type_reply = wanted.init_type_reply;
    }
    // Writing anything resets these.
    info.m_key_violations = wanted.m_key_violations;
    info.p_key_violations = wanted.p_key_violations;
    info.q_key_violations = wanted.q_key_violations;
    // Zero and all ones: no change, and all that the port has.
    match wanted.link_width_enabled {
        0 => {}
        0xff => info.link_width_enabled = info.link_width_supported,
        widths if widths & !info.link_width_supported == 0 => info.link_width_enabled = widths,
        _ => is_valid = false,
    }
    match wanted.link_speed_enabled {
        0 => {}
        0xf => info.link_speed_enabled = info.link_speed_supported,
        speeds if speeds & !info.link_speed_supported == 0 => info.link_speed_enabled = speeds,
        _ => is_valid = false,
    }
    if (1..=info.mtu_cap).contains(&wanted.neighbor_mtu) {
        info.neighbor_mtu = wanted.neighbor_mtu;
    } else {
        is_valid = false;
    }
    match wanted.operational_vls {
        0 => {}
        lanes if lanes <= info.vl_cap => info.operational_vls = lanes,
        _ => is_valid = false,
    }
    match wanted.down_default {
        PhysicalState::NO_CHANGE => {}
        state @ (PhysicalState::SLEEP | PhysicalState::POLLING) => info.down_default = state,
        _ => is_valid = false,
    }
    info.vl_high_limit = wanted.vl_high_limit;
    info.local_phy_errors = wanted.local_phy_errors;
    info.overrun_errors = wanted.overrun_errors;
    if is_switch {
        info.vl_stall_count = wanted.vl_stall_count;
        info.hoq_life = wanted.hoq_life;
        info.partition_enforcement_inbound = wanted.partition_enforcement_inbound;
        info.partition_enforcement_outbound = wanted.partition_enforcement_outbound;
        info.filter_raw_inbound = wanted.filter_raw_inbound;
        info.filter_raw_outbound = wanted.filter_raw_outbound;
    }
    if is_valid { Status::OK } else { Status::BAD_VALUE }
}

/// Changes the state of the link. The subnet manager leads a port from `INIT` over `ARMED` to
/// `ACTIVE`, and may take the link down.
fn set_state(
    port: &mut Port,
    number: u8,
    wanted: &PortInfo,
    effects: &mut dyn FnMut(Effect),
) -> Status {
    let is_up = port.is_up();
    match (port.info.state, wanted.state) {
        (_, PortState::NO_CHANGE) => {}
        (PortState::INIT | PortState::ARMED, PortState::ARMED) => {
            port.info.state = PortState::ARMED;
        }
        (PortState::ARMED | PortState::ACTIVE, PortState::ACTIVE) => {
            port.info.state = PortState::ACTIVE;
        }
        (_, PortState::DOWN) => {
            let state = match wanted.physical_state {
                PhysicalState::NO_CHANGE => port.info.down_default,
                state => state,
            };
            effects(Effect::LinkDown(number, state));
            return Status::OK;
        }
        _ => return Status::BAD_VALUE,
    }
    match wanted.physical_state {
        PhysicalState::NO_CHANGE => {}
        state @ (PhysicalState::DISABLED | PhysicalState::SLEEP) => {
            effects(Effect::LinkDown(number, state));
        }
        PhysicalState::POLLING if !is_up => effects(Effect::LinkPolls(number)),
        PhysicalState::POLLING => effects(Effect::LinkDown(number, PhysicalState::POLLING)),
        _ => return Status::BAD_VALUE,
    }
    Status::OK
}

/// Tells the program behind an end port what it may want to know.
fn tell_changes(
    before: &PortInfo,
    port: &Port,
    wanted: &PortInfo,
    number: u8,
    effects: &mut dyn FnMut(Effect),
) {
    let after = &port.info;
    let changes = [
        (Change::Lid, before.lid != after.lid || before.lmc != after.lmc),
        (Change::Sm, before.sm_lid != after.sm_lid || before.sm_sl != after.sm_sl),
        (Change::Gid, before.gid_prefix != after.gid_prefix),
        (Change::Active, before.state != after.state && after.state == PortState::ACTIVE),
        (Change::Reregister, wanted.client_reregister),
    ];
    for (change, has_happened) in changes {
        if has_happened {
            effects(Effect::Changed(number, change));
        }
    }
}
