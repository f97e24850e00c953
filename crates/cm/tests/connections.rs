//! Connections, rule by rule: one side is a manager, the other a script.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use crate::common::{A, B, Side, rep, req};
use feroce_cm::{CallError, Cause, Config, Event, Peer, code_ns};
use feroce_wire::cm::{Apr, CmMessage, CommId, Drep, Dreq, Lap, Mra, Rej, RejReason, Rtu, Stage};
use feroce_wire::{Gid, Psn, Qpn};

fn rtu(local: CommId, remote: CommId) -> CmMessage {
    CmMessage::Rtu(Rtu { local_id: local, remote_id: remote, private_data: [0; 224] })
}

/// A DREQ to a queue pair of ours, which is 0x21 on the active side and 0x31 on the passive side.
fn dreq_to(qpn: u32, local: CommId, remote: CommId) -> CmMessage {
    let remote_qpn = Qpn::new(qpn);
    CmMessage::Dreq(Dreq { local_id: local, remote_id: remote, remote_qpn, private_data: [0; 220] })
}

fn drep(local: CommId, remote: CommId) -> CmMessage {
    CmMessage::Drep(Drep { local_id: local, remote_id: remote, private_data: [0; 224] })
}

fn rej(local: CommId, remote: CommId, stage: Stage, reason: RejReason) -> Rej {
    let (info, private_data) = ([0; 72], [3; 148]);
    Rej { local_id: local, remote_id: remote, stage, info_len: 0, reason, info, private_data }
}

fn mra(local: CommId, remote: CommId, stage: Stage, service_timeout: u8) -> CmMessage {
    let private_data = [0; 222];
    CmMessage::Mra(Mra { local_id: local, remote_id: remote, stage, service_timeout, private_data })
}

/// An established connection on the active side, and both communication IDs.
fn active() -> (Side, feroce_cm::ConnId, CommId, CommId) {
    let mut side = Side::new(A);
    let (conn, req) = side.connect();
    side.receive(&CmMessage::Rep(rep(0x55, &req)));
    assert!(matches!(side.events().as_slice(), [Event::Replied { .. }]));
    side.manager.ready(conn).unwrap();
    assert_eq!(side.names(), ["RTU"]);
    (side, conn, req.local_id, CommId(0x55))
}

/// A connection on the passive side, after REP.
fn accepted() -> (Side, feroce_cm::ConnId, CommId, CommId) {
    let mut side = Side::new(B);
    side.listen();
    side.receive(&CmMessage::Req(req(0x77, 0x21)));
    let conn = side.request();
    side.accept(conn);
    (side, conn, conn.comm_id(), CommId(0x77))
}

#[test]
fn the_asking_side_takes_its_attributes_from_the_answer() {
    let mut side = Side::new(A);
    let (conn, req) = side.connect();
    assert_eq!(req.remote_cm_timeout, 20);
    assert_eq!(req.primary.ack_timeout, 19);
    side.receive(&CmMessage::Rep(rep(0x55, &req)));
    let plan = *side.manager.plan(conn).unwrap();
    assert_eq!(plan.remote_qpn, Some(Qpn::new(0x31)));
    assert_eq!((plan.sq_psn, plan.rq_psn), (Psn::new(77), req.psn));
    // This side asked for 5 outstanding READs, and the peer supports 4; the peer wants 2 of the 3
    // that this side offered.
    assert_eq!((plan.max_rd_atomic, plan.max_dest_rd_atomic), (4, 2));
    assert_eq!((plan.retry_count, plan.rnr_retry, plan.timeout), (7, 6, 19));
}

#[test]
fn the_asked_side_takes_its_attributes_from_the_request() {
    let (mut side, conn, ..) = accepted();
    let plan = *side.manager.plan(conn).unwrap();
    let req = req(0x77, 0x21);
    assert_eq!(plan.remote_qpn, Some(req.qpn));
    assert_eq!(plan.sq_psn, req.psn);
    assert_eq!((plan.max_rd_atomic, plan.max_dest_rd_atomic), (1, 1));
    assert_eq!((plan.retry_count, plan.rnr_retry, plan.timeout), (7, 7, 19));
    assert_eq!(side.events(), []);
}

