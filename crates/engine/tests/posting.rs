//! Posting: what is refused at once, what waits, what is flushed.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use feroce_engine::{
    AddrVec, Data, Dest, FlushKind, PostError, QpAttr, QpCap, QpInitAttr, QpState, QpType, RecvWr,
    Remote, SendFlags, SendOp, SendWr, Sge, SgeList, WcOpcode, WcStatus,
};
use feroce_mem::{Access, Bind};
use feroce_testkit::{Pair, QKEY, TestQp, wr};
use feroce_train::InlineBytes;
use feroce_wire::{Imm, Lkey, Qpn, Rkey, Srqn};

fn inline(len: usize) -> Data {
    Data::Inline(InlineBytes::new(&vec![7; len]))
}

fn ids(pair: &mut Pair) -> Vec<(u64, WcStatus)> {
    pair.a.poll_all().iter().map(|c| (c.wr_id, c.status)).collect()
}

/// A datagram to an arbitrary queue pair number.
fn datagram(pair: &mut Pair, wr_id: u64, data: Data) -> SendWr {
    let av = AddrVec { dgid: pair.b.gid, ..AddrVec::default() };
    let ah = pair.a.engine.create_ah(pair.a.pd, av).unwrap();
    SendWr { dest: Dest::Ud { ah, qpn: Qpn::new(9), qkey: QKEY }, ..wr(wr_id, SendOp::Send, data) }
}

/// One request of every kind.
fn every_op() -> Vec<SendOp> {
    let remote = Remote::default();
    let kind = FlushKind { global: true, ..Default::default() };
    let (mr, access) = (Lkey(1), Access::empty());
    let binding = Bind { mr, addr: 0, len: 0, access, zero_based: false };
    vec![
        SendOp::Send,
        SendOp::SendImm(Imm(1)),
        SendOp::SendInv(Rkey(1)),
        SendOp::Write(remote),
        SendOp::WriteImm(remote, Imm(1)),
        SendOp::Read(remote),
        SendOp::CmpSwap { remote, compare: 0, swap: 0 },
        SendOp::FetchAdd { remote, add: 0 },
        SendOp::AtomicWrite(remote),
        SendOp::Flush { remote, len: 0, kind },
        SendOp::BindMw { mw: Rkey(1), new_rkey: Rkey(2), binding },
        SendOp::LocalInv(Rkey(1)),
        SendOp::Reg { key: Lkey(1), offset: 0, len: 0, iova: 0, access },
    ]
}

#[test]
fn a_full_queue_takes_no_more() {
    let mut pair = Pair::default();
    let init = pair.a.init_attr(QpType::Rc);
    let small = QpCap { max_send_wr: 3, max_recv_wr: 2, ..init.cap };
    let (mut qa, mut qb) = {
        let (ia, ib) = (pair.a.init_attr(QpType::Rc), pair.b.init_attr(QpType::Rc));
        pair.connect_with(
            QpInitAttr { cap: small, ..ia },
            QpInitAttr { cap: small, ..ib },
            QpAttr::default(),
        )
    };
    let rq = qb.rq.as_mut().unwrap();
    for i in 0..2 {
        rq.post(pair.b.recv(i, 0, 10)).unwrap();
    }
    assert_eq!(rq.post(pair.b.recv(2, 0, 10)), Err(PostError::QueueFull));
    for i in 0..3 {
        qa.sq.post(wr(i, SendOp::Write(pair.b.remote(0)), pair.a.data(0, 10))).unwrap();
    }
    let more = wr(3, SendOp::Write(pair.b.remote(0)), pair.a.data(0, 10));
    assert_eq!(qa.sq.post(more.clone()), Err(PostError::QueueFull));
    // A request that is sent still occupies the queue until it completes.
    pair.a.transmit(pair.now);
    assert_eq!(qa.sq.post(more.clone()), Err(PostError::QueueFull));
    pair.wait(100_000_000);
    pair.run();
    assert_eq!(qa.sq.free(), 3);
    qa.sq.post(more).unwrap();
}

#[test]
fn more_elements_or_inline_data_than_asked_for_are_refused() {
    let mut pair = Pair::default();
    let (mut qa, _qb) = pair.connect(QpType::Rc);
    let sges = |n| SgeList::new(&vec![pair.a.sge(0, 1); n]);
    let send = |data| wr(1, SendOp::Send, data);
    assert_eq!(qa.sq.post(send(Data::Sges(sges(33)))), Err(PostError::TooManySges));
    assert_eq!(qa.sq.post(send(Data::Sges(sges(32)))), Ok(()));
    let receive = |n| RecvWr { wr_id: 1, sges: sges(n) };
    let rq = qa.rq.as_mut().unwrap();
    assert_eq!(rq.post(receive(33)), Err(PostError::TooManySges));
    assert_eq!(rq.post(receive(32)), Ok(false));
    assert_eq!(qa.sq.post(send(inline(257))), Err(PostError::InlineTooLong));
    assert_eq!(qa.sq.post(send(inline(256))), Ok(()));
}

