//! How the requester handles answers.

use feroce_engine::{AsyncEvent, Data, QpState, Remote, SendOp, SendWr, WcOpcode, WcStatus};
use feroce_testkit::script::{ACK, MTU, aeth, nak, psns, seen};
use feroce_testkit::{OUR_PSN, Scripted, wr};
use feroce_wire::{NakCode, Op, Rkey, Syndrome};

const REMOTE: Remote = Remote { addr: 0x10_0000, rkey: Rkey(0x7777) };
const OK: WcStatus = WcStatus::Success;

fn send(id: u64) -> SendWr {
    wr(id, SendOp::Send, Data::EMPTY)
}

fn read(script: &Scripted, id: u64, len: usize) -> SendWr {
    wr(id, SendOp::Read(REMOTE), script.host.data(id * 100_000, len as u32))
}

fn add(script: &Scripted, id: u64) -> SendWr {
    wr(id, SendOp::FetchAdd { remote: REMOTE, add: 1 }, script.host.data(id * 100_000, 8))
}

fn ghosts(script: &Scripted) -> u64 {
    script.host.engine.drops().drop_ghost_response
}

#[test]
fn one_acknowledgement_retires_everything_before_it() {
    let mut script = Scripted::rc();
    script.post_all((1..=4).map(send));
    script.answer(OUR_PSN + 2, ACK);
    assert_eq!(script.done(), [(1, OK), (2, OK), (3, OK)]);
    script.answer(OUR_PSN + 3, ACK);
    assert_eq!(script.done(), [(4, OK)]);
}

#[test]
fn an_acknowledgement_inside_a_message_does_not_retire_it() {
    let mut script = Scripted::rc();
    let data = script.host.data(0, 3 * MTU as u32);
    script.post(wr(1, SendOp::Send, data));
    script.answer(OUR_PSN + 1, ACK);
    assert!(script.done().is_empty());
    script.answer(OUR_PSN + 2, ACK);
    assert_eq!(script.done(), [(1, OK)]);
}

#[test]
fn completions_say_what_was_done() {
    let mut script = Scripted::rc();
    let requests = [send(1), read(&script, 2, 100), add(&script, 3)];
    script.post_all(requests);
    script.respond(Op::ReadResponseOnly, OUR_PSN + 1, &[7; 100]);
    script.respond_atomic(OUR_PSN + 2, 42);
    let done: Vec<_> =
        script.host.poll_all().iter().map(|c| (c.opcode, c.byte_len, c.qpn)).collect();
    let qpn = script.qp.qpn;
    let expected =
        [(WcOpcode::Send, 0, qpn), (WcOpcode::Read, 100, qpn), (WcOpcode::FetchAdd, 8, qpn)];
    assert_eq!(done, expected);
    assert_eq!(script.host.read(200_000, 100), [7; 100]);
    assert_eq!(script.host.region.load_u64(300_000).unwrap(), 42);
}

#[test]
fn the_answer_to_a_read_acknowledges_what_was_before_it() {
    let mut script = Scripted::rc();
    let requests = [send(1), send(2), read(&script, 3, 2 * MTU)];
    script.post_all(requests);
    script.respond(Op::ReadResponseFirst, OUR_PSN + 2, &[0; MTU]);
    assert_eq!(script.done(), [(1, OK), (2, OK)]);
    script.respond(Op::ReadResponseLast, OUR_PSN + 3, &[0; MTU]);
    assert_eq!(script.done(), [(3, OK)]);
}

#[test]
fn the_answer_to_an_atomic_acknowledges_what_was_before_it() {
    let mut script = Scripted::rc();
    let requests = [send(1), add(&script, 2)];
    script.post_all(requests);
    script.respond_atomic(OUR_PSN + 1, 5);
    assert_eq!(script.done(), [(1, OK), (2, OK)]);
}

