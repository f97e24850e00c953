//! Arbitrary packets from the wire: the engine does not panic, changes no memory outside a grant,
//! and works afterwards.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::sync::Arc;

use fastrand::Rng;
use feroce_engine::{
    AddrVec, Config, CongestionConfig, CqPoller, DcqcnConfig, Dest, QpAttr, QpInitAttr, QpState,
    QpType, SendOp, SendWr, SrqInitAttr, SrqQueue, WcStatus,
};
use feroce_mem::{Access, Iova, Region};
use feroce_testkit::{ALL, CAPS, Host, Packet, Pair, QKEY, TestQp, header, psn, wr};
use feroce_train::{Ecn, Framing, Instant, RxMeta, RxTrain};
use feroce_wire::{
    Aeth, AtomicEth, Bth, Deth, Gid, Lkey, Msn, Op, Opcode, Pkey, Pmtu, Psn, Qkey, Qpn, Reth, Rkey,
    Service, Srqn, Syndrome, XrcEth,
};

const PEER: Gid = Gid::from_ipv4([10, 0, 0, 99]);
/// Everything not granted holds this.
const CANARY: u8 = 0xc5;
const GRANTED: std::ops::Range<usize> = 4096..8192;
const KINDS: [QpType; 6] =
    [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcIni, QpType::XrcTgt, QpType::Rc];

/// A host with a queue pair of every kind, and memory of which a part is granted.
struct Victim {
    host: Host,
    now: Instant,
    qps: Vec<TestQp>,
    inbox: SrqQueue,
    inbox_poller: CqPoller,
    srqn: Srqn,
    guarded: Arc<Region>,
    key: Lkey,
    foreign: Arc<Region>,
    foreign_key: Lkey,
}

impl Victim {
    fn new() -> Self {
        let config = Config {
            congestion: CongestionConfig::Dcqcn(DcqcnConfig::default()),
            ..Config::default()
        };
        let mut host = Host::with_config(1, config);
        let engine = &mut host.engine;
        let canary = |len: usize| {
            let region = Region::alloc(len).unwrap();
            region.write_at(0, &vec![CANARY; len]).unwrap();
            region
        };
        let (guarded, foreign) = (canary(16384), canary(4096));
        let at = Iova::At(0x10_0000);
        let (start, len) = (GRANTED.start, GRANTED.len());
        let region = Arc::clone(&guarded);
        let key = engine.reg_mr(host.pd, region, start, len, at, ALL).unwrap();
        let other = engine.alloc_pd().unwrap();
        let region = Arc::clone(&foreign);
        let foreign_key = engine.reg_mr(other, region, 0, 4096, at, ALL).unwrap();
        let xrcd = engine.alloc_xrcd().unwrap();
        let (cq, inbox_poller) = engine.create_cq(1 << 14).unwrap();
        let xrc = Some((xrcd, cq));
        let attr = SrqInitAttr { pd: host.pd, max_wr: 64, max_sge: 4, limit: 0, xrc };
        let (srq, inbox) = engine.create_srq(attr).unwrap();
        let qps = KINDS
            .map(|qp_type| {
                let xrcd = (qp_type == QpType::XrcTgt).then_some(xrcd);
                let init = QpInitAttr { xrcd, ..host.init_attr(qp_type) };
                host.create_qp(init)
            })
            .into();
        let (now, srqn) = (Instant::from_nanos(1_000_000), srq.number());
        let mut victim =
            Self { host, now, qps, inbox, inbox_poller, srqn, guarded, key, foreign, foreign_key };
        victim.repair();
        victim
    }

