//! Trains with remote payload: the same memory and completions as with packets, and no bytes that
//! were revoked.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use feroce_engine::{Cqe, QpAttr, QpState, QpType, SendOp, WcStatus};
use feroce_local::PacketRun;
use feroce_mem::{
    Access, DirectPath, DirectWrite, HostMemory, Landing, Reach, Revocation, RevocationEpoch,
    Source,
};
use feroce_testkit::{CAPS, Host, Pair, wr};
use feroce_train::{RemotePayload, RxMeta, RxTrain, Train};
use feroce_wire::{Pmtu, Qpn};

/// Counts revocations.
#[derive(Debug, Default)]
struct Book {
    requests: AtomicU32,
    answers: AtomicU32,
}

impl HostMemory for Book {
    fn revocation_epoch(&self) -> RevocationEpoch {
        RevocationEpoch(
            self.requests.load(Ordering::Relaxed) + self.answers.load(Ordering::Relaxed),
        )
    }

    fn is_quiet(&self, _: Revocation) -> bool {
        true
    }

    fn revoke_from(&self, _peer: Qpn) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    fn revoke_answers(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
    }

    fn open(&self, _: &DirectPath, _: &Reach) {}

    fn write(&self, _: &DirectPath, _: &DirectWrite<'_>) -> bool {
        false
    }

    fn read(
        &self,
        _: &DirectPath,
        _: u64,
        _: usize,
        _: &mut dyn FnMut(&dyn Source) -> bool,
    ) -> bool {
        false
    }

    fn is_wide(&self, _: &DirectPath, _: u64, _: usize, _: Access) -> bool {
        false
    }

    fn passed(&self) -> u64 {
        0
    }
}

/// The payload of trains; `is_gone`: it was revoked.
#[derive(Debug)]
struct Kept<'a> {
    trains: &'a [Train],
    is_gone: bool,
    fetched: Cell<usize>,
}

impl Source for Kept<'_> {
    fn fetch(&self, offset: usize, landing: &mut Landing<'_>) -> bool {
        let mut all = Vec::new();
        for train in self.trains {
            let start = all.len();
            all.resize(start + train.payload_len, 0);
            assert!(train.payload.copy_out(0, &mut all[start..]), "the payload is there");
        }
        self.fetched.set(self.fetched.get() + landing.len());
        let len = landing.len();
        landing.put(&all[offset..offset + len]);
        !self.is_gone
    }
}

/// A carrier between two engines, which may lose, repeat and revoke trains.
struct Channel {
    rng: fastrand::Rng,
    /// One train in so many is lost, repeated, or cannot be fetched; 0: none.
    trouble: u32,
    /// No payload can be fetched.
    is_revoking: bool,
    /// How often nothing was left to do but to wait.
    waits: u32,
    /// Bytes that the receivers have fetched.
    fetched: usize,
}

impl Channel {
    fn new(seed: u64, trouble: u32) -> Self {
        let rng = fastrand::Rng::with_seed(seed);
        Self { rng, trouble, is_revoking: false, waits: 0, fetched: 0 }
    }

    fn trouble(&mut self) -> bool {
        self.trouble > 0 && self.rng.u32(..self.trouble) == 0
    }

    /// Delivers trains to a host, as runs where possible.
    fn carry(&mut self, trains: &[Train], to: &mut Host, pair_now: feroce_train::Instant) {
        let mut rest = trains;
        while let Some(first) = rest.first() {
            let meta = RxMeta::from(&first.path);
            let mut taken = 1;
            if let Some(mut run) = first.revocation_epoch.and_then(|_| PacketRun::new(first)) {
                while let Some(longer) = rest.get(taken).and_then(|next| run.and(next)) {
                    (run, taken) = (longer, taken + 1);
                }
                let mut headers = vec![0; run.header_len()];
                run.emit(&mut headers);
                let is_gone = self.is_revoking || self.trouble();
                let source = Kept { trains: &rest[..taken], is_gone, fetched: Cell::new(0) };
                let (len, packets) = (run.payload_len(), run.packets());
                let remote = Some(RemotePayload { source: &source, offset: 0, len, packets });
                let (bytes, stride) = (&headers[..], headers.len());
                let train = RxTrain { meta, bytes, stride, trailer: 0, remote };
                let times = if self.trouble() { self.rng.u32(0..3) } else { 1 };
                for _ in 0..times {
                    to.engine.handle_rx(pair_now, &train);
                }
                self.fetched += source.fetched.get();
            } else {
                let mut bytes = vec![0; first.total_len()];
                let mut at = 0;
                for i in 0..first.count {
                    at += first.emit(i, &mut bytes[at..]);
                }
                let (bytes, stride) = (&bytes[..], first.packet_len(0));
                let train = RxTrain { meta, bytes, stride, trailer: 0, remote: None };
                to.engine.handle_rx(pair_now, &train);
            }
            rest = &rest[taken..];
        }
    }

