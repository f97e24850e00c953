//! Requests that Linux Soft-RoCE received, and its answers: our responder gives the same answers.
//!
//! The captures are those of the wire crate. Answers are compared byte by byte, from the base
//! transport header to the padding. Where the driver departs from the specification, the
//! specification is what we check, and the case says so.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::sync::Arc;

use feroce_engine::{Data, QpAttr, QpState, QpType, SendOp, WcFlags, WcStatus};
use feroce_mem::{Access, Bind, Iova, MwType};
use feroce_testkit::golden::{Captured, LEN, SERVER, Setup, Side, capture};
use feroce_testkit::{Packet, header, wr};
use feroce_wire::{
    Aeth, AtomicEth, CreditCode, Exts, Ieth, NakCode, Op, Pmtu, Qpn, Reth, Rkey, Syndrome,
};

/// What the keys in a capture stand for on our side.
#[derive(Clone, Copy, PartialEq)]
enum Key {
    /// All of the memory.
    Good,
    /// Nothing.
    Bad,
    /// Memory that may only be read.
    ReadOnly,
    /// A window of type 2 over bytes 4096 to 8192.
    Window,
}

/// A capture and how its server was set up.
struct Case {
    name: &'static str,
    setup: Setup,
    /// Receives that were posted, and their length.
    receives: (u64, u32),
    key: Key,
    /// A request that was lost the first time it was sent; the capture shows it all the same.
    lost: Option<(Op, u32)>,
}

fn case(name: &'static str) -> Case {
    Case { name, setup: Setup::default(), receives: (16, 16_384), key: Key::Good, lost: None }
}

/// A server playing its part of a capture.
struct Replay {
    side: Side,
    rkey: Rkey,
    packets: Vec<Captured>,
    lost: Option<(Op, u32)>,
}

impl Replay {
    fn new(case: &Case) -> Self {
        let packets = capture(case.name);
        let answer = packets.iter().find(|p| !p.from_client);
        let client = answer.map_or(Qpn::new(0xabc), |p| p.packet.bth().dest_qp);
        let mut side = Side::server(&case.setup, client);
        side.post_receives(case.receives.0, case.receives.1);
        let rkey = make_key(&mut side, case.key);
        Self { side, rkey, packets, lost: case.lost }
    }

    /// Delivers every request of the capture and returns our answers, rxe's, and the requests.
    fn run(&mut self) -> (Vec<Packet>, Vec<Packet>, usize) {
        let (mut ours, mut theirs, mut requests) = (Vec::new(), Vec::new(), 0);
        for Captured { packet, from_client } in &self.packets {
            if !from_client {
                theirs.push(packet.clone());
                continue;
            }
            requests += 1;
            let what = packet.bth().opcode.decode().map(|(_, op)| (op, packet.psn()));
            if what.is_some() && what == self.lost {
                self.lost = None;
                continue;
            }
            let own = self.side.qp.qpn;
            let packet = with_key(packet, self.rkey).with_bth(|bth| bth.dest_qp = own);
            ours.extend(self.side.deliver(&packet));
        }
        (ours, theirs, requests)
    }
}

fn make_key(side: &mut Side, key: Key) -> Rkey {
    let good = Rkey(side.key.0);
    match key {
        Key::Good => good,
        Key::Bad => Rkey(good.0 ^ 0x5a),
        Key::ReadOnly => {
            let region = Arc::clone(&side.host.region);
            let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
            let (pd, iova) = (side.host.pd, Iova::At(SERVER));
            let key = side.host.engine.reg_mr(pd, region, 0, LEN, iova, access);
            Rkey(key.unwrap().0)
        }
        Key::Window => {
            let mw = side.host.engine.alloc_mw(side.host.pd, MwType::Two).unwrap();
            let new_rkey = Rkey(mw.0 ^ 1);
            let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
            let addr = SERVER + 4096;
            let binding = Bind { mr: side.key, addr, len: 4096, access, zero_based: false };
            let bind = SendOp::BindMw { mw, new_rkey, binding };
            side.qp.sq.post(wr(9, bind, Data::EMPTY)).unwrap();
            assert!(side.host.transmit(side.now).is_empty());
            assert_eq!(side.host.poll().unwrap().status, WcStatus::Success);
            new_rkey
        }
    }
}

