//! iWARP: streams that are almost right, by the million. Nothing panics, nothing grows, memory
//! changes only where the peer has a right, everything posted completes, and each stream that does
//! not end orderly is counted once, under the name of its reason.
//!
//! `cargo xtask soak --streams N` runs more of them than a test does.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use fastrand::Rng;
use feroce_engine::iwarp::{Begin, ReadyToReceive, StreamEnd, StreamSetup};
use feroce_engine::{Config, Data, Remote, SendOp, Sge, SgeList, TransportKind};
use feroce_mem::Access;
use feroce_testkit::stream_peer::{StreamPeer, read_request, send, write};
use feroce_testkit::{Host, HostConfig, Mr, wr};
use feroce_wire::iwarp::atomic::{AtomicOp, AtomicRequest, AtomicResponse};
use feroce_wire::iwarp::ddp::{Control, Header, QueueNumber, Tagged, Untagged};
use feroce_wire::iwarp::rdmap::{RdmaOp, ReadRequest};
use feroce_wire::iwarp::terminate::Terminate;
use feroce_wire::{Imm, Lkey, Rkey};

use super::iwarp_errors::counter_of;

/// How many streams.
const COUNT: &str = "FEROCE_TEST_STREAMS";

/// Bytes that the process may grow by, after a tenth of the streams.
const GROWTH: u64 = 8 << 20;

/// Memory of the host: what the peer may use, what the host has asked to be changed, and the rest.
const OPEN: Range<usize> = 0x1000..0x2000;
const OWN: Range<usize> = 0x3000..0x6000;
const FOREIGN: usize = 0x6000;
const MEMORY: usize = 0x8000;

/// Bytes of a receive, and of what one READ of the host fetches, at most.
const ROOM: usize = 0x200;

type Segment = (Header, Vec<u8>);

/// A host that serves one stream after the other.
struct World {
    host: Option<Host>,
    open: Mr,
    /// Memory of another protection domain.
    foreign: Mr,
    before: Vec<u8>,
    is_extended: bool,
    /// How streams ended.
    ends: BTreeMap<&'static str, u64>,
}

impl World {
    fn new(is_extended: bool) -> Self {
        let transport = TransportKind::Iwarp;
        let engine = Config { transport, iwarp_extensions: is_extended, ..Config::default() };
        let access = Access::LOCAL_WRITE;
        let mut host = Host::build(HostConfig { engine, access, ..HostConfig::new(1, MEMORY) });
        host.fill(0, MEMORY, 1);
        let region = Arc::clone(&host.region);
        let all = access | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let iova = Some(OPEN.start as u64);
        let place = (OPEN.start, OPEN.len());
        let open = Mr::register(&mut host.engine, host.pd, &region, place, iova, all);
        let other = host.engine.alloc_pd().unwrap();
        let place = (FOREIGN, 0x1000);
        let foreign = Mr::register(&mut host.engine, other, &region, place, iova, all);
        let before = host.read(0, MEMORY);
        Self { host: Some(host), open, foreign, before, is_extended, ends: BTreeMap::new() }
    }

    /// One stream from its setup to its end.
    fn stream(&mut self, rng: &mut Rng, is_mutated: bool) {
        let kind = [ReadyToReceive::Write, ReadyToReceive::Read, ReadyToReceive::Send];
        let kind = kind[rng.usize(..3)];
        let begins = [
            Begin::Send,
            Begin::Announce(ReadyToReceive::Write),
            Begin::Await(None),
            Begin::Await(Some(kind)),
        ];
        let setup = StreamSetup {
            crc: rng.bool(),
            markers: false,
            ird: rng.u16(1..5),
            ord: 4,
            max_ulpdu: rng.usize(64..1500),
            begin: begins[rng.usize(..4)],
        };
        let peer = StreamPeer::at(self.host.take().unwrap(), &setup);
        let mut talk = Talk::new(self, rng, peer, setup);
        talk.post(is_mutated);
        talk.open();
        talk.exceeds = is_mutated && talk.rng.u8(..8) == 0;
        let mut script = talk.script();
        if is_mutated && talk.rng.u8(..4) != 0 {
            for _ in 0..talk.rng.usize(1..4) {
                talk.mutate_segment(&mut script);
            }
        }
        let mut bytes: Vec<u8> = Vec::new();
        let mut starts = Vec::new();
        for (header, payload) in &script {
            starts.push(bytes.len());
            bytes.extend(talk.peer.segment(header, payload));
        }
        if is_mutated && talk.rng.bool() {
            for _ in 0..talk.rng.usize(1..4) {
                mutate_bytes(talk.rng, &mut bytes, &starts);
            }
        }
        talk.deliver(&bytes);
        let is_broken = is_mutated && talk.rng.u8(..4) == 0;
        let (host, end) = talk.finish(is_broken);
        if !is_mutated {
            let is_good = matches!(end, StreamEnd::Closed | StreamEnd::PeerTerminated(_));
            assert!(is_good, "a right stream ends with {end:?}");
        }
        self.check_memory(&host);
        self.host = Some(host);
    }

