//! Two engines, a network between them that does what the input says, and consumers that post,
//! modify and destroy what it says.

mod inject;

use std::collections::VecDeque;
use std::sync::Arc;

use feroce_engine::{
    AddrVec, Data, Dest, FlushKind, Notify, QpAttr, QpState, QpType, Remote, SendFlags, SendOp,
    SendWr, Sge, SgeList,
};
use feroce_mem::{Access, Bind, Iova, Rereg};
use feroce_testkit::{ALL, Packet, QKEY};
use feroce_train::{Ecn, InlineBytes, Instant, RxTrain};
use feroce_wire::{Imm, Lkey, Rkey};

use crate::clean::CleanPair;
use crate::host::{CAPS, DEPTH, Host, OPEN, Order, Slot, packets};
use crate::input::Input;

/// Actions of one input at most.
const MAX_ACTIONS: usize = 200;

/// Packets on the way in one direction at most; what is more is lost.
const MAX_IN_FLIGHT: usize = 256;

/// Interprets the input as a sequence of actions.
///
/// Nothing may panic; requests of a queue complete in order and once, and all of them when the
/// network works again; what the engines send is well formed; memory may change only where a
/// registration allows it; at the end, a pair of queue pairs that was not touched must work, and
/// no object is still in use.
pub fn engine_structured(bytes: &[u8]) {
    let mut world = World::new();
    let mut input = Input::new(bytes);
    for _ in 0..MAX_ACTIONS {
        if input.is_empty() {
            break;
        }
        world.act(&mut input);
    }
    world.finish();
}

/// One of the two hosts with its queue pairs; those of the same index are connected.
struct Side {
    host: Host,
    slots: Vec<Slot>,
    /// Packets that were sent and have not arrived.
    sent: VecDeque<Packet>,
    order: Order,
}

impl Side {
    /// Posts a receive where queue pair `index` takes its receives from, if there is room.
    fn post_recv(&mut self, index: usize, at: u64, len: u32) {
        let wr = self.host.recv(at, len);
        let slot = &mut self.slots[index];
        let _ = match (&mut slot.rq, slot.qp_type) {
            (Some(rq), _) => rq.post(wr).map(drop),
            (None, QpType::XrcTgt) => self.host.xrc_queue.post(wr),
            (None, _) => self.host.srq_queue.post(wr),
        };
    }
}

struct World {
    now: Instant,
    sides: [Side; 2],
    clean: CleanPair,
}

/// Types of the queue pairs, and whether they take receives from a shared queue. The XRC pairs
/// are one way each.
const KINDS: [[(QpType, bool); 2]; 7] = [
    [(QpType::Rc, false), (QpType::Rc, false)],
    [(QpType::Rc, false), (QpType::Rc, false)],
    [(QpType::Rc, true), (QpType::Rc, true)],
    [(QpType::Uc, false), (QpType::Uc, true)],
    [(QpType::Ud, false), (QpType::Ud, false)],
    [(QpType::XrcIni, false), (QpType::XrcTgt, false)],
    [(QpType::XrcTgt, false), (QpType::XrcIni, false)],
];

impl World {
    fn new() -> Self {
        let now = Instant::from_nanos(1_000_000);
        let (mut a, mut b) = (Host::new(1, 2), Host::new(2, 1));
        let clean = CleanPair::new(&mut a, &mut b, now);
        let side =
            |host| Side { host, slots: Vec::new(), sent: VecDeque::new(), order: Order::default() };
        let mut world = Self { now, sides: [side(a), side(b)], clean };
        for kinds in KINDS {
            for (side, (qp_type, with_srq)) in world.sides.iter_mut().zip(kinds) {
                let slot = side.host.create(qp_type, with_srq);
                side.slots.push(slot);
            }
        }
        for index in 0..KINDS.len() {
            for which in 0..2 {
                world.connect(which, index);
            }
        }
        world
    }