    /// Carries trains until neither side has one to send, and lets timers expire until the first
    /// side has a completion.
    fn run(&mut self, pair: &mut Pair) -> Cqe {
        for _ in 0..10_000 {
            let mut silent = true;
            for forward in [true, false] {
                let (from, to) =
                    if forward { (&mut pair.a, &mut pair.b) } else { (&mut pair.b, &mut pair.a) };
                // A few at a time, so that runs begin and end at any packet.
                let most = self.rng.usize(1..4);
                let mut trains = Vec::new();
                while trains.len() < most
                    && let Some(train) = from.engine.poll_transmit(pair.now, &CAPS)
                {
                    trains.push(train);
                }
                silent &= trains.is_empty();
                pair.now = pair.now.plus_nanos(1000);
                self.carry(&trains, to, pair.now);
            }
            if !silent {
                continue;
            }
            if let Some(cqe) = pair.a.poll() {
                return cqe;
            }
            self.waits += 1;
            pair.wait(20_000_000);
        }
        panic!("it does not come to an end");
    }
}

fn pair_of_processes() -> (Pair, Arc<Book>, Arc<Book>) {
    let mut pair = Pair { mtu: Pmtu::B1024, ..Pair::default() };
    let books = (Arc::new(Book::default()), Arc::new(Book::default()));
    pair.a.engine.set_host_memory(Arc::<Book>::clone(&books.0));
    pair.b.engine.set_host_memory(Arc::<Book>::clone(&books.1));
    (pair, books.0, books.1)
}

/// WRITE, SEND and READ of any length arrive whole, whatever happens to runs on their channel.
#[test]
fn messages_arrive_whole_through_any_trouble() {
    for seed in 0..60 {
        let (mut pair, _, _) = pair_of_processes();
        let (mut qa, mut qb) = pair.connect(QpType::Rc);
        let mut channel = Channel::new(seed, if seed % 3 == 0 { 0 } else { 5 });
        let mut rng = fastrand::Rng::with_seed(seed);
        let half = pair.a.region.len() / 2;
        for round in 0..12_u8 {
            let len = rng.usize(1..=half.min(40_000));
            let (what, at) = (rng.u8(..3), rng.usize(..=half - len) as u64);
            let there = half as u64 + at;
            let (op, from, to) = match what {
                0 => (SendOp::Write(pair.b.remote(there)), at, there),
                1 => (SendOp::Read(pair.b.remote(at)), there, there),
                _ => (SendOp::Send, at, there),
            };
            let (source, target) = if what == 1 { (&pair.b, at) } else { (&pair.a, at) };
            let expected = source.fill(target as usize, len, round.wrapping_mul(31));
            if what == 2 {
                let recv = pair.b.recv(9, there, len as u32);
                qb.rq.as_mut().expect("receives").post(recv).expect("posted");
            }
            let data = pair.a.data(from, len as u32);
            qa.sq.post(wr(u64::from(round), op, data)).expect("posted");
            let done = channel.run(&mut pair);
            assert_eq!((done.wr_id, done.status), (round.into(), WcStatus::Success), "seed {seed}");
            let host = if what == 1 { &pair.a } else { &pair.b };
            assert_eq!(host.read(to as usize, len), expected, "seed {seed}, round {round}");
            if what == 2 {
                let received = pair.b.poll().expect("received");
                assert_eq!((received.wr_id, received.byte_len), (9, len as u32));
            }
        }
        assert!(channel.fetched > 0, "seed {seed}: nothing was fetched");
    }
}

