//! The subnet management agent of a node (IBTA vol1 14.2): what it is asked, and what it is told.

mod port_info;
mod tables;

use feroce_train::Instant;
use feroce_wire::Lid;
use feroce_wire::mad::{
    Attribute, BASE_VERSION, BadMkey, Method, PhysicalState, Smp, Status, SwitchInfo, TrapNumber,
};

use crate::node::Node;
use crate::notify::KIND_SECURITY;
use crate::port::Change;

/// What the subnet must do after a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    /// The link of a port goes down, into this state.
    LinkDown(u8, PhysicalState),
    /// The link of a port may come up again.
    LinkPolls(u8),
    /// A program behind a port wants to know.
    Changed(u8, Change),
}

/// A packet with what is known about its arrival.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub(crate) smp: &'a Smp,
    /// Port of arrival; 0 if a program behind a switch sent it.
    pub(crate) arrived_by: u8,
    pub(crate) is_set: bool,
    /// Whether the requester has shown the M_Key.
    pub(crate) is_trusted: bool,
}

/// Answers a packet. `None`: no answer, because it is none or because the M_Key is wrong.
pub(crate) fn handle(
    node: &mut Node,
    now: Instant,
    slid: Lid,
    arrived_by: u8,
    smp: &Smp,
    effects: &mut dyn FnMut(Effect),
) -> Option<Smp> {
    let header = smp.header;
    let method = Method(header.method);
    let end_port = node.end_port(arrived_by);
    let is_trusted = check_m_key(node, now, slid, end_port, smp)?;
    if method == Method::TRAP_REPRESS {
        node.traps.repress(header.transaction);
        return None;
    }
    let mut response = *smp;
    let status = if header.base_version != BASE_VERSION || header.class_version != 1 {
        Status::BAD_VERSION
    } else if method == Method::GET || method == Method::SET {
        let is_set = method == Method::SET;
        let request = Request { smp, arrived_by, is_set, is_trusted };
        attribute(node, &request, &mut response, effects)
    } else {
        Status::BAD_METHOD
    };
    // The direction of a directed route is in the status, and is the affair of the caller.
    response.header = header.response(status);
    response.m_key = 0;
    Some(response)
}

fn attribute(
    node: &mut Node,
    request: &Request<'_>,
    response: &mut Smp,
    effects: &mut dyn FnMut(Effect),
) -> Status {
    let arrived_by = request.arrived_by;
    let end_port = node.end_port(arrived_by);
    match (Attribute(request.smp.header.attribute), request.is_set) {
        (Attribute::NODE_DESCRIPTION, false) => {
            fill(response, &node.description.to_bytes());
            Status::OK
        }
        (Attribute::NODE_INFO, false) => {
            let mut info = node.info;
            info.local_port = arrived_by;
            info.port_guid = node.port(end_port).map_or(0, |port| port.guids[0]);
            fill(response, &info.to_bytes());
            Status::OK
        }
        (Attribute::SWITCH_INFO, is_set) => switch_info(node, is_set, request, response),
        (Attribute::PORT_INFO, _) => port_info::handle(node, request, response, effects),
        (Attribute::GUID_INFO, _) => tables::guids(node, request, response, effects),
        (Attribute::PKEY_TABLE, _) => tables::pkeys(node, request, response, effects),
        (Attribute::SL_TO_VL, _) => tables::sl_to_vl(node, request, response),
        (Attribute::VL_ARBITRATION, _) => tables::vl_arbitration(node, request, response),
        (Attribute::LINEAR_FORWARDING, _) => tables::linear(node, request, response),
        (Attribute::MULTICAST_FORWARDING, _) => tables::multicast(node, request, response),
        _ => Status::BAD_ATTRIBUTE,
    }
}

/// The switch as a whole.
fn switch_info(node: &mut Node, is_set: bool, request: &Request<'_>, response: &mut Smp) -> Status {
    let Some(switch) = &mut node.switch else {
        return Status::BAD_ATTRIBUTE;
    };
    let mut status = Status::OK;
    if let (true, Ok((wanted, _))) = (is_set, SwitchInfo::parse(&request.smp.data)) {
        let info = &mut switch.info;
        if wanted.linear_top < info.linear_cap {
            info.linear_top = wanted.linear_top;
        } else {
            status = Status::BAD_VALUE;
        }
        info.default_port = wanted.default_port;
        info.default_multicast_primary = wanted.default_multicast_primary;
        info.default_multicast_not_primary = wanted.default_multicast_not_primary;
        info.life_time = wanted.life_time;
        info.multicast_top = wanted.multicast_top;
        // Writing the bit clears it.
        info.port_state_change &= !wanted.port_state_change;
    }
    fill(response, &switch.info.to_bytes());
    status
}

/// Checks the M_Key (IBTA vol1 14.2.4). `None`: the packet must be dropped; otherwise whether the
/// requester is one that has the key.
fn check_m_key(node: &mut Node, now: Instant, slid: Lid, end_port: u8, smp: &Smp) -> Option<bool> {
    let port = node.port_mut(end_port)?;
    if port.info.m_key == 0 || port.info.m_key == smp.m_key {
        // The owner of the key has shown that it lives.
        port.lease_ends = None;
        return Some(true);
    }
    let is_get = Method(smp.header.method) == Method::GET;
    if is_get && port.info.m_key_protect < 2 {
        return Some(false);
    }
    port.info.m_key_violations = port.info.m_key_violations.saturating_add(1);
    if port.info.m_key_lease > 0 && port.lease_ends.is_none() {
        let lease_ns = u64::from(port.info.m_key_lease) * 1_000_000_000;
        port.lease_ends = Some(now.plus_nanos(lease_ns));
    }
    let lid = port.info.lid;
    node.notify(now, end_port, KIND_SECURITY, TrapNumber::BAD_M_KEY, details(lid, slid, smp));
    None
}

/// What a trap says of a packet without the M_Key.
fn details(lid: Lid, slid: Lid, smp: &Smp) -> [u8; BadMkey::LEN] {
    let route = smp.directed_route();
    let hop_count = route.map_or(0, |route| route.hop_count);
    let mut trap = BadMkey {
        lid,
        dr_slid: if route.is_some() { smp.dr_slid } else { slid },
        method: Method(smp.header.method),
        attribute: Attribute(smp.header.attribute),
        modifier: smp.header.modifier,
        m_key: smp.m_key,
        is_directed: route.is_some(),
        ..BadMkey::default()
    };
    let kept = trap.return_path.len().min(usize::from(hop_count));
    trap.is_truncated = kept < usize::from(hop_count);
    trap.hop_count = kept as u8;
    for (out, port) in trap.return_path.iter_mut().zip(smp.return_path.iter().skip(1)).take(kept) {
        *out = *port;
    }
    trap.to_bytes()
}

/// Writes an attribute over that of the request.
fn fill(response: &mut Smp, attribute: &[u8]) {
    response.data.fill(0);
    for (out, byte) in response.data.iter_mut().zip(attribute) {
        *out = *byte;
    }
}
