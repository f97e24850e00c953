//! Packets of extended reliable connections (IBTA vol1 annex A14), by hand.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use feroce_engine::{
    Data, Dest, PostError, QpAttr, QpInitAttr, QpState, QpType, Remote, SendOp, SendWr, SrqId,
    SrqInitAttr, SrqQueue, WcOpcode, XrcdId,
};
use feroce_testkit::script::{ACK, MTU, no_credits, reth, rnr, said, seen, with};
use feroce_testkit::{Host, OUR_PSN, PEER_PSN, Scripted, header, wr};
use feroce_wire::{Imm, ImmDt, NakCode, Op, Reth, Rkey, Service, Srqn, Syndrome, XrcEth};

const P: u32 = PEER_PSN;
const REMOTE: Remote = Remote { addr: 0x1000, rkey: Rkey(0x77) };

fn to(srqn: Srqn, mut request: SendWr) -> SendWr {
    request.dest = Dest::Xrc(srqn);
    request
}

fn xrc_srq(host: &mut Host, xrcd: XrcdId) -> (SrqId, SrqQueue) {
    let xrc = Some((xrcd, host.cq));
    let attr = SrqInitAttr { pd: host.pd, max_wr: 16, max_sge: 4, limit: 0, xrc };
    host.engine.create_srq(attr).unwrap()
}

/// A target with one shared receive queue.
fn target() -> (Scripted, SrqId, SrqQueue) {
    let mut srq = None;
    let script = Scripted::made(no_credits(), QpAttr::default(), OUR_PSN, |host| {
        let xrcd = host.engine.alloc_xrcd().unwrap();
        srq = Some(xrc_srq(host, xrcd));
        QpInitAttr { xrcd: Some(xrcd), ..host.init_attr(QpType::XrcTgt) }
    });
    let (id, queue) = srq.unwrap();
    (script, id, queue)
}

/// Headers of an XRC request to `srqn`, followed by `rest`.
fn xrc(srqn: Srqn, rest: &[u8]) -> Vec<u8> {
    with(header(|out| XrcEth { srqn }.emit(out)), rest)
}

#[test]
fn every_request_packet_names_the_shared_receive_queue() {
    let mut script = Scripted::with_config(QpType::XrcIni, QpAttr::default(), no_credits());
    let srqn = Srqn::new(0x1234);
    let data = script.host.data(0, 3 * MTU as u32);
    let imm = Imm(9);
    let packets = script.post(to(srqn, wr(1, SendOp::WriteImm(REMOTE, imm), data)));
    let ops = [Op::WriteFirst, Op::WriteMiddle, Op::WriteLastImm];
    assert_eq!(seen(&packets), ops.into_iter().zip(OUR_PSN..).collect::<Vec<_>>());
    for packet in &packets {
        assert_eq!(packet.bth().opcode.decode().unwrap().0, Service::Xrc);
        assert_eq!(packet.exts().xrceth, Some(XrcEth { srqn }));
        assert_eq!(packet.payload().len(), MTU);
    }
    let range = Reth { va: REMOTE.addr, rkey: REMOTE.rkey, len: 3 * MTU as u32 };
    assert_eq!(packets[0].exts().reth, Some(range));
    assert_eq!(packets[2].exts().imm, Some(ImmDt { imm }));
    let data = script.host.data(0, 8);
    let read = script.post(to(srqn, wr(2, SendOp::Read(REMOTE), data.clone())));
    assert_eq!(seen(&read), [(Op::ReadRequest, OUR_PSN + 3)]);
    assert_eq!(read[0].exts().xrceth, Some(XrcEth { srqn }));
    let add = SendOp::FetchAdd { remote: REMOTE, add: 1 };
    let add = script.post(to(srqn, wr(3, add, data)));
    assert_eq!(add[0].exts().xrceth, Some(XrcEth { srqn }));
    // Answers carry no such header.
    script.answer(OUR_PSN + 2, ACK);
    script.respond(Op::ReadResponseOnly, OUR_PSN + 3, &[1; 8]);
    script.respond_atomic(OUR_PSN + 4, 1);
    assert_eq!(script.done().len(), 3);
}

