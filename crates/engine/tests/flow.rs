//! Flow control of the requester: fences, responder resources, windows and credits.

use feroce_engine::{
    Config, Data, QpAttr, QpType, Remote, SendFlags, SendOp, SendWr, WcStatus, WindowConfig,
};
use feroce_testkit::script::{ACK, MTU, aeth, nak, no_credits, psns, reth, said, seen, with};
use feroce_testkit::{OUR_PSN, PEER_PSN, PEER_QPN, Packet, Scripted, bring_up, psn, wr};
use feroce_train::InlineBytes;
use feroce_wire::{CreditCode, NakCode, Op, Pmtu, Psn, Qpn, Rkey, Syndrome};

const REMOTE: Remote = Remote { addr: 0x10_0000, rkey: Rkey(0x7777) };
/// What a packet of full length counts against the window.
const COST: u64 = MTU as u64 + 512;

fn windowed(packets: u64) -> Config {
    let bytes = packets * COST;
    Config {
        window: WindowConfig { initial: bytes, min: 2 * COST, max: 64 * COST },
        tail_probe: false,
        ..no_credits()
    }
}

fn rc(config: Config) -> Scripted {
    Scripted::with_config(QpType::Rc, QpAttr::default(), config)
}

fn long_write(script: &Scripted, wr_id: u64, packets: usize) -> SendWr {
    wr(wr_id, SendOp::Write(REMOTE), script.host.data(0, (packets * MTU) as u32))
}

#[test]
fn a_fence_waits_for_reads_and_atomics_only() {
    let mut script = Scripted::rc();
    let data = script.host.data(0, 8);
    let fenced = |id| SendWr {
        flags: SendFlags::SIGNALED | SendFlags::FENCE,
        ..wr(id, SendOp::Send, Data::EMPTY)
    };
    // A write before it does not hold it back.
    let packets = script.post_all([wr(1, SendOp::Send, Data::EMPTY), fenced(2)]);
    assert_eq!(psns(&packets), [OUR_PSN, OUR_PSN + 1]);
    let packets = script.post_all([wr(3, SendOp::Read(REMOTE), data.clone()), fenced(4)]);
    assert_eq!(psns(&packets), [OUR_PSN + 2]);
    let next = script.respond(Op::ReadResponseOnly, OUR_PSN + 2, &[0; 8]);
    assert_eq!(seen(&next), [(Op::SendOnly, OUR_PSN + 3)]);
    let add = SendOp::FetchAdd { remote: REMOTE, add: 1 };
    let packets = script.post_all([wr(5, add, data), fenced(6)]);
    assert_eq!(psns(&packets), [OUR_PSN + 4]);
    let next = script.respond_atomic(OUR_PSN + 4, 1);
    assert_eq!(seen(&next), [(Op::SendOnly, OUR_PSN + 5)]);
}

#[test]
fn reads_and_atomics_outstanding_keep_to_the_limit() {
    let mut script = Scripted::rc_with(QpAttr { max_rd_atomic: Some(2), ..QpAttr::default() });
    let data = script.host.data(0, 8);
    let read = |id| wr(id, SendOp::Read(REMOTE), data.clone());
    let add = |id| wr(id, SendOp::FetchAdd { remote: REMOTE, add: 1 }, data.clone());
    let packets = script.post_all([read(1), add(2), read(3), wr(4, SendOp::Send, Data::EMPTY)]);
    // What follows the read that waits keeps its place behind it.
    assert_eq!(psns(&packets), [OUR_PSN, OUR_PSN + 1]);
    let next = script.respond(Op::ReadResponseOnly, OUR_PSN, &[0; 8]);
    assert_eq!(seen(&next), [(Op::ReadRequest, OUR_PSN + 2), (Op::SendOnly, OUR_PSN + 3)]);
}

#[test]
fn a_long_read_is_asked_for_in_pieces() {
    let chunk = 4 * MTU as u64;
    let mut script = rc(Config { read_chunk: chunk, ..no_credits() });
    let data = script.host.data(0, 10 * MTU as u32);
    let packets = script.post(wr(1, SendOp::Read(REMOTE), data));
    let asked: Vec<_> =
        packets.iter().map(|p| (p.op(), p.psn(), p.exts().reth.map(|r| (r.va, r.len)))).collect();
    let piece = |i: u32, len: u64| {
        let va = REMOTE.addr + u64::from(i) * MTU as u64;
        (Op::ReadRequest, OUR_PSN + i, Some((va, len as u32)))
    };
    assert_eq!(asked, [piece(0, chunk), piece(4, chunk), piece(8, 2 * MTU as u64)]);
}