#[test]
fn the_word_of_an_atomic_write_needs_no_inline_data() {
    let mut pair = Pair::default();
    let init = pair.a.init_attr(QpType::Rc);
    let cap = QpCap { max_inline: 0, ..init.cap };
    let other = pair.b.init_attr(QpType::Rc);
    let (mut qa, _qb) = pair.connect_with(QpInitAttr { cap, ..init }, other, QpAttr::default());
    let word = SendOp::AtomicWrite(Remote::default());
    assert_eq!(qa.sq.post(wr(1, SendOp::Send, inline(8))), Err(PostError::InlineTooLong));
    assert_eq!(qa.sq.post(wr(1, word, inline(8))), Ok(()));
    assert_eq!(qa.sq.post(wr(1, word, inline(9))), Err(PostError::BadAtomicLength));
}

#[test]
fn lists_of_any_length_are_the_same_however_they_are_made() {
    for n in 0..8 {
        let sges: Vec<_> = (0..n).map(|addr| Sge { addr, ..Sge::default() }).collect();
        let collected: SgeList = sges.iter().copied().collect();
        assert_eq!(collected, SgeList::new(&sges));
        assert_eq!(collected.as_slice(), sges);
    }
}

#[test]
fn inline_data_cannot_be_fetched_into() {
    let mut pair = Pair::default();
    let (mut qa, _qb) = pair.connect(QpType::Rc);
    for op in every_op() {
        let allowed = !op.is_fetch() && !op.is_local();
        let expected = if allowed { Ok(()) } else { Err(PostError::InlineNotAllowed) };
        assert_eq!(qa.sq.post(wr(1, op, inline(8))), expected, "{op:?}");
    }
}

#[test]
fn atomics_need_eight_bytes() {
    let mut pair = Pair::default();
    let (mut qa, _qb) = pair.connect(QpType::Rc);
    for op in every_op() {
        let needs =
            matches!(op, SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. } | SendOp::AtomicWrite(_));
        for len in [0, 4, 9, 16] {
            let expected = if needs { Err(PostError::BadAtomicLength) } else { Ok(()) };
            assert_eq!(qa.sq.post(wr(1, op, pair.a.data(0, len))), expected, "{op:?}");
        }
        qa.sq.post(wr(1, op, pair.a.data(0, 8))).unwrap();
    }
    let halves = SgeList::new(&[pair.a.sge(0, 4), pair.a.sge(8, 4)]);
    let add = SendOp::FetchAdd { remote: pair.b.remote(0), add: 1 };
    assert_eq!(qa.sq.post(wr(1, add, Data::Sges(halves))), Ok(()));
}

#[test]
fn every_service_has_its_operations() {
    // Rows as in `every_op`; an x where the service has the operation.
    let table = [
        (QpType::Rc, "xxxxxxxxxxxxx"),
        (QpType::XrcIni, "xxxxxxxxxxxxx"),
        (QpType::Uc, "xx.xx.....xxx"),
        (QpType::Ud, "xx..........."),
    ];
    for (qp_type, row) in table {
        let mut pair = Pair::default();
        let (mut qp, dest) = match qp_type {
            QpType::Ud => {
                let dest = datagram(&mut pair, 0, Data::EMPTY).dest;
                (pair.datagrams().0, dest)
            }
            QpType::XrcIni => (pair.connect(qp_type).0, Dest::Xrc(Srqn::new(1))),
            _ => (pair.connect(qp_type).0, Dest::Connected),
        };
        for (op, has) in every_op().into_iter().zip(row.chars()) {
            let request = SendWr { dest, ..wr(1, op, pair.a.data(0, 8)) };
            let expected = if has == 'x' { Ok(()) } else { Err(PostError::OpNotSupported) };
            assert_eq!(qp.sq.post(request), expected, "{qp_type:?} {op:?}");
        }
    }
}

