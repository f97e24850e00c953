//! A second opinion on what we write: tshark's dissector of iWARP.
//!
//! A TCP connection with every operation, with and without markers: tshark must find the segments,
//! read the same fields and agree with every CRC.

use crate::common;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use feroce_wire::Rkey;
use feroce_wire::iwarp::atomic::{AtomicOp, AtomicRequest, AtomicResponse, Immediate};
use feroce_wire::iwarp::ddp::{Control, Header, QueueNumber, Tagged, Untagged};
use feroce_wire::iwarp::fpdu::Framer;
use feroce_wire::iwarp::mpa::{Enhanced, Role, Rtr, Startup};
use feroce_wire::iwarp::rdmap::{RdmaOp, ReadRequest};
use feroce_wire::iwarp::terminate::{Cause, Terminate};

/// Columns asked of tshark, one value per segment of a frame.
const FIELDS: [&str; 14] = [
    "iwarp_rdma.opcode",
    "iwarp_ddp.stag",
    "iwarp_ddp.tagged_offset",
    "iwarp_ddp.qn",
    "iwarp_ddp.msn",
    "iwarp_ddp.mo",
    "iwarp_rdma.sinkstag",
    "iwarp_rdma.rdmardsz",
    "iwarp_rdma.srcto",
    "iwarp_rdma.atomic.remote_tagged_offset",
    "iwarp_rdma.atomic.compare_data",
    "iwarp_rdma.atomic.original_remote_data_value",
    "iwarp_rdma.term_layer",
    "iwarp_rdma.term_errcode_ddp_tagged",
];

/// Ends of the connection.
const INITIATOR: ([u8; 4], u16) = ([10, 0, 0, 1], 40_000);
const RESPONDER: ([u8; 4], u16) = ([10, 0, 0, 2], 7471);

fn control(opcode: RdmaOp) -> Control {
    Control::new(opcode, true)
}

fn untagged(opcode: RdmaOp, queue: QueueNumber, msn: u32) -> Header {
    let (control, invalidate) = (control(opcode), Rkey(0));
    Header::Untagged(Untagged { control, invalidate, queue, msn, mo: 0 })
}

/// Columns and what tshark must say there.
type Expected = Vec<(&'static str, &'static str)>;

/// Segments with what tshark must say of them.
fn segments() -> Vec<(Header, Vec<u8>, Expected)> {
    let write = Tagged { control: control(RdmaOp::WRITE), stag: Rkey(0x1234), offset: 0x5678 };
    let read = ReadRequest {
        sink_stag: Rkey(0x77),
        sink_offset: 1,
        len: 99,
        source_stag: Rkey(0x88),
        source_offset: 0xabcd,
    };
    let mut read_bytes = [0; ReadRequest::LEN];
    read.emit(&mut read_bytes);
    let atomic = AtomicRequest {
        op: AtomicOp::CMP_SWAP,
        request_id: 5,
        stag: Rkey(9),
        offset: 0x4242,
        add_swap: 1,
        add_swap_mask: 2,
        compare: 77,
        compare_mask: 4,
    };
    let mut atomic_bytes = [0; AtomicRequest::LEN];
    atomic.emit(&mut atomic_bytes);
    let mut response_bytes = [0; AtomicResponse::LEN];
    AtomicResponse { request_id: 5, original: 41 }.emit(&mut response_bytes);
    let mut immediate_bytes = [0; Immediate::LEN];
    Immediate { data: *b"12345678" }.emit(&mut immediate_bytes);
    let refused = Terminate {
        segment_len: Some(20),
        header: Some(Header::Tagged(write)),
        ..Terminate::new(Cause::TAGGED_WRAP)
    };
    let mut terminate_bytes = [0; Terminate::MAX_LEN];
    let terminate_len = refused.emit(&mut terminate_bytes).expect("room");
    let write_fields =
        vec![("iwarp_ddp.stag", "0x00001234"), ("iwarp_ddp.tagged_offset", "0x0000000000005678")];
    vec![
        (Header::Tagged(write), vec![1; 3000], write_fields),
        (untagged(RdmaOp::SEND, QueueNumber::SEND, 1), vec![2; 700], vec![]),
        (
            untagged(RdmaOp::READ_REQUEST, QueueNumber::READ_REQUEST, 1),
            read_bytes.to_vec(),
            vec![("iwarp_rdma.sinkstag", "0x00000077"), ("iwarp_rdma.rdmardsz", "99")],
        ),
        (untagged(RdmaOp::IMMEDIATE, QueueNumber::SEND, 2), immediate_bytes.to_vec(), vec![]),
        (
            untagged(RdmaOp::ATOMIC_REQUEST, QueueNumber::READ_REQUEST, 2),
            atomic_bytes.to_vec(),
            vec![("iwarp_rdma.atomic.compare_data", "77")],
        ),
        (
            untagged(RdmaOp::ATOMIC_RESPONSE, QueueNumber::ATOMIC_RESPONSE, 1),
            response_bytes.to_vec(),
            vec![("iwarp_rdma.atomic.original_remote_data_value", "41")],
        ),
        (
            untagged(RdmaOp::TERMINATE, QueueNumber::TERMINATE, 1),
            terminate_bytes[..terminate_len].to_vec(),
            vec![("iwarp_rdma.term_layer", "0x01"), ("iwarp_rdma.term_errcode_ddp_tagged", "0x03")],
        ),
    ]
}

