//! The one public capture of a real InfiniBand link, of 2008: parsed, checked and written back.
//! And attributes that infiniband-diags dumped, as it explained them.

use std::fs;
use std::path::Path;

use feroce_wire::cm::CmMessage;
use feroce_wire::mad::{
    Attribute, Class, MAD_LEN, MadHeader, Method, NodeInfo, NodeType, PathRecord, PhysicalState,
    PkeyTable, PortInfo, PortState, SaAttribute, SaMad, SlToVl, SmInfo, SmState, Smp, SwitchInfo,
};
use feroce_wire::{Gid, IbFrame, Lid, Opcode, Packet, Pkey, Qpn};

const PACKETS: usize = 43;
/// Link type of records of Endace cards, which have a header of their own.
const LINKTYPE_ERF: u32 = 197;
const ERF_HEADER: usize = 16;
const ERF_INFINIBAND: u8 = 21;

/// The packets from the local route header to the end of the record, which is padded.
fn packets() -> Vec<Vec<u8>> {
    let path = "tests/captures/framings/infiniband.pcap";
    let bytes = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("capture");
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    assert_eq!(word(20), LINKTYPE_ERF);
    let (mut packets, mut at) = (Vec::new(), 24);
    while at < bytes.len() {
        let end = at + 16 + word(at + 8) as usize;
        let record = &bytes[at + 16..end];
        assert_eq!(record[8], ERF_INFINIBAND);
        packets.push(record[ERF_HEADER..].to_vec());
        at = end;
    }
    packets
}

/// The management datagrams, by the number of their packet, from 1.
fn datagrams() -> Vec<(usize, Lid, [u8; MAD_LEN])> {
    let found = (1..).zip(packets()).filter_map(|(number, bytes)| {
        let frame = IbFrame::parse(&bytes).expect("InfiniBand");
        let packet = Packet::parse(frame.transport).expect("transport");
        let is_management = packet.bth.dest_qp == Qpn::QP0 || packet.bth.dest_qp == Qpn::QP1;
        is_management
            .then(|| (number, frame.lrh.slid, packet.payload.try_into().expect("a datagram")))
    });
    found.collect()
}

#[test]
fn every_packet_comes_back_byte_for_byte_and_both_crcs_are_right() {
    let packets = packets();
    assert_eq!(packets.len(), PACKETS);
    let mut with_grh = 0;
    for (number, bytes) in (1..).zip(&packets) {
        let frame = IbFrame::parse(bytes).unwrap_or_else(|e| panic!("{number}: {e}"));
        let mut out = vec![0xaa; bytes.len()];
        assert_eq!(frame.emit(&mut out), Ok(bytes.len()), "{number}");
        assert_eq!(out, *bytes, "{number}: frame");
        assert!(frame.icrc_ok(), "{number}: ICRC");
        assert!(frame.vcrc_ok(), "{number}: VCRC");
        with_grh += usize::from(frame.grh.is_some());
        let packet = Packet::parse(frame.transport).unwrap_or_else(|e| panic!("{number}: {e}"));
        let mut out = vec![0xaa; frame.transport.len()];
        assert_eq!(packet.emit(&mut out), Ok(out.len()), "{number}");
        assert_eq!(out, frame.transport, "{number}: transport");
        // Every byte is covered by the VCRC, and the lane by it alone.
        for at in 0..usize::from(frame.lrh.words) * 4 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            if let Ok(frame) = IbFrame::parse(&damaged) {
                assert!(!frame.vcrc_ok(), "{number}: byte {at}");
                assert!(at != 0 || frame.icrc_ok(), "{number}: lane");
            }
        }
    }
    assert_eq!(with_grh, 6);
}

#[test]
fn every_management_datagram_comes_back_byte_for_byte() {
    let (mut smps, mut queries, mut messages) = (0, 0, 0);
    for (number, _, bytes) in datagrams() {
        let (header, _) = MadHeader::parse(&bytes).expect("a header");
        match Class(header.class) {
            class if class.is_subnet() => {
                let (smp, _) = Smp::parse(&bytes).expect("whole");
                assert_eq!(smp.to_bytes(), bytes, "{number}");
                let (info, _) = SmInfo::parse(&smp.data).expect("whole");
                assert_eq!(info.to_bytes(), smp.data[..SmInfo::LEN], "{number}");
                smps += 1;
            }
            Class::SUBNET_ADMINISTRATION => {
                let (query, _) = SaMad::parse(&bytes).expect("whole");
                assert_eq!(query.to_bytes(), bytes, "{number}");
                let (path, _) = PathRecord::parse(&query.data).expect("whole");
                assert_eq!(path.to_bytes(), query.data[..PathRecord::LEN], "{number}");
                queries += 1;
            }
            Class::COMMUNICATION => {
                let (transaction, message) = CmMessage::parse(&bytes).expect("a message");
                assert_eq!(message.emit(transaction), bytes, "{number}: {}", message.name());
                messages += 1;
            }
            class => panic!("{number}: class {class}"),
        }
    }
    assert_eq!((smps, queries, messages), (6, 2, 9));
}

