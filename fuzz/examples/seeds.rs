//! Makes the seeds of the corpus anew: from the captures of the wire crate, one frame of each
//! kind, and by hand for targets whose inputs are actions.
//!
//! Usage: cargo run --example seeds

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use feroce_fuzz::packet_as_raw_input;
use feroce_subnet::{Hello, Landing, MadPacket, PortRef, Signal, TrunkMessage};
use feroce_train::{Framing, RxMeta};
use feroce_umad::{Answer, Attached, Registration, Request, pieces};
use feroce_wire::mad::{Attribute, Class, MAD_LEN, MadHeader, Method, Smp};
use feroce_wire::{Bth, Deth, FlowControl, Frame, Gid, IbFrame, Lid, Pkey, Qkey, Qpn};

/// Where the management datagram begins in a packet that carries one.
const BEFORE_MAD: usize = Bth::LEN + Deth::LEN;

/// Requests of programs to a fabric, and answers.
fn umad(corpus: &Path) -> io::Result<()> {
    let host = || "Host1".to_owned();
    let group = Gid([0xff; 16]);
    let requests = [
        Request::Describe { host: host() },
        Request::Open { host: host(), port: 1 },
        Request::Register {
            file: 1,
            registration: Registration { class: 3, ..Default::default() },
        },
        Request::Unregister { file: 1, agent: 2 },
        Request::Attach { host: host(), port: 1 },
        Request::Watch { host: host() },
        Request::Claim { host: host(), port: 1, slot: 2, service: 0x0106_1c06 },
        Request::Resolve { address: [127, 77, 0, 1].into() },
        Request::Join { host: host(), port: 1, group, join_state: 1 },
    ];
    for (i, request) in requests.iter().enumerate() {
        put(corpus, "umad_messages", &format!("seed-request-{i}"), &request.emit())?;
    }
    let attached = Attached { slot: 1, rate_bps: 10, credit: 5, train: 6 };
    let answers =
        [Answer::Done(1), Answer::Refused(19), Answer::Attached(attached), Answer::Port(group)];
    for (i, answer) in answers.iter().enumerate() {
        put(corpus, "umad_messages", &format!("seed-answer-{i}"), &answer.emit())?;
    }
    let whole: Vec<u8> = pieces(&[7; 100]).flatten().collect();
    put(corpus, "umad_messages", "seed-pieces", &whole)
}

fn main() -> io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let corpus = root.join("corpus");
    let mut kinds: BTreeMap<(u8, usize), Vec<u8>> = BTreeMap::new();
    let mut mads: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
    let mut sequence = Vec::new();
    for path in captures(&root.join("../crates/wire/tests/captures"))? {
        for frame in frames(&fs::read(path)?) {
            let Ok(parsed) = Frame::parse_ethernet(frame) else {
                continue;
            };
            let Some(&opcode) = parsed.transport.first() else {
                continue;
            };
            if parsed.transport.len() == BEFORE_MAD + MAD_LEN {
                let mad = &parsed.transport[BEFORE_MAD..];
                mads.entry(mad[17]).or_insert_with(|| mad.to_vec());
            }
            // One of each opcode and rough length.
            let kind = (opcode, parsed.transport.len().min(600) / 100);
            if parsed.transport.len() <= 1200 && !kinds.contains_key(&kind) {
                sequence.extend(packet_as_raw_input(parsed.transport));
                kinds.insert(kind, frame.to_vec());
            }
        }
    }
    for ((opcode, size), frame) in &kinds {
        let name = format!("seed-{opcode:02x}-{size}");
        let parsed = Frame::parse_ethernet(frame).expect("parsed before");
        put(&corpus, "wire_frame", &name, frame)?;
        put(&corpus, "wire_packet", &name, parsed.transport)?;
        put(&corpus, "engine_raw", &name, &packet_as_raw_input(parsed.transport))?;
        let short = parsed.transport.len().min(64);
        put(&corpus, "wire_views", &name, &parsed.transport[..short])?;
    }
    infiniband(root, &corpus)?;
    subnet(root, &corpus)?;
    trunk(&corpus)?;
    umad(&corpus)?;
    sequence.truncate(8000);
    put(&corpus, "engine_raw", "seed-all", &sequence)?;
    let mut segments: BTreeMap<(u8, u8, usize), Vec<u8>> = BTreeMap::new();
    for path in captures(&root.join("../crates/wire/tests/captures/iwarp"))? {
        for payload in tcp_payloads(&fs::read(&path)?) {
            // One of each operation, flags and rough length.
            let kind = (payload[2], payload[3], payload.len() / 50);
            segments.entry(kind).or_insert_with(|| payload.to_vec());
        }
    }
    for ((ddp, rdmap, size), payload) in &segments {
        let name = format!("seed-{ddp:02x}{rdmap:02x}-{size}");
        put(&corpus, "wire_iwarp", &name, payload)?;
        // As a stream in pieces of five bytes.
        put(&corpus, "wire_iwarp", &format!("{name}-stream"), &[&[8][..], payload].concat())?;
    }
    for (name, actions) in streams() {
        put(&corpus, "engine_iwarp", &format!("seed-{name}"), &actions)?;
    }
    for (name, actions) in structured() {
        put(&corpus, "engine_structured", &format!("seed-{name}"), &actions)?;
    }
    for (name, actions) in memory() {
        put(&corpus, "mem_table", &format!("seed-{name}"), &actions)?;
    }
    for (attribute, mad) in &mads {
        put(&corpus, "cm_mad", &format!("seed-{attribute:02x}"), mad)?;
        let actions = [&[11][..], mad, &[1, 2, 0, 0, 12, 0, 4, 1, 9, 255, 8, 0]].concat();
        put(&corpus, "cm_manager", &format!("seed-mad-{attribute:02x}"), &actions)?;
    }
    for (name, actions) in connections() {
        put(&corpus, "cm_manager", &format!("seed-{name}"), &actions)?;
    }
    Ok(())
}

