//! Multicast: groups, members, copies.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use feroce_engine::{
    AddrVec, Config, CreateError, Dest, DestroyError, Limits, QpInitAttr, QpType, SendOp, SendWr,
    WcStatus,
};
use feroce_testkit::{Host, Pair, QKEY, TestQp, wr};
use feroce_wire::{Gid, Qkey, Qpn};

const GROUP: Gid = Gid::from_ipv4([239, 1, 2, 3]);
const OTHER: Gid = Gid::from_ipv4([239, 1, 2, 4]);

fn members(host: &mut Host, now: feroce_train::Instant, n: u64) -> Vec<TestQp> {
    (0..n)
        .map(|i| {
            let mut qp = feroce_testkit::datagram_qp(host, now);
            qp.rq.as_mut().unwrap().post(host.recv(i, i * 1000, 1000)).unwrap();
            qp
        })
        .collect()
}

/// Sends one datagram of `pair.a` to `group`.
fn send(pair: &mut Pair, qp: &mut TestQp, group: Gid, qkey: Qkey) {
    let av = AddrVec { dgid: group, ..AddrVec::default() };
    let ah = pair.a.engine.create_ah(pair.a.pd, av).unwrap();
    let dest = Dest::Ud { ah, qpn: Qpn::MULTICAST, qkey };
    qp.sq.post(SendWr { dest, ..wr(99, SendOp::Send, pair.a.data(500_000, 10)) }).unwrap();
    pair.run();
}

#[test]
fn every_member_gets_a_copy_and_nobody_else() {
    let mut pair = Pair::default();
    let mut sender = feroce_testkit::datagram_qp(&mut pair.a, pair.now);
    let bytes = pair.a.fill(500_000, 10, 6);
    let qps = members(&mut pair.b, pair.now, 4);
    for (i, qp) in qps.iter().take(3).enumerate() {
        // The port joins once.
        assert_eq!(pair.b.engine.attach_mcast(qp.qpn, GROUP), Ok(i == 0));
    }
    assert_eq!(pair.b.engine.attach_mcast(qps[3].qpn, OTHER), Ok(true));
    send(&mut pair, &mut sender, GROUP, QKEY);
    assert_eq!(pair.a.poll().unwrap().status, WcStatus::Success);
    let got: Vec<_> = pair.b.poll_all().iter().map(|c| (c.wr_id, c.qpn, c.src_qp)).collect();
    let expected: Vec<_> = (0..3).map(|i| (i, qps[i as usize].qpn, sender.qpn)).collect();
    assert_eq!(got, expected);
    for i in 0..3 {
        assert_eq!(pair.b.read(i * 1000 + 40, 10), bytes);
    }
}

#[test]
fn a_member_that_sends_gets_its_own_copy_and_the_wire_another() {
    let mut pair = Pair::default();
    let mut local = members(&mut pair.a, pair.now, 2);
    let remote = members(&mut pair.b, pair.now, 1);
    for qp in &local {
        pair.a.engine.attach_mcast(qp.qpn, GROUP).unwrap();
    }
    pair.b.engine.attach_mcast(remote[0].qpn, GROUP).unwrap();
    send(&mut pair, &mut local[0], GROUP, QKEY);
    let mut got: Vec<_> = pair.a.poll_all().iter().map(|c| c.wr_id).collect();
    got.sort_unstable();
    assert_eq!(got, [0, 1, 99]);
    assert_eq!(pair.b.poll_all().len(), 1);
}

#[test]
fn a_member_that_does_not_want_to_hear_itself_hears_the_others() {
    let mut pair = Pair::default();
    let init = QpInitAttr { hears_itself: false, ..pair.a.init_attr(QpType::Ud) };
    let mut local: Vec<_> = (0..2)
        .map(|i| {
            let mut qp = feroce_testkit::datagram_qp_with(&mut pair.a, pair.now, init);
            qp.rq.as_mut().unwrap().post(pair.a.recv(i, i * 1000, 1000)).unwrap();
            pair.a.engine.attach_mcast(qp.qpn, GROUP).unwrap();
            qp
        })
        .collect();
    let remote = members(&mut pair.b, pair.now, 1);
    pair.b.engine.attach_mcast(remote[0].qpn, GROUP).unwrap();
    send(&mut pair, &mut local[0], GROUP, QKEY);
    let mut got: Vec<_> = pair.a.poll_all().iter().map(|c| c.wr_id).collect();
    got.sort_unstable();
    assert_eq!(got, [1, 99]);
    assert_eq!(pair.b.poll_all().len(), 1);
}

#[test]
fn a_group_without_members_is_dropped() {
    let mut pair = Pair::default();
    let mut sender = feroce_testkit::datagram_qp(&mut pair.a, pair.now);
    let qps = members(&mut pair.b, pair.now, 1);
    pair.b.engine.attach_mcast(qps[0].qpn, OTHER).unwrap();
    send(&mut pair, &mut sender, GROUP, QKEY);
    assert!(pair.b.poll().is_none());
    assert_eq!(pair.b.engine.drops().drop_no_member, 1);
}

#[test]
fn a_copy_that_cannot_be_delivered_does_not_stop_the_others() {
    let mut pair = Pair::default();
    let mut sender = feroce_testkit::datagram_qp(&mut pair.a, pair.now);
    let qps = members(&mut pair.b, pair.now, 2);
    let deaf = feroce_testkit::datagram_qp(&mut pair.b, pair.now);
    for qpn in [qps[0].qpn, deaf.qpn, qps[1].qpn] {
        pair.b.engine.attach_mcast(qpn, GROUP).unwrap();
    }
    send(&mut pair, &mut sender, GROUP, QKEY);
    assert_eq!(pair.b.poll_all().len(), 2);
    assert_eq!(pair.b.engine.drops().drop_no_receive, 1);
    send(&mut pair, &mut sender, GROUP, Qkey(1));
    assert_eq!(pair.b.engine.drops().drop_bad_qkey, 3);
}

