//! TCP connections in a capture, and the iWARP messages on them.
//!
//! Segments are put in order, and what was sent again is left out, as the receiver does. All memory
//! is bounded: a capture may have any number of connections, and any gaps in them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::SocketAddr;

use feroce_link::tcp::dissect::{Dissector, End, Message};

/// Connections that are followed at the same time; others are not shown.
const MOST_FLOWS: usize = 8192;

/// Bytes behind a gap that are kept for one direction, in case that the gap is filled.
const MOST_HELD: usize = 4 << 20;

/// What an initiator says first.
const REQUEST_KEY: &[u8] = b"MPA ID Req Frame";

/// Bits of the flags of a TCP segment.
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;

/// A TCP segment in a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment<'a> {
    pub(crate) src: SocketAddr,
    pub(crate) dst: SocketAddr,
    seq: u32,
    flags: u8,
    payload: &'a [u8],
    /// The payload on the wire was longer.
    is_cut: bool,
}

impl<'a> Segment<'a> {
    /// Reads the segment of `len` bytes by the IP header, of which `bytes` are in the record.
    pub(crate) fn parse(
        (src, dst): (std::net::IpAddr, std::net::IpAddr),
        bytes: &'a [u8],
        len: usize,
    ) -> Option<Self> {
        let head = bytes.first_chunk::<20>()?;
        let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let header = usize::from(head[12] >> 4) * 4;
        let there = bytes.get(..len).unwrap_or(bytes);
        let payload = there.get(header.max(head.len())..)?;
        Some(Self {
            src: SocketAddr::new(src, word(0)),
            dst: SocketAddr::new(dst, word(2)),
            seq: u32::from_be_bytes([head[4], head[5], head[6], head[7]]),
            flags: head[13],
            payload,
            is_cut: there.len() < len,
        })
    }
}

impl Segment<'_> {
    /// What tells it from other segments.
    pub(crate) fn identity(&self) -> (SocketAddr, SocketAddr, u32, u8, usize) {
        (self.src, self.dst, self.seq, self.flags, self.payload.len())
    }
}

/// What a segment holds.
#[derive(Debug)]
pub(crate) enum Found {
    /// These messages end in it.
    Messages(Vec<Message>),
    /// A part of a message, or nothing but a flag, of a connection that speaks iWARP.
    Part(&'static str),
    /// The connection speaks something else, as far as is known.
    NotIwarp,
}

/// The connections of a capture.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    /// By their ends, the lower address first.
    flows: BTreeMap<(SocketAddr, SocketAddr), Flow>,
}

#[derive(Debug)]
struct Flow {
    initiator: SocketAddr,
    dissector: Dissector,
    of_initiator: Half,
    of_responder: Half,
}

/// What one end has sent.
#[derive(Debug, Default)]
struct Half {
    /// The sequence number of the next byte, once one is known.
    next: Option<u32>,
    /// What has arrived too early, by sequence number.
    early: BTreeMap<u32, Vec<u8>>,
    held: usize,
}

impl Flows {
    /// Follows a segment.
    pub(crate) fn take(&mut self, segment: &Segment<'_>) -> Found {
        let key = (segment.src.min(segment.dst), segment.src.max(segment.dst));
        let begins = segment.flags & SYN != 0 || segment.payload.starts_with(REQUEST_KEY);
        if !self.flows.contains_key(&key) && (!begins || self.flows.len() >= MOST_FLOWS) {
            return Found::NotIwarp;
        }
        let is_reply = segment.flags & 0x12 == 0x12;
        let initiator = if is_reply { segment.dst } else { segment.src };
        let flow = match self.flows.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(free) => free.insert(Flow::new(initiator)),
        };
        // The same ports connect again.
        if segment.flags & 0x12 == SYN && flow.has_begun() {
            *flow = Flow::new(initiator);
        }
        let found = flow.take(segment);
        if segment.flags & RST != 0 {
            self.flows.remove(&key);
        }
        found
    }
}

impl Flow {
    fn new(initiator: SocketAddr) -> Self {
        Self {
            initiator,
            dissector: Dissector::default(),
            of_initiator: Half::default(),
            of_responder: Half::default(),
        }
    }

    /// Whether any byte has passed.
    fn has_begun(&self) -> bool {
        self.dissector.is_iwarp() || self.dissector.is_lost(End::Initiator)
    }

    fn take(&mut self, segment: &Segment<'_>) -> Found {
        let end = if segment.src == self.initiator { End::Initiator } else { End::Responder };
        let half = match end {
            End::Initiator => &mut self.of_initiator,
            End::Responder => &mut self.of_responder,
        };
        if segment.flags & SYN != 0 {
            half.next = Some(segment.seq.wrapping_add(1));
        }
        let (dissector, mut messages) = (&mut self.dissector, Vec::new());
        let was_lost = dissector.is_lost(end);
        let is_new = half.pass(segment, &mut |bytes| match bytes {
            Some(bytes) => dissector.feed(end, bytes, &mut |message| messages.push(message)),
            None => dissector.lose(end),
        });
        if segment.is_cut {
            self.dissector.lose(end);
        }
        if !messages.is_empty() {
            return Found::Messages(messages);
        }
        if !self.dissector.is_iwarp() {
            return Found::NotIwarp;
        }
        Found::Part(match (segment.flags, segment.payload.is_empty()) {
            (flags, true) if flags & RST != 0 => "the connection is reset",
            (flags, true) if flags & FIN != 0 => "the connection is closed",
            (_, true) => "an acknowledgement",
            _ if !is_new => "sent again",
            _ if segment.is_cut => "cut by the capture: what follows cannot be read",
            _ if was_lost || self.dissector.is_lost(end) => "bytes before it are missing",
            _ => "inside a message",
        })
    }
}