#[test]
fn every_piece_of_a_read_occupies_a_responder_resource() {
    let with = QpAttr { max_rd_atomic: Some(2), ..QpAttr::default() };
    let config = Config { read_chunk: 2 * MTU as u64, ..no_credits() };
    let mut script = Scripted::with_config(QpType::Rc, with, config);
    let data = script.host.data(0, 8 * MTU as u32);
    assert_eq!(psns(&script.post(wr(1, SendOp::Read(REMOTE), data))), [OUR_PSN, OUR_PSN + 2]);
    assert!(script.respond(Op::ReadResponseFirst, OUR_PSN, &[0; MTU]).is_empty());
    let next = script.respond(Op::ReadResponseLast, OUR_PSN + 1, &[0; MTU]);
    assert_eq!(psns(&next), [OUR_PSN + 4]);
}

/// Answers to a read in pieces: every piece has a first and a last packet of its own.
#[test]
fn the_answers_to_all_pieces_complete_one_read() {
    let mut script = rc(Config { read_chunk: 2 * MTU as u64, ..no_credits() });
    let data = script.host.data(0, 5 * MTU as u32);
    script.post(wr(1, SendOp::Read(REMOTE), data));
    let ops = [
        Op::ReadResponseFirst,
        Op::ReadResponseLast,
        Op::ReadResponseFirst,
        Op::ReadResponseLast,
        Op::ReadResponseOnly,
    ];
    for (i, op) in ops.into_iter().enumerate() {
        assert!(script.done().is_empty());
        script.respond(op, OUR_PSN + i as u32, &[i as u8 + 1; MTU]);
    }
    assert_eq!(script.done(), [(1, WcStatus::Success)]);
    for i in 0..5 {
        assert_eq!(script.host.read(i * MTU, MTU), [i as u8 + 1; MTU]);
    }
}

/// The responder remembers pieces as they were asked for: what is asked again must lie inside
/// one of them (IBTA vol1 9.7.5.1.4).
#[test]
fn a_piece_asked_for_again_ends_where_it_ended_before() {
    let mut script = rc(Config { read_chunk: 4 * MTU as u64, ..no_credits() });
    let data = script.host.data(0, 8 * MTU as u32);
    script.post(wr(1, SendOp::Read(REMOTE), data));
    script.respond(Op::ReadResponseFirst, OUR_PSN, &[0; MTU]);
    // The second packet is missing.
    let again = script.respond(Op::ReadResponseMiddle, OUR_PSN + 2, &[0; MTU]);
    let asked: Vec<_> = again.iter().map(|p| (p.psn(), p.exts().reth.unwrap().len)).collect();
    let len = |n: u32| n * MTU as u32;
    assert_eq!(asked, [(OUR_PSN + 1, len(3)), (OUR_PSN + 4, len(4))]);
}

#[test]
fn a_read_that_goes_back_with_a_smaller_window_keeps_to_its_pieces() {
    let mut script = rc(Config { read_chunk: 4 * MTU as u64, ..windowed(8) });
    let data = script.host.data(0, 8 * MTU as u32);
    let lens = |packets: &[Packet]| -> Vec<_> {
        packets.iter().map(|p| (p.psn() - OUR_PSN, p.exts().reth.unwrap().len / 1024)).collect()
    };
    assert_eq!(lens(&script.post(wr(1, SendOp::Read(REMOTE), data))), [(0, 4), (4, 4)]);
    // Everything is lost three times; each loss shrinks the window by 25 %, to 6, 4 and 3 packets.
    // Until an answer arrives, the requester requests one piece at a time, and the whole piece: a
    // responder that remembers only the last request would not answer for the beginning of a piece
    // after the requester had requested its end alone.
    for _ in 0..3 {
        assert_eq!(lens(&script.wait(4096 << 14)), [(0, 4)]);
    }
    // The window opens again by answers: the rest of the first piece, then the second.
    let mut asked = vec![(0, 4)];
    let mut answered = 0;
    while let Some(&(at, len)) = asked.get(answered) {
        assert_eq!(at / 4, (at + len - 1) / 4, "{at}+{len} spans two pieces");
        for i in 0..len {
            let op = match (i == 0, i + 1 == len) {
                (true, true) => Op::ReadResponseOnly,
                (true, false) => Op::ReadResponseFirst,
                (false, true) => Op::ReadResponseLast,
                (false, false) => Op::ReadResponseMiddle,
            };
            asked.extend(lens(&script.respond(op, OUR_PSN + at + i, &[0; MTU])));
        }
        answered += 1;
    }
    assert_eq!(script.done(), [(1, WcStatus::Success)]);
}

