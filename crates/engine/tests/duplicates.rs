//! Requests that come twice: answered again, executed once (IBTA vol1 9.7.5.1.4).

use feroce_engine::{QpAttr, WcStatus};
use feroce_testkit::script::{ACK, MTU, atomic, reth, rnr, said, seen, with};
use feroce_testkit::{PEER_PSN, Packet, Scripted, header};
use feroce_wire::{ImmDt, Op, Rkey};

const P: u32 = PEER_PSN;

fn original(packets: &[Packet]) -> u64 {
    packets[0].exts().atomic_ack.map_or(0, |eth| eth.original)
}

#[test]
fn a_send_said_again_is_acknowledged_and_not_received_again() {
    let mut script = Scripted::rc();
    for i in 0..3 {
        script.recv(i, 0, 64);
    }
    script.send(Op::SendOnly, P, true, &[1; 4]);
    script.send(Op::SendOnly, P + 1, true, &[2; 4]);
    // The acknowledgement covers everything that was executed.
    assert_eq!(said(&script.send(Op::SendOnly, P, true, &[1; 4])), [(P + 1, ACK, 2)]);
    assert_eq!(script.done(), [(0, WcStatus::Success), (1, WcStatus::Success)]);
    assert_eq!(script.host.read(0, 4), [2; 4]);
    assert_eq!(script.host.engine.counters().duplicate_request, 1);
    // The next new packet is still the expected one.
    assert_eq!(said(&script.send(Op::SendOnly, P + 2, true, &[3; 4])), [(P + 2, ACK, 3)]);
}

#[test]
fn a_write_said_again_does_not_write_again() {
    let mut script = Scripted::rc();
    let rest = with(reth(0, script.rkey(), 4), &[1; 4]);
    script.send(Op::WriteOnly, P, true, &rest);
    script.host.region.write_at(0, &[9; 4]).unwrap();
    assert_eq!(said(&script.send(Op::WriteOnly, P, true, &rest)), [(P, ACK, 1)]);
    assert_eq!(script.host.read(0, 4), [9; 4]);
    // Even with a key that would be refused: it is not looked at.
    let rest = with(reth(0, Rkey(1), 4), &[1; 4]);
    assert_eq!(said(&script.send(Op::WriteOnly, P, true, &rest)), [(P, ACK, 1)]);
}

#[test]
fn the_beginning_of_a_message_in_progress_may_be_said_again() {
    let mut script = Scripted::rc();
    script.recv(1, 0, 4000);
    script.send(Op::SendFirst, P, false, &[1; MTU]);
    script.send(Op::SendMiddle, P + 1, false, &[2; MTU]);
    script.send(Op::SendFirst, P, false, &[8; MTU]);
    script.send(Op::SendMiddle, P + 1, false, &[9; MTU]);
    script.send(Op::SendLast, P + 2, true, &[3; 4]);
    assert_eq!(script.done(), [(1, WcStatus::Success)]);
    assert_eq!(script.host.read(0, MTU), [1; MTU]);
    assert_eq!(script.host.read(MTU, MTU), [2; MTU]);
}

#[test]
fn a_write_with_immediate_said_again_consumes_no_second_receive() {
    let mut script = Scripted::rc();
    script.recv(1, 0, 64);
    script.recv(2, 0, 64);
    let imm = header(|out| ImmDt { imm: feroce_wire::Imm(7) }.emit(out));
    let rest = with(reth(0, script.rkey(), 0), &imm);
    script.send(Op::WriteOnlyImm, P, true, &rest);
    script.send(Op::WriteOnlyImm, P, true, &rest);
    assert_eq!(script.done(), [(1, WcStatus::Success)]);
}

#[test]
fn a_read_said_again_is_read_again() {
    let mut script = Scripted::rc();
    script.host.fill(0, 16, 1);
    let rest = reth(0, script.rkey(), 16);
    script.send(Op::ReadRequest, P, true, &rest);
    let bytes = script.host.fill(0, 16, 77);
    let again = script.send(Op::ReadRequest, P, true, &rest);
    assert_eq!(said(&again), [(P, ACK, 1)]);
    assert_eq!(again[0].payload(), bytes);
}

#[test]
fn a_read_may_be_asked_again_from_the_middle() {
    let mut script = Scripted::rc();
    let bytes = script.host.fill(0, 4 * MTU, 5);
    script.send(Op::ReadRequest, P, true, &reth(0, script.rkey(), 4 * MTU as u32));
    let rest = reth(MTU as u64, script.rkey(), 3 * MTU as u32);
    let again = script.send(Op::ReadRequest, P + 1, true, &rest);
    let expected = [
        (Op::ReadResponseFirst, P + 1),
        (Op::ReadResponseMiddle, P + 2),
        (Op::ReadResponseLast, P + 3),
    ];
    assert_eq!(seen(&again), expected);
    let read: Vec<u8> = again.iter().flat_map(|p| p.payload().to_vec()).collect();
    assert_eq!(read, bytes[MTU..]);
    // One packet out of the middle, too.
    let rest = reth(2 * MTU as u64, script.rkey(), MTU as u32);
    let again = script.send(Op::ReadRequest, P + 2, true, &rest);
    assert_eq!(seen(&again), [(Op::ReadResponseOnly, P + 2)]);
    // What comes next is where it was.
    script.recv(1, 0, 64);
    assert_eq!(said(&script.send(Op::SendOnly, P + 4, true, &[])), [(P + 4, ACK, 2)]);
}

