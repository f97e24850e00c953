//! Packets of the Linux kernel's software RDMA driver: parsed, checked and written back.

use crate::common;
use feroce_wire::{
    Feth, FlushPlacement, FlushSelectivity, Frame, NakCode, Net, Op, Opcode, Packet, ParseError,
    Psn, Qpn, Service, Syndrome, icrc,
};

const FILES: usize = 99;
const PACKETS: usize = 1261;

/// Every frame with the name of its file and its number in it, from 1.
fn frames() -> impl Iterator<Item = (String, usize, Vec<u8>)> {
    common::captures().into_iter().flat_map(|(name, path)| {
        let numbered = (1..).zip(common::read(&path));
        numbered.map(move |(number, bytes)| (name.clone(), number, bytes)).collect::<Vec<_>>()
    })
}

#[test]
fn every_packet_parses_and_comes_back_byte_for_byte() {
    assert_eq!(common::captures().len(), FILES);
    let (mut packets, mut bad_icrc, mut bad_opcode) = (0, Vec::new(), Vec::new());
    for (name, number, bytes) in frames() {
        let frame =
            Frame::parse_ethernet(&bytes).unwrap_or_else(|e| panic!("{name} {number}: {e}"));
        packets += 1;
        let mut out = vec![0xaa; bytes.len()];
        assert_eq!(frame.emit(&mut out), Ok(bytes.len()), "{name} {number}");
        assert_eq!(out, bytes, "{name} {number}: frame");
        assert_eq!(Frame::parse_ip(&bytes[14..]), Ok(Frame { eth: None, ..frame }));
        if !frame.icrc_ok() {
            bad_icrc.push((name.clone(), number));
        }
        match Packet::parse(frame.transport) {
            Ok(packet) => {
                let mut out = vec![0xaa; frame.transport.len()];
                assert_eq!(packet.emit(&mut out), Ok(out.len()), "{name} {number}");
                assert_eq!(out, frame.transport, "{name} {number}: transport");
            }
            Err(ParseError::BadOpcode(opcode)) => bad_opcode.push((name, number, opcode)),
            Err(e) => panic!("{name} {number}: {e}"),
        }
    }
    assert_eq!(packets, PACKETS);
    assert_eq!(bad_icrc, [("crafted_bad_icrc".to_owned(), 1)]);
    assert_eq!(bad_opcode, [("crafted_reserved_opcode".to_owned(), 1, Opcode(0x1f))]);
}

#[test]
fn the_ipv4_id_can_be_recovered_from_the_icrc() {
    let mut recovered = 0;
    for (name, number, bytes) in frames() {
        let frame = Frame::parse_ethernet(&bytes).expect("RoCE");
        let Net::V4(ip, udp) = frame.net else {
            continue;
        };
        if !frame.icrc_ok() {
            continue;
        }
        recovered += 1;
        // The receiver knows everything but the identification.
        let mut header = [0; 20];
        feroce_wire::Ipv4 { id: 0, ..ip }.emit(&mut header).expect("no options");
        let mut udp_header = [0; 8];
        udp.emit(&mut udp_header);
        let find =
            |transport: &[u8]| icrc::ipv4_any_id(&header, &udp_header, transport, frame.icrc);
        assert_eq!(find(frame.transport), Some(ip.id), "{name} {number}");
        for at in [0, 5, 11, frame.transport.len() - 1] {
            let mut damaged = frame.transport.to_vec();
            damaged[at] ^= 1;
            assert_eq!(find(&damaged), None, "{name} {number}: bit flipped in byte {at}");
        }
        // Byte 4 is not covered.
        let mut marked = frame.transport.to_vec();
        marked[4] ^= 0xff;
        assert_eq!(find(&marked), Some(ip.id), "{name} {number}");
        // One prefix serves every identification.
        let prefix = icrc::IcrcPrefix::ipv4(&header, &udp_header).with_ipv4_id(ip.id);
        assert!(prefix.verify(frame.transport, frame.icrc.to_le_bytes()));
    }
    assert_eq!(recovered, 1224);
}

