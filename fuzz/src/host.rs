//! An engine with memory, keys, queues and queue pairs for an input to play with.

use std::sync::Arc;

use feroce_engine::{
    AddrVec, AhId, Config, Cqe, CreatedQp, Data, Dest, QpAttr, QpCap, QpInitAttr, QpState, QpType,
    RecvQueue, RecvWr, SendOp, SendQueue, SendWr, Sge, SgeList, SrqId, SrqInitAttr, SrqQueue,
    WindowConfig, XrcdId,
};
use feroce_mem::{Access, MwType, PdId};
use feroce_testkit::{self as testkit, ALL, Connection, HostConfig, Mr, Packet, address};
use feroce_train::{Framing, GidEntry, Instant, LinkCaps, Train};
use feroce_wire::{Gid, Lkey, Pmtu, Qpn, Rkey};

pub(crate) const CAPS: LinkCaps = LinkCaps { max_packets: 8, max_bytes: 4096 };
pub(crate) const MTU: Pmtu = Pmtu::B256;

/// Work requests in a queue.
pub(crate) const DEPTH: u32 = 16;

/// What memory holds where nothing may write.
const CANARY: u8 = 0xa5;
const MEMORY: usize = 32 << 10;
/// Registered for everything: the one part that peers may change.
pub(crate) const OPEN: (usize, usize) = (4 << 10, 8 << 10);
/// Registered for local use: receives and answers land here.
pub(crate) const LOCAL: (usize, usize) = (14 << 10, 8 << 10);
/// Registered for everything in another protection domain.
const FOREIGN: (usize, usize) = (23 << 10, 1 << 10);
/// Registered to be read.
const READ_ONLY: (usize, usize) = (25 << 10, 1 << 10);

/// Keys of the memory above; all addresses start at 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys {
    pub(crate) open: Lkey,
    pub(crate) local: Lkey,
    pub(crate) foreign: Lkey,
    pub(crate) read_only: Lkey,
    pub(crate) window: Rkey,
    /// For fast registration of parts of the open memory.
    pub(crate) fast: Lkey,
}

impl Keys {
    /// Keys that a peer may try, the better ones more often.
    pub(crate) fn remote(&self) -> [Rkey; 8] {
        let open = Rkey(self.open.0);
        let others = [self.read_only, self.foreign, self.fast, self.local].map(|key| Rkey(key.0));
        let [read_only, foreign, fast, local] = others;
        [open, open, self.window, read_only, foreign, fast, local, Rkey(5)]
    }
}

/// A queue pair with the consumer's ends of its queues.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) qp_type: QpType,
    pub(crate) qpn: Qpn,
    pub(crate) sq: SendQueue,
    pub(crate) rq: Option<RecvQueue>,
}

/// See the module documentation.
pub(crate) struct Host {
    /// Engine, memory and completion queue; its address is for the input's own use.
    pub(crate) base: testkit::Host,
    /// Address of the pair that no input disturbs.
    pub(crate) clean_gid: Gid,
    other_pd: PdId,
    pub(crate) keys: Keys,
    pub(crate) srq: SrqId,
    pub(crate) srq_queue: SrqQueue,
    pub(crate) xrcd: XrcdId,
    pub(crate) xrc_srq: SrqId,
    pub(crate) xrc_queue: SrqQueue,
    pub(crate) ah: AhId,
    /// Numbers work requests, so that the order of completions can be checked.
    next_wr: u64,
}

/// Bit of a work request identifier that tells a receive from a send.
pub(crate) const IS_RECV: u64 = 1 << 63;