/// The packet with our key in the place of the captured one.
fn with_key(packet: &Packet, rkey: Rkey) -> Packet {
    let Some((service, op)) = packet.bth().opcode.decode() else {
        return packet.clone();
    };
    let Ok((exts, payload)) = Exts::parse(service, op, packet.rest()) else {
        return packet.clone();
    };
    let mut packet = packet.clone();
    let pad = usize::from(packet.bth().pad);
    let mut put = |bytes: Vec<u8>, before_payload: usize| {
        let at = packet.bytes.len() - pad - payload.len() - before_payload;
        packet.bytes[at..at + bytes.len()].copy_from_slice(&bytes);
    };
    if let Some(reth) = exts.reth {
        let imm = if exts.imm.is_some() { 4 } else { 0 };
        put(header(|out| Reth { rkey, ..reth }.emit(out)), Reth::LEN + imm);
    }
    if let Some(eth) = exts.atomic {
        put(header(|out| AtomicEth { rkey, ..eth }.emit(out)), AtomicEth::LEN);
    }
    if exts.ieth.is_some() {
        put(header(|out| Ieth { rkey }.emit(out)), Ieth::LEN);
    }
    packet
}

/// Replays captures and compares all answers; returns how many requests and answers there were.
fn same_answers(cases: &[Case]) -> (usize, usize) {
    let (mut requests, mut answers) = (0, 0);
    for case in cases {
        let mut replay = Replay::new(case);
        let (ours, theirs, count) = replay.run();
        let list = |packets: &[Packet]| -> Vec<_> {
            packets.iter().map(|p| (p.op(), p.psn(), p.exts().aeth)).collect()
        };
        assert_eq!(list(&ours), list(&theirs), "{}", case.name);
        for (i, (our, their)) in ours.iter().zip(&theirs).enumerate() {
            assert_eq!(our.bytes, their.bytes, "{} answer {i}", case.name);
        }
        requests += count;
        answers += ours.len();
    }
    (requests, answers)
}

#[test]
fn every_operation_is_answered_alike() {
    let mtu256 = Setup { mtu: Pmtu::B256, ..Setup::default() };
    let wrap = Setup { psn: 0x00ff_fffe, ..Setup::default() };
    let cases = [
        case("ops_rc"),
        Case { setup: mtu256, ..case("ops_rc_mtu256") },
        Case { setup: wrap, ..case("psn_wrap") },
        case("ops_tos"),
        Case { key: Key::Window, ..case("ops_send_inv") },
        Case { key: Key::Window, ..case("ops_send_inv_multi") },
    ];
    assert_eq!(same_answers(&cases), (81, 76));
}

#[test]
fn every_refusal_is_answered_alike() {
    let attr = Setup::default().attr;
    let read_only = QpAttr { access: Some(Access::REMOTE_READ), ..attr };
    let no_write = Setup { attr: read_only, ..Setup::default() };
    let cases = [
        case("err_oob_write"),
        Case { setup: no_write, ..case("err_qp_noperm") },
        Case { key: Key::Bad, ..case("err_rkey_atomic") },
        Case { key: Key::Bad, ..case("err_rkey_read") },
        Case { key: Key::Bad, ..case("err_rkey_write") },
        Case { key: Key::Bad, ..case("err_rkey_write_multi") },
        Case { key: Key::ReadOnly, ..case("err_ro_write") },
    ];
    assert_eq!(same_answers(&cases), (9, 7));
}

#[test]
fn every_crafted_request_that_rxe_judges_by_the_book_is_answered_alike() {
    let names = [
        "crafted_bad_icrc",
        "crafted_bad_pkey",
        "crafted_bad_tver",
        "crafted_basic",
        "crafted_becn_fecn",
        "crafted_dup_read",
        "crafted_first_only",
        "crafted_last_first",
        "crafted_limited_pkey",
        "crafted_middle_first",
        "crafted_no_ackreq",
        "crafted_no_recv",
        "crafted_psn_ahead",
        "crafted_psn_duplicate",
        "crafted_psn_far_ahead",
        "crafted_read_bad_va",
        "crafted_reserved_opcode",
        "crafted_solicited_imm",
        "crafted_uc_opcode",
        "crafted_ud_opcode",
        "crafted_unaligned_atomic",
        "crafted_write_long",
        "crafted_write_short",
    ];
    let mut cases: Vec<_> = names.into_iter().map(case).collect();
    for name in ["crafted_read0_bad_rkey", "crafted_write0_bad_rkey"] {
        cases.push(Case { key: Key::Bad, ..case(name) });
    }
    assert_eq!(same_answers(&cases), (57, 49));
}