    /// Takes a queue pair as far towards RTS as it goes and posts a receive or two.
    fn connect(&mut self, which: usize, index: usize) {
        let [a, b] = &mut self.sides;
        let (side, peer) = if which == 0 { (a, b) } else { (b, a) };
        let to = (peer.host.base.gid, peer.slots[index].qpn);
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            side.host.step(self.now, &side.slots[index], state, to);
        }
        for at in 0..2 {
            side.post_recv(index, at * 1024, 800);
        }
    }

    fn act(&mut self, input: &mut Input<'_>) {
        let action = input.u8();
        let which = usize::from(action >> 7);
        match action & 0x7f {
            0..=15 => self.transmit(which, 1 + input.below(16)),
            16..=31 => self.deliver(which, input),
            32..=39 => self.run(1 + input.below(16)),
            40..=47 => self.advance(1000 << input.below(24)),
            48..=63 => self.post_send(which, input),
            64..=71 => self.post_recv(which, input),
            72..=79 => self.modify(which, input),
            80..=83 => self.recreate(which, input),
            84..=91 => self.memory(which, input),
            92..=95 => self.queues(which, input),
            96..=99 => self.poll(which),
            _ => self.inject(which, input),
        }
    }

    /// Takes up to `count` trains from a host.
    fn transmit(&mut self, which: usize, count: usize) {
        let side = &mut self.sides[which];
        for _ in 0..count {
            let Some(train) = side.host.base.engine.poll_transmit(self.now, &CAPS) else {
                break;
            };
            side.sent.extend(packets(&train));
            side.sent.truncate(MAX_IN_FLIGHT);
        }
        side.host.base.engine.trains_read();
        while side.host.base.engine.poll_event().is_some() {}
    }

    /// One packet arrives, or is lost, doubled or damaged.
    fn deliver(&mut self, which: usize, input: &mut Input<'_>) {
        let (how, index) = (input.u8(), usize::from(input.u8()));
        let [a, b] = &mut self.sides;
        let (from, to) = if which == 0 { (a, b) } else { (b, a) };
        if from.sent.is_empty() {
            return;
        }
        let index = index % from.sent.len();
        let packet =
            if how & 1 == 0 { from.sent.remove(index) } else { from.sent.get(index).cloned() };
        let Some(mut packet) = packet else {
            return;
        };
        if how & 2 != 0 {
            return;
        }
        if how & 4 != 0 {
            packet.meta.ecn = Ecn::Congested;
        }
        if how & 8 != 0 {
            let (at, bits) = (usize::from(input.u16()), input.u8());
            let len = packet.bytes.len();
            packet.bytes[at % len] ^= bits;
        }
        if how & 16 != 0 {
            packet.bytes.truncate(usize::from(input.u16()));
        }
        self.now = self.now.plus_nanos(100);
        to.host.base.engine.handle_rx(self.now, &RxTrain::single(packet.meta, &packet.bytes));
    }

    /// The network works for a while.
    fn run(&mut self, rounds: usize) {
        for _ in 0..rounds {
            for which in 0..2 {
                self.transmit(which, 64);
                let [a, b] = &mut self.sides;
                let (from, to) = if which == 0 { (a, b) } else { (b, a) };
                for packet in from.sent.drain(..) {
                    let train = RxTrain::single(packet.meta, &packet.bytes);
                    to.host.base.engine.handle_rx(self.now, &train);
                }
            }
            self.now = self.now.plus_nanos(1000);
        }
    }

    fn advance(&mut self, ns: u64) {
        self.now = self.now.plus_nanos(ns);
        for side in &mut self.sides {
            side.host.base.engine.handle_timeout(self.now);
        }
    }

    fn post_send(&mut self, which: usize, input: &mut Input<'_>) {
        let [a, b] = &mut self.sides;
        let (side, peer) = if which == 0 { (a, b) } else { (b, a) };
        let index = input.below(KINDS.len());
        let (keys, host) = (peer.host.keys, &mut side.host);
        let rkeys = keys.remote();
        let mut len = input.pick(&[0, 1, 8, 255, 256, 257, 512, 513, 1024, 3000, 8192]);
        let remote = Remote { addr: remote_addr(input, len), rkey: input.pick(&rkeys) };
        let (imm, word) = (Imm(u32::from(input.u8())), u64::from(input.u8()));
        let op = match input.below(16) {
            0 | 1 => SendOp::Send,
            2 => SendOp::SendImm(imm),
            3 => SendOp::SendInv(input.pick(&rkeys)),
            4 | 5 => SendOp::Write(remote),
            6 => SendOp::WriteImm(remote, imm),
            7 | 8 => SendOp::Read(remote),
            9 => SendOp::CmpSwap { remote, compare: 0, swap: word },
            10 => SendOp::FetchAdd { remote, add: word },
            11 => SendOp::AtomicWrite(remote),
            12 => SendOp::Flush { remote, len, kind: flush_kind(word) },
            13 => bind(host, input),
            14 => SendOp::LocalInv(input.pick(&[host.keys.window, Rkey(host.keys.fast.0)])),
            _ => map(host, len, input),
        };
        if matches!(op, SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. } | SendOp::AtomicWrite(_)) {
            len = 8;
        }
        let slot = &mut side.slots[index];
        let dest = match slot.qp_type {
            QpType::Ud => Dest::Ud { ah: host.ah, qpn: peer.slots[index].qpn, qkey: QKEY },
            QpType::XrcIni if !op.is_local() => Dest::Xrc(peer.host.xrc_srq.number()),
            _ => Dest::Connected,
        };
        let data = data(host, len, input);
        let flags = SendFlags::from_bits_truncate(input.u8());
        let wr = SendWr { wr_id: host.wr_id(0), op, data, flags, dest };
        let _ = slot.sq.post(wr);
    }

    fn post_recv(&mut self, which: usize, input: &mut Input<'_>) {
        let side = &mut self.sides[which];
        let index = input.below(KINDS.len() + 2);
        let (at, len) = (u64::from(input.u16() % 8192), input.pick(&[0, 40, 256, 300, 1000, 4096]));
        let wr = side.host.recv(at, len);
        let _ = match side.slots.get_mut(index) {
            Some(slot) => slot.rq.as_mut().map_or(Ok(()), |rq| rq.post(wr).map(drop)),
            None if index == KINDS.len() => side.host.srq_queue.post(wr),
            None => side.host.xrc_queue.post(wr),
        };
    }

    fn modify(&mut self, which: usize, input: &mut Input<'_>) {
        let index = input.below(KINDS.len());
        match input.below(10) {
            0 => {
                self.modify_to(which, index, QpState::Reset);
                self.connect(which, index);
            }
            1 => self.modify_to(which, index, QpState::Err),
            2 => self.modify_to(which, index, QpState::Sqd),
            3 => self.modify_to(which, index, QpState::Rts),
            4 => self.modify_to(which, index, QpState::Reset),
            5 => self.connect(which, index),
            6 => {
                let attr = QpAttr { sqd_notify: Some(true), ..QpAttr::to(QpState::Sqd) };
                self.modify_by(which, index, &attr);
            }
            7 => {
                let access = Access::from_bits_truncate(u32::from(input.u8()));
                let attr = QpAttr { access: Some(access), ..QpAttr::default() };
                self.modify_by(which, index, &attr);
            }
            8 => {
                let (attr, _) = self.query(which, index);
                let av = attr.av.map(|av| AddrVec { sgid_index: 0, ..av });
                let attr = QpAttr {
                    av,
                    timeout: Some(input.u8() % 33),
                    retry_cnt: Some(input.u8() % 9),
                    ..QpAttr::default()
                };
                self.modify_by(which, index, &attr);
            }
            _ => {
                // Both ends, as a program that reconnects does.
                for which in 0..2 {
                    self.modify_to(which, index, QpState::Reset);
                }
                for which in 0..2 {
                    self.connect(which, index);
                }
            }
        }
    }

    fn modify_to(&mut self, which: usize, index: usize, state: QpState) {
        self.modify_by(which, index, &QpAttr::to(state));
    }

    fn modify_by(&mut self, which: usize, index: usize, attr: &QpAttr) {
        let side = &mut self.sides[which];
        let _ = side.host.base.engine.modify_qp(self.now, side.slots[index].qpn, attr);
    }

    fn query(&self, which: usize, index: usize) -> (QpAttr, feroce_engine::QpInitAttr) {
        let side = &self.sides[which];
        side.host.base.engine.query_qp(side.slots[index].qpn).expect("it exists")
    }

    /// Destroys a queue pair and makes another in its place.
    fn recreate(&mut self, which: usize, input: &mut Input<'_>) {
        let index = input.below(KINDS.len());
        let side = &mut self.sides[which];
        let (qp_type, with_srq) = KINDS[index][which];
        // A completion queue that overran takes no new users.
        if let Some(slot) = side.host.try_create(qp_type, with_srq) {
            side.host.base.engine.destroy_qp(side.slots[index].qpn).expect("it exists");
            side.slots[index] = slot;
            self.connect(which, index);
        }
    }

    fn memory(&mut self, which: usize, input: &mut Input<'_>) {
        let host = &mut self.sides[which].host;
        let access = match input.below(4) {
            0 | 1 => ALL,
            2 => Access::LOCAL_WRITE | Access::REMOTE_READ,
            _ => Access::LOCAL_WRITE,
        };
        match input.below(4) {
            0 => {
                if let Ok(dereg) = host.base.engine.dereg_mr(host.keys.open) {
                    assert!(dereg.is_quiet(), "a grant is held between calls");
                    host.keys.open = register(host, access);
                }
            }
            1 => {
                let change = Rereg { access: Some(access), ..Rereg::default() };
                let _ = host.base.engine.rereg_mr(host.keys.open, change);
            }
            2 => {
                let key = host.keys.window;
                if host.base.engine.dealloc_mw(key).is_ok() {
                    let kind = input.pick(&[feroce_mem::MwType::One, feroce_mem::MwType::Two]);
                    host.keys.window =
                        host.base.engine.alloc_mw(host.base.pd, kind).expect("a window");
                }
            }
            _ => {
                let key = host.keys.window;
                // A bind that was executed has changed the tag.
                let tag = u32::from(input.u8());
                host.keys.window = Rkey(key.0 & !0xff | tag);
            }
        }
    }

    /// Arms, resizes and limits.
    fn queues(&mut self, which: usize, input: &mut Input<'_>) {
        let host = &mut self.sides[which].host;
        let size = u32::from(input.u8());
        match input.below(4) {
            0 => host.base.poller.arm(input.pick(&[Notify::Solicited, Notify::Next])),
            1 => drop(host.base.engine.resize_cq(host.base.cq, &mut host.base.poller, size)),
            2 => drop(host.base.engine.set_srq_limit(host.srq, size % 20)),
            _ => drop(host.base.engine.resize_srq(host.srq, &mut host.srq_queue, size)),
        }
    }

    fn poll(&mut self, which: usize) {
        let side = &mut self.sides[which];
        while let Some(cqe) = side.host.base.poller.poll() {
            side.order.check(&cqe);
        }
    }

    /// The network works, receivers are ready and time passes: whatever was posted must come to an
    /// end, good or bad.
    fn settle(&mut self) {
        const HOURS: u64 = 3 * 3600 * 1_000_000_000;
        for _ in 0..64 {
            for which in 0..2 {
                self.poll(which);
                for index in 0..KINDS.len() {
                    self.post_room(which, index);
                }
            }
            self.run(8);
            if self.unfinished().is_none() {
                return;
            }
            self.advance(HOURS);
        }
        assert_eq!(self.unfinished(), None, "requests are outstanding for ever");
    }

    /// A queue pair that should have finished all its sends and has not.
    fn unfinished(&mut self) -> Option<(usize, usize)> {
        for which in 0..2 {
            for index in 0..KINDS.len() {
                let (attr, init) = self.query(which, index);
                // A timeout of 0 is for ever.
                let waits = init.qp_type.is_reliable() && attr.timeout == Some(0);
                let sends = attr.state == Some(QpState::Rts) && init.qp_type.has_sq();
                let sq = &mut self.sides[which].slots[index].sq;
                if sends && !waits && sq.free() < DEPTH as usize {
                    return Some((which, index));
                }
            }
        }
        None
    }

    /// Posts a receive that is large enough for anything.
    fn post_room(&mut self, which: usize, index: usize) {
        self.sides[which].post_recv(index, 0, 8192);
    }

    fn finish(mut self) {
        self.settle();
        for which in 0..2 {
            self.transmit(which, 10_000);
            self.poll(which);
        }
        // Sending may set a timer that is due at once, such as that of a request for an
        // acknowledgement. That must not go on.
        for _ in 0..2 {
            self.advance(0);
            for which in 0..2 {
                self.transmit(which, 10_000);
            }
        }
        for side in &mut self.sides {
            let next = side.host.base.engine.poll_timeout();
            assert!(next.is_none_or(|at| at > self.now), "due at {next:?}, it is {:?}", self.now);
            for slot in &side.slots {
                side.host.base.engine.destroy_qp(slot.qpn).expect("it exists");
            }
            side.host.check_memory();
        }
        let [mut a, mut b] = self.sides;
        self.clean.must_work(&mut a.host, &mut b.host, self.now);
        for side in [a, b] {
            side.host.check_memory();
            side.host.tear_down();
        }
    }
}

