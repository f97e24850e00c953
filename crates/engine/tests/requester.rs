//! What the requester sends: opcodes, headers, PSNs and flags of every operation.

use feroce_engine::{
    Data, FlushKind, PostError, QpAttr, QpInitAttr, QpState, QpType, Remote, SendFlags, SendOp,
    SendWr, SgeList, WcStatus,
};
use feroce_testkit::script::{ACK, MTU, no_credits, psns, seen};
use feroce_testkit::{OUR_PSN, Scripted, wr};
use feroce_train::InlineBytes;
use feroce_wire::{
    AtomicEth, Exts, Feth, FlushPlacement, FlushSelectivity, Ieth, Imm, ImmDt, Lkey, Op, Reth, Rkey,
};

const REMOTE: Remote = Remote { addr: 0x1234_5678_9abc, rkey: Rkey(0x7777) };
const LENGTHS: [usize; 6] = [0, 1, MTU - 1, MTU, MTU + 1, 3 * MTU];

/// The packets a message of `len` bytes must have, given the first, middle, last and only opcode.
fn ops_for(len: usize, ops: [Op; 4]) -> Vec<Op> {
    let [first, middle, last, only] = ops;
    match len.div_ceil(MTU) {
        0 | 1 => vec![only],
        n => [vec![first], vec![middle; n - 2], vec![last]].concat(),
    }
}

/// Sends `op` with every interesting length; `exts` says what headers a packet must carry.
fn check_messages(op: SendOp, ops: [Op; 4], exts: impl Fn(Op, u32) -> Exts) {
    let mut script = Scripted::rc();
    let mut psn = OUR_PSN;
    for len in LENGTHS {
        let bytes = script.host.fill(0, len, 7);
        let data = script.host.data(0, len as u32);
        let packets = script.post(wr(1, op, data));
        let expected: Vec<_> = ops_for(len, ops).into_iter().zip(psn..).collect();
        assert_eq!(seen(&packets), expected, "{len} bytes");
        for packet in &packets {
            let bth = packet.bth();
            let ends = packet.op().ends();
            assert_eq!(packet.exts(), exts(packet.op(), len as u32), "{len} bytes");
            assert_eq!((bth.ack_req, bth.solicited, bth.tver), (ends, false, 0));
            assert_eq!((bth.dest_qp, bth.pkey.0), (feroce_testkit::PEER_QPN, 0xffff));
            assert_eq!(usize::from(bth.pad), packet.payload().len().wrapping_neg() & 3);
        }
        let sent: Vec<u8> = packets.iter().flat_map(|p| p.payload().to_vec()).collect();
        assert_eq!(sent, bytes, "{len} bytes");
        psn += packets.len() as u32;
        script.answer(psn - 1, ACK);
        assert_eq!(script.done(), [(1, WcStatus::Success)], "{len} bytes");
    }
}

#[test]
fn a_send_is_cut_at_the_mtu_and_carries_no_extra_header() {
    let ops = [Op::SendFirst, Op::SendMiddle, Op::SendLast, Op::SendOnly];
    check_messages(SendOp::Send, ops, |_, _| Exts::NONE);
}

#[test]
fn immediate_data_is_in_the_last_packet_only() {
    let ops = [Op::SendFirst, Op::SendMiddle, Op::SendLastImm, Op::SendOnlyImm];
    let imm = Imm(0xdead_beef);
    check_messages(SendOp::SendImm(imm), ops, |op, _| Exts {
        imm: op.has_imm().then_some(ImmDt { imm }),
        ..Exts::NONE
    });
}

#[test]
fn the_key_to_invalidate_is_in_the_last_packet_only() {
    let ops = [Op::SendFirst, Op::SendMiddle, Op::SendLastInv, Op::SendOnlyInv];
    check_messages(SendOp::SendInv(Rkey(0x1357)), ops, |op, _| Exts {
        ieth: op.has_ieth().then_some(Ieth { rkey: Rkey(0x1357) }),
        ..Exts::NONE
    });
}

#[test]
fn a_write_names_its_whole_range_in_the_first_packet() {
    let ops = [Op::WriteFirst, Op::WriteMiddle, Op::WriteLast, Op::WriteOnly];
    check_messages(SendOp::Write(REMOTE), ops, |op, len| Exts {
        reth: op.has_reth().then_some(Reth { va: REMOTE.addr, rkey: REMOTE.rkey, len }),
        ..Exts::NONE
    });
}

