//! Liveness: every wait of a queue pair ends without the help of a timer.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::mem::swap;

use feroce_engine::{
    Config, Data, QpAttr, QpState, QpType, Remote, SendOp, WcStatus, WindowConfig,
};
use feroce_testkit::script::{ACK, MTU, aeth, nak, no_credits, psns, reth, rnr, seen};
use feroce_testkit::{OUR_PSN, PEER_PSN, PEER_QPN, Pair, Scripted, TestQp, bring_up, psn, wr};
use feroce_train::LinkCaps;
use feroce_wire::{NakCode, Op, Pmtu, Rkey};

const REMOTE: Remote = Remote { addr: 0x10_0000, rkey: Rkey(0x7777) };

/// The first packet of a long write goes alone. When the first packets of several queue pairs fill
/// the window, one of them must request an acknowledgement; without one the window never opens.
#[test]
fn a_window_that_several_queue_pairs_fill_opens_again() {
    let window = WindowConfig { initial: 16 << 10, min: 16 << 10, max: 16 << 10 };
    let mut pair = Pair::new(Config { window, tail_probe: false, ..Config::default() });
    let forever = QpAttr { timeout: Some(0), ..QpAttr::default() };
    let mut qps: Vec<_> = (0..12)
        .map(|_| {
            let (ia, ib) = (pair.a.init_attr(QpType::Rc), pair.b.init_attr(QpType::Rc));
            pair.connect_with(ia, ib, forever)
        })
        .collect();
    for (i, (qa, _)) in qps.iter_mut().enumerate() {
        let write = SendOp::Write(pair.b.remote(0));
        qa.sq.post(wr(i as u64, write, pair.a.data(0, 8 << 10))).unwrap();
    }
    pair.run();
    assert_eq!(pair.a.poll_all().len(), 12);
}

/// If `max_rd_atomic` is zero, the requester never has a responder resource for a read or atomic.
#[test]
fn a_read_that_can_never_be_sent_fails() {
    let none = QpAttr { max_rd_atomic: Some(0), ..QpAttr::default() };
    let add = SendOp::FetchAdd { remote: REMOTE, add: 1 };
    for op in [SendOp::Read(REMOTE), add, SendOp::AtomicWrite(REMOTE)] {
        let mut script = Scripted::rc_with(none);
        let data = script.host.data(0, 8);
        let sent = script.post_all([wr(1, SendOp::Send, Data::EMPTY), wr(2, op, data)]);
        assert_eq!(seen(&sent), [(Op::SendOnly, OUR_PSN)]);
        script.answer(OUR_PSN, ACK);
        assert_eq!(script.done(), [(1, WcStatus::Success), (2, WcStatus::LocalQpOperation)]);
        assert_eq!(script.state(), QpState::Err);
    }
}

/// Another queue pair to the same peer.
fn sibling(s: &mut Scripted, with: &QpAttr) -> TestQp {
    let init = s.host.init_attr(QpType::Rc);
    let mut qp = s.host.create_qp(init);
    qp.first_psn = psn(OUR_PSN);
    bring_up(&mut s.host, s.now, &qp, (s.peer, PEER_QPN, psn(PEER_PSN)), Pmtu::B1024, with);
    qp
}

/// A queue pair that waited for the window and no longer needs it lets the next queue pair send.
#[test]
fn room_that_nobody_needs_is_passed_on() {
    let bytes = 2 * (MTU as u64 + 512);
    let window = WindowConfig { initial: bytes, min: bytes, max: bytes };
    let forever = QpAttr { timeout: Some(0), ..QpAttr::default() };
    let config = Config { window, tail_probe: false, ..no_credits() };
    let mut s = Scripted::with_config(QpType::Rc, forever, config);
    let (mut second, mut third) = (sibling(&mut s, &forever), sibling(&mut s, &forever));
    let full = s.host.data(0, 2 * MTU as u32);
    assert_eq!(s.post(wr(1, SendOp::Send, full.clone())).len(), 2);
    second.sq.post(wr(2, SendOp::Send, full)).unwrap();
    assert!(s.host.transmit(s.now).is_empty());
    // The first queue pair retransmits, so it waits behind the second, and the third behind it.
    assert_eq!(s.answer(OUR_PSN, rnr(1)).len(), 2);
    assert!(s.wait(20_000).is_empty());
    third.sq.post(wr(3, SendOp::Send, Data::EMPTY)).unwrap();
    assert!(s.host.transmit(s.now).is_empty());
    // The network had duplicated its packets, and the peer was ready for the duplicates.
    assert!(s.answer(OUR_PSN + 1, ACK).is_empty());
    assert_eq!(s.done(), [(1, WcStatus::Success)]);
    // The window opens, and the first queue pair has nothing to send except an answer.
    let request = s.packet(Op::WriteOnly, PEER_PSN, true, &reth(0, s.rkey(), 0));
    swap(&mut s.qp, &mut second);
    let ack = s.packet(Op::Acknowledge, OUR_PSN + 1, false, &aeth(ACK, 0));
    s.host.receive(s.now, &ack);
    s.host.receive(s.now, &request);
    assert_eq!(psns(&s.host.transmit(s.now)), [PEER_PSN, OUR_PSN]);
}

