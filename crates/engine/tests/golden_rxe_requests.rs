//! Requests that Linux Soft-RoCE sent: our requester, asked for the same, sends the same.
//!
//! The operations are those of the program that made the captures, in its order, each completed
//! before the next. rxe's answers are fed back. Requests are compared byte by byte, from the base
//! transport header to the padding.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use feroce_engine::{
    Data, Dest, QpAttr, QpState, QpType, Remote, SendFlags, SendOp, SendWr, Sge, SgeList, WcStatus,
};
use feroce_testkit::golden::{CLIENT, Captured, SERVER, Setup, Side, capture};
use feroce_testkit::{Packet, wr};
use feroce_train::InlineBytes;
use feroce_wire::{Deth, Imm, Op, Pmtu, Qkey, Qpn, Rkey};

/// A captured conversation with our client in the place of rxe's.
struct Replay {
    name: &'static str,
    side: Side,
    /// What rxe's client sent, and what its server answered, in order.
    packets: std::vec::IntoIter<Captured>,
    /// The key that the server gave out.
    rkey: Rkey,
    compared: usize,
}

impl Replay {
    fn new(name: &'static str, setup: Setup) -> Self {
        let packets = capture(name);
        let key = packets.iter().map(|p| p.packet.exts()).find_map(|exts| {
            let reth = exts.reth.map(|r| r.rkey);
            let atomic = exts.atomic.map(|a| a.rkey);
            [reth, atomic, exts.ieth.map(|i| i.rkey)].into_iter().flatten().next()
        });
        let server = packets[0].packet.bth().dest_qp;
        let side = Side::client(&setup, server);
        let rkey = key.unwrap_or_default();
        Self { name, side, packets: packets.into_iter(), rkey, compared: 0 }
    }

    /// Bytes of our memory.
    fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge { addr: CLIENT + offset, len, lkey: self.side.key }
    }

    fn data(&self, len: u32) -> Data {
        if len == 0 { Data::EMPTY } else { Data::Sges(SgeList::from(self.sge(0, len))) }
    }

    /// Where answers with data go.
    fn landing(&self, len: u32) -> Data {
        if len == 0 { Data::EMPTY } else { Data::Sges(SgeList::from(self.sge(16_384, len))) }
    }

    fn remote(&self, offset: u64) -> Remote {
        Remote { addr: SERVER + offset, rkey: self.rkey }
    }

    /// Posts a request, compares what goes out with the capture, feeds the captured answers, and
    /// returns how the request ended, if it has.
    fn run(&mut self, request: SendWr) -> Option<WcStatus> {
        self.side.qp.sq.post(request).unwrap();
        let ours = self.side.host.transmit(self.side.now);
        self.compare(&ours);
        self.answers();
        self.side.host.poll().map(|c| c.status)
    }

    fn compare(&mut self, ours: &[Packet]) {
        for our in ours {
            let Captured { packet, from_client } = self.packets.next().expect("one more packet");
            let at = format!("{} {:?} {:#x}", self.name, our.op(), our.psn());
            assert!(from_client, "{at}: rxe waits for an answer here");
            assert_eq!((our.op(), our.psn()), (packet.op(), packet.psn()), "{at}");
            assert_eq!(our.bth().ack_req, packet.bth().ack_req, "{at}");
            assert_eq!(our.exts(), packet.exts(), "{at}");
            assert_eq!(our.bytes, packet.bytes, "{at}");
            self.compared += 1;
        }
    }

    /// Delivers the answers that come next in the capture.
    fn answers(&mut self) {
        while let Some(next) = self.packets.as_slice().first()
            && !next.from_client
        {
            let own = self.side.qp.qpn;
            let packet = next.packet.with_bth(|bth| bth.dest_qp = own);
            assert!(self.side.deliver(&packet).is_empty(), "{}", self.name);
            self.packets.next();
        }
    }

    /// Everything in the capture was accounted for.
    fn finish(self) -> usize {
        assert!(self.packets.as_slice().is_empty(), "{}: packets are left", self.name);
        assert_eq!(self.side.host.engine.drops().total(), 0, "{}", self.name);
        self.compared
    }
}