#[test]
fn a_write_with_immediate_has_its_range_first_and_the_immediate_last() {
    let ops = [Op::WriteFirst, Op::WriteMiddle, Op::WriteLastImm, Op::WriteOnlyImm];
    let imm = Imm(0x0102_0304);
    check_messages(SendOp::WriteImm(REMOTE, imm), ops, |op, len| Exts {
        reth: op.has_reth().then_some(Reth { va: REMOTE.addr, rkey: REMOTE.rkey, len }),
        imm: op.has_imm().then_some(ImmDt { imm }),
        ..Exts::NONE
    });
}

#[test]
fn a_read_is_one_packet_and_takes_a_psn_per_answer() {
    let mut script = Scripted::rc();
    let mut psn = OUR_PSN;
    for len in LENGTHS {
        let data = script.host.data(0, len as u32);
        let packets = script.post(wr(1, SendOp::Read(REMOTE), data));
        assert_eq!(seen(&packets), [(Op::ReadRequest, psn)], "{len} bytes");
        let reth = Reth { va: REMOTE.addr, rkey: REMOTE.rkey, len: len as u32 };
        assert_eq!(packets[0].exts(), Exts { reth: Some(reth), ..Exts::NONE });
        assert!(packets[0].payload().is_empty());
        assert!(packets[0].bth().ack_req);
        psn += len.div_ceil(MTU).max(1) as u32;
    }
}

#[test]
fn atomics_carry_address_key_and_operands() {
    let mut script = Scripted::rc();
    let data = |script: &Scripted| script.host.data(0, 8);
    let (va, rkey) = (REMOTE.addr, REMOTE.rkey);
    let swap = SendOp::CmpSwap { remote: REMOTE, compare: 11, swap: 22 };
    let packets = script.post(wr(1, swap, data(&script)));
    assert_eq!(seen(&packets), [(Op::CmpSwap, OUR_PSN)]);
    let eth = AtomicEth { va, rkey, swap_add: 22, compare: 11 };
    assert_eq!(packets[0].exts(), Exts { atomic: Some(eth), ..Exts::NONE });
    let add = SendOp::FetchAdd { remote: REMOTE, add: u64::MAX };
    let packets = script.post(wr(2, add, data(&script)));
    assert_eq!(seen(&packets), [(Op::FetchAdd, OUR_PSN + 1)]);
    let eth = AtomicEth { va, rkey, swap_add: u64::MAX, compare: 0 };
    assert_eq!(packets[0].exts(), Exts { atomic: Some(eth), ..Exts::NONE });
    assert!(packets[0].bth().ack_req);
}

#[test]
fn placement_extensions_carry_their_headers() {
    let mut script = Scripted::rc();
    let word = script.host.fill(0, 8, 3);
    let data = script.host.data(0, 8);
    let packets = script.post(wr(1, SendOp::AtomicWrite(REMOTE), data));
    assert_eq!(seen(&packets), [(Op::AtomicWrite, OUR_PSN)]);
    let reth = Reth { va: REMOTE.addr, rkey: REMOTE.rkey, len: 8 };
    assert_eq!(packets[0].exts(), Exts { reth: Some(reth), ..Exts::NONE });
    assert_eq!(packets[0].payload(), word);
    let kind = FlushKind { global: true, persistent: true, whole_region: false };
    let flush = SendOp::Flush { remote: REMOTE, len: 4096, kind };
    let packets = script.post(wr(2, flush, Data::EMPTY));
    assert_eq!(seen(&packets), [(Op::Flush, OUR_PSN + 1)]);
    let placement = FlushPlacement::GLOBAL.union(FlushPlacement::PERSISTENT);
    let feth = Feth::new(placement, FlushSelectivity::Range);
    let reth = Reth { va: REMOTE.addr, rkey: REMOTE.rkey, len: 4096 };
    let exts = Exts { feth: Some(feth), reth: Some(reth), ..Exts::NONE };
    assert_eq!(packets[0].exts(), exts);
    let kind = FlushKind { global: false, persistent: true, whole_region: true };
    let flush = SendOp::Flush { remote: REMOTE, len: 0, kind };
    let packets = script.post(wr(3, flush, Data::EMPTY));
    let feth = Feth::new(FlushPlacement::PERSISTENT, FlushSelectivity::MemoryRegion);
    assert_eq!(packets[0].exts().feth, Some(feth));
    // Each is answered like a read of nothing; an ordinary acknowledgement does not do.
    for psn in OUR_PSN..OUR_PSN + 3 {
        script.respond(Op::ReadResponseOnly, psn, &[]);
    }
    let done = script.done();
    assert_eq!(done, [1, 2, 3].map(|id| (id, WcStatus::Success)));
}