    /// Brings every queue pair that stopped back to life and gives all of them work.
    fn repair(&mut self) {
        for (qp, kind) in self.qps.iter_mut().zip(KINDS) {
            if qp.sq.state() != QpState::Rts {
                self.host.modify(self.now, qp.qpn, &QpAttr::to(QpState::Reset));
                if kind == QpType::Ud {
                    self.host.modify(self.now, qp.qpn, &QpAttr::init_ud(QKEY));
                    self.host.modify(self.now, qp.qpn, &QpAttr::to(QpState::Rtr));
                    self.host.modify(self.now, qp.qpn, &QpAttr::rts_unreliable(psn(0)));
                } else {
                    let peer = (PEER, Qpn::new(0x42), psn(0x500));
                    qp.first_psn = psn(0x900);
                    let with = QpAttr::default();
                    feroce_testkit::bring_up(&mut self.host, self.now, qp, peer, Pmtu::B256, &with);
                }
            }
            while qp.rq.as_mut().is_some_and(|rq| rq.post(receive(self.key)).is_ok()) {}
            let dest = match kind {
                QpType::Rc => Dest::Connected,
                QpType::XrcIni => Dest::Xrc(Srqn::new(1)),
                _ => continue,
            };
            let remote = feroce_engine::Remote { addr: 0, rkey: Rkey(1) };
            for op in [SendOp::Read(remote), SendOp::Send, SendOp::Write(remote)] {
                let data = self.host.data(0, 1000);
                let _ = qp.sq.post(SendWr { dest, ..wr(1, op, data) });
            }
        }
        while self.inbox.post(receive(self.key)).is_ok() {}
    }

    /// Lets the engine do all that it wants to, and polls every completion.
    fn drive(&mut self, rng: &mut Rng) {
        self.now = self.now.plus_nanos(rng.u64(..2_000_000));
        self.host.engine.handle_timeout(self.now);
        while self.host.engine.poll_transmit(self.now, &CAPS).is_some() {}
        self.host.engine.trains_read();
        while self.host.engine.poll_event().is_some() {}
        self.host.poll_all();
        while self.inbox_poller.poll().is_some() {}
    }

    fn check_memory(&self) {
        let mut bytes = vec![0; 16384];
        self.guarded.read_at(0, &mut bytes).unwrap();
        let outside = bytes[..GRANTED.start].iter().chain(&bytes[GRANTED.end..]);
        assert!(outside.copied().all(|b| b == CANARY), "written outside a grant");
        self.foreign.read_at(0, &mut bytes[..4096]).unwrap();
        assert!(bytes[..4096].iter().all(|&b| b == CANARY), "written in another domain");
    }
}

/// A receive of 600 bytes in granted memory.
fn receive(lkey: Lkey) -> feroce_engine::RecvWr {
    let sge = feroce_engine::Sge { addr: 0x10_0100, len: 600, lkey };
    feroce_engine::RecvWr { wr_id: 1, sges: sge.into() }
}

/// One of `choices`, or something else now and then.
fn mostly<T>(rng: &mut Rng, choice: T, other: impl FnOnce(&mut Rng) -> T) -> T {
    if rng.u8(..) < 230 { choice } else { other(rng) }
}

/// A packet that may well be valid: headers fit the opcode, numbers fit the queue pair.
fn plausible(v: &Victim, rng: &mut Rng) -> Packet {
    let i = rng.usize(..KINDS.len());
    let service = match KINDS[i] {
        QpType::Rc => Service::Rc,
        QpType::Uc => Service::Uc,
        QpType::Ud => Service::Ud,
        QpType::XrcIni | QpType::XrcTgt => Service::Xrc,
    };
    let service = mostly(rng, service, |r| {
        [Service::Rc, Service::Uc, Service::Ud, Service::Cnp, Service::Xrc][r.usize(..5)]
    });
    let op = Op::ALL[rng.usize(..Op::ALL.len())];
    let (attr, _) = v.host.engine.query_qp(v.qps[i].qpn).unwrap();
    let base = if op.is_request() { attr.rq_psn } else { Some(psn(0x900)) };
    let near = base.unwrap_or_default().wrapping_add(rng.u32(..8)).wrapping_sub(rng.u32(..4));
    let number = mostly(rng, near, |r| Psn::new(r.u32(..)));
    let rest = body(v, rng, service, op);
    let pad = rest.len().wrapping_neg() & 3;
    let bth = Bth {
        solicited: rng.bool(),
        ack_req: rng.bool(),
        pad: mostly(rng, pad as u8, |r| r.u8(..4)),
        tver: mostly(rng, 0, |r| r.u8(..16)),
        pkey: mostly(rng, Pkey::DEFAULT, |r| Pkey(r.u16(..))),
        ..Bth::new(Opcode::new(service, op), v.qps[i].qpn, number)
    };
    let mut bytes = header(|out| bth.emit(out));
    bytes.extend(rest);
    bytes.resize(bytes.len() + pad, 0);
    Packet { meta: meta(v, rng), bytes }
}

