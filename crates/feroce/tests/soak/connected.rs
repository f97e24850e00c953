//! Reliable connections: every posted request is executed once, in order.

use feroce::{Imm, Qp, QpCap, SendFlags, SendOp, SendWr, Srq, WcFlags, WcStatus};

use crate::common::{Host, connect};
use crate::random::pattern;
use crate::{SHARE, Soak, success};

/// Most operations posted at once.
const BURST: usize = 12;

/// Two connected queue pairs, and what the memory of both hosts must be.
pub(crate) struct Pair {
    pub(crate) ends: Option<(Qp, Qp)>,
    /// Where `b` takes receives from, if not from the queue pair.
    srq: Option<Srq>,
    /// Where its share of the memory begins.
    pub(crate) base: usize,
    pub(crate) ours: Vec<u8>,
    pub(crate) theirs: Vec<u8>,
    /// What was done since the memory was last compared: the operation, from, to and how many.
    pub(crate) done: Vec<(&'static str, usize, usize, usize)>,
}

impl Pair {
    pub(crate) fn new(a: &Host, b: &Host, base: usize, shared: bool) -> Self {
        let srq = shared.then(|| b.pd.create_srq(64, 1).expect("a shared receive queue"));
        let (ours, theirs) = (vec![0; SHARE], vec![0; SHARE]);
        let mut pair = Self { ends: None, srq, base, ours, theirs, done: Vec::new() };
        pair.reconnect(a, b);
        pair
    }

    /// New queue pairs in place of the old.
    pub(crate) fn reconnect(&mut self, a: &Host, b: &Host) {
        self.ends = None;
        let mut qa = a.rc();
        let mut qb = match &self.srq {
            Some(srq) => {
                let builder = b.pd.rc_qp(&b.cq, &b.cq, QpCap::new(128, 0)).srq(srq);
                builder.create().expect("a queue pair")
            }
            None => b.rc(),
        };
        connect(&mut qa, &mut qb);
        self.ends = Some((qa, qb));
    }

    pub(crate) fn qa(&mut self) -> &mut Qp {
        &mut self.ends.as_mut().expect("connected").0
    }

    pub(crate) fn qb(&mut self) -> &mut Qp {
        &mut self.ends.as_mut().expect("connected").1
    }

