//! Engines on a virtual wire with virtual time, and packets by hand.
#![allow(dead_code, unreachable_pub, reason = "every test binary uses its own part of this")]
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

pub mod golden;
pub mod script;

use std::collections::VecDeque;
use std::sync::Arc;

use feroce_engine::{
    AddrVec, AsyncEvent, Config, CqId, CqPoller, Cqe, CreatedQp, Data, Engine, Event, QpAttr,
    QpCap, QpInitAttr, QpType, RecvQueue, RecvWr, Remote, SendOp, SendQueue, SendWr, Sge, SgeList,
};
use feroce_mem::{Access, Iova, PdId, Region};
use feroce_train::{Ecn, Instant, LinkCaps, RxMeta, RxTrain};
use feroce_wire::{Bth, Gid, Lkey, Op, Opcode, Pmtu, Psn, Qkey, Qpn, Rkey, Service};

/// Everything a peer may do.
pub const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT);

pub const CAPS: LinkCaps = LinkCaps { max_packets: 64, max_bytes: 65000 };
pub const QKEY: Qkey = Qkey(0x1111_1111);
pub const MEMORY: usize = 1 << 20;

pub fn psn(n: u32) -> Psn {
    Psn::new(n)
}

/// A packet on the virtual wire, from the BTH to the end of the padding.
#[derive(Clone, Debug)]
pub struct Packet {
    pub meta: RxMeta,
    pub bytes: Vec<u8>,
}

impl Packet {
    pub fn bth(&self) -> Bth {
        Bth::parse(&self.bytes).unwrap().0
    }

    pub fn op(&self) -> Op {
        self.bth().opcode.decode().unwrap().1
    }

    pub fn psn(&self) -> u32 {
        self.bth().psn.get()
    }

    /// What follows the BTH, without padding.
    pub fn rest(&self) -> &[u8] {
        let end = self.bytes.len() - usize::from(self.bth().pad);
        &self.bytes[Bth::LEN..end]
    }
}

/// An engine with a protection domain, a completion queue and some memory.
pub struct Host {
    pub engine: Engine,
    pub gid: Gid,
    pub pd: PdId,
    pub cq: CqId,
    pub poller: CqPoller,
    pub region: Arc<Region>,
    pub lkey: Lkey,
    pub events: VecDeque<Event>,
}

/// A queue pair with the consumer's ends of its queues.
pub struct TestQp {
    pub qpn: Qpn,
    pub sq: SendQueue,
    pub rq: Option<RecvQueue>,
    pub first_psn: Psn,
}

impl Host {
    pub fn new(number: u8) -> Self {
        Self::with_config(number, Config::default())
    }

    pub fn with_config(number: u8, config: Config) -> Self {
        let config = Config { seed: u64::from(number), ..config };
        let mut engine = Engine::new(config);
        let gid = Gid::from_ipv4([10, 0, 0, number]);
        engine.set_gid(0, gid);
        assert!(matches!(
            engine.poll_event(),
            Some(Event::Async(AsyncEvent::GidChange { index: 0, .. }))
        ));
        let pd = engine.alloc_pd().unwrap();
        let (cq, poller) = engine.create_cq(4096).unwrap();
        let region = Region::alloc(MEMORY).unwrap();
        let lkey = engine.reg_mr(pd, Arc::clone(&region), 0, MEMORY, Iova::ZeroBased, ALL).unwrap();
        Self { engine, gid, pd, cq, poller, region, lkey, events: VecDeque::new() }
    }

    pub fn init_attr(&self, qp_type: QpType) -> QpInitAttr {
        QpInitAttr {
            qp_type,
            pd: self.pd,
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: None,
            xrcd: None,
            cap: QpCap {
                max_send_wr: 256,
                max_recv_wr: 256,
                max_send_sge: 32,
                max_recv_sge: 32,
                max_inline: 256,
            },
            sq_sig_all: false,
            loss: feroce_engine::LossPolicy::Retransmit,
            congestion_control: true,
            hears_itself: true,
        }
    }

