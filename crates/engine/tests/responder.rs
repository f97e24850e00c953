//! What the responder does with requests that are in order.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use feroce_engine::{
    AsyncEvent, Config, Data, Notify, QpAttr, QpInitAttr, QpState, QpType, SendOp, SrqInitAttr,
    WcFlags, WcOpcode, WcStatus,
};
use feroce_mem::{Access, Bind, MwType};
use feroce_testkit::script::{ACK, MTU, atomic, no_credits, reth, rnr, said, seen, with};
use feroce_testkit::{OUR_PSN, PEER_PSN, Scripted, header, wr};
use feroce_wire::{CreditCode, Ieth, Imm, ImmDt, Op, Rkey, Syndrome};

const P: u32 = PEER_PSN;

#[test]
fn a_send_of_several_packets_lands_in_one_receive() {
    let mut script = Scripted::rc();
    script.recv(1, 500, 4000);
    assert!(script.send(Op::SendFirst, P, false, &[1; MTU]).is_empty());
    assert!(script.send(Op::SendMiddle, P + 1, false, &[2; MTU]).is_empty());
    let said_last = script.send(Op::SendLast, P + 2, true, &[3; 5]);
    assert_eq!(said(&said_last), [(P + 2, ACK, 1)]);
    let done = script.host.poll_all();
    assert_eq!(done.len(), 1);
    assert_eq!((done[0].wr_id, done[0].status), (1, WcStatus::Success));
    assert_eq!((done[0].opcode, done[0].byte_len), (WcOpcode::Recv, 2 * MTU as u32 + 5));
    assert_eq!(done[0].flags, WcFlags::empty());
    let whole = [vec![1; MTU], vec![2; MTU], vec![3; 5]].concat();
    assert_eq!(script.host.read(500, whole.len()), whole);
}

#[test]
fn a_receive_may_be_scattered() {
    let mut script = Scripted::rc();
    let sges = [script.host.sge(0, 10), script.host.sge(100, 1500), script.host.sge(5000, 600)];
    let sges = feroce_engine::SgeList::new(&sges);
    let receive = feroce_engine::RecvWr { wr_id: 1, sges };
    script.qp.rq.as_mut().unwrap().post(receive).unwrap();
    let bytes: Vec<u8> = (0..2000).map(|i| (i % 251) as u8).collect();
    script.send(Op::SendFirst, P, false, &bytes[..MTU]);
    script.send(Op::SendLast, P + 1, true, &bytes[MTU..]);
    assert_eq!(script.done(), [(1, WcStatus::Success)]);
    let placed =
        [script.host.read(0, 10), script.host.read(100, 1500), script.host.read(5000, 490)];
    assert_eq!(placed.concat(), bytes);
}

#[test]
fn immediate_data_reaches_the_completion() {
    let mut script = Scripted::rc();
    script.recv(1, 0, 64);
    script.recv(2, 0, 64);
    let imm = header(|out| ImmDt { imm: Imm(0x0102_0304) }.emit(out));
    script.send(Op::SendOnlyImm, P, true, &with(imm.clone(), &[9; 3]));
    let done = script.host.poll().unwrap();
    assert_eq!((done.flags, done.imm, done.byte_len), (WcFlags::WITH_IMM, Imm(0x0102_0304), 3));
    let head = with(reth(1000, script.rkey(), 5), &imm);
    script.send(Op::WriteOnlyImm, P + 1, true, &with(head, &[7; 5]));
    let done = script.host.poll().unwrap();
    assert_eq!((done.wr_id, done.opcode, done.byte_len), (2, WcOpcode::RecvWriteImm, 5));
    assert_eq!((done.flags, done.imm), (WcFlags::WITH_IMM, Imm(0x0102_0304)));
    assert_eq!(script.host.read(1000, 5), [7; 5]);
}