/// The requester probes a peer that does not answer with one packet at a time; queue pairs whose
/// peers answer use the rest of the window.
#[test]
fn a_queue_pair_without_answers_leaves_the_window_to_others() {
    let bytes = 4 * (MTU as u64 + 512);
    let window = WindowConfig { initial: bytes, min: bytes, max: bytes };
    let forever = QpAttr { timeout: Some(0), ..QpAttr::default() };
    let impatient = QpAttr { timeout: Some(10), ..QpAttr::default() };
    let config = Config { window, tail_probe: false, ..no_credits() };
    let mut s = Scripted::with_config(QpType::Rc, impatient, config);
    let mut second = sibling(&mut s, &forever);
    let long = s.host.data(0, 8 * MTU as u32);
    assert_eq!(s.post(wr(1, SendOp::Send, long)).len(), 4, "the window is full");
    for _ in 0..3 {
        let again = s.wait(4096 << 10);
        assert_eq!(seen(&again), [(Op::SendFirst, OUR_PSN)]);
        assert!(again[0].bth().ack_req);
    }
    let short = s.host.data(0, 3 * MTU as u32);
    second.sq.post(wr(2, SendOp::Send, short)).unwrap();
    assert_eq!(s.host.transmit(s.now).len(), 3);
    // The peer answers after all: the queue pair may send as much as the window has room for.
    assert_eq!(psns(&s.answer(OUR_PSN, ACK)), [OUR_PSN + 1]);
}

/// A queue pair that waits for ever for a lost answer gives the window back from time to time.
#[test]
fn a_queue_pair_without_a_timer_leaves_the_window_to_others() {
    let bytes = 2 * (MTU as u64 + 512);
    let window = WindowConfig { initial: bytes, min: bytes, max: bytes };
    let forever = QpAttr { timeout: Some(0), ..QpAttr::default() };
    let config = Config { window, ..no_credits() };
    let mut s = Scripted::with_config(QpType::Rc, forever, config);
    let mut second = sibling(&mut s, &forever);
    let full = s.host.data(0, 2 * MTU as u32);
    assert_eq!(seen(&s.post(wr(1, SendOp::Read(REMOTE), full))), [(Op::ReadRequest, OUR_PSN)]);
    second.sq.post(wr(2, SendOp::Send, Data::EMPTY)).unwrap();
    assert!(s.host.transmit(s.now).is_empty(), "the answer to the read fills the window");
    let next = s.host.engine.poll_timeout().expect("the read is overdue at some time");
    let sent = s.wait(next.nanos_since(s.now));
    assert_eq!(seen(&sent)[0], (Op::SendOnly, OUR_PSN));
}

/// The window may shrink below the bytes in flight before the requester has requested an
/// acknowledgement.
#[test]
fn a_window_that_shrinks_under_what_is_in_flight_opens_again() {
    let cost = MTU as u64 + 512;
    let window = WindowConfig { initial: 5 * cost, min: cost, max: 5 * cost };
    let forever = QpAttr { timeout: Some(0), ..QpAttr::default() };
    let config = Config { window, tail_probe: false, ..no_credits() };
    let mut s = Scripted::with_config(QpType::Rc, forever, config);
    let mut second = sibling(&mut s, &forever);
    let long = s.host.data(0, 8 * MTU as u32);
    s.qp.sq.post(wr(1, SendOp::Write(REMOTE), long)).unwrap();
    let first = s.host.engine.poll_transmit(s.now, &LinkCaps::SINGLE).unwrap();
    assert!(!first.bth(0).ack_req);
    // Losses of another queue pair shrink the window to one packet.
    second.sq.post(wr(2, SendOp::Send, Data::EMPTY)).unwrap();
    assert_eq!(s.host.engine.poll_transmit(s.now, &LinkCaps::SINGLE).unwrap().count, 1);
    swap(&mut s.qp, &mut second);
    let lost = s.packet(Op::Acknowledge, OUR_PSN, false, &aeth(nak(NakCode::PsnSequence), 0));
    for _ in 0..7 {
        s.host.receive(s.now, &lost);
        s.now = s.now.plus_nanos(1_000_000);
    }
    let sent = s.host.transmit(s.now);
    let asks = |p: &&feroce_testkit::Packet| p.op() == Op::WriteMiddle && p.bth().ack_req;
    assert_eq!(sent.iter().filter(asks).count(), 1, "{:?}", seen(&sent));
}