#[test]
fn an_initiator_sends_and_a_target_receives() {
    let mut script = Scripted::with_config(QpType::XrcIni, QpAttr::default(), no_credits());
    let missing = script.qp.sq.post(wr(1, SendOp::Send, Data::EMPTY));
    assert_eq!(missing, Err(PostError::BadDestination));
    assert!(script.send(Op::SendOnly, P, true, &xrc(Srqn::new(1), &[])).is_empty());
    assert_eq!(script.host.engine.drops().drop_bad_opcode, 1);
    let (mut script, ..) = target();
    assert!(script.qp.sq.post(wr(1, SendOp::Send, Data::EMPTY)).is_err());
    assert!(script.answer(OUR_PSN, ACK).is_empty());
    assert_eq!(script.host.engine.drops().drop_bad_opcode, 1);
}

#[test]
fn a_message_takes_its_receive_from_the_queue_it_names() {
    let (mut script, srq, mut queue) = target();
    let named = xrc(srq.number(), &[7; 12]);
    assert_eq!(said(&script.send(Op::SendOnly, P, true, &named)), [(P, rnr(12), 0)]);
    queue.post(script.host.recv(5, 100, 64)).unwrap();
    let answers = script.send(Op::SendOnly, P, true, &named);
    assert_eq!(said(&answers), [(P, ACK, 1)]);
    assert_eq!(answers[0].bth().opcode.decode().unwrap().0, Service::Xrc);
    let done = script.host.poll().unwrap();
    assert_eq!((done.wr_id, done.opcode, done.byte_len), (5, WcOpcode::Recv, 12));
    assert_eq!(script.host.read(100, 12), [7; 12]);
}

#[test]
fn a_queue_outside_the_domain_is_refused() {
    let invalid = Syndrome::Nak(NakCode::InvalidRequest);
    for case in 0..3 {
        let (mut script, srq, _queue) = target();
        let srqn = match case {
            0 => Srqn::new(0),
            1 => Srqn::new(srq.number().get() + 100),
            _ => {
                let other = script.host.engine.alloc_xrcd().unwrap();
                let (id, _) = xrc_srq(&mut script.host, other);
                id.number()
            }
        };
        let answers = script.send(Op::SendOnly, P, true, &xrc(srqn, &[1; 4]));
        assert_eq!(said(&answers), [(P, invalid, 0)], "case {case}");
        let (attr, _) = script.host.engine.query_qp(script.qp.qpn).unwrap();
        assert_eq!(attr.state, Some(QpState::Err));
    }
}

#[test]
fn the_queue_brings_the_protection_domain() {
    let (mut script, srq, _queue) = target();
    let rest = with(reth(0, script.rkey(), 4), &[3; 4]);
    let answers = script.send(Op::WriteOnly, P, true, &xrc(srq.number(), &rest));
    assert_eq!(said(&answers), [(P, ACK, 1)]);
    assert_eq!(script.host.read(0, 4), [3; 4]);
    // A queue of another domain cannot reach the same memory.
    let (mut script, ..) = target();
    let pd = script.host.engine.alloc_pd().unwrap();
    let (_, init) = script.host.engine.query_qp(script.qp.qpn).unwrap();
    let xrc_of = Some((init.xrcd.unwrap(), script.host.cq));
    let attr = SrqInitAttr { pd, max_wr: 16, max_sge: 4, limit: 0, xrc: xrc_of };
    let (other, _queue) = script.host.engine.create_srq(attr).unwrap();
    let answers = script.send(Op::WriteOnly, P, true, &xrc(other.number(), &rest));
    assert_eq!(said(&answers), [(P, Syndrome::Nak(NakCode::RemoteAccess), 0)]);
}