    pub fn create_qp(&mut self, init: QpInitAttr) -> TestQp {
        let CreatedQp { qpn, sq, rq } = self.engine.create_qp(init).unwrap();
        TestQp { qpn, sq, rq, first_psn: Psn::new(0) }
    }

    pub fn modify(&mut self, now: Instant, qpn: Qpn, attr: &QpAttr) {
        self.engine.modify_qp(now, qpn, attr).unwrap();
    }

    pub fn sge(&self, addr: u64, len: u32) -> Sge {
        Sge { addr, len, lkey: self.lkey }
    }

    pub fn data(&self, addr: u64, len: u32) -> Data {
        Data::Sges(SgeList::from(self.sge(addr, len)))
    }

    pub fn recv(&self, wr_id: u64, addr: u64, len: u32) -> RecvWr {
        RecvWr { wr_id, sges: SgeList::from(self.sge(addr, len)) }
    }

    /// Names bytes of this host to a peer.
    pub fn remote(&self, addr: u64) -> Remote {
        Remote { addr, rkey: Rkey(self.lkey.0) }
    }

    pub fn fill(&self, addr: usize, len: usize, seed: u8) -> Vec<u8> {
        let bytes: Vec<u8> =
            (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect();
        self.region.write_at(addr, &bytes).unwrap();
        bytes
    }

    pub fn read(&self, addr: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.region.read_at(addr, &mut bytes).unwrap();
        bytes
    }

    pub fn poll(&mut self) -> Option<Cqe> {
        self.poller.poll()
    }

    pub fn poll_all(&mut self) -> Vec<Cqe> {
        std::iter::from_fn(|| self.poller.poll()).collect()
    }

    pub fn async_events(&mut self) -> Vec<AsyncEvent> {
        self.drain_events();
        let all = std::mem::take(&mut self.events);
        all.into_iter()
            .filter_map(|e| match e {
                Event::Async(e) => Some(e),
                Event::Completion(_) => None,
            })
            .collect()
    }

    pub fn drain_events(&mut self) {
        while let Some(event) = self.engine.poll_event() {
            self.events.push_back(event);
        }
    }

    /// Everything the engine wants to send, packet by packet.
    pub fn transmit(&mut self, now: Instant) -> Vec<Packet> {
        let mut packets = Vec::new();
        while let Some(train) = self.engine.poll_transmit(now, &CAPS) {
            let meta = RxMeta { ecn: Ecn::Capable, ..RxMeta::from(&train.path) };
            let longest = train.packet_len(0);
            for i in 0..train.count {
                let mut bytes = vec![0; train.packet_len(i)];
                let len = train.emit(i, &mut bytes);
                assert_eq!(len, bytes.len());
                assert!(len == longest || i + 1 == train.count && len < longest, "{train:?}");
                packets.push(Packet { meta, bytes });
            }
        }
        self.engine.trains_read();
        packets
    }

    pub fn receive(&mut self, now: Instant, packet: &Packet) {
        self.engine.handle_rx(now, &RxTrain::single(packet.meta, &packet.bytes));
    }
}

/// Two hosts and the time.
pub struct Pair {
    pub now: Instant,
    pub a: Host,
    pub b: Host,
    pub mtu: Pmtu,
}

impl Default for Pair {
    fn default() -> Self {
        Self::new(Config::default())
    }
}

impl Pair {
    pub fn new(config: Config) -> Self {
        Self {
            now: Instant::from_nanos(1_000_000),
            a: Host::with_config(1, config.clone()),
            b: Host::with_config(2, config),
            mtu: Pmtu::B1024,
        }
    }

    /// Two connected queue pairs in RTS.
    pub fn connect(&mut self, qp_type: QpType) -> (TestQp, TestQp) {
        let (ia, ib) = (self.a.init_attr(qp_type), self.b.init_attr(qp_type));
        self.connect_with(ia, ib, QpAttr::default())
    }

