//! iWARP: random programs of both ends over a stream that is cut at random, every byte checked.
//!
//! Each seed is one run. The oracle is a model: what each operation must have put where, and that
//! completions come in the order of the queue. A failure prints its seed; `FEROCE_TEST_SEEDS=n`
//! runs as many.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::VecDeque;

use feroce_engine::iwarp::{Begin, ReadyToReceive, StreamEnd, StreamSetup};
use feroce_engine::{
    Config, Cqe, Data, SendFlags, SendOp, SendWr, SgeList, TransportKind, WcOpcode, WcStatus,
};
use feroce_testkit::{Host, Streams, TestQp, wr};
use feroce_wire::Imm;
use feroce_wire::iwarp::terminate::Cause;

/// Each end has five parts of memory of this length: what it sends from, where receives are, what
/// the peer may write, where its READs go, and words for the atomics of the peer. The peer reads
/// the first.
const PART: usize = 200 << 10;
const SEND: usize = 0;
const RECEIVE: usize = PART;
const WRITTEN: usize = 2 * PART;
const FETCHED: usize = 3 * PART;
const WORDS: usize = 4 * PART;
const MEMORY: usize = 5 * PART;

/// A receive: room for a message.
const ROOM: usize = 20_000;

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
            _ => self.roll(6000),
        }
    }
}

/// What takes a receive.
enum Incoming {
    Message(Vec<u8>),
    /// Immediate data, and the bytes written in front of it.
    Immediate(Imm, Vec<u8>, usize),
}

/// One end, its program and its model.
struct End {
    qp: TestQp,
    /// What memory must hold in the end.
    model: Vec<u8>,
    /// Signalled requests in the order of the queue.
    expected: VecDeque<(u64, WcOpcode, usize)>,
    /// Messages that the peer has sent and that have not completed, and their receives.
    incoming: VecDeque<(u64, Incoming)>,
    posted: u64,
    receives: u64,
    /// Where the next WRITE of the peer and the next READ of this end go: each byte is used once.
    written: usize,
    fetched: usize,
    /// The stream has ended: what was posted is flushed.
    is_over: bool,
}