#[test]
fn a_write_of_several_packets_goes_to_its_range() {
    let mut script = Scripted::rc();
    let len = 2 * MTU as u32 + 3;
    let head = reth(3000, script.rkey(), len);
    script.send(Op::WriteFirst, P, false, &with(head, &[1; MTU]));
    script.send(Op::WriteMiddle, P + 1, false, &[2; MTU]);
    let answers = script.send(Op::WriteLast, P + 2, true, &[3; 3]);
    assert_eq!(said(&answers), [(P + 2, ACK, 1)]);
    let whole = [vec![1; MTU], vec![2; MTU], vec![3; 3]].concat();
    assert_eq!(script.host.read(3000, whole.len()), whole);
    assert!(script.done().is_empty(), "a write is silent");
}

#[test]
fn a_read_is_answered_packet_by_packet() {
    let mut script = Scripted::rc();
    let bytes = script.host.fill(0, 4 * MTU, 11);
    let mut psn = P;
    for (msn, len) in (1..).zip([0, 1, MTU, MTU + 1, 2 * MTU, 3 * MTU + 7]) {
        let rest = reth(0, script.rkey(), len as u32);
        let answers = script.send(Op::ReadRequest, psn, true, &rest);
        let ops: Vec<Op> = match len.div_ceil(MTU) {
            0 | 1 => vec![Op::ReadResponseOnly],
            n => [
                vec![Op::ReadResponseFirst],
                vec![Op::ReadResponseMiddle; n - 2],
                vec![Op::ReadResponseLast],
            ]
            .concat(),
        };
        assert_eq!(seen(&answers), ops.into_iter().zip(psn..).collect::<Vec<_>>());
        for p in &answers {
            if p.op() != Op::ReadResponseMiddle {
                assert_eq!((p.syndrome(), p.msn()), (ACK, msn));
            }
        }
        let read: Vec<u8> = answers.iter().flat_map(|p| p.payload().to_vec()).collect();
        assert_eq!(read, bytes[..len]);
        psn += answers.len() as u32;
    }
}

#[test]
fn atomics_answer_with_what_they_found() {
    let mut script = Scripted::rc();
    script.host.region.store_u64(64, 1000).unwrap();
    let original =
        |packets: &[feroce_testkit::Packet]| packets[0].exts().atomic_ack.unwrap().original;
    let rkey = script.rkey();
    let answers = script.send(Op::FetchAdd, P, true, &atomic(64, rkey, 5, 0));
    assert_eq!(seen(&answers), [(Op::AtomicAcknowledge, P)]);
    assert_eq!((original(&answers), answers[0].msn()), (1000, 1));
    let answers = script.send(Op::CmpSwap, P + 1, true, &atomic(64, rkey, 7, 1005));
    assert_eq!(original(&answers), 1005);
    let answers = script.send(Op::CmpSwap, P + 2, true, &atomic(64, rkey, 8, 1005));
    assert_eq!((original(&answers), answers[0].msn()), (7, 3));
    assert_eq!(script.host.region.load_u64(64).unwrap(), 7);
}

#[test]
fn nothing_is_acknowledged_that_does_not_ask() {
    let mut script = Scripted::rc();
    script.recv(1, 0, 64);
    script.recv(2, 0, 64);
    assert!(script.send(Op::SendOnly, P, false, &[0; 8]).is_empty());
    let answers = script.send(Op::SendOnly, P + 1, true, &[0; 8]);
    assert_eq!(said(&answers), [(P + 1, ACK, 2)]);
}

#[test]
fn a_packet_inside_a_message_is_acknowledged_if_it_asks() {
    let mut script = Scripted::rc();
    script.recv(1, 0, 4000);
    let answers = script.send(Op::SendFirst, P, true, &[0; MTU]);
    assert_eq!(said(&answers), [(P, ACK, 0)]);
}

#[test]
fn acknowledgements_that_wait_coalesce() {
    let mut script = Scripted::rc();
    for i in 0..4 {
        script.recv(u64::from(i), 0, 64);
        let packet = script.packet(Op::SendOnly, P + i, true, &[0; 8]);
        script.host.receive(script.now, &packet);
    }
    let answers = script.host.transmit(script.now);
    assert_eq!(said(&answers), [(P + 3, ACK, 4)]);
    assert_eq!(script.host.engine.counters().ack_deferred, 3);
}

