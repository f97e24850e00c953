//! iWARP: operations over a stream that is cut anywhere, every byte checked.
#![expect(clippy::unwrap_used, reason = "a test")]

use feroce_engine::iwarp::{Begin, ReadyToReceive, StreamEnd, StreamSetup};
use feroce_engine::{
    AddrVec, Cqe, CreateError, Data, PostError, QpState, QpType, SendFlags, SendOp, SendWr,
    SgeList, WcFlags, WcOpcode, WcStatus,
};
use feroce_testkit::{Streams, TestQp, wr};
use feroce_train::InlineBytes;
use feroce_wire::Rkey;
use feroce_wire::iwarp::terminate::Cause;

/// What an initiator and a responder use.
fn setups(crc: bool, max_ulpdu: usize) -> (StreamSetup, StreamSetup) {
    let initiator = StreamSetup { crc, max_ulpdu, ..StreamSetup::INITIATOR };
    (initiator, StreamSetup { begin: Begin::Await(None), ..initiator })
}

fn ids(cqes: &[Cqe]) -> Vec<(u64, WcStatus)> {
    cqes.iter().map(|cqe| (cqe.wr_id, cqe.status)).collect()
}

fn post(qp: &mut TestQp, wr: SendWr) {
    qp.sq.post(wr).unwrap();
}

/// Every operation once, over a stream that arrives in pieces of `step` bytes.
fn exchange(crc: bool, max_ulpdu: usize, step: usize) {
    let mut streams = Streams::default();
    let (sa, sb) = setups(crc, max_ulpdu);
    let (mut qa, mut qb) = streams.connect(&sa, &sb);
    let sent = streams.a.fill(0, 3000, 1);
    let written = streams.a.fill(10_000, 5000, 2);
    let read = streams.b.fill(50_000, 2500, 3);
    for id in 0..3 {
        let at = 100_000 + id * 10_000;
        qb.rq.as_mut().unwrap().post(streams.b.recv(100 + id, at, 4000)).unwrap();
    }
    let pieces = [streams.a.sge(0, 7), streams.a.sge(7, 0), streams.a.sge(7, 2993)];
    post(&mut qa, wr(1, SendOp::Send, Data::Sges(SgeList::new(&pieces))));
    let target = streams.b.remote(20_000);
    post(&mut qa, wr(2, SendOp::Write(target), streams.a.data(10_000, 5000)));
    let source = streams.b.remote(50_000);
    post(&mut qa, wr(3, SendOp::Read(source), streams.a.data(30_000, 2500)));
    let hello = Data::Inline(InlineBytes::new(b"hello"));
    let solicited = SendFlags::SIGNALED | SendFlags::SOLICITED;
    post(&mut qa, SendWr { flags: solicited, ..wr(4, SendOp::Send, hello) });
    post(&mut qa, wr(5, SendOp::Send, Data::EMPTY));
    post(&mut qa, wr(6, SendOp::Write(target), Data::EMPTY));
    post(&mut qa, wr(7, SendOp::Read(source), Data::EMPTY));
    streams.run(|_| step);
    let done = streams.a.poll_all();
    let all: Vec<_> = (1..=7).map(|id| (id, WcStatus::Success)).collect();
    assert_eq!(ids(&done), all, "in the order of the queue");
    assert_eq!((done[2].opcode, done[2].byte_len), (WcOpcode::Read, 2500));
    let received = streams.b.poll_all();
    let lens: Vec<_> =
        received.iter().map(|cqe| (cqe.wr_id, cqe.byte_len, cqe.solicited)).collect();
    assert_eq!(lens, [(100, 3000, false), (101, 5, true), (102, 0, false)]);
    assert_eq!(streams.b.read(100_000, 3000), sent);
    assert_eq!(streams.b.read(103_000, 1000), [0; 1000]);
    assert_eq!(streams.b.read(110_000, 5), b"hello");
    assert_eq!(streams.b.read(20_000, 5000), written);
    assert_eq!(streams.a.read(30_000, 2500), read);
    assert!(streams.ends.iter().all(Vec::is_empty));
}

#[test]
fn every_byte_arrives_however_the_stream_is_cut() {
    for crc in [false, true] {
        for max_ulpdu in [40, 256, 1442, 64_768] {
            for step in [1, 2, 3, 13, 1460, usize::MAX] {
                exchange(crc, max_ulpdu, step);
            }
        }
    }
}

