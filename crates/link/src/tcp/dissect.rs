//! Finds the messages of iWARP in the two directions of a TCP connection, and describes them.
//!
//! Traces, captures and `feroce decode` show them. A direction holds at most one startup frame or
//! FPDU that is not complete, so that a long connection costs bounded memory.

use std::fmt;

use feroce_wire::iwarp::Crc32c;
use feroce_wire::iwarp::atomic::{AtomicOp, AtomicRequest, AtomicResponse, Immediate};
use feroce_wire::iwarp::ddp::{Header, Tagged, Untagged};
use feroce_wire::iwarp::fpdu::{CRC_LEN, LENGTH_LEN, fpdu_len};
use feroce_wire::iwarp::mpa::{Enhanced, Role, Rtr, Startup, StartupError};
use feroce_wire::iwarp::rdmap::{RdmaOp, ReadRequest};
use feroce_wire::iwarp::terminate::Terminate;

/// Distance and length of markers (RFC 5044 4.3).
const MARKER_DISTANCE: usize = 512;
const MARKER_LEN: usize = 4;

/// An end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum End {
    /// The one that has connected.
    Initiator,
    /// The one that has accepted.
    Responder,
}

impl End {
    /// The other one.
    #[must_use]
    pub const fn peer(self) -> Self {
        match self {
            Self::Initiator => Self::Responder,
            Self::Responder => Self::Initiator,
        }
    }
}

/// A message on a stream: a startup frame or a segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// What it is: `MPA Request`, `SEND`, `READ Response`.
    pub name: String,
    /// What its headers say.
    pub notes: Vec<String>,
    /// Bytes of payload, or of private data.
    pub payload: usize,
    /// What is wrong with it. Nothing behind it in this direction is shown.
    pub error: Option<String>,
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        for note in self.error.iter().chain(&self.notes) {
            write!(f, ", {note}")?;
        }
        match self.payload {
            0 => Ok(()),
            len => write!(f, ", {len} bytes"),
        }
    }
}

/// The messages of a connection.
#[derive(Debug, Default)]
pub struct Dissector {
    initiator: Direction,
    responder: Direction,
}

/// What one end sends.
#[derive(Debug, Default)]
struct Direction {
    phase: Phase,
    /// What is not a whole message yet.
    held: Vec<u8>,
    /// Bytes of FPDUs before `held`, which says where markers are.
    position: usize,
    /// What its startup frame says.
    startup: Option<Startup>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Phase {
    #[default]
    Startup,
    Segments,
    /// Nothing that follows can be understood.
    Lost,
}

impl Dissector {
    fn direction(&mut self, end: End) -> &mut Direction {
        match end {
            End::Initiator => &mut self.initiator,
            End::Responder => &mut self.responder,
        }
    }

    /// Whether the connection speaks iWARP, as far as it is known.
    pub fn is_iwarp(&self) -> bool {
        self.initiator.startup.is_some() || self.responder.startup.is_some()
    }

    /// Whether nothing more will be found in what this end sends.
    pub fn is_lost(&self, end: End) -> bool {
        let direction = match end {
            End::Initiator => &self.initiator,
            End::Responder => &self.responder,
        };
        direction.phase == Phase::Lost
    }

    /// Bytes of what this end sends are not known.
    pub fn lose(&mut self, end: End) {
        let direction = self.direction(end);
        direction.phase = Phase::Lost;
        direction.held = Vec::new();
    }

