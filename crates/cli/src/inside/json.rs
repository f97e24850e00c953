//! Snapshots as JSON.

use feroce::watch::{ConnectionSnapshot, CqSnapshot, QpSnapshot, Snapshot};
use serde_json::{Map, Value, json};

use super::{Look, qp_state, qp_type};

/// Everything that was seen.
pub(super) fn all(look: &Look) -> Value {
    look.devices.iter().map(|device| of_device(look.program(device), device)).collect()
}

fn of_device(program: &str, device: &Snapshot) -> Value {
    let addresses: Vec<String> =
        device.addresses.iter().map(|gid| gid.to_ip().to_string()).collect();
    json!({
        "pid": device.pid,
        "program": program,
        "device": device.device,
        "addresses": addresses,
        "age_ns": device.age_ns,
        "totals": counters(device.totals.iter()),
        "counters": device.counters,
        "drops": device.drops,
        "link": device.link,
        "fault": device.fault,
        "pds": device.pds,
        "mrs": device.mrs,
        "mr_bytes": device.mr_bytes,
        "srqs": device.srqs,
        "ahs": device.ahs,
        "qps": device.qps.iter().map(of_qp).collect::<Vec<_>>(),
        "cqs": device.cqs.iter().map(of_cq).collect::<Vec<_>>(),
        "connections": device.connections.iter().map(of_connection).collect::<Vec<_>>(),
    })
}

fn counters(all: impl Iterator<Item = (&'static str, u64)>) -> Value {
    Value::Object(all.map(|(name, n)| (name.to_owned(), n.into())).collect::<Map<_, _>>())
}

fn of_qp(qp: &QpSnapshot) -> Value {
    let mut value = counters(qp.counters.iter());
    let peer = qp.peer.map(|(gid, qpn)| json!({ "address": gid.to_ip(), "qpn": qpn.get() }));
    value["qpn"] = qp.qpn.get().into();
    value["type"] = qp_type(qp).into();
    value["state"] = qp_state(qp).into();
    value["peer"] = peer.into();
    value["waiting"] = qp.waiting.into();
    value["rtt_ns"] = qp.rtt_ns.into();
    value["window"] = qp.window.into();
    value
}

fn of_cq(cq: &CqSnapshot) -> Value {
    json!({ "number": cq.number, "depth": cq.depth, "waiting": cq.waiting, "users": cq.users })
}

fn of_connection(connection: &ConnectionSnapshot) -> Value {
    json!({
        "state": connection.state,
        "qpn": connection.qpn.map(|qpn| qpn.get()),
        "local": connection.local,
        "peer": connection.peer,
    })
}
