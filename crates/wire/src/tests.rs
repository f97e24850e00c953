//! Properties that hold for every header, packet and frame.

use alloc::vec::Vec;
use std::path::Path;

use proptest::array::{uniform4, uniform6, uniform16};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::*;

/// `emit`, `parse` and `emit` again agree for a fixed-length header.
macro_rules! emit_parse_emit {
    ($name:ident, $repr:ident, $strategy:expr) => {
        proptest! {
            #[test]
            fn $name(repr in $strategy) {
                let mut bytes = [0xa5; $repr::LEN + 3];
                let (head, _) = bytes.split_first_chunk_mut().expect("long enough");
                repr.emit(head);
                let first = *head;
                let (parsed, rest) = $repr::parse(&bytes).expect("just written");
                prop_assert_eq!(parsed, repr);
                prop_assert_eq!(rest, &[0xa5; 3]);
                let mut second = [0; $repr::LEN];
                parsed.emit(&mut second);
                prop_assert_eq!(first, second);
                prop_assert!($repr::parse(&first[1..]).is_err());
            }
        }
    };
}

fn bth() -> impl Strategy<Value = Bth> {
    let flags = (any::<[bool; 5]>(), 0_u8..4, 0_u8..16, 0_u8..64, 0_u8..128);
    let ids = (any::<u8>(), any::<u16>(), any::<u32>(), any::<u32>());
    (flags, ids).prop_map(|((bits, pad, tver, resv6, resv7), (opcode, pkey, qpn, psn))| Bth {
        opcode: Opcode(opcode),
        solicited: bits[0],
        mig_req: bits[1],
        pad,
        tver,
        pkey: Pkey(pkey),
        fecn: bits[2],
        becn: bits[3],
        resv6,
        dest_qp: Qpn::new(qpn),
        ack_req: bits[4],
        resv7,
        psn: Psn::new(psn),
    })
}

fn reth() -> impl Strategy<Value = Reth> {
    any::<(u64, u32, u32)>().prop_map(|(va, rkey, len)| Reth { va, rkey: Rkey(rkey), len })
}

fn aeth() -> impl Strategy<Value = Aeth> {
    any::<(u8, u32)>()
        .prop_map(|(s, msn)| Aeth { syndrome: Syndrome::from_u8(s), msn: Msn::new(msn) })
}

fn atomic() -> impl Strategy<Value = AtomicEth> {
    any::<(u64, u32, u64, u64)>().prop_map(|(va, rkey, swap_add, compare)| AtomicEth {
        va,
        rkey: Rkey(rkey),
        swap_add,
        compare,
    })
}

fn deth() -> impl Strategy<Value = Deth> {
    any::<(u32, u32)>().prop_map(|(q, s)| Deth { qkey: Qkey(q), src_qp: Qpn::new(s) })
}

fn feth() -> impl Strategy<Value = Feth> {
    (any::<u8>(), any::<u8>(), 0_u32..1 << 26).prop_map(|(p, s, reserved)| Feth {
        placement: FlushPlacement::new(p),
        selectivity: FlushSelectivity::from_bits(s),
        reserved,
    })
}

fn grh() -> impl Strategy<Value = Grh> {
    let head = (0_u8..16, any::<u8>(), 0_u32..1 << 20, any::<u16>(), any::<u8>(), any::<u8>());
    let gids = (uniform16(any::<u8>()), uniform16(any::<u8>()));
    (head, gids).prop_map(|((version, class, flow, len, next, hops), (src, dst))| Grh {
        ip_version: version,
        traffic_class: class,
        flow_label: flow,
        payload_len: len,
        next_header: next,
        hop_limit: hops,
        sgid: Gid(src),
        dgid: Gid(dst),
    })
}

fn lrh() -> impl Strategy<Value = Lrh> {
    let nibbles = (0_u8..16, 0_u8..16, 0_u8..16, 0_u8..4, 0_u8..4, 0_u8..32);
    (nibbles, any::<u16>(), 0_u16..2048, any::<u16>()).prop_map(
        |((vl, lver, sl, resv2, next, resv5), dlid, words, slid)| Lrh {
            vl,
            lver,
            sl,
            resv2,
            next: LinkNext::from_bits(next),
            dlid: Lid(dlid),
            resv5,
            words,
            slid: Lid(slid),
        },
    )
}

