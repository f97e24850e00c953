//! Unreliable datagrams: address handles, queue keys, the header in front, QP1.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use feroce_engine::{
    AddrVec, AhId, Config, CreateError, Dest, DestroyError, QpAttr, QpInitAttr, QpState, QpType,
    SendOp, SendWr, WcFlags, WcStatus,
};
use feroce_mem::PdId;
use feroce_testkit::{Host, Packet, Pair, QKEY, TestQp, header, wr};
use feroce_train::{Framing, GidEntry, RxMeta};
use feroce_wire::{
    Bth, Deth, GRH_NEXT_HEADER, Gid, Grh, Ipv4, Ipv6, Op, Opcode, Pmtu, Psn, Qkey, Qpn, Service,
    UDP_PROTOCOL,
};

struct Datagrams {
    pair: Pair,
    qa: TestQp,
    qb: TestQp,
    ah: AhId,
}

impl Datagrams {
    fn new() -> Self {
        Self::between(Pair::default())
    }

    fn between(mut pair: Pair) -> Self {
        let (qa, qb) = pair.datagrams();
        let av = AddrVec { dgid: pair.b.gid, ..AddrVec::default() };
        let ah = pair.a.engine.create_ah(pair.a.pd, av).unwrap();
        Self { pair, qa, qb, ah }
    }

    fn datagram(&self, wr_id: u64, len: u32) -> SendWr {
        let dest = Dest::Ud { ah: self.ah, qpn: self.qb.qpn, qkey: QKEY };
        SendWr { dest, ..wr(wr_id, SendOp::Send, self.pair.a.data(0, len)) }
    }

    fn send(&mut self, request: SendWr) {
        self.qa.sq.post(request).unwrap();
        self.pair.run();
    }

    fn receive(&mut self, id: u64, len: u32) {
        self.qb.rq.as_mut().unwrap().post(self.pair.b.recv(id, 10_000 * id, len)).unwrap();
    }

    fn received(&mut self) -> Vec<(u64, WcStatus, u32)> {
        self.pair.b.poll_all().iter().map(|c| (c.wr_id, c.status, c.byte_len)).collect()
    }

    fn sent(&mut self) -> Vec<(u64, WcStatus)> {
        self.pair.a.poll_all().iter().map(|c| (c.wr_id, c.status)).collect()
    }
}

/// A datagram of 10 bytes to `qpn` of `host`.
fn packet(host: &Host, qpn: Qpn, qkey: Qkey, src: Gid) -> Packet {
    let bth = Bth { pad: 2, ..Bth::new(Opcode::new(Service::Ud, Op::SendOnly), qpn, Psn::new(0)) };
    let mut bytes = header(|out| bth.emit(out));
    bytes.extend(header(|out| Deth { qkey, src_qp: Qpn::new(0x33) }.emit(out)));
    bytes.extend([9; 12]);
    let meta = RxMeta {
        src: src.into(),
        dst: host.gid.into(),
        hop_limit: 7,
        traffic_class: 0x6c,
        ..Default::default()
    };
    Packet { meta, bytes }
}

#[test]
fn an_ipv4_header_stands_in_the_last_twenty_bytes() {
    let mut d = Datagrams::new();
    d.receive(1, 100);
    let from = Gid::from_ipv4([10, 0, 0, 77]);
    let packet = packet(&d.pair.b, d.qb.qpn, QKEY, from);
    d.pair.b.receive(d.pair.now, &packet);
    let done = d.pair.b.poll().unwrap();
    assert_eq!((done.byte_len, done.flags, done.src_qp), (50, WcFlags::GRH, Qpn::new(0x33)));
    let bytes = d.pair.b.read(10_000, 50);
    assert_eq!((&bytes[..20], &bytes[40..]), (&[0; 20][..], &[9; 10][..]));
    assert!(feroce_wire::Ipv4View::new_checked(&bytes[20..40]).unwrap().checksum_ok());
    let (ip, _) = Ipv4::parse(&bytes[20..40]).unwrap();
    assert_eq!((ip.src, ip.dst), ([10, 0, 0, 77], [10, 0, 0, 2]));
    assert_eq!((ip.ttl, ip.dscp, ip.protocol), (7, 0x6c >> 2, UDP_PROTOCOL));
    // IP and UDP headers, the transport packet, ICRC.
    assert_eq!(usize::from(ip.total_len), 20 + 8 + packet.bytes.len() + 4);
}