#[test]
fn the_subnet_manager_and_the_path_are_what_tshark_shows() {
    let datagrams = datagrams();
    let find = |number| datagrams.iter().find(|(n, ..)| *n == number).expect("a datagram").2;
    let (smp, _) = Smp::parse(&find(2)).expect("whole");
    assert_eq!((smp.header.method, smp.header.attribute), (0x81, Attribute::SM_INFO.0));
    assert_eq!((smp.dr_slid, smp.dr_dlid), (Lid::PERMISSIVE, Lid::PERMISSIVE));
    let route = smp.directed_route().expect("a directed route");
    assert!(route.is_returning);
    let (info, _) = SmInfo::parse(&smp.data).expect("whole");
    assert_eq!(info.state, SmState::MASTER);

    let (query, _) = SaMad::parse(&find(33)).expect("whole");
    assert_eq!(Method(query.header.method), Method::GET_RESP);
    assert_eq!(SaAttribute(query.header.attribute), SaAttribute::PATH);
    let (path, _) = PathRecord::parse(&query.data).expect("whole");
    let gid = |text: &str| Gid(text.parse::<std::net::Ipv6Addr>().expect("an address").octets());
    assert_eq!(path.dgid, gid("fe80::2:c903:0:1895"));
    assert_eq!(path.sgid, gid("fe80::2:c902:24:f636"));
    assert_eq!((path.dlid, path.slid), (Lid(2), Lid(4)));
    assert_eq!((path.pkey, path.sl), (Pkey::DEFAULT, 0));
}

#[test]
fn connection_requests_name_lids() {
    let requests: Vec<_> = datagrams()
        .into_iter()
        .filter_map(|(_, slid, bytes)| match CmMessage::parse(&bytes) {
            Ok((_, CmMessage::Req(req))) => Some((slid, req)),
            _ => None,
        })
        .collect();
    assert_eq!(requests.len(), 3);
    for (slid, req) in requests {
        assert_eq!(req.primary.local_lid, slid);
        assert!(req.primary.subnet_local);
    }
}

#[test]
fn opcodes_are_those_of_ipoib() {
    let opcode = |bytes: &[u8]| Opcode(IbFrame::parse(bytes).expect("InfiniBand").transport[0]);
    let mut counts = [0; 256];
    for bytes in packets() {
        counts[usize::from(opcode(&bytes).0)] += 1;
    }
    // SEND only and acknowledgements of RC, SEND only of UD.
    assert_eq!((counts[0x04], counts[0x11], counts[0x64]), (10, 9, 24));
}

/// Bytes as `smpdump` prints them.
fn dump(text: &str) -> [u8; 64] {
    let digits: String = text.split_whitespace().collect();
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("two digits");
    let bytes: Vec<u8> = (0..digits.len()).step_by(2).map(byte).collect();
    bytes.try_into().expect("64 bytes")
}

/// `smpdump 8 0x15 1` and `smpquery portinfo 8 1` of infiniband-diags 44.
#[test]
fn a_port_is_what_smpquery_shows() {
    let bytes = dump(
        "0000 0000 0000 0000 fe80 0000 0000 0000 0008 0001 0050 c048 0000 0000 011f 1f02
         7452 0017 4040 0008 0804 0040 0000 0000 0000 2012 0000 0000 0000 0000 0030 0000",
    );
    let (port, _) = PortInfo::parse(&bytes).expect("whole");
    let expected = PortInfo {
        gid_prefix: 0xfe80_0000_0000_0000,
        lid: Lid(8),
        sm_lid: Lid(1),
        capability_mask: 0x0050_c048,
        local_port: 1,
        link_width_enabled: 0x1f,
        link_width_supported: 0x1f,
        link_width_active: 2,
        link_speed_supported: 7,
        state: PortState::ACTIVE,
        physical_state: PhysicalState::LINK_UP,
        down_default: PhysicalState::POLLING,
        link_speed_active: 1,
        link_speed_enabled: 7,
        neighbor_mtu: 4,
        vl_cap: 4,
        vl_arb_high_cap: 8,
        vl_arb_low_cap: 8,
        mtu_cap: 4,
        operational_vls: 4,
        guid_cap: 32,
        subnet_timeout: 18,
        capability_mask_2: 0x30,
        ..PortInfo::default()
    };
    assert_eq!(port, expected);
    assert_eq!(port.to_bytes(), bytes);
}

/// Likewise `smpquery nodeinfo 8`, `switchinfo 2`, `pkeys 8` and `sl2vl 8`.
#[test]
fn a_node_is_what_smpquery_shows() {
    let node = dump(
        "0101 0101 0000 0000 0010 0006 0000 0000 0010 0006 0000 0000 0010 0007 0040 0000
         0000 00a1 0100 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000",
    );
    let expected = NodeInfo {
        base_version: 1,
        class_version: 1,
        node_type: NodeType::CHANNEL_ADAPTER,
        num_ports: 1,
        system_image_guid: 0x10_0006,
        node_guid: 0x10_0006,
        port_guid: 0x10_0007,
        partition_cap: 64,
        revision: 0xa1,
        local_port: 1,
        ..NodeInfo::default()
    };
    assert_eq!(NodeInfo::parse(&node).expect("whole").0, expected);
    let switch = dump(
        "7800 0000 0400 0008 0000 0090 0000 0040 0000 0000 0000 0000 0000 0000 0000 0000
         0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000",
    );
    let expected = SwitchInfo {
        linear_cap: 30720,
        multicast_cap: 1024,
        linear_top: 8,
        life_time: 18,
        partition_enforcement_cap: 64,
        ..SwitchInfo::default()
    };
    assert_eq!(SwitchInfo::parse(&switch).expect("whole").0, expected);
    let mut keys = [Pkey(0); 32];
    keys[0] = Pkey::DEFAULT;
    assert_eq!(PkeyTable { keys }.to_bytes()[..4], [0xff, 0xff, 0, 0]);
    let lanes = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 7];
    let bytes = [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xe7];
    assert_eq!(SlToVl { lanes }.to_bytes(), bytes);
}
