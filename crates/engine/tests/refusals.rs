//! Requests that the responder refuses, and how both sides report it.

use std::sync::Arc;

use feroce_engine::{AsyncEvent, Data, QpAttr, QpState, QpType, SendOp, Sge, SgeList, WcStatus};
use feroce_mem::{Access, Bind, Iova, MwType};
use feroce_testkit::script::{ACK, MTU, atomic, nak, reth, rnr, said, with};
use feroce_testkit::{PEER_PSN, Packet, Scripted, header, wr};
use feroce_wire::{
    Feth, FlushPlacement, FlushSelectivity, Ieth, ImmDt, NakCode, Op, Rkey, Syndrome,
};

const P: u32 = PEER_PSN;
const INVALID: Syndrome = Syndrome::Nak(NakCode::InvalidRequest);
const ACCESS: Syndrome = Syndrome::Nak(NakCode::RemoteAccess);

/// Delivers packets one PSN after the other, all asking for an acknowledgement; only the last may
/// be refused. Returns what is said about it.
fn deliver(script: &mut Scripted, packets: &[(Op, Vec<u8>)]) -> Vec<(u32, Syndrome, u32)> {
    let mut answers = Vec::new();
    for (i, (op, rest)) in packets.iter().enumerate() {
        answers = script.send(*op, P + i as u32, true, rest);
        let is_last = i + 1 == packets.len();
        assert!(is_last || answers.iter().all(|p: &Packet| p.syndrome() == ACK), "{op:?}");
    }
    said(&answers)
}

/// The last of `packets` is refused as invalid, and that ends the connection.
fn is_invalid(packets: &[(Op, Vec<u8>)]) {
    let mut script = Scripted::rc();
    script.recv(1, 100_000, 8000);
    script.recv(2, 100_000, 8000);
    let before = script.host.read(0, 8192);
    let last = P + packets.len() as u32 - 1;
    let what: Vec<_> = packets.iter().map(|(op, rest)| (op, rest.len())).collect();
    assert_eq!(deliver(&mut script, packets), [(last, INVALID, 0)], "{what:?}");
    assert_eq!(script.state(), QpState::Err);
    assert_eq!(script.events(), [AsyncEvent::QpRequestError(script.qp.qpn)]);
    let done = script.done();
    // A receive that the message had begun to fill says so.
    let in_use = packets.len() > 1 && packets[0].0 == Op::SendFirst;
    let status = if in_use { WcStatus::RemoteInvalidRequest } else { WcStatus::Flushed };
    assert_eq!(done, [(1, status), (2, WcStatus::Flushed)], "{what:?}");
    if packets.len() == 1 {
        assert_eq!(script.host.read(0, 8192), before, "{what:?}");
    }
    assert_eq!(script.host.engine.counters().resp_remote_invalid_request, 1);
}

/// A RETH for `len` bytes at 0 of a script's memory. Keys are the same in every script.
fn range(len: usize) -> Vec<u8> {
    reth(0, Scripted::rc().rkey(), len as u32)
}

fn send(op: Op, len: usize) -> (Op, Vec<u8>) {
    (op, vec![1; len])
}

fn write(op: Op, range_len: usize, len: usize) -> (Op, Vec<u8>) {
    (op, with(range(range_len), &vec![1; len]))
}

#[test]
fn a_message_starts_with_its_first_packet() {
    for op in [Op::SendMiddle, Op::SendLast, Op::WriteMiddle, Op::WriteLast] {
        is_invalid(&[send(op, MTU)]);
    }
}

#[test]
fn nothing_starts_inside_a_message() {
    let first = [send(Op::SendFirst, MTU), write(Op::WriteFirst, 2 * MTU, MTU)];
    for first in first {
        is_invalid(&[first.clone(), send(Op::SendFirst, MTU)]);
        is_invalid(&[first.clone(), send(Op::SendOnly, 8)]);
        is_invalid(&[first.clone(), write(Op::WriteFirst, 2 * MTU, MTU)]);
        is_invalid(&[first.clone(), write(Op::WriteOnly, 8, 8)]);
        is_invalid(&[first.clone(), (Op::ReadRequest, range(8))]);
        is_invalid(&[first, (Op::FetchAdd, atomic(0, Rkey(0), 1, 0))]);
    }
    is_invalid(&[send(Op::SendFirst, MTU), send(Op::WriteLast, 8)]);
    is_invalid(&[write(Op::WriteFirst, MTU + 8, MTU), send(Op::SendLast, 8)]);
}