#[test]
fn the_destination_must_fit_the_service() {
    let mut pair = Pair::default();
    let ud = datagram(&mut pair, 0, Data::EMPTY).dest;
    let dests = [Dest::Connected, ud, Dest::Xrc(Srqn::new(1))];
    let (rc, uc) = (pair.connect(QpType::Rc).0, pair.connect(QpType::Uc).0);
    let (ini, datagrams) = (pair.connect(QpType::XrcIni).0, pair.datagrams().0);
    for (mut qp, right) in [(rc, 0), (uc, 0), (datagrams, 1), (ini, 2)] {
        for (i, dest) in dests.into_iter().enumerate() {
            let request = SendWr { dest, ..wr(1, SendOp::Send, Data::EMPTY) };
            let expected = if i == right { Ok(()) } else { Err(PostError::BadDestination) };
            assert_eq!(qp.sq.post(request), expected, "{dest:?}");
        }
    }
}

#[test]
fn states_decide_what_may_be_posted() {
    let mut pair = Pair::default();
    let (qb, gid) = (pair.connect(QpType::Rc).1, pair.b.gid);
    let init = pair.a.init_attr(QpType::Rc);
    let mut qp = pair.a.create_qp(init);
    let av = AddrVec { dgid: gid, ..AddrVec::default() };
    let way = [
        (QpAttr::default(), QpState::Reset, false, false),
        (QpAttr::init(feroce_testkit::ALL), QpState::Init, false, true),
        (QpAttr::rtr(av, qb.qpn, qb.first_psn, pair.mtu), QpState::Rtr, false, true),
        (QpAttr::rts(qb.first_psn), QpState::Rts, true, true),
        (QpAttr::to(QpState::Sqd), QpState::Sqd, true, true),
        (QpAttr::to(QpState::Err), QpState::Err, true, true),
    ];
    for (attr, state, sends, receives) in way {
        if state != QpState::Reset {
            pair.a.modify(pair.now, qp.qpn, &attr);
        }
        let send = qp.sq.post(wr(1, SendOp::Send, Data::EMPTY));
        assert_eq!(send, if sends { Ok(()) } else { Err(PostError::BadState(state)) });
        let receive = qp.rq.as_mut().unwrap().post(pair.a.recv(2, 0, 0)).map(|_| ());
        assert_eq!(receive, if receives { Ok(()) } else { Err(PostError::BadState(state)) });
    }
    let error = PostError::BadState(QpState::Init).to_string();
    assert_eq!(error, "nothing can be posted in Init: move the queue pair on first");
}

#[test]
fn an_xrc_target_takes_no_posts() {
    let mut pair = Pair::default();
    let xrcd = pair.a.engine.alloc_xrcd().unwrap();
    let init = QpInitAttr { xrcd: Some(xrcd), ..pair.a.init_attr(QpType::XrcTgt) };
    let mut qp = pair.a.create_qp(init);
    assert!(qp.rq.is_none());
    pair.a.modify(pair.now, qp.qpn, &QpAttr::to(QpState::Err));
    let send = wr(1, SendOp::Send, Data::EMPTY);
    assert_eq!(qp.sq.post(send), Err(PostError::OpNotSupported));
}

#[test]
fn error_flushes_everything_oldest_first() {
    let mut pair = Pair::default();
    let (mut qa, _qb) = pair.connect(QpType::Rc);
    let post = |qa: &mut TestQp, pair: &Pair, id| {
        // Not signalled: an error is reported all the same.
        let flags = SendFlags::empty();
        qa.sq.post(SendWr { flags, ..wr(id, SendOp::Send, pair.a.data(0, 5)) }).unwrap();
    };
    for id in 0..3 {
        post(&mut qa, &pair, id);
        pair.a.transmit(pair.now);
        qa.rq.as_mut().unwrap().post(pair.a.recv(100 + id, 0, 5)).unwrap();
    }
    pair.a.modify(pair.now, qa.qpn, &QpAttr::to(QpState::Err));
    let flushed: Vec<_> = [0, 1, 2, 100, 101, 102].map(|id| (id, WcStatus::Flushed)).into();
    assert_eq!(ids(&mut pair), flushed);
    // Later ones as they come.
    post(&mut qa, &pair, 3);
    qa.rq.as_mut().unwrap().post(pair.a.recv(103, 0, 5)).unwrap();
    assert!(pair.a.transmit(pair.now).is_empty());
    assert_eq!(ids(&mut pair), [(3, WcStatus::Flushed), (103, WcStatus::Flushed)]);
}

#[test]
fn posts_in_sqd_wait_for_rts() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut pair = Pair::default();
        let (mut qa, _qb) = pair.connect(qp_type);
        pair.a.modify(pair.now, qa.qpn, &QpAttr::to(QpState::Sqd));
        qa.sq.post(wr(1, SendOp::Write(pair.b.remote(0)), pair.a.data(0, 5))).unwrap();
        pair.run();
        assert!(ids(&mut pair).is_empty());
        pair.a.modify(pair.now, qa.qpn, &QpAttr::to(QpState::Rts));
        pair.run();
        assert_eq!(ids(&mut pair), [(1, WcStatus::Success)]);
    }
}

