//! Connections of the Linux kernel's iWARP driver: taken apart and put together again.

#[path = "common/tcp.rs"]
mod tcp;

use crate::common;
use std::collections::BTreeMap;
use std::path::Path;

use feroce_wire::iwarp::ddp::Header;
use feroce_wire::iwarp::fpdu::{CRC_LEN, Deframer, Framer, FramingError, LENGTH_LEN, Piece};
use feroce_wire::iwarp::mpa::{Enhanced, Role, Rtr, Startup, StartupError};
use feroce_wire::iwarp::rdmap::{RdmaOp, ReadRequest};
use feroce_wire::iwarp::terminate::{Cause, Layout, Terminate};
use tcp::Stream;

const FILES: usize = 88;

/// A segment: header and payload.
type Segment = (Header, Vec<u8>);

/// One direction of a connection, understood.
struct Side {
    startup: Result<Startup, StartupError>,
    private_data: Vec<u8>,
    segments: Vec<Segment>,
    /// Why it could not be read to the end.
    error: Option<FramingError>,
    /// The stream ended inside an FPDU.
    is_cut: bool,
    /// Segments whose padding is not zero.
    padded: usize,
}

impl Side {
    fn new(startup: Result<Startup, StartupError>, private_data: &[u8]) -> Self {
        let (private_data, segments) = (private_data.to_vec(), Vec::new());
        Self { startup, private_data, segments, error: None, is_cut: false, padded: 0 }
    }
}

/// The two directions of a connection: that of the initiator first.
struct Connection {
    request: Side,
    reply: Side,
    crc: bool,
}

fn captures() -> Vec<(String, Vec<Connection>)> {
    let found = common::captures_in(Path::new("tests/captures/iwarp"));
    found.into_iter().map(|(name, path)| (name, connections(&common::read(&path)))).collect()
}

fn capture(name: &str) -> Connection {
    let path = Path::new("tests/captures/iwarp").join(name).with_extension("pcap");
    connections(&common::read(&path)).swap_remove(0)
}

fn connections(frames: &[Vec<u8>]) -> Vec<Connection> {
    let mut streams = tcp::streams(frames);
    let mut found = Vec::new();
    while !streams.is_empty() {
        let initiator = streams.remove(0);
        let is_answer = |s: &Stream| (s.from, s.to) == (initiator.to, initiator.from);
        let responder = streams.iter().position(is_answer).map(|at| streams.remove(at));
        let reply = responder.map(|stream| stream.bytes).unwrap_or_default();
        let asks = |role, bytes: &[u8]| Startup::parse(role, bytes).is_ok_and(|(s, ..)| s.crc);
        let crc = asks(Role::Request, &initiator.bytes) || asks(Role::Reply, &reply);
        found.push(Connection {
            request: side(Role::Request, crc, &initiator.bytes),
            reply: side(Role::Reply, crc, &reply),
            crc,
        });
    }
    found
}

/// Takes a stream apart and compares what is put together again with it.
fn side(role: Role, crc: bool, bytes: &[u8]) -> Side {
    let (startup, private_data, stream) = match Startup::parse(role, bytes) {
        Ok((startup, private_data, stream)) => (startup, private_data, stream),
        Err(error) => return Side::new(Err(error), &[]),
    };
    let mut out = vec![0xaa; bytes.len()];
    let len = startup.emit([&[], private_data], &mut out).expect("room");
    assert_eq!(out[..len], bytes[..len]);
    let mut side = Side::new(Ok(startup), private_data);
    let (mut deframer, mut framer) = (Deframer::new(crc), Framer::new(crc, false));
    let (mut rest, mut at) = (stream, 0);
    loop {
        match deframer.next(&mut rest) {
            Ok(Some(Piece::Header { header, .. })) => side.segments.push((header, Vec::new())),
            Ok(Some(Piece::Payload(bytes))) => {
                side.segments.last_mut().expect("header first").1.extend(bytes);
            }
            Ok(Some(Piece::End)) => {
                let segment = side.segments.last().expect("a segment");
                let fpdu = emitted(&mut framer, segment);
                let here = &stream[at..at + fpdu.len()];
                let end = LENGTH_LEN + segment.0.len() + segment.1.len();
                // Linux pads with what is behind the payload in memory.
                let is_padded = here[end..here.len() - CRC_LEN].iter().any(|byte| *byte != 0);
                let compared = if is_padded { end } else { fpdu.len() };
                assert_eq!(fpdu[..compared], here[..compared], "segment {}", side.segments.len());
                side.padded += usize::from(is_padded);
                at += fpdu.len();
            }
            Ok(None) => break,
            Err(error) => {
                side.segments.pop();
                side.error = Some(error);
                break;
            }
        }
    }
    side.is_cut = side.error.is_none() && !deframer.is_between();
    side
}

fn emitted(framer: &mut Framer, (header, payload): &Segment) -> Vec<u8> {
    if header.control().opcode == RdmaOp::TERMINATE {
        let (message, rest) = Terminate::parse(payload).expect("TERMINATE");
        let mut out = [0; Terminate::MAX_LEN];
        let len = message.emit(&mut out).expect("room");
        assert_eq!([&out[..len], rest].concat(), *payload, "{message:?}");
    }
    let mut out = vec![0xaa; framer.wire_len(header.len() + payload.len())];
    let fill = |at: usize, out: &mut [u8]| out.copy_from_slice(&payload[at..at + out.len()]);
    assert_eq!(framer.emit(header, payload.len(), &mut out, fill), Ok(out.len()));
    out
}