#[test]
fn bytes_in_flight_stay_inside_the_window() {
    let mut script = rc(windowed(8));
    let request = long_write(&script, 1, 40);
    assert_eq!(script.post(request).len(), 8);
    // Each acknowledgement makes as much room as it covers.
    assert_eq!(psns(&script.answer(OUR_PSN + 2, ACK)), [OUR_PSN + 8, OUR_PSN + 9, OUR_PSN + 10]);
    assert_eq!(psns(&script.answer(OUR_PSN + 3, ACK)), [OUR_PSN + 11]);
}

/// Otherwise the acknowledgement of each short train would make room for another short train, for
/// ever (silly window syndrome).
#[test]
fn a_little_room_is_left_until_there_is_more() {
    let mut script = rc(windowed(40));
    let request = long_write(&script, 1, 47);
    assert_eq!(script.post(request).len(), 40);
    // Less than an eighth of the window.
    assert!(script.answer(OUR_PSN + 3, ACK).is_empty());
    assert_eq!(script.answer(OUR_PSN + 4, ACK).len(), 5);
    // The last two packets of the message are all that is left.
    assert!(script.answer(OUR_PSN + 5, ACK).is_empty());
    assert_eq!(script.answer(OUR_PSN + 6, ACK).len(), 2);
}

#[test]
fn a_little_room_is_used_by_whom_no_answer_would_bring_more() {
    let mut script = rc(windowed(40));
    let mut other = second(&mut script);
    // The other fills the window, but for a little room.
    other.sq.post(long_write(&script, 2, 36)).unwrap();
    assert_eq!(script.host.transmit(script.now).len(), 36);
    let request = long_write(&script, 1, 20);
    assert_eq!(script.post(request).len(), 4);
}

#[test]
fn the_data_that_a_read_brings_counts_against_the_window() {
    let mut script = rc(Config { read_chunk: 4 * MTU as u64, ..windowed(8) });
    let data = script.host.data(0, 16 * MTU as u32);
    assert_eq!(psns(&script.post(wr(1, SendOp::Read(REMOTE), data))), [OUR_PSN, OUR_PSN + 4]);
}

/// Otherwise a whole window of packets would wait for one acknowledgement, and the path would be
/// idle meanwhile.
#[test]
fn an_acknowledgement_is_asked_for_every_quarter_of_the_window() {
    for window in [8, 40, 62] {
        let mut script = rc(windowed(window));
        let request = long_write(&script, 1, 64);
        let packets = script.post(request);
        assert_eq!(packets.len() as u64, window);
        let asked: Vec<_> = (1..).zip(&packets).filter(|(_, p)| p.bth().ack_req).collect();
        let quarter = window.div_ceil(4) as usize;
        let mut last = 0;
        for (i, _) in asked {
            assert!(i - last <= quarter, "window {window}: {last} to {i}");
            last = i;
        }
        assert!(packets.len() - last < quarter, "window {window}: nothing after {last}");
    }
}

#[test]
fn the_window_shrinks_once_per_round_trip_and_grows_again() {
    let mut script = rc(windowed(8));
    let request = long_write(&script, 1, 60);
    script.post(request);
    let sequence = nak(NakCode::PsnSequence);
    assert_eq!(script.answer(OUR_PSN, sequence).len(), 6);
    // A second report within the round trip does not shrink it again.
    assert_eq!(script.answer(OUR_PSN, sequence).len(), 6);
    script.now = script.now.plus_nanos(1_000_000);
    assert_eq!(script.answer(OUR_PSN, sequence).len(), 4);
    // A window's worth of acknowledged bytes adds a few packets.
    let mut sent = OUR_PSN + 4;
    let mut largest = 0;
    for _ in 0..6 {
        let burst = script.answer(sent - 1, ACK).len() as u32;
        largest = largest.max(burst);
        sent += burst;
    }
    assert!(largest > 8, "the window grew to {largest} packets only");
}

