//! Unreliable connections: a lost packet costs its own message and no other.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use feroce_engine::{QpAttr, QpState, QpType, SendOp, WcFlags, WcOpcode, WcStatus};
use feroce_mem::Access;
use feroce_testkit::{PEER_PSN, Packet, Pair, Scripted, TestQp, header, wr};
use feroce_wire::{Imm, ImmDt, Op, Reth, Rkey};

/// Posts messages of 3000 bytes (three packets) and carries all packets but `lost`.
fn carry(pair: &mut Pair, qa: &mut TestQp, op: SendOp, messages: u64, lost: &[usize]) {
    for id in 0..messages {
        qa.sq.post(wr(id, op, pair.a.data(0, 3000))).unwrap();
    }
    let packets = pair.a.transmit(pair.now);
    assert_eq!(packets.len(), messages as usize * 3);
    for (i, packet) in packets.iter().enumerate() {
        if !lost.contains(&i) {
            pair.b.receive(pair.now, packet);
        }
    }
    // The sender does not learn of the loss.
    let done: Vec<_> = pair.a.poll_all().iter().map(|c| c.status).collect();
    assert_eq!(done, vec![WcStatus::Success; messages as usize]);
    assert!(pair.b.transmit(pair.now).is_empty());
}

fn received(pair: &mut Pair) -> Vec<(u64, WcStatus, u32)> {
    pair.b.poll_all().iter().map(|c| (c.wr_id, c.status, c.byte_len)).collect()
}

#[test]
fn a_message_that_lost_a_packet_is_dropped_and_its_receive_takes_the_next() {
    for lost in [[0], [1], [2]] {
        let mut pair = Pair::default();
        let (mut qa, mut qb) = pair.connect(QpType::Uc);
        for id in 10..13 {
            qb.rq.as_mut().unwrap().post(pair.b.recv(id, 10_000 * id, 3000)).unwrap();
        }
        let bytes = pair.a.fill(0, 3000, 4);
        carry(&mut pair, &mut qa, SendOp::Send, 3, &lost);
        let expected = [(10, WcStatus::Success, 3000), (11, WcStatus::Success, 3000)];
        assert_eq!(received(&mut pair), expected, "lost {lost:?}");
        assert_eq!(pair.b.read(100_000, 3000), bytes);
        assert_eq!(qb.sq.state(), QpState::Rts);
        assert_eq!(pair.b.async_events(), []);
    }
}

#[test]
fn several_losses_in_a_row_resynchronise_at_the_next_beginning() {
    let mut pair = Pair::default();
    let (mut qa, mut qb) = pair.connect(QpType::Uc);
    qb.rq.as_mut().unwrap().post(pair.b.recv(1, 0, 3000)).unwrap();
    // All of the first, the beginning of the second, the middle of the third.
    carry(&mut pair, &mut qa, SendOp::Send, 4, &[0, 1, 2, 3, 7]);
    assert_eq!(received(&mut pair), [(1, WcStatus::Success, 3000)]);
    assert!(pair.b.engine.drops().drop_bad_sequence >= 3);
}

#[test]
fn a_write_that_lost_its_end_left_only_its_beginning() {
    let mut pair = Pair::default();
    let (mut qa, mut qb) = pair.connect(QpType::Uc);
    qb.rq.as_mut().unwrap().post(pair.b.recv(1, 0, 0)).unwrap();
    let bytes = pair.a.fill(0, 3000, 4);
    let op = SendOp::WriteImm(pair.b.remote(50_000), Imm(9));
    carry(&mut pair, &mut qa, op, 1, &[1]);
    assert_eq!(received(&mut pair), []);
    assert_eq!(pair.b.read(50_000, 1024), bytes[..1024]);
    assert_eq!(pair.b.read(51_024, 1976), vec![0; 1976]);
    carry(&mut pair, &mut qa, op, 1, &[]);
    let done = pair.b.poll().unwrap();
    assert_eq!((done.wr_id, done.opcode, done.byte_len), (1, WcOpcode::RecvWriteImm, 3000));
    assert_eq!((done.flags, done.imm), (WcFlags::WITH_IMM, Imm(9)));
    assert_eq!(pair.b.read(50_000, 3000), bytes);
}

#[test]
fn without_a_receive_a_message_is_dropped() {
    let mut pair = Pair::default();
    let (mut qa, mut qb) = pair.connect(QpType::Uc);
    carry(&mut pair, &mut qa, SendOp::Send, 1, &[]);
    let op = SendOp::WriteImm(pair.b.remote(0), Imm(9));
    carry(&mut pair, &mut qa, op, 1, &[]);
    assert_eq!(received(&mut pair), []);
    assert_eq!(pair.b.engine.drops().drop_no_receive, 2);
    qb.rq.as_mut().unwrap().post(pair.b.recv(1, 0, 3000)).unwrap();
    carry(&mut pair, &mut qa, SendOp::Send, 1, &[]);
    assert_eq!(received(&mut pair), [(1, WcStatus::Success, 3000)]);
}

#[test]
fn a_message_too_long_for_its_receive_stops_the_queue_pair() {
    let mut pair = Pair::default();
    let (mut qa, mut qb) = pair.connect(QpType::Uc);
    qb.rq.as_mut().unwrap().post(pair.b.recv(1, 0, 2999)).unwrap();
    qb.rq.as_mut().unwrap().post(pair.b.recv(2, 0, 3000)).unwrap();
    carry(&mut pair, &mut qa, SendOp::Send, 1, &[]);
    let expected = [(1, WcStatus::LocalLength, 0), (2, WcStatus::Flushed, 0)];
    assert_eq!(received(&mut pair), expected);
    assert_eq!(qb.sq.state(), QpState::Err);
    assert_eq!(pair.b.engine.counters().resp_local_length_error, 1);
}

