//! Connection management of the Linux kernel's driver: every datagram parsed and written back.

use crate::common;
use std::collections::BTreeMap;
use std::net::IpAddr;

use feroce_wire::cm::{CmMessage, IpCm, PortSpace, RejReason};
use feroce_wire::{Frame, Packet, Pmtu, Qpn};

/// The management datagrams of a capture.
fn datagrams(path: &std::path::Path) -> Vec<Vec<u8>> {
    common::read(path)
        .into_iter()
        .filter_map(|bytes| {
            let frame = Frame::parse_ethernet(&bytes).ok()?;
            let packet = Packet::parse(frame.transport).ok()?;
            (packet.bth.dest_qp == Qpn::QP1).then(|| packet.payload.to_vec())
        })
        .collect()
}

#[test]
fn every_datagram_comes_back_byte_for_byte() {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, path) in common::captures() {
        for bytes in datagrams(&path) {
            let (transaction, message) =
                CmMessage::parse(&bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(message.emit(transaction)[..], bytes[..], "{name}: {message:?}");
            *seen.entry(message.name()).or_default() += 1;
        }
    }
    let seen: Vec<_> = seen.into_iter().collect();
    assert_eq!(seen, EXPECTED);
}

/// How many of each there are in all captures together.
const EXPECTED: [(&str, usize); 8] = [
    ("DREP", 16),
    ("DREQ", 18),
    ("REJ", 4),
    ("REP", 16),
    ("REQ", 21),
    ("RTU", 16),
    ("SIDR_REP", 1),
    ("SIDR_REQ", 1),
];

fn messages(name: &str) -> Vec<CmMessage> {
    let (_, path) = common::captures().into_iter().find(|(n, _)| n == name).expect("a capture");
    let parse = |bytes: Vec<u8>| CmMessage::parse(&bytes).expect("CM").1;
    datagrams(&path).into_iter().map(parse).collect()
}

#[test]
fn an_rping_says_who_connects_to_whom() {
    let all = messages("rping");
    let Some(CmMessage::Req(req)) = all.first() else { panic!("{all:?}") };
    assert_eq!(req.service_id.as_ip(), Some((PortSpace::Tcp, 7174)));
    assert_eq!(req.path_mtu(), Some(Pmtu::B1024));
    assert_eq!(req.primary.local_gid.as_ipv4(), Some([10, 77, 0, 1]));
    assert_eq!(req.primary.remote_gid.as_ipv4(), Some([10, 77, 0, 2]));
    let ip = IpCm::parse(&req.private_data).expect("long enough").expect("an IP version");
    assert_eq!((ip.src, ip.dst), (IpAddr::from([10, 77, 0, 1]), IpAddr::from([10, 77, 0, 2])));
    let Some(CmMessage::Rep(rep)) = all.get(1) else { panic!("{all:?}") };
    assert_eq!(rep.remote_id, req.local_id);
    let Some(CmMessage::Rtu(rtu)) = all.get(2) else { panic!("{all:?}") };
    assert_eq!((rtu.local_id, rtu.remote_id), (req.local_id, rep.local_id));
}

#[test]
fn a_missing_listener_is_an_invalid_service() {
    let all = messages("cm_reject_nolistener");
    let Some(CmMessage::Rej(rej)) = all.last() else { panic!("{all:?}") };
    assert_eq!(rej.reason, RejReason::INVALID_SERVICE_ID);
}

#[test]
fn no_datagram_can_panic() {
    let mut bytes = messages("rping")[0].emit(7);
    for at in 0..bytes.len() {
        for value in [0, 0x7f, 0xff] {
            let kept = std::mem::replace(&mut bytes[at], value);
            if let Ok((transaction, message)) = CmMessage::parse(&bytes) {
                let _ = message.emit(transaction);
            }
            bytes[at] = kept;
        }
        assert!(CmMessage::parse(&bytes[..at]).is_err());
    }
}