/// An address of `len` bytes in the open memory of a peer, or nearly.
fn remote_addr(input: &mut Input<'_>, len: u32) -> u64 {
    let at = u64::from(input.u16());
    match at & 3 {
        // About where the last bytes are.
        0 => (OPEN.1 as u64).wrapping_sub(u64::from(len)).wrapping_add(at >> 2 & 3),
        1 => at >> 2 & !7,
        _ => (at >> 2) % 9000,
    }
}

/// Registers the open memory again.
fn register(host: &mut Host, access: Access) -> Lkey {
    let (at, len) = OPEN;
    let region = Arc::clone(&host.base.region);
    let key = host.base.engine.reg_mr(host.base.pd, region, at, len, Iova::ZeroBased, access);
    key.expect("a registration")
}

/// Memory that a request sends from or brings answers to.
fn data(host: &Host, len: u32, input: &mut Input<'_>) -> Data {
    let at = u64::from(input.u8());
    let keys = host.keys;
    match input.below(8) {
        0 => Data::Inline(InlineBytes::new(&vec![7; len.min(200) as usize])),
        1 if len > 2 => {
            // In three pieces, one of them empty.
            let sge = |addr, len| Sge { addr, len, lkey: keys.local };
            let sges = [sge(at, len / 2), sge(0, 0), sge(at + u64::from(len), len - len / 2)];
            Data::Sges(SgeList::new(&sges))
        }
        2 => {
            let lkey = input.pick(&[keys.open, keys.foreign, keys.read_only, Lkey(7)]);
            Data::Sges(SgeList::from(Sge { addr: at, len, lkey }))
        }
        _ => Data::Sges(SgeList::from(Sge { addr: at % 16, len, lkey: keys.local })),
    }
}