#[test]
fn attaching_twice_is_one_membership() {
    let mut pair = Pair::default();
    let mut sender = feroce_testkit::datagram_qp(&mut pair.a, pair.now);
    let mut qps = members(&mut pair.b, pair.now, 1);
    qps[0].rq.as_mut().unwrap().post(pair.b.recv(1, 5000, 1000)).unwrap();
    let qpn = qps[0].qpn;
    assert_eq!(pair.b.engine.attach_mcast(qpn, GROUP), Ok(true));
    assert_eq!(pair.b.engine.attach_mcast(qpn, GROUP), Ok(false));
    send(&mut pair, &mut sender, GROUP, QKEY);
    assert_eq!(pair.b.poll_all().len(), 1);
    assert_eq!(pair.b.engine.detach_mcast(qpn, GROUP), Ok(true));
    assert_eq!(pair.b.engine.detach_mcast(qpn, GROUP), Err(DestroyError::Unknown));
    send(&mut pair, &mut sender, GROUP, QKEY);
    assert!(pair.b.poll().is_none());
}

#[test]
fn the_port_leaves_with_the_last_member() {
    let mut pair = Pair::default();
    let qps = members(&mut pair.b, pair.now, 2);
    for qp in &qps {
        pair.b.engine.attach_mcast(qp.qpn, GROUP).unwrap();
    }
    assert_eq!(pair.b.engine.detach_mcast(qps[1].qpn, OTHER), Err(DestroyError::Unknown));
    assert_eq!(pair.b.engine.detach_mcast(qps[1].qpn, GROUP), Ok(false));
    assert_eq!(pair.b.engine.detach_mcast(qps[0].qpn, GROUP), Ok(true));
}

#[test]
fn an_attached_queue_pair_cannot_be_destroyed() {
    let mut pair = Pair::default();
    let qps = members(&mut pair.b, pair.now, 1);
    let qpn = qps[0].qpn;
    pair.b.engine.attach_mcast(qpn, GROUP).unwrap();
    pair.b.engine.attach_mcast(qpn, OTHER).unwrap();
    assert_eq!(pair.b.engine.destroy_qp(qpn), Err(DestroyError::Busy));
    pair.b.engine.detach_mcast(qpn, GROUP).unwrap();
    assert_eq!(pair.b.engine.destroy_qp(qpn), Err(DestroyError::Busy));
    pair.b.engine.detach_mcast(qpn, OTHER).unwrap();
    assert_eq!(pair.b.engine.destroy_qp(qpn), Ok(()));
}

#[test]
fn what_cannot_be_attached() {
    let mut pair = Pair::default();
    let init = pair.b.init_attr(QpType::Uc);
    let connected = pair.b.create_qp(init);
    let qp = &members(&mut pair.b, pair.now, 1)[0];
    let engine = &mut pair.b.engine;
    let unknown = CreateError::Unknown("queue pair");
    assert_eq!(engine.attach_mcast(Qpn::new(0x999), GROUP), Err(unknown));
    let invalid = CreateError::Invalid("only datagram queue pairs take multicast");
    assert_eq!(engine.attach_mcast(connected.qpn, GROUP), Err(invalid));
    let invalid = CreateError::Invalid("not a multicast address");
    assert_eq!(engine.attach_mcast(qp.qpn, Gid::from_ipv4([10, 0, 0, 1])), Err(invalid));
    assert_eq!(engine.attach_mcast(qp.qpn, Gid([0xff; 16])), Ok(true));
}

#[test]
fn limits_of_groups_and_members() {
    let limits = Limits { max_mcast_grp: 2, max_mcast_qp_attach: 2, ..Limits::default() };
    let mut pair = Pair::new(Config { limits, ..Config::default() });
    let qps = members(&mut pair.b, pair.now, 3);
    let engine = &mut pair.b.engine;
    let third = Gid::from_ipv4([239, 9, 9, 9]);
    for group in [GROUP, OTHER] {
        assert_eq!(engine.attach_mcast(qps[0].qpn, group), Ok(true));
    }
    assert_eq!(engine.attach_mcast(qps[0].qpn, third), Err(CreateError::TooMany));
    assert_eq!(engine.attach_mcast(qps[1].qpn, GROUP), Ok(false));
    assert_eq!(engine.attach_mcast(qps[2].qpn, GROUP), Err(CreateError::TooMany));
    engine.detach_mcast(qps[0].qpn, OTHER).unwrap();
    assert_eq!(engine.attach_mcast(qps[0].qpn, third), Ok(true));
}

#[test]
fn a_refused_member_leaves_no_group_behind() {
    let limits = Limits { max_mcast_grp: 1, max_mcast_qp_attach: 0, ..Limits::default() };
    let mut pair = Pair::new(Config { limits, ..Config::default() });
    let qps = members(&mut pair.b, pair.now, 1);
    let engine = &mut pair.b.engine;
    for _ in 0..2 {
        assert_eq!(engine.attach_mcast(qps[0].qpn, GROUP), Err(CreateError::TooMany));
        assert_eq!(engine.detach_mcast(qps[0].qpn, GROUP), Err(DestroyError::Unknown));
    }
}