#[test]
fn answers_keep_the_order_of_the_requests() {
    let mut script = Scripted::rc();
    script.recv(1, 0, 64);
    script.recv(2, 0, 64);
    let rkey = script.rkey();
    let read = reth(0, rkey, 2 * MTU as u32);
    let requests = [
        (Op::SendOnly, P, vec![0; 8]),
        (Op::ReadRequest, P + 1, read),
        (Op::SendOnly, P + 3, vec![0; 8]),
        (Op::FetchAdd, P + 4, atomic(64, rkey, 1, 0)),
    ];
    for (op, psn, rest) in requests {
        let packet = script.packet(op, psn, true, &rest);
        script.host.receive(script.now, &packet);
    }
    let expected = [
        (Op::Acknowledge, P),
        (Op::ReadResponseFirst, P + 1),
        (Op::ReadResponseLast, P + 2),
        (Op::Acknowledge, P + 3),
        (Op::AtomicAcknowledge, P + 4),
    ];
    assert_eq!(seen(&script.host.transmit(script.now)), expected);
}

#[test]
fn acknowledgements_advertise_the_receives_that_are_posted() {
    let mut script = Scripted::new(QpType::Rc, QpAttr::default());
    let credits = |n| Syndrome::Ack { credits: CreditCode::at_most(n) };
    for i in 0..6 {
        script.recv(i, 0, 64);
    }
    assert_eq!(said(&script.send(Op::SendOnly, P, true, &[])), [(P, credits(5), 1)]);
    // The credit codes have no value for five, so the responder advertises four.
    assert_eq!(CreditCode::at_most(5).credits(), Some(4));
    for i in 1..5 {
        script.send(Op::SendOnly, P + i, true, &[]);
    }
    assert_eq!(said(&script.send(Op::SendOnly, P + 5, true, &[])), [(P + 5, credits(0), 6)]);
}

/// Makes a type 2 window over bytes 4096..8192 and returns its key.
fn window(script: &mut Scripted) -> Rkey {
    let mw = script.host.engine.alloc_mw(script.host.pd, MwType::Two).unwrap();
    let new_rkey = Rkey(mw.0 ^ 1);
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
    let mr = script.host.lkey;
    let binding = Bind { mr, addr: 4096, len: 4096, access, zero_based: false };
    assert!(script.post(wr(9, SendOp::BindMw { mw, new_rkey, binding }, Data::EMPTY)).is_empty());
    assert_eq!(script.done(), [(9, WcStatus::Success)]);
    new_rkey
}

#[test]
fn a_send_with_invalidate_takes_the_key_away() {
    let mut script = Scripted::rc();
    let key = window(&mut script);
    let write = with(reth(4096, key, 8), &[1; 8]);
    assert_eq!(said(&script.send(Op::WriteOnly, P, true, &write)), [(P, ACK, 1)]);
    script.recv(1, 0, 64);
    let ieth = header(|out| Ieth { rkey: key }.emit(out));
    let answers = script.send(Op::SendOnlyInv, P + 1, true, &with(ieth, &[2; 4]));
    assert_eq!(said(&answers), [(P + 1, ACK, 2)]);
    let done = script.host.poll().unwrap();
    assert_eq!((done.flags, done.invalidated, done.byte_len), (WcFlags::WITH_INV, key, 4));
    let answers = script.send(Op::WriteOnly, P + 2, true, &write);
    let refused = feroce_testkit::script::nak(feroce_wire::NakCode::RemoteAccess);
    assert_eq!(said(&answers), [(P + 2, refused, 2)]);
}

#[test]
fn a_solicited_message_wakes_whoever_waits_for_one() {
    let mut script = Scripted::rc();
    script.recv(1, 0, 64);
    script.recv(2, 0, 64);
    script.host.poller.arm(Notify::Solicited);
    script.send(Op::SendOnly, P, true, &[0; 8]);
    script.host.drain_events();
    assert!(!script.host.events.iter().any(feroce_testkit::script::is_wake));
    let mut packet = script.packet(Op::SendOnly, P + 1, true, &[0; 8]);
    packet.bytes[1] |= 0x80;
    assert!(packet.bth().solicited);
    script.deliver(&packet);
    script.host.drain_events();
    assert!(script.host.events.iter().any(feroce_testkit::script::is_wake));
}