#[test]
fn every_connection_parses_and_comes_back_byte_for_byte() {
    let captures = captures();
    assert_eq!(captures.len(), FILES);
    let (mut errors, mut cut, mut with_crc, mut padded) = (Vec::new(), Vec::new(), 0, 0);
    let mut operations: BTreeMap<u8, u32> = BTreeMap::new();
    for (name, connections) in &captures {
        for connection in connections {
            for side in [&connection.request, &connection.reply] {
                errors.extend(side.error.map(|error| (name.as_str(), error)));
                cut.extend(side.is_cut.then_some(name.as_str()));
                padded += side.padded;
                with_crc += if connection.crc { side.segments.len() } else { 0 };
                for (header, _) in &side.segments {
                    *operations.entry(header.control().opcode.0).or_default() += 1;
                }
            }
        }
    }
    let short = ("crafted_short", FramingError::Short { ulpdu: 6 });
    assert_eq!(errors, [("crafted_crcbad", FramingError::Crc), short]);
    assert_eq!(cut, ["crafted_halffpdu"]);
    // As many as a decoder of its own found.
    assert_eq!((operations.values().sum::<u32>(), with_crc, padded), (1107, 121, 10));
    let expected = [476, 55, 183, 304, 35, 13, 3, 34, 1, 1, 1, 1];
    assert_eq!(operations.into_values().collect::<Vec<_>>(), expected);
}

#[test]
fn startup_frames_say_what_was_asked_for() {
    let frames = |name| {
        let connection = capture(name);
        let enhanced = |side: &Side| Enhanced::parse(&side.private_data).expect("enhanced").0;
        let replied = (connection.reply.startup, enhanced(&connection.reply));
        (connection.request.startup, enhanced(&connection.request), replied)
    };
    let setup = |ird, ord, peer_to_peer, rtr| Enhanced { ird, ord, peer_to_peer, rtr };
    let plain = |role| Ok(Startup { enhanced: true, ..Startup::new(role, 2) });
    let (request, asked, (reply, answered)) = frames("send");
    assert_eq!((request, reply), (plain(Role::Request), plain(Role::Reply)));
    assert_eq!(asked, setup(3, 4, false, Rtr::NONE));
    assert_eq!(answered, setup(4, 3, false, Rtr::NONE));
    let (_, asked, (_, answered)) = frames("p2p_sfirst");
    assert_eq!(asked, setup(3, 4, true, Rtr::WRITE.union(Rtr::READ)));
    assert_eq!(answered, setup(4, 3, true, Rtr::WRITE));
    let (request, ..) = frames("crc_write");
    assert!(request.expect("request").crc);
    let (_, _, (reply, _)) = frames("reject");
    assert!(reply.expect("reply").rejected);
    let old = capture("mpa1_send");
    assert_eq!(old.request.startup, Ok(Startup::new(Role::Request, 1)));
    assert_eq!(capture("crafted_badkey").request.startup, Err(StartupError::WrongKey));
    let long = StartupError::PrivateDataTooLong(513);
    assert_eq!(capture("crafted_pd513").request.startup, Err(long));
}

#[test]
fn fields_of_segments() {
    let connection = capture("p2p_sfirst");
    let (rtr, empty) = &connection.request.segments[0];
    let Header::Tagged(rtr) = rtr else { panic!("{rtr:?}") };
    assert_eq!((rtr.control.opcode, rtr.stag.0, empty.len()), (RdmaOp::WRITE, 1, 0));
    let connection = capture("crafted_ok");
    let (header, payload) = &connection.request.segments[2];
    assert_eq!(header.control().opcode, RdmaOp::READ_REQUEST);
    let (read, rest) = ReadRequest::parse(payload).expect("READ");
    assert_eq!((read.sink_stag.0, read.sink_offset, read.len), (0x0123_4500, 0x1000, 120));
    assert!(rest.is_empty());
    let (header, payload) = &connection.reply.segments[0];
    let Header::Tagged(response) = header else { panic!("{header:?}") };
    assert_eq!((response.stag, response.offset), (read.sink_stag, read.sink_offset));
    assert_eq!(payload.len(), 120);
    // Fifteen segments of one message.
    let sent = capture("send").request.segments;
    let parts = sent.iter().filter_map(|(header, payload)| match header {
        Header::Untagged(header) if header.msn == 6 => Some((header.mo as usize, payload.len())),
        _ => None,
    });
    let end = parts.clone().fold(0, |expected, (mo, len)| {
        assert_eq!(mo, expected);
        mo + len
    });
    assert_eq!((parts.count(), end), (15, 20_000));
}

/// What Linux says of errors, in its own layout of the control word.
#[test]
fn causes_of_terminates() {
    for (name, cause) in [
        ("wstag", Cause::TAGGED_INVALID_STAG),
        ("woob", Cause::TAGGED_BOUNDS),
        ("roob", Cause::PROTECTION_BOUNDS),
        ("rstag", Cause::PROTECTION_INVALID_STAG),
        ("norecv", Cause::UNTAGGED_NO_BUFFER),
        ("crafted_mo", Cause::UNTAGGED_MO),
        ("crafted_qn3", Cause::UNTAGGED_QUEUE),
        ("crafted_crcbad", Cause::MPA_CRC),
        ("crafted_ird5", Cause::OPERATION_STREAM_CATASTROPHIC),
    ] {
        let segments = capture(name).reply.segments;
        let (header, payload) = segments.last().expect("TERMINATE");
        assert_eq!(header.control().opcode, RdmaOp::TERMINATE, "{name}");
        let (message, _) = Terminate::parse(payload).expect("TERMINATE");
        assert_eq!((message.cause, message.layout), (cause, Layout::Siw), "{name}");
        assert_eq!(message.request.is_some(), cause.layer == 0 && cause.kind == 1, "{name}");
    }
}