fn flush_kind(bits: u64) -> FlushKind {
    FlushKind { global: bits & 1 != 0, persistent: bits & 2 != 0, whole_region: bits & 4 != 0 }
}

/// A mapping of the key for fast registration to a part of the open memory.
fn map(host: &mut Host, len: u32, input: &mut Input<'_>) -> SendOp {
    let key = Lkey(host.keys.fast.0 & !0xff | u32::from(input.u8()));
    host.keys.fast = key;
    let from = u64::from(input.u8());
    let len = u64::from(len).min(OPEN.1 as u64 - from);
    SendOp::Reg { key, offset: OPEN.0 as u64 + from, len, iova: from, access: ALL }
}

/// A bind of the window to a part of the open memory.
fn bind(host: &mut Host, input: &mut Input<'_>) -> SendOp {
    let old = host.keys.window;
    let new_rkey = Rkey(old.0 & !0xff | u32::from(input.u8()));
    let binding = Bind {
        mr: host.keys.open,
        addr: u64::from(input.u8()),
        len: u64::from(input.u8()),
        access: Access::REMOTE_READ | Access::REMOTE_WRITE,
        zero_based: input.flag(),
    };
    // The consumer is to know the new key, whether or not the bind will work.
    if input.flag() {
        host.keys.window = new_rkey;
    }
    SendOp::BindMw { mw: old, new_rkey, binding }
}