/// One packet of each opcode and length of the capture of an InfiniBand link, and its management
/// datagrams.
fn infiniband(root: &Path, corpus: &Path) -> io::Result<()> {
    let file = fs::read(root.join("../crates/wire/tests/captures/framings/infiniband.pcap"))?;
    let mut kinds: BTreeMap<String, &[u8]> = BTreeMap::new();
    for record in frames(&file) {
        // The header of the record, and its padding.
        let bytes = &record[16..];
        let Ok(frame) = IbFrame::parse(bytes) else {
            continue;
        };
        let packet = &bytes[..bytes.len() - frame.trailer.len()];
        let (opcode, words) = (frame.transport[0], frame.lrh.words);
        kinds.entry(format!("seed-{opcode:02x}-{words}")).or_insert(packet);
        if frame.transport.len() == BEFORE_MAD + MAD_LEN {
            let mad = &frame.transport[BEFORE_MAD..];
            let name = format!("seed-{:02x}-{:02x}-{:02x}", mad[1], mad[3], mad[17]);
            put(corpus, "wire_management", &name, mad)?;
        }
    }
    for (name, packet) in kinds {
        put(corpus, "wire_ib_frame", &name, packet)?;
    }
    let credits = FlowControl { total_blocks_sent: 7, credit_limit: 135, ..FlowControl::default() };
    put(corpus, "wire_management", "seed-flow-control", &credits.sealed())
}

/// Topologies, and every attribute asked for and set at every distance.
fn subnet(root: &Path, corpus: &Path) -> io::Result<()> {
    for name in ["ft4", "ring6"] {
        let net = fs::read(root.join(format!("../crates/subnet/tests/nets/{name}.net")))?;
        put(corpus, "subnet_net", &format!("seed-{name}"), &net)?;
    }
    for attribute in (0x10..=0x1b).chain([0x02, 0x20, 0x36]) {
        let mut actions = Vec::new();
        for (path, method) in [(&[][..], 1), (&[1], 1), (&[1, 7, 2, 2], 1), (&[1, 7], 2)] {
            let header = MadHeader::request(Class(0x81), Method(method), Attribute(attribute));
            let smp = Smp::by_path(header, path).expect("few hops");
            actions.extend([0, 0xff, 0xff]);
            actions.extend(smp.to_bytes());
        }
        actions.extend([2, 7, 3, 1, 3, 5]);
        put(corpus, "subnet_agents", &format!("seed-{attribute:02x}"), &actions)?;
    }
    Ok(())
}

