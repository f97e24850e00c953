//! A queue pair of the peer that is in a connection here appears in another: has the peer lost the
//! connection, or does an attacker use the peer's address?
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use crate::common::{A, B, Side, peer, rep, req};
use feroce_cm::{Cause, ConnId, Event, Peer};
use feroce_wire::Qpn;
use feroce_wire::cm::{CmMessage, CommId, Drep, Dreq, Rej, RejReason, Req, Rtu, Stage};

/// The queue pair of the peer.
const PEERS_QP: u32 = 0x21;

/// A connection that B has accepted from A, and A's communication ID.
fn established() -> (Side, ConnId, CommId) {
    let mut side = Side::new(B);
    side.listen();
    let first = req(0x77, PEERS_QP);
    side.receive(&CmMessage::Req(first));
    let conn = side.request();
    side.accept(conn);
    let (local_id, remote_id) = (first.local_id, conn.comm_id());
    side.receive(&CmMessage::Rtu(Rtu { local_id, remote_id, private_data: [0; 224] }));
    assert_eq!(side.events(), [Event::Established { conn }]);
    (side, conn, first.local_id)
}

/// The REQ that names the queue pair of the connection; A sends it after a restart, or an attacker
/// sends it with A's address.
fn another() -> Req {
    req(0x78, PEERS_QP)
}

/// The one message that was sent since the last call, which must be a DREQ.
fn question(side: &mut Side) -> Dreq {
    match side.sent().as_slice() {
        [CmMessage::Dreq(dreq)] => *dreq,
        other => panic!("{other:?}"),
    }
}

fn drep(local_id: CommId, remote_id: CommId) -> CmMessage {
    CmMessage::Drep(Drep { local_id, remote_id, private_data: [0; 224] })
}

#[test]
fn a_peer_that_has_lost_the_connection_gets_a_new_one() {
    let (mut side, old, remote) = established();
    side.receive(&CmMessage::Req(another()));
    let asked = question(&mut side);
    assert_eq!((asked.local_id, asked.remote_id), (old.comm_id(), remote));
    assert_eq!(side.events(), []);
    side.receive(&drep(remote, old.comm_id()));
    let events = side.events();
    let [Event::Disconnected { conn, cause: Cause::Refused }, Event::Request(incoming)] =
        events.as_slice()
    else {
        panic!("{events:?}")
    };
    assert_eq!((*conn, incoming.req.local_id), (old, another().local_id));
    side.accept(incoming.conn);
    assert_eq!(side.manager.counters().stale_ended, 1);
}

#[test]
fn a_peer_that_has_the_connection_keeps_it() {
    // The question reaches the peer, which has the connection and discards the question.
    let mut peers = Side::new(A);
    let (theirs, request) = peers.connect();
    peers.receive(&CmMessage::Rep(rep(0x55, &request)));
    peers.manager.ready(theirs).unwrap();
    let (_, _) = (peers.sent(), peers.events());
    let mut remote_qpn = Qpn::QP0;
    for _ in 0..2 {
        let (local_id, remote_id) = (CommId(0x55), request.local_id);
        let dreq = Dreq { local_id, remote_id, remote_qpn, private_data: [0; 220] };
        peers.receive(&CmMessage::Dreq(dreq));
        assert_eq!((peers.sent(), peers.events()), (vec![], vec![]));
        remote_qpn = Qpn::QP1;
    }
    assert_eq!(peers.manager.counters().drop_wrong_qp, 2);

    let (mut side, old, _) = established();
    side.receive(&CmMessage::Req(another()));
    let asked = question(&mut side);
    assert_eq!(asked.remote_qpn, Qpn::QP0, "a queue pair that no connection has");
    // Without an answer the connection stays, and the REQ is refused.
    let mut sent = Vec::new();
    while side.manager.poll_timeout().is_some() {
        side.tick();
        sent.extend(side.sent());
    }
    let [CmMessage::Dreq(_), CmMessage::Dreq(_), CmMessage::Rej(rej)] = sent.as_slice() else {
        panic!("{sent:?}")
    };
    assert_eq!((rej.reason, rej.remote_id), (RejReason::STALE, another().local_id));
    assert_eq!((side.manager.state(old), side.events()), (Some("Established"), vec![]));
    // The question can be raised again.
    side.receive(&CmMessage::Req(another()));
    question(&mut side);
}

