//! The fast path: short messages that the requester sends as soon as they are posted.

use feroce_engine::{Data, Remote, SendFlags, SendOp, SendWr, Sge, SgeList, WcStatus};
use feroce_testkit::script::{ACK, nak, psns, reth, with};
use feroce_testkit::{OUR_PSN, PEER_PSN, Scripted, wr};
use feroce_train::{InlineBytes, SingleBuf};
use feroce_wire::{Imm, Lkey, NakCode, Op, Rkey};

const REMOTE: Remote = Remote { addr: 0x10_0000, rkey: Rkey(0x7777) };

/// A connection with nothing under way.
fn rc() -> Scripted {
    let mut script = Scripted::rc();
    assert_eq!(psns(&script.wait(0)), []);
    script
}

/// Posts a request and lets it go at once; gives the packet, if it went.
fn fast_path(script: &mut Scripted, wr: SendWr) -> Option<Vec<u8>> {
    script.qp.sq.stage(wr).expect("room");
    script.qp.sq.show();
    again(script)
}

/// Lets what was posted last go.
fn again(script: &mut Scripted) -> Option<Vec<u8>> {
    let mut packet = SingleBuf::default();
    let (now, qpn) = (script.now, script.qp.qpn);
    let is_sent = script.host.engine.try_fast_path(qpn, &mut packet, |_| (), || now);
    is_sent.then(|| packet.get().bytes.to_vec())
}

fn inline(byte: u8, len: usize) -> Data {
    Data::Inline(InlineBytes::new(&[byte; 32][..len]))
}

fn send(id: u64, data: Data) -> SendWr {
    wr(id, SendOp::Send, data)
}

#[test]
fn the_packet_is_the_one_that_a_train_would_have() {
    let (mut quick, mut slow) = (rc(), rc());
    quick.host.fill(64, 256, 5);
    slow.host.fill(64, 256, 5);
    let ours = |len| quick.host.data(64, len);
    let plain = SendFlags::empty();
    let all = [
        (SendOp::Send, ours(8), SendFlags::SIGNALED),
        (SendOp::Send, Data::EMPTY, plain),
        (SendOp::SendImm(Imm(0x0102_0304)), inline(7, 3), SendFlags::SOLICITED),
        (SendOp::SendInv(Rkey(0x55)), ours(256), plain),
        (SendOp::Write(REMOTE), ours(5), plain),
        (SendOp::WriteImm(REMOTE, Imm(9)), inline(1, 32), SendFlags::SIGNALED),
    ];
    for (id, (op, data, flags)) in (1..).zip(all) {
        let wr = SendWr { flags, ..wr(id, op, data) };
        let sent = fast_path(&mut quick, wr.clone()).expect("it is short and alone");
        let [packet] = &slow.post(wr)[..] else { panic!("one packet of {op:?}") };
        assert_eq!(sent, packet.bytes, "{op:?}");
    }
    // Counters, timers, retransmissions and completions are the same on both paths, too.
    let (a, b) = (&mut quick, &mut slow);
    assert_eq!(a.host.engine.counters(), b.host.engine.counters());
    assert_eq!(a.host.engine.poll_timeout(), b.host.engine.poll_timeout());
    a.answer(OUR_PSN, ACK);
    b.answer(OUR_PSN, ACK);
    assert_eq!(psns(&a.wait(3_000_000)), psns(&b.wait(3_000_000)));
    a.answer(OUR_PSN + 5, ACK);
    b.answer(OUR_PSN + 5, ACK);
    let done = a.done();
    assert_eq!(done, [(1, WcStatus::Success), (6, WcStatus::Success)]);
    assert_eq!(done, b.done());
    assert_eq!(a.host.engine.poll_timeout(), b.host.engine.poll_timeout());
}

#[test]
fn what_went_at_once_is_sent_again_like_anything_else() {
    let mut script = rc();
    let first = fast_path(&mut script, send(1, inline(1, 8))).expect("it goes");
    fast_path(&mut script, send(2, inline(2, 8))).expect("it goes");
    let again = script.answer(OUR_PSN, nak(NakCode::PsnSequence));
    assert_eq!(psns(&again), [OUR_PSN, OUR_PSN + 1]);
    assert_eq!(again[0].bytes, first);
    script.answer(OUR_PSN + 1, ACK);
    assert_eq!(script.done(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
}

#[test]
fn what_the_link_does_not_take_goes_in_a_train() {
    let mut script = rc();
    script.qp.sq.stage(send(1, inline(1, 8))).expect("room");
    script.qp.sq.show();
    let (mut packet, now, qpn) = (SingleBuf::default(), script.now, script.qp.qpn);
    assert!(script.host.engine.try_fast_path(qpn, &mut packet, |_| (), || now));
    let single = packet.get();
    let train = single.to_train();
    let mut bytes = vec![0xee; train.packet_len(0)];
    assert_eq!((train.emit(0, &mut bytes), train.total_len()), (bytes.len(), bytes.len()));
    assert_eq!((&bytes[..], train.path), (single.bytes, *single.path));
    assert_eq!((train.bth(0).dest_qp, train.bth(0).psn.get()), (single.dest, OUR_PSN));
    script.answer(OUR_PSN, ACK);
    assert_eq!(script.done(), [(1, WcStatus::Success)]);
}

#[test]
fn what_is_long_must_wait_or_may_fail_does_not_go_at_once() {
    let long = |script: &Scripted| send(1, script.host.data(0, 257));
    let fenced = SendWr { flags: SendFlags::FENCE, ..send(1, inline(1, 8)) };
    let bad = Sge { addr: 0, len: 4, lkey: Lkey(0xdead) };
    let bad = send(1, Data::Sges(SgeList::new(&[bad])));
    let mut script = rc();
    let two = SgeList::new(&[script.host.sge(0, 4), script.host.sge(8, 4)]);
    let read = wr(1, SendOp::Read(REMOTE), script.host.data(0, 8));
    for wr in [long(&script), fenced, bad, send(1, Data::Sges(two)), read] {
        let mut script = rc();
        assert_eq!(fast_path(&mut script, wr.clone()), None, "{wr:?}");
    }
    // A write with nothing under way may find direct access instead.
    let write = wr(1, SendOp::Write(REMOTE), inline(1, 8));
    assert_eq!(fast_path(&mut script, write), None);
    // A later message does not overtake it.
    assert_eq!(fast_path(&mut script, send(2, inline(2, 8))), None);
    script.qp.sq.ring();
    assert_eq!(psns(&script.wait(0)), [OUR_PSN, OUR_PSN + 1]);
}

#[test]
fn an_acknowledgement_that_waits_goes_with_it() {
    let mut script = rc();
    script.host.engine.hold_acks(true);
    let target = script.host.remote(0);
    let write = with(reth(target.addr, target.rkey, 4), &[1, 2, 3, 4]);
    script.send(Op::WriteOnly, PEER_PSN, true, &write);
    assert_eq!(fast_path(&mut script, send(1, inline(1, 8))), None);
    script.qp.sq.ring();
    script.host.engine.hold_acks(false);
    assert_eq!(psns(&script.wait(0)), [OUR_PSN, PEER_PSN]);
}

#[test]
fn what_is_not_there_does_not_go() {
    let mut script = rc();
    assert_eq!(again(&mut script), None, "nothing is posted");
    fast_path(&mut script, send(1, inline(1, 8))).expect("it goes");
    assert_eq!(again(&mut script), None, "it went");
    script.qp.qpn = feroce_wire::Qpn::new(0x3333);
    assert_eq!(fast_path(&mut script, send(2, inline(1, 8))), None, "no QP has that number");
}
