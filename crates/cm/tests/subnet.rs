//! Connections over an InfiniBand subnet, whose ports are named by LIDs.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::path::Path;

use crate::common::Side;
use feroce_cm::{Accepts, Connect, Event, PathParams, Peer, Serves};
use feroce_wire::cm::{CmMessage, RejReason, Req, ServiceId};
use feroce_wire::{Deth, Gid, IbFrame, Lid, Packet, Pmtu, Qpn};

/// What the data of a record is behind: the header of pcap, and that of ERF.
const PCAP_RECORD: usize = 16;
const ERF_HEADER: usize = 16;

/// The REQ of a link of 2008, and the ports that its local route header names.
fn captured() -> (Peer, Req) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/tests/captures/framings");
    let file = std::fs::read(folder.join("infiniband.pcap")).unwrap();
    let mut rest = &file[24..];
    while let Some((header, after)) = rest.split_at_checked(PCAP_RECORD) {
        let len = u32::from_le_bytes(header[8..12].try_into().unwrap()) as usize;
        let (record, next) = after.split_at(len);
        rest = next;
        let wire = usize::from(u16::from_be_bytes([record[14], record[15]]));
        let Ok(frame) = IbFrame::parse(&record[ERF_HEADER..ERF_HEADER + wire]) else { continue };
        let Ok(packet) = Packet::parse(frame.transport) else { continue };
        if packet.bth.dest_qp != Qpn::QP1 {
            continue;
        }
        let (_, behind) = feroce_wire::Bth::parse(frame.transport).unwrap();
        let Ok((_, mad)) = Deth::parse(behind) else { continue };
        if let Ok((_, CmMessage::Req(req))) = CmMessage::parse(mad) {
            return (peer(frame.lrh.dlid, frame.lrh.slid), req);
        }
    }
    panic!("the capture has a REQ");
}

fn peer(local: Lid, remote: Lid) -> Peer {
    Peer::in_subnet(local, remote)
}

#[test]
fn a_request_of_a_real_subnet_says_where_to_send() {
    let (from, req) = captured();
    assert_eq!((from.local.lid, from.remote.lid), (Lid(1), Lid(4)));
    let mut side = Side::new(Gid::ZERO);
    side.manager.listen(side.now, req.service_id, Accepts::Any, Serves::Connections, 8).unwrap();
    side.receive_from(from, &CmMessage::Req(req));
    let conn = side.request();
    let plan = *side.manager.plan(conn).unwrap();
    assert!(plan.peer.is_subnet());
    assert_eq!(plan.peer, from);
    assert_eq!(plan.remote_qpn, Some(req.qpn));
    assert_eq!(plan.path.gids, Some([req.primary.remote_gid, req.primary.local_gid]));
    assert_eq!((plan.path.sl, plan.path.hop_limit), (req.primary.sl, req.primary.hop_limit));
    assert_eq!(Some(plan.path.mtu), req.path_mtu());
}

#[test]
fn our_request_names_the_path_as_that_of_a_real_subnet_does() {
    let (from, theirs) = captured();
    let mut side = Side::new(Gid::ZERO);
    let path = &theirs.primary;
    let connect = Connect {
        peer: Peer { local: from.remote, remote: from.local, ..from },
        service: theirs.service_id,
        path: PathParams {
            mtu: theirs.path_mtu().unwrap(),
            hop_limit: path.hop_limit,
            sl: path.sl,
            packet_life_time: Some(path.ack_timeout.saturating_sub(1)),
            gids: Some([path.local_gid, path.remote_gid]),
            ..PathParams::default()
        },
        qpn: theirs.qpn,
        ..Connect::default()
    };
    side.manager.connect(side.now, &connect);
    let sent = side.sent();
    let [CmMessage::Req(ours)] = &sent[..] else { panic!("{sent:?}") };
    // The rate is that of the path record, which tells us nothing that we use.
    let mut expected = *path;
    (expected.rate, expected.ack_timeout) = (ours.primary.rate, ours.primary.ack_timeout);
    assert_eq!(ours.primary, expected);
    assert!(ours.primary.subnet_local);
    assert_eq!(ours.mtu_code, theirs.mtu_code);
}

#[test]
fn a_request_must_name_the_port_that_sent_it() {
    let (from, req) = captured();
    let others = [peer(from.local.lid, Lid(9)), peer(Lid(9), from.remote.lid)];
    for other in others {
        let mut side = Side::new(Gid::ZERO);
        side.manager
            .listen(side.now, req.service_id, Accepts::Any, Serves::Connections, 8)
            .unwrap();
        side.receive_from(other, &CmMessage::Req(req));
        assert!(side.events().is_empty());
        let sent = side.sent();
        let [CmMessage::Rej(rej)] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!(rej.reason, RejReason::INVALID_LID);
    }
}

#[test]
fn ports_of_one_subnet_are_told_apart_by_their_lids() {
    let (from, req) = captured();
    let mut side = Side::new(Gid::ZERO);
    side.manager.listen(side.now, req.service_id, Accepts::Any, Serves::Connections, 8).unwrap();
    let mut conns = Vec::new();
    for lid in [Lid(2), Lid(3)] {
        let mut req = req;
        req.primary.local_lid = lid;
        side.receive_from(peer(from.local.lid, lid), &CmMessage::Req(req));
        conns.push(side.request());
    }
    // The peers chose the same number; each has its own connection, and hears of it.
    assert_ne!(conns[0], conns[1]);
    let reject = |side: &mut Side, conn| {
        side.manager.reject(side.now, conn, RejReason::CONSUMER, &[0; 148]).unwrap();
        side.manager.poll_mad().unwrap().peer.remote.lid
    };
    assert_eq!(reject(&mut side, conns[1]), Lid(3));
    assert_eq!(reject(&mut side, conns[0]), Lid(2));
}

#[test]
fn an_ip_service_has_ip_addresses_in_its_private_data() {
    let (from, mut req) = captured();
    req.service_id = ServiceId::ip(feroce_cm::rdma::PortSpace::Tcp, 7471);
    let (src, dst) = ("10.91.0.1:5000".parse().unwrap(), "10.91.0.2:7471".parse().unwrap());
    req.private_data = feroce_cm::rdma::connect_data(src, dst, &[]).unwrap();
    req.mtu_code = Pmtu::B2048.code();
    let mut side = Side::new(Gid::ZERO);
    side.manager.listen(side.now, req.service_id, Accepts::Any, Serves::Connections, 8).unwrap();
    side.receive_from(from, &CmMessage::Req(req));
    let events = side.events();
    let [Event::Request(incoming)] = &events[..] else { panic!("{events:?}") };
    let ip = incoming.ip.unwrap();
    assert_eq!((ip.src, ip.src_port, ip.dst), (src.ip(), 5000, dst.ip()));
}
