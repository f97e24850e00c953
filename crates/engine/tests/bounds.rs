//! What a peer can make the engine keep is bounded.

use feroce_engine::{QpAttr, QpState, QpType, SendOp, SendWr, WcStatus};
use feroce_testkit::script::{atomic, reth, rnr, said, with};
use feroce_testkit::{CAPS, PEER_PSN, Packet, Scripted, header};
use feroce_train::RxTrain;
use feroce_wire::{NakCode, Op, Reth, Rkey, Syndrome};

/// Delivers packets while the link takes nothing, `times` times over; then what is sent.
fn flood(s: &mut Scripted, packets: &[Packet], times: usize) -> Vec<Packet> {
    for p in std::iter::repeat_n(packets, times).flatten() {
        s.host.engine.handle_rx(s.now, &RxTrain::single(p.meta, &p.bytes));
    }
    s.host.transmit(s.now)
}

#[test]
fn asking_again_for_every_part_of_a_read_does_not_pile_up_answers() {
    let with = QpAttr { max_dest_rd_atomic: Some(2), ..QpAttr::default() };
    let mut s = Scripted::new(QpType::Rc, with);
    let (rkey, len) = (Rkey(s.host.lkey.0), 64 << 10);
    let read = |va: u64, len: u32| header(|out| Reth { va, rkey, len }.emit(out));
    let first = s.send(Op::ReadRequest, PEER_PSN, true, &read(0, len));
    assert_eq!(first.len(), 64);
    // Sixty-four repetitions at once, each from one packet further on.
    for i in 0..64_u32 {
        let body = read(u64::from(i) * 1024, len - i * 1024);
        let packet = s.packet(Op::ReadRequest, PEER_PSN + i, true, &body);
        s.host.engine.handle_rx(s.now, &RxTrain::single(packet.meta, &packet.bytes));
    }
    assert_eq!(s.host.engine.drops().drop_rate_limited, 62);
    let answers = s.host.transmit(s.now);
    assert_eq!(answers.len(), 64 + 63);
}

#[test]
fn an_acknowledgement_said_again_does_not_hide_a_later_one() {
    let mut s = Scripted::new(QpType::Rc, QpAttr::default());
    let rq = s.qp.rq.as_mut().expect("it has a receive queue");
    for i in 0..2 {
        rq.post(s.host.recv(i, 0, 64)).expect("there is room");
    }
    let rkey = Rkey(s.host.lkey.0);
    let read = header(|out| Reth { va: 0, rkey, len: 8 }.emit(out));
    // SEND, READ, SEND, and the first SEND again before anything is answered.
    let packets = [
        s.packet(Op::SendOnly, PEER_PSN, true, b"1"),
        s.packet(Op::ReadRequest, PEER_PSN + 1, true, &read),
        s.packet(Op::SendOnly, PEER_PSN + 2, true, b"2"),
        s.packet(Op::SendOnly, PEER_PSN, true, b"1"),
    ];
    for p in &packets {
        s.host.engine.handle_rx(s.now, &RxTrain::single(p.meta, &p.bytes));
    }
    let said: Vec<_> = s.host.transmit(s.now).iter().map(|p| (p.op(), p.psn())).collect();
    let expected = [
        (Op::Acknowledge, PEER_PSN),
        (Op::ReadResponseOnly, PEER_PSN + 1),
        (Op::Acknowledge, PEER_PSN + 2),
    ];
    assert_eq!(said, expected);
}

#[test]
fn an_atomic_write_said_again_is_answered_and_not_executed() {
    let mut s = Scripted::new(QpType::Rc, QpAttr::default());
    let rkey = Rkey(s.host.lkey.0);
    let mut body = header(|out| Reth { va: 64, rkey, len: 8 }.emit(out));
    body.extend_from_slice(&7_u64.to_ne_bytes());
    for _ in 0..2 {
        let said = s.send(Op::AtomicWrite, PEER_PSN, true, &body);
        let said: Vec<_> = said.iter().map(|p| (p.op(), p.psn(), p.rest().len())).collect();
        assert_eq!(said, [(Op::ReadResponseOnly, PEER_PSN, 4)]);
        assert_eq!(s.host.region.load_u64(64), Ok(7));
        // The duplicate has another value, which must not be written.
        body[16..].copy_from_slice(&9_u64.to_ne_bytes());
    }
}

#[test]
fn asking_again_for_atomics_does_not_pile_up_answers() {
    let limit = QpAttr { max_dest_rd_atomic: Some(2), ..QpAttr::default() };
    let rkey = Scripted::new(QpType::Rc, limit).rkey();
    let word = with(reth(64, rkey, 8), &[7; 8]);
    for (op, body) in [(Op::FetchAdd, atomic(0, rkey, 1, 0)), (Op::AtomicWrite, word)] {
        let mut s = Scripted::new(QpType::Rc, limit);
        let write = s.packet(Op::WriteOnly, PEER_PSN, true, &reth(0, rkey, 0));
        let atomic = s.packet(op, PEER_PSN + 1, true, &body);
        let first = flood(&mut s, &[write.clone(), atomic.clone()], 1);
        assert_eq!(first.len(), 2);
        // Each repeated acknowledgement is queued between two repeated answers.
        let again = flood(&mut s, &[atomic, write], 1000);
        assert!(again.len() <= 5, "{}", again.len());
    }
}

#[test]
fn bad_news_does_not_pile_up() {
    let mut s = Scripted::rc();
    // The peer sends again and again while no receive is posted.
    let send = s.packet(Op::SendOnly, PEER_PSN, true, b"1");
    let answers = flood(&mut s, &[send], 1000);
    assert_eq!(said(&answers), [(PEER_PSN, rnr(12), 0)]);
    // A gap before every packet.
    let none = reth(0, s.rkey(), 0);
    let far = s.packet(Op::WriteOnly, PEER_PSN + 5000, false, &none);
    for i in 0..1000 {
        let write = s.packet(Op::WriteOnly, PEER_PSN + i, false, &none);
        for p in [&write, &far] {
            s.host.engine.handle_rx(s.now, &RxTrain::single(p.meta, &p.bytes));
        }
    }
    let gap = Syndrome::Nak(NakCode::PsnSequence);
    assert_eq!(said(&s.host.transmit(s.now)), [(PEER_PSN + 1000, gap, 1000)]);
}

#[test]
fn an_unreliable_send_completes_only_when_its_bytes_have_been_read() {
    let mut s = Scripted::new(QpType::Uc, QpAttr::default());
    let data = s.host.data(0, 100);
    s.qp.sq.post(SendWr::new(1, SendOp::Send, data)).expect("there is room");
    let train = s.host.engine.poll_transmit(s.now, &CAPS).expect("a train");
    assert!(s.host.engine.poll_transmit(s.now, &CAPS).is_none());
    s.host.engine.handle_timeout(s.now);
    assert_eq!(s.host.poll(), None);
    // A transition to the error state does not overtake the completion, either.
    s.host.modify(s.now, s.qp.qpn, &QpAttr::to(QpState::Err));
    assert_eq!(s.host.poll(), None);
    drop(train);
    s.host.engine.trains_read();
    assert_eq!(s.host.poll().map(|c| (c.wr_id, c.status)), Some((1, WcStatus::Success)));
}