#[test]
fn an_acknowledgement_that_jumps_over_a_read_asks_for_it_again() {
    let mut script = Scripted::rc();
    let requests = [send(1), read(&script, 2, MTU), send(3)];
    script.post_all(requests);
    let again = script.answer(OUR_PSN + 2, ACK);
    assert_eq!(seen(&again), [(Op::ReadRequest, OUR_PSN + 1), (Op::SendOnly, OUR_PSN + 2)]);
    assert_eq!(script.done(), [(1, OK)]);
    assert_eq!(script.host.engine.counters().implied_nak_seq_err, 1);
    // The peer sent later answers before it could know of the loss: the requester goes back only
    // once per gap.
    assert!(script.answer(OUR_PSN + 2, ACK).is_empty());
    assert_eq!(script.host.engine.drops().drop_response_gap, 1);
    script.respond(Op::ReadResponseOnly, OUR_PSN + 1, &[0; MTU]);
    script.answer(OUR_PSN + 2, ACK);
    assert_eq!(script.done(), [(2, OK), (3, OK)]);
}

#[test]
fn an_acknowledgement_cannot_stand_for_the_answer_to_a_read() {
    let mut script = Scripted::rc();
    let request = read(&script, 1, MTU);
    script.post(request);
    let again = script.answer(OUR_PSN, ACK);
    assert_eq!(seen(&again), [(Op::ReadRequest, OUR_PSN)]);
    assert!(script.done().is_empty());
}

#[test]
fn a_missing_answer_is_asked_for_from_where_it_is_missing() {
    let mut script = Scripted::rc();
    let requests = [read(&script, 1, 4 * MTU), add(&script, 2)];
    script.post_all(requests);
    script.respond(Op::ReadResponseFirst, OUR_PSN, &[1; MTU]);
    let again = script.respond(Op::ReadResponseLast, OUR_PSN + 3, &[4; MTU]);
    assert_eq!(seen(&again), [(Op::ReadRequest, OUR_PSN + 1), (Op::FetchAdd, OUR_PSN + 4)]);
    let asked = again[0].exts().reth.unwrap();
    assert_eq!((asked.va, asked.len), (REMOTE.addr + MTU as u64, 3 * MTU as u32));
    // The requester uses no answer after the gap, whatever request it belongs to.
    assert!(script.respond_atomic(OUR_PSN + 4, 9).is_empty());
    let ops = [Op::ReadResponseFirst, Op::ReadResponseMiddle, Op::ReadResponseLast];
    for (i, op) in (1..).zip(ops) {
        script.respond(op, OUR_PSN + i, &[i as u8 + 1; MTU]);
    }
    assert_eq!(script.done(), [(1, OK)]);
    script.respond_atomic(OUR_PSN + 4, 9);
    assert_eq!(script.done(), [(2, OK)]);
    for i in 0..4 {
        assert_eq!(script.host.read(100_000 + i * MTU, MTU), [i as u8 + 1; MTU]);
    }
}

#[test]
fn a_sequence_error_is_answered_by_sending_again_from_there() {
    let mut script = Scripted::rc();
    let data = script.host.data(0, 3 * MTU as u32);
    script.post_all([send(1), wr(2, SendOp::Write(REMOTE), data), send(3)]);
    // It acknowledges everything before, also within a message.
    let again = script.answer(OUR_PSN + 2, nak(NakCode::PsnSequence));
    let expected =
        [(Op::WriteMiddle, OUR_PSN + 2), (Op::WriteLast, OUR_PSN + 3), (Op::SendOnly, OUR_PSN + 4)];
    assert_eq!(seen(&again), expected);
    assert_eq!(script.done(), [(1, OK)]);
    assert_eq!(script.host.engine.counters().rcvd_seq_err, 1);
    script.answer(OUR_PSN + 4, ACK);
    assert_eq!(script.done(), [(2, OK), (3, OK)]);
}

