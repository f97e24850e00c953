//! Bugs that the seeded swarm found, each as the smallest script that shows it.

use feroce_engine::{Config, QpAttr, QpInitAttr, QpState, QpType, SrqInitAttr, WcStatus};
use feroce_mem::Iova;
use feroce_testkit::script::{reth, seen};
use feroce_testkit::{ALL, OUR_PSN, PEER_PSN, Scripted};
use feroce_wire::{Op, Rkey};

fn state_of(s: &Scripted) -> QpState {
    s.qp.sq.state()
}

/// The network held a read request back; the read had been answered from its retransmission, and
/// the owner has rightly ended the registration since.
#[test]
fn a_late_duplicate_of_a_read_is_no_access_error_when_the_memory_is_gone() {
    let mut s = Scripted::rc();
    let region = std::sync::Arc::clone(&s.host.region);
    let key = s.host.engine.reg_mr(s.host.pd, region, 0, 64, Iova::ZeroBased, ALL).unwrap();
    let request = reth(0, Rkey(key.0), 16);
    let answer = s.send(Op::ReadRequest, PEER_PSN, true, &request);
    assert_eq!(seen(&answer), [(Op::ReadResponseOnly, PEER_PSN)]);
    drop(s.host.engine.dereg_mr(key).unwrap());
    assert_eq!(seen(&s.send(Op::ReadRequest, PEER_PSN, true, &request)), []);
    assert_eq!(s.host.engine.drops().drop_stale_duplicate, 1);
    assert_eq!(state_of(&s), QpState::Rts);
}

/// The peer has the answer and asks for the next; a late duplicate of its first request came in
/// between and is being answered again.
#[test]
fn an_answer_given_again_does_not_count_against_the_reads_outstanding() {
    let mut s = Scripted::rc_with(QpAttr { max_dest_rd_atomic: Some(1), ..QpAttr::default() });
    let request = reth(0, Rkey(s.host.lkey.0), 16);
    assert_eq!(seen(&s.send(Op::ReadRequest, PEER_PSN, true, &request)).len(), 1);
    let again = s.packet(Op::ReadRequest, PEER_PSN, true, &request);
    s.host.receive(s.now, &again);
    let answers = s.send(Op::ReadRequest, PEER_PSN + 1, true, &request);
    let expected = [(Op::ReadResponseOnly, PEER_PSN), (Op::ReadResponseOnly, PEER_PSN + 1)];
    assert_eq!(seen(&answers), expected);
    assert_eq!(state_of(&s), QpState::Rts);
}

/// A shared receive queue and a queue pair that takes from it may be of two protection domains:
/// the memory of a receive is of the domain in which the receive was posted.
#[test]
fn a_shared_receive_is_of_the_protection_domain_of_its_queue() {
    let mut queue = None;
    let mut s = Scripted::made(Config::default(), QpAttr::default(), OUR_PSN, |host| {
        let attr = SrqInitAttr { pd: host.pd, max_wr: 4, max_sge: 1, limit: 0, xrc: None };
        let (srq, posts) = host.engine.create_srq(attr).unwrap();
        queue = Some(posts);
        let pd = host.engine.alloc_pd().unwrap();
        QpInitAttr { pd, srq: Some(srq), ..host.init_attr(QpType::Rc) }
    });
    queue.unwrap().post(s.host.recv(3, 0, 16)).unwrap();
    s.send(Op::SendOnly, PEER_PSN, true, b"to be shared");
    let got = s.host.poll().unwrap();
    assert_eq!((got.wr_id, got.status, got.byte_len), (3, WcStatus::Success, 12));
    assert_eq!(s.host.read(0, 12), b"to be shared");
}