#[test]
fn a_failed_send_on_a_connection_stops_only_the_send_queue_if_unreliable() {
    let mut pair = Pair::default();
    let (mut qa, mut qb) = pair.connect(QpType::Uc);
    qa.rq.as_mut().unwrap().post(pair.a.recv(50, 0, 10)).unwrap();
    let write =
        |pair: &Pair, id, addr| wr(id, SendOp::Write(pair.b.remote(0)), pair.a.data(addr, 10));
    qa.sq.post(write(&pair, 1, 0)).unwrap();
    qa.sq.post(write(&pair, 2, u64::MAX - 4)).unwrap();
    qa.sq.post(write(&pair, 3, 0)).unwrap();
    pair.run();
    let expected = [(1, WcStatus::Success), (2, WcStatus::LocalProtection), (3, WcStatus::Flushed)];
    assert_eq!(ids(&mut pair), expected);
    assert_eq!(qa.sq.state(), QpState::Sqe);
    // Posts are flushed, receives go on.
    qa.sq.post(write(&pair, 4, 0)).unwrap();
    qb.sq.post(wr(1, SendOp::Send, pair.b.data(0, 10))).unwrap();
    pair.run();
    assert_eq!(ids(&mut pair), [(4, WcStatus::Flushed), (50, WcStatus::Success)]);
    pair.a.modify(pair.now, qa.qpn, &QpAttr::to(QpState::Rts));
    pair.a.fill(0, 10, 77);
    qa.sq.post(write(&pair, 5, 0)).unwrap();
    pair.run();
    assert_eq!(ids(&mut pair), [(5, WcStatus::Success)]);
    assert_eq!(pair.b.read(0, 10), pair.a.read(0, 10));
}

#[test]
fn a_failed_send_on_a_reliable_connection_is_fatal() {
    let mut pair = Pair::default();
    let (mut qa, _qb) = pair.connect(QpType::Rc);
    let write =
        |pair: &Pair, id, addr| wr(id, SendOp::Write(pair.b.remote(0)), pair.a.data(addr, 10));
    for (id, addr) in [(1, 0), (2, u64::MAX - 4), (3, 0)] {
        qa.sq.post(write(&pair, id, addr)).unwrap();
    }
    pair.run();
    let expected = [(1, WcStatus::Success), (2, WcStatus::LocalProtection), (3, WcStatus::Flushed)];
    assert_eq!(ids(&mut pair), expected);
    assert_eq!(qa.sq.state(), QpState::Err);
}

#[test]
fn nothing_happens_before_the_doorbell() {
    let mut pair = Pair::default();
    let (mut qa, _qb) = pair.connect(QpType::Rc);
    pair.run();
    let write = |pair: &Pair, id| wr(id, SendOp::Write(pair.b.remote(0)), pair.a.data(0, 10));
    qa.sq.stage(write(&pair, 1)).unwrap();
    pair.run();
    assert!(ids(&mut pair).is_empty());
    qa.sq.abort();
    qa.sq.stage(write(&pair, 2)).unwrap();
    qa.sq.stage(write(&pair, 3)).unwrap();
    assert!(qa.sq.ring());
    assert_eq!(pair.a.engine.poll_timeout(), Some(pair.now));
    pair.run();
    assert_eq!(ids(&mut pair), [(2, WcStatus::Success), (3, WcStatus::Success)]);
}

#[test]
fn only_signalled_requests_complete_unless_all_are() {
    for sq_sig_all in [false, true] {
        let mut pair = Pair::default();
        let ia = QpInitAttr { sq_sig_all, ..pair.a.init_attr(QpType::Rc) };
        let ib = pair.b.init_attr(QpType::Rc);
        let (mut qa, _qb) = pair.connect_with(ia, ib, QpAttr::default());
        for id in 0..4 {
            let signaled = if id == 2 { SendFlags::SIGNALED } else { SendFlags::empty() };
            let write = wr(id, SendOp::Write(pair.b.remote(0)), pair.a.data(0, 10));
            qa.sq.post(SendWr { flags: signaled, ..write }).unwrap();
        }
        pair.run();
        let done: Vec<_> = pair.a.poll_all().iter().map(|c| (c.wr_id, c.opcode)).collect();
        let all: Vec<_> = (0..4).map(|id| (id, WcOpcode::Write)).collect();
        assert_eq!(done, if sq_sig_all { all } else { vec![(2, WcOpcode::Write)] });
        assert_eq!(qa.sq.free(), 256);
    }
}