#[test]
fn the_first_packet_in_rtr_is_reported_once() {
    let mut script = Scripted::rc();
    let init = script.host.init_attr(QpType::Rc);
    let qp = script.host.create_qp(init);
    script.host.modify(script.now, qp.qpn, &QpAttr::init(feroce_testkit::ALL));
    let av = feroce_engine::AddrVec { dgid: script.peer, ..Default::default() };
    let psn = feroce_wire::Psn::new(P);
    let rtr = QpAttr::rtr(av, feroce_testkit::PEER_QPN, psn, feroce_wire::Pmtu::B1024);
    script.host.modify(script.now, qp.qpn, &rtr);
    script.qp = qp;
    let empty_write = reth(0, Rkey(0), 0);
    assert_eq!(said(&script.send(Op::WriteOnly, P, true, &empty_write)), [(P, ACK, 1)]);
    assert_eq!(script.events(), [AsyncEvent::CommEstablished(script.qp.qpn)]);
    script.send(Op::WriteOnly, P + 1, true, &empty_write);
    assert!(script.events().is_empty());
    // A queue pair in RTS knows already.
    let mut script = Scripted::rc();
    script.send(Op::WriteOnly, P, true, &empty_write);
    assert!(script.events().is_empty());
}

#[test]
fn a_queue_pair_that_dies_tells_that_it_takes_no_more_from_a_shared_queue() {
    let mut queue = None;
    let mut script = Scripted::made(no_credits(), QpAttr::default(), OUR_PSN, |host| {
        let attr = SrqInitAttr { pd: host.pd, max_wr: 16, max_sge: 4, limit: 0, xrc: None };
        let (srq, post) = host.engine.create_srq(attr).unwrap();
        queue = Some(post);
        QpInitAttr { srq: Some(srq), ..host.init_attr(QpType::Rc) }
    });
    let mut queue = queue.unwrap();
    // No receive yet, and no credits to advertise.
    assert_eq!(said(&script.send(Op::SendOnly, P, true, &[])), [(P, rnr(12), 0)]);
    queue.post(script.host.recv(1, 0, 64)).unwrap();
    queue.post(script.host.recv(2, 0, 64)).unwrap();
    assert_eq!(said(&script.send(Op::SendOnly, P, true, &[])), [(P, ACK, 1)]);
    assert_eq!(script.done(), [(1, WcStatus::Success)]);
    script.host.modify(script.now, script.qp.qpn, &QpAttr::to(QpState::Err));
    assert_eq!(script.events(), [AsyncEvent::LastWqeReached(script.qp.qpn)]);
    assert!(script.done().is_empty(), "receives of a shared queue are not flushed");
}

#[test]
fn no_statement_about_credits_is_made_for_a_shared_queue() {
    let mut queue = None;
    let config = Config::default();
    let mut script = Scripted::made(config, QpAttr::default(), OUR_PSN, |host| {
        let attr = SrqInitAttr { pd: host.pd, max_wr: 16, max_sge: 4, limit: 0, xrc: None };
        let (srq, post) = host.engine.create_srq(attr).unwrap();
        queue = Some(post);
        QpInitAttr { srq: Some(srq), ..host.init_attr(QpType::Rc) }
    });
    queue.unwrap().post(script.host.recv(1, 0, 64)).unwrap();
    assert_eq!(said(&script.send(Op::SendOnly, P, true, &[])), [(P, ACK, 1)]);
}

#[test]
fn requests_are_served_while_the_send_queue_drains() {
    let mut script = Scripted::rc();
    script.host.modify(script.now, script.qp.qpn, &QpAttr::to(QpState::Sqd));
    script.recv(1, 0, 64);
    assert_eq!(said(&script.send(Op::SendOnly, P, true, &[1; 4])), [(P, ACK, 1)]);
    assert_eq!(script.done(), [(1, WcStatus::Success)]);
}
