//! Every operation once, between two engines that lose nothing.

use feroce_engine::{Data, Dest, FlushKind, QpType, SendOp, SgeList, WcFlags, WcOpcode, WcStatus};
use feroce_testkit::{Pair, wr};
use feroce_train::InlineBytes;
use feroce_wire::Imm;

#[test]
fn send_of_every_interesting_length() {
    let mut pair = Pair::default();
    let (mut qa, mut qb) = pair.connect(QpType::Rc);
    for (i, len) in [0, 1, 3, 4, 1023, 1024, 1025, 2048, 2049, 65539].into_iter().enumerate() {
        let bytes = pair.a.fill(0, len, i as u8);
        qb.rq.as_mut().unwrap().post(pair.b.recv(7, 0, 70000)).unwrap();
        qa.sq.post(wr(i as u64, SendOp::Send, pair.a.data(0, len as u32))).unwrap();
        pair.run();
        let sent = pair.a.poll_all();
        assert_eq!(sent.len(), 1, "length {len}");
        assert_eq!((sent[0].status, sent[0].wr_id), (WcStatus::Success, i as u64));
        let received = pair.b.poll_all();
        assert_eq!(received.len(), 1, "length {len}");
        assert_eq!((received[0].status, received[0].byte_len), (WcStatus::Success, len as u32));
        assert_eq!(pair.b.read(0, len), bytes);
    }
    assert_eq!(pair.a.engine.drops().total() + pair.b.engine.drops().total(), 0);
}

#[test]
fn write_read_and_atomics() {
    let mut pair = Pair::default();
    let (mut qa, _qb) = pair.connect(QpType::Rc);
    let bytes = pair.a.fill(0, 300_000, 3);
    qa.sq.post(wr(1, SendOp::Write(pair.b.remote(5)), pair.a.data(0, 300_000))).unwrap();
    qa.sq.post(wr(2, SendOp::Read(pair.b.remote(5)), pair.a.data(400_000, 300_000))).unwrap();
    pair.b.region.store_u64(800_000, 40).unwrap();
    let remote = pair.b.remote(800_000);
    qa.sq.post(wr(3, SendOp::FetchAdd { remote, add: 2 }, pair.a.data(900_000, 8))).unwrap();
    let swap = SendOp::CmpSwap { remote, compare: 42, swap: 7 };
    qa.sq.post(wr(4, swap, pair.a.data(900_008, 8))).unwrap();
    let swap = SendOp::CmpSwap { remote, compare: 42, swap: 8 };
    qa.sq.post(wr(5, swap, pair.a.data(900_016, 8))).unwrap();
    pair.run();
    let done: Vec<_> = pair.a.poll_all().iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(done, (1..=5).map(|i| (i, WcStatus::Success)).collect::<Vec<_>>());
    assert_eq!(pair.b.read(5, 300_000), bytes);
    assert_eq!(pair.a.read(400_000, 300_000), bytes);
    let old: Vec<u64> =
        [900_000, 900_008, 900_016].iter().map(|&at| pair.a.region.load_u64(at).unwrap()).collect();
    assert_eq!(old, [40, 42, 7]);
    assert_eq!(pair.b.region.load_u64(800_000).unwrap(), 7);
}

#[test]
fn atomic_write_and_flush() {
    let mut pair = Pair::default();
    let (mut qa, _qb) = pair.connect(QpType::Rc);
    let bytes = pair.a.fill(0, 8, 9);
    qa.sq.post(wr(1, SendOp::AtomicWrite(pair.b.remote(64)), pair.a.data(0, 8))).unwrap();
    let kind = FlushKind { global: true, persistent: false, whole_region: false };
    let flush = SendOp::Flush { remote: pair.b.remote(64), len: 8, kind };
    qa.sq.post(wr(2, flush, Data::EMPTY)).unwrap();
    pair.run();
    let done: Vec<_> = pair.a.poll_all().iter().map(|c| (c.opcode, c.status)).collect();
    let expected =
        [(WcOpcode::AtomicWrite, WcStatus::Success), (WcOpcode::Flush, WcStatus::Success)];
    assert_eq!(done, expected);
    assert_eq!(pair.b.read(64, 8), bytes);
}