#[test]
fn the_window_grows_by_a_quarter_until_something_is_lost() {
    let window = WindowConfig { initial: 64 * COST, min: 2 * COST, max: 512 * COST };
    let mut script = rc(Config { window, ..windowed(64) });
    let request = long_write(&script, 1, 400);
    assert_eq!(script.post(request).len(), 64);
    assert_eq!(script.answer(OUR_PSN + 63, ACK).len(), 80);
    assert_eq!(script.answer(OUR_PSN + 143, ACK).len(), 100);
    assert_eq!(script.answer(OUR_PSN + 144, nak(NakCode::PsnSequence)).len(), 75);
    // By 8 KiB from now on.
    assert_eq!(script.answer(OUR_PSN + 218, ACK).len(), 80);
}

/// With more in flight, acknowledgements would arrive later still, perhaps after a retransmission.
#[test]
fn the_window_grows_by_little_where_answers_take_long() {
    let window = WindowConfig { initial: 64 * COST, min: 2 * COST, max: 512 * COST };
    let mut script = rc(Config { window, ..windowed(64) });
    let request = long_write(&script, 1, 400);
    assert_eq!(script.post(request).len(), 64);
    script.now = script.now.plus_nanos(1_000_000);
    assert_eq!(script.answer(OUR_PSN + 63, ACK).len(), 80);
    script.now = script.now.plus_nanos(30_000_000);
    assert_eq!(script.answer(OUR_PSN + 143, ACK).len(), 85);
}

/// If answers take equally long however much is in flight, the path is long, not congested.
#[test]
fn the_window_grows_by_a_quarter_where_the_peer_is_far() {
    let window = WindowConfig { initial: 64 * COST, min: 2 * COST, max: 512 * COST };
    let mut script = rc(Config { window, ..windowed(64) });
    let request = long_write(&script, 1, 400);
    assert_eq!(script.post(request).len(), 64);
    script.now = script.now.plus_nanos(30_000_000);
    assert_eq!(script.answer(OUR_PSN + 63, ACK).len(), 80);
    script.now = script.now.plus_nanos(30_000_000);
    assert_eq!(script.answer(OUR_PSN + 143, ACK).len(), 100);
}

#[test]
fn a_window_that_is_not_used_grows_by_little() {
    let window = WindowConfig { initial: 64 * COST, min: 2 * COST, max: 512 * COST };
    let mut script = rc(Config { window, ..windowed(64) });
    for i in 0..4 {
        let request = long_write(&script, 1, 16);
        assert_eq!(script.post(request).len(), 16);
        script.answer(OUR_PSN + 16 * i + 15, ACK);
    }
    let request = long_write(&script, 1, 120);
    assert_eq!(script.post(request).len(), 69);
}

/// Where the second queue pair is connected.
const OTHER_QPN: Qpn = Qpn::new(0x43);

/// A second queue pair to the same destination.
fn second(script: &mut Scripted) -> feroce_testkit::TestQp {
    let init = script.host.init_attr(QpType::Rc);
    let mut qp = script.host.create_qp(init);
    qp.first_psn = Psn::new(OUR_PSN);
    let peer = (script.peer, OTHER_QPN, psn(0));
    bring_up(&mut script.host, script.now, &qp, peer, Pmtu::B1024, &QpAttr::default());
    qp
}

#[test]
fn queue_pairs_to_one_destination_share_its_window() {
    let mut script = rc(windowed(8));
    let mut other = second(&mut script);
    let requests = (long_write(&script, 1, 30), long_write(&script, 2, 30));
    script.qp.sq.post(requests.0).unwrap();
    other.sq.post(requests.1).unwrap();
    let count = |packets: &[Packet], qpn| packets.iter().filter(|p| p.bth().dest_qp == qpn).count();
    let packets = script.host.transmit(script.now);
    assert_eq!(packets.len(), 8, "both together");
    let mut sent = [count(&packets, PEER_QPN), count(&packets, OTHER_QPN)];
    // One of them gets everything acknowledged again and again; the other gets its turns too.
    for _ in 0..10 {
        if sent[0] == 0 {
            break;
        }
        let packets = script.answer(OUR_PSN + sent[0] as u32 - 1, ACK);
        sent[0] += count(&packets, PEER_QPN);
        sent[1] += count(&packets, OTHER_QPN);
    }
    assert!(sent[0] > 0 && sent[1] > 0, "{sent:?}");
}

