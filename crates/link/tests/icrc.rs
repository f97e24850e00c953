//! The ICRC of captured packets of every framing: the checker passes them, and the sealer computes
//! the same.

use std::fs;
use std::path::PathBuf;

use feroce_link::{Checker, IcrcPolicy, Sealer};
use feroce_train::{Ext, Framing, Path, Payload, PortAddr, RxMeta, RxTrain, Train, TrainOps};
use feroce_wire::{BthView, Frame, Gid, Grh, LinkNext, LrhView, Net};

/// Link type of Ethernet, and of the records that Endace's capture cards write.
const ETHERNET: u32 = 1;
const ERF: u32 = 197;
/// Length of the header of such a record, and the record type that is InfiniBand.
const ERF_HEADER: usize = 16;
const ERF_INFINIBAND: u8 = 21;
/// Length of the CRC behind the ICRC that each InfiniBand link computes anew.
const VCRC: usize = 2;

/// A captured packet.
#[derive(Debug)]
struct Captured {
    /// Its headers below the BTH.
    meta: RxMeta,
    ipv4_id: u16,
    /// From the BTH to the ICRC.
    bytes: Vec<u8>,
}

/// A capture beside the tests of `wire`.
fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../wire/tests/captures").join(name)
}

/// The packets of a capture.
fn packets(path: &std::path::Path) -> Vec<Captured> {
    let bytes = fs::read(path).expect("capture");
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let (mut found, mut at) = (Vec::new(), 24);
    while at < bytes.len() {
        let end = at + 16 + word(at + 8) as usize;
        let frame = &bytes[at + 16..end];
        found.push(match word(20) {
            ETHERNET => on_ethernet(frame),
            ERF => on_infiniband(frame),
            other => panic!("{}: link type {other}", path.display()),
        });
        at = end;
    }
    found
}

fn on_ethernet(bytes: &[u8]) -> Captured {
    let frame = Frame::parse_ethernet(bytes).expect("a RoCE frame");
    let udp_sport = frame.net.udp().map_or(0, |udp| udp.src_port);
    let (framing, src, dst, ipv4_id) = match frame.net {
        Net::V4(ip, _) => (Framing::RoceV2, Gid::from_ipv4(ip.src), Gid::from_ipv4(ip.dst), ip.id),
        Net::V6(ip, _) => (Framing::RoceV2, Gid(ip.src), Gid(ip.dst), 0),
        Net::Grh(grh) => (Framing::RoceV1, grh.sgid, grh.dgid, 0),
    };
    let meta = RxMeta { src: src.into(), dst: dst.into(), udp_sport, framing, ..RxMeta::default() };
    Captured { meta, ipv4_id, bytes: [frame.transport, &frame.icrc.to_le_bytes()].concat() }
}

fn on_infiniband(record: &[u8]) -> Captured {
    let (header, bytes) = record.split_at(ERF_HEADER);
    assert_eq!(header[8], ERF_INFINIBAND);
    let lrh = LrhView::new_checked(bytes).expect("an LRH").to_repr();
    let mut bytes = &bytes[..usize::from(lrh.words) * 4 + VCRC][8..];
    let (mut src, mut dst) = (Gid::ZERO, Gid::ZERO);
    if lrh.next == LinkNext::Global {
        let (grh, rest) = Grh::parse(bytes).expect("a GRH");
        (src, dst, bytes) = (grh.sgid, grh.dgid, rest);
    }
    let meta = RxMeta {
        src: PortAddr { gid: src, lid: lrh.slid },
        dst: PortAddr { gid: dst, lid: lrh.dlid },
        framing: Framing::InfiniBand,
        sl: lrh.sl,
        ..RxMeta::default()
    };
    Captured { meta, ipv4_id: 0, bytes: bytes[..bytes.len() - VCRC].to_vec() }
}

