//! Congestion: when a receiver notifies the sender, and what a notification does.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::sync::{Arc, Mutex};

use feroce_engine::{
    Ack, AddrVec, Config, CongestionConfig, CongestionControl, DcqcnConfig, Dest, Loss, QpAttr,
    QpInitAttr, QpState, QpType, SendOp, SendWr, WcStatus,
};
use feroce_testkit::{CAPS, Host, Packet, Pair, Scripted, TestQp, wr};
use feroce_train::{Ecn, Hop, Instant};
use feroce_wire::{Bth, Gid, Op, Opcode, Pmtu, Psn, Reth, Service};

/// A gigabit: a kilobyte takes eight microseconds.
const LINE: DcqcnConfig = DcqcnConfig {
    line_rate_bps: 1_000_000_000,
    min_rate_bps: 10_000_000,
    rate_ai_bps: 0,
    rate_hai_bps: 0,
    g: 1.0 / 256.0,
    alpha_timer_ns: 1_000_000_000,
    increase_timer_ns: 1_000_000_000,
    increase_bytes: u64::MAX,
    fast_recovery: 5,
};

fn paced() -> Config {
    Config { congestion: CongestionConfig::Dcqcn(LINE), ..Config::default() }
}

/// A packet that met congestion on its way.
fn marked(mut packet: Packet) -> Packet {
    packet.meta.ecn = Ecn::Congested;
    packet
}

/// A congestion notification from the peer of `s` to its queue pair.
fn cnp(s: &Scripted) -> Packet {
    let mut packet = s.packet(Op::SendOnly, 0, false, &[0; 16]);
    let bth = Bth { becn: true, ..Bth::new(Opcode::CNP, s.qp.qpn, Psn::new(0)) };
    let mut head = [0; Bth::LEN];
    bth.emit(&mut head);
    packet.bytes[..Bth::LEN].copy_from_slice(&head);
    packet
}

/// An empty write.
fn write_only(s: &Scripted, psn: u32) -> Packet {
    let reth =
        feroce_testkit::header(|out| Reth { va: 0, rkey: feroce_wire::Rkey(0), len: 0 }.emit(out));
    s.packet(Op::WriteOnly, psn, false, &reth)
}

fn is_cnp(packet: &Packet) -> bool {
    packet.bth().opcode == Opcode::CNP
}

#[test]
fn a_marked_packet_is_answered_with_a_notification() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut s = Scripted::new(qp_type, QpAttr::default());
        let packet = marked(write_only(&s, feroce_testkit::PEER_PSN));
        let answer = s.deliver(&packet);
        assert_eq!(answer.len(), 1);
        let cnp = &answer[0];
        let bth = cnp.bth();
        assert_eq!(bth.opcode.decode(), Some((Service::Cnp, Op::Cnp)));
        assert_eq!((bth.dest_qp, bth.psn, bth.becn), (feroce_testkit::PEER_QPN, Psn::new(0), true));
        assert_eq!((cnp.meta.src.gid, cnp.meta.dst.gid), (s.host.gid, s.peer));
        assert_eq!((bth.pkey, cnp.rest()), (feroce_wire::Pkey::DEFAULT, &[0; 16][..]));
        let counters = s.host.engine.counters();
        assert_eq!((counters.np_ecn_marked_roce_packets, counters.np_cnp_sent), (1, 1));
        // The packet counts all the same.
        let (attr, _) = s.host.engine.query_qp(s.qp.qpn).unwrap();
        assert_eq!(attr.rq_psn, Some(Psn::new(feroce_testkit::PEER_PSN + 1)));
    }
}

#[test]
fn notifications_keep_their_distance() {
    let config = Config { cnp_interval_ns: 50_000, ..Config::default() };
    let mut s = Scripted::with_config(QpType::Rc, QpAttr::default(), config);
    let mut sent = Vec::new();
    for i in 0..200 {
        // One packet every microsecond: `deliver` lets that pass.
        let packet = marked(write_only(&s, feroce_testkit::PEER_PSN + i));
        let cnps = s.deliver(&packet).iter().filter(|p| is_cnp(p)).count();
        sent.extend((0..cnps).map(|_| i));
    }
    assert_eq!(sent, [0, 50, 100, 150]);
    let counters = s.host.engine.counters();
    assert_eq!((counters.np_ecn_marked_roce_packets, counters.np_cnp_sent), (200, 4));
}

