//! The performance management agent (IBTA vol1 16.1): counters of ports.
//!
//! Ports count for ever; a reset remembers where the count was. Counters of 32 bits and fewer stop
//! at their largest value; they and those of 64 bits are reset apart.

use feroce_wire::mad::{
    Attribute, BASE_VERSION, ClassPortInfo, Method, PmMad, PortCounters, PortCountersExtended,
    Status,
};

use crate::counters::Counters;
use crate::node::Node;
use crate::port::Port;

/// All ports of a switch.
const ALL_PORTS: u8 = 255;
/// Counters of 64 bits, those of packets by kind included.
const EXTENDED_WIDTH: u16 = 1 << 9;
/// PortCounters count how long packets wait for credits.
const XMIT_WAIT: u16 = 1 << 12;
/// Port 255 means all ports.
const ALL_PORT_SELECT: u16 = 1 << 8;

/// Answers a request; `None` if it is none.
pub(crate) fn handle(node: &mut Node, request: &PmMad) -> Option<PmMad> {
    let mut response = *request;
    let status = match Method(request.header.method) {
        Method::GET | Method::SET if request.header.base_version != BASE_VERSION => {
            Status::BAD_VERSION
        }
        Method::GET | Method::SET if request.header.class_version != 1 => Status::BAD_VERSION,
        method @ (Method::GET | Method::SET) => {
            let is_set = method == Method::SET;
            match Attribute(request.header.attribute) {
                Attribute::CLASS_PORT_INFO if !is_set => class_port_info(node, &mut response),
                Attribute::PORT_COUNTERS => counters(node, &mut response, is_set),
                Attribute::PORT_COUNTERS_EXTENDED => extended(node, &mut response, is_set),
                _ => Status::BAD_ATTRIBUTE,
            }
        }
        method if method.is_response() => return None,
        _ => Status::BAD_METHOD,
    };
    response.header = request.header.response(status);
    Some(response)
}

fn class_port_info(node: &Node, response: &mut PmMad) -> Status {
    let all = if node.switch.is_some() { ALL_PORT_SELECT } else { 0 };
    let info = ClassPortInfo {
        base_version: BASE_VERSION,
        class_version: 1,
        capability_mask: EXTENDED_WIDTH | XMIT_WAIT | all,
        ..ClassPortInfo::default()
    };
    fill(response, &info.to_bytes());
    Status::OK
}

fn counters(node: &mut Node, response: &mut PmMad, is_set: bool) -> Status {
    let Ok((request, _)) = PortCounters::parse(&response.data) else {
        return Status::BAD_VALUE;
    };
    let Some(ports) = selected(node, request.port_select) else {
        return Status::BAD_VALUE;
    };
    if is_set {
        ports.iter_mut().for_each(|port| reset(port, &request));
    }
    let total = sum(ports, |port| &port.baselines.short);
    fill(response, &short(&total, &request).to_bytes());
    Status::OK
}

fn extended(node: &mut Node, response: &mut PmMad, is_set: bool) -> Status {
    let Ok((request, _)) = PortCountersExtended::parse(&response.data) else {
        return Status::BAD_VALUE;
    };
    let Some(ports) = selected(node, request.port_select) else {
        return Status::BAD_VALUE;
    };
    if is_set {
        ports.iter_mut().for_each(|port| reset_extended(port, &request));
    }
    let total = sum(ports, |port| &port.baselines.long);
    let answer = PortCountersExtended {
        port_select: request.port_select,
        counter_select: request.counter_select,
        xmit_data: total.xmit_words,
        rcv_data: total.rcv_words,
        xmit_packets: total.unicast_xmit + total.multicast_xmit,
        rcv_packets: total.unicast_rcv + total.multicast_rcv,
        unicast_xmit_packets: total.unicast_xmit,
        unicast_rcv_packets: total.unicast_rcv,
        multicast_xmit_packets: total.multicast_xmit,
        multicast_rcv_packets: total.multicast_rcv,
    };
    fill(response, &answer.to_bytes());
    Status::OK
}

/// The ports that a request is about.
fn selected(node: &mut Node, select: u8) -> Option<&mut [Port]> {
    match select {
        ALL_PORTS if node.switch.is_some() => node.ports.get_mut(1..),
        number => node.port_mut(number).map(core::slice::from_mut),
    }
}

/// The counts since the last reset, of several ports together.
fn sum(ports: &[Port], baseline: impl Fn(&Port) -> &Counters) -> Counters {
    ports
        .iter()
        .fold(Counters::default(), |sum, port| sum.plus(&port.counters.since(baseline(port))))
}

