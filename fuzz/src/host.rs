//! An engine with memory, keys, queues and queue pairs for an input to play with.

use std::sync::Arc;

use feroce_engine::{
    AddrVec, AhId, Config, CqId, CqPoller, Cqe, CreatedQp, Data, Dest, Engine, LossPolicy, QpAttr,
    QpCap, QpInitAttr, QpState, QpType, RecvQueue, RecvWr, SendOp, SendQueue, SendWr, Sge, SgeList,
    SrqId, SrqInitAttr, SrqQueue, WindowConfig, XrcdId,
};
use feroce_mem::{Access, Iova, MwType, PdId, Region};
use feroce_train::{Instant, LinkCaps, RxMeta, Train};
use feroce_wire::{Gid, Lkey, Packet, Pmtu, Psn, Qkey, Qpn, Rkey};

/// Everything a peer may do.
pub(crate) const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT);

pub(crate) const CAPS: LinkCaps = LinkCaps { max_packets: 8, max_bytes: 4096 };
pub(crate) const QKEY: Qkey = Qkey(0x1111_1111);
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
    pub(crate) engine: Engine,
    /// Address for the input's own use, and that of the pair nobody disturbs.
    pub(crate) gid: Gid,
    pub(crate) clean_gid: Gid,
    pub(crate) pd: PdId,
    other_pd: PdId,
    pub(crate) cq: CqId,
    pub(crate) poller: CqPoller,
    pub(crate) region: Arc<Region>,
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
        let mut engine =
            Engine::new(Config { seed: u64::from(number), window, ..Config::default() });
        let gid = address(number);
        let clean_gid = Gid::from_ipv4([10, 0, 1, number]);
        engine.set_gid(0, gid);
        engine.set_gid(1, clean_gid);
        let pd = engine.alloc_pd().expect("a protection domain");
        let other_pd = engine.alloc_pd().expect("a protection domain");
        let (cq, poller) = engine.create_cq(96).expect("a completion queue");
        let region = Region::alloc(MEMORY).expect("memory");
        region.write_at(0, &[CANARY; MEMORY]).expect("in bounds");
        for (at, len) in [OPEN, LOCAL] {
            region.write_at(at, &vec![!CANARY; len]).expect("in bounds");
        }
        let mut reg = |pd, (at, len), access| {
            let region = Arc::clone(&region);
            engine.reg_mr(pd, region, at, len, Iova::ZeroBased, access).expect("a registration")
        };
        let open = reg(pd, OPEN, ALL);
        let local = reg(pd, LOCAL, Access::LOCAL_WRITE);
        let foreign = reg(other_pd, FOREIGN, ALL);
        let read_only = reg(pd, READ_ONLY, Access::REMOTE_READ);
        let window = engine.alloc_mw(pd, MwType::Two).expect("a window");
        let fast = engine.alloc_mr(pd, Arc::clone(&region)).expect("a key");
        let keys = Keys { open, local, foreign, read_only, window, fast };
        let srq = SrqInitAttr { pd, max_wr: 16, max_sge: 4, limit: 2, xrc: None };
        let (srq_id, srq_queue) = engine.create_srq(srq).expect("a shared receive queue");
        let xrcd = engine.alloc_xrcd().expect("an XRC domain");
        let xrc = SrqInitAttr { xrc: Some((xrcd, cq)), ..srq };
        let (xrc_srq, xrc_queue) = engine.create_srq(xrc).expect("a shared receive queue");
        let av = AddrVec { dgid: address(peer), ..AddrVec::default() };
        let ah = engine.create_ah(pd, av).expect("an address handle");
        Self {
            engine,
            gid,
            clean_gid,
            pd,
            other_pd,
            cq,
            poller,
            region,
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
            qp_type,
            pd: self.pd,
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: (with_srq && qp_type.has_rq()).then_some(self.srq),
            xrcd: (qp_type == QpType::XrcTgt).then_some(self.xrcd),
            cap: QpCap {
                max_send_wr: DEPTH,
                max_recv_wr: DEPTH,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline: 128,
            },
            sq_sig_all: false,
            loss: LossPolicy::Retransmit,
            congestion_control: true,
            hears_itself: true,
        }
    }

    pub(crate) fn create(&mut self, qp_type: QpType, with_srq: bool) -> Slot {
        self.try_create(qp_type, with_srq).expect("a queue pair")
    }

    pub(crate) fn try_create(&mut self, qp_type: QpType, with_srq: bool) -> Option<Slot> {
        let init = self.init_attr(qp_type, with_srq);
        let CreatedQp { qpn, sq, rq } = self.engine.create_qp(init).ok()?;
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
        let (dgid, dest) = peer;
        let av = AddrVec { dgid, ..AddrVec::default() };
        let psn = Psn::new(0);
        let attr = match (slot.qp_type, to) {
            (QpType::Ud, QpState::Init) => QpAttr::init_ud(QKEY),
            (_, QpState::Init) => QpAttr::init(ALL),
            (QpType::Rc | QpType::XrcTgt, QpState::Rtr) => {
                QpAttr { max_dest_rd_atomic: Some(4), ..QpAttr::rtr(av, dest, psn, MTU) }
            }
            (QpType::Uc | QpType::XrcIni, QpState::Rtr) => QpAttr::rtr_uc(av, dest, psn, MTU),
            (QpType::Rc | QpType::XrcIni, QpState::Rts) => {
                QpAttr { max_rd_atomic: Some(4), ..QpAttr::rts(psn) }
            }
            (QpType::XrcTgt, QpState::Rts) => {
                QpAttr { timeout: Some(14), ..QpAttr::rts_unreliable(psn) }
            }
            (_, QpState::Rts) => QpAttr::rts_unreliable(psn),
            _ => QpAttr::to(to),
        };
        self.engine.modify_qp(now, slot.qpn, &attr).is_ok()
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

    /// Panics if memory changed that nobody had a right to.
    pub(crate) fn check_memory(&self) {
        let mut memory = [0; MEMORY];
        self.region.read_at(0, &mut memory).expect("in bounds");
        let mut start = 0;
        for (open, len) in [OPEN, LOCAL, (MEMORY, 0)] {
            let is_whole = memory[start..open].iter().all(|&byte| byte == CANARY);
            assert!(is_whole, "memory changed outside of what was registered for it");
            start = open + len;
        }
    }

    /// Destroys what [`Host::new`] made; everything that used it must be gone.
    pub(crate) fn tear_down(mut self) {
        let engine = &mut self.engine;
        engine.destroy_srq(self.srq).expect("an unused shared receive queue");
        engine.destroy_srq(self.xrc_srq).expect("an unused shared receive queue");
        engine.dealloc_xrcd(self.xrcd).expect("an unused XRC domain");
        engine.destroy_cq(self.cq).expect("an unused completion queue");
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

/// The address of a host.
pub(crate) fn address(number: u8) -> Gid {
    Gid::from_ipv4([10, 0, 0, number])
}

/// A packet on its way.
#[derive(Clone, Debug)]
pub(crate) struct InFlight {
    pub(crate) meta: RxMeta,
    pub(crate) bytes: Vec<u8>,
}

/// The packets of a train, checked for what every link relies on.
pub(crate) fn packets(train: &Train) -> Vec<InFlight> {
    let meta = RxMeta::from(&train.path);
    let first = train.packet_len(0);
    assert!(train.count == 1 || train.total_len() <= CAPS.max_bytes as usize, "{train:?}");
    assert!(train.count >= 1 && train.count <= CAPS.max_packets, "{train:?}");
    let mut total = 0;
    let mut made = Vec::new();
    for i in 0..train.count {
        let mut bytes = vec![0; train.packet_len(i)];
        let len = train.emit(i, &mut bytes);
        assert_eq!(len, bytes.len(), "{train:?}");
        assert!(len == first || (i + 1 == train.count && len < first), "{train:?}");
        assert!(Packet::parse(&bytes).is_ok(), "{train:?}");
        total += len;
        made.push(InFlight { meta, bytes });
    }
    assert_eq!(total, train.total_len(), "{train:?}");
    made
}

/// Takes the order of completions: work requests of one queue complete in the order in which they
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