#[test]
fn a_receive_into_memory_that_is_not_there_stops_the_queue_pair() {
    let mut pair = Pair::default();
    let (mut qa, mut qb) = pair.connect(QpType::Uc);
    qb.rq.as_mut().unwrap().post(pair.b.recv(1, u64::MAX - 5000, 3000)).unwrap();
    qb.rq.as_mut().unwrap().post(pair.b.recv(2, 0, 3000)).unwrap();
    carry(&mut pair, &mut qa, SendOp::Send, 1, &[]);
    let expected = [(1, WcStatus::LocalProtection, 0), (2, WcStatus::Flushed, 0)];
    assert_eq!(received(&mut pair), expected);
    assert_eq!(qb.sq.state(), QpState::Err);
}

/// A write of `data` from the scripted peer.
fn write(s: &Scripted, op: Op, psn: u32, reth: Option<Reth>, data: &[u8]) -> Packet {
    let mut rest = reth.map_or_else(Vec::new, |reth| header(|out| reth.emit(out)));
    rest.extend_from_slice(data);
    s.packet(op, psn, false, &rest)
}

#[test]
fn a_refused_write_is_silent() {
    let without_write = QpAttr { access: Some(Access::REMOTE_READ), ..QpAttr::default() };
    let mut closed = Scripted::new(QpType::Uc, without_write);
    let mut open = Scripted::new(QpType::Uc, QpAttr::default());
    let good = Reth { va: 0, rkey: Rkey(open.host.lkey.0), len: 4 };
    let deliver = |s: &mut Scripted, psn, reth| {
        let packet = write(s, Op::WriteOnly, psn, Some(reth), &[1, 2, 3, 4]);
        assert!(s.deliver(&packet).is_empty());
        s.host.read(0, 4) == [1, 2, 3, 4]
    };
    let rkey = Rkey(closed.host.lkey.0);
    assert!(!deliver(&mut closed, PEER_PSN, Reth { rkey, ..good }));
    assert!(!deliver(&mut open, PEER_PSN, Reth { rkey: Rkey(1), ..good }));
    assert!(!deliver(&mut open, PEER_PSN + 1, Reth { va: u64::MAX - 1, ..good }));
    assert!(!deliver(&mut open, PEER_PSN + 2, Reth { len: 5, ..good }));
    assert!(deliver(&mut open, PEER_PSN + 3, good));
    assert_eq!(open.host.engine.drops().drop_access_denied, 2);
    assert_eq!(open.host.async_events(), []);
    assert_eq!(open.qp.sq.state(), QpState::Rts);
}

#[test]
fn packets_of_another_message_in_the_midst_of_one_end_it() {
    let mut s = Scripted::new(QpType::Uc, QpAttr::default());
    s.qp.rq.as_mut().unwrap().post(s.host.recv(1, 0, 5000)).unwrap();
    let full = [7; 1024];
    // Send first, write middle: no part of either message survives.
    s.send(Op::SendFirst, PEER_PSN, false, &full);
    s.send(Op::WriteMiddle, PEER_PSN + 1, false, &full);
    s.send(Op::SendLast, PEER_PSN + 2, false, &[1]);
    assert!(s.host.poll().is_none());
    // A new beginning in sequence abandons the old message.
    s.send(Op::SendFirst, PEER_PSN + 3, false, &full);
    let rest = [header(|out| ImmDt { imm: Imm(3) }.emit(out)), vec![5]].concat();
    s.send(Op::SendOnlyImm, PEER_PSN + 4, false, &rest);
    let done = s.host.poll().unwrap();
    assert_eq!((done.wr_id, done.byte_len, done.imm), (1, 1, Imm(3)));
    assert_eq!(s.host.read(0, 1), [5]);
}

#[test]
fn packets_of_wrong_length_end_the_message() {
    let mut s = Scripted::new(QpType::Uc, QpAttr::default());
    s.qp.rq.as_mut().unwrap().post(s.host.recv(1, 0, 5000)).unwrap();
    s.send(Op::SendFirst, PEER_PSN, false, &[7; 1000]);
    s.send(Op::SendLast, PEER_PSN + 1, false, &[7; 8]);
    s.send(Op::SendOnly, PEER_PSN + 2, false, &[7; 1028]);
    assert!(s.host.poll().is_none());
    s.send(Op::SendOnly, PEER_PSN + 3, false, &[7; 1024]);
    assert_eq!(s.host.poll().unwrap().byte_len, 1024);
}

#[test]
fn an_old_packet_does_not_count_as_new() {
    let mut s = Scripted::new(QpType::Uc, QpAttr::default());
    for id in 0..3 {
        s.qp.rq.as_mut().unwrap().post(s.host.recv(id, 0, 5000)).unwrap();
    }
    s.send(Op::SendFirst, PEER_PSN, false, &[1; 1024]);
    s.send(Op::SendFirst, PEER_PSN, false, &[1; 1024]);
    s.send(Op::SendLast, PEER_PSN + 1, false, &[2; 10]);
    let done = s.host.poll().unwrap();
    assert_eq!((done.status, done.byte_len), (WcStatus::Success, 1034));
}