#[test]
fn whoever_waits_for_the_window_is_woken_when_it_opens() {
    let mut script = rc(windowed(4));
    let mut other = second(&mut script);
    let request = long_write(&script, 1, 4);
    assert_eq!(script.post(request).len(), 4);
    other.sq.post(wr(2, SendOp::Send, script.host.data(0, 100))).unwrap();
    assert!(script.host.transmit(script.now).is_empty());
    let woken = script.answer(OUR_PSN + 3, ACK);
    assert_eq!(seen(&woken), [(Op::SendOnly, OUR_PSN)]);
    assert_eq!(script.done(), [(1, WcStatus::Success)]);
}

#[test]
fn a_queue_pair_that_dies_gives_its_share_of_the_window_back() {
    let mut script = rc(windowed(4));
    let mut other = second(&mut script);
    let request = long_write(&script, 1, 4);
    script.post(request);
    other.sq.post(wr(2, SendOp::Send, script.host.data(0, 100))).unwrap();
    assert!(script.host.transmit(script.now).is_empty());
    script.host.modify(script.now, script.qp.qpn, &QpAttr::to(feroce_engine::QpState::Err));
    assert_eq!(seen(&script.host.transmit(script.now)), [(Op::SendOnly, OUR_PSN)]);
}

fn credits(n: u8) -> Syndrome {
    Syndrome::Ack { credits: CreditCode::new(n) }
}

/// Acknowledges `psn` with `msn` and a credit code.
fn grant(script: &mut Scripted, psn: u32, msn: u32, code: u8) -> Vec<Packet> {
    let rest = aeth(credits(code), msn);
    script.send(Op::Acknowledge, psn, false, &rest)
}

#[test]
fn sends_go_one_beyond_the_credits() {
    let mut script = Scripted::rc();
    let send = |id| wr(id, SendOp::Send, Data::EMPTY);
    // Nothing is known about credits yet: no limit.
    assert_eq!(script.post(send(1)).len(), 1);
    // One message is done, two receives are left: the requester sends two more, and one beyond the
    // credits, whose answer brings new ones.
    assert!(grant(&mut script, OUR_PSN, 1, 2).is_empty());
    let packets = script.post_all((2..8).map(send));
    assert_eq!(psns(&packets), [OUR_PSN + 1, OUR_PSN + 2, OUR_PSN + 3]);
    assert!(packets.iter().all(|p| p.bth().ack_req));
    // The peer posted more.
    let next = grant(&mut script, OUR_PSN + 1, 2, 3);
    assert_eq!(psns(&next), [OUR_PSN + 4, OUR_PSN + 5]);
    let next = grant(&mut script, OUR_PSN + 5, 6, 31);
    assert_eq!(psns(&next), [OUR_PSN + 6], "no end-to-end flow control, no limit");
}

#[test]
fn an_acknowledgement_said_again_may_bring_credits() {
    let mut script = Scripted::rc();
    let send = |id| wr(id, SendOp::Send, Data::EMPTY);
    script.post(send(1));
    grant(&mut script, OUR_PSN, 1, 0);
    assert_eq!(psns(&script.post_all((2..5).map(send))), [OUR_PSN + 1]);
    assert_eq!(psns(&grant(&mut script, OUR_PSN, 1, 2)), [OUR_PSN + 2, OUR_PSN + 3]);
}

#[test]
fn writes_and_reads_need_no_credits() {
    let mut script = Scripted::rc();
    script.post(wr(1, SendOp::Send, Data::EMPTY));
    grant(&mut script, OUR_PSN, 1, 0);
    let data = script.host.data(0, 8);
    let packets = script.post_all([
        wr(2, SendOp::Send, Data::EMPTY),
        wr(3, SendOp::Write(REMOTE), data.clone()),
        wr(4, SendOp::Read(REMOTE), data),
    ]);
    assert_eq!(packets.len(), 3);
}

