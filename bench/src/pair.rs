//! Two engines in one thread, and the wire between them: a buffer of bytes.

use std::sync::Arc;

use feroce_engine::{
    AddrVec, Config, CqId, CqPoller, Data, Engine, LossPolicy, QpAttr, QpCap, QpInitAttr, QpType,
    RecvQueue, Remote, SendFlags, SendOp, SendQueue, SendWr, Sge, SgeList, WcStatus,
};
use feroce_mem::{Access, Iova, PdId, Region};
use feroce_train::{Ecn, Instant, LinkCaps, RxMeta, RxTrain, Train};
use feroce_wire::{Gid, Lkey, Pmtu, Psn, Qpn, Rkey};

/// Work requests in a queue.
pub(crate) const DEPTH: u32 = 128;

/// Fifteen packets of 4 KiB fit a train, as they fit one call with segmentation offload.
const CAPS: LinkCaps = LinkCaps { max_packets: 64, max_bytes: 65_000 };

/// Trains that one side sends before the other has its turn, like packets taken in by one call.
const BURST: u32 = 32;

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

/// An engine with memory and a completion queue.
pub(crate) struct Host {
    pub(crate) engine: Engine,
    pub(crate) poller: CqPoller,
    gid: Gid,
    pd: PdId,
    cq: CqId,
    lkey: Lkey,
}

impl Host {
    pub(crate) fn new(number: u8, memory: usize) -> Self {
        let mut engine = Engine::new(Config { seed: u64::from(number), ..Config::default() });
        let gid = Gid::from_ipv4([10, 0, 0, number]);
        engine.set_gid(0, gid);
        while engine.poll_event().is_some() {}
        let pd = engine.alloc_pd().expect("a protection domain");
        let (cq, poller) = engine.create_cq(1 << 16).expect("a completion queue");
        let region = Region::alloc(memory).expect("memory");
        touch(&region);
        let lkey =
            engine.reg_mr(pd, region, 0, memory, Iova::ZeroBased, ALL).expect("a registration");
        Self { engine, poller, gid, pd, cq, lkey }
    }

    /// Makes a reliable queue pair in RESET.
    pub(crate) fn create_qp(&mut self) -> Qp {
        let cap = QpCap {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        };
        let created = self.engine.create_qp(QpInitAttr {
            qp_type: QpType::Rc,
            pd: self.pd,
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: None,
            xrcd: None,
            cap,
            sq_sig_all: false,
            loss: LossPolicy::Retransmit,
            congestion_control: false,
            hears_itself: true,
        });
        let created = created.expect("a queue pair");
        Qp { qpn: created.qpn, sq: created.sq, _rq: created.rq }
    }

    /// Takes a queue pair from RESET to RTS, connected to `peer`.
    pub(crate) fn connect(&mut self, qpn: Qpn, peer: (Gid, Qpn)) {
        let (now, psn) = (Instant::ZERO, Psn::new(0x00ff_ff00));
        let av = AddrVec { dgid: peer.0, ..AddrVec::default() };
        let steps =
            [QpAttr::init(ALL), QpAttr::rtr(av, peer.1, psn, Pmtu::B4096), QpAttr::rts(psn)];
        for attr in &steps {
            self.engine.modify_qp(now, qpn, attr).expect("a transition");
        }
    }

    fn data(&self, addr: u64, len: u32) -> Data {
        Data::Sges(SgeList::from(Sge { addr, len, lkey: self.lkey }))
    }

    fn remote(&self, addr: u64) -> Remote {
        Remote { addr, rkey: Rkey(self.lkey.0) }
    }
}

/// Writes every page, so that none is first touched while the clock runs.
fn touch(region: &Arc<Region>) {
    let page = [1; 4096];
    for at in (0..region.len()).step_by(page.len()) {
        let len = page.len().min(region.len() - at);
        region.write_at(at, &page[..len]).expect("inside the region");
    }
}

/// A queue pair with the consumer's ends of its queues.
pub(crate) struct Qp {
    pub(crate) qpn: Qpn,
    pub(crate) sq: SendQueue,
    /// Held because an adapter may tell when nobody can post any more.
    _rq: Option<RecvQueue>,
}

/// What a message does.
#[derive(Clone, Copy)]
pub(crate) enum Verb {
    Write,
    Read,
}

/// Two hosts, `a` the one that asks, and connected queue pairs.
pub(crate) struct Pair {
    pub(crate) a: Host,
    b: Host,
    qps: Vec<Qp>,
    _peers: Vec<Qp>,
    /// Bytes that each side has registered.
    memory: u64,
    wire: Wire,
}

struct Wire {
    now: Instant,
    bytes: Vec<u8>,
}

impl Wire {
    /// Hands a train over as bytes.
    #[inline]
    fn deliver(&mut self, train: &Train, to: &mut Engine) {
        let mut len = 0;
        for i in 0..train.count {
            len += train.emit(i, &mut self.bytes[len..]);
        }
        let meta = RxMeta { ecn: Ecn::Capable, ..RxMeta::from(&train.path) };
        let (bytes, stride) = (&self.bytes[..len], train.packet_len(0));
        to.handle_rx(self.now, &RxTrain { meta, bytes, stride, trailer: 0, lent: None });
    }

