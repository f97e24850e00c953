//! The verbs, over real sockets on the loopback interface.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod common;

use common::{Host, connect, is_foreign, unexplained_drops};
use feroce::{
    AddrVec, AsyncEvent, Data, Dest, Gid, Imm, InlineBytes, Notify, Qkey, Qp, QpAttr, QpCap,
    QpState, Qpn, SendOp, SendWr, WcFlags, WcOpcode, WcStatus,
};

#[test]
fn send_write_read_and_atomics_with_data_checked() {
    let (a, b) = Host::pair(101);
    let (mut qa, mut qb) = (a.rc(), b.rc());
    connect(&mut qa, &mut qb);
    for len in [0, 1, 4095, 4096, 4097, 65539, 500_000] {
        let bytes = a.fill(0, len, len as u8);
        qb.post_recv([b.mr.recv(9, 0..600_000)]).unwrap();
        qa.post_send([SendWr::new(1, SendOp::SendImm(Imm(7)), a.mr.data(0..len))]).unwrap();
        assert_eq!(a.wait().status, WcStatus::Success, "length {len}");
        let got = b.wait();
        assert_eq!((got.status, got.byte_len, got.imm), (WcStatus::Success, len as u32, Imm(7)));
        assert_eq!(b.read(0, len), bytes);

        let bytes = a.fill(0, len, 3);
        qa.post_send([
            SendWr::new(2, SendOp::Write(b.mr.remote(1000)), a.mr.data(0..len)),
            SendWr::new(3, SendOp::Read(b.mr.remote(1000)), a.mr.data(500_000..500_000 + len)),
        ])
        .unwrap();
        assert_eq!((a.wait().wr_id, a.wait().wr_id), (2, 3));
        assert_eq!(b.read(1000, len), bytes);
        assert_eq!(a.read(500_000, len), bytes);
    }
    b.mr.region().store_u64(800, 5).unwrap();
    let remote = b.mr.remote(800);
    qa.post_send([
        SendWr::new(4, SendOp::FetchAdd { remote, add: 3 }, a.mr.data(0..8)),
        SendWr::new(5, SendOp::CmpSwap { remote, compare: 8, swap: 1 }, a.mr.data(8..16)),
    ])
    .unwrap();
    assert_eq!((a.wait().status, a.wait().status), (WcStatus::Success, WcStatus::Success));
    assert_eq!(a.mr.region().load_u64(0).unwrap(), 5);
    assert_eq!(a.mr.region().load_u64(8).unwrap(), 8);
    assert_eq!(b.mr.region().load_u64(800).unwrap(), 1);
    assert_eq!(unexplained_drops(&a.context), []);
    assert_eq!(unexplained_drops(&b.context), []);
}

#[test]
fn a_write_lands_in_a_process_that_does_nothing() {
    let (a, b) = Host::pair(102);
    let (mut qa, mut qb) = (a.rc(), b.rc());
    connect(&mut qa, &mut qb);
    let bytes = a.fill(0, 100_000, 1);
    qa.post_send([SendWr::new(1, SendOp::Write(b.mr.remote(0)), a.mr.data(0..100_000))]).unwrap();
    // The consumer of `b` does not poll: its driver thread receives the write.
    assert_eq!(a.wait().status, WcStatus::Success);
    assert_eq!(b.read(0, 100_000), bytes);
}

/// A datagram queue pair on each of two hosts, both ready.
fn datagram_ends(a: &Host, b: &Host, qkey: Qkey) -> (Qp, Qp) {
    let make = |host: &Host| {
        let mut qp = host.pd.ud_qp(&host.cq, &host.cq, QpCap::new(16, 16)).create().unwrap();
        qp.activate(qkey).unwrap();
        qp
    };
    (make(a), make(b))
}