/// The operations that the program knows by number, with path MTU `mtu`.
fn operation(replay: &Replay, number: usize, mtu: u32) -> SendWr {
    let message = |op, len| wr(7, op, replay.data(len));
    let imm = |value| SendOp::SendImm(Imm(value));
    let write = |offset| SendOp::Write(replay.remote(offset));
    let write_imm = |offset, value| SendOp::WriteImm(replay.remote(offset), Imm(value));
    let inline = |op, len: usize| {
        let bytes = replay.side.host.read(0, len);
        wr(7, op, Data::Inline(InlineBytes::new(&bytes)))
    };
    let read = |len| wr(7, SendOp::Read(replay.remote(20_000)), replay.landing(len));
    let swap = |compare, swap| {
        let remote = replay.remote(8);
        wr(7, SendOp::CmpSwap { remote, compare, swap }, replay.landing(8))
    };
    match number {
        0 => message(SendOp::Send, 0),
        1 => {
            let mut request = message(SendOp::Send, 1);
            request.flags |= SendFlags::SOLICITED;
            request
        }
        n @ 2..=4 => message(SendOp::Send, n as u32),
        5 => message(imm(0xdead_beef), 10),
        6 => message(SendOp::Send, mtu),
        7 => message(SendOp::Send, 2 * mtu + 100),
        8 => message(imm(0x0102_0304), mtu + 50),
        9 => message(write(4096), 33),
        10 => message(write(4096), 3 * mtu),
        11 => message(write_imm(4097, 0xcafe_f00d), 5),
        12 => message(write_imm(4096, 0x0bad_cafe), mtu + 1),
        13 => message(write_imm(0, 0x1111_1111), 0),
        14 => message(write(4096), 0),
        15 => {
            let sges = [replay.sge(0, 10), replay.sge(1000, 7), replay.sge(2000, 23)];
            wr(7, SendOp::Send, Data::Sges(SgeList::new(&sges)))
        }
        16 => inline(SendOp::Send, 20),
        17 => inline(write(4096), 20),
        18 => read(40),
        19 => read(3 * mtu + 7),
        20 => read(2 * mtu),
        21 => read(0),
        22 => wr(7, SendOp::FetchAdd { remote: replay.remote(8), add: 5 }, replay.landing(8)),
        23 => swap(1005, 0x1122_3344_5566_7788),
        _ => swap(1, 2),
    }
}

/// Runs operations by number; all must succeed. Returns how many packets were compared.
fn operations(name: &'static str, setup: Setup, numbers: impl IntoIterator<Item = usize>) -> usize {
    let mut replay = Replay::new(name, setup);
    let mtu = setup.mtu.bytes() as u32;
    for number in numbers {
        let request = operation(&replay, number, mtu);
        let is_read = matches!(request.op, SendOp::Read(_));
        let len = request.data.len() as usize;
        let status = replay.run(request);
        assert_eq!(status, Some(WcStatus::Success), "{name} operation {number}");
        if is_read {
            let read = replay.side.host.read(16_384, len);
            let pattern: Vec<u8> = (20_000..20_000 + len).map(|i| (i * 7 + 3) as u8).collect();
            assert_eq!(read, pattern, "{name} operation {number}");
        }
    }
    replay.finish()
}

#[test]
fn every_operation_of_a_reliable_connection_looks_alike() {
    let setup = Setup::default();
    let mtu256 = Setup { mtu: Pmtu::B256, ..setup };
    let wrap = Setup { psn: 0x00ff_fffe, ..setup };
    assert_eq!(operations("ops_rc", setup, 0..25), 31);
    assert_eq!(operations("ops_rc_mtu256", mtu256, 0..25), 31);
    assert_eq!(operations("psn_wrap", wrap, [7, 10, 19, 4]), 8);
    assert_eq!(operations("ops_tos", setup, [0, 10, 19]), 5);
}

#[test]
fn every_operation_of_an_unreliable_connection_looks_alike() {
    let setup = Setup { qp_type: QpType::Uc, ..Setup::default() };
    assert_eq!(operations("ops_uc", setup, 0..18), 24);
}