/// What another part of a fabric says from its greeting on.
fn trunk(corpus: &Path) -> io::Result<()> {
    let at = PortRef { node: 0, port: 2 };
    let header = MadHeader::request(Class(0x81), Method(1), Attribute(0x11));
    let mut smp = Smp::by_path(header, &[2]).expect("few hops");
    // It has made its hop.
    smp.header.status = 0x0001;
    let packet = MadPacket {
        slid: Lid::PERMISSIVE,
        dlid: Lid::PERMISSIVE,
        sl: 0,
        pkey: Pkey::DEFAULT,
        src_qpn: Qpn::QP0,
        dst_qpn: Qpn::QP0,
        qkey: Qkey(0),
        gids: None,
        mad: smp.to_bytes(),
    };
    let meta = RxMeta { framing: Framing::InfiniBand, ..RxMeta::default() };
    let messages = [
        TrunkMessage::Hello(Hello::new("b", 7, [127, 77])),
        TrunkMessage::Accepted,
        TrunkMessage::Signal(at, Signal { turn: 1, is_ready: true }),
        TrunkMessage::parse(&[6, 0, 0, 0, 0, 2, 0, 0, 0, 8, 0]).expect("credit"),
        TrunkMessage::Datagram(at, 1, packet),
        TrunkMessage::Packets(Landing { at, lane: 0, hops: 1 }, meta, 64, &[0; 100]),
        TrunkMessage::Signal(at, Signal { turn: 2, is_ready: false }),
        TrunkMessage::Alive,
        TrunkMessage::Refused("no"),
    ];
    let mut all = Vec::new();
    for (i, message) in messages.iter().enumerate() {
        let start = all.len();
        message.emit(&mut all);
        put(corpus, "subnet_trunk", &format!("seed-{i}"), &all[start..])?;
    }
    put(corpus, "subnet_trunk", "seed-all", &all)
}

/// Calls of a consumer, and what it sent turned round.
fn connections() -> Vec<(&'static str, Vec<u8>)> {
    // Connect, hear the request as if a peer had sent it, accept, hear the answer, and so on.
    let both = vec![0, 0, 5, 12, 0, 0, 2, 9, 1, 12, 1, 0, 4, 0, 12, 2, 0, 6, 0, 12, 3, 0, 9, 255];
    let lost = [[0, 0, 5].as_slice(), &[9, 255].repeat(40)].concat();
    let refused = vec![0, 0, 5, 12, 0, 0, 12, 0, 0, 3, 28, 1, 12, 0, 0, 12, 1, 0, 9, 255];
    let asked = vec![1, 1, 12, 0, 1, 7, 3, 1, 12, 1, 1, 9, 255];
    vec![("both", both), ("lost", lost), ("refused", refused), ("asked", asked)]
}

fn put(corpus: &Path, target: &str, name: &str, bytes: &[u8]) -> io::Result<()> {
    fs::create_dir_all(corpus.join(target))?;
    fs::write(corpus.join(target).join(name), bytes)
}

fn captures(folder: &Path) -> io::Result<Vec<std::path::PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "pcap") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// The frames of a little-endian capture.
fn frames(file: &[u8]) -> Vec<&[u8]> {
    let mut frames = Vec::new();
    let mut rest = file.get(24..).unwrap_or_default();
    while let Some((header, after)) = rest.split_at_checked(16) {
        let len = u32::from_le_bytes([header[8], header[9], header[10], header[11]]) as usize;
        let Some((frame, next)) = after.split_at_checked(len) else {
            break;
        };
        frames.push(frame);
        rest = next;
    }
    frames
}

/// What the TCP segments of a capture carry, if it is short.
fn tcp_payloads(file: &[u8]) -> Vec<&[u8]> {
    let mut payloads: Vec<&[u8]> = Vec::new();
    for frame in frames(file) {
        let Some(ip) = frame.get(14..).filter(|ip| ip.len() >= 40 && ip[9] == 6) else {
            continue;
        };
        let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
        let Some(tcp) = ip.get(20..total) else {
            continue;
        };
        let payload = tcp.get(usize::from(tcp[12] >> 4) * 4..).unwrap_or_default();
        if (20..1000).contains(&payload.len()) {
            payloads.push(payload);
        }
    }
    payloads
}