impl Half {
    /// Hands over what is next in order, `None` for a gap that stays. False: the segment has
    /// nothing new.
    fn pass(&mut self, segment: &Segment<'_>, sink: &mut dyn FnMut(Option<&[u8]>)) -> bool {
        if segment.payload.is_empty() {
            return true;
        }
        let mut next = *self.next.get_or_insert(segment.seq);
        if (segment.seq.wrapping_sub(next) as i32) > 0 {
            self.held += segment.payload.len();
            if self.held > MOST_HELD {
                *self = Self { next: Some(next), ..Self::default() };
                sink(None);
            } else {
                self.early.insert(segment.seq, segment.payload.to_vec());
            }
            return true;
        }
        let mut advance = |next: &mut u32, seq: u32, bytes: &[u8]| -> bool {
            let known = next.wrapping_sub(seq) as usize;
            let Some(new) = bytes.get(known..).filter(|new| !new.is_empty()) else { return false };
            sink(Some(new));
            *next = next.wrapping_add(new.len() as u32);
            true
        };
        let is_new = advance(&mut next, segment.seq, segment.payload);
        // Numbers wrap around: the first by number need not be the first in order.
        let is_due = |next: u32| move |seq: &&u32| seq.wrapping_sub(next) as i32 <= 0;
        while let Some(seq) = self.early.keys().find(is_due(next)).copied() {
            let bytes = self.early.remove(&seq).unwrap_or_default();
            self.held = self.held.saturating_sub(bytes.len());
            advance(&mut next, seq, &bytes);
        }
        self.next = Some(next);
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The request of an initiator that asks for nothing.
    fn request() -> Vec<u8> {
        [REQUEST_KEY, &[0, 1, 0, 0]].concat()
    }

    /// A SEND of these bytes, without a CRC.
    fn send(payload: &[u8]) -> Vec<u8> {
        let len = u16::try_from(18 + payload.len()).expect("short");
        let mut out = len.to_be_bytes().to_vec();
        out.extend([0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
        out.extend(payload);
        out.resize(out.len().next_multiple_of(4) + 4, 0);
        out
    }

    fn segment(seq: u32, payload: &[u8]) -> Segment<'_> {
        let (src, dst) = (([10, 0, 0, 1], 40_000).into(), ([10, 0, 0, 2], 7471).into());
        Segment { src, dst, seq, flags: 0x18, payload, is_cut: false }
    }

    fn names(found: &Found) -> Vec<String> {
        match found {
            Found::Messages(messages) => messages.iter().map(ToString::to_string).collect(),
            Found::Part(what) => vec![format!("({what})")],
            Found::NotIwarp => vec!["-".to_owned()],
        }
    }

    #[test]
    fn segments_are_put_in_order() {
        let mut flows = Flows::default();
        let first = 0xffff_fff0_u32;
        let at = |bytes: usize| first.wrapping_add(bytes as u32);
        let (request, one, two) = (request(), send(b"one"), send(b"two!"));
        let mut take = |seq, bytes: &[u8]| names(&flows.take(&segment(seq, bytes)));
        assert_eq!(take(at(0), &request), ["MPA Request, revision 1"]);
        let second = request.len() + one.len();
        assert_eq!(take(at(second), &two), ["(inside a message)"]);
        assert_eq!(take(at(0), &request), ["(sent again)"]);
        // The rest of the first one overlaps with what is there, and completes both.
        assert_eq!(take(at(20), &one[..10]), ["(inside a message)"]);
        let rest = [&one[4..], &two[..3]].concat();
        assert_eq!(take(at(24), &rest), ["SEND, MSN 1, 3 bytes", "SEND, MSN 1, 4 bytes"]);
    }

    #[test]
    fn gaps_and_other_protocols_are_told_apart() {
        let mut flows = Flows::default();
        assert_eq!(names(&flows.take(&segment(1, b"GET / HTTP/1.1"))), ["-"]);
        flows.take(&segment(1, &request()));
        let cut = Segment { is_cut: true, ..segment(21, &[0, 99, 1]) };
        let said = names(&flows.take(&cut));
        assert_eq!(said, ["(cut by the capture: what follows cannot be read)"]);
        let said = names(&flows.take(&segment(200, &send(b"x"))));
        assert_eq!(said, ["(bytes before it are missing)"]);
        // A new connection of the same ports.
        flows.take(&Segment { flags: SYN, ..segment(499, b"") });
        assert_eq!(names(&flows.take(&segment(500, &request()))), ["MPA Request, revision 1"]);
    }

    #[test]
    fn memory_is_bounded() {
        let mut flows = Flows::default();
        flows.take(&segment(1, &request()));
        let block = vec![7; 60_000];
        for i in 1..200 {
            flows.take(&segment(1000 + i * 60_000, &block));
        }
        let held: usize = flows.flows.values().map(|flow| flow.of_initiator.held).sum();
        assert!(held <= MOST_HELD, "{held}");
        for port in 0..=u16::MAX {
            let src = ([10, 0, 0, 3], port).into();
            flows.take(&Segment { src, flags: SYN, ..segment(1, b"") });
        }
        assert!(flows.flows.len() <= MOST_FLOWS);
    }
}