#[test]
fn a_send_behind_a_read_completes_after_it() {
    let mut streams = Streams::default();
    let (sa, sb) = setups(true, 200);
    let (mut qa, mut qb) = streams.connect(&sa, &sb);
    qb.rq.as_mut().unwrap().post(streams.b.recv(9, 0, 100)).unwrap();
    let source = streams.b.remote(50_000);
    post(&mut qa, wr(1, SendOp::Read(source), streams.a.data(30_000, 5000)));
    post(&mut qa, wr(2, SendOp::Send, streams.a.data(0, 10)));
    // The SEND arrives long before the response does.
    let mut sent_first = false;
    while streams.step(&mut |_| 100) {
        sent_first |= streams.b.poll().is_some_and(|cqe| cqe.wr_id == 9);
        if streams.a.poll().is_some_and(|cqe| cqe.wr_id == 1) {
            break;
        }
    }
    assert!(sent_first);
    streams.run(|_| 100);
    assert_eq!(ids(&streams.a.poll_all()), [(2, WcStatus::Success)]);
}

#[test]
fn no_more_reads_are_under_way_than_the_peer_holds() {
    let mut streams = Streams::default();
    let (sa, sb) = setups(true, 300);
    let sa = StreamSetup { ord: 2, ..sa };
    let (mut qa, _qb) = streams.connect(&sa, &StreamSetup { ird: 2, ..sb });
    let source = streams.b.fill(50_000, 4000, 9);
    for id in 0..20 {
        let from = streams.b.remote(50_000 + id * 200);
        post(&mut qa, wr(id, SendOp::Read(from), streams.a.data(30_000 + id * 200, 200)));
    }
    streams.run(|n| n);
    let all: Vec<_> = (0..20).map(|id| (id, WcStatus::Success)).collect();
    assert_eq!(ids(&streams.a.poll_all()), all);
    assert_eq!(streams.a.read(30_000, 4000), source);
}

#[test]
fn a_responder_waits_for_the_first_message() {
    for (announced, awaited) in [
        (Begin::Send, Begin::Await(None)),
        (Begin::Announce(ReadyToReceive::Write), Begin::Await(Some(ReadyToReceive::Write))),
        (Begin::Announce(ReadyToReceive::Read), Begin::Await(Some(ReadyToReceive::Read))),
        (Begin::Announce(ReadyToReceive::Send), Begin::Await(Some(ReadyToReceive::Send))),
    ] {
        let mut streams = Streams::default();
        let (sa, sb) = setups(true, 1442);
        let sa = StreamSetup { begin: announced, ..sa };
        let (mut qa, mut qb) = streams.connect(&sa, &StreamSetup { begin: awaited, ird: 0, ..sb });
        qa.rq.as_mut().unwrap().post(streams.a.recv(1, 0, 100)).unwrap();
        post(&mut qb, wr(2, SendOp::Send, Data::Inline(InlineBytes::new(b"first"))));
        streams.run(|n| n);
        let is_peer_to_peer = announced != Begin::Send;
        assert_eq!(streams.a.poll().is_some(), is_peer_to_peer, "{announced:?}");
        // What announces the initiator takes no receive, and messages go on from there.
        qb.rq.as_mut().unwrap().post(streams.b.recv(3, 0, 100)).unwrap();
        post(&mut qa, wr(4, SendOp::Send, Data::Inline(InlineBytes::new(b"second"))));
        streams.run(|n| n);
        let received = streams.b.poll_all();
        assert!(received.iter().any(|cqe| (cqe.wr_id, cqe.byte_len) == (3, 6)), "{announced:?}");
        assert_eq!(streams.ends, [vec![], vec![]]);
        if !is_peer_to_peer {
            assert_eq!(streams.a.poll_all().len(), 2, "the SEND of each");
        }
    }
}

#[test]
fn a_send_invalidates_a_key_and_its_completion_says_so() {
    let mut streams = Streams::default();
    let (sa, sb) = setups(true, 1442);
    let (mut qa, mut qb) = streams.connect(&sa, &sb);
    let region = std::sync::Arc::clone(&streams.b.region);
    let key = streams.b.engine.alloc_mr(streams.b.pd, region).unwrap();
    let reg = SendOp::Reg { key, offset: 0, len: 4096, iova: 0x1000, access: feroce_testkit::ALL };
    post(&mut qb, wr(1, reg, Data::EMPTY));
    qb.rq.as_mut().unwrap().post(streams.b.recv(2, 8192, 100)).unwrap();
    qb.rq.as_mut().unwrap().post(streams.b.recv(3, 8192, 100)).unwrap();
    // The responder may not send yet, but this sends nothing.
    streams.run(|n| n);
    assert_eq!(ids(&streams.b.poll_all()), [(1, WcStatus::Success)]);
    post(&mut qa, wr(4, SendOp::Send, Data::EMPTY));
    streams.run(|n| n);
    post(&mut qa, wr(5, SendOp::SendInv(Rkey(key.0)), streams.a.data(0, 8)));
    streams.run(|n| n);
    let received = streams.b.poll_all();
    let last = received.last().unwrap();
    assert_eq!((last.wr_id, last.flags, last.invalidated), (3, WcFlags::WITH_INV, Rkey(key.0)));
    let remote = feroce_engine::Remote { addr: 0x1000, rkey: Rkey(key.0) };
    post(&mut qa, wr(6, SendOp::Write(remote), streams.a.data(0, 8)));
    streams.run(|n| n);
    let end = StreamEnd::Terminated(Cause::TAGGED_INVALID_STAG);
    assert_eq!(streams.ends[1].iter().map(|e| e.end).collect::<Vec<_>>(), [end]);
}