    fn check_memory(&self, host: &Host) {
        let after = host.read(0, MEMORY);
        let kept = [0..OPEN.start, OPEN.end..OWN.start, OWN.end..MEMORY];
        for range in kept {
            assert!(self.before[range.clone()] == after[range.clone()], "changed: {range:?}");
        }
    }

    /// What was counted so far.
    fn counted(host: &Host) -> BTreeMap<&'static str, u64> {
        host.engine.stream_counters().iter().collect()
    }
}

/// A stream while it lasts.
struct Talk<'a> {
    rng: &'a mut Rng,
    peer: StreamPeer,
    setup: StreamSetup,
    open: Mr,
    foreign: Mr,
    is_extended: bool,
    ends: &'a mut BTreeMap<&'static str, u64>,
    counted: BTreeMap<&'static str, u64>,
    /// Requests and receives posted, and completions of them.
    posted: usize,
    completed: usize,
    /// Lengths of the receives that messages have not taken.
    receives: Vec<usize>,
    /// What the host has asked for.
    asked: Vec<Segment>,
    /// The last that the host has sent.
    last: Option<Segment>,
    send_msn: u32,
    read_msn: u32,
    reads: u16,
    /// The peer sends more SENDs and READs than it may.
    exceeds: bool,
}

impl<'a> Talk<'a> {
    fn new(world: &'a mut World, rng: &'a mut Rng, peer: StreamPeer, setup: StreamSetup) -> Self {
        Self {
            rng,
            setup,
            open: world.open,
            foreign: world.foreign,
            is_extended: world.is_extended,
            counted: World::counted(&peer.host),
            ends: &mut world.ends,
            peer,
            posted: 0,
            completed: 0,
            receives: Vec::new(),
            asked: Vec::new(),
            last: None,
            send_msn: 1,
            read_msn: 1,
            reads: 0,
            exceeds: false,
        }
    }

    /// Posts receives and requests of the host, sometimes with keys that do not exist.
    fn post(&mut self, may_be_wrong: bool) {
        let wrong = |rng: &mut Rng, sge: Sge| match may_be_wrong && rng.u8(..50) == 0 {
            true => Sge { lkey: Lkey(7), ..sge },
            false => sge,
        };
        for i in 0..self.rng.usize(..4) {
            let len = self.rng.usize(1..=ROOM);
            let sge = self.peer.host.sge((OWN.start + i * ROOM) as u64, len as u32);
            let sges = SgeList::from(wrong(self.rng, sge));
            let receive = feroce_engine::RecvWr { wr_id: i as u64, sges };
            self.peer.qp.rq.as_mut().unwrap().post(receive).unwrap();
            self.receives.push(len);
        }
        self.receives.reverse();
        let remote = Remote { addr: 0, rkey: Rkey(7) };
        for i in 0..self.rng.usize(..4) {
            let ops = [
                SendOp::Read(remote),
                SendOp::Send,
                SendOp::Write(remote),
                SendOp::FetchAdd { remote, add: 1 },
                SendOp::WriteImm(remote, Imm(5)),
            ];
            let op = ops[self.rng.usize(..if self.is_extended { 5 } else { 3 })];
            let is_atomic = matches!(op, SendOp::FetchAdd { .. });
            let len = if is_atomic { 8 } else { self.rng.usize(1..ROOM) };
            let sge = self.peer.host.sge((OWN.start + 0x1000 + i * ROOM) as u64, len as u32);
            let data = Data::Sges(SgeList::from(wrong(self.rng, sge)));
            self.peer.qp.sq.post(wr(10 + i as u64, op, data)).unwrap();
            self.posted += 1;
        }
        self.posted += self.receives.len();
    }

    /// Takes what the host sends, and remembers what it asks for.
    fn hear(&mut self) {
        for (header, payload) in self.peer.hear() {
            let opcode = header.control().opcode;
            if matches!(opcode, RdmaOp::READ_REQUEST | RdmaOp::ATOMIC_REQUEST) {
                self.asked.push((header, payload.clone()));
            }
            self.last = Some((header, payload));
        }
        self.completed += self.peer.host.poll_all().len();
    }