fn udp() -> impl Strategy<Value = Udp> {
    any::<(u16, u16, u16, u16)>().prop_map(|(src_port, dst_port, len, checksum)| Udp {
        src_port,
        dst_port,
        len,
        checksum,
    })
}

fn ipv4() -> impl Strategy<Value = Ipv4> {
    let small = (0_u8..64, 0_u8..4, any::<[bool; 3]>(), 0_u16..1 << 13);
    let plain = any::<(u16, u16, u8, u8)>();
    let addresses = (uniform4(any::<u8>()), uniform4(any::<u8>()));
    let options = (0_usize..=10).prop_flat_map(|words| vec(any::<u8>(), words * 4));
    (small, plain, addresses, options).prop_map(
        |((dscp, ecn, bits, fragment_offset), (total_len, id, ttl, protocol), (src, dst), o)| {
            Ipv4 {
                dscp,
                ecn,
                total_len,
                id,
                reserved_flag: bits[0],
                dont_fragment: bits[1],
                more_fragments: bits[2],
                fragment_offset,
                ttl,
                protocol,
                src,
                dst,
                options: Ipv4Options::new(&o).expect("whole words"),
            }
        },
    )
}

fn ethernet() -> impl Strategy<Value = Ethernet> {
    let addresses = (uniform6(any::<u8>()), uniform6(any::<u8>()));
    (addresses, option::of(any::<u16>()), any::<u16>())
        .prop_filter("a tag is not a type", |(_, _, t)| *t != VLAN_ETHERTYPE)
        .prop_map(|((dst, src), tag, ethertype)| Ethernet {
            dst,
            src,
            vlan: tag.map(VlanTag),
            ethertype,
        })
}

emit_parse_emit!(bth_round_trip, Bth, bth());
emit_parse_emit!(reth_round_trip, Reth, reth());
emit_parse_emit!(aeth_round_trip, Aeth, aeth());
emit_parse_emit!(atomic_round_trip, AtomicEth, atomic());
emit_parse_emit!(
    atomic_ack_round_trip,
    AtomicAckEth,
    any::<u64>().prop_map(|original| AtomicAckEth { original })
);
emit_parse_emit!(deth_round_trip, Deth, deth());
emit_parse_emit!(
    xrceth_round_trip,
    XrcEth,
    any::<u32>().prop_map(|n| XrcEth { srqn: Srqn::new(n) })
);
emit_parse_emit!(immdt_round_trip, ImmDt, any::<u32>().prop_map(|n| ImmDt { imm: Imm(n) }));
emit_parse_emit!(ieth_round_trip, Ieth, any::<u32>().prop_map(|n| Ieth { rkey: Rkey(n) }));
emit_parse_emit!(feth_round_trip, Feth, feth());
emit_parse_emit!(
    cnp_round_trip,
    CnpReserved,
    uniform16(any::<u8>()).prop_map(|bytes| CnpReserved { bytes })
);
emit_parse_emit!(grh_round_trip, Grh, grh());
emit_parse_emit!(lrh_round_trip, Lrh, lrh());
emit_parse_emit!(udp_round_trip, Udp, udp());

