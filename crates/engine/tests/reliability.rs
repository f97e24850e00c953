//! Timers of the requester: acknowledgement timeout, receiver not ready, tail probe.

use feroce_engine::{Config, Data, QpAttr, QpState, QpType, Remote, SendOp, SendWr, WcStatus};
use feroce_testkit::script::{ACK, MTU, nak, no_credits, psns, rnr, seen};
use feroce_testkit::{OUR_PSN, Scripted, wr};
use feroce_wire::{NakCode, Op, Rkey, RnrTimer};

const REMOTE: Remote = Remote { addr: 0x10_0000, rkey: Rkey(0x7777) };
const OK: WcStatus = WcStatus::Success;

fn send(id: u64) -> SendWr {
    wr(id, SendOp::Send, Data::EMPTY)
}

/// A queue pair that retransmits at the timeout only.
fn timed(timeout: u8, retry_cnt: u8) -> Scripted {
    let with = QpAttr { timeout: Some(timeout), retry_cnt: Some(retry_cnt), ..QpAttr::default() };
    Scripted::with_config(QpType::Rc, with, Config { tail_probe: false, ..no_credits() })
}

fn impatient(rnr_retry: u8) -> Scripted {
    Scripted::rc_with(QpAttr { rnr_retry: Some(rnr_retry), ..QpAttr::default() })
}

#[test]
fn without_an_answer_the_oldest_is_sent_again_after_the_timeout_and_the_rest_when_it_is_answered() {
    for timeout in [1, 8, 14, 20] {
        let mut script = timed(timeout, 7);
        script.post_all((1..=3).map(send));
        let wait = 4096 << timeout;
        assert_eq!(script.host.engine.poll_timeout(), Some(script.now.plus_nanos(wait)));
        assert!(script.wait(wait - 1).is_empty(), "timeout {timeout}");
        assert_eq!(psns(&script.wait(1)), [OUR_PSN]);
        assert_eq!(script.host.engine.counters().local_ack_timeout_err, 1);
        assert_eq!(psns(&script.answer(OUR_PSN, ACK)), [OUR_PSN + 1, OUR_PSN + 2]);
    }
}

#[test]
fn the_timeout_counts_from_the_last_progress() {
    let mut script = timed(14, 7);
    script.post_all((1..=2).map(send));
    script.now = script.now.plus_nanos(4096 << 13);
    script.answer(OUR_PSN, ACK);
    assert!(script.wait((4096 << 14) - 1).is_empty());
    assert_eq!(psns(&script.wait(1)), [OUR_PSN + 1]);
}

/// Lets `ns` pass over a link that knows whether the peer has taken what was sent.
fn wait_untaken(script: &mut Scripted, ns: u64, peer_has_unread: bool) -> usize {
    script.now = script.now.plus_nanos(ns);
    let mut silent = Vec::new();
    script.host.engine.handle_timeout_asking(script.now, &mut silent);
    for peer in &silent {
        assert_eq!(peer.path.dst.gid, script.peer);
        script.host.engine.handle_silence(script.now, peer, peer_has_unread);
    }
    script.host.transmit(script.now).len()
}

/// A hardware adapter answers however busy its host is. A peer process that was not scheduled for a
/// second must not count as lost, either.
#[test]
fn a_peer_that_is_known_to_be_slow_is_waited_for() {
    let timeout = 4096 << 14;
    let mut script = timed(14, 1);
    script.post(send(1));
    for _ in 0..100 {
        assert_eq!(wait_untaken(&mut script, timeout, true), 0, "nothing was lost");
    }
    let counters = script.host.engine.counters();
    assert_eq!((counters.excused_timeouts, counters.local_ack_timeout_err), (100, 0));
    script.answer(OUR_PSN, ACK);
    assert_eq!(script.done(), [(1, WcStatus::Success)]);

    // The peer process has read the packets but does not answer: that timeout counts.
    script.post(send(2));
    assert_eq!(wait_untaken(&mut script, timeout, true), 0);
    assert_eq!(wait_untaken(&mut script, timeout, false), 1);
    assert_eq!(wait_untaken(&mut script, timeout, false), 0);
    assert_eq!(script.done(), [(2, WcStatus::RetryExceeded)]);
}

#[test]
fn a_slow_peer_is_not_waited_for_for_ever() {
    let timeout = 4096 << 14;
    let mut script = timed(14, 1);
    script.post(send(1));
    let waits = (0..10_000).take_while(|_| wait_untaken(&mut script, timeout, true) == 0).count();
    assert!((100..1000).contains(&waits), "{waits}");
    assert_eq!(wait_untaken(&mut script, timeout, true), 0);
    assert_eq!(script.done(), [(1, WcStatus::RetryExceeded)]);
}