#[test]
fn an_ipv6_header_looks_like_a_global_route_header() {
    let mut d = Datagrams::new();
    let own = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    let from = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    d.pair.b.engine.set_gid(1, GidEntry::roce_v2(own));
    d.receive(1, 100);
    let mut packet = packet(&d.pair.b, d.qb.qpn, QKEY, from);
    packet.meta.dst = own.into();
    d.pair.b.receive(d.pair.now, &packet);
    let bytes = d.pair.b.read(10_000, 50);
    let (ip, _) = Ipv6::parse(&bytes).unwrap();
    assert_eq!((Gid(ip.src), Gid(ip.dst)), (from, own));
    assert_eq!((ip.hop_limit, ip.dscp, ip.next_header), (7, 0x6c >> 2, UDP_PROTOCOL));
    assert_eq!(usize::from(ip.payload_len), 8 + packet.bytes.len() + 4);
    assert_eq!(d.pair.b.poll().unwrap().sl, 0);
}

#[test]
fn over_roce_v1_it_is_a_global_route_header() {
    let mut d = Datagrams::new();
    d.receive(1, 100);
    let mut packet = packet(&d.pair.b, d.qb.qpn, QKEY, Gid::from_ipv4([10, 0, 0, 77]));
    packet.meta.framing = Framing::RoceV1;
    d.pair.b.engine.set_gid(1, GidEntry { gid: d.pair.b.gid, framing: Framing::RoceV1 });
    d.pair.b.receive(d.pair.now, &packet);
    let bytes = d.pair.b.read(10_000, 50);
    let (grh, _) = Grh::parse(&bytes).unwrap();
    assert_eq!((grh.sgid, grh.dgid), (packet.meta.src.gid, packet.meta.dst.gid));
    assert_eq!((grh.ip_version, grh.next_header), (6, GRH_NEXT_HEADER));
    assert_eq!((grh.hop_limit, grh.traffic_class), (7, 0x6c));
    assert_eq!(usize::from(grh.payload_len), packet.bytes.len() + 4);
}

#[test]
fn the_queue_key_must_match() {
    let mut d = Datagrams::new();
    d.receive(1, 100);
    let wrong = Dest::Ud { ah: d.ah, qpn: d.qb.qpn, qkey: Qkey(QKEY.0 + 1) };
    let request = SendWr { dest: wrong, ..d.datagram(1, 5) };
    d.send(request);
    assert_eq!(d.received(), []);
    assert_eq!(d.pair.b.engine.drops().drop_bad_qkey, 1);
    assert_eq!(d.sent(), [(1, WcStatus::Success)]);
    let request = d.datagram(2, 5);
    d.send(request);
    assert_eq!(d.received(), [(1, WcStatus::Success, 45)]);
}

#[test]
fn a_privileged_key_in_a_request_means_the_key_of_the_queue_pair() {
    let mut d = Datagrams::new();
    d.receive(1, 100);
    let dest = Dest::Ud { ah: d.ah, qpn: d.qb.qpn, qkey: Qkey(0x8000_0000) };
    let request = SendWr { dest, ..d.datagram(1, 5) };
    d.qa.sq.post(request).unwrap();
    let packets = d.pair.a.transmit(d.pair.now);
    let (deth, _) = Deth::parse(packets[0].rest()).unwrap();
    assert_eq!((deth.qkey, deth.src_qp), (QKEY, d.qa.qpn));
    d.pair.b.receive(d.pair.now, &packets[0]);
    assert_eq!(d.received(), [(1, WcStatus::Success, 45)]);
}

