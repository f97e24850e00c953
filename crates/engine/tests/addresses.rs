//! Which packets a port and its queue pairs take, by their addresses: GIDs on RoCE; LIDs on
//! InfiniBand, and GIDs too where packets have a GRH.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use feroce_engine::{
    AddrVec, AsyncEvent, AttrMask, Config, CreateError, ModifyQpError, QpAttr, QpType, WcFlags,
};
use feroce_testkit::script::{ACK, no_credits};
use feroce_testkit::{ALL, Host, PEER_PSN, PEER_QPN, Packet, QKEY, Scripted, datagram_qp, header};
use feroce_train::{Framing, GidEntry, Instant, LinkLayer, PortAddr};
use feroce_wire::{Bth, Deth, Gid, Lid, Op, Opcode, Pmtu, Psn, Qpn, Service};

const NOW: Instant = Instant::from_nanos(1_000_000);
const OWN_LID: Lid = Lid(3);
const PEER_LID: Lid = Lid(5);
const PEER_GID: Gid = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5]);

/// A host whose port is on InfiniBand and has a LID.
fn infiniband_host() -> Host {
    let config = Config { link_layer: LinkLayer::InfiniBand, ..no_credits() };
    let mut host = Host::with_config(1, config);
    host.engine.set_lid(OWN_LID);
    assert_eq!(host.async_events(), [AsyncEvent::LidChange { lid: OWN_LID }]);
    host
}

/// A reliable connection over InfiniBand with one receive posted: with a GRH if `dgid` is one.
fn infiniband(dgid: Gid) -> Scripted {
    let mut host = infiniband_host();
    let init = host.init_attr(QpType::Rc);
    let qp = host.create_qp(init);
    let av = AddrVec { dgid, dlid: PEER_LID, ..AddrVec::default() };
    host.modify(NOW, qp.qpn, &QpAttr::init(ALL));
    host.modify(NOW, qp.qpn, &QpAttr::rtr(av, PEER_QPN, Psn::new(PEER_PSN), Pmtu::B1024));
    host.modify(NOW, qp.qpn, &QpAttr::rts(Psn::new(0)));
    let mut script = Scripted { now: NOW, host, qp, peer: dgid, service: Service::Rc };
    script.recv(1, 0, 64);
    script
}

/// A SEND of the peer with these addresses.
fn packet(script: &Scripted, src: PortAddr, dst: PortAddr) -> Packet {
    let mut packet = script.packet(Op::SendOnly, PEER_PSN, true, &[0; 8]);
    packet.meta.framing = Framing::InfiniBand;
    (packet.meta.src, packet.meta.dst) = (src, dst);
    packet
}

/// Delivers a packet that the engine drops because of its addresses.
fn refused(script: &mut Scripted, packet: &Packet) {
    let before = script.host.engine.drops().drop_bad_address;
    assert!(script.deliver(packet).is_empty(), "an answer to {:?}", packet.meta);
    let after = script.host.engine.drops().drop_bad_address;
    assert_eq!(after, before + 1, "{:?}", packet.meta);
    assert!(script.host.poll().is_none(), "a completion from {:?}", packet.meta);
}

/// Delivers a packet that the engine takes, and returns its answer.
fn taken(script: &mut Scripted, packet: &Packet) -> Packet {
    let drops = |script: &Scripted| script.host.engine.drops().iter().map(|(_, n)| n).sum::<u64>();
    let before = drops(script);
    let answers = script.deliver(packet);
    assert_eq!(drops(script), before);
    assert_eq!((answers.len(), answers[0].syndrome()), (1, ACK));
    assert!(script.host.poll().is_some());
    answers[0].clone()
}

#[test]
fn a_local_path_is_compared_by_lid() {
    let local = |lid| PortAddr { gid: Gid::ZERO, lid };
    let (own, peer) = (local(OWN_LID), local(PEER_LID));

    let mut script = infiniband(Gid::ZERO);
    let good = packet(&script, peer, own);
    let answer = taken(&mut script, &good);
    assert_eq!((answer.meta.src, answer.meta.dst), (own, peer));
    assert_eq!(answer.meta.framing, Framing::InfiniBand);

    let mut script = infiniband(Gid::ZERO);
    for (src, dst) in [
        (local(Lid(6)), own),
        (peer, local(Lid(4))),
        (local(Lid(0)), own),
        (peer, local(Lid(0))),
        // Packets of this path have no GRH.
        (
            PortAddr { gid: PEER_GID, lid: PEER_LID },
            PortAddr { gid: script.host.gid, lid: OWN_LID },
        ),
    ] {
        let bad = packet(&script, src, dst);
        refused(&mut script, &bad);
    }
}

