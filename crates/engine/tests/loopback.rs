//! An engine that talks to itself: nothing appears on the wire.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use feroce_engine::{
    AddrVec, Data, Dest, Event, Notify, QpAttr, QpState, QpType, SendFlags, SendOp, SendWr,
    WcOpcode, WcStatus,
};
use feroce_testkit::{CAPS, Host, QKEY, TestQp, psn, wr};
use feroce_train::{Instant, Single, SingleBuf};
use feroce_wire::{Pmtu, Qpn};

const NOW: Instant = Instant::from_nanos(1_000_000);

fn bring_up(host: &mut Host, qp: &TestQp, peer: Qpn) {
    let gid = host.gid;
    feroce_testkit::bring_up(host, NOW, qp, (gid, peer, psn(0)), Pmtu::B1024, &QpAttr::default());
}

/// Two queue pairs of one engine, connected with each other.
fn connect(host: &mut Host, qp_type: QpType) -> (TestQp, TestQp) {
    let init = host.init_attr(qp_type);
    let (one, two) = (host.create_qp(init), host.create_qp(init));
    bring_up(host, &one, two.qpn);
    bring_up(host, &two, one.qpn);
    (one, two)
}

/// Drives the engine until it has nothing more to do now. Returns how often it was called.
fn settle(host: &mut Host) -> u32 {
    for calls in 1..10_000 {
        assert!(host.engine.poll_transmit(NOW, &CAPS).is_none(), "on the wire");
        host.engine.trains_read();
        if host.engine.poll_timeout().is_none_or(|at| at > NOW) {
            return calls;
        }
        host.engine.handle_timeout(NOW);
    }
    panic!("never settles");
}

fn statuses(host: &mut Host) -> Vec<(u64, WcStatus)> {
    host.poll_all().iter().map(|c| (c.wr_id, c.status)).collect()
}

#[test]
fn every_operation_between_two_queue_pairs() {
    let mut host = Host::new(1);
    let (mut one, mut two) = connect(&mut host, QpType::Rc);
    let bytes = host.fill(0, 5000, 3);
    host.region.store_u64(800_000, 5).unwrap();
    let add = SendOp::FetchAdd { remote: host.remote(800_000), add: 4 };
    let requests = [
        wr(1, SendOp::Send, host.data(0, 5000)),
        wr(2, SendOp::Write(host.remote(200_000)), host.data(0, 5000)),
        wr(3, SendOp::Read(host.remote(0)), host.data(300_000, 5000)),
        wr(4, add, host.data(400_000, 8)),
    ];
    two.rq.as_mut().unwrap().post(host.recv(100, 100_000, 5000)).unwrap();
    for request in requests {
        one.sq.post(request).unwrap();
    }
    settle(&mut host);
    let done = [100, 1, 2, 3, 4].map(|id| (id, WcStatus::Success));
    assert_eq!(statuses(&mut host), done);
    for at in [100_000, 200_000, 300_000] {
        assert_eq!(host.read(at, 5000), bytes);
    }
    assert_eq!(host.region.load_u64(800_000).unwrap(), 9);
    assert_eq!(host.engine.drops().total(), 0);
    assert!(host.engine.counters().loopback_pkts > 15);
}

#[test]
fn a_queue_pair_connected_with_itself() {
    let mut host = Host::new(1);
    let init = host.init_attr(QpType::Rc);
    let mut qp = host.create_qp(init);
    bring_up(&mut host, &qp, qp.qpn);
    let bytes = host.fill(0, 3000, 9);
    qp.rq.as_mut().unwrap().post(host.recv(7, 10_000, 3000)).unwrap();
    qp.sq.post(wr(1, SendOp::Send, host.data(0, 3000))).unwrap();
    qp.sq.post(wr(2, SendOp::Read(host.remote(0)), host.data(20_000, 3000))).unwrap();
    settle(&mut host);
    assert_eq!(statuses(&mut host), [7, 1, 2].map(|id| (id, WcStatus::Success)));
    assert_eq!((host.read(10_000, 3000), host.read(20_000, 3000)), (bytes.clone(), bytes));
}

#[test]
fn a_datagram_to_itself() {
    let mut host = Host::new(1);
    let mut qp = feroce_testkit::datagram_qp(&mut host, NOW);
    let av = AddrVec { dgid: host.gid, ..AddrVec::default() };
    let ah = host.engine.create_ah(host.pd, av).unwrap();
    qp.rq.as_mut().unwrap().post(host.recv(7, 1000, 1000)).unwrap();
    let dest = Dest::Ud { ah, qpn: qp.qpn, qkey: QKEY };
    qp.sq.post(SendWr { dest, ..wr(1, SendOp::Send, host.data(0, 100)) }).unwrap();
    settle(&mut host);
    let done: Vec<_> = host.poll_all().iter().map(|c| (c.wr_id, c.opcode, c.src_qp)).collect();
    // A send completes when all trains have been read, which is after they were delivered.
    assert_eq!(done, [(7, WcOpcode::Recv, qp.qpn), (1, WcOpcode::Send, Qpn::default())]);
}

