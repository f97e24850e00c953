//! Arbitrary bytes as packets, to an engine with queue pairs of every type in every state.

use feroce_engine::{Dest, FlushKind, QpState, QpType, Remote, SendOp};
use feroce_mem::{Access, Bind};
use feroce_testkit::address;
use feroce_train::{Ecn, Framing, Instant, RxMeta, RxTrain};
use feroce_wire::{Bth, Gid, Imm, Opcode, Qpn, Rkey, Service};

use crate::clean::CleanPair;
use crate::host::{CAPS, Host, Order, Slot, packets};
use crate::input::Input;

/// Where the packets come from: the peer of every queue pair but the clean one.
const ATTACKER: u8 = 99;
const PEER_QPN: Qpn = Qpn::new(0x42);
const GROUP: Gid = Gid::from_ipv4([239, 1, 2, 3]);

/// Packets of one input at most.
const MAX_PACKETS: usize = 64;

/// Every byte of the input is a packet or says how it arrives:
///
/// * byte 0 chooses the queue pair (31 of 32 values are put into the destination of the packet),
///   whether the key in it is replaced by a valid one, and the sender;
/// * byte 1 is how the packet was framed and marked, and what happens after it;
/// * bytes 2 and 3 are the length of what follows.
///
/// Nothing may panic, memory may change only where the attacker had a right to, and a pair of
/// queue pairs that was not touched must still work.
pub fn engine_raw(bytes: &[u8]) {
    let mut world = World::new();
    let mut input = Input::new(bytes);
    for _ in 0..MAX_PACKETS {
        if input.is_empty() {
            break;
        }
        world.packet(&mut input);
    }
    world.finish();
}

/// A captured packet, from the BTH to the end of the padding, as an input of [`engine_raw`],
/// addressed to the queue pair that fits best.
pub fn packet_as_raw_input(packet: &[u8]) -> Vec<u8> {
    let to = match packet.first().and_then(|&byte| Opcode(byte).decode()) {
        Some((Service::Rc, op)) if !op.is_request() => 4,
        Some((Service::Uc, _)) => 9,
        Some((Service::Ud, _)) => 11,
        Some((Service::Xrc, _)) => 15,
        _ => 3,
    };
    let mut input = vec![to | 0x20, 0];
    input.extend(u16::try_from(packet.len()).unwrap_or(u16::MAX).to_le_bytes());
    input.extend(packet);
    input
}

struct World {
    now: Instant,
    host: Host,
    other: Host,
    clean: CleanPair,
    slots: Vec<Slot>,
    order: Order,
}

impl World {
    fn new() -> Self {
        let now = Instant::from_nanos(1_000_000);
        let (mut host, mut other) = (Host::new(1, ATTACKER), Host::new(2, 1));
        let clean = CleanPair::new(&mut host, &mut other, now);
        let mut slots = Vec::new();
        let kinds = [
            (QpType::Rc, QpState::Reset),
            (QpType::Rc, QpState::Init),
            (QpType::Rc, QpState::Rtr),
            (QpType::Rc, QpState::Rts),
            (QpType::Rc, QpState::Rts),
            (QpType::Rc, QpState::Sqd),
            (QpType::Rc, QpState::Err),
            (QpType::Rc, QpState::Rts),
            (QpType::Uc, QpState::Rtr),
            (QpType::Uc, QpState::Rts),
            (QpType::Ud, QpState::Init),
            (QpType::Ud, QpState::Rts),
            (QpType::Ud, QpState::Rts),
            (QpType::XrcIni, QpState::Rts),
            (QpType::XrcIni, QpState::Sqd),
            (QpType::XrcTgt, QpState::Rts),
            (QpType::XrcTgt, QpState::Rtr),
        ];
        for (i, (qp_type, state)) in kinds.into_iter().enumerate() {
            let mut slot = host.create(qp_type, i == 7);
            // What is outstanding in SQD was posted before.
            let first = if state == QpState::Sqd { QpState::Rts } else { state };
            host.bring_up(now, &slot, first, (address(ATTACKER), PEER_QPN));
            if matches!(i, 4 | 5 | 13 | 14) {
                post_everything(&mut host, &mut slot);
            }
            let _ = slot.rq.as_mut().map(|rq| {
                for at in 0..4 {
                    let _ = rq.post(host.recv(at * 512, 300));
                }
            });
            slots.push(slot);
        }
        let mut world = Self { now, host, other, clean, slots, order: Order::default() };
        world.set_up_shared();
        world.transmit();
        for i in [5, 14] {
            let peer = (address(ATTACKER), PEER_QPN);
            assert!(world.host.step(now, &world.slots[i], QpState::Sqd, peer));
        }
        world
    }

    /// Shared receive queues, a multicast group, QP1, a bound window.
    fn set_up_shared(&mut self) {
        let host = &mut self.host;
        for at in 0..4 {
            let (one, two) = (host.recv(at * 256, 700), host.recv(at * 256, 90));
            host.srq_queue.post(one).expect("room");
            host.xrc_queue.post(two).expect("room");
        }
        host.base.engine.attach_mcast(self.slots[12].qpn, GROUP).expect("a member");
        let init = host.init_attr(QpType::Ud, false);
        let gsi = host.base.engine.create_gsi(init).expect("QP1");
        let mut gsi = Slot { qp_type: QpType::Ud, qpn: gsi.qpn, sq: gsi.sq, rq: gsi.rq };
        host.bring_up(self.now, &gsi, QpState::Rts, (address(ATTACKER), PEER_QPN));
        let recv = host.recv(0, 300);
        let _ = gsi.rq.as_mut().map(|rq| rq.post(recv));
        self.slots.push(gsi);
        let new_rkey = Rkey(host.keys.window.0 ^ 1);
        let binding = Bind {
            mr: host.keys.open,
            addr: 64,
            len: 128,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ,
            zero_based: false,
        };
        let bind = SendOp::BindMw { mw: host.keys.window, new_rkey, binding };
        host.keys.window = new_rkey;
        let wr = host.send(bind, 0, 0, Dest::Connected);
        self.slots[3].sq.post(wr).expect("room");
    }

