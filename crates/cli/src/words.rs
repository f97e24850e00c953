//! Packets in words: names of operations, and what the headers say.

use feroce::wire::{
    Aeth, AtomicEth, Exts, Feth, FlushPlacement, FlushSelectivity, NakCode, Op, Packet, Service,
    Syndrome,
};
use serde_json::{Map, Value, json};

use crate::style::Ink;

/// The name of a service.
pub(crate) const fn service(service: Service) -> &'static str {
    match service {
        Service::Rc => "RC",
        Service::Uc => "UC",
        Service::Ud => "UD",
        Service::Xrc => "XRC",
        Service::Cnp => "CNP",
    }
}

/// The name of an operation.
pub(crate) const fn op(op: Op) -> &'static str {
    match op {
        Op::SendFirst => "SEND First",
        Op::SendMiddle => "SEND Middle",
        Op::SendLast => "SEND Last",
        Op::SendLastImm => "SEND Last with Immediate",
        Op::SendOnly => "SEND Only",
        Op::SendOnlyImm => "SEND Only with Immediate",
        Op::WriteFirst => "WRITE First",
        Op::WriteMiddle => "WRITE Middle",
        Op::WriteLast => "WRITE Last",
        Op::WriteLastImm => "WRITE Last with Immediate",
        Op::WriteOnly => "WRITE Only",
        Op::WriteOnlyImm => "WRITE Only with Immediate",
        Op::ReadRequest => "READ Request",
        Op::ReadResponseFirst => "READ Response First",
        Op::ReadResponseMiddle => "READ Response Middle",
        Op::ReadResponseLast => "READ Response Last",
        Op::ReadResponseOnly => "READ Response Only",
        Op::Acknowledge => "Acknowledge",
        Op::AtomicAcknowledge => "Atomic Acknowledge",
        Op::CmpSwap => "COMPARE & SWAP",
        Op::FetchAdd => "FETCH & ADD",
        Op::SendLastInv => "SEND Last with Invalidate",
        Op::SendOnlyInv => "SEND Only with Invalidate",
        Op::Flush => "FLUSH",
        Op::AtomicWrite => "ATOMIC WRITE",
        Op::Cnp => "Congestion Notification",
    }
}

/// The name of what a packet does: an acknowledgement by what it says, the others by their opcode.
pub(crate) fn name(packet: &Packet<'_>) -> &'static str {
    let Some((_, operation)) = packet.bth.opcode.decode() else { return "reserved opcode" };
    match (operation, packet.exts.aeth.map(|aeth| aeth.syndrome)) {
        (Op::Acknowledge, Some(Syndrome::Ack { .. })) => "ACK",
        (Op::Acknowledge, Some(Syndrome::RnrNak { .. })) => "RNR NAK",
        (Op::Acknowledge, Some(Syndrome::Nak(_) | Syndrome::Reserved(_))) => "NAK",
        _ => op(operation),
    }
}

/// The colour of a packet: who sends it, or that something is wrong.
pub(crate) fn ink(packet: &Packet<'_>) -> Ink {
    match packet.exts.aeth.map(|aeth| aeth.syndrome) {
        Some(Syndrome::Ack { .. }) => Ink::Answer,
        Some(_) => Ink::Bad,
        None if packet.bth.opcode.decode().is_some_and(|(_, op)| op.is_response()) => Ink::Answer,
        None => Ink::Request,
    }
}

/// Why a request was refused.
const fn nak(code: NakCode) -> &'static str {
    match code {
        NakCode::PsnSequence => "a packet is missing (PSN sequence error)",
        NakCode::InvalidRequest => "invalid request",
        NakCode::RemoteAccess => "remote access error",
        NakCode::RemoteOperational => "remote operational error",
        NakCode::InvalidRdRequest => "invalid RD request",
    }
}

/// What an acknowledgement says besides its kind.
fn aeth(aeth: Aeth) -> String {
    let msn = aeth.msn.get();
    match aeth.syndrome {
        Syndrome::Ack { credits } => match credits.credits() {
            Some(credits) => format!("MSN {msn}, credits {credits}"),
            None => format!("MSN {msn}"),
        },
        Syndrome::RnrNak { timer } => {
            format!("receiver not ready: wait {}, MSN {msn}", duration(timer.nanos()))
        }
        Syndrome::Nak(code) => format!("{}, MSN {msn}", nak(code)),
        Syndrome::Reserved(byte) => format!("reserved syndrome {byte:#04x}, MSN {msn}"),
    }
}

fn atomic(op: Op, eth: AtomicEth) -> String {
    let at = format!("va {:#x} rkey {}", eth.va, eth.rkey);
    match op {
        Op::CmpSwap => format!("{at} compare {} swap {}", eth.compare, eth.swap_add),
        _ => format!("{at} add {}", eth.swap_add),
    }
}

fn feth(feth: Feth) -> String {
    let mut goals = Vec::new();
    if feth.placement.contains(FlushPlacement::GLOBAL) {
        goals.push("global visibility");
    }
    if feth.placement.contains(FlushPlacement::PERSISTENT) {
        goals.push("persistence");
    }
    let goals = if goals.is_empty() { "nowhere".to_owned() } else { goals.join(" and ") };
    match feth.selectivity {
        FlushSelectivity::Range => format!("to {goals}, this range"),
        FlushSelectivity::MemoryRegion => format!("to {goals}, the whole region"),
        FlushSelectivity::Other(bits) => format!("to {goals}, selectivity {bits}"),
    }
}

/// A time in its natural unit.
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