    /// The first message, after which the host sends.
    fn open(&mut self) {
        match self.setup.begin {
            Begin::Await(Some(ReadyToReceive::Send)) => {
                self.peer.say(&Header::Untagged(send(1)), &[]);
                self.send_msn = 2;
            }
            Begin::Await(Some(ReadyToReceive::Read)) => {
                let (header, payload) = self.read(0);
                self.peer.say(&header, &payload);
            }
            _ => self.peer.say(&write(Rkey(0), 0), &[]),
        }
        self.hear();
        self.reads = 0;
    }

    fn read(&mut self, len: u32) -> (Header, [u8; ReadRequest::LEN]) {
        let source_offset = (OPEN.start + self.rng.usize(..0x800)) as u64;
        let (sink_stag, source_stag) = (Rkey(0x99), self.open.rkey());
        let request = ReadRequest { sink_stag, sink_offset: 5, len, source_stag, source_offset };
        let (header, payload) = read_request(self.read_msn, &request);
        self.read_msn += 1;
        self.reads += 1;
        (header, payload)
    }

    /// Right segments: messages of every kind, in an order that the host must take.
    fn script(&mut self) -> Vec<Segment> {
        let mut script = Vec::new();
        let asked = std::mem::take(&mut self.asked);
        let mut atomics = 0;
        let mut responses = asked.iter().map(|asked| response(&mut atomics, asked));
        for _ in 0..self.rng.usize(1..6) {
            match self.rng.u8(..7) {
                0 | 1 => self.send(&mut script),
                2 | 3 => self.write(&mut script),
                4 if self.may_read() => {
                    let len = self.rng.u32(..0x800);
                    let (header, payload) = self.read(len);
                    script.push((header, payload.to_vec()));
                }
                5 if self.is_extended && self.may_read() => {
                    script.push(self.atomic());
                }
                _ => script.extend(responses.next()),
            }
        }
        if self.rng.u8(..20) == 0 {
            let control = Control::new(RdmaOp::TERMINATE, true);
            let header = Untagged { control, queue: QueueNumber::TERMINATE, ..send(1) };
            script.push((Header::Untagged(header), vec![0x11, 2, 0, 0]));
        }
        script
    }

    fn may_read(&self) -> bool {
        self.exceeds || self.reads < self.setup.ird
    }

    /// A message, in segments of any length.
    fn send(&mut self, script: &mut Vec<Segment>) {
        let Some(room) = self.receives.pop().or_else(|| self.exceeds.then_some(9)) else { return };
        let opcode = match self.rng.bool() {
            true => RdmaOp::SEND,
            false => RdmaOp::SEND_SE,
        };
        let len = self.rng.usize(..=room);
        let mut mo = 0;
        loop {
            let here = self.rng.usize(..=len - mo);
            let last = mo + here == len;
            let control = Control::new(opcode, last);
            let header = Untagged { control, mo: mo as u32, ..send(self.send_msn) };
            script.push((Header::Untagged(header), vec![0x5e; here]));
            mo += here;
            if last {
                break;
            }
        }
        self.send_msn += 1;
    }

    fn write(&mut self, script: &mut Vec<Segment>) {
        let (len, mut at) = (self.rng.usize(..0x400), self.rng.usize(..0x800));
        let end = at + len;
        loop {
            let here = self.rng.usize(..=end - at);
            let last = at + here == end;
            let control = Control::new(RdmaOp::WRITE, last);
            let (stag, offset) = (self.open.rkey(), (OPEN.start + at) as u64);
            script.push((Header::Tagged(Tagged { control, stag, offset }), vec![0x3c; here]));
            at += here;
            if last {
                return;
            }
        }
    }

    fn atomic(&mut self) -> Segment {
        let op = [AtomicOp::FETCH_ADD, AtomicOp::CMP_SWAP][self.rng.usize(..2)];
        let request = AtomicRequest {
            op,
            request_id: self.rng.u32(..),
            stag: self.open.rkey(),
            offset: (OPEN.start + 8 * self.rng.usize(..100)) as u64,
            add_swap: 1,
            add_swap_mask: 0,
            compare: 0,
            compare_mask: u64::MAX,
        };
        let mut payload = [0; AtomicRequest::LEN];
        request.emit(&mut payload);
        let control = Control::new(RdmaOp::ATOMIC_REQUEST, true);
        let queue = QueueNumber::READ_REQUEST;
        let header = Untagged { control, queue, ..send(self.read_msn) };
        self.read_msn += 1;
        self.reads += 1;
        (Header::Untagged(header), payload.to_vec())
    }