/// Every operation on every queue pair, on a network that works, loses and doubles.
fn structured() -> Vec<(String, Vec<u8>)> {
    let post = |qp: u8, key: u8, len: u8, op: u8| {
        // Action, queue pair, length, address, key, immediate, word, operation; then what the
        // data is and the flags.
        let mut bytes = vec![48, qp, len, 33, 0, key, 1, 2, op];
        if op == 13 {
            bytes.extend([9, 0, 64, 0, 1]);
        }
        bytes.extend([0, 7, 1]);
        bytes
    };
    let mut seeds = Vec::new();
    for qp in 0..7 {
        let mut all = Vec::new();
        for op in 0..16 {
            all.extend(post(qp, 0, op % 11, op));
            all.extend([32, 3]);
        }
        seeds.push((format!("run-{qp}"), all.clone()));
        // Sent, then delivered out of order, twice and not at all.
        let mut lossy = Vec::new();
        for op in [0, 4, 7, 9, 6] {
            lossy.extend(post(qp, 0, 9, op));
        }
        lossy.extend([0, 15, 16, 0, 3, 16, 1, 0, 16, 2, 1, 16, 0, 0, 128, 7, 144, 0, 0]);
        lossy.extend([40, 23, 32, 15, 96, 40, 23, 32, 15]);
        seeds.push((format!("lossy-{qp}"), lossy));
        let mut control = post(qp, 0, 9, 4);
        control.extend([0, 4, 72, qp, 2, 32, 4, 72, qp, 3, 80, qp, 32, 4, 84, 0, 0, 72, qp, 9]);
        control.extend(post(qp, 2, 3, 4));
        control.extend([32, 8, 92, 8, 1]);
        seeds.push((format!("control-{qp}"), control));
    }
    for op in 0..26 {
        let mut injected = Vec::new();
        for qp in [0, 2, 3, 4, 5] {
            injected.extend([100, qp, op, 0, 2, 0, 2, 0, 33, 0, 31, 1, 32, 1]);
        }
        seeds.push((format!("inject-{op:02}"), injected));
    }
    seeds
}

/// Streams of a peer: every operation with right framing, between requests of the host.
fn streams() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    for how in 0..48_u8 {
        let mut actions = vec![how, 6, 5, 9, 0, 5, 20, 1, 5, 200, 2, 7];
        for opcode in 0..12_u8 {
            let tagged = [0xc1, 0x40 | opcode, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0x10, 1, 0, 0, 0, 0];
            let queue = match opcode {
                1 | 10 => 1,
                7 => 2,
                11 => 3,
                _ => 0,
            };
            let untagged =
                [0x41, 0x40 | opcode, 0, 0, 0, 7, 0, 0, 0, queue, 0, 0, 0, 1, 0, 0, 0, 0];
            let is_tagged = matches!(opcode, 0 | 2);
            actions.push(2);
            actions.extend(if is_tagged { tagged } else { untagged });
            actions.extend(is_tagged.then_some(1));
            actions.push(28);
            actions.extend([opcode; 28]);
            actions.extend([6, 7]);
            if how % 12 == opcode {
                break;
            }
        }
        actions.extend([0, 40]);
        actions.extend(b"\x00\x20\x41\x43 the rest is no segment at all");
        seeds.push((format!("{how:02}"), actions));
    }
    seeds
}

/// Registrations, windows and accesses.
fn memory() -> Vec<(String, Vec<u8>)> {
    let reg = [0, 8, 64, 1, 0xff, 0xff];
    let touch = |how: u8| [12, 0, 4, 16, how];
    let mut access = reg.to_vec();
    for how in 0..4 {
        access.extend(touch(how));
    }
    access.extend([4, 0, 12, 0, 4, 16, 0, 10, 0]);
    let mut window = reg.to_vec();
    window.extend([5, 2, 7, 1, 0, 0x33, 0, 4, 32, 7, 0, 0, 12, 1, 2, 8, 0, 9, 1, 0, 11, 0]);
    let fast = [5, 0, 6, 0, 3, 8, 64, 1, 0xff, 0xff, 12, 0, 4, 16, 0, 9, 0, 1].to_vec();
    vec![("access".into(), access), ("window".into(), window), ("fast".into(), fast)]
}
