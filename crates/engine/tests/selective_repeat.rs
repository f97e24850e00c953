//! Packets behind a missing one: the responder keeps them, the requester does not send them again.

use feroce_engine::{Config, QpAttr, QpState, QpType, Remote, SendOp, SendWr, WcStatus};
use feroce_testkit::script::{ACK, MTU, aeth, nak, no_credits, psns, rnr, said, seen};
use feroce_testkit::{OUR_PSN, PEER_PSN, Scripted, wr};
use feroce_wire::{NakCode, Op, Rkey, Syndrome};

const P: u32 = PEER_PSN;
const GAP: Syndrome = Syndrome::Nak(NakCode::PsnSequence);
const REMOTE: Remote = Remote { addr: 0x10_0000, rkey: Rkey(0x7777) };
const OK: WcStatus = WcStatus::Success;

/// A responder with room for messages of 64 bytes, each at its own place.
fn responder(receives: u64) -> Scripted {
    let mut script = Scripted::rc();
    (0..receives).for_each(|i| script.recv(i, i * 64, 64));
    script
}

#[test]
fn early_packets_are_executed_in_order_when_the_missing_one_has_come() {
    let mut script = responder(4);
    assert_eq!(said(&script.send(Op::SendOnly, P + 2, true, &[3; 64])), [(P, GAP, 0)]);
    assert!(script.send(Op::SendOnly, P + 1, true, &[2; 64]).is_empty());
    assert!(script.send(Op::SendOnly, P + 2, true, &[9; 64]).is_empty(), "it is there already");
    assert!(script.done().is_empty());
    assert_eq!(said(&script.send(Op::SendOnly, P, true, &[1; 64])), [(P + 2, ACK, 3)]);
    assert_eq!(script.done(), [(0, OK), (1, OK), (2, OK)]);
    assert_eq!(script.host.read(0, 192), [[1; 64], [2; 64], [3; 64]].concat());
    assert_eq!(script.host.engine.counters().kept_after_gap, 3);
    // What a peer sends again that goes back is answered like any duplicate.
    assert_eq!(said(&script.send(Op::SendOnly, P + 1, true, &[2; 64])), [(P + 2, ACK, 3)]);
    assert_eq!(said(&script.send(Op::SendOnly, P + 3, true, &[4; 64])), [(P + 3, ACK, 4)]);
}

#[test]
fn a_second_gap_is_reported_by_the_next_packet_behind_it() {
    let mut script = responder(5);
    assert_eq!(said(&script.send(Op::SendOnly, P + 1, true, &[2])), [(P, GAP, 0)]);
    script.send(Op::SendOnly, P + 3, true, &[4]);
    assert_eq!(said(&script.send(Op::SendOnly, P, true, &[1])), [(P + 1, ACK, 2)]);
    assert_eq!(said(&script.send(Op::SendOnly, P + 4, true, &[5])), [(P + 2, GAP, 2)]);
    assert_eq!(said(&script.send(Op::SendOnly, P + 2, true, &[3])), [(P + 4, ACK, 5)]);
    assert_eq!(script.done().len(), 5);
}

#[test]
fn early_packets_that_find_no_receive_are_sent_again() {
    let mut script = responder(1);
    script.send(Op::SendOnly, P + 1, true, &[2]);
    script.send(Op::SendOnly, P + 2, true, &[3]);
    let answers = said(&script.send(Op::SendOnly, P, true, &[1]));
    assert_eq!(answers, [(P + 1, rnr(12), 1)]);
    (1..3).for_each(|i| script.recv(i, 0, 64));
    assert_eq!(said(&script.send(Op::SendOnly, P + 1, true, &[2])), [(P + 1, ACK, 2)]);
    assert_eq!(script.done().len(), 2, "the third is not kept any longer");
}

#[test]
fn an_early_packet_that_is_refused_ends_the_connection() {
    let mut script = responder(3);
    script.send(Op::SendMiddle, P + 1, true, &[2; 64]);
    script.send(Op::SendOnly, P + 2, true, &[3]);
    let answers = said(&script.send(Op::SendOnly, P, true, &[1]));
    assert_eq!(answers.last(), Some(&(P + 1, nak(NakCode::InvalidRequest), 1)));
    assert_eq!(script.state(), QpState::Err);
    assert_eq!(script.done().len(), 3);
}

/// A write of `packets` packets.
fn write(script: &Scripted, id: u64, packets: usize) -> SendWr {
    wr(id, SendOp::Write(REMOTE), script.host.data(0, (packets * MTU) as u32))
}

/// A requester whose first message of four packets has been sent.
fn requester() -> Scripted {
    let mut script = Scripted::rc();
    let first = write(&script, 1, 4);
    assert_eq!(psns(&script.post(first)), [OUR_PSN, OUR_PSN + 1, OUR_PSN + 2, OUR_PSN + 3]);
    script
}

/// The peer says so before anything can be sent.
fn hear(script: &mut Scripted, psn: u32, syndrome: Syndrome) {
    let packet = script.packet(Op::Acknowledge, psn, false, &aeth(syndrome, 0));
    script.host.receive(script.now, &packet);
}