    fn packet(&mut self, input: &mut Input<'_>) {
        let (to, how) = (input.u8(), input.u8());
        let len = usize::from(input.u16()) % 4500;
        let mut bytes = input.bytes(len).to_vec();
        let slot = self.slots.get(usize::from(to & 0x1f));
        let qpn = slot.map_or_else(|| self.clean.qpn(), |slot| slot.qpn);
        if to & 0x1f != 0x1f {
            set_dest(&mut bytes, qpn);
        }
        if to & 0x20 != 0 {
            let keys = self.host.keys;
            let key = if to & 0x40 == 0 { Rkey(keys.open.0) } else { keys.window };
            set_key(&mut bytes, key);
        }
        let meta = RxMeta {
            src: if to & 0x80 == 0 { address(ATTACKER) } else { self.host.base.gid }.into(),
            dst: if how & 0x10 == 0 { self.host.base.gid } else { GROUP }.into(),
            ecn: if how & 1 == 0 { Ecn::Capable } else { Ecn::Congested },
            framing: match how >> 1 & 3 {
                0 | 1 => Framing::RoceV2,
                2 => Framing::RoceV1,
                _ => Framing::InfiniBand,
            },
            hop_limit: how,
            ..RxMeta::default()
        };
        // Packets that arrive together, which a network can cut anywhere.
        let stride = if how & 8 == 0 { bytes.len() } else { bytes.len() / 2 + usize::from(how) };
        let trailer = if how & 0x20 == 0 { 0 } else { 4 };
        self.now = self.now.plus_nanos(1000);
        let train = RxTrain { meta, bytes: &bytes, stride, trailer, remote: None };
        self.host.base.engine.handle_rx(self.now, &train);
        if how & 0x40 == 0 {
            self.transmit();
        }
        if how & 0x80 != 0 {
            self.now = self.now.plus_nanos(100_000_000);
            self.host.base.engine.handle_timeout(self.now);
            self.transmit();
        }
    }

    /// Takes what the engine sends, checks it and throws it away.
    fn transmit(&mut self) {
        for _ in 0..10_000 {
            let Some(train) = self.host.base.engine.poll_transmit(self.now, &CAPS) else {
                self.host.base.engine.trains_read();
                while let Some(cqe) = self.host.base.poller.poll() {
                    self.order.check(&cqe);
                }
                while self.host.base.engine.poll_event().is_some() {}
                return;
            };
            packets(&train);
        }
        panic!("the engine sends for ever");
    }

    fn finish(mut self) {
        self.transmit();
        self.host.base.engine.handle_timeout(self.now);
        self.transmit();
        let next = self.host.base.engine.poll_timeout();
        assert!(next.is_none_or(|at| at > self.now), "due at {next:?}, now it is {:?}", self.now);
        self.host.check_memory();
        self.clean.must_work(&mut self.host, &mut self.other, self.now);
        self.host.base.engine.detach_mcast(self.slots[12].qpn, GROUP).expect("a member");
        for slot in &self.slots {
            self.host.base.engine.destroy_qp(slot.qpn).expect("a queue pair");
        }
        self.host.check_memory();
        self.host.tear_down();
        self.other.tear_down();
    }
}

/// One work request of every kind.
fn post_everything(host: &mut Host, slot: &mut Slot) {
    let dest = match slot.qp_type {
        QpType::XrcIni => Dest::Xrc(host.xrc_srq.number()),
        _ => Dest::Connected,
    };
    let remote = Remote { addr: 8, rkey: Rkey(0x1234) };
    let kind = FlushKind { global: true, persistent: true, whole_region: false };
    let ops = [
        (SendOp::SendImm(Imm(7)), 600),
        (SendOp::Write(remote), 1000),
        (SendOp::Read(remote), 1000),
        (SendOp::FetchAdd { remote, add: 1 }, 8),
        (SendOp::Read(remote), 10),
        (SendOp::Flush { remote, len: 8, kind }, 0),
        (SendOp::AtomicWrite(remote), 8),
        (SendOp::WriteImm(remote, Imm(9)), 0),
    ];
    for (op, len) in ops {
        let wr = host.send(op, 64, len, dest);
        slot.sq.post(wr).expect("room");
    }
}

/// Puts the number of a queue pair into the base header.
fn set_dest(bytes: &mut [u8], qpn: Qpn) {
    if let Some(field) = bytes.get_mut(5..8) {
        field.copy_from_slice(&qpn.get().to_be_bytes()[1..]);
    }
}

/// Puts a key where the operation of the packet has one, and makes the address before it small, as
/// addresses in our memory are.
fn set_key(bytes: &mut [u8], key: Rkey) {
    let Some((service, op)) = bytes.first().and_then(|&byte| Opcode(byte).decode()) else {
        return;
    };
    let mut at = Bth::LEN;
    at += if service == Service::Xrc { 4 } else { 0 };
    at += if op.has_feth() { 4 } else { 0 };
    if op.has_reth() || op.has_atomic_eth() {
        if let Some(high) = bytes.get_mut(at..at + 6) {
            high.fill(0);
        }
        if let Some(byte) = bytes.get_mut(at + 6) {
            *byte &= 0x3f;
        }
        at += 8;
    } else if !op.has_ieth() {
        return;
    }
    if let Some(field) = bytes.get_mut(at..at + 4) {
        field.copy_from_slice(&key.0.to_be_bytes());
    }
}