#[test]
fn sends_with_invalidate_look_alike() {
    let mut replay = Replay::new("ops_send_inv", Setup::default());
    let (key, write) = (replay.rkey, SendOp::Write(replay.remote(4096)));
    let requests = [
        (wr(1, write, replay.data(16)), WcStatus::Success),
        (wr(2, SendOp::SendInv(key), replay.data(12)), WcStatus::Success),
        (wr(3, SendOp::Send, replay.data(4)), WcStatus::Success),
        (wr(4, write, replay.data(16)), WcStatus::RemoteAccess),
    ];
    for (request, status) in requests {
        assert_eq!(replay.run(request), Some(status));
    }
    assert_eq!(replay.finish(), 4);
    let mut replay = Replay::new("ops_send_inv_multi", Setup::default());
    let request = wr(1, SendOp::SendInv(replay.rkey), replay.data(1024 + 12));
    assert_eq!(replay.run(request), Some(WcStatus::Success));
    assert_eq!(replay.finish(), 2);
}

#[test]
fn datagrams_look_alike() {
    let setup = Setup { qp_type: QpType::Ud, ..Setup::default() };
    let mut replay = Replay::new("ops_ud", setup);
    let av = replay.side.av();
    let ah = replay.side.host.engine.create_ah(replay.side.host.pd, av).unwrap();
    let qpn = replay.packets.as_slice()[0].packet.bth().dest_qp;
    let source = replay.packets.as_slice()[0].packet.exts().deth.unwrap().src_qp;
    let (own, other) = (Qkey(0x1122_3344), Qkey(0x5566_7788));
    let imm = SendOp::SendImm(Imm(0xdead_beef));
    let send = SendOp::Send;
    let all = [
        (send, 0, own),
        (send, 1, own),
        (send, 63, own),
        (imm, 64, own),
        (send, 1024, own),
        (send, 16, other),
        (send, 16, own),
    ];
    for (op, len, qkey) in all {
        let mut request = wr(7, op, replay.data(len));
        request.dest = Dest::Ud { ah, qpn, qkey };
        if len == 63 {
            request.flags |= SendFlags::SOLICITED;
        }
        replay.side.qp.sq.post(request).unwrap();
        let mut ours = replay.side.host.transmit(replay.side.now);
        // Only the queue pair number of the sender cannot be the same.
        ours[0] = with_source(&ours[0], source);
        replay.compare(&ours);
        assert_eq!(replay.side.host.poll().map(|c| c.status), Some(WcStatus::Success));
    }
    assert_eq!(replay.finish(), 7);
}

fn with_source(packet: &Packet, src_qp: Qpn) -> Packet {
    let deth = packet.exts().deth.unwrap();
    let mut packet = packet.clone();
    let bytes = feroce_testkit::header(|out| Deth { src_qp, ..deth }.emit(out));
    let at = feroce_wire::Bth::LEN;
    packet.bytes[at..at + bytes.len()].copy_from_slice(&bytes);
    packet
}

#[test]
fn refusals_end_requests_with_the_status_they_mean() {
    let write = |r: &Replay, offset, len| wr(1, SendOp::Write(r.remote(offset)), r.data(len));
    let mut compared = 0;
    let mut check = |name, make: &dyn Fn(&Replay) -> SendWr, status| {
        let mut replay = Replay::new(name, Setup::default());
        let request = make(&replay);
        assert_eq!(replay.run(request), Some(status), "{name}");
        assert_eq!(replay.side.qp.sq.state(), QpState::Err);
        // As in the capture, the next request is flushed and sends no packet.
        assert_eq!(replay.run(wr(2, SendOp::Send, Data::EMPTY)), Some(WcStatus::Flushed));
        compared += replay.finish();
    };
    let access = WcStatus::RemoteAccess;
    check("err_oob_write", &|r| write(r, 131_072 - 32, 64), access);
    check("err_qp_noperm", &|r| write(r, 4096, 64), WcStatus::RemoteInvalidRequest);
    check("err_rkey_write", &|r| write(r, 4096, 64), access);
    check("err_rkey_write_multi", &|r| write(r, 4096, 3 * 1024), access);
    check("err_ro_write", &|r| write(r, 4096, 64), access);
    check("err_recv_small", &|r| wr(1, SendOp::Send, r.data(64)), WcStatus::RemoteOperation);
    let read = |r: &Replay| wr(1, SendOp::Read(r.remote(4096)), r.landing(64));
    check("err_rkey_read", &read, access);
    let add = |r: &Replay| wr(1, SendOp::FetchAdd { remote: r.remote(8), add: 1 }, r.landing(8));
    check("err_rkey_atomic", &add, access);
    assert_eq!(compared, 10);
}

