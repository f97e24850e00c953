//! Requests for datagram services, rule by rule.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use crate::common::{A, B, Side, peer, req};
use feroce_cm::rdma::{PortSpace, UDP_QKEY, sidr_data};
use feroce_cm::{Accepts, Ask, ConnId, Event, Reply, Serves};
use feroce_wire::Qpn;
use feroce_wire::cm::{CmMessage, RejReason, Req, ServiceId, SidrRep, SidrReq, SidrStatus};

const SERVICE: ServiceId = ServiceId::ip(PortSpace::Udp, 7174);

fn ask() -> (Side, ConnId, SidrReq) {
    let mut side = Side::new(A);
    let at = |gid, port| (feroce_cm::rdma::ip_of(gid), port).into();
    let private_data = sidr_data(at(A, 40_000), at(B, 7174), b"who?").unwrap();
    let ask = Ask { peer: peer(A), service: SERVICE, private_data };
    let conn = side.manager.ask(side.now, &ask);
    match side.sent().as_slice() {
        [CmMessage::SidrReq(req)] => (side, conn, *req),
        other => panic!("{other:?}"),
    }
}

fn asked(req: &SidrReq) -> (Side, ConnId) {
    let mut side = Side::new(B);
    side.manager.listen(side.now, SERVICE, Accepts::Any, Serves::Datagrams, 2).unwrap();
    side.receive(&CmMessage::SidrReq(*req));
    match side.events().as_slice() {
        [Event::SidrRequest(incoming)] => {
            assert_eq!(incoming.ip.unwrap().src_port, 40_000);
            assert_eq!(&incoming.req.private_data[36..40], b"who?");
            (side, incoming.conn)
        }
        other => panic!("{other:?}"),
    }
}

/// A REQ for the service.
fn connection() -> Req {
    Req { service_id: SERVICE, ..req(1, 2) }
}

/// What a listener does with a request of the kind that it is not for, however many come.
fn refused(serves: Serves, message: &CmMessage) -> CmMessage {
    let mut side = Side::new(B);
    side.manager.listen(side.now, SERVICE, Accepts::Any, serves, 1).unwrap();
    let mut answers = Vec::new();
    for _ in 0..4 {
        side.receive(message);
        answers.append(&mut side.sent());
    }
    assert_eq!((side.events(), side.manager.counters().refused_invalid), (vec![], 4));
    assert!(answers.iter().all(|answer| answer == &answers[0]) && answers.len() == 4);
    // None of them took a place that those of the other kind need.
    match serves {
        Serves::Connections => side.receive(&CmMessage::Req(connection())),
        Serves::Datagrams => side.receive(&CmMessage::SidrReq(ask().2)),
    }
    assert_eq!(side.events().len(), 1);
    answers.swap_remove(0)
}

#[test]
fn requests_of_the_other_kind_are_refused_and_take_no_place() {
    let told = refused(Serves::Datagrams, &CmMessage::Req(connection()));
    let CmMessage::Rej(rej) = told else { panic!("{told:?}") };
    assert_eq!((rej.remote_id.0, rej.reason), (1, RejReason::INVALID_TRANSPORT));
    let told = refused(Serves::Connections, &CmMessage::SidrReq(ask().2));
    let CmMessage::SidrRep(rep) = told else { panic!("{told:?}") };
    assert_eq!(rep.status, SidrStatus::UNSUPPORTED);
}

fn answer(side: &mut Side) -> SidrRep {
    match side.sent().as_slice() {
        [CmMessage::SidrRep(rep)] => *rep,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_service_is_found() {
    let (mut client, conn, req) = ask();
    let (mut server, incoming) = asked(&req);
    // The consumer has not decided yet; duplicates change nothing.
    server.receive(&CmMessage::SidrReq(req));
    assert_eq!((server.events(), server.names()), (vec![], vec![]));
    let reply = Reply { qpn: Qpn::new(0xb4), qkey: UDP_QKEY, private_data: [8; 136] };
    server.manager.reply(server.now, incoming, &reply).unwrap();
    let rep = answer(&mut server);
    assert_eq!((rep.status, rep.qpn, rep.qkey), (SidrStatus::SUCCESS, reply.qpn, UDP_QKEY));
    assert_eq!((rep.service_id, rep.request_id), (SERVICE, req.request_id));
    // The answer was lost: a duplicate of the request gets the same answer.
    server.receive(&CmMessage::SidrReq(req));
    assert_eq!(answer(&mut server), rep);
    client.receive(&CmMessage::SidrRep(rep));
    client.receive(&CmMessage::SidrRep(rep));
    assert_eq!(client.events(), [Event::SidrReplied { conn, rep: Box::new(rep) }]);
    server.tick();
    assert!(client.manager.is_empty() && server.manager.is_empty());
    assert_eq!(server.events(), []);
}

/// The answer is not retransmitted: the address may be that of a victim.
#[test]
fn a_request_draws_one_answer() {
    let (_, _, req) = ask();
    let (mut server, incoming) = asked(&req);
    let reply = Reply { qpn: Qpn::new(0xb4), qkey: UDP_QKEY, private_data: [8; 136] };
    server.manager.reply(server.now, incoming, &reply).unwrap();
    let mut answers = server.names();
    while server.manager.poll_timeout().is_some() {
        server.tick();
        answers.extend(server.names());
    }
    assert_eq!(answers, ["SIDR_REP"]);
}

#[test]
fn a_service_that_nobody_offers_is_refused() {
    let (_, _, req) = ask();
    let mut server = Side::new(B);
    server.receive(&CmMessage::SidrReq(req));
    assert_eq!(answer(&mut server).status, SidrStatus::UNSUPPORTED);
    let (mut server, incoming) = asked(&req);
    server.manager.reject(server.now, incoming, RejReason::CONSUMER, &[5; 148]).unwrap();
    let rep = answer(&mut server);
    assert_eq!((rep.status, rep.private_data), (SidrStatus::REJECTED, [5; 136]));
}

#[test]
fn a_request_that_nobody_hears_is_given_up() {
    let (mut client, conn, _) = ask();
    let (events, sent) = client.until_told();
    assert_eq!(events, [Event::Unreachable { conn }]);
    assert_eq!(sent, ["SIDR_REQ"; 15]);
    assert!(client.manager.is_empty());
}
