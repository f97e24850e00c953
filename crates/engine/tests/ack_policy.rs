//! When the requester asks for acknowledgements.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use feroce_engine::{
    Config, Data, QpAttr, QpState, QpType, Remote, SendFlags, SendOp, SendWr, WcStatus,
};
use feroce_testkit::script::{ACK, no_credits, psns, reth, said, seen};
use feroce_testkit::{OUR_PSN, PEER_PSN, Packet, Pair, Scripted, wr};
use feroce_train::InlineBytes;
use feroce_wire::{Op, Rkey};

const REMOTE: Remote = Remote { addr: 0x10_0000, rkey: Rkey(0x7777) };

/// Slightly longer than the delay after which the requester requests an overdue acknowledgement.
fn a_while() -> u64 {
    Config::default().min_probe_ns + 1
}

fn rc() -> Scripted {
    Scripted::with_config(QpType::Rc, QpAttr::default(), no_credits())
}

/// An unsignalled write: the consumer wants no completion of it.
fn quiet(id: u64) -> SendWr {
    let data = Data::Inline(InlineBytes::new(&[7; 8]));
    SendWr { flags: SendFlags::empty(), ..wr(id, SendOp::Write(REMOTE), data) }
}

fn asks(packets: &[Packet]) -> Vec<bool> {
    packets.iter().map(|p| p.bth().ack_req).collect()
}

#[test]
fn what_nobody_waits_for_is_acknowledged_with_what_comes_later() {
    let mut s = rc();
    assert_eq!(asks(&s.post(quiet(1))), [false]);
    assert_eq!(asks(&s.post(quiet(2))), [false]);
    let wanted = SendWr { flags: SendFlags::SIGNALED, ..quiet(3) };
    assert_eq!(asks(&s.post(wanted)), [true]);
    assert!(s.answer(OUR_PSN + 2, ACK).is_empty());
    assert_eq!(s.done(), [(3, WcStatus::Success)]);
    assert_eq!(s.qp.sq.outstanding(), 0);
    assert!(s.wait(a_while()).is_empty(), "nothing is left to ask for");
}

#[test]
fn a_queue_does_not_fill_up_with_what_nobody_asked_for() {
    let mut s = rc();
    let mut questions = Vec::new();
    for id in 0..160 {
        if asks(&s.post(quiet(id))).contains(&true) {
            questions.push(id);
            s.answer(OUR_PSN + id as u32, ACK);
        }
        assert!(s.qp.sq.outstanding() <= 65, "half of the queue");
    }
    assert_eq!(questions, [64, 129]);
}

#[test]
fn a_probe_asks_for_the_rest() {
    let mut s = rc();
    for id in 0..3 {
        s.post(quiet(id));
    }
    assert!(s.wait(a_while() / 2).is_empty());
    let probe = s.wait(a_while());
    assert_eq!((seen(&probe), asks(&probe)), (vec![(Op::WriteOnly, OUR_PSN)], vec![true]));
    // The peer has received all of them and acknowledges them.
    assert!(s.answer(OUR_PSN + 2, ACK).is_empty());
    assert_eq!(s.qp.sq.outstanding(), 0);
    // Nothing was late.
    let counters = s.host.engine.counters();
    assert_eq!((counters.tail_probes, counters.completer_retry_err), (0, 0));
    assert_eq!(counters.late_ack_requests, 1);
    assert!(s.wait(10 * a_while()).is_empty());
}

#[test]
fn a_probe_that_shows_a_loss_is_followed_by_the_rest() {
    let mut s = rc();
    for id in 0..3 {
        s.post(quiet(id));
    }
    s.wait(a_while());
    // Only the first had arrived.
    let again = s.answer(OUR_PSN, ACK);
    assert_eq!(psns(&again), [OUR_PSN + 1, OUR_PSN + 2]);
}

#[test]
fn whoever_waits_for_answers_asks_at_once() {
    let mut s = rc();
    s.post(quiet(1));
    // It must not invalidate a key that the retransmission of an earlier request may need.
    let rkey = s.rkey();
    assert!(s.post(wr(2, SendOp::LocalInv(rkey), Data::EMPTY)).is_empty());
    assert_eq!(asks(&s.wait(0)), [true]);

    let mut s = rc();
    s.post(quiet(1));
    s.host.modify(s.now, s.qp.qpn, &QpAttr { state: Some(QpState::Sqd), ..QpAttr::default() });
    assert!(s.host.transmit(s.now).is_empty());
    assert_eq!(asks(&s.wait(0)), [true]);
}

#[test]
fn without_probes_or_time_for_them_everything_asks() {
    let hasty = QpAttr { timeout: Some(10), ..QpAttr::default() };
    let mut s = Scripted::with_config(QpType::Rc, hasty, no_credits());
    assert_eq!(asks(&s.post(quiet(1))), [true]);
    let config = Config { tail_probe: false, ..no_credits() };
    let mut s = Scripted::with_config(QpType::Rc, QpAttr::default(), config);
    assert_eq!(asks(&s.post(quiet(1))), [true]);
}

#[test]
fn a_responder_that_goes_says_what_it_has_executed() {
    for end in [QpState::Err, QpState::Reset] {
        let mut s = rc();
        let write = reth(0, s.rkey(), 0);
        assert!(s.send(Op::WriteOnly, PEER_PSN, false, &write).is_empty());
        s.host.modify(s.now, s.qp.qpn, &QpAttr { state: Some(end), ..QpAttr::default() });
        assert_eq!(said(&s.host.transmit(s.now)), [(PEER_PSN, ACK, 1)]);
    }
    let mut s = rc();
    let write = reth(0, s.rkey(), 0);
    assert_eq!(s.send(Op::WriteOnly, PEER_PSN, true, &write).len(), 1);
    s.host.engine.acknowledge_all();
    assert!(s.host.transmit(s.now).is_empty(), "it has been said");
    s.send(Op::WriteOnly, PEER_PSN + 1, false, &write);
    s.host.engine.acknowledge_all();
    assert_eq!(said(&s.host.transmit(s.now)), [(PEER_PSN + 1, ACK, 2)]);
}

#[test]
fn a_queue_pair_that_goes_leaves_no_peer_behind_that_asks() {
    let mut pair = Pair::default();
    let (mut qa, qb) = pair.connect(QpType::Rc);
    let write = SendOp::Write(pair.b.remote(0));
    let quiet = SendWr { flags: SendFlags::empty(), ..wr(1, write, pair.a.data(0, 8)) };
    qa.sq.post(quiet).unwrap();
    pair.run();
    pair.b.engine.destroy_qp(qb.qpn).unwrap();
    pair.run();
    assert_eq!(qa.sq.outstanding(), 0);
    pair.wait(100_000_000_000);
    assert_eq!(qa.sq.state(), QpState::Rts);
}