/// Several READs at once, each longer than what the requester asks for at a time.
#[test]
fn long_reads_come_in_runs_that_end_where_they_were_asked_to() {
    for (seed, mtu) in [(1, Pmtu::B1024), (2, Pmtu::B4096), (3, Pmtu::B4096)] {
        let (mut pair, _, _) = pair_of_processes();
        pair.mtu = mtu;
        let (mut qa, _qb) = pair.connect(QpType::Rc);
        let mut channel = Channel::new(seed, if seed == 3 { 9 } else { 0 });
        let len = 450_000;
        let expected = pair.b.fill(0, len, 77);
        for wr_id in 0..20 {
            let (op, data) = (SendOp::Read(pair.b.remote(0)), pair.a.data(500_000, len as u32));
            qa.sq.post(wr(wr_id, op, data)).expect("posted");
        }
        for wr_id in 0..20 {
            let done = channel.run(&mut pair);
            assert_eq!((done.wr_id, done.status), (wr_id, WcStatus::Success), "seed {seed}");
        }
        assert_eq!(pair.a.read(500_000, len), expected, "seed {seed}");
    }
}

#[test]
fn what_cannot_be_fetched_is_lost() {
    let (mut pair, _, _) = pair_of_processes();
    let (mut qa, _qb) = pair.connect(QpType::Rc);
    pair.a.fill(0, 4000, 5);
    let op = SendOp::Write(pair.b.remote(8000));
    qa.sq.post(wr(1, op, pair.a.data(0, 4000))).expect("posted");
    let mut trains = Vec::new();
    while let Some(train) = pair.a.engine.poll_transmit(pair.now, &CAPS) {
        trains.push(train);
    }
    let mut channel = Channel { trouble: 1, ..Channel::new(1, 1) };
    // The carrier may also lose the run, which is not tested here.
    while channel.fetched == 0 {
        channel.carry(&trains, &mut pair.b, pair.now);
    }
    assert!(pair.b.engine.drops().drop_payload_gone > 0);
    assert!(pair.b.engine.poll_transmit(pair.now, &CAPS).is_none(), "nothing is acknowledged");
    assert_eq!(pair.b.read(11_992, 8), [0; 8], "the last bytes are not written");
    assert_eq!(Channel::new(1, 0).run(&mut pair).status, WcStatus::Success, "it is sent again");
    assert_eq!(pair.b.read(8000, 4000), pair.a.read(0, 4000));
}

/// A process that ends keys all the time revokes every answer before it can be fetched.
#[test]
fn revocations_do_not_use_up_the_retries_of_a_read() {
    for seed in 0..20 {
        let (mut pair, _, _) = pair_of_processes();
        let (mut qa, _qb) = pair.connect(QpType::Rc);
        let mut channel = Channel { is_revoking: true, ..Channel::new(seed, 0) };
        let len = 100_000;
        let expected = pair.b.fill(0, len, 3);
        // Several at once: the answers behind one that is revoked are revoked, too.
        for wr_id in 0..12 {
            let (op, data) = (SendOp::Read(pair.b.remote(0)), pair.a.data(500_000, len as u32));
            qa.sq.post(wr(wr_id, op, data)).expect("posted");
        }
        for wr_id in 0..12 {
            let done = channel.run(&mut pair);
            assert_eq!((done.wr_id, done.status), (wr_id, WcStatus::Success), "seed {seed}");
        }
        assert_eq!(pair.a.read(500_000, len), expected, "seed {seed}");
        assert!(pair.a.engine.drops().drop_payload_gone > 0, "seed {seed}");
        assert_eq!(channel.waits, 0, "seed {seed}: it is asked for again at once");
    }
}

/// The engine revokes memory before it tells the consumer that the memory may be reused.
#[test]
fn whoever_gives_up_memory_revokes_it() {
    let (mut pair, book_a, book_b) = pair_of_processes();
    let (mut qa, qb) = pair.connect(QpType::Rc);
    let before = book_a.revocation_epoch();
    qa.sq.post(wr(1, SendOp::Send, pair.a.data(0, 4000))).expect("posted");
    assert!(
        pair.a.engine.poll_transmit(pair.now, &CAPS).expect("a train").revocation_epoch
            == Some(before)
    );
    let error = QpAttr { state: Some(QpState::Err), ..QpAttr::default() };
    pair.a.modify(pair.now, qa.qpn, &error);
    assert_eq!(pair.a.poll().expect("flushed").status, WcStatus::Flushed);
    assert_ne!(book_a.requests.load(Ordering::Relaxed), 0);

    pair.b.engine.destroy_qp(qb.qpn).expect("destroyed");
    assert_ne!(book_b.requests.load(Ordering::Relaxed), 0);
    let answers = book_b.answers.load(Ordering::Relaxed);
    assert!(pair.b.engine.dereg_mr(pair.b.lkey).expect("ended").is_quiet());
    assert_ne!(book_b.answers.load(Ordering::Relaxed), answers);
}
