//! iWARP: random programs of both ends over a stream that is cut at random, every byte checked.
//!
//! Each seed is one run. The oracle is a model: what each operation must have put where, and that
//! completions come in the order of the queue. A failure prints its seed.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::VecDeque;

use feroce_engine::iwarp::{Begin, ReadyToReceive, StreamSetup};
use feroce_engine::{Cqe, Data, SendFlags, SendOp, SendWr, SgeList, WcOpcode, WcStatus};
use feroce_testkit::{Host, Streams, TestQp, wr};

/// Each end has four parts of memory of this length: what it sends from, where receives are, what
/// the peer may write, and where its READs go. The peer reads the first.
const PART: usize = 64 << 10;
const SEND: usize = 0;
const RECEIVE: usize = PART;
const WRITTEN: usize = 2 * PART;
const FETCHED: usize = 3 * PART;

/// A receive: room for a message.
const ROOM: usize = 6000;

/// Where the receive of this number is: ten places, of which eight are in use at most.
fn place(receive: u64) -> usize {
    RECEIVE + (receive as usize % 10) * ROOM
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % below
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.roll(n) == 0
    }

    /// A length: often short, and at the edges of segments.
    fn len(&mut self) -> usize {
        match self.roll(4) {
            0 => self.roll(4),
            1 => self.roll(100),
            2 => 1400 + self.roll(60),
            _ => self.roll(ROOM),
        }
    }
}

/// One end, its program and its model.
struct End {
    qp: TestQp,
    /// What memory must hold in the end.
    model: Vec<u8>,
    /// Signalled requests in the order of the queue.
    expected: VecDeque<(u64, WcOpcode, usize)>,
    /// Messages that the peer has sent and that have not completed, and their receives.
    incoming: VecDeque<(u64, Vec<u8>)>,
    posted: u64,
    receives: u64,
    /// Where the next WRITE of the peer and the next READ of this end go: each byte is used once.
    written: usize,
    fetched: usize,
}

impl End {
    fn new(host: &Host, qp: TestQp, seed: u8) -> Self {
        host.fill(SEND, PART, seed);
        let model = host.read(0, 4 * PART);
        let (expected, incoming) = (VecDeque::new(), VecDeque::new());
        let (posted, receives, written, fetched) = (0, 0, WRITTEN, FETCHED);
        Self { qp, model, expected, incoming, posted, receives, written, fetched }
    }

    /// Posts a receive; each has a place of its own.
    fn receive(&mut self, host: &Host) {
        let at = place(self.receives);
        self.qp
            .rq
            .as_mut()
            .unwrap()
            .post(host.recv(self.receives, at as u64, ROOM as u32))
            .unwrap();
        self.receives += 1;
    }

    /// Takes the completions so far, each of which must be the next of its queue.
    fn check_all(&mut self, host: &mut Host, seed: u64) {
        for cqe in host.poll_all() {
            self.check(host, &cqe, seed);
        }
    }

    fn check(&mut self, host: &Host, cqe: &Cqe, seed: u64) {
        assert_eq!(cqe.status, WcStatus::Success, "seed {seed}");
        if cqe.opcode == WcOpcode::Recv {
            let (wr_id, message) = self.incoming.pop_front().unwrap();
            assert_eq!((cqe.wr_id, cqe.byte_len as usize), (wr_id, message.len()), "seed {seed}");
            // No later message has this place yet.
            assert_eq!(host.read(place(wr_id), message.len()), message, "seed {seed}: message");
        } else {
            let (wr_id, opcode, len) = self.expected.pop_front().unwrap();
            assert_eq!((cqe.wr_id, cqe.opcode), (wr_id, opcode), "seed {seed}: order");
            let fetched = if opcode == WcOpcode::Read { len } else { 0 };
            assert_eq!(cqe.byte_len as usize, fetched, "seed {seed}");
        }
    }
}

/// Where data comes from: one element, or several.
fn gathered(dice: &mut Dice, host: &Host, at: usize, len: usize) -> Data {
    let cut = if dice.one_in(2) { dice.roll(len + 1) } else { 0 };
    let sge = |at: usize, len: usize| host.sge(at as u64, len as u32);
    Data::Sges(SgeList::new(&[sge(at, cut), sge(at + cut, len - cut)]))
}