#[test]
fn operations_are_counted_right_over_all_files() {
    let mut histogram = [0_u32; 256];
    for (_, _, bytes) in frames() {
        let frame = Frame::parse_ethernet(&bytes).expect("RoCE");
        if let Ok(packet) = Packet::parse(frame.transport) {
            histogram[usize::from(packet.bth.opcode.0)] += 1;
        }
    }
    let count = |service, op| histogram[usize::from(Opcode::new(service, op).0)];
    // 312 positive and 30 negative ones.
    assert_eq!(count(Service::Rc, Op::Acknowledge), 312 + 8 + 7 + 7 + 7 + 1);
    assert_eq!(count(Service::Rc, Op::SendOnly), 196);
    assert_eq!(count(Service::Rc, Op::ReadRequest), 48);
    assert_eq!(count(Service::Rc, Op::AtomicAcknowledge), 23);
    assert_eq!(count(Service::Rc, Op::SendOnlyInv), 2);
    assert_eq!(count(Service::Rc, Op::Flush), 1);
    assert_eq!(count(Service::Rc, Op::AtomicWrite), 1);
    assert_eq!(count(Service::Uc, Op::WriteFirst), 7);
    assert_eq!(count(Service::Ud, Op::SendOnlyImm), 10);
    // 28 datagrams, and the management messages: 21 + 18 + 16 * 3 + 4 + 2 of them.
    assert_eq!(count(Service::Ud, Op::SendOnly), 28 + 21 + 18 + 16 * 3 + 4 + 2);
}

/// What was captured, in the notation of the captures' own log: `>` is the direction of the first
/// packet, `*n` a run.
#[test]
fn known_sequences_are_recognised() {
    for (name, expected) in SEQUENCES {
        let (_, path) = common::captures().into_iter().find(|(n, _)| n == name).expect("file");
        assert_eq!(sequence(&common::read(&path)), *expected, "{name}");
    }
}

#[test]
fn psn_wraps_where_the_capture_says() {
    let (_, path) = common::captures().into_iter().find(|(n, _)| n == "psn_wrap").expect("file");
    let frames = common::read(&path);
    let packets: Vec<_> = frames.iter().map(|b| Frame::parse_ethernet(b).expect("RoCE")).collect();
    let requests: Vec<Psn> = packets
        .iter()
        .filter_map(|f| Packet::parse(f.transport).ok())
        .filter(|p| p.bth.opcode.decode().is_some_and(|(_, op)| op.is_send() || op.is_write()))
        .map(|p| p.bth.psn)
        .collect();
    assert!(requests.windows(2).all(|w| w[0].is_before(w[1])), "{requests:?}");
    assert!(requests.windows(2).any(|w| w[0].get() > w[1].get()), "no wrap in {requests:?}");
}

/// Payload and extension headers of one file, field by field.
#[test]
fn fields_of_the_operations_file() {
    let (_, path) = common::captures().into_iter().find(|(n, _)| n == "ops_rc").expect("file");
    let frames = common::read(&path);
    let mut packets = frames.iter().map(|bytes| {
        let frame = Frame::parse_ethernet(bytes).expect("RoCE");
        Packet::parse(frame.transport).expect("packet")
    });
    let write = packets.find(|p| p.bth.opcode == Opcode(0x06)).expect("WRITE first");
    let reth = write.exts.reth.expect("RETH");
    assert_eq!((write.payload.len(), reth.va & 0xffff_0000), (1024, 0x2000_0000));
    assert!(reth.len > 2048 && reth.len <= 3 * 1024, "three packets: {}", reth.len);
    let read = packets.find(|p| p.bth.opcode == Opcode(0x0c)).expect("READ request");
    assert!(read.bth.ack_req && read.payload.is_empty());
    let atomic = packets.find(|p| p.bth.opcode == Opcode(0x14)).expect("fetch and add");
    assert_eq!(atomic.exts.atomic.expect("AtomicETH").va % 8, 0);
    let ack = packets.find(|p| p.bth.opcode == Opcode(0x12)).expect("atomic acknowledge");
    assert!(ack.exts.atomic_ack.is_some());
    assert!(matches!(ack.exts.aeth.expect("AETH").syndrome, Syndrome::Ack { .. }));
    assert_ne!(ack.bth.dest_qp, Qpn::QP1);
}

