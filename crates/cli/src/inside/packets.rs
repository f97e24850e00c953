//! The last packets of a queue pair, as a ladder and as JSON.

use std::collections::BTreeSet;

use feroce::Direction;
use feroce::watch::{PacketSnapshot, Packets};
use feroce::wire::{Bth, Exts, Packet};
use serde_json::{Value, json};

use crate::ladder::{Ladder, Rung, Side};
use crate::style::Ink;
use crate::words;

/// What is shown of a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Step {
    at_ns: u64,
    from: Side,
    label: String,
    notes: Vec<String>,
    ink: Ink,
}

/// The packets of a queue pair, the oldest first. The queue pair is on the left.
fn steps(packets: &Packets) -> Vec<Step> {
    let mut sent = BTreeSet::new();
    packets.packets.iter().map(|packet| step(packet, &mut sent)).collect()
}

/// `sent` are the PSNs of requests that were sent before.
fn step(seen: &PacketSnapshot, sent: &mut BTreeSet<u32>) -> Step {
    let at_ns = seen.at_ns;
    let from = if seen.direction == Direction::Sent { Side::Left } else { Side::Right };
    let Some((packet, payload_len)) = parse(seen) else {
        let label = format!("malformed · {} B", seen.len);
        return Step { at_ns, from, label, notes: Vec::new(), ink: Ink::Bad };
    };
    let (label, mut ink) = (words::label(&packet, payload_len), words::ink(&packet));
    let mut notes = words::notes(&packet);
    let is_request = packet.bth.opcode.decode().is_some_and(|(_, op)| op.is_request());
    if is_request && from == Side::Left && !sent.insert(packet.bth.psn.get()) {
        notes.insert(0, "sent again".to_owned());
        ink = Ink::Bad;
    }
    if seen.count > 1 {
        notes.insert(0, format!("{} packets", seen.count));
    }
    if seen.is_congested {
        notes.insert(0, "congestion marked".to_owned());
    }
    Step { at_ns, from, label, notes, ink }
}

/// The headers of a packet, and how long its payload is.
fn parse(seen: &PacketSnapshot) -> Option<(Packet<'_>, usize)> {
    let (bth, rest) = Bth::parse(&seen.head).ok()?;
    let (service, op) = bth.opcode.decode()?;
    let (exts, _) = Exts::parse(service, op, rest).ok()?;
    let headers = bth.opcode.header_len()? + usize::from(bth.pad);
    let payload_len = usize::try_from(seen.len).ok()?.checked_sub(headers)?;
    Some((Packet { bth, exts, payload: &[] }, payload_len))
}

/// The lines of a ladder, each with its colour. Times are since the first packet.
pub(super) fn lines(ladder: &Ladder, packets: &Packets) -> Vec<(Ink, String)> {
    let steps = steps(packets);
    let start_ns = steps.first().map_or(0, |step| step.at_ns);
    let lines = steps.into_iter().flat_map(|Step { at_ns, from, label, notes, ink }| {
        let time = words::duration(at_ns.saturating_sub(start_ns));
        let rung = ladder.rung(&Rung::Packet { time, from, label, notes, ink });
        rung.into_iter().map(move |line| (ink, line))
    });
    lines.collect()
}

/// The same for the page.
pub(super) fn json(packets: &Packets) -> Value {
    let step = |Step { at_ns, from, label, notes, ink }: Step| {
        let kind = match ink {
            Ink::Answer => "answer",
            Ink::Bad => "bad",
            _ => "request",
        };
        json!({
            "at_ns": at_ns,
            "is_sent": from == Side::Left,
            "label": label,
            "notes": notes,
            "kind": kind,
        })
    };
    json!({
        "recorded": packets.recorded,
        "refusal": packets.refusal,
        "steps": steps(packets).into_iter().map(step).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use feroce::wire::{Op, Opcode, Service};
    use feroce::{Psn, Qpn};

    use super::*;
    use crate::style::Style;

    #[test]
    fn a_ladder_shows_what_a_queue_pair_sent_and_received() {
        let head = |op: Op, psn: u32| {
            let mut head = vec![0; Bth::LEN];
            let bth = Bth::new(Opcode::new(Service::Rc, op), Qpn::new(7), Psn::new(psn));
            bth.emit((&mut head[..]).try_into().expect("as long"));
            head
        };
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        // The text that a device answers with.
        let line = |ns: u64, way: &str, len: usize, head: &[u8]| {
            format!("packet\t{ns}\t{way}\t127.0.0.1\t127.0.0.2\t0\t1\t{len}\t{}\n", hex(head))
        };
        let mut ack = head(Op::Acknowledge, 5);
        ack.extend([0x1f, 0, 0, 1]);
        let text = [
            "recorded\t4\n".to_owned(),
            line(1000, "out", 12 + 64, &head(Op::SendOnly, 5)),
            line(3000, "out", 12 + 64, &head(Op::SendOnly, 5)),
            line(9000, "in", 16, &ack),
            line(9000, "in", 3, &[1, 2, 3]),
            "end\n".to_owned(),
        ];
        let packets = text.concat().parse::<Packets>().expect("complete");
        let ladder = Ladder::without_events(Style::plain(70));
        let shown = lines(&ladder, &packets);
        let texts: Vec<&str> = shown.iter().map(|(_, line)| line.trim()).collect();
        assert!(texts[0].contains("├─ SEND Only · PSN 5 · 64 B ─"), "{texts:#?}");
        assert!(texts[1].contains("2.0 µs ├─ SEND Only · PSN 5 · 64 B · sent again"), "{texts:#?}");
        assert!(texts[2].contains("◀") && texts[2].contains("ACK · PSN 5"), "{texts:#?}");
        assert!(texts[3].contains("malformed · 3 B"), "{texts:#?}");
        assert_eq!(shown[1].0, Ink::Bad);
        let value = json(&packets);
        assert_eq!(value["steps"][1]["kind"], "bad");
        assert_eq!(value["recorded"], 4);
    }
}