    /// The same, with attributes that override the defaults where the transition takes them.
    pub fn connect_with(
        &mut self,
        ia: QpInitAttr,
        ib: QpInitAttr,
        with: QpAttr,
    ) -> (TestQp, TestQp) {
        let mut qa = self.a.create_qp(ia);
        let mut qb = self.b.create_qp(ib);
        qa.first_psn = Psn::new(0x00ff_fff0);
        qb.first_psn = Psn::new(0x100);
        let (ga, gb) = (self.a.gid, self.b.gid);
        bring_up(&mut self.a, self.now, &qa, (gb, qb.qpn, qb.first_psn), self.mtu, &with);
        bring_up(&mut self.b, self.now, &qb, (ga, qa.qpn, qa.first_psn), self.mtu, &with);
        (qa, qb)
    }

    /// Two datagram queue pairs in RTS.
    pub fn datagrams(&mut self) -> (TestQp, TestQp) {
        (datagram_qp(&mut self.a, self.now), datagram_qp(&mut self.b, self.now))
    }

    /// Carries packets both ways until both sides are silent.
    pub fn run(&mut self) {
        for _ in 0..100_000 {
            let from_a = self.a.transmit(self.now);
            let from_b = self.b.transmit(self.now);
            if from_a.is_empty() && from_b.is_empty() {
                return;
            }
            self.now = self.now.plus_nanos(1000);
            for p in from_a {
                self.b.receive(self.now, &p);
            }
            for p in from_b {
                self.a.receive(self.now, &p);
            }
        }
        panic!("the two never fall silent");
    }

    /// Lets `ns` pass, serving timers of both.
    pub fn wait(&mut self, ns: u64) {
        self.now = self.now.plus_nanos(ns);
        self.a.engine.handle_timeout(self.now);
        self.b.engine.handle_timeout(self.now);
    }
}

/// Takes a connected queue pair from RESET to RTS.
pub fn bring_up(
    host: &mut Host,
    now: Instant,
    qp: &TestQp,
    peer: (Gid, Qpn, Psn),
    mtu: Pmtu,
    with: &QpAttr,
) {
    let (_, init) = host.engine.query_qp(qp.qpn).unwrap();
    let (dgid, dest, rq_psn) = peer;
    let av = AddrVec { dgid, ..AddrVec::default() };
    host.modify(now, qp.qpn, &QpAttr::init(with.access.unwrap_or(ALL)));
    let rtr = match init.qp_type {
        QpType::Rc | QpType::XrcTgt => QpAttr {
            max_dest_rd_atomic: Some(with.max_dest_rd_atomic.unwrap_or(16)),
            min_rnr_timer: Some(with.min_rnr_timer.unwrap_or(12)),
            ..QpAttr::rtr(av, dest, rq_psn, mtu)
        },
        _ => QpAttr::rtr_uc(av, dest, rq_psn, mtu),
    };
    host.modify(now, qp.qpn, &rtr);
    let rts = match init.qp_type {
        QpType::Rc | QpType::XrcIni => QpAttr {
            timeout: Some(with.timeout.unwrap_or(14)),
            retry_cnt: Some(with.retry_cnt.unwrap_or(7)),
            rnr_retry: Some(with.rnr_retry.unwrap_or(7)),
            max_rd_atomic: Some(with.max_rd_atomic.unwrap_or(16)),
            ..QpAttr::rts(qp.first_psn)
        },
        QpType::XrcTgt => QpAttr { timeout: Some(14), ..QpAttr::rts_unreliable(qp.first_psn) },
        _ => QpAttr::rts_unreliable(qp.first_psn),
    };
    host.modify(now, qp.qpn, &rts);
}

/// A datagram queue pair in RTS.
pub fn datagram_qp(host: &mut Host, now: Instant) -> TestQp {
    let init = host.init_attr(QpType::Ud);
    datagram_qp_with(host, now, init)
}

/// A datagram queue pair in RTS, made so.
pub fn datagram_qp_with(host: &mut Host, now: Instant, init: QpInitAttr) -> TestQp {
    let qp = host.create_qp(init);
    host.modify(now, qp.qpn, &QpAttr::init_ud(QKEY));
    host.modify(now, qp.qpn, &QpAttr::to(feroce_engine::QpState::Rtr));
    host.modify(now, qp.qpn, &QpAttr::rts_unreliable(Psn::new(0)));
    qp
}

/// A host whose only peer is the test: requests and answers are made by hand.
pub struct Scripted {
    pub now: Instant,
    pub host: Host,
    pub qp: TestQp,
    pub peer: Gid,
    pub service: Service,
}

/// Queue pair number of the scripted peer.
pub const PEER_QPN: Qpn = Qpn::new(0x42);
/// First PSN that the scripted peer sends.
pub const PEER_PSN: u32 = 0x500;
/// First PSN that the engine sends to it.
pub const OUR_PSN: u32 = 0x900;

impl Scripted {
    pub fn new(qp_type: QpType, with: QpAttr) -> Self {
        Self::with_config(qp_type, with, Config::default())
    }