#[test]
fn a_lost_req_is_repeated_and_then_given_up() {
    let mut side = Side::new(A);
    let (conn, first) = side.connect();
    let start = side.now;
    side.tick();
    let between = side.now.nanos_since(start);
    assert_eq!(between, 2 * code_ns(18) + code_ns(20));
    assert_eq!(side.sent(), [CmMessage::Req(first)]);
    let (events, sent) = side.until_told();
    assert_eq!(events, [Event::Unreachable { conn }]);
    assert_eq!(sent.len(), 14);
    // Long before, the owner can tell a person who waits, and does so once.
    assert_eq!(side.manager.poll_silence().map(|peer| peer.remote), Some(B.into()));
    assert_eq!(side.manager.poll_silence(), None);
    // A REJ tells a peer that may have received a REQ that this side has stopped waiting.
    let last = side.sent();
    let [CmMessage::Rej(rej)] = last.as_slice() else { panic!("{last:?}") };
    assert_eq!((rej.reason, rej.info_len), (RejReason::TIMEOUT, 8));
    assert_eq!(rej.info[..8], 0x1234_u64.to_be_bytes());
    assert!(side.manager.is_empty());
}

#[test]
fn patience_that_is_asked_for_is_given() {
    let mut side = Side::new(A);
    let (conn, req) = side.connect();
    let start = side.now;
    side.receive(&mra(CommId(0x55), req.local_id, Stage::Req, 24));
    side.tick();
    assert!(side.now.nanos_since(start) >= code_ns(24));
    assert_eq!(side.names(), ["REQ"]);
    side.receive(&CmMessage::Rep(rep(0x55, &req)));
    assert!(matches!(side.events().as_slice(), [Event::Replied { conn: c, .. }] if *c == conn));
    // An MRA for another stage changes nothing.
    let (mut side, _, local, remote) = accepted();
    let deadline = side.manager.poll_timeout();
    side.receive(&mra(remote, local, Stage::Req, 24));
    assert_eq!(side.manager.poll_timeout(), deadline);
    side.receive(&mra(remote, local, Stage::Rep, 24));
    assert!(side.manager.poll_timeout() > deadline);
}

#[test]
fn a_duplicate_req_gets_the_answer_that_the_first_got() {
    let mut side = Side::new(B);
    side.listen();
    let request = CmMessage::Req(req(0x77, 0x21));
    side.receive(&request);
    let conn = side.request();
    // The consumer has not decided yet.
    side.receive(&request);
    assert_eq!(side.names(), ["MRA"]);
    let rep = side.accept(conn);
    side.receive(&request);
    assert_eq!(side.sent(), [CmMessage::Rep(rep)]);
    side.receive(&rtu(CommId(0x77), conn.comm_id()));
    assert_eq!(side.events(), [Event::Established { conn }]);
    side.receive(&request);
    assert_eq!(side.names(), [""; 0]);
    assert_eq!(side.events(), []);
}

#[test]
fn a_refusal_is_remembered_for_duplicates() {
    let mut side = Side::new(B);
    side.listen();
    let request = CmMessage::Req(req(0x77, 0x21));
    side.receive(&request);
    let conn = side.request();
    side.manager.reject(side.now, conn, RejReason::CONSUMER, &[4; 148]).unwrap();
    let first = side.sent();
    let [CmMessage::Rej(rej)] = first.as_slice() else { panic!("{first:?}") };
    assert_eq!(
        (rej.reason, rej.stage, rej.private_data),
        (RejReason::CONSUMER, Stage::Req, [4; 148])
    );
    assert_eq!((rej.local_id, rej.remote_id), (conn.comm_id(), CommId(0x77)));
    side.receive(&request);
    assert_eq!(side.sent(), first);
    side.tick();
    assert!(side.manager.is_empty());
    assert_eq!(side.events(), []);
}

#[test]
fn a_duplicate_rep_gets_patience_or_the_same_rtu() {
    let mut side = Side::new(A);
    let (conn, req) = side.connect();
    let answer = CmMessage::Rep(rep(0x55, &req));
    side.receive(&answer);
    side.receive(&answer);
    assert_eq!(side.names(), ["MRA"]);
    side.manager.ready(conn).unwrap();
    let first = side.sent();
    side.receive(&answer);
    assert_eq!(side.sent(), first);
    assert!(matches!(side.events().as_slice(), [Event::Replied { .. }]));
    // A REP with another communication ID is not a duplicate.
    side.receive(&CmMessage::Rep(rep(0x56, &req)));
    assert_eq!(side.names(), [""; 0]);
}

#[test]
fn a_lost_rtu_makes_rep_repeat_until_data_or_rtu_comes() {
    let (mut side, conn, local, remote) = accepted();
    side.tick();
    assert_eq!(side.names(), ["REP"]);
    side.manager.establish(conn).unwrap();
    assert_eq!(side.events(), [Event::Established { conn }]);
    assert_eq!(side.manager.poll_timeout(), None);
    side.receive(&rtu(remote, local));
    assert_eq!(side.events(), []);
    assert_eq!(side.manager.establish(conn), Err(CallError::Established));
}