#[test]
fn a_negative_answer_after_a_missing_read_answer_asks_for_the_read() {
    let mut script = Scripted::rc();
    let requests = [read(&script, 1, MTU), send(2)];
    script.post_all(requests);
    let again = script.answer(OUR_PSN + 1, nak(NakCode::RemoteOperational));
    assert_eq!(psns(&again), [OUR_PSN, OUR_PSN + 1]);
    assert_eq!((script.done(), script.state()), (vec![], QpState::Rts));
}

#[test]
fn answers_to_nothing_outstanding_are_counted_and_ignored() {
    let mut script = Scripted::rc();
    script.answer(OUR_PSN, ACK);
    assert_eq!(ghosts(&script), 1, "before anything was sent");
    script.post_all((1..=3).map(send));
    script.answer(OUR_PSN + 3, ACK);
    assert_eq!(ghosts(&script), 2, "beyond what was sent");
    script.answer(OUR_PSN + 2, ACK);
    assert_eq!(script.done().len(), 3);
    script.answer(OUR_PSN + 1, ACK);
    assert_eq!(ghosts(&script), 3, "older than the last");
    script.answer(OUR_PSN + 2, ACK);
    assert_eq!(ghosts(&script), 3, "the last one again may bring credits");
    script.answer(OUR_PSN + 2, nak(NakCode::PsnSequence));
    assert_eq!(ghosts(&script), 4, "refused after it was acknowledged");
    script.respond(Op::ReadResponseOnly, OUR_PSN + 2, &[0; 8]);
    assert_eq!(ghosts(&script), 5, "an answer to a read that never was");
    assert_eq!((script.done(), script.state()), (vec![], QpState::Rts));
}

#[test]
fn an_answer_to_a_read_said_again_is_ignored() {
    let mut script = Scripted::rc();
    let requests = [read(&script, 1, 2 * MTU), send(2)];
    script.post_all(requests);
    script.respond(Op::ReadResponseFirst, OUR_PSN, &[1; MTU]);
    assert!(script.respond(Op::ReadResponseFirst, OUR_PSN, &[9; MTU]).is_empty());
    assert_eq!(ghosts(&script), 1);
    script.respond(Op::ReadResponseLast, OUR_PSN + 1, &[2; MTU]);
    assert_eq!(script.host.read(100_000, MTU), [1; MTU]);
    assert_eq!(script.done(), [(1, OK)]);
}

#[test]
fn a_late_acknowledgement_stops_a_retransmission_short() {
    let mut script = Scripted::rc();
    script.post_all((1..=3).map(send));
    script.answer(OUR_PSN, nak(NakCode::PsnSequence));
    // The peer had received all of them after all.
    assert!(script.answer(OUR_PSN + 2, ACK).is_empty());
    assert_eq!(script.done(), [(1, OK), (2, OK), (3, OK)]);
    assert!(script.wait(u64::from(u32::MAX)).is_empty(), "nothing is left to send");
}

#[test]
fn a_refusal_fails_its_request_and_flushes_the_rest_in_order() {
    let table = [
        (NakCode::InvalidRequest, WcStatus::RemoteInvalidRequest),
        (NakCode::RemoteAccess, WcStatus::RemoteAccess),
        (NakCode::RemoteOperational, WcStatus::RemoteOperation),
    ];
    for (code, status) in table {
        let mut script = Scripted::rc();
        let data = script.host.data(0, 2 * MTU as u32);
        let requests = [send(1), wr(2, SendOp::Send, data), send(3), read(&script, 4, 8)];
        script.post_all(requests);
        script.recv(10, 0, 64);
        // The second packet of the second request.
        assert!(script.answer(OUR_PSN + 2, nak(code)).is_empty());
        let flushed = |id| (id, WcStatus::Flushed);
        let expected = [(1, OK), (2, status), flushed(3), flushed(4), flushed(10)];
        assert_eq!(script.done(), expected, "{code:?}");
        assert_eq!(script.state(), QpState::Err);
        // Whatever is posted now is flushed, too.
        script.post(send(5));
        assert_eq!(script.done(), [flushed(5)]);
    }
}