#[test]
fn a_local_invalidate_waits_for_what_is_in_front_of_it() {
    let mut streams = Streams::default();
    let (sa, sb) = setups(true, 1442);
    let (mut qa, mut qb) = streams.connect(&sa, &sb);
    qb.rq.as_mut().unwrap().post(streams.b.recv(9, 0, 5000)).unwrap();
    let region = std::sync::Arc::clone(&streams.a.region);
    let key = streams.a.engine.alloc_mr(streams.a.pd, region).unwrap();
    let access = feroce_testkit::ALL;
    let reg = SendOp::Reg { key, offset: 0, len: 4096, iova: 0x1000, access };
    post(&mut qa, wr(1, reg, Data::EMPTY));
    let from = feroce_engine::Sge { addr: 0x1000, len: 4096, lkey: key };
    post(&mut qa, wr(2, SendOp::Send, Data::Sges(SgeList::from(from))));
    post(&mut qa, wr(3, SendOp::LocalInv(Rkey(key.0)), Data::EMPTY));
    streams.run(|_| 100);
    let all: Vec<_> = (1..=3).map(|id| (id, WcStatus::Success)).collect();
    assert_eq!(ids(&streams.a.poll_all()), all);
    assert_eq!(streams.b.poll_all()[0].byte_len, 4096);
}

#[test]
fn the_end_of_a_stream_flushes_both_ends() {
    let mut streams = Streams::default();
    let (sa, sb) = setups(true, 1442);
    let (mut qa, mut qb) = streams.connect(&sa, &sb);
    qa.rq.as_mut().unwrap().post(streams.a.recv(1, 0, 100)).unwrap();
    qb.rq.as_mut().unwrap().post(streams.b.recv(2, 0, 100)).unwrap();
    let now = streams.now;
    streams.a.modify(now, qa.qpn, &feroce_engine::QpAttr::to(QpState::Err));
    streams.run(|n| n);
    assert_eq!(ids(&streams.a.poll_all()), [(1, WcStatus::Flushed)]);
    assert_eq!(ids(&streams.b.poll_all()), [(2, WcStatus::Flushed)]);
    assert_eq!(streams.ends[1].iter().map(|e| e.end).collect::<Vec<_>>(), [StreamEnd::Closed]);
    assert_eq!((qa.sq.state(), qb.sq.state()), (QpState::Err, QpState::Err));
    // What is posted later is flushed, too.
    post(&mut qb, wr(7, SendOp::Send, Data::EMPTY));
    streams.run(|n| n);
    assert_eq!(ids(&streams.b.poll_all()), [(7, WcStatus::Flushed)]);
}

#[test]
fn what_iwarp_does_not_have_is_refused() {
    let mut streams = Streams::default();
    let (sa, sb) = setups(true, 1442);
    let (mut qa, _qb) = streams.connect(&sa, &sb);
    let remote = streams.b.remote(0);
    for op in [
        SendOp::SendImm(feroce_wire::Imm(1)),
        SendOp::WriteImm(remote, feroce_wire::Imm(1)),
        SendOp::FetchAdd { remote, add: 1 },
        SendOp::AtomicWrite(remote),
    ] {
        let refused = qa.sq.post(wr(1, op, streams.a.data(0, 8)));
        assert_eq!(refused, Err(PostError::OpNotSupported), "{op:?}");
    }
    let two = Data::Sges(SgeList::new(&[streams.a.sge(0, 4), streams.a.sge(8, 4)]));
    assert_eq!(qa.sq.post(wr(2, SendOp::Read(remote), two)), Err(PostError::TooManySges));
    let host = &mut streams.a;
    for qp_type in [QpType::Uc, QpType::Ud, QpType::XrcIni] {
        let created = host.engine.create_qp(host.init_attr(qp_type));
        let unsupported = CreateError::Unsupported("iWARP has reliable connections only");
        assert_eq!(created.map(|_| ()), Err(unsupported), "{qp_type:?}");
    }
    let handle = host.engine.create_ah(host.pd, AddrVec::default());
    assert_eq!(handle, Err(CreateError::Unsupported("iWARP has no datagrams")));
}