#[test]
fn every_queue_pair_notifies_for_itself() {
    let mut pair = Pair::default();
    let (mut qa1, _qb1) = pair.connect(QpType::Rc);
    let (mut qa2, _qb2) = pair.connect(QpType::Rc);
    for qa in [&mut qa1, &mut qa2] {
        qa.sq.post(wr(1, SendOp::Write(pair.b.remote(0)), pair.a.data(0, 5000))).unwrap();
    }
    for packet in pair.a.transmit(pair.now) {
        pair.b.receive(pair.now, &marked(packet));
    }
    let answers = pair.b.transmit(pair.now);
    let told: Vec<_> = answers.iter().filter(|p| is_cnp(p)).map(|p| p.bth().dest_qp).collect();
    assert_eq!(told, [qa1.qpn, qa2.qpn]);
}

#[test]
fn a_marked_packet_that_is_not_accepted_notifies_nobody() {
    let mut s = Scripted::new(QpType::Rc, QpAttr::default());
    let mut stranger = marked(write_only(&s, feroce_testkit::PEER_PSN));
    stranger.meta.src = Gid::from_ipv4([10, 0, 0, 66]).into();
    assert!(s.deliver(&stranger).is_empty());
    let mut foreign = marked(write_only(&s, feroce_testkit::PEER_PSN));
    foreign.bytes[2..4].copy_from_slice(&[0x12, 0x34]);
    assert!(s.deliver(&foreign).is_empty());
    // A queue pair that is not connected has no peer to notify.
    s.host.modify(s.now, s.qp.qpn, &QpAttr::to(QpState::Reset));
    let packet = marked(write_only(&s, feroce_testkit::PEER_PSN));
    assert!(s.deliver(&packet).is_empty());
    assert_eq!(s.host.engine.counters().np_cnp_sent, 0);
}

#[test]
fn datagrams_are_counted_only() {
    let mut pair = Pair::default();
    let (mut qa, mut qb) = pair.datagrams();
    let av = AddrVec { dgid: pair.b.gid, ..AddrVec::default() };
    let ah = pair.a.engine.create_ah(pair.a.pd, av).unwrap();
    let dest = Dest::Ud { ah, qpn: qb.qpn, qkey: feroce_testkit::QKEY };
    qb.rq.as_mut().unwrap().post(pair.b.recv(1, 0, 100)).unwrap();
    qa.sq.post(SendWr { dest, ..wr(1, SendOp::Send, pair.a.data(0, 5)) }).unwrap();
    let packet = marked(pair.a.transmit(pair.now).remove(0));
    pair.b.receive(pair.now, &packet);
    assert!(pair.b.transmit(pair.now).is_empty());
    assert_eq!(pair.b.engine.counters().np_ecn_marked_roce_packets, 1);
}

#[test]
fn a_notification_is_ignored_and_counted_without_congestion_control() {
    assert_eq!(Config::default().congestion, CongestionConfig::None);
    let mut off = Scripted::new(QpType::Rc, QpAttr::default());
    let packet = cnp(&off);
    assert!(off.deliver(&packet).is_empty());
    let counters = off.host.engine.counters();
    assert_eq!((counters.rp_cnp_handled, counters.rp_cnp_ignored), (0, 1));
    let mut on = Scripted::with_config(QpType::Rc, QpAttr::default(), paced());
    let packet = cnp(&on);
    assert!(on.deliver(&packet).is_empty());
    let counters = on.host.engine.counters();
    assert_eq!((counters.rp_cnp_handled, counters.rp_cnp_ignored), (1, 0));
    assert_eq!(on.host.engine.drops().total(), 0);
}

#[test]
fn a_notification_from_a_stranger_is_dropped() {
    let mut s = Scripted::with_config(QpType::Rc, QpAttr::default(), paced());
    let mut packet = cnp(&s);
    packet.meta.src = Gid::from_ipv4([10, 0, 0, 66]).into();
    s.deliver(&packet);
    assert_eq!(s.host.engine.counters().rp_cnp_handled, 0);
    assert_eq!(s.host.engine.drops().drop_bad_address, 1);
}

#[test]
fn a_queue_pair_may_do_without_congestion_control() {
    let mut pair = Pair::new(paced());
    let ia = QpInitAttr { congestion_control: false, ..pair.a.init_attr(QpType::Uc) };
    let ib = pair.b.init_attr(QpType::Uc);
    let (mut qa, _qb) = pair.connect_with(ia, ib, QpAttr::default());
    qa.sq.post(wr(1, SendOp::Write(pair.b.remote(0)), pair.a.data(0, 500_000))).unwrap();
    let bytes: usize = pair.a.transmit(pair.now).iter().map(|p| p.bytes.len()).sum();
    assert!(bytes > 500_000);
}

