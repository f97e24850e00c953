//! A decoded record, ready to be shown.

use std::net::SocketAddr;

use feroce::wire::{Packet, ParseError};
use feroce_link::is_taken_by_fault;
use feroce_link::tcp::dissect::Message;
use serde_json::{Map, Value, json};

use super::analysis::Fact;
use super::capture::Record;
use super::dissect::{Carried, IcrcState, NotRoce, Port, dissect, tcp};
use super::mad;
use super::tcp::{Flows, Found};
use crate::style::Ink;
use crate::words;

/// The ECN field of a packet that met congestion.
const CONGESTION_EXPERIENCED: u8 = 3;

/// A record.
#[derive(Debug)]
pub(crate) enum View {
    /// A RoCE packet.
    Roce(Box<Roce>),
    /// A message of iWARP.
    Iwarp(Box<Iwarp>),
    /// Something else.
    Other {
        /// Number in the file, from 1.
        number: u64,
        /// Nanoseconds since the first record.
        time_ns: Option<u64>,
        /// What it is, or why it is not a RoCE packet.
        why: NotRoce,
    },
}

/// A RoCE packet.
#[derive(Debug)]
pub(crate) struct Roce {
    /// Number in the file, from 1.
    pub(crate) number: u64,
    /// Nanoseconds since the first record.
    pub(crate) time_ns: Option<u64>,
    /// Sender.
    pub(crate) src: Port,
    /// Receiver.
    pub(crate) dst: Port,
    /// Queue pair that it goes to.
    pub(crate) dest_qp: u32,
    /// Packet sequence number.
    pub(crate) psn: u32,
    /// Service and operation.
    pub(crate) operation: String,
    /// Bytes of payload.
    pub(crate) payload_len: usize,
    /// Whether the ICRC is right.
    pub(crate) icrc: IcrcState,
    /// A switch or router on the way was congested and marked it: by the ECN field, or, where
    /// there is none, by the FECN bit.
    pub(crate) is_marked: bool,
    /// What the analysis has to know; none if the opcode means nothing.
    pub(super) fact: Option<Fact>,
    label: String,
    source_qp: Option<u32>,
    details: Vec<String>,
    ink: Ink,
    json: Map<String, Value>,
}

impl View {
    /// The packets in a record: one, or several if they were captured before segmentation; and the
    /// messages that end in a segment of TCP.
    pub(crate) fn all(
        record: &Record<'_>,
        flows: &mut Flows,
        number: u64,
        first_ns: u64,
    ) -> Vec<Self> {
        let time_ns = record.time_ns.map(|t| t.saturating_sub(first_ns));
        if let Some(segment) = tcp(record) {
            let other = |what: &str| {
                let why = NotRoce::Other(what.to_owned());
                vec![Self::Other { number, time_ns, why }]
            };
            return match flows.take(&segment) {
                Found::NotIwarp => other("TCP"),
                Found::Part(what) => other(&format!("TCP of iWARP: {what}")),
                Found::Messages(messages) => {
                    let ends = (segment.src, segment.dst);
                    let view = |(i, message)| Iwarp { number, time_ns, ends, message, nth: i };
                    let all = messages.into_iter().enumerate().map(view);
                    all.map(|iwarp| Self::Iwarp(Box::new(iwarp))).collect()
                }
            };
        }
        match dissect(record) {
            Ok(packets) => {
                let packets = (number..).zip(&packets);
                let views = packets.map(|(number, packet)| Self::of(packet, number, time_ns));
                views.map(|view| view.marked(record.mark)).collect()
            }
            Err(NotRoce::Broken(_)) if record.is_cut => {
                let why = NotRoce::Other("cut before its headers end".to_owned());
                vec![Self::Other { number, time_ns, why }]
            }
            Err(why) => vec![Self::Other { number, time_ns, why }],
        }
    }

    fn of(carried: &Carried<'_>, number: u64, time_ns: Option<u64>) -> Self {
        match Roce::new(carried, number, time_ns) {
            Ok(roce) => Self::Roce(Box::new(roce)),
            Err(why) => Self::Other { number, time_ns, why },
        }
    }

    /// The same, if the adapter that made the capture did something to the packet.
    pub(super) fn marked(mut self, mark: Option<&'static str>) -> Self {
        if let (Self::Roce(roce), Some(mark)) = (&mut self, mark) {
            roce.details.insert(0, mark.to_owned());
            roce.json.insert("fault".to_owned(), mark.into());
            roce.ink = Ink::Bad;
            if is_taken_by_fault(mark) {
                // The requester gets no answer, so the answer is no reason for what follows.
                roce.fact.take_if(|fact| fact.op.is_response());
            }
        }
        self
    }

    /// Gives it another number.
    pub(super) fn renumber(&mut self, number: u64) {
        match self {
            Self::Roce(roce) => {
                roce.number = number;
                roce.json.insert("packet".to_owned(), number.into());
                if let Some(fact) = &mut roce.fact {
                    fact.number = number;
                }
            }
            Self::Iwarp(iwarp) => iwarp.number = number,
            Self::Other { number: known, .. } => *known = number,
        }
    }