    /// Carries up to one burst. Returns how many trains there were.
    #[inline]
    fn carry(&mut self, from: &mut Engine, to: &mut Engine) -> u32 {
        for sent in 0..BURST {
            // Looked at where it is: it is large.
            let next = from.poll_transmit(self.now, &CAPS);
            let Some(train) = &next else {
                from.trains_read();
                return sent;
            };
            self.deliver(train, to);
        }
        from.trains_read();
        BURST
    }
}

impl Pair {
    /// Two hosts with `memory` bytes each and `count` connections between them.
    pub(crate) fn new(memory: usize, count: usize) -> Self {
        let (mut a, mut b) = (Host::new(1, memory), Host::new(2, memory));
        let qps: Vec<Qp> = (0..count).map(|_| a.create_qp()).collect();
        let peers: Vec<Qp> = (0..count).map(|_| b.create_qp()).collect();
        for (qp, peer) in qps.iter().zip(&peers) {
            a.connect(qp.qpn, (b.gid, peer.qpn));
            b.connect(peer.qpn, (a.gid, qp.qpn));
        }
        let wire = Wire { now: Instant::from_nanos(1_000_000), bytes: vec![0; 1 << 17] };
        Self { a, b, qps, _peers: peers, memory: memory as u64, wire }
    }

    /// How many connections there are.
    pub(crate) fn connections(&self) -> usize {
        self.qps.len()
    }

    /// Posts a message of `len` bytes between the same addresses on both sides.
    #[inline]
    pub(crate) fn post(&mut self, qp: usize, verb: Verb, addr: u64, len: u32, signalled: bool) {
        let remote = self.b.remote(addr);
        let op = match verb {
            Verb::Write => SendOp::Write(remote),
            Verb::Read => SendOp::Read(remote),
        };
        let mut wr = SendWr::new(addr, op, self.a.data(addr, len));
        if !signalled {
            wr.flags -= SendFlags::SIGNALED;
        }
        self.qps[qp].sq.post(wr).expect("room in the send queue");
    }

    /// Carries packets both ways until both sides are silent.
    #[inline]
    pub(crate) fn run(&mut self) {
        loop {
            self.wire.now = self.wire.now.plus_nanos(1000);
            let there = self.wire.carry(&mut self.a.engine, &mut self.b.engine);
            let back = self.wire.carry(&mut self.b.engine, &mut self.a.engine);
            if there + back == 0 {
                return;
            }
        }
    }

    /// Takes all completions and returns how many there were.
    ///
    /// # Panics
    /// If one of them is not a success: then the figure would be of something else.
    #[inline]
    pub(crate) fn poll(&mut self) -> u32 {
        let mut count = 0;
        while let Some(cqe) = self.a.poller.poll() {
            assert_eq!(cqe.status, WcStatus::Success);
            count += 1;
        }
        count
    }

    /// Panics if a packet was dropped or sent twice.
    pub(crate) fn assert_clean(&self) {
        for engine in [&self.a.engine, &self.b.engine] {
            assert_eq!(engine.drops().total(), 0, "packets were dropped");
            assert_eq!(engine.counters().completer_retry_err, 0, "packets were sent twice");
        }
    }
}

/// Posts `count` 8-byte WRITEs in rounds that fill the send queue of connection 0, every
/// `signal_every`-th signalled, and completes them all.
#[inline]
pub(crate) fn small_writes(pair: &mut Pair, count: u32, depth: u32, signal_every: u32) {
    let mut left = count;
    while left > 0 {
        let batch = left.min(depth);
        for i in 1..=batch {
            let signalled = i % signal_every == 0 || i == batch;
            pair.post(0, Verb::Write, u64::from(i) * 8, 8, signalled);
        }
        pair.run();
        assert_eq!(pair.poll(), batch.div_ceil(signal_every), "completions");
        left -= batch;
    }
}

/// Moves `count` messages of `len` bytes on connection 0, four at a time, walking through the
/// memory from `addr` on.
pub(crate) fn bulk(pair: &mut Pair, verb: Verb, count: u32, len: u32, addr: &mut u64) {
    let mut left = count;
    while left > 0 {
        let batch = left.min(4);
        for _ in 0..batch {
            pair.post(0, verb, *addr, len, true);
            *addr = (*addr + u64::from(len)) % pair.memory;
        }
        pair.run();
        assert_eq!(pair.poll(), batch, "completions");
        left -= batch;
    }
}

/// One 8-byte WRITE on each of the connections in turn, `batch` of them at a time.
#[inline]
pub(crate) fn round_robin(pair: &mut Pair, count: u32, batch: u32, next: &mut usize) {
    for _ in 0..count / batch {
        for i in 0..batch {
            pair.post(*next, Verb::Write, u64::from(i) * 8, 8, true);
            *next = (*next + 1) % pair.connections();
        }
        pair.run();
        assert_eq!(pair.poll(), batch, "completions");
    }
}