/// What the extension headers of a packet say.
fn headers(packet: &Packet<'_>) -> Vec<String> {
    let Exts {
        deth, xrceth, feth: flush, reth, atomic: eth, aeth: ack, atomic_ack, imm, ieth, ..
    } = packet.exts;
    let operation = packet.bth.opcode.decode().map_or(Op::Acknowledge, |(_, op)| op);
    let words = [
        deth.map(|h| format!("from QP {} Q_Key {}", qpn(h.src_qp.get()), h.qkey)),
        xrceth.map(|h| format!("SRQ {:#x}", h.srqn.get())),
        flush.map(feth),
        reth.map(|h| format!("va {:#x} rkey {} len {}", h.va, h.rkey, h.len)),
        eth.map(|h| atomic(operation, h)),
        ack.map(aeth),
        atomic_ack.map(|h| format!("was {}", h.original)),
        imm.map(|h| format!("immediate {}", h.imm)),
        ieth.map(|h| format!("invalidates rkey {}", h.rkey)),
    ];
    words.into_iter().flatten().collect()
}

/// What the flags of the base transport header say.
fn flags(packet: &Packet<'_>) -> Vec<&'static str> {
    let bth = &packet.bth;
    let flags = [
        (bth.ack_req, "asks for ACK"),
        (bth.solicited, "solicited"),
        (bth.fecn, "FECN"),
        (bth.becn, "BECN"),
    ];
    flags.into_iter().filter_map(|(is_set, name)| is_set.then_some(name)).collect()
}

/// Flags and extension headers, in the order in which people should see them.
pub(crate) fn notes(packet: &Packet<'_>) -> Vec<String> {
    flags(packet).into_iter().map(str::to_owned).chain(headers(packet)).collect()
}

/// A queue pair number.
pub(crate) fn qpn(number: u32) -> String {
    format!("{number:#x}")
}

/// One line for an arrow: name, number, length.
pub(crate) fn label(packet: &Packet<'_>, payload_len: usize) -> String {
    let name = name(packet).replace(" with Immediate", "+imm").replace(" with Invalidate", "+inv");
    let mut parts = vec![name];
    if packet.bth.opcode.decode().is_some_and(|(service, _)| service != Service::Cnp) {
        parts.push(format!("PSN {}", packet.bth.psn.get()));
    }
    if payload_len > 0 {
        parts.push(format!("{payload_len} B"));
    }
    parts.join(" · ")
}

/// Everything about a packet that its headers say, for programs.
pub(crate) fn json(packet: &Packet<'_>, payload_len: usize) -> Map<String, Value> {
    let bth = &packet.bth;
    let mut map = Map::new();
    let mut put = |key: &str, value: Value| map.insert(key.to_owned(), value);
    if let Some((s, o)) = bth.opcode.decode() {
        put("service", json!(service(s)));
        put("op", json!(op(o)));
    }
    put("name", json!(name(packet)));
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
        "syndrome": h.syndrome.to_u8(), "msn": h.msn.get(), "means": aeth(h) })
        }),
    );
    put("atomic_ack_eth", exts.atomic_ack.map(|h| json!({ "original": h.original })));
    put("immediate", exts.imm.map(|h| json!(h.imm.0)));
    put("invalidates", exts.ieth.map(|h| json!(h.rkey.0)));
    map
}

#[cfg(test)]
mod tests {
    use feroce::wire::{Bth, CreditCode, Msn, Opcode, RnrTimer};
    use feroce::{Psn, Qpn, Rkey};

    use super::*;

    fn packet(service: Service, op: Op, exts: Exts) -> Packet<'static> {
        Packet::new(Bth::new(Opcode::new(service, op), Qpn::new(7), Psn::new(9)), exts, &[])
    }

    #[test]
    fn acknowledgements_are_named_by_what_they_say() {
        let ack = |syndrome| {
            let aeth = Some(Aeth { syndrome, msn: Msn::new(3) });
            let packet = packet(Service::Rc, Op::Acknowledge, Exts { aeth, ..Exts::NONE });
            (name(&packet), headers(&packet).join("; "), ink(&packet))
        };
        let credits = CreditCode::new(4);
        let good = ack(Syndrome::Ack { credits });
        assert_eq!(good, ("ACK", "MSN 3, credits 4".to_owned(), Ink::Answer));
        let timer = RnrTimer::new(12);
        let rnr = ack(Syndrome::RnrNak { timer });
        let words = "receiver not ready: wait 640 µs, MSN 3".to_owned();
        assert_eq!(rnr, ("RNR NAK", words, Ink::Bad));
        let bad = ack(Syndrome::Nak(NakCode::RemoteAccess));
        assert_eq!(bad, ("NAK", "remote access error, MSN 3".to_owned(), Ink::Bad));
    }

    #[test]
    fn every_operation_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<_> = Op::ALL.into_iter().map(op).collect();
        assert_eq!(names.len(), Op::ALL.len());
    }

    #[test]
    fn atomics_say_what_they_do() {
        let eth = AtomicEth { va: 0x10, rkey: Rkey(5), swap_add: 3, compare: 2 };
        let exts = Exts { atomic: Some(eth), ..Exts::NONE };
        let say = |op| headers(&packet(Service::Rc, op, exts)).join("; ");
        assert_eq!(say(Op::CmpSwap), "va 0x10 rkey 0x00000005 compare 2 swap 3");
        assert_eq!(say(Op::FetchAdd), "va 0x10 rkey 0x00000005 add 3");
        let json = json(&packet(Service::Rc, Op::CmpSwap, exts), 0);
        assert_eq!(json["atomic_eth"]["compare"], 2);
    }
}
