//! Every counter, by the event that it counts.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::collections::BTreeSet;

use feroce_engine::{
    AddrVec, Config, CongestionConfig, Counters, Data, DcqcnConfig, Dest, DropCounters, QpAttr,
    QpInitAttr, QpState, QpType, Remote, SendFlags, SendOp, SendWr,
};
use feroce_mem::Access;
use feroce_testkit::script::{ACK, aeth, nak, reth, rnr};
use feroce_testkit::{Host, PEER_PSN, Pair, QKEY, Scripted, wr};
use feroce_train::Ecn;
use feroce_wire::{Bth, NakCode, Op, Opcode, Psn, Rkey};

/// What Soft-RoCE counts, by the names under which Linux shows it.
const LINUX: &str = "
    sent_pkts rcvd_pkts duplicate_request out_of_seq_request rcvd_rnr_err send_rnr_err
    rcvd_seq_err ack_deferred retry_exceeded_err retry_rnr_exceeded_err completer_retry_err
    send_err link_downed rdma_sends rdma_recvs";

/// What a script counted, and what it should have.
type Counted = (Vec<(&'static str, u64)>, &'static [(&'static str, u64)]);

fn names(counters: &Counters) -> Vec<&'static str> {
    counters.iter().map(|(name, _)| name).collect()
}

fn all(counters: Counters) -> Vec<(&'static str, u64)> {
    counters.iter().collect()
}

/// Both ends together.
fn sum(pair: &Pair) -> Vec<(&'static str, u64)> {
    let (a, b) = (pair.a.engine.counters().iter(), pair.b.engine.counters().iter());
    a.zip(b).map(|((name, a), (_, b))| (name, a + b)).collect()
}

#[test]
fn names_are_those_of_linux_and_unique() {
    let counters = Counters::default();
    let known: BTreeSet<_> = names(&counters).into_iter().collect();
    for name in LINUX.split_whitespace() {
        assert!(known.contains(name), "{name}");
    }
    assert_eq!(known.len(), counters.iter().count());
    let drops: BTreeSet<_> = DropCounters::default().iter().map(|(name, _)| name).collect();
    assert_eq!(drops.len(), DropCounters::default().iter().count());
    assert!(drops.iter().all(|name| name.starts_with("drop_") && !known.contains(name)));
}

#[test]
fn iteration_covers_every_field() {
    let (counters, drops) = (Counters::default(), DropCounters::default());
    assert_eq!(size_of_val(&counters), 8 * counters.iter().count());
    assert_eq!(size_of_val(&drops), 8 * drops.iter().count());
}

#[test]
fn every_counter_counts_its_event() {
    let scripts: [fn() -> Counted; 19] = [
        exchange,
        sent_to_itself,
        acknowledged_together,
        repeated,
        after_a_gap,
        no_receive,
        receiver_not_ready,
        asked_again,
        never_answered,
        excused,
        answer_missing,
        cannot_be_sent,
        receive_too_small,
        access_refused,
        request_refused,
        queue_overrun,
        congested,
        overdue,
        unasked,
    ];
    let mut covered: BTreeSet<_> = ["link_downed"].into();
    for script in scripts {
        let (counted, expected) = script();
        for &(name, n) in expected {
            let got = counted.iter().find(|(known, _)| *known == name).unwrap().1;
            assert_eq!(got, n, "{name}: {counted:?}");
            covered.insert(name);
        }
    }
    assert_eq!(covered, names(&Counters::default()).into_iter().collect());
}

#[test]
fn a_port_that_goes_down_is_counted() {
    let mut host = Host::new(1);
    host.engine.set_port_active(false);
    host.engine.set_port_active(true);
    assert_eq!(host.engine.counters().link_downed, 1);
}

/// A send of three packets and its acknowledgement.
fn exchange() -> Counted {
    let mut pair = Pair::default();
    let (mut qa, mut qb) = pair.connect(QpType::Rc);
    qb.rq.as_mut().unwrap().post(pair.b.recv(1, 0, 3000)).unwrap();
    qa.sq.post(wr(1, SendOp::Send, pair.a.data(0, 3000))).unwrap();
    pair.run();
    (
        sum(&pair),
        &[
            ("sent_pkts", 4),
            ("rcvd_pkts", 4),
            ("sent_bytes", 3000 + 3 * 12 + 16),
            ("rcvd_bytes", 3000 + 3 * 12 + 16),
            ("rdma_sends", 1),
            ("rdma_recvs", 1),
            ("retry_exceeded_err", 0),
            ("completer_retry_err", 0),
        ],
    )
}

/// A datagram to itself.
fn sent_to_itself() -> Counted {
    let mut pair = Pair::default();
    let (mut qa, _qb) = pair.datagrams();
    let av = AddrVec { dgid: pair.a.gid, ..AddrVec::default() };
    let ah = pair.a.engine.create_ah(pair.a.pd, av).unwrap();
    let dest = Dest::Ud { ah, qpn: qa.qpn, qkey: QKEY };
    qa.sq.post(SendWr { dest, ..wr(1, SendOp::Send, Data::EMPTY) }).unwrap();
    pair.run();
    (sum(&pair), &[("loopback_pkts", 1), ("sent_pkts", 1), ("ud_out_of_buffer", 1)])
}

/// Empty writes that ask for an acknowledgement.
fn write(s: &Scripted, psn: u32) -> feroce_testkit::Packet {
    s.packet(Op::WriteOnly, PEER_PSN + psn, true, &reth(0, Rkey(0), 0))
}

fn acknowledged_together() -> Counted {
    let mut s = Scripted::rc();
    for i in 0..3 {
        let packet = write(&s, i);
        s.host.receive(s.now, &packet);
    }
    assert_eq!(s.host.transmit(s.now).len(), 1);
    (all(s.host.engine.counters()), &[("ack_deferred", 2)])
}

fn repeated() -> Counted {
    let mut s = Scripted::rc();
    for _ in 0..3 {
        let packet = write(&s, 0);
        s.deliver(&packet);
    }
    (all(s.host.engine.counters()), &[("duplicate_request", 2), ("rdma_recvs", 1)])
}

fn after_a_gap() -> Counted {
    let mut s = Scripted::rc();
    for i in 1..4 {
        let packet = write(&s, i);
        s.deliver(&packet);
    }
    let counted = all(s.host.engine.counters());
    (counted, &[("out_of_seq_request", 3), ("out_of_sequence", 1), ("kept_after_gap", 3)])
}

fn no_receive() -> Counted {
    let mut s = Scripted::rc();
    s.send(Op::SendOnly, PEER_PSN, true, &[]);
    (all(s.host.engine.counters()), &[("send_rnr_err", 1), ("out_of_buffer", 1)])
}

fn send(s: &mut Scripted, id: u64) {
    let request = wr(id, SendOp::Send, Data::EMPTY);
    s.post(request);
}

fn receiver_not_ready() -> Counted {
    let mut s = Scripted::rc_with(QpAttr { rnr_retry: Some(1), ..QpAttr::default() });
    send(&mut s, 1);
    s.answer(feroce_testkit::OUR_PSN, rnr(1));
    s.wait(1_000_000);
    s.answer(feroce_testkit::OUR_PSN, rnr(1));
    (
        all(s.host.engine.counters()),
        &[("rcvd_rnr_err", 2), ("retry_rnr_exceeded_err", 1), ("req_cqe_error", 1)],
    )
}

fn asked_again() -> Counted {
    let mut s = Scripted::rc();
    send(&mut s, 1);
    s.answer(feroce_testkit::OUR_PSN, nak(NakCode::PsnSequence));
    s.answer(feroce_testkit::OUR_PSN, ACK);
    (all(s.host.engine.counters()), &[("rcvd_seq_err", 1), ("completer_retry_err", 1)])
}

fn never_answered() -> Counted {
    let mut s = Scripted::rc_with(QpAttr { retry_cnt: Some(1), ..QpAttr::default() });
    send(&mut s, 1);
    s.wait(1_000_000_000);
    s.wait(1_000_000_000);
    (
        all(s.host.engine.counters()),
        &[("local_ack_timeout_err", 2), ("retry_exceeded_err", 1), ("req_cqe_error", 1)],
    )
}

fn excused() -> Counted {
    let mut s = Scripted::rc();
    send(&mut s, 1);
    s.now = s.now.plus_nanos(1_000_000_000);
    let mut silent = Vec::new();
    s.host.engine.handle_timeout_asking(s.now, &mut silent);
    s.host.engine.handle_silence(s.now, &silent[0], true);
    (all(s.host.engine.counters()), &[("excused_timeouts", 1), ("local_ack_timeout_err", 0)])
}

fn answer_missing() -> Counted {
    let mut s = Scripted::rc();
    let read = wr(1, SendOp::Read(Remote::default()), s.host.data(0, 8));
    s.post(read);
    send(&mut s, 2);
    s.send(Op::Acknowledge, feroce_testkit::OUR_PSN + 1, false, &aeth(ACK, 2));
    (all(s.host.engine.counters()), &[("implied_nak_seq_err", 1), ("completer_retry_err", 1)])
}

fn cannot_be_sent() -> Counted {
    let mut s = Scripted::rc();
    let request = wr(1, SendOp::Send, s.host.data(u64::MAX, 1));
    assert!(s.post(request).is_empty());
    (all(s.host.engine.counters()), &[("send_err", 1), ("req_cqe_error", 1), ("sent_pkts", 0)])
}

fn receive_too_small() -> Counted {
    let mut s = Scripted::rc();
    s.recv(1, 0, 3);
    s.recv(2, 0, 3);
    s.send(Op::SendOnly, PEER_PSN, true, &[0; 4]);
    (all(s.host.engine.counters()), &[("resp_local_length_error", 1), ("resp_cqe_error", 2)])
}

fn access_refused() -> Counted {
    let mut pair = Pair::default();
    let (mut qa, _qb) = pair.connect(QpType::Rc);
    qa.sq.post(wr(1, SendOp::Write(Remote::default()), pair.a.data(0, 1))).unwrap();
    pair.run();
    (sum(&pair), &[("resp_remote_access_errors", 1), ("req_remote_access_errors", 1)])
}

fn request_refused() -> Counted {
    let mut pair = Pair::default();
    let (ia, ib) = (pair.a.init_attr(QpType::Rc), pair.b.init_attr(QpType::Rc));
    let with = QpAttr { access: Some(Access::empty()), ..QpAttr::default() };
    let (mut qa, _qb) = pair.connect_with(ia, ib, with);
    qa.sq.post(wr(1, SendOp::Write(pair.b.remote(0)), pair.a.data(0, 1))).unwrap();
    pair.run();
    (sum(&pair), &[("resp_remote_invalid_request", 1), ("req_remote_invalid_request", 1)])
}

fn queue_overrun() -> Counted {
    let mut host = Host::new(1);
    let (cq, _poller) = host.engine.create_cq(1).unwrap();
    let init = QpInitAttr { recv_cq: cq, ..host.init_attr(QpType::Rc) };
    let mut qp = host.create_qp(init);
    let now = feroce_train::Instant::ZERO;
    host.modify(now, qp.qpn, &QpAttr::init(Access::empty()));
    for id in 0..3 {
        qp.rq.as_mut().unwrap().post(host.recv(id, 0, 1)).unwrap();
    }
    host.modify(now, qp.qpn, &QpAttr::to(QpState::Err));
    (all(host.engine.counters()), &[("cq_overrun", 1), ("resp_cqe_error", 3)])
}

fn congested() -> Counted {
    let congestion = CongestionConfig::Dcqcn(DcqcnConfig::default());
    let config = Config { congestion, ..Config::default() };
    let mut on = Scripted::with_config(QpType::Rc, QpAttr::default(), config);
    let mut off = Scripted::rc();
    for s in [&mut on, &mut off] {
        let mut packet = write(s, 0);
        packet.meta.ecn = Ecn::Congested;
        s.deliver(&packet);
        let bth = Bth { becn: true, ..Bth::new(Opcode::CNP, s.qp.qpn, Psn::new(0)) };
        packet.bytes = [feroce_testkit::header(|out| bth.emit(out)), vec![0; 16]].concat();
        packet.meta.ecn = Ecn::Capable;
        s.deliver(&packet);
    }
    let (on, off) = (on.host.engine.counters().iter(), off.host.engine.counters().iter());
    let sum = on.zip(off).map(|((name, a), (_, b))| (name, a + b)).collect();
    (
        sum,
        &[
            ("np_ecn_marked_roce_packets", 2),
            ("np_cnp_sent", 2),
            ("rp_cnp_handled", 1),
            ("rp_cnp_ignored", 1),
        ],
    )
}

fn overdue() -> Counted {
    let mut s = Scripted::rc();
    send(&mut s, 1);
    s.answer(feroce_testkit::OUR_PSN, ACK);
    send(&mut s, 2);
    assert_eq!(s.wait(3_000_000).len(), 1);
    (all(s.host.engine.counters()), &[("tail_probes", 1), ("local_ack_timeout_err", 0)])
}

fn unasked() -> Counted {
    let mut s = Scripted::rc();
    let quiet = SendWr { flags: SendFlags::empty(), ..wr(1, SendOp::Send, Data::EMPTY) };
    s.post(quiet);
    assert_eq!(s.wait(3_000_000).len(), 1);
    (all(s.host.engine.counters()), &[("late_ack_requests", 1), ("tail_probes", 0)])
}