/// The same, and the peer has shown that it keeps packets: it missed the first, and acknowledged
/// the others before they were sent again. A second message of eight packets is under way.
fn with_keeping_peer() -> Scripted {
    let mut script = requester();
    hear(&mut script, OUR_PSN, GAP);
    hear(&mut script, OUR_PSN + 3, ACK);
    assert_eq!(script.done(), [(1, OK)]);
    let second = write(&script, 2, 8);
    assert_eq!(script.post(second).len(), 8);
    script
}

#[test]
fn to_a_peer_that_keeps_packets_only_the_missing_one_is_sent_again() {
    let mut script = with_keeping_peer();
    let again = script.answer(OUR_PSN + 6, GAP);
    assert_eq!(seen(&again), [(Op::WriteMiddle, OUR_PSN + 6)]);
    assert!(again[0].bth().ack_req);
    let again = script.answer(OUR_PSN + 9, GAP);
    assert_eq!(seen(&again), [(Op::WriteMiddle, OUR_PSN + 9)]);
    // It goes on where it was.
    let third = write(&script, 3, 2);
    assert_eq!(psns(&script.post(third)), [OUR_PSN + 12, OUR_PSN + 13]);
    script.answer(OUR_PSN + 13, ACK);
    assert_eq!(script.done(), [(2, OK), (3, OK)]);
}

#[test]
fn the_first_packet_of_a_message_is_repaired_whole() {
    let mut script = with_keeping_peer();
    let again = script.answer(OUR_PSN + 4, GAP);
    assert_eq!(seen(&again), [(Op::WriteFirst, OUR_PSN + 4)]);
    assert_eq!(again[0].exts().reth.map(|reth| reth.len), Some(8 * MTU as u32));
}

#[test]
fn a_peer_that_turns_out_to_discard_is_sent_everything_again() {
    let mut script = with_keeping_peer();
    assert_eq!(psns(&script.answer(OUR_PSN + 6, GAP)), [OUR_PSN + 6]);
    // It took that one, and misses the next.
    let rest: Vec<u32> = (7..12).map(|i| OUR_PSN + i).collect();
    assert_eq!(psns(&script.answer(OUR_PSN + 7, GAP)), rest);
    assert_eq!(psns(&script.answer(OUR_PSN + 9, GAP)), rest[2..], "and so it goes on");
    script.answer(OUR_PSN + 11, ACK);
    assert_eq!(script.done(), [(2, OK)]);
}

#[test]
fn a_repair_that_is_lost_is_sent_again_by_the_timer() {
    let mut script = with_keeping_peer();
    assert_eq!(psns(&script.answer(OUR_PSN + 6, GAP)), [OUR_PSN + 6]);
    assert_eq!(psns(&script.wait(2_000_000_000)), [OUR_PSN + 6]);
    script.answer(OUR_PSN + 11, ACK);
    assert_eq!(script.done(), [(2, OK)]);
}

#[test]
fn a_requester_that_knows_nothing_of_its_peer_goes_back() {
    let mut script = requester();
    let all: Vec<u32> = (0..4).map(|i| OUR_PSN + i).collect();
    assert_eq!(psns(&script.answer(OUR_PSN, GAP)), all);
    // All were sent again, so the answer shows nothing of the peer.
    script.answer(OUR_PSN + 3, ACK);
    let second = write(&script, 2, 8);
    script.post(second);
    let rest: Vec<u32> = (6..12).map(|i| OUR_PSN + i).collect();
    assert_eq!(psns(&script.answer(OUR_PSN + 6, GAP)), rest);
}

#[test]
fn a_read_that_the_peer_misses_is_requested_again_with_what_follows() {
    let mut script = with_keeping_peer();
    let read = wr(3, SendOp::Read(REMOTE), script.host.data(0, 8));
    let fourth = write(&script, 4, 2);
    script.post_all([read, fourth]);
    let again = script.answer(OUR_PSN + 12, GAP);
    assert_eq!(psns(&again), [OUR_PSN + 12, OUR_PSN + 13, OUR_PSN + 14]);
}

#[test]
fn without_selective_repeat_both_ends_go_back() {
    let config = Config { selective_repeat: false, ..no_credits() };
    let mut script = Scripted::with_config(QpType::Rc, QpAttr::default(), config);
    (0..3).for_each(|i| script.recv(i, 0, 64));
    script.send(Op::SendOnly, P + 1, true, &[2]);
    script.send(Op::SendOnly, P + 2, true, &[3]);
    assert_eq!(said(&script.send(Op::SendOnly, P, true, &[1])), [(P, ACK, 1)]);
    assert_eq!(script.host.engine.counters().kept_after_gap, 0);
    assert_eq!(script.host.engine.drops().drop_after_gap, 1);
    let first = write(&script, 1, 4);
    script.post(first);
    hear(&mut script, OUR_PSN, GAP);
    hear(&mut script, OUR_PSN + 3, ACK);
    let second = write(&script, 2, 8);
    script.post(second);
    assert_eq!(script.answer(OUR_PSN + 6, GAP).len(), 6);
}
