//! Completion queues: overrun, notification, resizing, limits.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use feroce_engine::{
    AsyncEvent, Config, CqId, CqPoller, CreateError, Data, DestroyError, Event, Limits, Notify,
    QpAttr, QpInitAttr, QpState, QpType, ResizeError, SendFlags, SendOp, SendWr, WcStatus,
};
use feroce_testkit::{Pair, TestQp, wr};
use feroce_train::Instant;

/// Two connected queue pairs, the second of which receives into a queue of its own of `depth`.
fn with_receive_cq(pair: &mut Pair, depth: u32) -> (TestQp, TestQp, CqId, CqPoller) {
    let (cq, poller) = pair.b.engine.create_cq(depth).unwrap();
    let ia = pair.a.init_attr(QpType::Rc);
    let ib = QpInitAttr { recv_cq: cq, ..pair.b.init_attr(QpType::Rc) };
    let (qa, qb) = pair.connect_with(ia, ib, QpAttr::default());
    (qa, qb, cq, poller)
}

/// Sends `n` empty messages to `qb`, waking the receiver if `solicited`.
fn send(pair: &mut Pair, qa: &mut TestQp, qb: &mut TestQp, n: u64, solicited: bool) {
    let flags = if solicited { SendFlags::SOLICITED } else { SendFlags::empty() };
    for id in 0..n {
        qb.rq.as_mut().unwrap().post(pair.b.recv(id, 0, 10)).unwrap();
        qa.sq.post(SendWr { flags, ..wr(id, SendOp::Send, Data::EMPTY) }).unwrap();
    }
    pair.run();
}

/// Wake-ups for consumers of `pair.b` since the last call.
fn wakes(pair: &mut Pair) -> Vec<CqId> {
    pair.b.drain_events();
    let events = std::mem::take(&mut pair.b.events);
    events
        .into_iter()
        .filter_map(|e| match e {
            Event::Completion(cq) => Some(cq),
            Event::Async(_) | Event::Poller(_) => None,
        })
        .collect()
}

#[test]
fn an_overrun_kills_the_queue_and_its_queue_pairs() {
    let mut pair = Pair::default();
    let (mut qa, mut qb, cq, mut poller) = with_receive_cq(&mut pair, 2);
    send(&mut pair, &mut qa, &mut qb, 3, false);
    let events = pair.b.async_events();
    assert_eq!(events, [AsyncEvent::CqError(cq), AsyncEvent::QpFatal(qb.qpn)]);
    assert_eq!(qb.sq.state(), QpState::Err);
    assert_eq!(std::iter::from_fn(|| poller.poll()).count(), 2);
    assert_eq!(pair.b.engine.counters().cq_overrun, 1);
    // No new queue pair may use it, and it can be destroyed when no queue pair uses it any more.
    let init = QpInitAttr { recv_cq: cq, ..pair.b.init_attr(QpType::Rc) };
    let error = CreateError::Invalid("the completion queue overran");
    assert_eq!(pair.b.engine.create_qp(init).unwrap_err(), error);
    assert_eq!(pair.b.engine.destroy_cq(cq), Err(DestroyError::Busy));
    pair.b.engine.destroy_qp(qb.qpn).unwrap();
    assert_eq!(pair.b.engine.destroy_cq(cq), Ok(()));
}

#[test]
fn the_other_queue_of_a_queue_pair_that_an_overrun_stops_wakes_its_consumer() {
    let mut pair = Pair::default();
    let (mut qa, mut qb, ..) = with_receive_cq(&mut pair, 1);
    // A send that waits in SQD is flushed to the send completion queue.
    pair.b.modify(pair.now, qb.qpn, &QpAttr::to(QpState::Sqd));
    qb.sq.post(wr(7, SendOp::Send, Data::EMPTY)).unwrap();
    pair.run();
    send(&mut pair, &mut qa, &mut qb, 1, false);
    pair.b.poller.arm(Notify::Next);
    qb.rq.as_mut().unwrap().post(pair.b.recv(1, 0, 10)).unwrap();
    qa.sq.post(wr(1, SendOp::Send, Data::EMPTY)).unwrap();
    let packets = pair.a.transmit(pair.now);
    pair.b.receive(pair.now, &packets[0]);
    assert_eq!(pair.b.poll().map(|c| (c.wr_id, c.status)), Some((7, WcStatus::Flushed)));
    assert_eq!(wakes(&mut pair), [pair.b.cq]);
}