#[test]
fn a_datagram_longer_than_the_mtu_is_an_error_of_the_send_queue() {
    let config = Config { port_mtu: Pmtu::B1024, ..Config::default() };
    let mut d = Datagrams::between(Pair::new(config));
    d.receive(1, 2000);
    for (id, len) in [(1, 1024), (2, 1025), (3, 5)] {
        let request = d.datagram(id, len);
        d.qa.sq.post(request).unwrap();
    }
    d.pair.run();
    let expected = [(1, WcStatus::Success), (2, WcStatus::LocalLength), (3, WcStatus::Flushed)];
    assert_eq!(d.sent(), expected);
    assert_eq!(d.received(), [(1, WcStatus::Success, 1064)]);
    assert_eq!(d.qa.sq.state(), QpState::Sqe);
    d.pair.a.modify(d.pair.now, d.qa.qpn, &QpAttr::to(QpState::Rts));
    d.receive(2, 2000);
    let request = d.datagram(4, 5);
    d.send(request);
    assert_eq!((d.sent(), d.received().len()), (vec![(4, WcStatus::Success)], 1));
}

#[test]
fn another_mtu_of_the_port_is_for_queue_pairs_to_come() {
    let config = Config { port_mtu: Pmtu::B1024, ..Config::default() };
    let mut d = Datagrams::between(Pair::new(config));
    d.pair.a.engine.set_port_mtu(Pmtu::B4096);
    d.receive(1, 5000);
    for (id, len) in [(1, 1024), (2, 1025)] {
        let request = d.datagram(id, len);
        d.send(request);
    }
    assert_eq!(d.sent(), [(1, WcStatus::Success), (2, WcStatus::LocalLength)]);

    let config = Config { port_mtu: Pmtu::B4096, ..Config::default() };
    let mut pair = Pair::new(config);
    pair.a.engine.set_port_mtu(Pmtu::B1024);
    let mut d = Datagrams::between(pair);
    let request = d.datagram(1, 1025);
    d.send(request);
    assert_eq!(d.sent(), [(1, WcStatus::LocalLength)]);
}

#[test]
fn a_receive_that_is_too_small_is_kept_for_the_next() {
    let mut d = Datagrams::new();
    d.receive(1, 50);
    d.receive(2, 5000);
    for (id, len) in [(1, 11), (2, 10), (3, 11)] {
        let request = d.datagram(id, len);
        d.send(request);
    }
    assert_eq!(d.received(), [(1, WcStatus::Success, 50), (2, WcStatus::Success, 51)]);
    assert_eq!(d.pair.b.engine.drops().drop_too_long, 1);
}

#[test]
fn a_receive_without_room_for_the_header_is_too_small() {
    let mut d = Datagrams::new();
    d.receive(1, 39);
    let request = d.datagram(1, 0);
    d.send(request);
    assert_eq!(d.received(), []);
    assert_eq!(d.pair.b.engine.drops().drop_too_long, 1);
}

#[test]
fn without_a_receive_a_datagram_is_counted() {
    let mut d = Datagrams::new();
    let request = d.datagram(1, 5);
    d.send(request);
    assert_eq!(d.pair.b.engine.drops().drop_no_receive, 1);
    assert_eq!(d.pair.b.engine.counters().ud_out_of_buffer, 1);
}

#[test]
fn an_address_handle_destroyed_under_a_request_fails_it() {
    let mut d = Datagrams::new();
    let request = d.datagram(1, 5);
    d.qa.sq.post(request).unwrap();
    d.pair.a.engine.destroy_ah(d.ah).unwrap();
    d.pair.run();
    assert_eq!(d.sent(), [(1, WcStatus::LocalQpOperation)]);
    assert_eq!(d.qa.sq.state(), QpState::Sqe);
}

#[test]
fn an_address_handle_of_another_protection_domain_does_not_work() {
    let mut d = Datagrams::new();
    let other = d.pair.a.engine.alloc_pd().unwrap();
    let av = d.pair.a.engine.query_ah(d.ah).unwrap();
    d.ah = d.pair.a.engine.create_ah(other, av).unwrap();
    let request = d.datagram(1, 5);
    d.send(request);
    assert_eq!(d.sent(), [(1, WcStatus::LocalQpOperation)]);
}

#[test]
fn address_handles_say_where_packets_go() {
    let mut d = Datagrams::new();
    let av = AddrVec {
        dgid: d.pair.b.gid,
        flow_label: 0x12345,
        hop_limit: 3,
        traffic_class: 0x28,
        ..AddrVec::default()
    };
    d.ah = d.pair.a.engine.create_ah(d.pair.a.pd, av).unwrap();
    assert_eq!(d.pair.a.engine.query_ah(d.ah), Some(av));
    let request = d.datagram(1, 5);
    d.qa.sq.post(request).unwrap();
    let meta = d.pair.a.transmit(d.pair.now)[0].meta;
    assert_eq!((meta.src.gid, meta.dst.gid), (d.pair.a.gid, d.pair.b.gid));
    assert_eq!((meta.hop_limit, meta.traffic_class), (3, 0x28));
    assert!(meta.udp_sport >= 0xc000);
}