#[test]
fn a_receiver_that_is_not_ready_says_so_alike() {
    let attr = QpAttr { min_rnr_timer: Some(26), ..Setup::default().attr };
    let setup = Setup { attr, ..Setup::default() };
    let cases = [Case { setup, receives: (0, 0), ..case("rnr_exceed") }];
    assert_eq!(same_answers(&cases), (3, 3));
}

#[test]
fn duplicates_are_answered_alike() {
    let cases = [
        case("loss_ack"),
        case("loss_atomic_resp"),
        Case { lost: Some((Op::WriteLast, 0x10b)), ..case("loss_req_last") },
        Case { lost: Some((Op::ReadRequest, 0x104)), ..case("loss_read_req") },
    ];
    assert_eq!(same_answers(&cases), (38, 26));
}

/// What we say about each packet where rxe 6.1 departs from the specification.
fn our_answers(case: &Case) -> (Side, Vec<(Op, u32, Syndrome, u32)>) {
    let mut replay = Replay::new(case);
    let (ours, theirs, _) = replay.run();
    assert_ne!(ours.len() + theirs.len(), 0);
    let said = ours
        .iter()
        .map(|p| {
            let Aeth { syndrome, msn } = p.exts().aeth.unwrap();
            (p.op(), p.psn(), syndrome, msn.get())
        })
        .collect();
    (replay.side, said)
}

const ACK: Syndrome = Syndrome::Ack { credits: CreditCode::NONE };
const INVALID: Syndrome = Syndrome::Nak(NakCode::InvalidRequest);

/// rxe 6.1 acknowledges packets of impossible lengths (6.12 no longer does); C9-38 and following
/// make them invalid requests.
#[test]
fn wrong_lengths_are_refused_where_rxe_takes_them() {
    let cases = [
        ("crafted_first_short", 0x100),
        ("crafted_last_empty", 0x101),
        ("crafted_only_too_long", 0x100),
    ];
    for (name, psn) in cases {
        let (side, said) = our_answers(&case(name));
        assert_eq!(said, [(Op::Acknowledge, psn, INVALID, 0)], "{name}");
        assert_eq!(side.qp.sq.state(), QpState::Err);
    }
}

/// rxe says remote operational error and completes the receive with a local length error; the
/// peer's request was too long, which is an invalid request (IBTA vol1 9.7.4.1.1).
#[test]
fn a_send_too_long_for_its_receive_is_an_invalid_request() {
    let small = Case { receives: (2, 16), ..case("err_recv_small") };
    let (mut side, said) = our_answers(&small);
    assert_eq!(said, [(Op::Acknowledge, 0x100, INVALID, 0)]);
    let done: Vec<_> = side.host.poll_all().iter().map(|c| c.status).collect();
    assert_eq!(done, [WcStatus::LocalLength, WcStatus::Flushed]);
}

/// rxe stops its queue pair but acknowledges the message whose key it could not invalidate, so the
/// peer does not learn of the error. Our responder refuses the message.
#[test]
fn a_key_that_cannot_be_invalidated_is_not_acknowledged() {
    let bad = Case { key: Key::Bad, ..case("crafted_inv_bad_rkey") };
    let (side, said) = our_answers(&bad);
    let access = Syndrome::Nak(NakCode::RemoteAccess);
    assert_eq!(said, [(Op::Acknowledge, 0x100, access, 0)]);
    assert_eq!(side.qp.sq.state(), QpState::Err);
}

/// rxe 6.1 does not know the memory placement extensions and drops them; 6.2 and we do.
#[test]
fn placement_extensions_are_executed() {
    let (side, said) = our_answers(&case("crafted_atomic_write"));
    // The answer is that to a read of nothing, as in 6.2.
    let expected = [(Op::ReadResponseOnly, 0x100, ACK, 1), (Op::Acknowledge, 0x101, ACK, 2)];
    assert_eq!(said, expected);
    assert_eq!(side.qp.sq.state(), QpState::Rts);
    // That queue pair does not allow a flush.
    let (_, said) = our_answers(&case("crafted_flush"));
    assert_eq!(said, [(Op::Acknowledge, 0x100, INVALID, 0)]);
}