/// A frame of the connection.
fn frame(from: ([u8; 4], u16), to: ([u8; 4], u16), seq: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0x02; 12];
    out.extend([8, 0]);
    let total = u16::try_from(40 + payload.len()).expect("short");
    out.extend([0x45, 0]);
    out.extend(total.to_be_bytes());
    out.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
    out.extend(from.0);
    out.extend(to.0);
    out.extend(from.1.to_be_bytes());
    out.extend(to.1.to_be_bytes());
    out.extend(seq.to_be_bytes());
    out.extend(1_u32.to_be_bytes());
    out.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    out.extend(payload);
    out
}

fn startup(role: Role, markers: bool) -> Vec<u8> {
    let startup = Startup { markers, crc: true, enhanced: true, ..Startup::new(role, 2) };
    let mut setup = [0; Enhanced::LEN];
    Enhanced { ird: 3, ord: 4, peer_to_peer: false, rtr: Rtr::NONE }.emit(&mut setup);
    let mut out = vec![0; 100];
    let len = startup.emit([&setup, b""], &mut out).expect("room");
    out.truncate(len);
    out
}

fn capture(markers: bool) -> Vec<Vec<u8>> {
    let (request, reply) = (startup(Role::Request, false), startup(Role::Reply, markers));
    let mut frames = vec![
        frame(INITIATOR, RESPONDER, 0, 0x02, b""),
        frame(RESPONDER, INITIATOR, 0, 0x12, b""),
        frame(INITIATOR, RESPONDER, 1, 0x10, b""),
        frame(INITIATOR, RESPONDER, 1, 0x18, &request),
        frame(RESPONDER, INITIATOR, 1, 0x18, &reply),
    ];
    let mut seq = 1 + u32::try_from(request.len()).expect("short");
    let mut framer = Framer::new(true, markers);
    for (header, payload, _) in segments() {
        let mut out = vec![0; framer.wire_len(header.len() + payload.len())];
        let fill = |at: usize, out: &mut [u8]| out.copy_from_slice(&payload[at..at + out.len()]);
        assert_eq!(framer.emit(&header, payload.len(), &mut out, fill), Ok(out.len()));
        frames.push(frame(INITIATOR, RESPONDER, seq, 0x18, &out));
        seq += u32::try_from(out.len()).expect("short");
    }
    frames
}

/// What tshark says; `None` if there is no tshark.
fn tshark(path: &Path, options: &[&str]) -> Option<String> {
    let output = match Command::new("tshark").arg("-r").arg(path).args(options).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        output => output.expect("tshark runs"),
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).expect("text"))
}

#[test]
fn tshark_reads_what_we_write() {
    for markers in [false, true] {
        let name = format!("feroce-iwarp-{}-{markers}.pcap", std::process::id());
        let path = std::env::temp_dir().join(name);
        common::write(&path, &capture(markers));
        let mut columns = vec!["-T", "fields", "-E", "separator=;"];
        columns.extend(FIELDS.iter().flat_map(|field| ["-e", field]));
        let said = tshark(&path, &columns).zip(tshark(&path, &["-V"]));
        std::fs::remove_file(&path).expect("the file is there");
        let Some((fields, words)) = said else { return };
        let lines: Vec<Vec<&str>> = fields.lines().map(|line| line.split(';').collect()).collect();
        assert_eq!(lines.len(), 5 + segments().len());
        assert_eq!(words.matches("(Good CRC32)").count(), segments().len(), "{words}");
        assert_eq!(words.matches("FPDU back pointer").count(), if markers { 8 } else { 0 });
        for (line, (header, _, fields)) in lines.iter().skip(5).zip(segments()) {
            let column = |name| {
                let at = FIELDS.iter().position(|field| *field == name).expect("a column");
                line[at]
            };
            let what = format!("markers {markers}: {header:?}: {line:?}");
            assert_eq!(
                column("iwarp_rdma.opcode"),
                format!("{:#04x}", header.control().opcode.0),
                "{what}"
            );
            for (name, value) in fields {
                assert_eq!(column(name), value, "{what}");
            }
        }
    }
}