impl Host {
    /// Host `number`, whose peer is host `peer`.
    pub(crate) fn new(number: u8, peer: u8) -> Self {
        // A small window, so that queue pairs have to wait for each other.
        let window = WindowConfig { initial: 8 << 10, min: 2 << 10, max: 16 << 10 };
        let mut base = testkit::Host::build(HostConfig {
            engine: Config { window, ..Config::default() },
            registered: OPEN.0..OPEN.0 + OPEN.1,
            cqes: 96,
            ..HostConfig::new(number, MEMORY)
        });
        let clean_gid = Gid::from_ipv4([10, 0, 1, number]);
        let testkit::Host { engine, gid, pd, cq, region, .. } = &mut base;
        let (pd, cq) = (*pd, *cq);
        engine.set_gid(1, GidEntry::roce_v2(clean_gid));
        engine.set_gid(2, GidEntry { gid: *gid, framing: Framing::RoceV1 });
        let other_pd = engine.alloc_pd().expect("a protection domain");
        region.write_at(0, &[CANARY; MEMORY]).expect("in bounds");
        for (at, len) in [OPEN, LOCAL] {
            region.write_at(at, &vec![!CANARY; len]).expect("in bounds");
        }
        let mut reg =
            |pd, range, access| Mr::register(engine, pd, region, range, None, access).lkey();
        let local = reg(pd, LOCAL, Access::LOCAL_WRITE);
        let foreign = reg(other_pd, FOREIGN, ALL);
        let read_only = reg(pd, READ_ONLY, Access::REMOTE_READ);
        let window = engine.alloc_mw(pd, MwType::Two).expect("a window");
        let fast = engine.alloc_mr(pd, Arc::clone(region)).expect("a key");
        let open = base.lkey;
        let engine = &mut base.engine;
        let keys = Keys { open, local, foreign, read_only, window, fast };
        let srq = SrqInitAttr { pd, max_wr: 16, max_sge: 4, limit: 2, xrc: None };
        let (srq_id, srq_queue) = engine.create_srq(srq).expect("a shared receive queue");
        let xrcd = engine.alloc_xrcd().expect("an XRC domain");
        let xrc = SrqInitAttr { xrc: Some((xrcd, cq)), ..srq };
        let (xrc_srq, xrc_queue) = engine.create_srq(xrc).expect("a shared receive queue");
        let av = AddrVec { dgid: address(peer), ..AddrVec::default() };
        let ah = engine.create_ah(pd, av).expect("an address handle");
        Self {
            base,
            clean_gid,
            other_pd,
            keys,
            srq: srq_id,
            srq_queue,
            xrcd,
            xrc_srq,
            xrc_queue,
            ah,
            next_wr: 0,
        }
    }

    pub(crate) fn init_attr(&self, qp_type: QpType, with_srq: bool) -> QpInitAttr {
        QpInitAttr {
            srq: (with_srq && qp_type.has_rq()).then_some(self.srq),
            xrcd: (qp_type == QpType::XrcTgt).then_some(self.xrcd),
            cap: QpCap {
                max_send_wr: DEPTH,
                max_recv_wr: DEPTH,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline: 128,
            },
            ..self.base.init_attr(qp_type)
        }
    }

    pub(crate) fn create(&mut self, qp_type: QpType, with_srq: bool) -> Slot {
        self.try_create(qp_type, with_srq).expect("a queue pair")
    }

    pub(crate) fn try_create(&mut self, qp_type: QpType, with_srq: bool) -> Option<Slot> {
        let init = self.init_attr(qp_type, with_srq);
        let CreatedQp { qpn, sq, rq } = self.base.engine.create_qp(init).ok()?;
        Some(Slot { qp_type, qpn, sq, rq })
    }

    /// Moves a queue pair one state on, on the way to RTS. False: it was not possible.
    pub(crate) fn step(
        &mut self,
        now: Instant,
        slot: &Slot,
        to: QpState,
        peer: (Gid, Qpn),
    ) -> bool {
        let with =
            QpAttr { max_dest_rd_atomic: Some(4), max_rd_atomic: Some(4), ..QpAttr::default() };
        let connection = Connection { with, ..Connection::new(peer.0, peer.1, MTU) };
        connection.step(&mut self.base.engine, now, slot.qpn, to).is_ok()
    }