#[test]
fn an_unreliable_connection() {
    let mut host = Host::new(1);
    let (mut one, _two) = connect(&mut host, QpType::Uc);
    let bytes = host.fill(0, 100_000, 9);
    one.sq.post(wr(1, SendOp::Write(host.remote(300_000)), host.data(0, 100_000))).unwrap();
    settle(&mut host);
    assert_eq!(statuses(&mut host), [(1, WcStatus::Success)]);
    assert_eq!(host.read(300_000, 100_000), bytes);
}

#[test]
fn large_messages_give_others_a_turn_and_make_progress() {
    let mut host = Host::new(1);
    let (mut one, _two) = connect(&mut host, QpType::Rc);
    let half = feroce_testkit::MEMORY / 2;
    let bytes = host.fill(0, half, 1);
    for id in 0..20 {
        one.sq
            .post(wr(id, SendOp::Write(host.remote(half as u64)), host.data(0, half as u32)))
            .unwrap();
    }
    // While work is left, the engine wants to be called at once.
    assert_eq!(host.engine.poll_timeout(), Some(NOW));
    assert!(host.engine.poll_transmit(NOW, &CAPS).is_none());
    assert_eq!(host.engine.poll_timeout(), Some(NOW));
    assert!(settle(&mut host) > 2);
    assert_eq!(statuses(&mut host), (0..20).map(|i| (i, WcStatus::Success)).collect::<Vec<_>>());
    assert_eq!(host.read(half, half), bytes);
    assert_eq!(host.engine.counters().sent_pkts, host.engine.counters().rcvd_pkts);
}

#[test]
fn consumers_are_woken_however_the_work_falls_into_bursts() {
    for n in 1..200 {
        let mut host = Host::new(1);
        let (mut one, _two) = connect(&mut host, QpType::Rc);
        settle(&mut host);
        host.poller.arm(Notify::Next);
        for i in 0..n {
            let flags = if i + 1 == n { SendFlags::SIGNALED } else { SendFlags::empty() };
            let write = wr(i, SendOp::Write(host.remote(0)), host.data(0, 8));
            one.sq.post(SendWr { flags, ..write }).unwrap();
        }
        settle(&mut host);
        host.drain_events();
        let woken = host.events.contains(&Event::Completion(host.cq));
        assert!(woken && host.poll().is_some(), "{n} messages");
    }
}

#[test]
fn what_is_for_another_engine_at_the_same_address_goes_to_the_link() {
    let mut host = Host::new(1);
    let init = host.init_attr(QpType::Rc);
    let mut qp = host.create_qp(init);
    let elsewhere = Qpn::new(qp.qpn.get() ^ 0x0080_0000);
    bring_up(&mut host, &qp, elsewhere);
    qp.sq.post(wr(1, SendOp::Send, Data::EMPTY)).unwrap();
    let packets = host.transmit(NOW);
    assert_eq!(packets.len(), 1);
    assert_eq!((packets[0].meta.dst.gid, packets[0].bth().dest_qp), (host.gid, elsewhere));
    assert_eq!(host.engine.counters().loopback_pkts, 0);
}

#[test]
fn an_error_of_one_end_reaches_the_other() {
    let mut host = Host::new(1);
    let (mut one, two) = connect(&mut host, QpType::Rc);
    let nowhere = feroce_engine::Remote { addr: 0, rkey: feroce_wire::Rkey(0) };
    one.sq.post(wr(1, SendOp::Write(nowhere), host.data(0, 8))).unwrap();
    settle(&mut host);
    assert_eq!(statuses(&mut host), [(1, WcStatus::RemoteAccess)]);
    assert_eq!((one.sq.state(), two.sq.state()), (QpState::Err, QpState::Err));
}

#[test]
fn what_is_for_ourselves_does_not_go_at_once() {
    let mut host = Host::new(1);
    let (mut one, mut two) = connect(&mut host, QpType::Rc);
    settle(&mut host);
    two.rq.as_mut().unwrap().post(host.recv(9, 0, 8)).unwrap();
    one.sq.stage(wr(1, SendOp::Send, Data::EMPTY)).unwrap();
    one.sq.show();
    let mut packet = SingleBuf::default();
    let show = |_: Single<'_>| panic!("it is for this host");
    assert!(!host.engine.try_fast_path(one.qpn, &mut packet, show, || NOW));
    one.sq.ring();
    settle(&mut host);
    assert_eq!(statuses(&mut host).len(), 2);
}
