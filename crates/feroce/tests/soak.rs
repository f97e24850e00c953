//! Random operations over real sockets, every byte checked against a model.
//!
//! `FEROCE_SOAK_SECONDS` says how long (3 by default), `FEROCE_SEED` which sequence. Whatever
//! `FEROCE_FAULT` and the other settings say applies.

mod common;

use std::time::Duration;

use common::{Host, connect};
use feroce::{Imm, Qp, SendOp, SendWr, WcOpcode, WcStatus};

const QPS: usize = 4;
/// Memory of each queue pair on each host.
const SHARE: usize = common::LEN / QPS;

/// A small generator, so that the sequence depends on nothing but the seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }

    /// Mostly small, sometimes large, often at a boundary.
    fn len(&mut self) -> usize {
        match self.below(6) {
            0 => self.below(16),
            1 => 4096 * self.below(4) + self.below(3),
            2 => self.below(SHARE / 2),
            _ => self.below(5000),
        }
    }
}

/// What the memory of both hosts must be, for one queue pair.
struct Model {
    ours: Vec<u8>,
    theirs: Vec<u8>,
}

struct Soak {
    a: Host,
    b: Host,
    qps: Vec<(Qp, Qp)>,
    models: Vec<Model>,
    random: Random,
    operations: u64,
}

impl Soak {
    fn new(seed: u64) -> Self {
        let (a, b) = Host::pair(120);
        let qps = (0..QPS)
            .map(|_| {
                let (mut qa, mut qb) = (a.rc(), b.rc());
                connect(&mut qa, &mut qb);
                (qa, qb)
            })
            .collect();
        let models =
            (0..QPS).map(|_| Model { ours: vec![0; SHARE], theirs: vec![0; SHARE] }).collect();
        Self { a, b, qps, models, random: Random(seed | 1), operations: 0 }
    }

    /// New bytes at our end of queue pair `q`.
    fn refill(&mut self, q: usize, at: usize, len: usize) {
        let seed = self.random.below(256) as u8;
        let bytes = self.a.fill(q * SHARE + at, len, seed);
        self.models[q].ours[at..at + len].copy_from_slice(&bytes);
    }

    /// One operation on queue pair `q`, from posting to completion, with the model following.
    fn step(&mut self, q: usize) {
        let len = self.random.len().min(SHARE);
        let from = self.random.below(SHARE - len + 1);
        let to = self.random.below(SHARE - len + 1);
        let (local, remote) = (q * SHARE + from, self.b.mr.remote(q * SHARE + to));
        let data = self.a.mr.data(local..local + len);
        let model = |s: &mut Self| {
            let Model { ours, theirs } = &mut s.models[q];
            theirs[to..to + len].copy_from_slice(&ours[from..from + len]);
        };
        let op = match self.random.below(4) {
            0 => {
                let Model { ours, theirs } = &mut self.models[q];
                ours[from..from + len].copy_from_slice(&theirs[to..to + len]);
                SendOp::Read(remote)
            }
            1 => {
                self.refill(q, from, len);
                model(self);
                SendOp::Write(remote)
            }
            2 => {
                self.refill(q, from, len);
                model(self);
                let start = q * SHARE + to;
                let recv = self.b.mr.recv(self.operations, start..start + len);
                self.qps[q].1.post_recv([recv]).expect("there is room");
                SendOp::SendImm(Imm(len as u32))
            }
            _ => {
                self.refill(q, from, len);
                model(self);
                let recv = self.b.mr.recv(self.operations, 0..0);
                self.qps[q].1.post_recv([recv]).expect("there is room");
                SendOp::WriteImm(remote, Imm(len as u32))
            }
        };
        let received = matches!(op, SendOp::SendImm(_) | SendOp::WriteImm(..));
        self.qps[q].0.post_send([SendWr::new(self.operations, op, data)]).expect("there is room");
        let done = self.a.wait();
        assert_eq!((done.wr_id, done.status), (self.operations, WcStatus::Success));
        if received {
            let got = self.b.wait();
            assert_eq!((got.wr_id, got.status), (self.operations, WcStatus::Success));
            assert_eq!(got.imm, Imm(len as u32));
            assert!(matches!(got.opcode, WcOpcode::Recv | WcOpcode::RecvWriteImm));
        }
        self.operations += 1;
    }

    /// Every byte of both hosts.
    fn check(&self) {
        for (q, model) in self.models.iter().enumerate() {
            assert!(self.a.read(q * SHARE, SHARE) == model.ours, "our memory, queue pair {q}");
            assert!(self.b.read(q * SHARE, SHARE) == model.theirs, "their memory, queue pair {q}");
        }
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a soak runs for a time")]
fn random_operations_leave_every_byte_where_the_model_says() {
    let variable = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let seconds = variable("FEROCE_SOAK_SECONDS").unwrap_or(3);
    let seed = variable("FEROCE_SEED").unwrap_or(0x5eed);
    let mut soak = Soak::new(seed);
    let end = std::time::Instant::now() + Duration::from_secs(seconds);
    while std::time::Instant::now() < end {
        for _ in 0..100 {
            let q = soak.random.below(QPS);
            soak.step(q);
        }
        soak.check();
    }
    println!("{} operations in {seconds} s, FEROCE_SEED={seed}", soak.operations);
    assert!(soak.operations >= 100);
}