    /// Changes one thing of one segment, or their order. Framing and CRC will be right.
    fn mutate_segment(&mut self, script: &mut Vec<Segment>) {
        if script.is_empty() {
            return;
        }
        let at = self.rng.usize(..script.len());
        match self.rng.u8(..12) {
            0 => drop(script.remove(at)),
            1 => script.insert(at, script[at].clone()),
            2 => {
                let other = self.rng.usize(..script.len());
                script.swap(at, other);
            }
            3 => {
                let len = self.rng.usize(..=script[at].1.len());
                script[at].1.truncate(len);
            }
            4 => script[at].1.extend(vec![9; self.rng.usize(..1500)]),
            5 => self.rng.fill(&mut script[at].1),
            _ => self.mutate_header(&mut script[at].0),
        }
    }

    fn mutate_header(&mut self, header: &mut Header) {
        let keys = [self.open.rkey(), self.foreign.rkey(), Rkey(self.peer.host.lkey.0), Rkey(7)];
        let key = keys[self.rng.usize(..4)];
        let (start, end) = (OPEN.start as u64, OPEN.end as u64);
        let places = [0, start - 1, start, end - 5, end, u64::MAX - 5, self.rng.u64(..)];
        let small = [0, 1, 2, 3, 5, u32::MAX, self.rng.u32(..)][self.rng.usize(..7)];
        let mut control = *header.control();
        match self.rng.u8(..8) {
            0 => control.ddp_version = self.rng.u8(..4),
            1 => control.rdmap_version = self.rng.u8(..4),
            2 | 3 => control.opcode = RdmaOp(self.rng.u8(..16)),
            4 => control.last = !control.last,
            _ => match header {
                Header::Tagged(tagged) if self.rng.bool() => tagged.stag = key,
                Header::Tagged(tagged) => tagged.offset = places[self.rng.usize(..7)],
                Header::Untagged(untagged) => match self.rng.u8(..4) {
                    0 => untagged.queue = QueueNumber(small),
                    1 => untagged.msn = small,
                    2 => untagged.mo = small,
                    _ => {
                        untagged.invalidate = key;
                        control.opcode = RdmaOp::SEND_INV;
                    }
                },
            },
        }
        match header {
            Header::Tagged(tagged) => tagged.control = control,
            Header::Untagged(untagged) => untagged.control = control,
        }
    }

    /// Gives bytes to the host in pieces of any length; it answers in between, or does not.
    fn deliver(&mut self, mut bytes: &[u8]) {
        let most = [1, 20, 300, 10_000][self.rng.usize(..4)];
        let answers = self.rng.bool();
        while !bytes.is_empty() {
            let (now, rest) = bytes.split_at(self.rng.usize(1..=most).min(bytes.len()));
            self.peer.say_bytes(now);
            bytes = rest;
            if answers {
                self.hear();
            }
        }
    }

    /// Ends the stream, and checks how the host takes that.
    fn finish(mut self, is_broken: bool) -> (Host, StreamEnd) {
        self.hear();
        if !is_broken {
            // The peer is silent for long before it closes.
            while let Some(at) = self.peer.host.engine.poll_timeout() {
                self.peer.now = at;
                self.peer.host.engine.handle_timeout(at);
                self.hear();
            }
        }
        let (now, qpn) = (self.peer.now, self.peer.qp.qpn);
        self.peer.host.engine.handle_stream_end(now, qpn, is_broken);
        self.hear();
        assert!(self.peer.is_over, "the host closes, too");
        assert_eq!(self.completed, self.posted, "everything posted completes, once");
        let end = self.peer.end().unwrap();
        assert_eq!(self.peer.end(), None, "a stream ends once");
        let name = match end {
            StreamEnd::Closed => "closed",
            StreamEnd::Cut => "iwarp_cut",
            StreamEnd::Stalled => "iwarp_stalled",
            StreamEnd::PeerTerminated(_) => "iwarp_terminated_by_peer",
            StreamEnd::Terminated(cause) => {
                let (header, payload) = self.last.as_ref().unwrap();
                assert_eq!(header.control().opcode, RdmaOp::TERMINATE);
                assert_eq!(Terminate::parse(payload).unwrap().0.cause, cause);
                counter_of(cause)
            }
        };
        *self.ends.entry(name).or_default() += 1;
        if end != StreamEnd::Closed {
            *self.counted.get_mut(name).unwrap() += 1;
        }
        assert_eq!(World::counted(&self.peer.host), self.counted, "{name} counts it, once");
        let mut host = self.peer.host;
        assert!(host.async_events().len() <= 1);
        host.engine.destroy_qp(qpn).unwrap();
        (host, end)
    }
}