    fn post_recv(&mut self, wr: feroce::RecvWr) {
        match &self.srq {
            Some(srq) => srq.post_recv([wr]),
            None => self.qb().post_recv([wr]),
        }
        .expect("there is room");
    }
}

/// Moving bytes.
impl Soak {
    /// Several operations at once, one behind the other.
    pub(crate) fn burst(&mut self, at: usize) -> &'static str {
        let count = 1 + self.random.below(BURST);
        self.refill(at);
        let (mut requests, mut received) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let len = self.random.len().min(SHARE);
            let (from, to) = (self.random.place(len), self.random.place(len));
            let (id, kind) = (self.id(), self.random.below(5));
            let pair = &mut self.pairs[at];
            let (base, imm) = (pair.base, Imm(id as u32));
            let remote = self.b.mr.remote(base + to);
            if kind == 0 {
                pair.ours[from..from + len].copy_from_slice(&pair.theirs[to..to + len]);
            } else {
                pair.theirs[to..to + len].copy_from_slice(&pair.ours[from..from + len]);
            }
            let op = match kind {
                0 => SendOp::Read(remote),
                1 | 2 => SendOp::Write(remote),
                3 => SendOp::WriteImm(remote, imm),
                _ => SendOp::SendImm(imm),
            };
            pair.done.push((["read", "write", "write", "write", "send"][kind], from, to, len));
            if op.consumes_receive() {
                let into = if kind == 3 { 0..0 } else { base + to..base + to + len };
                pair.post_recv(self.b.mr.recv(id, into));
                received.push((id, len));
            }
            let data = self.a.mr.data(base + from..base + from + len);
            // A read changes the memory of `a` when it completes; the next request may send those
            // bytes.
            let flags = SendFlags::SIGNALED | SendFlags::FENCE;
            requests.push(SendWr { flags, ..SendWr::new(id, op, data) });
        }
        let ids: Vec<u64> = requests.iter().map(|wr| wr.wr_id).collect();
        self.pairs[at].qa().post_send(requests).expect("there is room");
        for id in ids {
            success(&self.a, id);
        }
        for (id, len) in received {
            let got = success(&self.b, id);
            assert_eq!((got.imm, got.byte_len as usize), (Imm(id as u32), len));
            assert!(got.flags.contains(WcFlags::WITH_IMM));
        }
        "burst of reads, writes and sends"
    }

    /// New bytes somewhere at our end.
    fn refill(&mut self, at: usize) {
        let len = self.random.len().min(SHARE);
        let (place, seed) = (self.random.place(len), self.random.below(1 << 20));
        let bytes = pattern(seed as u32, len);
        let pair = &mut self.pairs[at];
        pair.done.push(("refill", place, place, len));
        self.a.mr.write_at(pair.base + place, &bytes).expect("inside");
        pair.ours[place..place + len].copy_from_slice(&bytes);
    }

    /// Fetch-and-add and compare-and-swap on the same eight bytes.
    pub(crate) fn atomics(&mut self, at: usize) -> &'static str {
        let (from, to) = (8 * self.random.below(SHARE / 8 - 2), 8 * self.random.below(SHARE / 8));
        let (add, swap) = (self.random.0, self.random.0.rotate_left(17));
        let hit = self.random.below(2) == 0;
        let ids = [self.id(), self.id()];
        let pair = &mut self.pairs[at];
        pair.done.push(("atomics", from, to, 8));
        let remote = self.b.mr.remote(pair.base + to);
        let old = word(&pair.theirs, to);
        let sum = old.wrapping_add(add);
        let compare = if hit { sum } else { !sum };
        set_word(&mut pair.ours, from, old);
        set_word(&mut pair.ours, from + 8, sum);
        set_word(&mut pair.theirs, to, if hit { swap } else { sum });
        let data = |i: usize| {
            let start = pair.base + from + 8 * i;
            self.a.mr.data(start..start + 8)
        };
        let requests = [
            SendWr::new(ids[0], SendOp::FetchAdd { remote, add }, data(0)),
            SendWr::new(ids[1], SendOp::CmpSwap { remote, compare, swap }, data(1)),
        ];
        pair.qa().post_send(requests).expect("there is room");
        for id in ids {
            success(&self.a, id);
        }
        "atomics"
    }

    /// A send that arrives before its receive is posted: the requester sends it again until there
    /// is one (RNR retry).
    pub(crate) fn send_early(&mut self, at: usize) -> &'static str {
        let len = self.random.len().min(SHARE);
        let (from, to) = (self.random.place(len), self.random.place(len));
        let id = self.id();
        let pair = &mut self.pairs[at];
        pair.done.push(("early send", from, to, len));
        pair.theirs[to..to + len].copy_from_slice(&pair.ours[from..from + len]);
        let (from, to) = (pair.base + from, pair.base + to);
        let data = self.a.mr.data(from..from + len);
        pair.qa().post_send([SendWr::new(id, SendOp::Send, data)]).expect("there is room");
        pair.post_recv(self.b.mr.recv(id, to..to + len));
        success(&self.a, id);
        assert_eq!(success(&self.b, id).byte_len as usize, len);
        assert_eq!(pair.qa().state(), feroce::QpState::Rts);
        "send before its receive"
    }

    /// Completions of requests of which one failed: successes, the failure, and only flushed ones
    /// after it. Returns the status of the failure.
    pub(crate) fn broken(&mut self, ids: &[u64]) -> Option<WcStatus> {
        let mut failure = None;
        for &id in ids {
            let cqe = self.a.wait();
            assert_eq!(cqe.wr_id, id);
            match failure {
                Some(_) => assert_eq!(cqe.status, WcStatus::Flushed),
                None if cqe.status == WcStatus::Success => {}
                None => failure = Some(cqe.status),
            }
        }
        failure
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn set_word(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
}