/// FLUSH and ATOMIC WRITE requests.
#[test]
fn fields_of_memory_placement_requests() {
    let first = |name: &str| {
        let (_, path) = common::captures().into_iter().find(|(n, _)| n == name).expect("file");
        common::read(&path).swap_remove(0)
    };
    let bytes = first("crafted_flush");
    let flush = Packet::parse(Frame::parse_ethernet(&bytes).expect("RoCE").transport);
    let exts = flush.expect("packet").exts;
    assert_eq!(exts.feth, Some(Feth::new(FlushPlacement::GLOBAL, FlushSelectivity::Range)));
    assert_eq!(exts.reth.map(|r| (r.va, r.len)), Some((0x2000_1000, 64)));
    let bytes = first("crafted_atomic_write");
    let write = Packet::parse(Frame::parse_ethernet(&bytes).expect("RoCE").transport);
    let write = write.expect("packet");
    assert_eq!(write.exts.reth.map(|r| (r.va, r.len)), Some((0x2000_0008, 8)));
    assert_eq!(write.payload.len(), 8);
}

fn sequence(frames: &[Vec<u8>]) -> String {
    let mut runs: Vec<(String, usize)> = Vec::new();
    let mut first = None;
    for bytes in frames {
        let frame = Frame::parse_ethernet(bytes).expect("RoCE");
        let src = frame.eth.expect("Ethernet").src;
        let arrow = if *first.get_or_insert(src) == src { '>' } else { '<' };
        let name = format!("{arrow}{}", name_of(&Packet::parse(frame.transport).expect("packet")));
        match runs.last_mut() {
            Some((last, n)) if *last == name => *n += 1,
            _ => runs.push((name, 1)),
        }
    }
    let runs = runs.into_iter().map(|(s, n)| if n > 1 { format!("{s}*{n}") } else { s });
    runs.collect::<Vec<_>>().join(" ")
}

/// Name in the notation of the log.
fn name_of(packet: &Packet<'_>) -> String {
    let (service, op) = packet.bth.opcode.decode().expect("opcode");
    let op = match op {
        Op::SendFirst => "SEND_FIRST",
        Op::SendMiddle => "SEND_MIDDLE",
        Op::SendLast => "SEND_LAST",
        Op::SendLastImm => "SEND_LAST_IMM",
        Op::SendOnly => "SEND_ONLY",
        Op::SendOnlyImm => "SEND_ONLY_IMM",
        Op::SendOnlyInv => "SEND_ONLY_INV",
        Op::WriteFirst => "WRITE_FIRST",
        Op::WriteMiddle => "WRITE_MIDDLE",
        Op::WriteLast => "WRITE_LAST",
        Op::WriteLastImm => "WRITE_LAST_IMM",
        Op::WriteOnly => "WRITE_ONLY",
        Op::WriteOnlyImm => "WRITE_ONLY_IMM",
        Op::ReadRequest => "READ_REQ",
        Op::ReadResponseFirst => "READ_RESP_FIRST",
        Op::ReadResponseMiddle => "READ_RESP_MIDDLE",
        Op::ReadResponseLast => "READ_RESP_LAST",
        Op::ReadResponseOnly => "READ_RESP_ONLY",
        Op::AtomicAcknowledge => "ATOMIC_ACK",
        Op::CmpSwap => "CMP_SWAP",
        Op::FetchAdd => "FETCH_ADD",
        Op::Acknowledge => match packet.exts.aeth.expect("AETH").syndrome {
            Syndrome::Ack { .. } => "ACK",
            Syndrome::RnrNak { .. } => "RNR_NAK",
            Syndrome::Nak(NakCode::RemoteAccess) => "NAK_REMOTE_ACCESS_ERR",
            other => panic!("{other:?} is in none of these files"),
        },
        other => panic!("{other:?} is in none of these files"),
    };
    format!("{}.{op}", format!("{service:?}").to_uppercase())
}