#[test]
fn a_reserved_syndrome_says_nothing() {
    let mut script = Scripted::rc();
    script.post(send(1));
    let rest = aeth(Syndrome::Reserved(0x9f), 0);
    script.send(Op::Acknowledge, OUR_PSN, false, &rest);
    assert_eq!(script.host.engine.drops().drop_bad_opcode, 1);
    assert_eq!((script.done(), script.state()), (vec![], QpState::Rts));
}

#[test]
fn a_read_answer_of_the_wrong_length_is_a_bad_response() {
    for len in [0, MTU - 4, MTU + 4] {
        let mut script = Scripted::rc();
        let requests = [read(&script, 1, 3 * MTU), send(2)];
        script.post_all(requests);
        script.respond(Op::ReadResponseFirst, OUR_PSN, &vec![0; len]);
        let expected = [(1, WcStatus::BadResponse), (2, WcStatus::Flushed)];
        assert_eq!(script.done(), expected, "{len} bytes");
        assert_eq!(script.state(), QpState::Err);
    }
}

#[test]
fn an_answer_of_the_wrong_kind_is_a_bad_response() {
    let mut script = Scripted::rc();
    let request = add(&script, 1);
    script.post(request);
    script.respond(Op::ReadResponseOnly, OUR_PSN, &[0; 8]);
    assert_eq!(script.done(), [(1, WcStatus::BadResponse)]);
    let mut script = Scripted::rc();
    let request = read(&script, 1, 8);
    script.post(request);
    script.respond_atomic(OUR_PSN, 0);
    assert_eq!(script.done(), [(1, WcStatus::BadResponse)]);
}

#[test]
fn a_read_answer_out_of_its_place_is_a_bad_response() {
    // Middle where the answer starts, last before it ends, first after it has begun.
    let cases: [&[(Op, u32)]; 4] = [
        &[(Op::ReadResponseMiddle, 0)],
        &[(Op::ReadResponseLast, 0)],
        &[(Op::ReadResponseOnly, 0)],
        &[(Op::ReadResponseFirst, 0), (Op::ReadResponseLast, 1)],
    ];
    for case in cases {
        let mut script = Scripted::rc();
        let request = read(&script, 1, 3 * MTU);
        script.post(request);
        for &(op, i) in case {
            script.respond(op, OUR_PSN + i, &[0; MTU]);
        }
        assert_eq!(script.done(), [(1, WcStatus::BadResponse)], "{case:?}");
    }
}

#[test]
fn the_first_loss_is_fatal_to_a_requester_that_expects_none() {
    let mut script = Scripted::lossless();
    script.post_all((1..=2).map(send));
    assert!(script.answer(OUR_PSN, nak(NakCode::PsnSequence)).is_empty());
    assert_eq!(script.done(), [(1, WcStatus::RetryExceeded), (2, WcStatus::Flushed)]);
    let mut script = Scripted::lossless();
    script.post(send(1));
    assert!(script.wait(4096 << 14).is_empty());
    assert_eq!(script.done(), [(1, WcStatus::RetryExceeded)]);
}

#[test]
fn the_first_loss_is_fatal_to_a_responder_that_expects_none() {
    let mut script = Scripted::lossless();
    script.recv(1, 0, 64);
    let said = script.send(Op::SendOnly, feroce_testkit::PEER_PSN + 1, true, &[]);
    assert_eq!(said[0].syndrome(), nak(NakCode::PsnSequence));
    assert_eq!(script.done(), [(1, WcStatus::Flushed)]);
    assert_eq!(script.events(), [AsyncEvent::QpFatal(script.qp.qpn)]);
    assert_eq!(script.state(), QpState::Err);
}