/// Drives `host` alone by its own deadlines until `deadline`. Bytes sent.
fn send_until(host: &mut Host, mut now: Instant, deadline: Instant) -> u64 {
    let mut bytes = 0;
    while now <= deadline {
        while let Some(train) = host.engine.poll_transmit(now, &CAPS) {
            bytes += train.total_len() as u64;
        }
        host.engine.trains_read();
        let Some(at) = host.engine.poll_timeout() else {
            break;
        };
        assert!(at > now, "wants to be called again at once");
        now = at;
        host.engine.handle_timeout(now);
    }
    bytes
}

/// A queue pair of `pair.a` with twenty writes of 64 KiB to send.
fn loaded(pair: &mut Pair, qp_type: QpType) -> TestQp {
    let (mut qa, _qb) = pair.connect(qp_type);
    for id in 0..20 {
        qa.sq.post(wr(id, SendOp::Write(pair.b.remote(0)), pair.a.data(0, 65536))).unwrap();
    }
    qa
}

#[test]
fn trains_leave_at_line_rate() {
    let mut pair = Pair::new(paced());
    let _qa = loaded(&mut pair, QpType::Uc);
    let now = pair.now;
    // Five milliseconds of a gigabit are 625,000 bytes; one train may be ahead.
    let sent = send_until(&mut pair.a, now, now.plus_nanos(5_000_000));
    assert!((600_000..700_000).contains(&sent), "{sent}");
}

#[test]
fn a_notification_halves_the_rate() {
    let mut pair = Pair::new(paced());
    let qa = loaded(&mut pair, QpType::Uc);
    let (peer, own) = (pair.b.gid, pair.a.gid);
    let bth = Bth { becn: true, ..Bth::new(Opcode::CNP, qa.qpn, Psn::new(0)) };
    let mut bytes = vec![0; Bth::LEN + 16];
    bth.emit((&mut bytes[..Bth::LEN]).try_into().unwrap());
    let meta = feroce_train::RxMeta { src: peer.into(), dst: own.into(), ..Default::default() };
    pair.a.receive(pair.now, &Packet { meta, bytes });
    let now = pair.now;
    let sent = send_until(&mut pair.a, now, now.plus_nanos(5_000_000));
    assert!((300_000..380_000).contains(&sent), "{sent}");
}

#[test]
fn pacing_ends_with_the_work_and_everything_arrives() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut pair = Pair::new(paced());
        let _qa = loaded(&mut pair, qp_type);
        let start = pair.now;
        let mut done = Vec::new();
        while done.len() < 20 {
            pair.run();
            done.extend(pair.a.poll_all());
            if done.len() < 20 {
                let next = pair.a.engine.poll_timeout().expect("work is left");
                pair.now = pair.now.max(next);
                pair.wait(0);
            }
        }
        assert!(done.iter().all(|c| c.status == WcStatus::Success));
        let took = pair.now.nanos_since(start);
        // 1.3 MB with headers at a gigabit: ten and a half milliseconds.
        assert!((9_500_000..13_000_000).contains(&took), "{qp_type:?}: {took}");
        assert_eq!(pair.a.engine.counters().completer_retry_err, 0);
    }
}

#[test]
fn a_queue_pair_starts_afresh_after_reset() {
    let slow = DcqcnConfig { line_rate_bps: 1000, min_rate_bps: 1000, ..LINE };
    let mut pair =
        Pair::new(Config { congestion: CongestionConfig::Dcqcn(slow), ..Config::default() });
    let (mut qa, qb) = pair.connect(QpType::Uc);
    let write = |pair: &Pair| wr(1, SendOp::Write(pair.b.remote(0)), pair.a.data(0, 1000));
    qa.sq.post(write(&pair)).unwrap();
    qa.sq.post(write(&pair)).unwrap();
    assert_eq!(pair.a.transmit(pair.now).len(), 1);
    pair.a.modify(pair.now, qa.qpn, &QpAttr::to(QpState::Reset));
    let peer = (pair.b.gid, qb.qpn, Psn::new(1));
    feroce_testkit::bring_up(&mut pair.a, pair.now, &qa, peer, pair.mtu, &QpAttr::default());
    qa.sq.post(write(&pair)).unwrap();
    assert_eq!(pair.a.transmit(pair.now).len(), 1);
}