#[test]
fn a_read_asked_again_cannot_reach_beyond_the_first_time() {
    let mut script = Scripted::rc();
    let rkey = script.rkey();
    script.send(Op::ReadRequest, P, true, &reth(0, rkey, 2 * MTU as u32));
    let others = [
        reth(0, rkey, 3 * MTU as u32),
        reth(8, rkey, 2 * MTU as u32),
        reth(0, Rkey(rkey.0 ^ 1), 2 * MTU as u32),
    ];
    for (i, rest) in (1..).zip(others) {
        assert!(script.send(Op::ReadRequest, P, true, &rest).is_empty());
        assert_eq!(script.host.engine.drops().drop_stale_duplicate, i);
    }
}

#[test]
fn a_read_asked_again_replaces_answers_that_were_not_sent() {
    let mut script = Scripted::rc();
    let rest = reth(0, script.rkey(), 2 * MTU as u32);
    for _ in 0..3 {
        let packet = script.packet(Op::ReadRequest, P, true, &rest);
        script.host.receive(script.now, &packet);
    }
    let answers = script.host.transmit(script.now);
    assert_eq!(seen(&answers), [(Op::ReadResponseFirst, P), (Op::ReadResponseLast, P + 1)]);
}

#[test]
fn an_atomic_said_again_answers_from_memory() {
    let mut script = Scripted::rc();
    script.host.region.store_u64(64, 1000).unwrap();
    let rest = atomic(64, script.rkey(), 5, 0);
    for i in 0..3 {
        assert_eq!(
            original(&script.send(Op::FetchAdd, P + i, true, &rest)),
            1000 + u64::from(5 * i)
        );
    }
    for i in [1, 2, 0, 1] {
        let again = script.send(Op::FetchAdd, P + i, true, &rest);
        assert_eq!(seen(&again), [(Op::AtomicAcknowledge, P + i)]);
        assert_eq!(original(&again), 1000 + u64::from(5 * i));
    }
    assert_eq!(script.host.region.load_u64(64).unwrap(), 1015);
}

/// When the requester goes back, its earlier requests may still be in the network and arrive after
/// the retransmitted ones. They must not displace the record of requests that are still unanswered.
#[test]
fn twice_as_many_are_remembered_as_may_be_outstanding() {
    let mut script = Scripted::rc_with(QpAttr { max_dest_rd_atomic: Some(2), ..QpAttr::default() });
    let rest = atomic(64, script.rkey(), 1, 0);
    for i in 0..5 {
        script.send(Op::FetchAdd, P + i, true, &rest);
    }
    // The responder has forgotten the oldest request and does not answer it, because the answer
    // could be wrong.
    assert!(script.send(Op::FetchAdd, P, true, &rest).is_empty());
    assert_eq!(script.host.engine.drops().drop_stale_duplicate, 1);
    for i in 1..5 {
        let again = script.send(Op::FetchAdd, P + i, true, &rest);
        assert_eq!(original(&again), u64::from(i));
    }
    assert_eq!(script.host.region.load_u64(64).unwrap(), 5);
}

#[test]
fn an_atomic_is_not_answered_with_what_a_read_left() {
    let mut script = Scripted::rc();
    let rkey = script.rkey();
    script.send(Op::ReadRequest, P, true, &reth(0, rkey, 8));
    assert!(script.send(Op::FetchAdd, P, true, &atomic(0, rkey, 1, 0)).is_empty());
    script.send(Op::FetchAdd, P + 1, true, &atomic(0, rkey, 1, 0));
    assert!(script.send(Op::ReadRequest, P + 1, true, &reth(0, rkey, 8)).is_empty());
    assert_eq!(script.host.engine.drops().drop_stale_duplicate, 2);
    assert_eq!(script.host.region.load_u64(0).unwrap(), 1);
}

#[test]
fn an_acknowledgement_said_again_does_not_claim_answers_that_may_be_lost() {
    let mut script = Scripted::rc();
    script.recv(1, 0, 64);
    script.recv(2, 0, 64);
    script.send(Op::SendOnly, P, true, &[]);
    script.send(Op::ReadRequest, P + 1, true, &reth(0, script.rkey(), 8));
    script.send(Op::SendOnly, P + 2, true, &[]);
    let again = script.send(Op::SendOnly, P, true, &[]);
    assert_eq!((again[0].op(), again[0].psn()), (Op::Acknowledge, P));
}

#[test]
fn half_the_psn_space_is_behind_and_half_ahead() {
    let mut script = Scripted::rc();
    script.recv(1, 0, 64);
    let gap = feroce_testkit::script::nak(feroce_wire::NakCode::PsnSequence);
    let ahead = (P + 0x007f_ffff) & 0x00ff_ffff;
    assert_eq!(said(&script.send(Op::SendOnly, ahead, true, &[])), [(P, gap, 0)]);
    let behind = P.wrapping_sub(0x0080_0000) & 0x00ff_ffff;
    let before = (P - 1) & 0x00ff_ffff;
    assert_eq!(said(&script.send(Op::SendOnly, behind, true, &[])), [(before, ACK, 0)]);
    assert!(script.done().is_empty());
}

#[test]
fn a_duplicate_while_no_receive_is_posted_is_acknowledged_all_the_same() {
    let mut script = Scripted::rc();
    script.recv(1, 0, 64);
    script.send(Op::SendOnly, P, true, &[]);
    assert_eq!(said(&script.send(Op::SendOnly, P + 1, true, &[])), [(P + 1, rnr(12), 1)]);
    assert_eq!(said(&script.send(Op::SendOnly, P, true, &[])), [(P, ACK, 1)]);
    assert_eq!(said(&script.send(Op::SendOnly, P + 1, true, &[])), [(P + 1, rnr(12), 1)]);
}