#[test]
fn data_on_the_queue_pair_stands_for_a_lost_rtu() {
    let (mut side, conn, ..) = accepted();
    let at = side.manager.poll_timeout().unwrap();
    side.manager.handle_timeout_asking(at, |asked, _| asked != conn);
    assert_eq!((side.names(), side.events()), (vec!["REP"], Vec::new()));
    let at = side.manager.poll_timeout().unwrap();
    side.manager.handle_timeout_asking(at, |asked, _| asked == conn);
    assert_eq!((side.names(), side.events()), (Vec::new(), vec![Event::Established { conn }]));
    assert_eq!(side.manager.poll_timeout(), None);
}

#[test]
fn an_answer_that_nobody_hears_is_given_up() {
    let (mut side, conn, ..) = accepted();
    let (events, sent) = side.until_told();
    assert_eq!(events, [Event::Unreachable { conn }]);
    assert_eq!(sent, ["REP"; 2], "few messages to an address that may be a victim's");
    assert_eq!(side.names(), [""; 0]);
    assert!(side.manager.is_empty());
}

#[test]
fn the_connections_of_a_peer_that_is_gone_end_and_others_stay() {
    let (mut side, conn, _, remote) = active();
    for other in [(A, remote), (B, CommId(remote.0 + 1))] {
        side.manager.handle_departure(side.now, |port, id| (port.gid, id) == other);
        assert_eq!((side.events(), side.names()), (vec![], vec![]));
    }
    side.manager.handle_departure(side.now, |port, id| (port.gid, id) == (B, remote));
    assert_eq!(side.events(), [Event::Disconnected { conn, cause: Cause::Gone }]);
    assert_eq!((side.manager.state(conn), side.names()), (Some("TimeWait"), vec![]));
    // It is told once.
    side.manager.handle_departure(side.now, |_, _| true);
    assert_eq!(side.until_told().0, [Event::TimewaitExit { conn }]);

    let (mut side, conn, ..) = accepted();
    side.manager.handle_departure(side.now, |_, _| true);
    assert_eq!(side.events(), [Event::Unreachable { conn }]);
    assert!(side.manager.is_empty() && side.names().is_empty());
}

#[test]
fn refusals_end_every_state_with_one_event() {
    let reason = RejReason::CONSUMER;
    // Before REP.
    let mut side = Side::new(A);
    let (conn, req_sent) = side.connect();
    let refusal = rej(CommId(0), req_sent.local_id, Stage::Req, reason);
    side.receive(&CmMessage::Rej(refusal));
    side.receive(&CmMessage::Rej(refusal));
    assert_eq!(side.events(), [Event::Rejected { conn, rej: Box::new(refusal) }]);
    assert!(side.manager.is_empty());
    // Between REP and RTU, on the active side.
    let mut side = Side::new(A);
    let (conn, req_sent) = side.connect();
    side.receive(&CmMessage::Rep(rep(0x55, &req_sent)));
    side.events();
    let refusal = rej(CommId(0x55), req_sent.local_id, Stage::Other, reason);
    side.receive(&CmMessage::Rej(refusal));
    assert_eq!(side.events(), [Event::Rejected { conn, rej: Box::new(refusal) }]);
    // Between REP and RTU, on the passive side.
    let (mut side, conn, local, remote) = accepted();
    let refusal = rej(remote, local, Stage::Rep, reason);
    side.receive(&CmMessage::Rej(refusal));
    assert_eq!(side.events(), [Event::Rejected { conn, rej: Box::new(refusal) }]);
    // A REJ ends an established connection with the event `Disconnected`.
    let (mut side, conn, local, remote) = active();
    side.receive(&CmMessage::Rej(rej(remote, local, Stage::Other, RejReason::TIMEOUT)));
    assert_eq!(side.events(), [Event::Disconnected { conn, cause: Cause::Refused }]);
}

#[test]
fn a_peer_that_gives_up_early_is_understood_without_our_identifier() {
    let mut side = Side::new(B);
    side.listen();
    side.receive(&CmMessage::Req(req(0x77, 0x21)));
    let conn = side.request();
    let refusal = rej(CommId(0x77), CommId(0), Stage::Req, RejReason::TIMEOUT);
    side.receive(&CmMessage::Rej(refusal));
    assert_eq!(side.events(), [Event::Rejected { conn, rej: Box::new(refusal) }]);
    assert_eq!(side.manager.accept(side.now, conn, &Default::default()), Err(CallError::Unknown));
}