const SEQUENCES: &[(&str, &str)] = &[
    ("ib_atomic_cas", ">RC.CMP_SWAP*4 <RC.ATOMIC_ACK*4 >RC.CMP_SWAP <RC.ATOMIC_ACK"),
    ("ib_atomic_faa", ">RC.FETCH_ADD*5 <RC.ATOMIC_ACK*5"),
    (
        "srq_pingpong",
        ">RC.SEND_ONLY*4 <RC.ACK*4 <RC.SEND_ONLY*4 >RC.ACK*4 >RC.SEND_ONLY*4 <RC.ACK*4 \
         <RC.SEND_ONLY*4 >RC.ACK*4",
    ),
    (
        "ops_send_inv",
        ">RC.WRITE_ONLY <RC.ACK >RC.SEND_ONLY_INV <RC.ACK >RC.SEND_ONLY <RC.ACK >RC.WRITE_ONLY \
         <RC.NAK_REMOTE_ACCESS_ERR",
    ),
    (
        "ops_uc",
        ">UC.SEND_ONLY*5 >UC.SEND_ONLY_IMM >UC.SEND_ONLY >UC.SEND_FIRST >UC.SEND_MIDDLE \
         >UC.SEND_LAST >UC.SEND_FIRST >UC.SEND_LAST_IMM >UC.WRITE_ONLY >UC.WRITE_FIRST \
         >UC.WRITE_MIDDLE >UC.WRITE_LAST >UC.WRITE_ONLY_IMM >UC.WRITE_FIRST >UC.WRITE_LAST_IMM \
         >UC.WRITE_ONLY_IMM >UC.WRITE_ONLY >UC.SEND_ONLY*2 >UC.WRITE_ONLY",
    ),
    ("ops_ud", ">UD.SEND_ONLY*3 >UD.SEND_ONLY_IMM >UD.SEND_ONLY*3"),
    (
        "psn_wrap",
        ">RC.SEND_FIRST >RC.SEND_MIDDLE >RC.SEND_LAST <RC.ACK >RC.WRITE_FIRST >RC.WRITE_MIDDLE \
         >RC.WRITE_LAST <RC.ACK >RC.READ_REQ <RC.READ_RESP_FIRST <RC.READ_RESP_MIDDLE*2 \
         <RC.READ_RESP_LAST >RC.SEND_ONLY <RC.ACK",
    ),
    (
        "rnr_retry",
        ">RC.SEND_ONLY <RC.RNR_NAK >RC.SEND_ONLY <RC.RNR_NAK >RC.SEND_ONLY <RC.RNR_NAK \
         >RC.SEND_ONLY <RC.ACK",
    ),
    (
        "ops_rc",
        ">RC.SEND_ONLY <RC.ACK >RC.SEND_ONLY <RC.ACK >RC.SEND_ONLY <RC.ACK >RC.SEND_ONLY <RC.ACK \
         >RC.SEND_ONLY <RC.ACK >RC.SEND_ONLY_IMM <RC.ACK >RC.SEND_ONLY <RC.ACK >RC.SEND_FIRST \
         >RC.SEND_MIDDLE >RC.SEND_LAST <RC.ACK >RC.SEND_FIRST >RC.SEND_LAST_IMM <RC.ACK \
         >RC.WRITE_ONLY <RC.ACK >RC.WRITE_FIRST >RC.WRITE_MIDDLE >RC.WRITE_LAST <RC.ACK \
         >RC.WRITE_ONLY_IMM <RC.ACK >RC.WRITE_FIRST >RC.WRITE_LAST_IMM <RC.ACK \
         >RC.WRITE_ONLY_IMM <RC.ACK >RC.WRITE_ONLY <RC.ACK >RC.SEND_ONLY <RC.ACK >RC.SEND_ONLY \
         <RC.ACK >RC.WRITE_ONLY <RC.ACK >RC.READ_REQ <RC.READ_RESP_ONLY >RC.READ_REQ \
         <RC.READ_RESP_FIRST <RC.READ_RESP_MIDDLE*2 <RC.READ_RESP_LAST >RC.READ_REQ \
         <RC.READ_RESP_FIRST <RC.READ_RESP_LAST >RC.READ_REQ <RC.READ_RESP_ONLY >RC.FETCH_ADD \
         <RC.ATOMIC_ACK >RC.CMP_SWAP <RC.ATOMIC_ACK >RC.CMP_SWAP <RC.ATOMIC_ACK",
    ),
];
