//! Messages of unknown senders cost bounded memory and do not disturb connections.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod common;

use common::{A, B, Side, rep, req};
use feroce_cm::{Accepts, Config, Event, Peer};
use feroce_wire::Gid;
use feroce_wire::cm::{CmMessage, CommId, Dreq, RejReason, Req, ServiceId};
use feroce_wire::{Qpn, mad::MAD_LEN};

/// A REQ from the unknown sender number `n`.
fn stranger(n: u32) -> (Peer, Req) {
    let gid = Gid::from_ipv4((0xac10_0000 | n >> 4).to_be_bytes());
    let mut req = req(n + 1, n + 2);
    req.primary.local_gid = gid;
    (Peer { local: B, remote: gid }, req)
}

#[test]
fn a_backlog_that_is_full_refuses() {
    let mut side = Side::new(B);
    let listener = side.manager.listen(side.now, common::SERVICE, Accepts::Any, 2).unwrap();
    for n in 0..3 {
        let (from, req) = stranger(n);
        side.receive_from(from, &CmMessage::Req(req));
    }
    assert_eq!(side.events().len(), 2);
    let sent = side.sent();
    assert!(matches!(sent.as_slice(), [CmMessage::Rej(r)] if r.reason == RejReason::NO_RESOURCES));
    // When the consumer has taken one request, the backlog has room for another.
    side.manager.taken(listener);
    let (from, req) = stranger(3);
    side.receive_from(from, &CmMessage::Req(req));
    assert_eq!(side.events().len(), 1);
}

#[test]
fn requests_that_nobody_confirms_are_bounded() {
    let config = Config { max_half_open: 50, answers_per_second: 100, ..Config::default() };
    let mut side = Side::with(B, config);
    side.manager.listen(side.now, common::SERVICE, Accepts::Any, u32::MAX).unwrap();
    for n in 0..1000 {
        let (from, req) = stranger(n);
        side.receive_from(from, &CmMessage::Req(req));
    }
    assert_eq!(side.manager.len(), 50);
    assert_eq!(side.events().len(), 50);
    assert_eq!(side.manager.counters().drop_half_open_full, 950);
}

#[test]
fn answers_to_strangers_are_rationed() {
    let config = Config { answers_per_second: 1000, ..Config::default() };
    let mut side = Side::with(B, config);
    for n in 0..5000 {
        let (from, req) = stranger(n);
        side.receive_from(from, &CmMessage::Req(req));
    }
    let sent = side.sent();
    assert_eq!(sent.len(), 100);
    assert!(sent.iter().all(|m| m.name() == "REJ"));
    assert_eq!(side.manager.counters().drop_answer_rate, 4900);
    assert_eq!(side.manager.counters().refused_no_listener, 5000);
    assert!(side.manager.is_empty());
}

#[test]
fn what_is_remembered_is_bounded_and_its_end_is_told() {
    let config = Config { max_remembered: 10, ..Config::default() };
    let mut side = Side::with(B, config);
    side.manager.listen(side.now, common::SERVICE, Accepts::Any, u32::MAX).unwrap();
    let mut ended = Vec::new();
    for n in 0..30 {
        let (from, req) = stranger(n);
        side.receive_from(from, &CmMessage::Req(req));
        let conn = side.request();
        side.accept(conn);
        let (local_id, remote_id) = (req.local_id, conn.comm_id());
        let (remote_qpn, private_data) = (Qpn::new(0x31), [0; 220]);
        let dreq = Dreq { local_id, remote_id, remote_qpn, private_data };
        side.receive_from(from, &CmMessage::Dreq(dreq));
        assert_eq!(side.names(), ["DREP"]);
        for event in side.events() {
            match event {
                Event::Disconnected { conn: over, .. } => assert_eq!(over, conn),
                Event::TimewaitExit { conn } => ended.push(conn),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!((side.manager.len(), ended.len()), (10, 20));
    assert_eq!(side.manager.counters().forgotten_early, 20);
}

#[test]
fn a_flood_leaves_connections_alone() {
    let mut side = Side::new(A);
    side.manager.listen(side.now, ServiceId(9), Accepts::Any, 4).unwrap();
    let (conn, request) = side.connect();
    side.receive(&CmMessage::Rep(rep(0x55, &request)));
    side.manager.ready(conn).unwrap();
    let (_, _) = (side.sent(), side.events());
    let mut random = fastrand::Rng::with_seed(5);
    let mut bytes = [0; MAD_LEN];
    for round in 0..20_000_u32 {
        random.fill(&mut bytes);
        // All have a valid header, and every third names the connection.
        bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
        bytes[16..18].copy_from_slice(&[0, 0x10 + (round % 11) as u8]);
        if round % 3 == 0 {
            bytes[28..32].copy_from_slice(&request.local_id.0.to_be_bytes());
        }
        let stranger = Peer { local: A, remote: Gid::from_ipv4([10, 0, 0, round as u8]) };
        side.manager.handle_mad(side.now, stranger, &bytes);
        // The peer itself sends messages whose communication IDs are not those of the connection.
        if CommId(u32::from_be_bytes(bytes[24..28].try_into().unwrap())) != CommId(0x55)
            && bytes[17] != 0x12
            && bytes[17] != 0x16
        {
            side.manager.handle_mad(side.now, common::peer(A), &bytes);
        }
        side.manager.handle_mad(side.now, stranger, &bytes[..round as usize % MAD_LEN]);
    }
    assert_eq!(side.manager.state(conn), Some("Established"));
    assert_eq!(side.manager.len(), 1);
    assert_eq!(side.events(), []);
    let counters = side.manager.counters();
    let answered = counters.sent + counters.drop_answer_rate + counters.drop_queue_full;
    assert!(answered < counters.received);
}
