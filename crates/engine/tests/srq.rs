//! Shared receive queues.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use feroce_engine::{
    AsyncEvent, Config, CreateError, DestroyError, Limits, PostError, QpAttr, QpInitAttr, QpState,
    QpType, RecvWr, ResizeError, SendOp, SgeList, SrqAttr, SrqId, SrqInitAttr, SrqQueue, WcStatus,
};
use feroce_mem::{Access, Iova};
use feroce_testkit::{Pair, TestQp, wr};

fn attr(pair: &Pair, max_wr: u32) -> SrqInitAttr {
    SrqInitAttr { pd: pair.b.pd, max_wr, max_sge: 4, limit: 0, xrc: None }
}

/// A shared receive queue of `pair.b` for `max_wr` receives.
fn srq(pair: &mut Pair, max_wr: u32) -> (SrqId, SrqQueue) {
    let attr = attr(pair, max_wr);
    pair.b.engine.create_srq(attr).unwrap()
}

/// Two connected queue pairs, the second of which receives through `srq`.
fn connect(pair: &mut Pair, srq: SrqId, qp_type: QpType) -> (TestQp, TestQp) {
    let ia = pair.a.init_attr(qp_type);
    let ib = QpInitAttr { srq: Some(srq), ..pair.b.init_attr(qp_type) };
    let (qa, qb) = pair.connect_with(ia, ib, QpAttr::default());
    assert!(qb.rq.is_none());
    (qa, qb)
}

fn fill(pair: &Pair, queue: &mut SrqQueue, ids: std::ops::Range<u64>) {
    for id in ids {
        queue.post(pair.b.recv(id, id * 100, 100)).unwrap();
    }
}

fn send(pair: &mut Pair, qa: &mut TestQp, n: usize) {
    for _ in 0..n {
        qa.sq.post(wr(1, SendOp::Send, pair.a.data(0, 8))).unwrap();
        pair.run();
    }
}

#[test]
fn queue_pairs_share_receives_in_the_order_of_posting() {
    let mut pair = Pair::default();
    let (id, mut queue) = srq(&mut pair, 10);
    let (mut qa1, qb1) = connect(&mut pair, id, QpType::Rc);
    let (mut qa2, qb2) = connect(&mut pair, id, QpType::Uc);
    fill(&pair, &mut queue, 0..4);
    send(&mut pair, &mut qa1, 1);
    send(&mut pair, &mut qa2, 1);
    send(&mut pair, &mut qa1, 1);
    let got: Vec<_> = pair.b.poll_all().iter().map(|c| (c.wr_id, c.qpn)).collect();
    assert_eq!(got, [(0, qb1.qpn), (1, qb2.qpn), (2, qb1.qpn)]);
    assert_eq!(queue.free(), 9);
}

#[test]
fn datagrams_take_from_it_too() {
    let mut pair = Pair::default();
    let (id, mut queue) = srq(&mut pair, 10);
    let init = QpInitAttr { srq: Some(id), ..pair.b.init_attr(QpType::Ud) };
    let qb = pair.b.create_qp(init);
    pair.b.modify(pair.now, qb.qpn, &QpAttr::init_ud(feroce_testkit::QKEY));
    pair.b.modify(pair.now, qb.qpn, &QpAttr::to(QpState::Rtr));
    fill(&pair, &mut queue, 5..6);
    let mut qa = feroce_testkit::datagram_qp(&mut pair.a, pair.now);
    let av = feroce_engine::AddrVec { dgid: pair.b.gid, ..Default::default() };
    let ah = pair.a.engine.create_ah(pair.a.pd, av).unwrap();
    let mut datagram = wr(6, SendOp::Send, pair.a.data(0, 8));
    datagram.dest = feroce_engine::Dest::Ud { ah, qpn: qb.qpn, qkey: feroce_testkit::QKEY };
    qa.sq.post(datagram).unwrap();
    pair.run();
    let got = pair.b.poll().unwrap();
    assert_eq!((got.wr_id, got.qpn, got.byte_len), (5, qb.qpn, 48));
}

#[test]
fn an_empty_queue_makes_the_sender_wait() {
    let mut pair = Pair::default();
    let (id, mut queue) = srq(&mut pair, 10);
    let (mut qa, _qb) = connect(&mut pair, id, QpType::Rc);
    send(&mut pair, &mut qa, 1);
    assert_eq!(pair.b.engine.counters().send_rnr_err, 1);
    assert!(pair.a.poll().is_none());
    fill(&pair, &mut queue, 0..1);
    pair.wait(10_000_000);
    pair.run();
    assert_eq!(pair.a.poll().unwrap().status, WcStatus::Success);
    assert_eq!(pair.b.poll().unwrap().wr_id, 0);
}