#[test]
fn one_event_per_arm() {
    let mut pair = Pair::default();
    let (mut qa, mut qb, cq, poller) = with_receive_cq(&mut pair, 100);
    send(&mut pair, &mut qa, &mut qb, 1, false);
    assert_eq!(wakes(&mut pair), []);
    // Entries that were there before arming do not count.
    poller.arm(Notify::Next);
    pair.run();
    assert_eq!(wakes(&mut pair), []);
    send(&mut pair, &mut qa, &mut qb, 3, false);
    assert_eq!(wakes(&mut pair), [cq]);
    send(&mut pair, &mut qa, &mut qb, 1, true);
    assert_eq!(wakes(&mut pair), []);
    poller.arm(Notify::Next);
    send(&mut pair, &mut qa, &mut qb, 1, true);
    assert_eq!(wakes(&mut pair), [cq]);
}

#[test]
fn a_nap_ends_at_the_next_completion_whatever_else_was_asked_for() {
    let mut pair = Pair::default();
    let (mut qa, mut qb, cq, mut poller) = with_receive_cq(&mut pair, 100);
    let events = |pair: &mut Pair| {
        pair.b.drain_events();
        std::mem::take(&mut pair.b.events)
    };
    assert!(poller.begin_nap());
    poller.arm(Notify::Solicited);
    send(&mut pair, &mut qa, &mut qb, 1, false);
    assert_eq!(events(&mut pair), [Event::Poller(cq)]);
    assert!(!poller.begin_nap(), "a completion waits");
    assert!(poller.poll().is_some());
    send(&mut pair, &mut qa, &mut qb, 1, true);
    assert_eq!(events(&mut pair), [Event::Poller(cq), Event::Completion(cq)]);
    send(&mut pair, &mut qa, &mut qb, 1, true);
    assert_eq!(events(&mut pair), []);
}

#[test]
fn solicited_notification_waits_for_the_solicited_bit() {
    let mut pair = Pair::default();
    let (mut qa, mut qb, cq, mut poller) = with_receive_cq(&mut pair, 100);
    poller.arm(Notify::Solicited);
    send(&mut pair, &mut qa, &mut qb, 2, false);
    assert_eq!(wakes(&mut pair), []);
    send(&mut pair, &mut qa, &mut qb, 1, true);
    assert_eq!(wakes(&mut pair), [cq]);
    let bits: Vec<_> = std::iter::from_fn(|| poller.poll()).map(|c| c.solicited).collect();
    assert_eq!(bits, [false, false, true]);
    // Arming for solicited completions does not cancel an earlier arming for all completions.
    poller.arm(Notify::Next);
    poller.arm(Notify::Solicited);
    send(&mut pair, &mut qa, &mut qb, 1, false);
    assert_eq!(wakes(&mut pair), [cq]);
}

#[test]
fn an_error_counts_as_solicited() {
    let mut pair = Pair::default();
    let (_qa, mut qb, cq, poller) = with_receive_cq(&mut pair, 100);
    qb.rq.as_mut().unwrap().post(pair.b.recv(1, 0, 10)).unwrap();
    poller.arm(Notify::Solicited);
    pair.b.modify(pair.now, qb.qpn, &QpAttr::to(QpState::Err));
    assert_eq!(wakes(&mut pair), [cq]);
}

#[test]
fn a_write_with_immediate_can_be_solicited() {
    let mut pair = Pair::default();
    let (mut qa, mut qb, cq, poller) = with_receive_cq(&mut pair, 100);
    poller.arm(Notify::Solicited);
    qb.rq.as_mut().unwrap().post(pair.b.recv(1, 0, 10)).unwrap();
    let op = SendOp::WriteImm(pair.b.remote(0), feroce_wire::Imm(1));
    let flags = SendFlags::SOLICITED;
    qa.sq.post(SendWr { flags, ..wr(1, op, pair.a.data(0, 3000)) }).unwrap();
    pair.run();
    assert_eq!(wakes(&mut pair), [cq]);
}