#[test]
fn first_and_middle_packets_are_full() {
    for len in [0, 4, MTU - 4, MTU + 4] {
        is_invalid(&[send(Op::SendFirst, len)]);
        is_invalid(&[send(Op::SendFirst, MTU), send(Op::SendMiddle, len)]);
        is_invalid(&[write(Op::WriteFirst, 3 * MTU, len)]);
        is_invalid(&[write(Op::WriteFirst, 3 * MTU, MTU), send(Op::WriteMiddle, len)]);
    }
}

#[test]
fn last_packets_are_not_empty_and_none_is_too_long() {
    for len in [0, MTU + 4] {
        is_invalid(&[send(Op::SendFirst, MTU), send(Op::SendLast, len)]);
        is_invalid(&[write(Op::WriteFirst, MTU + len.max(4), MTU), send(Op::WriteLast, len)]);
    }
    is_invalid(&[send(Op::SendOnly, MTU + 4)]);
    is_invalid(&[write(Op::WriteOnly, MTU + 4, MTU + 4)]);
}

#[test]
fn a_write_has_as_many_bytes_as_it_says() {
    is_invalid(&[write(Op::WriteOnly, 100, 60)]);
    is_invalid(&[write(Op::WriteOnly, 60, 100)]);
    is_invalid(&[write(Op::WriteOnly, 0, 4)]);
    is_invalid(&[write(Op::WriteFirst, MTU, MTU)]);
    is_invalid(&[write(Op::WriteFirst, 8, MTU)]);
    is_invalid(&[write(Op::WriteFirst, MTU + 8, MTU), send(Op::WriteLast, 4)]);
    is_invalid(&[write(Op::WriteFirst, MTU + 8, MTU), send(Op::WriteLast, 12)]);
    is_invalid(&[write(Op::WriteFirst, MTU + 8, MTU), send(Op::WriteMiddle, MTU)]);
}

#[test]
fn nothing_is_longer_than_two_gigabytes() {
    is_invalid(&[write(Op::WriteFirst, 0x8000_0001, MTU)]);
    is_invalid(&[(Op::ReadRequest, range(0x8000_0001))]);
}

#[test]
fn reads_and_atomics_carry_no_data() {
    is_invalid(&[(Op::ReadRequest, with(range(8), &[0; 4]))]);
    let rkey = Scripted::rc().rkey();
    is_invalid(&[(Op::FetchAdd, with(atomic(0, rkey, 1, 0), &[0; 4]))]);
}

#[test]
fn atomics_are_aligned() {
    let rkey = Scripted::rc().rkey();
    for va in [1, 4, 7, 12] {
        is_invalid(&[(Op::FetchAdd, atomic(va, rkey, 1, 0))]);
        is_invalid(&[(Op::CmpSwap, atomic(va, rkey, 1, 0))]);
        is_invalid(&[(Op::AtomicWrite, with(reth(va, rkey, 8), &[1; 8]))]);
    }
    // An atomic write is of eight bytes, no more and no less.
    is_invalid(&[(Op::AtomicWrite, with(reth(0, rkey, 4), &[1; 4]))]);
    is_invalid(&[(Op::AtomicWrite, with(reth(0, rkey, 16), &[1; 16]))]);
}

#[test]
fn a_queue_pair_grants_only_the_operations_it_was_set_up_for() {
    let rkey = Scripted::rc().rkey();
    let feth = header(|out| Feth::new(FlushPlacement::GLOBAL, FlushSelectivity::Range).emit(out));
    let cases = [
        (Access::REMOTE_WRITE, Op::WriteOnly, with(reth(0, rkey, 4), &[1; 4])),
        (Access::REMOTE_WRITE, Op::AtomicWrite, with(reth(0, rkey, 8), &[1; 8])),
        (Access::REMOTE_READ, Op::ReadRequest, reth(0, rkey, 4)),
        (Access::REMOTE_ATOMIC, Op::FetchAdd, atomic(0, rkey, 1, 0)),
        (Access::REMOTE_ATOMIC, Op::CmpSwap, atomic(0, rkey, 1, 0)),
        (Access::FLUSH_GLOBAL, Op::Flush, with(feth, &reth(0, rkey, 4))),
    ];
    for (needed, op, rest) in cases {
        let access = Some(feroce_testkit::ALL - needed);
        let mut script = Scripted::rc_with(QpAttr { access, ..QpAttr::default() });
        assert_eq!(said(&script.send(op, P, true, &rest)), [(P, INVALID, 0)], "{op:?}");
        assert_eq!(script.host.read(0, 8), [0; 8]);
        let mut script = Scripted::rc();
        assert_eq!(script.send(op, P, true, &rest)[0].syndrome(), ACK, "{op:?}");
    }
}