/// The counters as they are reported, each as wide as its field.
fn short(total: &Counters, request: &PortCounters) -> PortCounters {
    let narrow = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    let half = |count: u64| u16::try_from(count).unwrap_or(u16::MAX);
    let byte = |count: u64| u8::try_from(count).unwrap_or(u8::MAX);
    PortCounters {
        port_select: request.port_select,
        counter_select: request.counter_select,
        link_downed: byte(total.link_downed),
        rcv_errors: half(total.rcv_errors),
        rcv_switch_relay_errors: half(total.relay_errors),
        xmit_discards: half(total.xmit_discards),
        xmit_constraint_errors: byte(total.xmit_constraint_errors),
        rcv_constraint_errors: byte(total.rcv_constraint_errors),
        xmit_data: narrow(total.xmit_words),
        rcv_data: narrow(total.rcv_words),
        xmit_packets: narrow(total.unicast_xmit + total.multicast_xmit),
        rcv_packets: narrow(total.unicast_rcv + total.multicast_rcv),
        xmit_wait: narrow(total.xmit_wait),
        counter_select_2: request.counter_select_2,
        ..PortCounters::default()
    }
}

/// Makes the selected counters report the values of the request.
fn reset(port: &mut Port, request: &PortCounters) {
    let (start, now) = (&mut port.baselines.short, &port.counters);
    let is_selected = |bit: u32| request.counter_select & (1 << bit) != 0;
    let set = |bit, start: &mut u64, now: u64, value: u64| {
        if is_selected(bit) {
            *start = now.wrapping_sub(value);
        }
    };
    set(2, &mut start.link_downed, now.link_downed, request.link_downed.into());
    set(3, &mut start.rcv_errors, now.rcv_errors, request.rcv_errors.into());
    let relay = request.rcv_switch_relay_errors.into();
    set(5, &mut start.relay_errors, now.relay_errors, relay);
    set(6, &mut start.xmit_discards, now.xmit_discards, request.xmit_discards.into());
    let constraint = request.xmit_constraint_errors.into();
    set(7, &mut start.xmit_constraint_errors, now.xmit_constraint_errors, constraint);
    let constraint = request.rcv_constraint_errors.into();
    set(8, &mut start.rcv_constraint_errors, now.rcv_constraint_errors, constraint);
    set(12, &mut start.xmit_words, now.xmit_words, request.xmit_data.into());
    set(13, &mut start.rcv_words, now.rcv_words, request.rcv_data.into());
    set(14, &mut start.unicast_xmit, now.unicast_xmit, request.xmit_packets.into());
    set(14, &mut start.multicast_xmit, now.multicast_xmit, 0);
    set(15, &mut start.unicast_rcv, now.unicast_rcv, request.rcv_packets.into());
    set(15, &mut start.multicast_rcv, now.multicast_rcv, 0);
    if request.counter_select_2 & 1 != 0 {
        start.xmit_wait = now.xmit_wait.wrapping_sub(request.xmit_wait.into());
    }
}

/// The same for the counters of 64 bits. The packets of all kinds are the sum of the two kinds, so
/// that resetting them resets both.
fn reset_extended(port: &mut Port, request: &PortCountersExtended) {
    let (start, now) = (&mut port.baselines.long, &port.counters);
    let is_selected = |bit: u32| request.counter_select & (1 << bit) != 0;
    let set = |bit, start: &mut u64, now: u64, value: u64| {
        if is_selected(bit) {
            *start = now.wrapping_sub(value);
        }
    };
    set(0, &mut start.xmit_words, now.xmit_words, request.xmit_data);
    set(1, &mut start.rcv_words, now.rcv_words, request.rcv_data);
    set(2, &mut start.unicast_xmit, now.unicast_xmit, request.xmit_packets);
    set(2, &mut start.multicast_xmit, now.multicast_xmit, 0);
    set(3, &mut start.unicast_rcv, now.unicast_rcv, request.rcv_packets);
    set(3, &mut start.multicast_rcv, now.multicast_rcv, 0);
    set(4, &mut start.unicast_xmit, now.unicast_xmit, request.unicast_xmit_packets);
    set(5, &mut start.unicast_rcv, now.unicast_rcv, request.unicast_rcv_packets);
    set(6, &mut start.multicast_xmit, now.multicast_xmit, request.multicast_xmit_packets);
    set(7, &mut start.multicast_rcv, now.multicast_rcv, request.multicast_rcv_packets);
}

/// Writes an attribute over that of the request.
fn fill(response: &mut PmMad, attribute: &[u8]) {
    response.data.fill(0);
    for (out, byte) in response.data.iter_mut().zip(attribute) {
        *out = *byte;
    }
}
