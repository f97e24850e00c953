//! Requests that arrive shortly before the program starts to listen.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use crate::common::{A, B, SERVICE, Side, peer, req};
use feroce_cm::rdma::sidr_data;
use feroce_cm::{Accepts, Ask, Config, Event, Serves};
use feroce_wire::cm::{CmMessage, RejReason, SidrReq, SidrStatus};

const PATIENCE_NS: u64 = 100_000_000;

fn patient() -> Side {
    Side::with(B, Config { seed: 7, patience_ns: PATIENCE_NS, max_early: 2, ..Config::default() })
}

#[test]
fn who_listens_in_time_gets_the_request_once() {
    let mut side = patient();
    let request = CmMessage::Req(req(0x77, 0x21));
    side.receive(&request);
    side.now = side.now.plus_nanos(PATIENCE_NS / 2);
    side.receive(&request);
    assert_eq!((side.names(), side.events()), (vec![], vec![]));
    side.listen();
    let conn = side.request();
    side.accept(conn);
    assert_eq!(side.manager.counters().refused_no_listener, 0);
    // Nothing is left that would be refused later.
    side.manager.handle_timeout(side.now.plus_nanos(PATIENCE_NS));
    assert_eq!(side.names(), [""; 0]);
}

#[test]
fn who_listens_for_something_else_does_not() {
    let mut side = patient();
    side.receive(&CmMessage::Req(req(0x77, 0x21)));
    let mut other = SERVICE;
    other.0 += 1;
    side.manager.listen(side.now, other, Accepts::Any, Serves::Connections, 8).unwrap();
    side.manager.listen(side.now, SERVICE, Accepts::Only(A), Serves::Connections, 8).unwrap();
    assert_eq!((side.names(), side.events()), (vec![], vec![]));
    side.listen();
    side.request();
}

#[test]
fn who_listens_too_late_is_too_late() {
    let mut side = patient();
    let at = side.now.plus_nanos(PATIENCE_NS);
    side.receive(&CmMessage::Req(req(0x77, 0x21)));
    assert_eq!(side.manager.poll_timeout(), Some(at));
    side.tick();
    let sent = side.sent();
    let [CmMessage::Rej(rej)] = sent.as_slice() else { panic!("{sent:?}") };
    assert_eq!(rej.reason, RejReason::INVALID_SERVICE_ID);
    side.listen();
    assert_eq!((side.events(), side.manager.poll_timeout()), (vec![], None));
}

#[test]
fn only_so_many_wait() {
    let mut side = patient();
    for id in 1..=3 {
        side.receive(&CmMessage::Req(req(id, id)));
    }
    assert_eq!(side.names(), ["REJ"]);
    side.tick();
    assert_eq!(side.names(), ["REJ", "REJ"]);
    assert_eq!(side.manager.counters().refused_no_listener, 3);
}

/// A SIDR_REQ, as a peer at A sends it.
fn question() -> SidrReq {
    let mut side = Side::new(A);
    let at = |gid, port| (feroce_cm::rdma::ip_of(gid), port).into();
    let private_data = sidr_data(at(A, 40_000), at(B, 7471), b"who?").unwrap();
    side.manager.ask(side.now, &Ask { peer: peer(A), service: SERVICE, private_data });
    match side.sent().as_slice() {
        [CmMessage::SidrReq(req)] => *req,
        other => panic!("{other:?}"),
    }
}

#[test]
fn questions_for_datagram_services_wait_as_well() {
    let mut side = patient();
    side.receive(&CmMessage::SidrReq(question()));
    assert_eq!((side.names(), side.events()), (vec![], vec![]));
    side.manager.listen(side.now, SERVICE, Accepts::Any, Serves::Datagrams, 8).unwrap();
    assert!(matches!(side.events().as_slice(), [Event::SidrRequest(_)]));
    let mut side = patient();
    side.receive(&CmMessage::SidrReq(question()));
    side.tick();
    let sent = side.sent();
    let [CmMessage::SidrRep(rep)] = sent.as_slice() else { panic!("{sent:?}") };
    assert_eq!(rep.status, SidrStatus::UNSUPPORTED);
}