#[test]
fn address_handles_that_lead_nowhere_are_refused() {
    let mut host = Host::new(1);
    let av = AddrVec { dgid: Gid::from_ipv4([10, 0, 0, 2]), ..AddrVec::default() };
    let (pd, engine) = (host.pd, &mut host.engine);
    let zero = AddrVec { dgid: Gid::ZERO, ..av };
    let invalid = CreateError::Invalid("the destination address is zero");
    assert_eq!(engine.create_ah(pd, zero), Err(invalid));
    let invalid = CreateError::Invalid("no address at that index of the GID table");
    assert_eq!(engine.create_ah(pd, AddrVec { sgid_index: 1, ..av }), Err(invalid));
    let unknown = CreateError::Unknown("protection domain");
    assert_eq!(engine.create_ah(PdId(9), av), Err(unknown));
    assert_eq!(engine.destroy_ah(AhId(9)), Err(DestroyError::Unknown));
    assert_eq!(engine.query_ah(AhId(9)), None);
}

#[test]
fn qp1_has_the_well_known_queue_key() {
    let mut d = Datagrams::new();
    let init = d.pair.b.init_attr(QpType::Ud);
    let created = d.pair.b.engine.create_gsi(init).unwrap();
    assert_eq!(created.qpn, Qpn::QP1);
    d.qb = TestQp { qpn: created.qpn, sq: created.sq, rq: created.rq, first_psn: Psn::new(0) };
    let now = d.pair.now;
    d.pair.b.modify(now, Qpn::QP1, &QpAttr::init_ud(Qkey(5)));
    d.pair.b.modify(now, Qpn::QP1, &QpAttr::to(QpState::Rtr));
    d.receive(1, 100);
    d.receive(2, 100);
    let from = d.pair.a.gid;
    for (qkey, received) in [(Qkey(5), 0), (QKEY, 0), (Qkey(0x8001_0000), 1)] {
        let packet = packet(&d.pair.b, Qpn::QP1, qkey, from);
        d.pair.b.receive(now, &packet);
        assert_eq!(d.received().len(), received, "{qkey}");
    }
    let second = d.pair.b.engine.create_gsi(init).map(|qp| qp.qpn);
    assert_eq!(second, Err(CreateError::TooMany));
    d.pair.b.engine.destroy_qp(Qpn::QP1).unwrap();
    let connected = QpInitAttr { qp_type: QpType::Rc, ..init };
    let error = CreateError::Invalid("QP1 is a datagram queue pair");
    assert_eq!(d.pair.b.engine.create_gsi(connected).unwrap_err(), error);
    assert!(d.pair.b.engine.create_gsi(init).is_ok());
}

#[test]
fn partition_keys_must_match() {
    let mut d = Datagrams::new();
    d.receive(1, 100);
    let mut packet = packet(&d.pair.b, d.qb.qpn, QKEY, d.pair.a.gid);
    packet.bytes[2..4].copy_from_slice(&[0x80, 0x01]);
    d.pair.b.receive(d.pair.now, &packet);
    assert_eq!((d.received().len(), d.pair.b.engine.drops().drop_bad_pkey), (0, 1));
    packet.bytes[2..4].copy_from_slice(&[0x7f, 0xff]);
    d.pair.b.receive(d.pair.now, &packet);
    assert_eq!(d.received().len(), 1);
}

#[test]
fn bad_receive_memory_stops_the_queue_pair() {
    let mut d = Datagrams::new();
    let rq = d.qb.rq.as_mut().unwrap();
    rq.post(d.pair.b.recv(1, u64::MAX - 200, 100)).unwrap();
    let request = d.datagram(1, 5);
    d.send(request);
    assert_eq!(d.received().iter().map(|r| r.1).collect::<Vec<_>>(), [WcStatus::LocalProtection]);
    assert_eq!(d.qb.sq.state(), QpState::Err);
}