/// Posts one random request from `me` to `peer`; false: there is no room for it.
fn post(dice: &mut Dice, host: &Host, peer_host: &Host, me: &mut End, peer: &mut End) -> bool {
    let len = dice.len();
    let from = SEND + dice.roll(PART - ROOM);
    let (op, data, opcode) = match dice.roll(3) {
        0 => {
            if peer.incoming.len() >= 8 {
                return false;
            }
            let at = place(peer.receives);
            let message = me.model[from..from + len].to_vec();
            peer.model[at..at + len].copy_from_slice(&message);
            peer.incoming.push_back((peer.receives, message));
            peer.receive(peer_host);
            (SendOp::Send, gathered(dice, host, from, len), WcOpcode::Send)
        }
        1 => {
            if peer.written + len > WRITTEN + PART {
                return false;
            }
            let bytes = me.model[from..from + len].to_vec();
            peer.model[peer.written..peer.written + len].copy_from_slice(&bytes);
            let remote = peer_host.remote(peer.written as u64);
            peer.written += len;
            (SendOp::Write(remote), gathered(dice, host, from, len), WcOpcode::Write)
        }
        _ => {
            if me.fetched + len > FETCHED + PART {
                return false;
            }
            let bytes = peer.model[from..from + len].to_vec();
            me.model[me.fetched..me.fetched + len].copy_from_slice(&bytes);
            let data = host.data(me.fetched as u64, len as u32);
            me.fetched += len;
            (SendOp::Read(peer_host.remote(from as u64)), data, WcOpcode::Read)
        }
    };
    me.posted += 1;
    let mut flags = SendFlags::empty();
    if dice.one_in(2) {
        flags |= SendFlags::SIGNALED;
        me.expected.push_back((me.posted, opcode, len));
    }
    if dice.one_in(5) {
        flags |= SendFlags::FENCE;
    }
    me.qp.sq.post(SendWr { flags, ..wr(me.posted, op, data) }).unwrap();
    true
}

fn run(seed: u64) {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let max_ulpdu = [41, 300, 1442, 4000, 64_768][dice.roll(5)];
    let kind = [ReadyToReceive::Write, ReadyToReceive::Read, ReadyToReceive::Send][dice.roll(3)];
    let ord = 1 + dice.roll(6) as u16;
    let a = StreamSetup {
        crc: dice.one_in(2),
        max_ulpdu,
        ord,
        ird: ord,
        begin: Begin::Announce(kind),
        ..StreamSetup::INITIATOR
    };
    let mut streams = Streams::default();
    let (qa, qb) = streams.connect(&a, &StreamSetup { begin: Begin::Await(Some(kind)), ..a });
    let mut ea = End::new(&streams.a, qa, 5);
    let mut eb = End::new(&streams.b, qb, 99);
    let most = [1, 3, 40, 2000, 100_000][dice.roll(5)];
    for _ in 0..60 {
        for _ in 0..dice.roll(4) {
            let _ = match dice.one_in(2) {
                true => post(&mut dice, &streams.a, &streams.b, &mut ea, &mut eb),
                false => post(&mut dice, &streams.b, &streams.a, &mut eb, &mut ea),
            };
        }
        for _ in 0..dice.roll(20) {
            streams.step(&mut |waiting| 1 + dice.roll(most.min(waiting)));
        }
        ea.check_all(&mut streams.a, seed);
        eb.check_all(&mut streams.b, seed);
    }
    streams.run(|waiting| 1 + dice.roll(most.min(waiting)));
    ea.check_all(&mut streams.a, seed);
    eb.check_all(&mut streams.b, seed);
    for (host, end) in [(&streams.a, &ea), (&streams.b, &eb)] {
        assert!(end.expected.is_empty(), "seed {seed}: {} did not complete", end.expected.len());
        assert!(end.incoming.is_empty(), "seed {seed}: not received");
        let memory = host.read(0, 4 * PART);
        let wrong = memory.iter().zip(&end.model).position(|(is, should)| is != should);
        assert_eq!(wrong, None, "seed {seed}: first wrong byte");
    }
    assert!(streams.ends.iter().all(Vec::is_empty), "seed {seed}: {:?}", streams.ends);
}

#[test]
fn random_programs_end_as_the_model_says() {
    for seed in 0..40 {
        run(seed);
    }
}