    /// This end has sent further bytes: hands over the messages that end in them.
    pub fn feed(&mut self, end: End, bytes: &[u8], sink: &mut dyn FnMut(Message)) {
        let of_peer = self.direction(end.peer()).startup;
        let direction = self.direction(end);
        if direction.phase == Phase::Lost {
            return;
        }
        direction.held.extend_from_slice(bytes);
        let mut at = 0;
        while let Some((len, message)) = direction.next(at, end, of_peer) {
            at += len;
            let is_wrong = message.as_ref().is_none_or(|message| message.error.is_some());
            message.into_iter().for_each(&mut *sink);
            if is_wrong {
                return self.lose(end);
            }
        }
        direction.held.drain(..at);
    }
}

impl Direction {
    /// The message at `at` and the bytes that it has; no message: this is not iWARP.
    fn next(
        &mut self,
        at: usize,
        end: End,
        of_peer: Option<Startup>,
    ) -> Option<(usize, Option<Message>)> {
        let held = self.held.get(at..).unwrap_or_default();
        if self.phase == Phase::Startup {
            let role = match end {
                End::Initiator => Role::Request,
                End::Responder => Role::Reply,
            };
            let (startup, private_data, rest) = match Startup::parse(role, held) {
                Ok(found) => found,
                Err(StartupError::Incomplete { .. }) => return None,
                Err(_) => return Some((0, None)),
            };
            let (message, len) = (startup_message(&startup, private_data), held.len() - rest.len());
            self.startup = Some(startup);
            self.phase = Phase::Segments;
            return Some((len, Some(message)));
        }
        let own = self.startup?;
        let has_crc = own.crc || of_peer.is_some_and(|peer| peer.crc);
        let has_markers = of_peer.is_some_and(|peer| peer.markers);
        let (fpdu, len) = match has_markers {
            true => unmarked(held, self.position)?,
            false => {
                let len = fpdu_len(ulpdu_len(held)?);
                (held.get(..len)?.to_vec(), len)
            }
        };
        self.position += len;
        let (covered, crc) = held.get(..len)?.split_last_chunk::<CRC_LEN>()?;
        let mut message = segment_message(&fpdu);
        if has_crc {
            let mut sum = Crc32c::new();
            sum.update(covered);
            if sum.seal() != *crc {
                message.error = Some("wrong CRC".to_owned());
            }
        }
        Some((len, Some(message)))
    }
}

/// The length of the ULPDU that begins here.
fn ulpdu_len(bytes: &[u8]) -> Option<usize> {
    Some(usize::from(u16::from_be_bytes(*bytes.first_chunk::<LENGTH_LEN>()?)))
}

/// The FPDU at the start of `bytes` without markers, and its length with them, once all of it is
/// there. `position` is that of its first byte.
fn unmarked(bytes: &[u8], position: usize) -> Option<(Vec<u8>, usize)> {
    let (mut fpdu, mut at) = (Vec::new(), 0);
    loop {
        let needed = ulpdu_len(&fpdu).map_or(LENGTH_LEN, fpdu_len);
        if fpdu.len() == needed {
            return Some((fpdu, at));
        }
        let within = (position + at) % MARKER_DISTANCE;
        if within == 0 {
            at += MARKER_LEN;
        }
        let room = MARKER_DISTANCE - within.max(MARKER_LEN);
        let len = room.min(needed - fpdu.len());
        fpdu.extend_from_slice(bytes.get(at..at + len)?);
        at += len;
    }
}

fn startup_message(startup: &Startup, private_data: &[u8]) -> Message {
    let name = match startup.role {
        Role::Request => "MPA Request",
        Role::Reply if startup.rejected => "MPA Reject",
        Role::Reply => "MPA Reply",
    };
    let mut notes = vec![format!("revision {}", startup.revision)];
    notes.extend(startup.crc.then(|| "wants CRCs".to_owned()));
    notes.extend(startup.markers.then(|| "wants markers".to_owned()));
    let mut payload = private_data.len();
    if startup.enhanced
        && let Ok((enhanced, rest)) = Enhanced::parse(private_data)
    {
        payload = rest.len();
        notes.push(format!("IRD {} ORD {}", enhanced.ird, enhanced.ord));
        if enhanced.peer_to_peer {
            let kinds = [(Rtr::SEND, "SEND"), (Rtr::WRITE, "WRITE"), (Rtr::READ, "READ")];
            let kinds = kinds.iter().filter(|(kind, _)| enhanced.rtr.contains(*kind));
            let kinds: Vec<&str> = kinds.map(|(_, name)| *name).collect();
            notes.push(format!("peer to peer, begins with {}", kinds.join(" or ")));
        }
    }
    Message { name: name.to_owned(), notes, payload, error: None }
}

/// What an FPDU without markers says.
fn segment_message(fpdu: &[u8]) -> Message {
    let ulpdu = ulpdu_len(fpdu).and_then(|len| fpdu.get(LENGTH_LEN..LENGTH_LEN + len));
    let Some((header, payload)) = ulpdu.and_then(|ulpdu| Header::parse(ulpdu).ok()) else {
        let error = Some("ends inside its headers".to_owned());
        return Message { name: "FPDU".to_owned(), notes: Vec::new(), payload: 0, error };
    };
    let opcode = header.control().opcode;
    let name = opcode.name().map_or_else(|| format!("opcode {}?", opcode.0), str::to_owned);
    let mut notes = Vec::new();
    match &header {
        Header::Tagged(Tagged { stag, offset, .. }) => {
            notes.push(format!("STag {:#010x} offset {offset:#x}", stag.0));
        }
        Header::Untagged(Untagged { invalidate, msn, mo, .. }) => {
            notes.push(format!("MSN {msn}"));
            notes.extend((*mo > 0).then(|| format!("offset {mo}")));
            let invalidates = opcode.invalidates();
            notes.extend(invalidates.then(|| format!("invalidates {:#010x}", invalidate.0)));
        }
    }
    notes.extend((!header.control().last).then(|| "more follows".to_owned()));
    let said = body_note(opcode, payload);
    let payload = if said.is_some() { 0 } else { payload.len() };
    notes.extend(said);
    Message { name, notes, payload, error: None }
}

/// What the payload says, if it is a header of RDMAP.
fn body_note(opcode: RdmaOp, body: &[u8]) -> Option<String> {
    match opcode {
        RdmaOp::READ_REQUEST => {
            let (read, _) = ReadRequest::parse(body).ok()?;
            Some(format!(
                "len {} from STag {:#010x} offset {:#x} to STag {:#010x} offset {:#x}",
                read.len,
                read.source_stag.0,
                read.source_offset,
                read.sink_stag.0,
                read.sink_offset
            ))
        }
        RdmaOp::TERMINATE => Some(Terminate::parse(body).ok()?.0.cause.to_string()),
        RdmaOp::IMMEDIATE | RdmaOp::IMMEDIATE_SE => {
            let (immediate, _) = Immediate::parse(body).ok()?;
            Some(format!("immediate {:#018x}", u64::from_be_bytes(immediate.data)))
        }
        RdmaOp::ATOMIC_REQUEST => {
            let (atomic, _) = AtomicRequest::parse(body).ok()?;
            let (stag, offset) = (atomic.stag.0, atomic.offset);
            let what = match atomic.op {
                AtomicOp::FETCH_ADD => format!("add {}", atomic.add_swap),
                AtomicOp::CMP_SWAP => {
                    format!("compare {:#x} swap {:#x}", atomic.compare, atomic.add_swap)
                }
                AtomicOp(other) => format!("operation {other}?"),
            };
            Some(format!("STag {stag:#010x} offset {offset:#x} {what}"))
        }
        RdmaOp::ATOMIC_RESPONSE => {
            let (response, _) = AtomicResponse::parse(body).ok()?;
            Some(format!("original {:#x}", response.original))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use feroce_wire::Rkey;
    use feroce_wire::iwarp::ddp::Control;
    use feroce_wire::iwarp::fpdu::Framer;
    use proptest::prelude::*;

    use super::*;

    fn startup(role: Role, markers: bool) -> Vec<u8> {
        let mut out = [0; Startup::LEN];
        let startup = Startup { crc: true, markers, ..Startup::new(role, 1) };
        startup.emit([&[], &[]], &mut out).expect("room");
        out.to_vec()
    }

    /// WRITEs of these lengths.
    fn writes(markers: bool, lens: &[usize]) -> Vec<u8> {
        let mut framer = Framer::new(true, markers);
        let mut stream = Vec::new();
        for len in lens {
            let (control, stag) = (Control::new(RdmaOp::WRITE, true), Rkey(7));
            let header = Header::Tagged(Tagged { control, stag, offset: 16 });
            let mut out = vec![0; framer.wire_len(header.len() + len)];
            framer.emit(&header, *len, &mut out, |_, out| out.fill(3)).expect("room");
            stream.extend(out);
        }
        stream
    }

    fn feed(dissector: &mut Dissector, end: End, bytes: &[u8], piece: usize) -> Vec<String> {
        let mut said = Vec::new();
        for bytes in bytes.chunks(piece) {
            dissector.feed(end, bytes, &mut |message| said.push(message.to_string()));
        }
        said
    }

    #[test]
    fn messages_are_found_with_and_without_markers() {
        let lens = [0, 1, 490, 508, 1442, 60_000];
        for (markers, piece) in [(false, 1), (true, 1), (false, 1448), (true, 1448), (true, 70_000)]
        {
            let mut dissector = Dissector::default();
            let request = startup(Role::Request, false);
            let asked = feed(&mut dissector, End::Initiator, &request, piece);
            assert_eq!(asked, ["MPA Request, revision 1, wants CRCs"]);
            feed(&mut dissector, End::Responder, &startup(Role::Reply, markers), piece);
            let said = feed(&mut dissector, End::Initiator, &writes(markers, &lens), piece);
            let expected = lens.map(|len| match len {
                0 => "WRITE, STag 0x00000007 offset 0x10".to_owned(),
                len => format!("WRITE, STag 0x00000007 offset 0x10, {len} bytes"),
            });
            assert_eq!(said, expected, "markers {markers}, pieces of {piece}");
        }
    }

    #[test]
    fn nothing_is_shown_behind_a_wrong_message() {
        let mut dissector = Dissector::default();
        feed(&mut dissector, End::Initiator, &startup(Role::Request, false), 99);
        let mut stream = writes(false, &[5, 6, 7]);
        let second = fpdu_len(14 + 5);
        stream[second + 18] ^= 1;
        let said = feed(&mut dissector, End::Initiator, &stream, 99);
        assert_eq!(said.len(), 2);
        assert!(said[1].contains("wrong CRC"), "{said:?}");
        assert!(dissector.is_lost(End::Initiator) && !dissector.is_lost(End::Responder));
    }

    proptest! {
        /// Any bytes, as they come or behind a startup frame: no panic, and bounded memory.
        #[test]
        fn any_bytes(bytes: Vec<u8>, piece in 1_usize..64, is_begun: bool, markers: bool) {
            let mut dissector = Dissector::default();
            if is_begun {
                feed(&mut dissector, End::Initiator, &startup(Role::Request, false), 99);
                feed(&mut dissector, End::Responder, &startup(Role::Reply, markers), 99);
            }
            for end in [End::Initiator, End::Responder] {
                feed(&mut dissector, end, &bytes, piece);
                prop_assert!(dissector.direction(end).held.len() <= bytes.len());
            }
        }
    }
}