#[test]
fn disconnecting_ends_in_time_wait_and_answers_duplicates_there() {
    let (mut side, conn, local, remote) = active();
    side.manager.disconnect(side.now, conn).unwrap();
    let first = side.sent();
    let [CmMessage::Dreq(sent)] = first.as_slice() else { panic!("{first:?}") };
    assert_eq!(sent.remote_qpn, Qpn::new(0x31));
    side.tick();
    assert_eq!(side.sent(), first);
    side.receive(&drep(remote, local));
    assert_eq!(side.events(), [Event::Disconnected { conn, cause: Cause::Agreed }]);
    side.receive(&drep(remote, local));
    // The peer also sent DREQ, and has not received a DREP for it.
    side.receive(&dreq_to(0x21, remote, local));
    assert_eq!(side.names(), ["DREP"]);
    assert_eq!(side.manager.disconnect(side.now, conn), Ok(()));
    assert_eq!(side.names(), [""; 0]);
    assert_eq!(side.manager.state(conn), Some("TimeWait"));
    let (events, _) = side.until_told();
    assert_eq!(events, [Event::TimewaitExit { conn }]);
    assert!(side.manager.is_empty());
    // A DREQ for a connection that no longer exists is answered, too.
    side.receive(&dreq_to(0x21, remote, local));
    assert_eq!(side.names(), ["DREP"]);
}

#[test]
fn a_peer_that_disconnects_is_answered_at_once() {
    let (mut side, conn, local, remote) = active();
    side.receive(&dreq_to(0x21, remote, local));
    side.receive(&dreq_to(0x21, remote, local));
    assert_eq!(side.names(), ["DREP", "DREP"]);
    assert_eq!(side.events(), [Event::Disconnected { conn, cause: Cause::Peer }]);
}

#[test]
fn both_may_disconnect_at_once() {
    let (mut side, conn, local, remote) = active();
    side.manager.disconnect(side.now, conn).unwrap();
    side.receive(&dreq_to(0x21, remote, local));
    side.receive(&drep(remote, local));
    assert_eq!(side.names(), ["DREQ", "DREP"]);
    assert_eq!(side.events(), [Event::Disconnected { conn, cause: Cause::Peer }]);
}

#[test]
fn a_peer_that_died_is_disconnected_all_the_same() {
    let (mut side, conn, ..) = active();
    side.manager.disconnect(side.now, conn).unwrap();
    let (events, sent) = side.until_told();
    assert_eq!(events, [Event::Disconnected { conn, cause: Cause::NoAnswer }]);
    assert_eq!(sent, ["DREQ"; 16]);
}

#[test]
fn a_connection_may_be_over_before_both_know_that_it_began() {
    // The peer has received REP, and its RTU was lost.
    let (mut side, conn, local, remote) = accepted();
    side.receive(&dreq_to(0x31, remote, local));
    assert_eq!(side.names(), ["DREP"]);
    assert_eq!(side.events(), [Event::Disconnected { conn, cause: Cause::Peer }]);
    // The peer has not received REP: its next REQ is refused.
    let (mut side, conn, ..) = accepted();
    side.manager.disconnect(side.now, conn).unwrap();
    side.receive(&CmMessage::Req(req(0x77, 0x21)));
    let sent = side.sent();
    let [CmMessage::Dreq(_), CmMessage::Rej(rej)] = sent.as_slice() else { panic!("{sent:?}") };
    assert_eq!(rej.reason, RejReason::STALE);
    // The reverse: the peer disconnects before this side has sent RTU.
    let mut side = Side::new(A);
    let (conn, req) = side.connect();
    side.receive(&CmMessage::Rep(rep(0x55, &req)));
    side.receive(&dreq_to(0x21, CommId(0x55), req.local_id));
    let events = side.events();
    assert_eq!(events[1..], [Event::Disconnected { conn, cause: Cause::Peer }]);
}

#[test]
fn an_answer_to_nobody_is_refused() {
    let mut side = Side::new(A);
    let (conn, req) = side.connect();
    side.manager.destroy(side.now, conn);
    assert_eq!(side.names(), ["REJ"]);
    side.receive(&CmMessage::Rep(rep(0x55, &req)));
    let sent = side.sent();
    let [CmMessage::Rej(rej)] = sent.as_slice() else { panic!("{sent:?}") };
    assert_eq!((rej.reason, rej.remote_id), (RejReason::INVALID_COMM_ID, CommId(0x55)));
}