#[test]
fn a_timeout_of_zero_never_ends() {
    let mut script = timed(0, 7);
    script.post(send(1));
    assert_eq!(script.host.engine.poll_timeout(), None);
    assert!(script.wait(1 << 50).is_empty());
    assert_eq!(script.state(), QpState::Rts);
}

#[test]
fn the_peer_is_given_up_after_the_last_retry() {
    for retry_cnt in [0, 1, 3, 7] {
        let mut script = timed(10, retry_cnt);
        let mut sent = script.post_all([send(1), send(2)]).len();
        while script.state() == QpState::Rts {
            sent += script.wait(4096 << 10).len();
        }
        assert_eq!(sent, 2 + usize::from(retry_cnt));
        assert_eq!(script.done(), [(1, WcStatus::RetryExceeded), (2, WcStatus::Flushed)]);
        assert_eq!(script.host.engine.counters().retry_exceeded_err, 1);
    }
}

#[test]
fn sequence_errors_use_up_retries_too() {
    let mut script = timed(14, 1);
    script.post(send(1));
    assert_eq!(script.answer(OUR_PSN, nak(NakCode::PsnSequence)).len(), 1);
    assert!(script.answer(OUR_PSN, nak(NakCode::PsnSequence)).is_empty());
    assert_eq!(script.done(), [(1, WcStatus::RetryExceeded)]);
}

#[test]
fn progress_gives_all_retries_back() {
    let mut script = timed(10, 1);
    let data = script.host.data(0, 4 * MTU as u32);
    script.post(wr(1, SendOp::Send, data));
    for acked in 0..3 {
        assert_eq!(psns(&script.wait(4096 << 10)), [OUR_PSN + acked]);
        assert_eq!(script.answer(OUR_PSN + acked, ACK).len() as u32, 3 - acked);
    }
    assert_eq!(script.wait(4096 << 10).len(), 1);
    assert!(script.wait(4096 << 10).is_empty());
    assert_eq!(script.done(), [(1, WcStatus::RetryExceeded)]);
}

#[test]
fn a_lost_read_request_is_sent_again_after_the_timeout() {
    let mut script = timed(14, 7);
    let data = script.host.data(0, 4 * MTU as u32);
    let read = |id| wr(id, SendOp::Read(REMOTE), data.clone());
    script.post_all([read(1), read(2)]);
    let ops = [
        Op::ReadResponseFirst,
        Op::ReadResponseMiddle,
        Op::ReadResponseMiddle,
        Op::ReadResponseLast,
    ];
    for (i, op) in (0..).zip(ops) {
        script.respond(op, OUR_PSN + i, &[0; MTU]);
    }
    assert_eq!(script.done(), [(1, OK)]);
    assert_eq!(seen(&script.wait(4096 << 14)), [(Op::ReadRequest, OUR_PSN + 4)]);
}

#[test]
fn a_lost_last_answer_is_asked_for_alone() {
    let mut script = timed(14, 7);
    let data = script.host.data(0, 4 * MTU as u32);
    script.post(wr(1, SendOp::Read(REMOTE), data));
    script.respond(Op::ReadResponseFirst, OUR_PSN, &[0; MTU]);
    script.respond(Op::ReadResponseMiddle, OUR_PSN + 1, &[0; MTU]);
    script.respond(Op::ReadResponseMiddle, OUR_PSN + 2, &[0; MTU]);
    let again = script.wait(4096 << 14);
    assert_eq!(seen(&again), [(Op::ReadRequest, OUR_PSN + 3)]);
    assert_eq!(again[0].exts().reth.map(|r| r.len), Some(MTU as u32));
    script.respond(Op::ReadResponseOnly, OUR_PSN + 3, &[0; MTU]);
    assert_eq!(script.done(), [(1, OK)]);
}