#[test]
fn too_many_reads_at_once_are_refused() {
    let mut script = Scripted::rc_with(QpAttr { max_dest_rd_atomic: Some(2), ..QpAttr::default() });
    let rest = reth(0, script.rkey(), 8);
    for i in 0..3 {
        let packet = script.packet(Op::ReadRequest, P + i, true, &rest);
        script.host.receive(script.now, &packet);
    }
    // Those within the limit are answered before the refusal.
    let answers = script.host.transmit(script.now);
    assert_eq!(said(&answers), [(P, ACK, 1), (P + 1, ACK, 2), (P + 2, INVALID, 2)]);
    assert_eq!(script.state(), QpState::Err);
}

/// A request that memory protection must refuse.
fn is_denied(script: &mut Scripted, op: Op, rest: &[u8], why: &str) {
    let before = script.host.read(0, 8192);
    script.recv(1, 0, 64);
    assert_eq!(said(&script.send(op, P, true, rest)), [(P, ACCESS, 0)], "{op:?} {why}");
    assert_eq!(script.state(), QpState::Err);
    assert_eq!(script.events(), [AsyncEvent::QpAccessError(script.qp.qpn)]);
    assert_eq!(script.done(), [(1, WcStatus::Flushed)]);
    assert_eq!(script.host.read(0, 8192), before, "{op:?} {why}");
    assert_eq!(script.host.engine.counters().resp_remote_access_errors, 1);
}

/// Tries write, read, atomic and flush of `len` bytes at `va` with the key that `key` makes.
fn denies_all(va: u64, len: u32, why: &str, key: impl Fn(&mut Scripted) -> Rkey) {
    let mut script = Scripted::rc();
    let rkey = key(&mut script);
    let write = with(reth(va, rkey, len), &vec![1; len as usize]);
    is_denied(&mut script, Op::WriteOnly, &write, why);
    let mut script = Scripted::rc();
    let rkey = key(&mut script);
    is_denied(&mut script, Op::ReadRequest, &reth(va, rkey, len), why);
    let mut script = Scripted::rc();
    let rkey = key(&mut script);
    is_denied(&mut script, Op::FetchAdd, &atomic(va, rkey, 1, 0), why);
    let mut script = Scripted::rc();
    let rkey = key(&mut script);
    let feth = header(|out| Feth::new(FlushPlacement::GLOBAL, FlushSelectivity::Range).emit(out));
    is_denied(&mut script, Op::Flush, &with(feth, &reth(va, rkey, len)), why);
}

#[test]
fn keys_that_name_nothing_are_denied() {
    denies_all(0, 8, "tag", |s| Rkey(s.rkey().0 ^ 0x5a));
    denies_all(0, 8, "index", |s| Rkey(s.rkey().0 ^ 0x100));
    denies_all(0, 8, "gone", |s| {
        let region = Arc::clone(&s.host.region);
        let key =
            s.host.engine.reg_mr(s.host.pd, region, 0, 64, Iova::ZeroBased, feroce_testkit::ALL);
        let key = key.unwrap();
        drop(s.host.engine.dereg_mr(key).unwrap());
        Rkey(key.0)
    });
}

#[test]
fn ranges_outside_the_memory_are_denied() {
    let end = feroce_testkit::MEMORY as u64;
    denies_all(end - 8 + 8, 8, "after the end", |s| s.rkey());
    denies_all(0u64.wrapping_sub(8), 8, "before the start", |s| s.rkey());
    let mut script = Scripted::rc();
    let rest = with(reth(end - 4, script.rkey(), 8), &[1; 8]);
    is_denied(&mut script, Op::WriteOnly, &rest, "across the end");
    let mut script = Scripted::rc();
    let rest = with(reth(end - 8, script.rkey(), 8), &[1; 8]);
    assert_eq!(said(&script.send(Op::WriteOnly, P, true, &rest)), [(P, ACK, 1)]);
}

#[test]
fn a_write_is_checked_whole_before_its_first_byte_lands() {
    let mut script = Scripted::rc();
    let start = feroce_testkit::MEMORY as u64 - 2 * MTU as u64;
    let rest = with(reth(start, script.rkey(), 3 * MTU as u32), &[1; MTU]);
    assert_eq!(said(&script.send(Op::WriteFirst, P, true, &rest)), [(P, ACCESS, 0)]);
    assert_eq!(script.host.read(start as usize, MTU), [0; MTU]);
}