impl End {
    fn new(host: &Host, qp: TestQp, seed: u8) -> Self {
        host.fill(SEND, PART, seed);
        let model = host.read(0, MEMORY);
        let (expected, incoming) = (VecDeque::new(), VecDeque::new());
        let (posted, receives, written, fetched) = (0, 0, WRITTEN, FETCHED);
        let is_over = false;
        Self { qp, model, expected, incoming, posted, receives, written, fetched, is_over }
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

    /// Takes the completions so far of an end whose stream may have ended: after the first request
    /// that was flushed, all are.
    fn check_or_flush(&mut self, host: &mut Host, seed: u64) {
        for cqe in host.poll_all() {
            if cqe.status != WcStatus::Flushed {
                assert!(!self.is_over, "seed {seed}: {cqe:?} after others were flushed");
                self.check(host, &cqe, seed);
                continue;
            }
            self.is_over = true;
            if cqe.opcode == WcOpcode::Recv {
                let (wr_id, _) = self.incoming.pop_front().unwrap();
                assert_eq!(cqe.wr_id, wr_id, "seed {seed}");
            } else if self.expected.front().is_some_and(|(wr_id, ..)| *wr_id == cqe.wr_id) {
                self.expected.pop_front();
            }
        }
    }

    fn check(&mut self, host: &Host, cqe: &Cqe, seed: u64) {
        assert_eq!(cqe.status, WcStatus::Success, "seed {seed}");
        if matches!(cqe.opcode, WcOpcode::Recv | WcOpcode::RecvWriteImm) {
            let (wr_id, incoming) = self.incoming.pop_front().unwrap();
            let (at, bytes) = match incoming {
                // No later message has this place yet.
                Incoming::Message(message) => (place(wr_id), message),
                Incoming::Immediate(imm, written, at) => {
                    assert_eq!((cqe.opcode, cqe.imm), (WcOpcode::RecvWriteImm, imm), "seed {seed}");
                    (at, written)
                }
            };
            assert_eq!((cqe.wr_id, cqe.byte_len as usize), (wr_id, bytes.len()), "seed {seed}");
            assert_eq!(host.read(at, bytes.len()), bytes, "seed {seed}: message");
        } else {
            let (wr_id, opcode, len) = self.expected.pop_front().unwrap();
            assert_eq!((cqe.wr_id, cqe.opcode), (wr_id, opcode), "seed {seed}: order");
            let fetches = [WcOpcode::Read, WcOpcode::FetchAdd, WcOpcode::CmpSwap];
            let fetched = if fetches.contains(&opcode) { len } else { 0 };
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

/// An atomic on a word of the peer: what it does, what it must fetch, and the name it completes by.
fn atomic(dice: &mut Dice, peer_host: &Host, peer: &mut End) -> (SendOp, u64, WcOpcode) {
    let at = WORDS + 8 * dice.roll(4);
    let word = &mut peer.model[at..at + 8];
    let old = u64::from_ne_bytes((&*word).try_into().unwrap());
    let remote = peer_host.remote(at as u64);
    let (op, new, opcode) = if dice.one_in(2) {
        let add = dice.0;
        (SendOp::FetchAdd { remote, add }, old.wrapping_add(add), WcOpcode::FetchAdd)
    } else {
        let compare = if dice.one_in(3) { !old } else { old };
        let (swap, hits) = (dice.0, compare == old);
        let op = SendOp::CmpSwap { remote, compare, swap };
        (op, if hits { swap } else { old }, WcOpcode::CmpSwap)
    };
    word.copy_from_slice(&new.to_ne_bytes());
    (op, old, opcode)
}

/// What a program may have.
#[derive(Clone, Copy, Default)]
struct Kind {
    is_extended: bool,
    /// Messages that are received into memory without a copy.
    is_long: bool,
}

/// Posts one random request from `me` to `peer`; false: there is no room for it.
fn post(
    dice: &mut Dice,
    Kind { is_extended, is_long }: Kind,
    (host, me): (&Host, &mut End),
    (peer_host, peer): (&Host, &mut End),
) -> bool {
    let mut len = if is_long && dice.one_in(8) { ROOM - dice.roll(3000) } else { dice.len() };
    let from = SEND + dice.roll(PART - ROOM);
    let (op, data, opcode) = match dice.roll(if is_extended { 6 } else { 3 }) {
        3 | 4 => {
            len = 8;
            if me.fetched + len > FETCHED + PART {
                return false;
            }
            let (op, old, opcode) = atomic(dice, peer_host, peer);
            me.model[me.fetched..me.fetched + len].copy_from_slice(&old.to_ne_bytes());
            let data = host.data(me.fetched as u64, len as u32);
            me.fetched += len;
            (op, data, opcode)
        }
        5 => {
            if peer.incoming.len() >= 8 || peer.written + len > WRITTEN + PART {
                return false;
            }
            let (imm, at) = (Imm(dice.0 as u32), peer.written);
            let bytes = me.model[from..from + len].to_vec();
            peer.model[at..at + len].copy_from_slice(&bytes);
            peer.incoming.push_back((peer.receives, Incoming::Immediate(imm, bytes, at)));
            peer.receive(peer_host);
            peer.written += len;
            let op = SendOp::WriteImm(peer_host.remote(at as u64), imm);
            (op, gathered(dice, host, from, len), WcOpcode::Write)
        }
        0 => {
            if peer.incoming.len() >= 8 {
                return false;
            }
            let at = place(peer.receives);
            let message = me.model[from..from + len].to_vec();
            peer.model[at..at + len].copy_from_slice(&message);
            peer.incoming.push_back((peer.receives, Incoming::Message(message)));
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

/// Returns how many bytes of payload were received into memory without a copy.
fn run(seed: u64, is_extended: bool) -> usize {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let max_ulpdu = [41, 300, 1442, 30_000, 64_768][dice.roll(5)];
    let kind = Kind { is_extended, is_long: dice.one_in(2) };
    let ready = [ReadyToReceive::Write, ReadyToReceive::Read, ReadyToReceive::Send][dice.roll(3)];
    let ord = 1 + dice.roll(6) as u16;
    let a = StreamSetup {
        crc: dice.one_in(2),
        max_ulpdu,
        ord,
        ird: ord,
        begin: Begin::Announce(ready),
        ..StreamSetup::INITIATOR
    };
    let transport = TransportKind::Iwarp;
    let config = Config { transport, iwarp_extensions: is_extended, ..Config::default() };
    let mut streams = Streams::with(config);
    streams.may_land = kind.is_long;
    let (qa, qb) = streams.connect(&a, &StreamSetup { begin: Begin::Await(Some(ready)), ..a });
    let mut ea = End::new(&streams.a, qa, 5);
    let mut eb = End::new(&streams.b, qb, 99);
    // Long messages in tiny pieces would take a minute.
    let most = if kind.is_long { 2000 } else { 1 } * [1, 3, 40, 2000, 100_000][dice.roll(5)];
    for _ in 0..60 {
        for _ in 0..dice.roll(4) {
            let (a, b) = ((&streams.a, &mut ea), (&streams.b, &mut eb));
            let _ = match dice.one_in(2) {
                true => post(&mut dice, kind, a, b),
                false => post(&mut dice, kind, b, a),
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
        let memory = host.read(0, MEMORY);
        let wrong = memory.iter().zip(&end.model).position(|(is, should)| is != should);
        assert_eq!(wrong, None, "seed {seed}: first wrong byte");
    }
    assert!(streams.ends.iter().all(Vec::is_empty), "seed {seed}: {:?}", streams.ends);
    streams.landed
}

/// Both ends talk over a stream that damages a byte now and then. Returns how the streams have
/// ended.
fn run_damaged(seed: u64) -> Vec<StreamEnd> {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    // In short segments, lengths are often what is damaged.
    let max_ulpdu = [41, 41, 300, 1442][dice.roll(4)];
    let begin = Begin::Announce(ReadyToReceive::Write);
    let a = StreamSetup { max_ulpdu, begin, crc: true, ..StreamSetup::INITIATOR };
    let begin = Begin::Await(Some(ReadyToReceive::Write));
    let mut streams = Streams::default();
    let (qa, qb) = streams.connect(&a, &StreamSetup { begin, ..a });
    let mut ea = End::new(&streams.a, qa, 5);
    let mut eb = End::new(&streams.b, qb, 99);
    let (most, rate) = ([3, 40, 2000][dice.roll(3)], 500 + dice.roll(10_000));
    let (mut until, mut damaged) = (dice.roll(rate), dice.0);
    let mut damage = |bytes: &mut [u8]| {
        if let Some(byte) = bytes.get_mut(until) {
            let mut dice = Dice(damaged);
            *byte ^= 1 << dice.roll(8);
            (until, damaged) = (dice.roll(rate), dice.0);
        } else {
            until -= bytes.len();
        }
    };
    for _ in 0..4 {
        for _ in 0..dice.roll(4) {
            let (a, b) = ((&streams.a, &mut ea), (&streams.b, &mut eb));
            let _ = match dice.one_in(2) {
                true => post(&mut dice, Kind::default(), a, b),
                false => post(&mut dice, Kind::default(), b, a),
            };
        }
        for _ in 0..dice.roll(200) {
            streams.step_damaged(&mut |waiting| 1 + dice.roll(most.min(waiting)), &mut damage);
        }
        ea.check_or_flush(&mut streams.a, seed);
        eb.check_or_flush(&mut streams.b, seed);
        if streams.ends.iter().any(|ends| !ends.is_empty()) {
            break;
        }
    }
    for _ in 0..1000 {
        while streams.step_damaged(&mut |waiting| 1 + dice.roll(most.min(waiting)), &mut damage) {}
        if !streams.sleep() {
            break;
        }
    }
    for (host, end) in [(&mut streams.a, &mut ea), (&mut streams.b, &mut eb)] {
        end.check_or_flush(host, seed);
        assert!(end.expected.is_empty(), "seed {seed}: {} did not complete", end.expected.len());
        assert!(end.incoming.is_empty(), "seed {seed}: not received");
    }
    let [a, b] = &streams.ends;
    assert!(a.len() == b.len() && a.len() <= 1, "seed {seed}: {a:?} and {b:?}");
    a.iter().chain(b).map(|event| event.end).collect()
}

/// Seeds of each test, or as many as the environment says.
fn seeds() -> std::ops::Range<u64> {
    let count = std::env::var("FEROCE_TEST_SEEDS").map_or(40, |text| text.parse().unwrap());
    0..count
}

#[test]
fn random_programs_end_as_the_model_says() {
    let landed: Vec<usize> = seeds().map(|seed| run(seed, false)).collect();
    assert!(landed.iter().any(|bytes| *bytes > 0), "no payload went straight to memory");
}

/// With atomics and immediate data (RFC 7306).
#[test]
fn random_programs_with_the_extensions_end_as_the_model_says() {
    seeds().for_each(|seed| {
        run(seed, true);
    });
}

/// A byte that changes on its way ends the stream at both ends, sooner or later: whatever it was
/// of, nothing that is wrong completes, and nothing waits for ever.
#[test]
fn damaged_streams_end_at_both_ends() {
    let ends: Vec<StreamEnd> =
        seeds().flat_map(|seed| 3 * seed..3 * seed + 3).flat_map(run_damaged).collect();
    let crc = StreamEnd::Terminated(Cause::MPA_CRC);
    for kind in
        [crc, StreamEnd::PeerTerminated(Cause::MPA_CRC), StreamEnd::Stalled, StreamEnd::Closed]
    {
        let count = ends.iter().filter(|end| **end == kind).count();
        println!("{kind:?}: {count} of {}", ends.len());
        assert!(count > 0, "{kind:?} was not tried");
    }
}