#[test]
fn immediate_inline_and_gather() {
    let mut pair = Pair::default();
    let (mut qa, mut qb) = pair.connect(QpType::Rc);
    for i in 0..3 {
        qb.rq.as_mut().unwrap().post(pair.b.recv(i, 10_000 * i, 10_000)).unwrap();
    }
    let inline = Data::Inline(InlineBytes::new(b"a few bytes"));
    qa.sq.post(wr(1, SendOp::SendImm(Imm(0xdead_beef)), inline)).unwrap();
    pair.a.fill(0, 5000, 1);
    let sges: Vec<_> = (0..32).map(|i| pair.a.sge(i * 150, 111)).collect();
    let gathered: Vec<u8> = (0..32).flat_map(|i| pair.a.read(i * 150, 111)).collect();
    qa.sq.post(wr(2, SendOp::Send, Data::Sges(SgeList::new(&sges)))).unwrap();
    let write = SendOp::WriteImm(pair.b.remote(100_000), Imm(5));
    qa.sq.post(wr(3, write, pair.a.data(0, 3000))).unwrap();
    pair.run();
    assert_eq!(pair.a.poll_all().len(), 3);
    let received = pair.b.poll_all();
    assert_eq!(received.len(), 3);
    assert_eq!((received[0].flags, received[0].imm), (WcFlags::WITH_IMM, Imm(0xdead_beef)));
    assert_eq!(pair.b.read(0, 11), b"a few bytes");
    assert_eq!(pair.b.read(10_000, gathered.len()), gathered);
    assert_eq!((received[2].opcode, received[2].byte_len), (WcOpcode::RecvWriteImm, 3000));
    assert_eq!(pair.b.read(100_000, 3000), pair.a.read(0, 3000));
}

#[test]
fn unreliable_connection_and_datagram() {
    let mut pair = Pair::default();
    let (mut qa, mut qb) = pair.connect(QpType::Uc);
    let bytes = pair.a.fill(0, 5000, 8);
    qb.rq.as_mut().unwrap().post(pair.b.recv(1, 0, 5000)).unwrap();
    qa.sq.post(wr(1, SendOp::Send, pair.a.data(0, 5000))).unwrap();
    qa.sq.post(wr(2, SendOp::Write(pair.b.remote(9000)), pair.a.data(0, 5000))).unwrap();
    pair.run();
    assert_eq!(pair.a.poll_all().len(), 2);
    assert_eq!(pair.b.poll_all().len(), 1);
    assert_eq!(pair.b.read(0, 5000), bytes);
    assert_eq!(pair.b.read(9000, 5000), bytes);

    let (mut da, mut db) = pair.datagrams();
    let av = feroce_engine::AddrVec { dgid: pair.b.gid, ..Default::default() };
    let ah = pair.a.engine.create_ah(pair.a.pd, av).unwrap();
    db.rq.as_mut().unwrap().post(pair.b.recv(5, 20_000, 4096)).unwrap();
    let mut datagram = wr(6, SendOp::SendImm(Imm(1)), pair.a.data(0, 1001));
    datagram.dest = Dest::Ud { ah, qpn: db.qpn, qkey: feroce_testkit::QKEY };
    da.sq.post(datagram).unwrap();
    pair.run();
    assert_eq!(pair.a.poll().unwrap().wr_id, 6);
    let got = pair.b.poll().unwrap();
    assert_eq!((got.status, got.byte_len, got.src_qp), (WcStatus::Success, 1041, da.qpn));
    assert_eq!(got.flags, WcFlags::GRH | WcFlags::WITH_IMM);
    assert_eq!(pair.b.read(20_040, 1001), bytes[..1001]);
    assert_eq!(pair.b.read(20_020, 1), [0x45]);
}