#[test]
fn many_forged_requests_raise_one_question() {
    let (mut side, old, remote) = established();
    for n in 0..1000 {
        side.receive(&CmMessage::Req(Req { local_id: CommId(0x1000 + n), ..another() }));
    }
    assert_eq!(side.names(), ["DREQ"]);
    assert_eq!((side.manager.len(), side.events()), (1, vec![]));
    // Answers with wrong identifiers, or from elsewhere, are not answers.
    let elsewhere = Peer { remote: B.into(), ..peer(B) };
    side.receive(&drep(CommId(0x76), old.comm_id()));
    side.receive_from(elsewhere, &drep(remote, old.comm_id()));
    let (local_id, remote_id) = (CommId(0x76), old.comm_id());
    let (info, private_data) = ([0; 72], [0; 148]);
    let reason = RejReason::INVALID_COMM_ID;
    let rej =
        Rej { local_id, remote_id, stage: Stage::Rep, info_len: 0, reason, info, private_data };
    side.receive(&CmMessage::Rej(rej));
    side.receive(&CmMessage::Rej(Rej { local_id: remote, remote_id: CommId(0), ..rej }));
    assert_eq!(side.manager.state(old), Some("Established"));
}

#[test]
fn a_connection_that_ends_meanwhile_makes_room() {
    let (mut side, old, remote) = established();
    side.receive(&CmMessage::Req(another()));
    question(&mut side);
    // The peer itself ends the old connection.
    let (local_id, remote_id, remote_qpn) = (remote, old.comm_id(), Qpn::new(0x31));
    let dreq = Dreq { local_id, remote_id, remote_qpn, private_data: [0; 220] };
    side.receive(&CmMessage::Dreq(dreq));
    assert_eq!(side.names(), ["DREP"]);
    let events = side.events();
    assert!(matches!(events.as_slice(), [Event::Disconnected { .. }, Event::Request(_)]));
}

#[test]
fn an_answer_with_a_queue_pair_in_use_waits_for_the_peer() {
    for is_lost in [true, false] {
        let mut side = Side::new(A);
        let (old, first) = side.connect();
        side.receive(&CmMessage::Rep(rep(0x55, &first)));
        side.manager.ready(old).unwrap();
        let (_, _) = (side.sent(), side.events());
        let (new, second) = side.connect();
        side.receive(&CmMessage::Rep(rep(0x56, &second)));
        question(&mut side);
        if is_lost {
            side.receive(&drep(CommId(0x55), first.local_id));
            let events = side.events();
            let [Event::Disconnected { conn, .. }, Event::Replied { conn: replied, .. }] =
                events.as_slice()
            else {
                panic!("{events:?}")
            };
            assert_eq!((*conn, *replied), (old, new));
        } else {
            let (events, _) = side.until_told();
            assert!(matches!(events.as_slice(), [Event::Rejected { conn, .. }] if *conn == new));
            assert_eq!(side.manager.state(old), Some("Established"));
        }
    }
}

#[test]
fn a_queue_pair_of_a_connection_that_is_not_established_is_refused() {
    let mut side = Side::new(B);
    side.listen();
    side.receive(&CmMessage::Req(req(0x77, PEERS_QP)));
    side.request();
    side.receive(&CmMessage::Req(another()));
    let sent = side.sent();
    assert!(matches!(sent.as_slice(), [CmMessage::Rej(r)] if r.reason == RejReason::STALE));
}