/// Requests that need no receive do not use up the credits of those that do.
#[test]
fn a_send_behind_writes_and_reads_goes_by_its_own_credit() {
    let mut script = rc(Config { read_chunk: MTU as u64, ..no_credits() });
    script.post(wr(1, SendOp::Send, Data::EMPTY));
    grant(&mut script, OUR_PSN, 1, 1);
    let data = script.host.data(0, 8);
    let long = script.host.data(0, 3 * MTU as u32);
    let send = |id| wr(id, SendOp::Send, Data::EMPTY);
    let write = wr(2, SendOp::Write(REMOTE), data);
    let read = wr(3, SendOp::Read(REMOTE), long);
    // One receive, and one send beyond it.
    let packets = script.post_all([write, read, send(4), send(5), send(6)]);
    let next = OUR_PSN + 5;
    assert_eq!(psns(&packets)[4..], [next, next + 1]);
    // The credits in the acknowledgement of the write count from the write, so they do not revoke
    // those that later sends use.
    assert!(grant(&mut script, OUR_PSN + 1, 2, 1).is_empty());
    for i in 2..5 {
        let rest = with(aeth(credits(1), i + 1), &[0; MTU]);
        assert!(script.send(Op::ReadResponseOnly, OUR_PSN + i, false, &rest).is_empty());
    }
    assert_eq!(psns(&grant(&mut script, next, 6, 1)), [next + 2]);
}

#[test]
fn an_acknowledgement_that_may_wait_leaves_behind_what_the_consumer_sends() {
    let mut script = Scripted::rc();
    script.host.engine.hold_acks(true);
    let target = script.host.remote(0);
    let write = with(reth(target.addr, target.rkey, 4), &[1, 2, 3, 4]);
    assert_eq!(seen(&script.send(Op::WriteOnly, PEER_PSN, true, &write)), []);
    assert!(script.host.engine.has_held_acks());
    assert_eq!(script.host.engine.acks_held_since(), Some(script.now));
    let sent = script.post(wr(1, SendOp::Send, Data::EMPTY));
    assert_eq!(seen(&sent), [(Op::SendOnly, OUR_PSN), (Op::Acknowledge, PEER_PSN)]);
    // When the wait ends, no acknowledgement is sent twice.
    script.host.engine.hold_acks(false);
    assert_eq!(seen(&script.wait(0)), []);
}

#[test]
fn an_acknowledgement_waits_only_as_long_as_it_may() {
    let mut script = Scripted::rc();
    script.host.engine.hold_acks(true);
    let target = script.host.remote(0);
    let write = with(reth(target.addr, target.rkey, 4), &[1, 2, 3, 4]);
    for i in 0..3 {
        assert_eq!(seen(&script.send(Op::WriteOnly, PEER_PSN + i, true, &write)), []);
    }
    // One acknowledgement suffices for all.
    script.host.engine.hold_acks(false);
    assert!(!script.host.engine.has_held_acks());
    assert_eq!(seen(&script.wait(0)), [(Op::Acknowledge, PEER_PSN + 2)]);
    // A NAK is not held back.
    script.host.engine.hold_acks(true);
    let out_of_order = script.send(Op::WriteOnly, PEER_PSN + 5, true, &write);
    assert_eq!(said(&out_of_order)[0].1, nak(NakCode::PsnSequence));
}

#[test]
fn an_acknowledgement_lets_only_one_train_pass() {
    let mut script = rc(windowed(64));
    script.host.engine.hold_acks(true);
    let target = script.host.remote(0);
    let write = with(reth(target.addr, target.rkey, 4), &[1, 2, 3, 4]);
    assert_eq!(seen(&script.send(Op::WriteOnly, PEER_PSN, true, &write)), []);
    // Messages of one length would be one train.
    let data = |len| Data::Inline(InlineBytes::new(&[0; 8][..len]));
    let sent = script.post_all([0, 4, 8].map(|len| wr(1, SendOp::Send, data(len))));
    let ops: Vec<_> = sent.iter().map(Packet::op).collect();
    assert_eq!(ops, [Op::SendOnly, Op::Acknowledge, Op::SendOnly, Op::SendOnly]);
}