#[test]
fn memory_of_another_protection_domain_is_denied() {
    denies_all(0, 8, "another domain", |s| {
        let pd = s.host.engine.alloc_pd().unwrap();
        let region = Arc::clone(&s.host.region);
        let key = s.host.engine.reg_mr(pd, region, 0, 64, Iova::ZeroBased, feroce_testkit::ALL);
        Rkey(key.unwrap().0)
    });
}

#[test]
fn memory_registered_for_less_is_denied() {
    denies_all(0, 8, "local only", |s| {
        let region = Arc::clone(&s.host.region);
        let access = Access::LOCAL_WRITE;
        let key = s.host.engine.reg_mr(s.host.pd, region, 0, 64, Iova::ZeroBased, access);
        Rkey(key.unwrap().0)
    });
    let mut script = Scripted::rc();
    let region = Arc::clone(&script.host.region);
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let key = script.host.engine.reg_mr(script.host.pd, region, 0, 64, Iova::ZeroBased, access);
    let rest = with(reth(0, Rkey(key.unwrap().0), 8), &[1; 8]);
    is_denied(&mut script, Op::WriteOnly, &rest, "read only");
}

#[test]
fn a_window_of_type_two_is_for_one_queue_pair() {
    let mut script = Scripted::rc();
    let mw = script.host.engine.alloc_mw(script.host.pd, MwType::Two).unwrap();
    let new_rkey = Rkey(mw.0 ^ 1);
    let mr = script.host.lkey;
    let access = Access::REMOTE_WRITE;
    let binding = Bind { mr, addr: 0, len: 64, access, zero_based: false };
    script.post(wr(9, SendOp::BindMw { mw, new_rkey, binding }, Data::EMPTY));
    assert_eq!(script.done(), [(9, WcStatus::Success)]);
    // Another queue pair of the same domain.
    let init = script.host.init_attr(QpType::Rc);
    let qp = script.host.create_qp(init);
    let peer = (script.peer, feroce_testkit::PEER_QPN, feroce_testkit::psn(P));
    let mtu = feroce_wire::Pmtu::B1024;
    feroce_testkit::bring_up(&mut script.host, script.now, &qp, peer, mtu, &QpAttr::default());
    let bound = std::mem::replace(&mut script.qp, qp);
    let rest = with(reth(0, new_rkey, 8), &[1; 8]);
    is_denied(&mut script, Op::WriteOnly, &rest, "bound to another");
    script.qp = bound;
    assert_eq!(said(&script.send(Op::WriteOnly, P, true, &rest)), [(P, ACK, 1)]);
}

#[test]
fn nothing_needs_no_right() {
    let mut script = Scripted::rc();
    let nothing = reth(0xdead_beef_0000, Rkey(0x1357_9bdf), 0);
    assert_eq!(said(&script.send(Op::WriteOnly, P, true, &nothing)), [(P, ACK, 1)]);
    assert_eq!(said(&script.send(Op::ReadRequest, P + 1, true, &nothing)), [(P + 1, ACK, 2)]);
}

#[test]
fn memory_that_goes_away_under_a_read_ends_it() {
    let mut script = Scripted::rc();
    let region = Arc::clone(&script.host.region);
    let iova = Iova::ZeroBased;
    let key = script.host.engine.reg_mr(script.host.pd, region, 0, 8192, iova, feroce_testkit::ALL);
    let key = key.unwrap();
    let packet = script.packet(Op::ReadRequest, P, true, &reth(0, Rkey(key.0), 4096));
    script.host.receive(script.now, &packet);
    drop(script.host.engine.dereg_mr(key).unwrap());
    let answers = script.host.transmit(script.now);
    assert_eq!(said(&answers), [(P, ACCESS, 1)]);
    assert_eq!(script.state(), QpState::Err);
}

#[test]
fn a_key_that_cannot_be_invalidated_is_denied() {
    let mut script = Scripted::rc();
    script.recv(1, 0, 64);
    script.recv(2, 0, 64);
    // An ordinary region cannot be invalidated by the peer.
    let ieth = header(|out| Ieth { rkey: script.rkey() }.emit(out));
    let answers = script.send(Op::SendOnlyInv, P, true, &with(ieth, &[1; 4]));
    assert_eq!(said(&answers), [(P, ACCESS, 0)]);
    assert_eq!(script.done(), [(1, WcStatus::LocalAccess), (2, WcStatus::Flushed)]);
}