#[test]
fn a_global_path_is_compared_by_lid_and_gid() {
    let mut script = infiniband(PEER_GID);
    let own = PortAddr { gid: script.host.gid, lid: OWN_LID };
    let peer = PortAddr { gid: PEER_GID, lid: PEER_LID };
    let other = Gid([0xfe; 16]);
    for (src, dst) in [
        (PortAddr { lid: Lid(6), ..peer }, own),
        (PortAddr { gid: other, ..peer }, own),
        (peer, PortAddr { lid: Lid(4), ..own }),
        (peer, PortAddr { gid: other, ..own }),
        // Packets of this path have a GRH.
        (PortAddr { gid: Gid::ZERO, ..peer }, PortAddr { gid: Gid::ZERO, ..own }),
    ] {
        let bad = packet(&script, src, dst);
        refused(&mut script, &bad);
    }
    let good = packet(&script, peer, own);
    let answer = taken(&mut script, &good);
    assert_eq!((answer.meta.src, answer.meta.dst), (own, peer));
}

#[test]
fn a_port_without_a_lid_takes_nothing_on_infiniband() {
    let mut script = infiniband(Gid::ZERO);
    script.host.engine.set_lid(Lid(0));
    let zero = PortAddr::default();
    let bad = packet(&script, PortAddr { lid: PEER_LID, ..zero }, zero);
    refused(&mut script, &bad);
}

#[test]
fn on_roce_the_framing_of_the_gid_must_match() {
    let mut script = Scripted::rc();
    script.recv(1, 0, 64);
    let good = script.packet(Op::SendOnly, PEER_PSN, true, &[0; 8]);
    let mut bad = good.clone();
    bad.meta.framing = Framing::RoceV1;
    refused(&mut script, &bad);
    // The port has the GID for RoCEv1 as well, but the path of the queue pair is RoCEv2.
    let gid = script.host.gid;
    script.host.engine.set_gid(1, GidEntry { gid, framing: Framing::RoceV1 });
    refused(&mut script, &bad);
    bad.meta.framing = Framing::InfiniBand;
    refused(&mut script, &bad);
    let answer = taken(&mut script, &good);
    assert_eq!(answer.meta.framing, Framing::RoceV2);
}

#[test]
fn the_gid_table_chooses_the_framing_of_a_path() {
    let mut host = Host::new(1);
    let gid = host.gid;
    host.engine.set_gid(1, GidEntry { gid, framing: Framing::RoceV1 });
    let init = host.init_attr(QpType::Rc);
    let qp = host.create_qp(init);
    let dgid = Gid::from_ipv4([10, 0, 0, 99]);
    // A LID means nothing on Ethernet.
    let av = AddrVec { dgid, sgid_index: 1, dlid: Lid(7), ..AddrVec::default() };
    host.modify(NOW, qp.qpn, &QpAttr::init(ALL));
    host.modify(NOW, qp.qpn, &QpAttr::rtr(av, PEER_QPN, Psn::new(PEER_PSN), Pmtu::B1024));
    host.modify(NOW, qp.qpn, &QpAttr::rts(Psn::new(0)));
    let mut script = Scripted { now: NOW, host, qp, peer: dgid, service: Service::Rc };
    script.recv(1, 0, 64);
    let mut good = script.packet(Op::SendOnly, PEER_PSN, true, &[0; 8]);
    refused(&mut script, &good);
    good.meta.framing = Framing::RoceV1;
    let answers = script.deliver(&good);
    let meta = answers[0].meta;
    assert_eq!(meta.framing, Framing::RoceV1);
    assert_eq!((meta.src, meta.dst), (gid.into(), dgid.into()));
}

#[test]
fn on_infiniband_a_destination_is_a_lid() {
    let mut host = infiniband_host();
    let invalid = CreateError::Invalid("the destination LID is zero");
    let no_lid = AddrVec { dgid: PEER_GID, ..AddrVec::default() };
    assert_eq!(host.engine.create_ah(host.pd, no_lid), Err(invalid));
    let group = AddrVec { dlid: Lid(0xc001), ..no_lid };
    assert!(host.engine.create_ah(host.pd, group).is_ok());
    assert!(host.engine.create_ah(host.pd, AddrVec { dlid: PEER_LID, ..no_lid }).is_ok());

    let init = host.init_attr(QpType::Rc);
    let qp = host.create_qp(init);
    host.modify(NOW, qp.qpn, &QpAttr::init(ALL));
    for av in [no_lid, group] {
        let rtr = QpAttr::rtr(av, PEER_QPN, Psn::new(0), Pmtu::B1024);
        let error = host.engine.modify_qp(NOW, qp.qpn, &rtr).unwrap_err();
        assert!(matches!(error, ModifyQpError::BadValue(AttrMask::AV, _)), "{error:?}");
    }
}