    pub fn with_config(qp_type: QpType, with: QpAttr, config: Config) -> Self {
        let mut host = Host::with_config(1, config);
        let init = host.init_attr(qp_type);
        let mut qp = host.create_qp(init);
        qp.first_psn = Psn::new(OUR_PSN);
        let now = Instant::from_nanos(1_000_000);
        let peer = Gid::from_ipv4([10, 0, 0, 99]);
        bring_up(&mut host, now, &qp, (peer, PEER_QPN, Psn::new(PEER_PSN)), Pmtu::B1024, &with);
        let service = match qp_type {
            QpType::Rc => Service::Rc,
            QpType::Uc => Service::Uc,
            QpType::Ud => Service::Ud,
            QpType::XrcIni | QpType::XrcTgt => Service::Xrc,
        };
        Self { now, host, qp, peer, service }
    }

    /// A packet from the peer: `rest` is headers and payload after the BTH.
    pub fn packet(&self, op: Op, psn: u32, ack_req: bool, rest: &[u8]) -> Packet {
        let pad = rest.len().wrapping_neg() & 3;
        let bth = Bth {
            ack_req,
            pad: pad as u8,
            ..Bth::new(Opcode::new(self.service, op), self.qp.qpn, Psn::new(psn))
        };
        let mut head = [0; Bth::LEN];
        bth.emit(&mut head);
        let mut bytes = head.to_vec();
        bytes.extend_from_slice(rest);
        bytes.resize(bytes.len() + pad, 0);
        let meta = RxMeta {
            src: self.peer,
            dst: self.host.gid,
            ecn: Ecn::Capable,
            hop_limit: 64,
            ..RxMeta::default()
        };
        Packet { meta, bytes }
    }

    /// Delivers a packet of the peer and returns what the engine sends.
    pub fn deliver(&mut self, packet: &Packet) -> Vec<Packet> {
        self.now = self.now.plus_nanos(1000);
        self.host.receive(self.now, packet);
        self.host.transmit(self.now)
    }

    /// Delivers and expects `op`, `psn` and what `rest` says.
    pub fn send(&mut self, op: Op, psn: u32, ack_req: bool, rest: &[u8]) -> Vec<Packet> {
        let packet = self.packet(op, psn, ack_req, rest);
        self.deliver(&packet)
    }

    /// Posts a work request and returns what the engine sends.
    pub fn post(&mut self, wr: SendWr) -> Vec<Packet> {
        self.qp.sq.post(wr).unwrap();
        self.host.transmit(self.now)
    }

    /// Lets `ns` pass and returns what the engine sends.
    pub fn wait(&mut self, ns: u64) -> Vec<Packet> {
        self.now = self.now.plus_nanos(ns);
        self.host.engine.handle_timeout(self.now);
        self.host.transmit(self.now)
    }
}

/// A signalled request.
pub fn wr(wr_id: u64, op: SendOp, data: Data) -> SendWr {
    SendWr::new(wr_id, op, data)
}

/// Any header as bytes.
pub fn header<const N: usize>(emit: impl FnOnce(&mut [u8; N])) -> Vec<u8> {
    let mut bytes = [0; N];
    emit(&mut bytes);
    bytes.to_vec()
}