#[test]
fn datagrams() {
    let (a, b) = Host::pair(103);
    let qkey = Qkey(0x1234);
    let (mut qa, mut qb) = datagram_ends(&a, &b, qkey);
    let sgid_index = a.context.port().first_gid();
    let dgid = b.context.port().gids[usize::from(sgid_index)].gid;
    let ah = a.pd.create_ah(AddrVec { dgid, sgid_index, ..AddrVec::default() }).unwrap();
    qb.post_recv([b.mr.recv(1, 0..4096)]).unwrap();
    let inline = Data::Inline(InlineBytes::new(b"datagram"));
    let dest = ah.dest(qb.qpn(), qkey);
    qa.post_send([SendWr { dest, ..SendWr::new(3, SendOp::Send, inline) }]).unwrap();
    assert_eq!(a.wait().status, WcStatus::Success);
    let got = b.wait();
    assert_eq!((got.wr_id, got.byte_len, got.src_qp), (1, 48, qa.qpn()));
    assert!(got.flags.contains(WcFlags::GRH));
    assert_eq!(b.read(40, 8), b"datagram");
}

#[test]
fn multicast() {
    let (a, b) = Host::pair(110);
    let qkey = Qkey(0x1234);
    let (mut qa, mut qb) = datagram_ends(&a, &b, qkey);
    let group = Gid::from_ipv4([239, 103, 1, 1]);
    qb.attach_mcast(group).unwrap();
    qb.post_recv([b.mr.recv(2, 0..4096)]).unwrap();
    let sgid_index = a.context.port().first_gid();
    let ah = a.pd.create_ah(AddrVec { dgid: group, sgid_index, ..AddrVec::default() }).unwrap();
    let dest = ah.dest(Qpn::MULTICAST, qkey);
    assert!(matches!(dest, Dest::Ud { .. }));
    let inline = Data::Inline(InlineBytes::new(b"datagram"));
    qa.post_send([SendWr { dest, ..SendWr::new(4, SendOp::Send, inline) }]).unwrap();
    assert_eq!(a.wait().status, WcStatus::Success);
    assert_eq!(b.wait().wr_id, 2);
    assert_eq!(b.read(40, 8), b"datagram");
    qb.detach_mcast(group).unwrap();
}

#[test]
fn completion_channels_wake_sleepers() {
    let (a, b) = Host::pair(104);
    let channel = b.context.create_comp_channel().unwrap();
    let cq = b.context.create_cq_with(64, &channel).unwrap();
    let mut qa = a.rc();
    let mut qb = b.pd.rc_qp(&cq, &cq, QpCap::new(16, 16)).create().unwrap();
    connect(&mut qa, &mut qb);
    qb.post_recv([b.mr.recv(5, 0..64)]).unwrap();
    cq.notify(Notify::Next);
    assert_eq!(channel.wait(Some(10)).unwrap(), None);
    qa.post_send([SendWr::new(1, SendOp::Send, a.mr.data(0..8))]).unwrap();
    assert_eq!(channel.wait(None).unwrap(), Some(cq.id()));
    assert_eq!(cq.poll_one().unwrap().wr_id, 5);
    assert_eq!(a.wait().status, WcStatus::Success);
}

#[test]
fn shared_receive_queue_and_its_limit() {
    let (a, b) = Host::pair(105);
    let srq = b.pd.create_srq(16, 1).unwrap();
    let builder = b.pd.rc_qp(&b.cq, &b.cq, QpCap::new(16, 0)).srq(&srq);
    let (mut qa, mut qb) = (a.rc(), builder.create().unwrap());
    connect(&mut qa, &mut qb);
    srq.post_recv((0..4).map(|i| b.mr.recv(i, 0..64))).unwrap();
    srq.set_limit(4).unwrap();
    qa.post_send([SendWr::new(1, SendOp::Send, a.mr.data(0..8))]).unwrap();
    assert_eq!(a.wait().status, WcStatus::Success);
    let got = b.wait();
    assert_eq!((got.wr_id, got.opcode, got.qpn), (0, WcOpcode::Recv, qb.qpn()));
    // The peer announced itself first, because it was connected before us.
    let mut events = std::iter::from_fn(|| b.context.wait_async_event(Some(20_000)).unwrap());
    assert!(events.any(|event| event == AsyncEvent::SrqLimitReached(srq.id())));
}