#[test]
fn resizing_keeps_what_waits_in_order() {
    let mut pair = Pair::default();
    let (mut qa, mut qb, cq, mut poller) = with_receive_cq(&mut pair, 4);
    send(&mut pair, &mut qa, &mut qb, 4, false);
    let engine = &mut pair.b.engine;
    let too_small = Err(ResizeError::TooSmall { waiting: 4 });
    assert_eq!(engine.resize_cq(cq, &mut poller, 3), too_small);
    assert_eq!(engine.resize_cq(cq, &mut poller, 0), Err(ResizeError::BeyondLimits));
    assert_eq!(engine.resize_cq(cq, &mut poller, u32::MAX), Err(ResizeError::BeyondLimits));
    assert_eq!(engine.resize_cq(CqId(99), &mut poller, 8), Err(ResizeError::Unknown));
    assert_eq!((poller.capacity(), poller.len()), (4, 4));
    assert_eq!(engine.resize_cq(cq, &mut poller, 6), Ok(()));
    poller.arm(Notify::Next);
    send(&mut pair, &mut qa, &mut qb, 2, false);
    assert_eq!(wakes(&mut pair), [cq]);
    let ids: Vec<_> = std::iter::from_fn(|| poller.poll()).map(|c| c.wr_id).collect();
    assert_eq!(ids, [0, 1, 2, 3, 0, 1]);
    assert_eq!(pair.b.engine.resize_cq(cq, &mut poller, 1), Ok(()));
    assert_eq!(poller.capacity(), 1);
    send(&mut pair, &mut qa, &mut qb, 1, false);
    assert_eq!((poller.len(), pair.b.async_events().len()), (1, 0));
}

#[test]
fn an_armed_queue_stays_armed_when_it_is_resized() {
    let mut pair = Pair::default();
    let (mut qa, mut qb, cq, mut poller) = with_receive_cq(&mut pair, 4);
    poller.arm(Notify::Next);
    pair.b.engine.resize_cq(cq, &mut poller, 8).unwrap();
    send(&mut pair, &mut qa, &mut qb, 1, false);
    assert_eq!(wakes(&mut pair), [cq]);
}

#[test]
fn timestamps_are_the_time_of_completion() {
    let mut pair = Pair::default();
    let (mut qa, mut qb, _, mut poller) = with_receive_cq(&mut pair, 4);
    pair.now = Instant::from_nanos(5_000_000);
    qb.rq.as_mut().unwrap().post(pair.b.recv(1, 0, 10)).unwrap();
    qb.rq.as_mut().unwrap().post(pair.b.recv(2, 0, 10)).unwrap();
    qa.sq.post(wr(1, SendOp::Send, Data::EMPTY)).unwrap();
    let packets = pair.a.transmit(pair.now);
    let arrival = pair.now.plus_nanos(700);
    pair.b.receive(arrival, &packets[0]);
    assert_eq!(poller.poll().unwrap().timestamp, arrival);
    let ack = pair.b.transmit(arrival);
    let back = arrival.plus_nanos(800);
    pair.a.receive(back, &ack[0]);
    assert_eq!(pair.a.poll().unwrap().timestamp, back);
    let later = back.plus_nanos(900);
    pair.b.modify(later, qb.qpn, &QpAttr::to(QpState::Err));
    assert_eq!(poller.poll().unwrap().timestamp, later);
}

#[test]
fn limits_of_completion_queues() {
    let limits = Limits { max_cq: 2, max_cqe: 5000, ..Limits::default() };
    let mut pair = Pair::new(Config { limits, ..Config::default() });
    let engine = &mut pair.a.engine;
    let beyond = CreateError::BeyondLimits("number of completion queue entries");
    assert_eq!(engine.create_cq(0).unwrap_err(), beyond);
    assert_eq!(engine.create_cq(5001).unwrap_err(), beyond);
    let (second, _) = engine.create_cq(5000).unwrap();
    assert_eq!(engine.create_cq(1).unwrap_err(), CreateError::TooMany);
    assert_eq!(engine.destroy_cq(second), Ok(()));
    assert_eq!(engine.destroy_cq(second), Err(DestroyError::Unknown));
    engine.create_cq(1).unwrap();
}