/// Bytes of a packet in the middle of a message.
const PACKET: u64 = (Pmtu::B1024.bytes() + Bth::LEN) as u64;

/// Writes down what it is told, and lets so many bytes be on their way.
#[derive(Debug)]
struct Recorder {
    window: u64,
    events: Arc<Mutex<Vec<Told>>>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Told {
    Sent(u64),
    Acked(Ack),
    Hops(usize),
    Lost(Loss),
}

impl CongestionControl for Recorder {
    fn rate_bps(&self) -> f64 {
        f64::INFINITY
    }

    fn window(&self) -> u64 {
        self.window
    }

    fn on_sent(&mut self, _: Instant, bytes: u64) {
        self.events.lock().unwrap().push(Told::Sent(bytes));
    }

    fn on_ack(&mut self, _: Instant, ack: Ack) {
        self.events.lock().unwrap().push(Told::Acked(ack));
    }

    fn on_telemetry(&mut self, _: Instant, hops: &[Hop]) {
        self.events.lock().unwrap().push(Told::Hops(hops.len()));
    }

    fn on_loss(&mut self, _: Instant, loss: Loss) {
        self.events.lock().unwrap().push(Told::Lost(loss));
    }
}

/// A pair whose queue pairs have a window, with a write of so many packets posted.
fn windowed(window: u64, packets: usize) -> (Pair, TestQp, Arc<Mutex<Vec<Told>>>) {
    let events = Arc::<Mutex<Vec<Told>>>::default();
    let shared = Arc::clone(&events);
    let congestion = CongestionConfig::custom("recorder", move || {
        Box::new(Recorder { window, events: Arc::clone(&shared) })
    });
    let mut pair = Pair::new(Config { congestion, ..Config::default() });
    pair.mtu = Pmtu::B1024;
    let (mut qa, _qb) = pair.connect(QpType::Rc);
    let len = (packets * pair.mtu.bytes()) as u32;
    let write = wr(1, SendOp::Write(pair.b.remote(0)), pair.a.data(0, len));
    qa.sq.post(write).unwrap();
    (pair, qa, events)
}

#[test]
fn a_window_of_congestion_control_bounds_what_is_on_its_way() {
    let (mut pair, _qa, events) = windowed(4 * PACKET, 12);
    assert_eq!(pair.a.transmit(pair.now).len(), 4, "the window is full");
    assert!(pair.a.transmit(pair.now).is_empty());
    let sent: u64 = events
        .lock()
        .unwrap()
        .iter()
        .map(|told| if let Told::Sent(bytes) = told { *bytes } else { 0 })
        .sum();
    // The first packet has an address as well.
    assert_eq!(sent, 4 * PACKET + 16);
}

#[test]
fn an_algorithm_hears_of_acknowledgements_and_everything_arrives() {
    // A window of less than a packet lets one go at a time.
    for window in [1, 3 * PACKET, u64::MAX] {
        let (mut pair, qa, events) = windowed(window, 12);
        pair.run();
        assert_eq!(pair.a.poll_all().len(), 1, "{window}");
        let events = events.lock().unwrap();
        let acks = events.iter().filter_map(|told| match told {
            Told::Acked(ack) => Some(*ack),
            _ => None,
        });
        let acks: Vec<Ack> = acks.collect();
        assert_eq!(acks.iter().map(|ack| ack.bytes).sum::<u64>(), 12 * PACKET, "{acks:?}");
        assert!(acks.iter().all(|ack| ack.in_flight <= window.max(PACKET)), "{acks:?}");
        assert!(acks.iter().any(|ack| ack.rtt_ns.is_some()), "{acks:?}");
        assert_eq!(acks.last().map(|ack| ack.in_flight), Some(0));
        assert!(!events.iter().any(|told| matches!(told, Told::Lost(_) | Told::Hops(_))));
        drop(events);
        drop(qa);
    }
}

#[test]
fn an_algorithm_hears_of_losses_and_of_switches() {
    let (mut pair, qa, events) = windowed(u64::MAX, 1);
    assert_eq!(pair.a.transmit(pair.now).len(), 1, "it is lost");
    let at = pair.a.engine.poll_timeout().expect("an answer is awaited");
    pair.a.engine.handle_timeout(at);
    pair.a.engine.handle_telemetry(at, qa.qpn, &[Hop::default(); 3]);
    let events = events.lock().unwrap();
    assert!(events.contains(&Told::Lost(Loss::Timeout)), "{events:?}");
    assert_eq!(events.last(), Some(&Told::Hops(3)));
}