#[test]
fn a_peer_that_is_gone_gives_retry_exceeded() {
    let (a, b) = Host::pair(106);
    let (mut qa, mut qb) = (a.rc(), b.rc());
    let eb = qb.endpoint().unwrap();
    qb.connect(&qa.endpoint().unwrap()).unwrap();
    qa.connect(&eb).unwrap();
    let quick = QpAttr { timeout: Some(8), retry_cnt: Some(2), ..QpAttr::default() };
    qa.modify(&QpAttr { sqd_notify: Some(true), ..QpAttr::to(QpState::Sqd) }).unwrap();
    // Until the send queue is drained, Soft-RoCE of Linux 6.12 refuses changes.
    let drained = AsyncEvent::SqDrained(qa.qpn());
    while a.context.wait_async_event(Some(20_000)).unwrap().expect("it drains") != drained {}
    qa.modify(&QpAttr { state: Some(QpState::Sqd), ..quick }).unwrap();
    // It drains the queue once more after the change.
    while qa.query().unwrap().sqd_notify == Some(true) {
        std::thread::yield_now();
    }
    qa.modify(&QpAttr::to(QpState::Rts)).unwrap();
    drop((qb, b));
    qa.post_send([
        SendWr::new(1, SendOp::Send, a.mr.data(0..8)),
        SendWr::new(2, SendOp::Send, a.mr.data(0..8)),
    ])
    .unwrap();
    let (first, second) = (a.wait(), a.wait());
    assert_eq!((first.wr_id, first.status), (1, WcStatus::RetryExceeded));
    assert_eq!((second.wr_id, second.status), (2, WcStatus::Flushed));
    assert_eq!(qa.state(), QpState::Err);
}

#[test]
fn a_thousand_connected_queue_pairs() {
    // A driver in an emulated machine takes its time.
    let count = if is_foreign() { 100 } else { 1000 };
    let (a, b) = Host::pair(107);
    let mut pairs: Vec<_> = (0..count)
        .map(|_| {
            let (mut qa, mut qb) = (a.rc(), b.rc());
            connect(&mut qa, &mut qb);
            (qa, qb)
        })
        .collect();
    for (i, (qa, _)) in pairs.iter_mut().enumerate() {
        let at = i * 64;
        a.mr.write_at(at, &i.to_le_bytes()).unwrap();
        let write = SendOp::Write(b.mr.remote(at));
        qa.post_send([SendWr::new(i as u64, write, a.mr.data(at..at + 64))]).unwrap();
    }
    let mut done: Vec<u64> = (0..count)
        .map(|_| {
            let cqe = a.wait();
            assert_eq!(cqe.status, WcStatus::Success);
            cqe.wr_id
        })
        .collect();
    done.sort_unstable();
    assert!(done.into_iter().eq(0..count));
    for i in 0..count as usize {
        assert_eq!(b.read(i * 64, 8), i.to_le_bytes());
    }
}

#[test]
fn a_queue_pair_that_goes_has_acknowledged_what_it_received() {
    let (a, b) = Host::pair(109);
    for round in 0..100 {
        let (mut qa, mut qb) = (a.rc(), b.rc());
        connect(&mut qa, &mut qb);
        qb.post_recv([b.mr.recv(1, 0..64)]).unwrap();
        qa.post_send([SendWr::new(2, SendOp::Send, a.mr.data(0..64))]).unwrap();
        // The consumer polls, so that the acknowledgement may wait for an answer.
        while b.cq.poll_one().is_none() {}
        drop(qb);
        assert_eq!(a.wait().status, WcStatus::Success, "round {round}");
    }
}