#[test]
fn requests_that_cannot_be_granted_are_refused_with_the_reason() {
    let refused = |change: &dyn Fn(&mut feroce_wire::cm::Req)| {
        let mut side = Side::new(B);
        side.listen();
        let mut req = req(0x77, 0x21);
        change(&mut req);
        side.receive(&CmMessage::Req(req));
        assert_eq!(side.events(), []);
        assert!(side.manager.is_empty());
        match side.sent().as_slice() {
            [CmMessage::Rej(rej)] => rej.reason,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused(&|r| r.service_id.0 += 1), RejReason::INVALID_SERVICE_ID);
    assert_eq!(refused(&|r| r.service = 2), RejReason::INVALID_TRANSPORT);
    assert_eq!(refused(&|r| r.mtu_code = 9), RejReason::INVALID_MTU);
    assert_eq!(refused(&|r| r.primary.local_gid = Gid([7; 16])), RejReason::INVALID_GID);
    assert_eq!(refused(&|r| r.private_data[1] = 0x50), RejReason::UNSUPPORTED);
}

#[test]
fn messages_of_somebody_else_are_ignored() {
    let (mut side, conn, local, remote) = active();
    let stranger = Peer::new(A, Gid::from_ipv4([10, 77, 0, 3]));
    side.receive_from(stranger, &dreq_to(0x21, remote, local));
    side.receive_from(stranger, &CmMessage::Rej(rej(remote, local, Stage::Rep, RejReason::STALE)));
    assert_eq!(side.events(), []);
    assert_eq!(side.names(), [""; 0]);
    assert_eq!(side.manager.state(conn), Some("Established"));
    assert!(side.manager.counters().drop_wrong_peer >= 2);
    // The right peer, with a wrong communication ID of its own.
    side.receive(&dreq_to(0x21, CommId(1), local));
    assert_eq!(side.manager.state(conn), Some("Established"));
}

#[test]
fn what_was_lost_is_repeated_long_before_it_counts() {
    let config = Config { seed: 7, probe_ns: 200_000_000, max_retries: 1, ..Config::default() };
    let mut side = Side::with(A, config);
    let sent_at = side.now;
    let (conn, first) = side.connect();
    side.tick();
    assert_eq!(side.now, sent_at.plus_nanos(200_000_000));
    assert_eq!(side.sent(), [CmMessage::Req(first)]);
    // Probes do not shorten the time after which a silent peer counts as unreachable.
    let (events, _) = side.until_told();
    assert_eq!(events, [Event::Unreachable { conn }]);
    let interval_ns = 2 * code_ns(18) + code_ns(20);
    assert_eq!(side.now, sent_at.plus_nanos(2 * interval_ns));
}

#[test]
fn alternate_paths_are_not_supported() {
    let (mut side, _, local, remote) = active();
    let lap =
        Lap { local_id: remote, remote_id: local, remote_qpn: Qpn::new(0x31), rest: [0; 217] };
    side.receive(&CmMessage::Lap(lap));
    let sent = side.sent();
    let [CmMessage::Apr(Apr { status, local_id, remote_id, .. })] = sent.as_slice() else {
        panic!("{sent:?}")
    };
    assert_eq!((*status, *local_id, *remote_id), (2, local, remote));
}

#[test]
fn destroying_tells_the_peer_and_nobody_else() {
    let mut side = Side::new(B);
    side.listen();
    let request = CmMessage::Req(req(0x77, 0x21));
    side.receive(&request);
    let conn = side.request();
    side.manager.destroy(side.now, conn);
    let sent = side.sent();
    assert!(matches!(sent.as_slice(), [CmMessage::Rej(r)] if r.reason == RejReason::CONSUMER));
    let (mut side, conn, local, remote) = active();
    side.manager.destroy(side.now, conn);
    assert_eq!(side.names(), ["DREQ"]);
    side.receive(&drep(remote, local));
    side.tick();
    assert!(side.manager.is_empty());
    assert_eq!(side.events(), []);
}

#[test]
fn calls_in_the_wrong_state_change_nothing() {
    let (mut side, conn, ..) = active();
    let reject = side.manager.reject(side.now, conn, RejReason::CONSUMER, &[0; 148]);
    assert_eq!(reject, Err(CallError::WrongState));
    assert_eq!(side.manager.ready(conn), Err(CallError::WrongState));
    assert_eq!(side.manager.state(conn), Some("Established"));
    assert_eq!(side.names(), [""; 0]);
}

#[test]
fn identifiers_carry_the_prefix() {
    let config = Config { id_prefix: Some(0xa5), ..Config::default() };
    let mut side = Side::with(A, config);
    for _ in 0..10 {
        assert_eq!(side.connect().1.local_id.0 >> 24, 0xa5);
    }
}