    /// Takes a queue pair from RESET to `to`.
    pub(crate) fn bring_up(&mut self, now: Instant, slot: &Slot, to: QpState, peer: (Gid, Qpn)) {
        let way: &[QpState] = match to {
            QpState::Reset => &[],
            QpState::Init => &[QpState::Init],
            QpState::Rtr => &[QpState::Init, QpState::Rtr],
            QpState::Rts => &[QpState::Init, QpState::Rtr, QpState::Rts],
            QpState::Sqd => &[QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd],
            QpState::Sqe | QpState::Err => &[QpState::Err],
        };
        for &state in way {
            assert!(self.step(now, slot, state, peer), "{:?} to {state:?}", slot.qp_type);
        }
    }

    pub(crate) fn wr_id(&mut self, kind: u64) -> u64 {
        self.next_wr += 1;
        self.next_wr | kind
    }

    /// A receive of `len` bytes in the memory that receives may change.
    pub(crate) fn recv(&mut self, at: u64, len: u32) -> RecvWr {
        let sge = Sge { addr: at, len, lkey: self.keys.local };
        RecvWr { wr_id: self.wr_id(IS_RECV), sges: SgeList::from(sge) }
    }

    /// A signalled request with `len` bytes of the memory that answers may change.
    pub(crate) fn send(&mut self, op: SendOp, at: u64, len: u32, dest: Dest) -> SendWr {
        let sge = Sge { addr: at, len, lkey: self.keys.local };
        let data = if len == 0 { Data::EMPTY } else { Data::Sges(SgeList::from(sge)) };
        SendWr { dest, ..SendWr::new(self.wr_id(0), op, data) }
    }

    /// Panics if memory changed that no registration covers.
    pub(crate) fn check_memory(&self) {
        let mut memory = [0; MEMORY];
        self.base.region.read_at(0, &mut memory).expect("in bounds");
        let mut start = 0;
        for (open, len) in [OPEN, LOCAL, (MEMORY, 0)] {
            let is_whole = memory[start..open].iter().all(|&byte| byte == CANARY);
            assert!(is_whole, "memory changed outside of what was registered for it");
            start = open + len;
        }
    }

    /// Destroys what [`Host::new`] made; everything that used it must be gone.
    pub(crate) fn tear_down(mut self) {
        let engine = &mut self.base.engine;
        engine.destroy_srq(self.srq).expect("an unused shared receive queue");
        engine.destroy_srq(self.xrc_srq).expect("an unused shared receive queue");
        engine.dealloc_xrcd(self.xrcd).expect("an unused XRC domain");
        engine.destroy_cq(self.base.cq).expect("an unused completion queue");
        engine.destroy_ah(self.ah).expect("an address handle");
        // Keys may have been changed by the input, so find out what is left.
        let keys = self.keys;
        let _ = engine.dealloc_mw(keys.window);
        for key in [keys.open, keys.local, keys.foreign, keys.read_only, keys.fast] {
            if let Ok(dereg) = engine.dereg_mr(key) {
                assert!(dereg.is_quiet(), "a grant outlived the work it was for");
            }
        }
        engine.dealloc_pd(self.other_pd).expect("an unused protection domain");
    }
}

/// The packets of a train, checked for what every link relies on and what the link promised.
pub(crate) fn packets(train: &Train) -> Vec<Packet> {
    assert!(train.count == 1 || train.total_len() <= CAPS.max_bytes as usize, "{train:?}");
    assert!(train.count <= CAPS.max_packets, "{train:?}");
    let packets = testkit::packets(train);
    for packet in &packets {
        assert!(feroce_wire::Packet::parse(&packet.bytes).is_ok(), "{train:?}");
    }
    packets
}

/// Checks the order of completions: work requests of one queue complete in the order in which they
/// were posted, and never twice.
#[derive(Debug, Default)]
pub(crate) struct Order {
    /// The queue, by queue pair and kind, and the request that completed last.
    last: Vec<((Qpn, u64), u64)>,
}

impl Order {
    pub(crate) fn check(&mut self, cqe: &Cqe) {
        let queue = (cqe.qpn, cqe.wr_id & IS_RECV);
        match self.last.iter_mut().find(|(known, _)| *known == queue) {
            Some((_, last)) => {
                assert!(cqe.wr_id > *last, "{cqe:?} completed after {last:#x}");
                *last = cqe.wr_id;
            }
            None => self.last.push((queue, cqe.wr_id)),
        }
    }
}