#[test]
fn a_datagram_without_a_grh_says_so() {
    let mut host = infiniband_host();
    let mut qp = datagram_qp(&mut host, NOW);
    let deth = Deth { qkey: QKEY, src_qp: Qpn::new(9) };
    let bth = Bth::new(Opcode::new(Service::Ud, Op::SendOnly), qp.qpn, Psn::new(0));
    let mut bytes = header(|out| bth.emit(out));
    bytes.extend(header(|out| deth.emit(out)));
    bytes.extend([7; 8]);
    let mut packet = Packet { meta: Default::default(), bytes };
    (packet.meta.framing, packet.meta.sl) = (Framing::InfiniBand, 6);
    for (gids, flags) in
        [((Gid::ZERO, Gid::ZERO), WcFlags::empty()), ((PEER_GID, host.gid), WcFlags::GRH)]
    {
        host.fill(0, 48, 1);
        qp.rq.as_mut().unwrap().post(host.recv(1, 0, 64)).unwrap();
        packet.meta.src = PortAddr { gid: gids.0, lid: PEER_LID };
        packet.meta.dst = PortAddr { gid: gids.1, lid: OWN_LID };
        host.receive(NOW, &packet);
        let cqe = host.poll().expect("a completion");
        assert_eq!((cqe.flags, cqe.byte_len, cqe.src_qp), (flags, 48, Qpn::new(9)));
        assert_eq!((cqe.slid, cqe.sl, cqe.dlid_path_bits), (PEER_LID, 6, 0));
        assert_eq!(host.read(40, 8), [7; 8]);
        assert_eq!(host.read(0, 40) == [0; 40], flags.is_empty());
    }
}

#[test]
fn a_port_with_several_lids_takes_packets_to_each_and_sends_from_each() {
    let mut host = infiniband_host();
    host.engine.set_lmc(2);
    let lid = OWN_LID;
    assert_eq!(host.async_events(), [AsyncEvent::LidChange { lid }]);
    // LIDs 0 to 3, the base of which is written as 3 here; the bits of the LMC do not count.
    let init = host.init_attr(QpType::Rc);
    let qp = host.create_qp(init);
    let av = AddrVec { dlid: PEER_LID, src_path_bits: 6, sl: 4, ..AddrVec::default() };
    host.modify(NOW, qp.qpn, &QpAttr::init(ALL));
    host.modify(NOW, qp.qpn, &QpAttr::rtr(av, PEER_QPN, Psn::new(PEER_PSN), Pmtu::B1024));
    host.modify(NOW, qp.qpn, &QpAttr::rts(Psn::new(0)));
    let peer = Gid::ZERO;
    let mut script = Scripted { now: NOW, host, qp, peer, service: Service::Rc };
    script.recv(1, 0, 64);
    let port = |lid| PortAddr { gid: Gid::ZERO, lid: Lid(lid) };
    // Bit 2 of the path bits is beyond the LMC.
    let request = packet(&script, port(5), port(2));
    let answer = taken(&mut script, &request);
    assert_eq!((answer.meta.src, answer.meta.dst, answer.meta.sl), (port(2), port(5), 4));
    let other = packet(&script, port(5), port(1));
    refused(&mut script, &other);
    let mut qp = datagram_qp(&mut script.host, NOW);
    let deth = Deth { qkey: QKEY, src_qp: Qpn::new(9) };
    let bth = Bth::new(Opcode::new(Service::Ud, Op::SendOnly), qp.qpn, Psn::new(0));
    let mut bytes = header(|out| bth.emit(out));
    bytes.extend(header(|out| deth.emit(out)));
    let mut datagram = Packet { meta: Default::default(), bytes };
    datagram.meta.framing = Framing::InfiniBand;
    datagram.meta.src = port(5);
    let _ = script.host.poll();
    for bits in 0..4 {
        qp.rq.as_mut().unwrap().post(script.host.recv(1, 0, 64)).unwrap();
        datagram.meta.dst = port(bits);
        script.host.receive(NOW, &datagram);
        let cqe = script.host.poll().expect("a completion");
        assert_eq!(u16::from(cqe.dlid_path_bits), bits);
    }
}