/// IBTA vol1 table 45, in units of ten microseconds.
const RNR_TABLE: [u64; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

#[test]
fn a_receiver_that_is_not_ready_is_left_alone_for_its_time() {
    for (code, tens) in (0..).zip(RNR_TABLE) {
        let mut script = impatient(7);
        script.post_all([send(1), send(2)]);
        assert!(script.answer(OUR_PSN, rnr(code)).is_empty());
        let wait = tens * 10_000;
        assert_eq!(RnrTimer::new(code).nanos(), wait);
        let due = script.now.plus_nanos(wait);
        assert!(script.host.engine.poll_timeout().is_some_and(|at| at <= due));
        assert!(script.post(send(3)).is_empty(), "nothing goes meanwhile");
        assert!(script.wait(wait - 1).is_empty(), "code {code}");
        assert_eq!(psns(&script.wait(1)), [OUR_PSN, OUR_PSN + 1, OUR_PSN + 2]);
    }
}

#[test]
fn not_ready_acknowledges_what_came_before() {
    let mut script = impatient(7);
    script.post_all((1..=3).map(send));
    script.answer(OUR_PSN + 2, rnr(1));
    assert_eq!(script.done(), [(1, OK), (2, OK)]);
    assert_eq!(psns(&script.wait(10_000)), [OUR_PSN + 2]);
}

#[test]
fn a_receiver_never_ready_is_given_up_after_the_last_retry() {
    for rnr_retry in [0, 1, 2, 6] {
        let mut script = impatient(rnr_retry);
        let mut sent = script.post_all([send(1), send(2)]).len();
        for _ in 0..rnr_retry {
            assert!(script.answer(OUR_PSN, rnr(1)).is_empty());
            sent += script.wait(10_000).len();
        }
        assert_eq!(sent, 2 * (1 + usize::from(rnr_retry)));
        script.answer(OUR_PSN, rnr(1));
        let expected = [(1, WcStatus::RnrRetryExceeded), (2, WcStatus::Flushed)];
        assert_eq!(script.done(), expected, "rnr_retry {rnr_retry}");
        assert_eq!(script.host.engine.counters().retry_rnr_exceeded_err, 1);
    }
}

#[test]
fn seven_means_to_try_for_ever() {
    let mut script = impatient(7);
    script.post(send(1));
    for _ in 0..100 {
        assert!(script.answer(OUR_PSN, rnr(1)).is_empty());
        assert_eq!(script.wait(10_000).len(), 1);
    }
    script.answer(OUR_PSN, ACK);
    assert_eq!(script.done(), [(1, OK)]);
    assert_eq!(script.host.engine.counters().rcvd_rnr_err, 100);
}

#[test]
fn progress_gives_all_rnr_retries_back() {
    let mut script = impatient(1);
    script.post_all((1..=2).map(send));
    script.answer(OUR_PSN, rnr(1));
    script.wait(10_000);
    script.answer(OUR_PSN, ACK);
    script.answer(OUR_PSN + 1, rnr(1));
    assert_eq!(psns(&script.wait(10_000)), [OUR_PSN + 1]);
    assert_eq!(script.done(), [(1, OK)]);
}

#[test]
fn not_ready_said_twice_counts_once() {
    let mut script = impatient(1);
    script.post(send(1));
    assert!(script.answer(OUR_PSN, rnr(20)).is_empty());
    // The network delivered it twice: no second retry, no longer wait.
    let due = script.now.plus_nanos(10_240_000);
    assert!(script.answer(OUR_PSN, rnr(20)).is_empty());
    let left = due.nanos_since(script.now);
    assert_eq!(psns(&script.wait(left)), [OUR_PSN]);
    assert_eq!((script.done(), script.state()), (vec![], QpState::Rts));
    assert_eq!(script.host.engine.drops().drop_ghost_response, 1);
}

#[test]
fn waiting_for_a_receiver_does_not_use_up_retries() {
    let mut script = timed(8, 1);
    script.post(send(1));
    for _ in 0..5 {
        assert!(script.answer(OUR_PSN, rnr(20)).is_empty());
        // The acknowledgement timeout does not run meanwhile.
        assert!(script.wait(4096 << 8).is_empty());
        assert_eq!(script.wait(10_240_000 - (4096 << 8)).len(), 1);
    }
    assert_eq!(script.host.engine.counters().local_ack_timeout_err, 0);
    assert_eq!(script.state(), QpState::Rts);
}

/// A queue pair that has measured a round trip of one microsecond.
fn probing(retry_cnt: u8) -> Scripted {
    let with = QpAttr { retry_cnt: Some(retry_cnt), ..QpAttr::default() };
    let config = Config { min_probe_ns: 1_000_000, ..no_credits() };
    let mut script = Scripted::with_config(QpType::Rc, with, config);
    script.post(send(1));
    script.answer(OUR_PSN, ACK);
    assert_eq!(script.done(), [(1, OK)]);
    script
}

#[test]
fn an_overdue_answer_is_probed_for_before_the_timeout() {
    let mut script = probing(0);
    script.post(send(2));
    assert!(script.wait(999_999).is_empty());
    assert_eq!(psns(&script.wait(1)), [OUR_PSN + 1]);
    assert_eq!(script.host.engine.counters().tail_probes, 1);
    // The next probe comes after twice the time.
    assert!(script.wait(1_999_999).is_empty());
    assert_eq!(psns(&script.wait(1)), [OUR_PSN + 1]);
    // A probe does not count as a retry: this queue pair has no retries and stays in RTS.
    script.answer(OUR_PSN + 1, ACK);
    assert_eq!((script.done(), script.state()), (vec![(2, OK)], QpState::Rts));
}

#[test]
fn while_packets_are_lost_an_answer_is_overdue_sooner() {
    let mut script = probing(7);
    script.post_all([send(2), send(3)]);
    let again = script.answer(OUR_PSN + 1, nak(NakCode::PsnSequence));
    assert_eq!(psns(&again), [OUR_PSN + 1, OUR_PSN + 2]);
    // They are lost, too, and no NAK reports it.
    assert!(script.wait(124_999).is_empty());
    assert_eq!(psns(&script.wait(1)), [OUR_PSN + 1]);
    script.answer(OUR_PSN + 2, ACK);
    assert_eq!(script.done(), [(2, OK), (3, OK)]);
    // After a long time without losses, the longer delay applies again.
    script.wait(10_000_000);
    script.post(send(4));
    assert!(script.wait(999_999).is_empty());
    assert_eq!(psns(&script.wait(1)), [OUR_PSN + 3]);
}

#[test]
fn answers_that_a_slow_peer_gave_before_a_probe_cost_no_retries() {
    let mut script = probing(1);
    let data = script.host.data(0, 8 * MTU as u32);
    script.post(wr(2, SendOp::Read(REMOTE), data));
    script.respond(Op::ReadResponseFirst, OUR_PSN + 1, &[1; MTU]);
    // The second is lost: its absence is the one retry that there is.
    let again = script.respond(Op::ReadResponseMiddle, OUR_PSN + 3, &[3; MTU]);
    assert_eq!(seen(&again), [(Op::ReadRequest, OUR_PSN + 2)]);
    for i in 4..8 {
        let probe = script.wait(1_000_000 << (i - 3));
        assert_eq!(seen(&probe), [(Op::ReadRequest, OUR_PSN + 2)]);
        let stale = script.respond(Op::ReadResponseMiddle, OUR_PSN + i, &[4; MTU]);
        assert_eq!(seen(&stale), []);
    }
    script.respond(Op::ReadResponseFirst, OUR_PSN + 2, &[2; MTU]);
    for i in 3..8 {
        script.respond(Op::ReadResponseMiddle, OUR_PSN + i, &[3; MTU]);
    }
    script.respond(Op::ReadResponseLast, OUR_PSN + 8, &[8; MTU]);
    assert_eq!((script.done(), script.state()), (vec![(2, OK)], QpState::Rts));
}

#[test]
fn probes_do_not_put_off_the_timeout() {
    let mut script = probing(0);
    script.post(send(2));
    let start = script.now;
    while script.state() == QpState::Rts {
        let next = script.host.engine.poll_timeout().expect("something is outstanding");
        let wait = next.nanos_since(script.now);
        script.wait(wait);
    }
    assert_eq!(script.now.nanos_since(start), 4096 << 14);
    assert_eq!(script.done(), [(2, WcStatus::RetryExceeded)]);
}

#[test]
fn there_is_no_probe_before_a_round_trip_was_measured() {
    let mut script = Scripted::rc();
    script.post(send(1));
    assert_eq!(script.host.engine.poll_timeout(), Some(script.now.plus_nanos(4096 << 14)));
}

#[test]
fn the_time_of_a_packet_sent_twice_is_not_measured() {
    let mut script = timed(14, 7);
    script.post(send(1));
    script.wait(4096 << 14);
    script.answer(OUR_PSN, ACK);
    script.post(send(2));
    // Were the round trip taken from the first transmission, probes would come this late.
    assert_eq!(psns(&script.wait(4096 << 14)), [OUR_PSN + 1]);
    assert_eq!(script.host.engine.counters().tail_probes, 0);
}

#[test]
fn errors_stop_all_timers() {
    let mut script = Scripted::rc();
    script.post(send(1));
    script.host.modify(script.now, script.qp.qpn, &QpAttr::to(QpState::Err));
    assert!(script.wait(1 << 40).is_empty());
    assert_eq!(script.done(), [(1, WcStatus::Flushed)]);
    assert_eq!(script.host.engine.counters().local_ack_timeout_err, 0);
    assert_eq!(script.host.engine.poll_timeout(), None);
}