#[test]
fn the_limit_event_comes_once_until_it_is_armed_again() {
    let mut pair = Pair::default();
    let (id, mut queue) = srq(&mut pair, 10);
    let (mut qa, _qb) = connect(&mut pair, id, QpType::Rc);
    fill(&pair, &mut queue, 0..6);
    pair.b.engine.set_srq_limit(id, 4).unwrap();
    assert_eq!(pair.b.engine.query_srq(id).unwrap().limit, 4);
    send(&mut pair, &mut qa, 2);
    assert_eq!(pair.b.async_events(), []);
    send(&mut pair, &mut qa, 1);
    assert_eq!(pair.b.async_events(), [AsyncEvent::SrqLimitReached(id)]);
    assert_eq!(pair.b.engine.query_srq(id).unwrap().limit, 0);
    send(&mut pair, &mut qa, 1);
    assert_eq!(pair.b.async_events(), []);
    pair.b.engine.set_srq_limit(id, 2).unwrap();
    send(&mut pair, &mut qa, 1);
    assert_eq!(pair.b.async_events(), [AsyncEvent::SrqLimitReached(id)]);
}

#[test]
fn a_limit_above_what_is_posted_is_reached_at_once() {
    let mut pair = Pair::default();
    let (id, mut queue) = srq(&mut pair, 10);
    fill(&pair, &mut queue, 0..3);
    assert_eq!(pair.b.engine.set_srq_limit(id, 3), Ok(()));
    assert_eq!(pair.b.async_events(), []);
    assert_eq!(pair.b.engine.set_srq_limit(id, 4), Ok(()));
    assert_eq!(pair.b.async_events(), [AsyncEvent::SrqLimitReached(id)]);
    assert_eq!(pair.b.engine.set_srq_limit(id, 0), Ok(()));
    assert_eq!(pair.b.async_events(), []);
    assert_eq!(pair.b.engine.set_srq_limit(id, 11), Err(ResizeError::BeyondLimits));
    assert_eq!(pair.b.engine.set_srq_limit(SrqId(9), 1), Err(ResizeError::Unknown));
}

#[test]
fn resizing_keeps_what_is_posted() {
    let mut pair = Pair::default();
    let (id, mut queue) = srq(&mut pair, 3);
    let (mut qa, _qb) = connect(&mut pair, id, QpType::Rc);
    fill(&pair, &mut queue, 0..3);
    assert_eq!(queue.post(pair.b.recv(9, 0, 1)), Err(PostError::QueueFull));
    let engine = &mut pair.b.engine;
    assert_eq!(engine.resize_srq(id, &mut queue, 2), Err(ResizeError::TooSmall { waiting: 3 }));
    assert_eq!(engine.resize_srq(id, &mut queue, 0), Err(ResizeError::BeyondLimits));
    assert_eq!(engine.resize_srq(id, &mut queue, u32::MAX), Err(ResizeError::BeyondLimits));
    assert_eq!(engine.resize_srq(SrqId(9), &mut queue, 5), Err(ResizeError::Unknown));
    assert_eq!(engine.resize_srq(id, &mut queue, 5), Ok(()));
    assert_eq!(engine.query_srq(id), Some(SrqAttr { max_wr: 5, max_sge: 4, limit: 0 }));
    fill(&pair, &mut queue, 3..5);
    assert_eq!(queue.post(pair.b.recv(9, 0, 1)), Err(PostError::QueueFull));
    send(&mut pair, &mut qa, 5);
    let got: Vec<_> = pair.b.poll_all().iter().map(|c| c.wr_id).collect();
    assert_eq!(got, [0, 1, 2, 3, 4]);
}

#[test]
fn the_last_receive_is_reported_when_an_idle_queue_pair_fails() {
    let mut pair = Pair::default();
    let (id, mut queue) = srq(&mut pair, 10);
    let (_qa, qb) = connect(&mut pair, id, QpType::Rc);
    fill(&pair, &mut queue, 0..2);
    pair.b.modify(pair.now, qb.qpn, &QpAttr::to(QpState::Err));
    assert_eq!(pair.b.async_events(), [AsyncEvent::LastWqeReached(qb.qpn)]);
    pair.b.modify(pair.now, qb.qpn, &QpAttr::to(QpState::Err));
    assert_eq!(pair.b.async_events(), []);
    assert!(pair.b.poll().is_none());
    assert_eq!(queue.free(), 8);
}