/// Extension headers and payload.
fn body(v: &Victim, rng: &mut Rng, service: Service, op: Op) -> Vec<u8> {
    let mut rest = Vec::new();
    if service == Service::Xrc && op.is_request() {
        let srqn = mostly(rng, v.srqn, |r| Srqn::new(r.u32(..)));
        rest.extend(header(|out| XrcEth { srqn }.emit(out)));
    }
    if service == Service::Ud {
        let qkey = mostly(rng, QKEY, |r| Qkey(r.u32(..)));
        rest.extend(header(|out| Deth { qkey, src_qp: Qpn::new(9) }.emit(out)));
    }
    let keys = [v.key, v.foreign_key, Lkey(rng.u32(..))];
    let rkey = Rkey(keys[rng.usize(..3)].0);
    let va = 0x10_0000 + rng.u64(..5000);
    let va = mostly(rng, va, |r| r.u64(..));
    let len = if op.is_only() { rng.u32(..300) } else { rng.u32(..3000) };
    if op.has_feth() {
        rest.extend(rng.u32(..64).to_be_bytes());
    }
    if op.has_reth() {
        let len = mostly(rng, len, |r| r.u32(..));
        rest.extend(header(|out| Reth { va, rkey, len }.emit(out)));
    }
    if op.has_atomic_eth() {
        let va = if rng.bool() { va & !7 } else { va };
        let eth = AtomicEth { va, rkey, swap_add: rng.u64(..), compare: rng.u64(..3) };
        rest.extend(header(|out| eth.emit(out)));
    }
    if op.has_aeth() {
        let (syndrome, msn) = (Syndrome::from_u8(rng.u8(..)), Msn::new(rng.u32(..4)));
        rest.extend(header(|out| Aeth { syndrome, msn }.emit(out)));
    }
    if op.has_atomic_ack_eth() {
        rest.extend(rng.u64(..).to_be_bytes());
    }
    if op.has_imm() || op.has_ieth() {
        rest.extend(rkey.0.to_be_bytes());
    }
    let payload = if op.is_first() || op.is_middle() { 256 } else { len.min(300) as usize };
    let payload = mostly(rng, payload, |r| r.usize(..5000));
    rest.resize(rest.len() + payload, 0x11);
    rest
}

fn meta(v: &Victim, rng: &mut Rng) -> RxMeta {
    RxMeta {
        src: mostly(rng, PEER, |r| Gid(r.u128(..).to_be_bytes())).into(),
        dst: mostly(rng, v.host.gid, |r| Gid(r.u128(..).to_be_bytes())).into(),
        udp_sport: rng.u16(..),
        traffic_class: rng.u8(..),
        hop_limit: rng.u8(..),
        ecn: if rng.u8(..) < 20 { Ecn::Congested } else { Ecn::Capable },
        framing: mostly(rng, Framing::RoceV2, |r| {
            [Framing::RoceV1, Framing::InfiniBand][r.usize(..2)]
        }),
        sl: rng.u8(..16),
    }
}

/// Cuts, extends or changes bytes.
fn mutate(packet: &mut Packet, rng: &mut Rng) {
    let bytes = &mut packet.bytes;
    match rng.u8(..4) {
        0 => bytes.truncate(rng.usize(..=bytes.len())),
        1 => bytes.resize(bytes.len() + rng.usize(..64), rng.u8(..)),
        _ => {
            for _ in 0..rng.usize(1..4) {
                let at = rng.usize(..bytes.len().clamp(1, 60));
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << rng.u8(..8);
                }
            }
        }
    }
}

