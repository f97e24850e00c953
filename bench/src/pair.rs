//! Two hosts in one thread, and the wire between them: a buffer of bytes.

use feroce_engine::{QpAttr, QpCap, QpInitAttr, QpType, SendFlags, SendOp, SendWr, WcStatus};
use feroce_mem::Access;
use feroce_testkit::{Connection, Host, HostConfig, START, TestQp, Wire, init_attr};
use feroce_wire::{Gid, Pmtu, Psn, Qpn};

/// Work requests in a queue.
pub(crate) const DEPTH: u32 = 128;

const ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

/// Host `number` with `memory` bytes, every page of which has been written, so that the kernel
/// maps none while the clock runs.
pub(crate) fn host(number: u8, memory: usize) -> Host {
    let access = ACCESS;
    let host = Host::build(HostConfig { access, cqes: 1 << 16, ..HostConfig::new(number, memory) });
    let page = [1; 4096];
    for at in (0..memory).step_by(page.len()) {
        let len = page.len().min(memory - at);
        host.region.write_at(at, &page[..len]).expect("inside the region");
    }
    host
}

/// Creates a reliable queue pair in RESET.
pub(crate) fn create_qp(host: &mut Host) -> TestQp {
    let cap = QpCap {
        max_send_wr: DEPTH,
        max_recv_wr: DEPTH,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: 0,
    };
    let init = init_attr(QpType::Rc, host.pd, host.cq);
    host.create_qp(QpInitAttr { cap, congestion_control: false, ..init })
}

/// Takes a queue pair from RESET to RTS, connected to `peer`.
pub(crate) fn connect(host: &mut Host, qpn: Qpn, (gid, dest): (Gid, Qpn)) {
    let psn = Psn::new(0x00ff_ff00);
    let connection = Connection {
        rq_psn: psn,
        sq_psn: psn,
        with: QpAttr { access: Some(ACCESS), ..QpAttr::default() },
        ..Connection::new(gid, dest, Pmtu::B4096)
    };
    host.connect(START, qpn, &connection);
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
    qps: Vec<TestQp>,
    /// Held because an engine may notice when the consumer's end of a queue is dropped.
    _peers: Vec<TestQp>,
    /// Bytes that each side has registered.
    memory: u64,
    wire: Wire,
}

impl Pair {
    /// Two hosts with `memory` bytes each and `count` connections between them.
    pub(crate) fn new(memory: usize, count: usize) -> Self {
        let (mut a, mut b) = (host(1, memory), host(2, memory));
        let qps: Vec<TestQp> = (0..count).map(|_| create_qp(&mut a)).collect();
        let peers: Vec<TestQp> = (0..count).map(|_| create_qp(&mut b)).collect();
        for (qp, peer) in qps.iter().zip(&peers) {
            connect(&mut a, qp.qpn, (b.gid, peer.qpn));
            connect(&mut b, peer.qpn, (a.gid, qp.qpn));
        }
        let wire = Wire::new(START);
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

    /// Carries packets both ways until neither side has any to send.
    #[inline]
    pub(crate) fn run(&mut self) {
        self.wire.run(&mut self.a.engine, &mut self.b.engine);
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