/// IBTA vol1 9.7.4.1.1 and table 58: the receive fails with a length error and the peer hears of
/// an invalid request. (Linux rxe says remote operational error.)
#[test]
fn a_message_longer_than_its_receive_fails_both() {
    let mut script = Scripted::rc();
    script.recv(1, 0, 16);
    script.recv(2, 0, 64);
    assert_eq!(said(&script.send(Op::SendOnly, P, true, &[1; 64])), [(P, INVALID, 0)]);
    assert_eq!(script.done(), [(1, WcStatus::LocalLength), (2, WcStatus::Flushed)]);
    assert_eq!(script.host.read(0, 64), [0; 64]);
    let mut script = Scripted::rc();
    script.recv(1, 0, MTU as u32 + 8);
    script.send(Op::SendFirst, P, true, &[1; MTU]);
    let answers = script.send(Op::SendLast, P + 1, true, &[1; 12]);
    assert_eq!(said(&answers), [(P + 1, INVALID, 0)]);
    assert_eq!(script.done(), [(1, WcStatus::LocalLength)]);
    assert_eq!(script.host.engine.counters().resp_local_length_error, 1);
}

#[test]
fn a_receive_with_a_bad_key_fails_both() {
    let mut script = Scripted::rc();
    let bad = Sge { lkey: feroce_wire::Lkey(0x1234_5678), ..script.host.sge(0, 64) };
    let receive = feroce_engine::RecvWr { wr_id: 1, sges: SgeList::from(bad) };
    script.qp.rq.as_mut().unwrap().post(receive).unwrap();
    let answers = script.send(Op::SendOnly, P, true, &[1; 64]);
    assert_eq!(said(&answers), [(P, nak(NakCode::RemoteOperational), 0)]);
    assert_eq!(script.done(), [(1, WcStatus::LocalProtection)]);
    assert_eq!(script.state(), QpState::Err);
}

#[test]
fn a_gap_is_reported_once_and_again_after_it_closed() {
    let mut script = Scripted::rc();
    for i in 0..5 {
        script.recv(i, 0, 64);
    }
    let gap = nak(NakCode::PsnSequence);
    assert_eq!(said(&script.send(Op::SendOnly, P + 2, true, &[])), [(P, gap, 0)]);
    assert!(script.send(Op::SendOnly, P + 3, true, &[]).is_empty());
    assert_eq!(said(&script.send(Op::SendOnly, P, true, &[])), [(P, ACK, 1)]);
    assert_eq!(said(&script.send(Op::SendOnly, P + 2, true, &[])), [(P + 1, gap, 1)]);
    assert!(script.send(Op::SendOnly, P + 3, true, &[]).is_empty());
    assert_eq!(script.done().len(), 1);
    assert_eq!(script.state(), QpState::Rts);
    assert_eq!(script.host.engine.counters().out_of_sequence, 2);
    assert_eq!(script.host.engine.counters().out_of_seq_request, 4);
}

#[test]
fn without_a_receive_the_peer_is_asked_to_wait() {
    let mut script = Scripted::rc_with(QpAttr { min_rnr_timer: Some(21), ..QpAttr::default() });
    assert_eq!(said(&script.send(Op::SendOnly, P, true, &[1; 4])), [(P, rnr(21), 0)]);
    // What follows is not answered until the expected packet comes again.
    assert!(script.send(Op::SendOnly, P + 1, true, &[2; 4]).is_empty());
    assert!(script.send(Op::SendOnly, P + 2, true, &[3; 4]).is_empty());
    assert_eq!(said(&script.send(Op::SendOnly, P, true, &[1; 4])), [(P, rnr(21), 0)]);
    script.recv(1, 0, 64);
    assert_eq!(said(&script.send(Op::SendOnly, P, true, &[1; 4])), [(P, ACK, 1)]);
    assert_eq!(script.host.engine.counters().send_rnr_err, 2);
    assert_eq!(script.state(), QpState::Rts);
}

#[test]
fn a_write_with_immediate_waits_for_a_receive_at_its_end() {
    let mut script = Scripted::rc();
    let head = reth(0, script.rkey(), MTU as u32 + 4);
    let first = script.send(Op::WriteFirst, P, true, &with(head, &[1; MTU]));
    assert_eq!(said(&first), [(P, ACK, 0)]);
    let imm = header(|out| ImmDt { imm: feroce_wire::Imm(7) }.emit(out));
    let last = with(imm, &[2; 4]);
    assert_eq!(said(&script.send(Op::WriteLastImm, P + 1, true, &last)), [(P + 1, rnr(12), 0)]);
    script.recv(1, 0, 64);
    assert_eq!(said(&script.send(Op::WriteLastImm, P + 1, true, &last)), [(P + 1, ACK, 1)]);
    assert_eq!(script.done(), [(1, WcStatus::Success)]);
    assert_eq!(script.host.read(MTU, 4), [2; 4]);
}