#[test]
fn an_acknowledgement_alone_does_not_answer_a_placement_extension() {
    let mut script = Scripted::rc();
    let data = script.host.data(0, 8);
    script.post(wr(1, SendOp::AtomicWrite(REMOTE), data));
    let again = script.answer(OUR_PSN, ACK);
    assert_eq!(seen(&again), [(Op::AtomicWrite, OUR_PSN)]);
    assert_eq!(script.done(), []);
}

#[test]
fn psns_wrap_from_the_largest_to_zero() {
    let init = |host: &mut feroce_testkit::Host| host.init_attr(QpType::Rc);
    let mut script = Scripted::made(no_credits(), QpAttr::default(), 0x00ff_fffe, init);
    let data = script.host.data(0, 4 * MTU as u32);
    let packets = script.post(wr(1, SendOp::Send, data.clone()));
    assert_eq!(psns(&packets), [0x00ff_fffe, 0x00ff_ffff, 0, 1]);
    let packets = script.post(wr(2, SendOp::Read(REMOTE), data));
    assert_eq!(psns(&packets), [2]);
    // The first message is acknowledged across the wrap.
    script.answer(1, ACK);
    assert_eq!(script.done(), [(1, WcStatus::Success)]);
}

#[test]
fn only_the_last_packet_of_a_solicited_message_is_solicited() {
    let mut script = Scripted::rc();
    for (op, len) in [(SendOp::Send, 3 * MTU), (SendOp::Send, 5), (SendOp::Write(REMOTE), 3000)] {
        let data = script.host.data(0, len as u32);
        let mut request = wr(1, op, data);
        request.flags |= SendFlags::SOLICITED;
        let packets = script.post(request);
        for packet in &packets {
            assert_eq!(packet.bth().solicited, packet.op().ends(), "{op:?}");
        }
    }
}

#[test]
fn inline_data_is_that_of_the_time_of_posting() {
    let mut script = Scripted::rc();
    let mut bytes = vec![1; 200];
    let data = Data::Inline(InlineBytes::new(&bytes));
    script.qp.sq.post(wr(1, SendOp::Write(REMOTE), data)).unwrap();
    bytes.fill(2);
    let packets = script.host.transmit(script.now);
    assert_eq!(packets[0].payload(), [1; 200]);
    // It must still be there when the packet is lost.
    let again = script.wait(4096 << 14);
    assert_eq!(again[0].payload(), [1; 200]);
}

#[test]
fn thirty_two_pieces_are_gathered_in_order() {
    let mut script = Scripted::rc();
    script.host.fill(0, 8000, 5);
    let sges: Vec<_> = (0..32).rev().map(|i| script.host.sge(i * 200, 101)).collect();
    let whole: Vec<u8> = (0..32).rev().flat_map(|i| script.host.read(i * 200, 101)).collect();
    let packets = script.post(wr(1, SendOp::Send, Data::Sges(SgeList::new(&sges))));
    assert_eq!(packets.len(), (32 * 101_usize).div_ceil(MTU));
    let sent: Vec<u8> = packets.iter().flat_map(|p| p.payload().to_vec()).collect();
    assert_eq!(sent, whole);
    let more = [sges, vec![script.host.sge(0, 1)]].concat();
    let refused = script.qp.sq.post(wr(2, SendOp::Send, Data::Sges(SgeList::new(&more))));
    assert_eq!(refused, Err(PostError::TooManySges));
}

#[test]
fn an_unsignalled_request_leaves_no_completion() {
    let mut script = Scripted::rc();
    let quiet = SendWr { flags: SendFlags::empty(), ..wr(1, SendOp::Send, Data::EMPTY) };
    script.post_all([quiet, wr(2, SendOp::Send, Data::EMPTY)]);
    script.answer(OUR_PSN + 1, ACK);
    assert_eq!(script.done(), [(2, WcStatus::Success)]);
}