    /// Says which of several captures have it.
    pub(super) fn found_in(&mut self, files: &[&str]) {
        let text = format!("in {}", files.join(" and "));
        match self {
            Self::Roce(roce) => roce.details.push(text),
            Self::Iwarp(iwarp) => iwarp.message.notes.push(text),
            Self::Other { why: NotRoce::Other(what), .. } => *what = format!("{what}, {text}"),
            Self::Other { why: NotRoce::Broken(_), .. } => {}
        }
    }

    /// All fields, as JSON.
    pub(crate) fn json(&self) -> Value {
        match self {
            Self::Roce(roce) => Value::Object(roce.json.clone()),
            Self::Iwarp(iwarp) => iwarp.json(),
            Self::Other { number, time_ns, why } => {
                let (key, why) = match why {
                    NotRoce::Other(why) => ("other", why.as_str()),
                    NotRoce::Broken(why) => ("malformed", *why),
                };
                json!({ "packet": number, "time_ns": time_ns, key: why })
            }
        }
    }
}

/// A message of iWARP.
#[derive(Debug)]
pub(crate) struct Iwarp {
    /// Number in the file, from 1, of the segment in which it ends.
    pub(crate) number: u64,
    /// Nanoseconds since the first record.
    pub(crate) time_ns: Option<u64>,
    /// Sender and receiver.
    pub(crate) ends: (SocketAddr, SocketAddr),
    /// What it says.
    pub(crate) message: Message,
    /// How many messages end in the same segment before it.
    pub(crate) nth: usize,
}

impl Iwarp {
    /// Whether its name contains `part`.
    pub(crate) fn is_named(&self, part: &str) -> bool {
        self.message.name.to_lowercase().contains(&part.to_lowercase())
    }

    /// The line for an arrow.
    pub(crate) fn label(&self) -> String {
        match self.message.payload {
            0 => self.message.name.clone(),
            len => format!("{} {len} bytes", self.message.name),
        }
    }

    /// What its headers say, and what is wrong with it.
    pub(crate) fn notes(&self) -> Vec<String> {
        let wrong = self.message.error.iter().map(|error| error.to_uppercase());
        wrong.chain(self.message.notes.iter().cloned()).collect()
    }

    /// Its colour.
    pub(crate) fn ink(&self) -> Ink {
        match self.message.name.as_str() {
            _ if self.message.error.is_some() => Ink::Bad,
            "TERMINATE" | "MPA Reject" => Ink::Bad,
            "MPA Reply" | "READ Response" | "Atomic Response" => Ink::Answer,
            _ => Ink::Request,
        }
    }

    /// All that is known of it.
    pub(crate) fn json(&self) -> Value {
        let (src, dst) = self.ends;
        let Message { name, notes, payload, error } = &self.message;
        json!({
            "packet": self.number, "time_ns": self.time_ns, "framing": "iWARP",
            "src": src.ip().to_string(), "src_port": src.port(),
            "dst": dst.ip().to_string(), "dst_port": dst.port(),
            "op": name, "headers": notes, "payload_len": payload, "error": error,
        })
    }
}

impl Roce {
    fn new(carried: &Carried<'_>, number: u64, time_ns: Option<u64>) -> Result<Self, NotRoce> {
        let packet = match Packet::parse(carried.transport) {
            Ok(packet) => packet,
            // Only the opcode is unknown; the other fields of the BTH are valid.
            Err(ParseError::BadOpcode(_)) => base_only(carried.transport)?,
            Err(_) if carried.icrc == IcrcState::Unknown => base_only(carried.transport)?,
            Err(ParseError::BadPad) => {
                return Err(NotRoce::Broken("more padding than payload"));
            }
            Err(_) => return Err(NotRoce::Broken("the packet ends inside its headers")),
        };
        let payload_len = payload_len(&packet, carried);
        let is_marked = match carried.ecn {
            Some(ecn) => ecn == CONGESTION_EXPERIENCED,
            None => packet.bth.fecn,
        };
        let mut details: Vec<String> = Vec::new();
        let is_mad = matches!(packet.bth.dest_qp, feroce::Qpn::QP0 | feroce::Qpn::QP1);
        let message = if is_mad { mad::describe(packet.payload) } else { None };
        details.extend(message.clone());
        details.extend(words::notes(&packet));
        if carried.ecn == Some(CONGESTION_EXPERIENCED) {
            details.push("CE: marked by congestion".to_owned());
        }
        details.extend(carried.vlan.map(|vlan| format!("VLAN {vlan}")));
        if carried.framing == "RoCEv1" {
            details.push(carried.framing.to_owned());
        }
        Ok(Self {
            number,
            time_ns,
            src: carried.src,
            dst: carried.dst,
            dest_qp: packet.bth.dest_qp.get(),
            psn: packet.bth.psn.get(),
            operation: operation(&packet),
            payload_len,
            icrc: carried.icrc,
            is_marked,
            fact: Fact::new(&packet, (carried.src, carried.dst), payload_len, (number, time_ns))
                .map(|fact| Fact { is_marked, ..fact }),
            label: words::label(&packet, payload_len),
            source_qp: packet.exts.deth.map(|deth| deth.src_qp.get()),
            details,
            ink: if carried.icrc == IcrcState::Bad { Ink::Bad } else { words::ink(&packet) },
            json: object(&packet, carried, payload_len, number, time_ns, message),
        })
    }