#[test]
fn a_receiver_that_is_not_ready_is_asked_as_often_as_rxe_asks() {
    ask_until("rnr_exceed", 2, &[None, Some(WcStatus::RnrRetryExceeded)]);
    ask_until("rnr_retry", 7, &[None, None, Some(WcStatus::Success)]);
}

/// Sends to a receiver that asks to wait 81.92 ms, time after time; `ends` says what completes.
fn ask_until(name: &'static str, rnr_retry: u8, ends: &[Option<WcStatus>]) {
    let attr = QpAttr { rnr_retry: Some(rnr_retry), ..Setup::default().attr };
    let mut replay = Replay::new(name, Setup { attr, ..Setup::default() });
    let request = wr(1, SendOp::Send, replay.data(100));
    assert_eq!(replay.run(request), None);
    for &end in ends {
        replay.side.now = replay.side.now.plus_nanos(81_920_000);
        replay.side.host.engine.handle_timeout(replay.side.now);
        let again = replay.side.host.transmit(replay.side.now);
        replay.compare(&again);
        replay.answers();
        assert_eq!(replay.side.host.poll().map(|c| c.status), end);
    }
    assert_eq!(replay.finish(), 1 + ends.len());
}

#[test]
fn a_peer_that_is_gone_is_asked_as_often_as_rxe_asks() {
    let attr = QpAttr { timeout: Some(15), retry_cnt: Some(3), ..Setup::default().attr };
    let mut replay = Replay::new("timeout", Setup { attr, ..Setup::default() });
    let request = wr(1, SendOp::Send, replay.data(32));
    assert_eq!(replay.run(request), None);
    for i in 1..=4 {
        replay.side.now = replay.side.now.plus_nanos(4096 << 15);
        replay.side.host.engine.handle_timeout(replay.side.now);
        let again = replay.side.host.transmit(replay.side.now);
        replay.compare(&again);
        let end = (i == 4).then_some(WcStatus::RetryExceeded);
        assert_eq!(replay.side.host.poll().map(|c| c.status), end);
    }
    assert_eq!(replay.finish(), 4);
}

/// The last packet of a read answer was lost. Asked for it alone, rxe sends what it calls the
/// last packet, not the only one.
#[test]
fn a_lost_end_of_a_read_is_asked_for_as_rxe_asks() {
    let mut replay = Replay::new("loss_read_resp_last", Setup::default());
    for id in 1..=2 {
        let request = wr(id, SendOp::Read(replay.remote(20_000)), replay.landing(4096));
        replay.side.qp.sq.post(request).unwrap();
    }
    let ours = replay.side.host.transmit(replay.side.now);
    replay.compare(&ours);
    let own = replay.side.qp.qpn;
    for psn in 0x100..=0x107 {
        let packet = replay.packets.next().unwrap().packet;
        assert_eq!(packet.psn(), psn);
        if psn != 0x107 {
            assert!(replay.side.deliver(&packet.with_bth(|bth| bth.dest_qp = own)).is_empty());
        }
    }
    replay.side.now = replay.side.now.plus_nanos(4096 << 19);
    replay.side.host.engine.handle_timeout(replay.side.now);
    let again = replay.side.host.transmit(replay.side.now);
    assert_eq!((again.len(), again[0].op(), again[0].psn()), (1, Op::ReadRequest, 0x107));
    replay.compare(&again);
    replay.answers();
    let done: Vec<_> = replay.side.host.poll_all().iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(done, [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(replay.finish(), 3);
}