#[test]
fn an_unsignalled_request_that_fails_is_reported() {
    let mut script = Scripted::rc();
    let quiet = SendWr { flags: SendFlags::empty(), ..wr(1, SendOp::Send, Data::EMPTY) };
    script.post_all([quiet.clone(), SendWr { wr_id: 2, ..quiet }]);
    let access = feroce_testkit::script::nak(feroce_wire::NakCode::RemoteOperational);
    script.answer(OUR_PSN, access);
    assert_eq!(script.done(), [(1, WcStatus::RemoteOperation), (2, WcStatus::Flushed)]);
}

#[test]
fn sq_sig_all_reports_every_request() {
    let mut script = Scripted::made(no_credits(), QpAttr::default(), OUR_PSN, |host| QpInitAttr {
        sq_sig_all: true,
        ..host.init_attr(QpType::Rc)
    });
    let quiet = SendWr { flags: SendFlags::empty(), ..wr(1, SendOp::Send, Data::EMPTY) };
    script.post(quiet);
    script.answer(OUR_PSN, ACK);
    assert_eq!(script.done(), [(1, WcStatus::Success)]);
}

#[test]
fn a_message_beyond_two_gigabytes_is_refused_locally() {
    let mut script = Scripted::rc();
    let data = script.host.data(0, 0x8000_0001);
    let packets =
        script.post_all([wr(1, SendOp::Write(REMOTE), data), wr(2, SendOp::Send, Data::EMPTY)]);
    assert!(packets.is_empty());
    assert_eq!(script.done(), [(1, WcStatus::LocalLength), (2, WcStatus::Flushed)]);
    assert_eq!(script.state(), QpState::Err);
}

#[test]
fn a_bad_local_key_fails_in_turn_and_lost_requests_before_it_are_resent() {
    let mut script = Scripted::rc();
    let good = script.host.data(0, 100);
    let bad = Data::Sges(SgeList::from(feroce_engine::Sge {
        lkey: Lkey(script.host.lkey.0 ^ 0x5a),
        ..script.host.sge(0, 100)
    }));
    let first = script.post_all([
        wr(1, SendOp::Send, good.clone()),
        wr(2, SendOp::Send, bad),
        wr(3, SendOp::Send, good),
    ]);
    assert_eq!(psns(&first), [OUR_PSN]);
    assert_eq!((script.done(), script.state()), (vec![], QpState::Rts));
    // The first is lost: it is still sent again, and nothing after the bad one ever is.
    assert_eq!(psns(&script.wait(4096 << 14)), [OUR_PSN]);
    script.answer(OUR_PSN, ACK);
    let expected = [(1, WcStatus::Success), (2, WcStatus::LocalProtection), (3, WcStatus::Flushed)];
    assert_eq!((script.done(), script.state()), (expected.to_vec(), QpState::Err));
}

#[test]
fn a_bad_key_in_the_middle_of_a_message_stops_it_there() {
    let mut script = Scripted::rc();
    let bad = feroce_engine::Sge { lkey: Lkey(0x9999), ..script.host.sge(0, 4096) };
    let sges = SgeList::new(&[script.host.sge(0, 1024), bad]);
    let packets = script.post(wr(1, SendOp::Write(REMOTE), Data::Sges(sges)));
    // The first packet may or may not go; what follows may not, and the request fails at once.
    assert!(packets.len() <= 1);
    assert_eq!(script.done(), [(1, WcStatus::LocalProtection)]);
}