    /// Says what is special about it among the others.
    pub(crate) fn mark(&mut self, what: String) {
        self.json.insert("note".to_owned(), json!(what));
        self.details.insert(0, what);
        self.ink = Ink::Bad;
    }

    /// Whether a queue pair is one of its ends, as far as the headers name them.
    pub(crate) fn involves(&self, qp: u32) -> bool {
        self.dest_qp == qp || self.source_qp == Some(qp)
    }

    /// Whether the name of its operation, or of the management message in it, contains `part`.
    pub(crate) fn is_named(&self, part: &str) -> bool {
        let part = part.to_lowercase();
        let full = self.json.get("op").and_then(Value::as_str).unwrap_or_default();
        let message = self.json.get("message").and_then(Value::as_str).unwrap_or_default();
        [self.operation.as_str(), full, message].iter().any(|n| n.to_lowercase().contains(&part))
    }

    /// The line for an arrow.
    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    /// The header fields, and whether the ICRC is right.
    pub(crate) fn notes(&self) -> Vec<String> {
        let mut notes = vec![format!("to QP {}", words::qpn(self.dest_qp))];
        notes.extend(self.details.iter().cloned());
        match self.icrc {
            IcrcState::Good => {}
            IcrcState::Bad => notes.insert(0, "BAD ICRC".to_owned()),
            IcrcState::Unknown => notes.push("cut by the capture".to_owned()),
        }
        notes
    }

    /// The header fields, without the ICRC.
    pub(crate) fn header_words(&self) -> String {
        self.details.join(", ")
    }

    /// Its colour.
    pub(crate) fn ink(&self) -> Ink {
        self.ink
    }
}

/// The name of a value of the ECN field.
fn ecn_name(ecn: u8) -> &'static str {
    match ecn & 3 {
        0 => "Not-ECT",
        1 => "ECT(1)",
        2 => "ECT(0)",
        _ => "CE",
    }
}

/// A packet of which only the base transport header can be decoded.
fn base_only(transport: &[u8]) -> Result<Packet<'_>, NotRoce> {
    let (bth, _) = feroce::wire::Bth::parse(transport)
        .map_err(|_| NotRoce::Broken("the packet ends inside its headers"))?;
    Ok(Packet { bth, exts: feroce::wire::Exts::NONE, payload: &[] })
}

/// Bytes of payload on the wire, which may be more than there are in the record.
fn payload_len(packet: &Packet<'_>, carried: &Carried<'_>) -> usize {
    match packet.bth.opcode.header_len() {
        Some(headers) => carried.wire_len.saturating_sub(headers + usize::from(packet.bth.pad)),
        None => 0,
    }
}

/// Service and operation.
fn operation(packet: &Packet<'_>) -> String {
    match packet.bth.opcode.decode() {
        Some((feroce::wire::Service::Cnp, _)) => "CNP".to_owned(),
        Some((service, _)) => format!("{} {}", service.name(), packet.name()),
        None => format!("opcode {:#04x}?", packet.bth.opcode.0),
    }
}

fn object(
    packet: &Packet<'_>,
    carried: &Carried<'_>,
    payload_len: usize,
    number: u64,
    time_ns: Option<u64>,
    message: Option<String>,
) -> Map<String, Value> {
    let mut map = Map::new();
    let icrc = match carried.icrc {
        IcrcState::Good => "ok",
        IcrcState::Bad => "bad",
        IcrcState::Unknown => "cut",
    };
    for (key, value) in [
        ("packet", json!(number)),
        ("time_ns", json!(time_ns)),
        ("src", json!(carried.src.to_string())),
        ("dst", json!(carried.dst.to_string())),
        ("framing", json!(carried.framing)),
        ("icrc", json!(icrc)),
    ] {
        map.insert(key.to_owned(), value);
    }
    for (key, value) in [("vlan", carried.vlan), ("udp_src_port", carried.udp_sport)] {
        if let Some(value) = value {
            map.insert(key.to_owned(), json!(value));
        }
    }
    if let Some(ecn) = carried.ecn {
        map.insert("ecn".to_owned(), json!(ecn_name(ecn)));
    }
    map.append(&mut words::json(packet, payload_len));
    if let Some(message) = message {
        map.insert("message".to_owned(), json!(message));
    }
    map
}