#[test]
fn a_receive_of_a_message_in_progress_is_flushed_with_its_queue_pair() {
    let mut pair = Pair::default();
    let (id, mut queue) = srq(&mut pair, 10);
    let (mut qa, qb) = connect(&mut pair, id, QpType::Rc);
    queue.post(pair.b.recv(7, 0, 5000)).unwrap();
    fill(&pair, &mut queue, 0..1);
    qa.sq.post(wr(1, SendOp::Send, pair.a.data(0, 3000))).unwrap();
    let first = pair.a.transmit(pair.now).remove(0);
    pair.b.receive(pair.now, &first);
    pair.b.modify(pair.now, qb.qpn, &QpAttr::to(QpState::Err));
    let done: Vec<_> = pair.b.poll_all().iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(done, [(7, WcStatus::Flushed)]);
    assert_eq!(queue.free(), 9);
}

#[test]
fn the_shared_queue_decides_whose_memory_its_receives_are() {
    let mut pair = Pair::default();
    let other = pair.b.engine.alloc_pd().unwrap();
    let attr = SrqInitAttr { pd: other, ..attr(&pair, 5) };
    let (id, mut queue) = pair.b.engine.create_srq(attr).unwrap();
    let (mut qa, _qb) = connect(&mut pair, id, QpType::Rc);
    let region = std::sync::Arc::clone(&pair.b.region);
    let rights = Access::LOCAL_WRITE;
    let foreign = pair.b.engine.reg_mr(other, region, 0, 100, Iova::ZeroBased, rights).unwrap();
    let sge = feroce_engine::Sge { addr: 0, len: 100, lkey: foreign };
    queue.post(RecvWr { wr_id: 1, sges: SgeList::from(sge) }).unwrap();
    send(&mut pair, &mut qa, 1);
    assert_eq!(pair.a.poll().unwrap().status, WcStatus::Success);
    assert_eq!(pair.b.poll().unwrap().status, WcStatus::Success);
    // Memory of the queue pair's own domain is foreign to the shared queue.
    queue.post(pair.b.recv(2, 0, 100)).unwrap();
    send(&mut pair, &mut qa, 2);
    assert_eq!(pair.a.poll().unwrap().status, WcStatus::RemoteOperation);
    assert_eq!(pair.b.poll().unwrap().status, WcStatus::LocalProtection);
}

#[test]
fn creation_and_destruction() {
    let limits = Limits { max_srq: 2, max_srq_wr: 8, max_sge: 4, ..Limits::default() };
    let mut pair = Pair::new(Config { limits, ..Config::default() });
    let base = attr(&pair, 8);
    let mut create = |attr| pair.b.engine.create_srq(attr).map(|(id, _)| id);
    let wrs = CreateError::BeyondLimits("number of receives");
    assert_eq!(create(SrqInitAttr { max_wr: 9, ..base }), Err(wrs));
    assert_eq!(create(SrqInitAttr { max_wr: 0, ..base }), Err(wrs));
    let sges = CreateError::BeyondLimits("number of SGEs");
    assert_eq!(create(SrqInitAttr { max_sge: 5, ..base }), Err(sges));
    let limit = CreateError::BeyondLimits("limit");
    assert_eq!(create(SrqInitAttr { limit: 9, ..base }), Err(limit));
    let pd = CreateError::Unknown("protection domain");
    assert_eq!(create(SrqInitAttr { pd: feroce_mem::PdId(77), ..base }), Err(pd));
    let first = create(base).unwrap();
    let second = create(base).unwrap();
    assert_eq!(create(base), Err(CreateError::TooMany));
    assert_eq!(pair.b.engine.destroy_srq(second), Ok(()));
    assert_eq!(pair.b.engine.destroy_srq(second), Err(DestroyError::Unknown));
    assert_eq!(pair.b.engine.query_srq(second), None);
    let mut init = pair.b.init_attr(QpType::Rc);
    init.cap.max_send_sge = 1;
    init.cap.max_recv_sge = 1;
    let unknown = QpInitAttr { srq: Some(second), ..init };
    let error = CreateError::Unknown("shared receive queue");
    assert_eq!(pair.b.engine.create_qp(unknown).unwrap_err(), error);
    let qp = pair.b.create_qp(QpInitAttr { srq: Some(first), ..init });
    assert_eq!(pair.b.engine.destroy_srq(first), Err(DestroyError::Busy));
    pair.b.engine.destroy_qp(qp.qpn).unwrap();
    assert_eq!(pair.b.engine.destroy_srq(first), Ok(()));
}

#[test]
fn a_receive_with_too_many_elements_is_refused() {
    let mut pair = Pair::default();
    let (_, mut queue) = srq(&mut pair, 3);
    let sges = SgeList::new(&[pair.b.sge(0, 1); 5]);
    assert_eq!(queue.post(RecvWr { wr_id: 1, sges }), Err(PostError::TooManySges));
}