/// Whether the checker passes a packet.
fn passes(meta: RxMeta, bytes: &[u8]) -> bool {
    let train = RxTrain { meta, bytes, stride: bytes.len(), trailer: 0, remote: None };
    let (mut checker, mut passed) = (Checker::new(IcrcPolicy::AnyId), false);
    // A packet like the last one is checked by itself.
    for _ in 0..2 {
        passed = false;
        checker.pass(&train, &mut |_| passed = true);
    }
    passed
}

/// The packet as the sealer writes it.
fn sealed(packet: &Captured) -> Vec<u8> {
    let RxMeta { src, dst, udp_sport, framing, sl, .. } = packet.meta;
    let (transport, _) = packet.bytes.split_last_chunk::<4>().expect("an ICRC");
    let bth = BthView::new_checked(transport).expect("a BTH").to_repr();
    let train = Train {
        path: Path { src, dst, framing, sl, ..Path::default() },
        bth,
        ops: TrainOps::all(bth.opcode),
        count: 1,
        stride: 0,
        payload_len: 0,
        head: Ext::NONE,
        body: Ext::NONE,
        tail: Ext::NONE,
        payload: Payload::Packets { bytes: transport.into(), len: transport.len() },
        revocation_epoch: None,
    };
    let mut out = vec![0; packet.bytes.len()];
    let len = Sealer::default().emit(&train, udp_sport, (0, packet.ipv4_id), &mut out);
    assert_eq!(len, out.len());
    out
}

/// Checks and seals every packet of a file, and returns them.
fn check(path: &std::path::Path) -> Vec<Captured> {
    let packets = packets(path);
    for (number, packet) in (1..).zip(&packets) {
        let name = format!("{}, packet {number}", path.display());
        let is_bad = name.contains("crafted_bad_icrc") && number == 1;
        assert_eq!(passes(packet.meta, &packet.bytes), !is_bad, "{name}");
        assert_eq!(sealed(packet) == packet.bytes, !is_bad, "{name}");
    }
    packets
}

#[test]
fn roce_v2() {
    let files = fs::read_dir(file("")).expect("captures").map(|entry| entry.expect("entry").path());
    let files = files.filter(|path| path.extension().is_some_and(|e| e == "pcap"));
    let packets: usize = files.map(|path| check(&path).len()).sum();
    assert_eq!(packets, 1261);
}

#[test]
fn roce_v1() {
    let packets = check(&file("framings/roce_v1.pcap"));
    assert_eq!(packets.len(), 3);
    for packet in packets {
        let meta = RxMeta { src: Gid::from_ipv4([10, 0, 0, 1]).into(), ..packet.meta };
        assert!(!passes(meta, &packet.bytes), "GIDs are covered");
        assert!(passes(RxMeta { sl: 7, udp_sport: 9, ..packet.meta }, &packet.bytes));
        assert!(!passes(RxMeta { framing: Framing::RoceV2, ..packet.meta }, &packet.bytes));
    }
}

/// Without GRH the ICRC covers LIDs and service level, with GRH the GIDs instead.
#[test]
fn infiniband() {
    let packets = check(&file("framings/infiniband.pcap"));
    assert_eq!(packets.len(), 43);
    let mut with_grh = 0;
    for packet in packets {
        let RxMeta { src, dst, sl, .. } = packet.meta;
        let is_covered = |meta: RxMeta| !passes(meta, &packet.bytes);
        with_grh += usize::from(packet.meta.has_grh());
        let has_grh = packet.meta.has_grh();
        assert_eq!(is_covered(RxMeta { sl: sl ^ 1, ..packet.meta }), !has_grh);
        assert_eq!(
            is_covered(RxMeta { src: PortAddr { lid: dst.lid, ..src }, ..packet.meta }),
            !has_grh && src.lid != dst.lid
        );
        let gid = Gid([7; 16]);
        assert_eq!(is_covered(RxMeta { src: PortAddr { gid, ..src }, ..packet.meta }), has_grh);
        assert!(is_covered(RxMeta { dst: PortAddr { gid, ..dst }, ..packet.meta }));
    }
    assert!((1..43).contains(&with_grh), "{with_grh}");
}