#[test]
fn two_hundred_thousand_bad_packets() {
    let mut rng = Rng::with_seed(0x5eed);
    let mut v = Victim::new();
    for i in 0..200_000 {
        let mut packet = plausible(&v, &mut rng);
        match rng.u8(..4) {
            0 => {
                packet.bytes = (0..rng.usize(..120)).map(|_| rng.u8(..)).collect();
            }
            1 | 2 => mutate(&mut packet, &mut rng),
            _ => {}
        }
        v.host.receive(v.now, &packet);
        if i % 16 == 0 {
            v.drive(&mut rng);
            v.repair();
        }
        if i % 10_000 == 0 {
            v.check_memory();
        }
    }
    v.drive(&mut rng);
    v.check_memory();
    // Some of the packets are valid and must be accepted, and many are not.
    assert!(v.host.engine.counters().rdma_recvs > 1000, "{:?}", v.host.engine.counters());
    let quiet: Vec<_> = v.host.engine.drops().iter().filter(|&(_, n)| n == 0).collect();
    assert!(quiet.len() <= 4, "never dropped for {quiet:?}");
    works_with_others(v);
}

/// Whether the engine can still exchange messages with a peer.
fn works_with_others(v: Victim) {
    let b = Host::new(2);
    let mut pair = Pair { now: v.now, a: v.host, b, mtu: Pmtu::B1024 };
    let (mut qa, mut qb) = pair.connect(QpType::Rc);
    let bytes = pair.a.fill(0, 50_000, 1);
    qb.rq.as_mut().unwrap().post(pair.b.recv(7, 0, 50_000)).unwrap();
    qa.sq.post(wr(8, SendOp::Send, pair.a.data(0, 50_000))).unwrap();
    for _ in 0..1000 {
        pair.run();
        pair.wait(100_000);
    }
    assert_eq!(pair.b.poll().map(|c| c.status), Some(WcStatus::Success));
    assert_eq!(pair.b.read(0, 50_000), bytes);
}

#[test]
fn packets_of_any_length() {
    let mut v = Victim::new();
    let mut rng = Rng::with_seed(1);
    for i in 0..KINDS.len() {
        for len in (0..64).chain([4096, 65_500, 65_532, 65_536, 70_000, 1 << 20]) {
            for service in [Service::Rc, Service::Uc, Service::Ud, Service::Xrc] {
                let opcode = Opcode::new(service, Op::SendOnly);
                let bth = Bth::new(opcode, v.qps[i].qpn, psn(0x500));
                let mut bytes = header(|out| bth.emit(out));
                bytes.extend(header(|out| Deth { qkey: QKEY, src_qp: Qpn::new(1) }.emit(out)));
                bytes.resize(len, 0);
                let meta = RxMeta { src: PEER.into(), dst: v.host.gid.into(), ..RxMeta::default() };
                v.host.receive(v.now, &Packet { meta, bytes });
            }
        }
        v.drive(&mut rng);
        v.repair();
    }
    v.check_memory();
}

#[test]
fn trains_of_any_stride() {
    let mut v = Victim::new();
    let mut rng = Rng::with_seed(2);
    for _ in 0..20_000 {
        let bytes: Vec<u8> = (0..rng.usize(..300)).map(|_| rng.u8(..)).collect();
        let (stride, trailer) = (rng.usize(..100), rng.usize(..20));
        let meta = meta(&v, &mut rng);
        let train = RxTrain { meta, bytes: &bytes, stride, trailer, remote: None };
        v.host.engine.handle_rx(v.now, &train);
    }
    v.check_memory();
}