/// The right answer to what the host has asked for; `atomics` were answered before.
fn response(atomics: &mut u32, (header, payload): &Segment) -> Segment {
    if header.control().opcode == RdmaOp::READ_REQUEST {
        let (asked, _) = ReadRequest::parse(payload).unwrap();
        let control = Control::new(RdmaOp::READ_RESPONSE, true);
        let (stag, offset) = (asked.sink_stag, asked.sink_offset);
        return (Header::Tagged(Tagged { control, stag, offset }), vec![0x77; asked.len as usize]);
    }
    let (asked, _) = AtomicRequest::parse(payload).unwrap();
    let response = AtomicResponse { request_id: asked.request_id, original: 3 };
    let mut payload = [0; AtomicResponse::LEN];
    response.emit(&mut payload);
    let control = Control::new(RdmaOp::ATOMIC_RESPONSE, true);
    let queue = QueueNumber::ATOMIC_RESPONSE;
    *atomics += 1;
    let header = Untagged { control, queue, ..send(*atomics) };
    (Header::Untagged(header), payload.to_vec())
}

/// Changes bytes of a stream whose segments start at `starts`, or of any others.
pub(super) fn mutate_bytes(rng: &mut Rng, bytes: &mut Vec<u8>, starts: &[usize]) {
    if bytes.is_empty() {
        return;
    }
    let at = rng.usize(..bytes.len());
    let to = (at + 1 + rng.usize(..40)).min(bytes.len());
    match rng.u8(..7) {
        0 => bytes[at] ^= 1 << rng.u8(..8),
        1 => rng.fill(&mut bytes[at..to]),
        2 => drop(bytes.drain(at..to)),
        3 => bytes.truncate(at),
        4 => {
            let copy = bytes[at..to].to_vec();
            bytes.splice(at..at, copy);
        }
        5 => bytes.extend(std::iter::repeat_with(|| rng.u8(..)).take(to - at)),
        _ => {
            // The length of a segment.
            let lengths = [0, 1, 13, 14, 17, 18, 19, 0xffff, rng.u16(..)];
            let Some(&start) = starts.get(rng.usize(..starts.len().max(1))) else { return };
            let length = lengths[rng.usize(..lengths.len())].to_be_bytes();
            if let Some(field) = bytes.get_mut(start..start + 2) {
                field.copy_from_slice(&length);
            }
        }
    }
}

/// The number that the environment says.
pub(super) fn asked() -> Option<u64> {
    std::env::var(COUNT).ok().map(|text| text.parse().expect("a number"))
}

pub(super) fn seed() -> u64 {
    std::env::var("FEROCE_SEED").map_or(1, |text| text.parse().expect("a number"))
}

/// Bytes of this process in memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn every_stream_that_is_refused_has_a_counter_with_a_name() {
    let (count, first) = (asked().unwrap_or(6000), seed());
    let mut worlds = [World::new(false), World::new(true)];
    let mut before = 0;
    for number in 0..count {
        if number == count / 10 {
            before = resident();
        }
        let mut rng = Rng::with_seed(first.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number);
        let world = &mut worlds[rng.usize(..2)];
        let is_mutated = rng.u8(..16) != 0;
        let said = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            world.stream(&mut rng, is_mutated);
        }));
        assert!(said.is_ok(), "FEROCE_SEED={first}, stream {number}");
    }
    let growth = resident().saturating_sub(before);
    let mut ends = BTreeMap::new();
    for (name, count) in worlds.iter().flat_map(|world| &world.ends) {
        *ends.entry(*name).or_insert(0) += count;
    }
    eprintln!("{count} streams, {growth} bytes more: {ends:#?}");
    let counters = worlds[0].host.as_ref().unwrap().engine.stream_counters();
    for (name, _) in counters.iter() {
        let has_happened = ends.contains_key(name);
        // Every reason has a name of its own, and every name is met here.
        assert_eq!(has_happened, name != "iwarp_refused_otherwise", "{name}");
    }
    if asked().is_some() {
        assert!(growth < GROWTH, "{growth} bytes more");
    }
}