proptest! {
    #[test]
    fn ipv4_round_trip(repr in ipv4()) {
        let mut bytes = [0; Ipv4::MAX_LEN];
        let len = repr.emit(&mut bytes).expect("fits");
        prop_assert_eq!(Ipv4::parse(&bytes[..len]), Ok((repr, &[][..])));
        prop_assert!(Ipv4View::new_checked(&bytes).expect("a header").checksum_ok());
        prop_assert_eq!(repr.emit(&mut bytes[..len - 1]), Err(Truncated));
    }

    #[test]
    fn ethernet_round_trip(repr in ethernet()) {
        let mut bytes = [0; Ethernet::MAX_LEN];
        let len = repr.emit(&mut bytes).expect("fits");
        prop_assert_eq!(Ethernet::parse(&bytes[..len]), Ok((repr, &[][..])));
        prop_assert_eq!(Ethernet::parse(&bytes[..len - 1]), Err(Truncated));
        prop_assert_eq!(repr.emit(&mut bytes[..len - 1]), Err(Truncated));
    }

    #[test]
    fn frames_round_trip(
        transport in vec(any::<u8>(), 0..200),
        a in uniform16(any::<u8>()),
        b in uniform16(any::<u8>()),
        port in any::<u16>(),
        trailer in vec(any::<u8>(), 0..20),
        ecn in any::<u8>(),
    ) {
        let (v4a, v4b) = ([a[0], a[1], a[2], a[3]], [b[0], b[1], b[2], b[3]]);
        for frame in [
            Frame::v4(v4a, v4b, port, &transport),
            Frame::v6(a, b, port, &transport),
            Frame::v1(Gid(a), Gid(b), &transport),
        ] {
            let frame = frame.expect("short").on_ethernet([2; 6], [4; 6]);
            let frame = Frame { trailer: &trailer, ..frame };
            let mut out = [0; 512];
            let len = frame.emit(&mut out).expect("fits");
            prop_assert_eq!(Frame::parse_ethernet(&out[..len]), Ok(frame));
            prop_assert!(frame.icrc_ok());
            let wrong = Frame { icrc: frame.icrc ^ 0x100, ..frame };
            prop_assert!(!wrong.icrc_ok());
            // Cutting into the packet shows; cutting the trailer does not.
            let cut = len - trailer.len() - 1;
            prop_assert_eq!(Frame::parse_ethernet(&out[..cut]), Err(FrameError::Truncated));
            // A switch may mark congestion.
            if let Net::V4(ip, udp) = frame.net {
                let marked = Ipv4 { ecn: ecn & 3, ttl: ecn, ..ip };
                let marked = Frame { net: Net::V4(marked, udp), ..frame };
                prop_assert!(marked.icrc_ok());
            }
            fuzzing::frame(&out[..len]);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..160)) {
        fuzzing::views(&bytes);
        fuzzing::packet(&bytes);
        fuzzing::frame(&bytes);
        fuzzing::ib_frame(&bytes);
        for version in [0x45, 0x46, 0x4f, 0x60] {
            let mut ip = bytes.clone();
            if let Some(first) = ip.first_mut() {
                *first = version;
            }
            fuzzing::views(&ip);
            fuzzing::frame(&ip);
        }
    }

    #[test]
    fn records_of_management_keep_every_bit_that_they_name(bytes in vec(any::<u8>(), 0..300)) {
        fuzzing::management(&bytes);
    }

    #[test]
    fn opcodes_over_arbitrary_bytes(opcode in any::<u8>(), mut bytes in vec(any::<u8>(), 1..120)) {
        bytes[0] = opcode;
        fuzzing::packet(&bytes);
        let header_len = Opcode(opcode).header_len();
        let parsed = Packet::parse(&bytes);
        prop_assert_eq!(
            parsed.is_ok(),
            header_len.is_some_and(|n| {
                let pad = bytes.get(1).map_or(0, |flags| usize::from(flags >> 4 & 3));
                bytes.len() >= n + pad
            })
        );
    }
}

/// Real frames with a few bits flipped.
#[test]
fn damaged_captures_never_panic() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures");
    let mut seed = 0x9e37_79b9_u32;
    let mut random = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 17;
        seed ^= seed << 5;
        seed as usize % below
    };
    let mut files = 0;
    for entry in std::fs::read_dir(dir).expect("captures") {
        let path = entry.expect("entry").path();
        if path.extension().is_none_or(|e| e != "pcap") {
            continue;
        }
        files += 1;
        let bytes = std::fs::read(path).expect("capture");
        let mut rest = &bytes[24..];
        while let Some((head, after)) = rest.split_first_chunk::<16>() {
            let len = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
            let (frame, after) = after.split_at(len as usize);
            rest = after;
            fuzzing::frame(frame);
            for _ in 0..8 {
                let mut damaged = Vec::from(frame);
                for _ in 0..random(4) {
                    damaged[random(frame.len().min(90))] ^= 1 << random(8);
                }
                damaged.truncate(frame.len() - random(40));
                fuzzing::frame(&damaged);
                fuzzing::packet(damaged.get(42..).unwrap_or(&[]));
                fuzzing::views(damaged.get(42..).unwrap_or(&[]));
            }
        }
    }
    assert_eq!(files, 99);
}