#[test]
fn what_nobody_reads_does_not_pile_up() {
    let mut v = Victim::new();
    let mut rng = Rng::with_seed(3);
    // Congestion notifications are the only answers that no queue pair holds.
    for i in 0..10_000 {
        let mut packet = plausible(&v, &mut rng);
        packet.meta.ecn = Ecn::Congested;
        v.now = v.now.plus_nanos(60_000);
        v.host.receive(v.now, &packet);
        if i % 16 == 0 {
            v.host.poll_all();
            v.repair();
        }
    }
    let mut waiting = 0;
    while v.host.engine.poll_transmit(v.now, &CAPS).is_some() {
        waiting += 1;
    }
    assert!(waiting < 3000, "{waiting}");
    assert!(v.host.engine.drops().drop_rate_limited > 0);
}

#[test]
fn absurd_work_requests_fail_and_do_no_harm() {
    let far = feroce_engine::Remote { addr: u64::MAX, rkey: Rkey(u32::MAX) };
    let kind = feroce_engine::FlushKind { global: true, persistent: true, whole_region: false };
    let ops = [
        SendOp::Send,
        SendOp::SendInv(Rkey(u32::MAX)),
        SendOp::Write(far),
        SendOp::Read(far),
        SendOp::Flush { remote: far, len: u32::MAX, kind },
        SendOp::LocalInv(Rkey(u32::MAX)),
        SendOp::Reg {
            key: Lkey(u32::MAX),
            offset: u64::MAX,
            len: u64::MAX,
            iova: u64::MAX,
            access: Access::all(),
        },
    ];
    let lengths = [(0, u32::MAX), (u64::MAX, u32::MAX), (u64::MAX, 1), (1 << 19, 1 << 31)];
    for op in ops {
        for (addr, len) in lengths {
            for elements in [1, 2, 32] {
                let mut pair = Pair::default();
                let (mut qa, mut qb) = pair.connect(QpType::Rc);
                qb.rq.as_mut().unwrap().post(pair.b.recv(1, addr, len)).unwrap();
                let sges = vec![pair.a.sge(addr, len); elements];
                let data = feroce_engine::Data::Sges(feroce_engine::SgeList::new(&sges));
                qa.sq.post(wr(1, op, data)).unwrap();
                pair.run();
                let status = pair.a.poll().map(|c| c.status);
                assert!(status.is_some_and(|s| s != WcStatus::Success), "{op:?} {status:?}");
                assert!(pair.b.read(0, 1000).iter().all(|&b| b == 0));
            }
        }
    }
}

#[test]
fn absurd_addresses_of_datagrams() {
    let mut pair = Pair::default();
    let (mut qa, _qb) = pair.datagrams();
    let av = AddrVec {
        dgid: Gid([0xff; 16]),
        flow_label: u32::MAX,
        hop_limit: 255,
        traffic_class: 255,
        sl: 255,
        ..AddrVec::default()
    };
    let ah = pair.a.engine.create_ah(pair.a.pd, av).unwrap();
    let dest = Dest::Ud { ah, qpn: Qpn::new(u32::MAX), qkey: Qkey(u32::MAX) };
    qa.sq.post(SendWr { dest, ..wr(1, SendOp::Send, pair.a.data(0, 4096)) }).unwrap();
    let packets = pair.a.transmit(pair.now);
    assert_eq!(packets[0].bth().dest_qp, Qpn::MULTICAST);
    let none = Dest::Ud { ah: feroce_engine::AhId(u32::MAX), qpn: Qpn::new(1), qkey: QKEY };
    qa.sq.post(SendWr { dest: none, ..wr(2, SendOp::Send, pair.a.data(0, 4)) }).unwrap();
    pair.run();
    let done: Vec<_> = pair.a.poll_all().iter().map(|c| c.status).collect();
    assert_eq!(done, [WcStatus::Success, WcStatus::LocalQpOperation]);
}

#[test]
fn time_may_stand_still_or_jump() {
    let mut v = Victim::new();
    for now in [0, u64::MAX, 5, u64::MAX - 1, 0] {
        v.now = Instant::from_nanos(now);
        v.host.engine.handle_timeout(v.now);
        while v.host.engine.poll_transmit(v.now, &CAPS).is_some() {}
        v.host.engine.trains_read();
        v.host.poll_all();
        v.repair();
    }
}
