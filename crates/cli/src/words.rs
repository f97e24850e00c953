//! Packets as text and as JSON: colours, labels, fields. The names are those of the wire crate.

use feroce::wire::{Exts, Packet, Service, Syndrome};
use serde_json::{Map, Value, json};

use crate::style::Ink;

/// The colour of a packet: by requester or responder, or for an error.
pub(crate) fn ink(packet: &Packet<'_>) -> Ink {
    match packet.exts.aeth.map(|aeth| aeth.syndrome) {
        Some(Syndrome::Ack { .. }) => Ink::Answer,
        Some(_) => Ink::Bad,
        None if packet.bth.opcode.decode().is_some_and(|(_, op)| op.is_response()) => Ink::Answer,
        None => Ink::Request,
    }
}

/// A time in µs, ms or s, depending on its length.
pub(crate) fn duration(ns: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "for people to read")]
    let ns_f = ns as f64;
    match ns {
        0..10_000 => format!("{:.1} µs", ns_f / 1e3),
        10_000..1_000_000 => format!("{:.0} µs", ns_f / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", ns_f / 1e6),
        _ => format!("{:.3} s", ns_f / 1e9),
    }
}

/// Flags and extension headers, most important first.
pub(crate) fn notes(packet: &Packet<'_>) -> Vec<String> {
    packet.notes().map(|note| note.to_string()).collect()
}

/// A queue pair number.
pub(crate) fn qpn(number: u32) -> String {
    format!("{number:#x}")
}

/// One line for an arrow: name, number, length.
pub(crate) fn label(packet: &Packet<'_>, payload_len: usize) -> String {
    let name = packet.name().replace(" with Immediate", "+imm").replace(" with Invalidate", "+inv");
    let mut parts = vec![name];
    if packet.bth.opcode.decode().is_some_and(|(service, _)| service != Service::Cnp) {
        parts.push(format!("PSN {}", packet.bth.psn.get()));
    }
    if payload_len > 0 {
        parts.push(format!("{payload_len} B"));
    }
    parts.join(" · ")
}

/// All header fields of a packet, as JSON.
pub(crate) fn json(packet: &Packet<'_>, payload_len: usize) -> Map<String, Value> {
    let bth = &packet.bth;
    let mut map = Map::new();
    let mut put = |key: &str, value: Value| map.insert(key.to_owned(), value);
    if let Some((s, o)) = bth.opcode.decode() {
        put("service", json!(s.name()));
        put("op", json!(o.name()));
    }
    put("name", json!(packet.name()));
    put("opcode", json!(bth.opcode.0));
    put("dest_qp", json!(bth.dest_qp.get()));
    put("psn", json!(bth.psn.get()));
    put("pkey", json!(bth.pkey.0));
    put("ack_req", json!(bth.ack_req));
    put("solicited", json!(bth.solicited));
    put("fecn", json!(bth.fecn));
    put("becn", json!(bth.becn));
    put("payload_bytes", json!(payload_len));
    map.append(&mut exts_json(&packet.exts));
    map
}

fn exts_json(exts: &Exts) -> Map<String, Value> {
    let mut map = Map::new();
    let mut put = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            map.insert(key.to_owned(), value);
        }
    };
    put("deth", exts.deth.map(|h| json!({ "qkey": h.qkey.0, "src_qp": h.src_qp.get() })));
    put("xrceth", exts.xrceth.map(|h| json!({ "srqn": h.srqn.get() })));
    put(
        "feth",
        exts.feth.map(|h| {
            json!({
        "placement": h.placement.bits(), "selectivity": h.selectivity.bits() })
        }),
    );
    put("reth", exts.reth.map(|h| json!({ "va": h.va, "rkey": h.rkey.0, "len": h.len })));
    put(
        "atomic_eth",
        exts.atomic.map(|h| {
            json!({
        "va": h.va, "rkey": h.rkey.0, "swap_add": h.swap_add, "compare": h.compare })
        }),
    );
    put(
        "aeth",
        exts.aeth.map(|h| {
            json!({
        "syndrome": h.syndrome.to_u8(), "msn": h.msn.get(), "means": h.to_string() })
        }),
    );
    put("atomic_ack_eth", exts.atomic_ack.map(|h| json!({ "original": h.original })));
    put("immediate", exts.imm.map(|h| json!(h.imm.0)));
    put("invalidates", exts.ieth.map(|h| json!(h.rkey.0)));
    map
}

#[cfg(test)]
mod tests {
    use feroce::wire::{Aeth, AtomicEth, Bth, CreditCode, Msn, NakCode, Op, Opcode};
    use feroce::{Psn, Qpn, Rkey};

    use super::*;

    fn packet(op: Op, exts: Exts) -> Packet<'static> {
        Packet::new(Bth::new(Opcode::new(Service::Rc, op), Qpn::new(7), Psn::new(9)), exts, &[])
    }

    #[test]
    fn the_colour_says_who_speaks_and_whether_it_is_bad() {
        let ack = |syndrome| {
            let aeth = Some(Aeth { syndrome, msn: Msn::new(3) });
            ink(&packet(Op::Acknowledge, Exts { aeth, ..Exts::NONE }))
        };
        assert_eq!(ack(Syndrome::Ack { credits: CreditCode::NONE }), Ink::Answer);
        assert_eq!(ack(Syndrome::Nak(NakCode::RemoteAccess)), Ink::Bad);
        assert_eq!(ink(&packet(Op::ReadResponseMiddle, Exts::NONE)), Ink::Answer);
        assert_eq!(ink(&packet(Op::SendMiddle, Exts::NONE)), Ink::Request);
    }

    #[test]
    fn programs_get_every_field() {
        let eth = AtomicEth { va: 0x10, rkey: Rkey(5), swap_add: 3, compare: 2 };
        let json = json(&packet(Op::CmpSwap, Exts { atomic: Some(eth), ..Exts::NONE }), 0);
        assert_eq!(json["op"], "COMPARE & SWAP");
        assert_eq!(json["atomic_eth"]["compare"], 2);
    }
}