#[test]
fn sqd_finishes_what_was_started_reports_and_resumes() {
    let mut script = Scripted::rc_with(QpAttr { max_rd_atomic: Some(1), ..QpAttr::default() });
    let data = script.host.data(0, 8);
    let read = |id| wr(id, SendOp::Read(REMOTE), data.clone());
    // The second read waits for the first, so it is started but not sent.
    assert_eq!(psns(&script.post_all([read(1), read(2)])), [OUR_PSN]);
    let sqd = QpAttr { sqd_notify: Some(true), ..QpAttr::to(QpState::Sqd) };
    script.host.modify(script.now, script.qp.qpn, &sqd);
    assert!(script.post(wr(3, SendOp::Send, Data::EMPTY)).is_empty(), "not started in SQD");
    assert!(script.events().is_empty());
    let next = script.respond(Op::ReadResponseOnly, OUR_PSN, &[0; 8]);
    assert_eq!(psns(&next), [OUR_PSN + 1]);
    script.respond(Op::ReadResponseOnly, OUR_PSN + 1, &[0; 8]);
    assert_eq!(script.done(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    let drained = feroce_engine::AsyncEvent::SqDrained(script.qp.qpn);
    assert_eq!(script.events(), [drained]);
    script.host.modify(script.now, script.qp.qpn, &QpAttr::to(QpState::Rts));
    assert_eq!(psns(&script.host.transmit(script.now)), [OUR_PSN + 2]);
}

#[test]
fn sends_are_refused_before_rts_and_flushed_in_error() {
    let mut host = feroce_testkit::Host::new(1);
    let init = host.init_attr(QpType::Rc);
    let mut qp = host.create_qp(init);
    let send = || wr(1, SendOp::Send, Data::EMPTY);
    let recv = host.recv(2, 0, 64);
    let now = feroce_train::Instant::from_nanos(1);
    let rq = qp.rq.as_mut().unwrap();
    assert_eq!(qp.sq.post(send()), Err(PostError::BadState(QpState::Reset)));
    assert_eq!(rq.post(recv.clone()), Err(PostError::BadState(QpState::Reset)));
    host.modify(now, qp.qpn, &QpAttr::init(feroce_testkit::ALL));
    assert_eq!(qp.sq.post(send()), Err(PostError::BadState(QpState::Init)));
    assert_eq!(rq.post(recv.clone()), Ok(false));
    host.modify(now, qp.qpn, &QpAttr::to(QpState::Err));
    assert_eq!(rq.post(recv), Ok(true));
    assert_eq!(qp.sq.post(send()), Ok(()));
    assert!(host.transmit(now).is_empty());
    let done: Vec<_> = host.poll_all().iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(done.len(), 3);
    assert!(done.iter().all(|&(_, status)| status == WcStatus::Flushed), "{done:?}");
}

#[test]
fn a_post_that_makes_no_sense_is_refused() {
    let mut script = Scripted::rc();
    let data = script.host.data(0, 7);
    let add = SendOp::FetchAdd { remote: REMOTE, add: 1 };
    assert_eq!(script.qp.sq.post(wr(1, add, data)), Err(PostError::BadAtomicLength));
    let inline = |n| Data::Inline(InlineBytes::new(&vec![0; n]));
    let post = |script: &mut Scripted, op, data| script.qp.sq.post(wr(1, op, data));
    assert_eq!(post(&mut script, SendOp::Send, inline(257)), Err(PostError::InlineTooLong));
    let read = SendOp::Read(REMOTE);
    assert_eq!(post(&mut script, read, inline(8)), Err(PostError::InlineNotAllowed));
    let to_xrc = SendWr {
        dest: feroce_engine::Dest::Xrc(feroce_wire::Srqn::new(1)),
        ..wr(1, SendOp::Send, Data::EMPTY)
    };
    assert_eq!(script.qp.sq.post(to_xrc), Err(PostError::BadDestination));
    let mut uc = Scripted::new(QpType::Uc, QpAttr::default());
    let data = uc.host.data(0, 8);
    assert_eq!(post(&mut uc, read, data), Err(PostError::OpNotSupported));
    // As many as the queue was made for, and no more.
    for i in 0..256 {
        script.qp.sq.post(wr(i, SendOp::Send, Data::EMPTY)).unwrap();
    }
    let beyond = post(&mut script, SendOp::Send, Data::EMPTY);
    assert_eq!(beyond, Err(PostError::QueueFull));
}

#[test]
fn a_receive_that_a_read_answer_cannot_be_put_into_fails_the_read() {
    let mut script = Scripted::rc();
    let key = script.host.engine.reg_mr(
        script.host.pd,
        std::sync::Arc::clone(&script.host.region),
        0,
        64,
        feroce_mem::Iova::ZeroBased,
        feroce_mem::Access::empty(),
    );
    let sge = feroce_engine::Sge { addr: 0, len: 8, lkey: key.unwrap() };
    script.post(wr(1, SendOp::Read(REMOTE), Data::Sges(SgeList::from(sge))));
    script.respond(Op::ReadResponseOnly, OUR_PSN, &[1; 8]);
    assert_eq!(script.done(), [(1, WcStatus::LocalProtection)]);
}