/// rxe ignores marks; annex A17.9.3 has the responder notify the sender.
#[test]
fn a_congestion_mark_is_answered_by_a_notification() {
    let mut replay = Replay::new(&case("crafted_ce_marked"));
    let (ours, theirs, _) = replay.run();
    assert_eq!((ours.len(), theirs.len()), (2, 1));
    assert_eq!(ours[0].op(), Op::Cnp);
    assert_eq!(ours[1].bytes, theirs[0].bytes);
}

#[test]
fn a_queue_pair_that_does_not_exist_does_not_answer() {
    let case = case("crafted_bad_qpn");
    let mut replay = Replay::new(&case);
    let packet = replay.packets.remove(0).packet;
    assert!(replay.packets.is_empty());
    assert!(replay.side.deliver(&packet).is_empty());
    assert_eq!(replay.side.host.engine.drops().drop_unknown_qp, 1);
}

/// A read asked for again from the middle: rxe calls the only packet of its answer the last.
#[test]
fn a_partial_read_is_answered_as_a_message_of_its_own() {
    let mut replay = Replay::new(&case("loss_read_resp_last"));
    let (ours, theirs, _) = replay.run();
    assert_eq!((ours.len(), theirs.len()), (9, 9));
    for (our, their) in ours[..8].iter().zip(&theirs) {
        assert_eq!(our.bytes, their.bytes);
    }
    assert_eq!((theirs[8].op(), theirs[8].psn()), (Op::ReadResponseLast, 0x107));
    assert_eq!((ours[8].op(), ours[8].psn()), (Op::ReadResponseOnly, 0x107));
    assert_eq!(ours[8].bytes[1..], theirs[8].bytes[1..]);
}

/// Lengths and immediates of everything that consumes a receive in the `ops` captures.
fn received(mtu: u32) -> Vec<(u32, Option<u32>)> {
    let sends = [0, 1, 2, 3, 4].map(|len| (len, None));
    let rest = [
        (10, Some(0xdead_beef)),
        (mtu, None),
        (2 * mtu + 100, None),
        (mtu + 50, Some(0x0102_0304)),
        (5, Some(0xcafe_f00d)),
        (mtu + 1, Some(0x0bad_cafe)),
        (0, Some(0x1111_1111)),
        (40, None),
        (20, None),
    ];
    sends.into_iter().chain(rest).collect()
}

#[test]
fn receives_complete_with_what_was_sent() {
    for (name, qp_type, mtu) in [
        ("ops_rc", QpType::Rc, Pmtu::B1024),
        ("ops_rc_mtu256", QpType::Rc, Pmtu::B256),
        ("ops_uc", QpType::Uc, Pmtu::B1024),
    ] {
        let setup = Setup { qp_type, mtu, ..Setup::default() };
        let mut replay = Replay::new(&Case { setup, ..case(name) });
        let (ours, theirs, requests) = replay.run();
        assert_eq!(ours.len(), theirs.len(), "{name}");
        assert!(requests >= 24, "{name}");
        let done = replay.side.host.poll_all();
        assert!(done.iter().all(|c| c.status == WcStatus::Success), "{name}");
        let got: Vec<_> = done
            .iter()
            .map(|c| (c.byte_len, c.flags.contains(WcFlags::WITH_IMM).then_some(c.imm.0)))
            .collect();
        assert_eq!(got, received(mtu.bytes() as u32), "{name}");
        let solicited: Vec<_> = done.iter().map(|c| c.solicited).collect();
        assert!(solicited.iter().enumerate().all(|(i, &s)| s == (i == 1)), "{name}");
        assert_eq!(replay.side.host.engine.drops().total(), 0, "{name}");
    }
}

#[test]
fn datagrams_are_received_and_one_has_the_wrong_key() {
    let setup = Setup { qp_type: QpType::Ud, ..Setup::default() };
    let mut replay = Replay::new(&Case { setup, ..case("ops_ud") });
    let (ours, theirs, requests) = replay.run();
    assert_eq!((ours.len(), theirs.len(), requests), (0, 0, 7));
    let got: Vec<_> = replay.side.host.poll_all().iter().map(|c| c.byte_len - 40).collect();
    assert_eq!(got, [0, 1, 63, 64, 1024, 16]);
    assert_eq!(replay.side.host.engine.drops().drop_bad_qkey, 1);
    assert_eq!(replay.side.host.engine.drops().total(), 1);
}
