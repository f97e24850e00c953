//! The last packets of a queue pair, for a process that looks.
//!
//! A device records nothing until a process asks for the packets of a queue pair. The first request
//! makes a ring for that queue pair, and each further one reads it and extends its time; a ring
//! that is not asked for is removed. The number of rings and their length are fixed, and so is the
//! number of packets that are recorded for one request: a queue pair with millions of messages per
//! second is not slowed down by being watched.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::str::FromStr;

use feroce_cm::rdma::gid_of;
use feroce_link::Direction;
use feroce_train::{Ecn, Instant, Payload, RxTrain, Single, Train};
use feroce_wire::{Bth, Deth, Gid, Qpn, Service};

/// How many packets of a queue pair are remembered.
pub(super) const DEPTH: usize = 256;

/// Most queue pairs of a device whose packets are recorded at the same time.
const MOST_QPS: usize = 4;

/// Bytes that are kept of a packet. All headers together are shorter.
const HEAD: usize = 64;

/// For how long a device records packets after they were asked for.
const LEASE_NS: u64 = 3_000_000_000;

/// How many packets are recorded for one request. A process that asks every second sees every
/// packet of a queue pair with fewer per second, and else the first of each second.
const GRANT: u64 = 4096;

/// The last packets of a queue pair, the oldest first; see [`packets`](super::packets).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Packets {
    /// At most 256 packets.
    pub packets: Vec<PacketSnapshot>,
    /// How many packets were recorded, with those that were forgotten again.
    pub recorded: u64,
    /// Why the device has no packets of this queue pair.
    pub refusal: Option<String>,
}

/// A packet of a queue pair.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PacketSnapshot {
    /// When, since the device was opened.
    pub at_ns: u64,
    /// Which way it went.
    pub direction: Direction,
    /// Address of the sender.
    pub src: Gid,
    /// Address of the receiver.
    pub dst: Gid,
    /// Whether a switch has marked it: congestion experienced.
    pub is_congested: bool,
    /// How many packets it stands for. A process of this host that fetches the payload itself gets
    /// the headers of one packet for a run of them.
    pub count: u32,
    /// Bytes of the packet, or of the whole run: headers, payload and padding.
    pub len: u64,
    /// Its first bytes, from the base transport header on: all headers.
    pub head: Vec<u8>,
}

/// What a device records: nothing, unless a process has asked.
#[derive(Debug, Default)]
pub(crate) struct PacketLog {
    rings: Vec<Ring>,
}

/// The packets of one queue pair.
#[derive(Debug)]
struct Ring {
    qpn: Qpn,
    /// The queue pair that it is connected to.
    peer: Option<(Gid, Qpn)>,
    until: Instant,
    /// How many packets may still be recorded before a process asks again.
    left: u64,
    recorded: u64,
    packets: VecDeque<Kept>,
}

#[derive(Debug)]
struct Kept {
    at: Instant,
    direction: Direction,
    src: Gid,
    dst: Gid,
    is_congested: bool,
    count: u32,
    len: u64,
    head_len: u8,
    head: [u8; HEAD],
}

impl PacketLog {
    /// A process asks for the packets of a queue pair: records them from now on for some seconds,
    /// and writes those that were recorded so far. Times are since `start`.
    pub(crate) fn answer(
        &mut self,
        now: Instant,
        start: Instant,
        qpn: Qpn,
        peer: Option<(Gid, Qpn)>,
    ) -> String {
        self.expire(now);
        let until = now.plus_nanos(LEASE_NS);
        if let Some(ring) = self.rings.iter_mut().find(|ring| ring.qpn == qpn) {
            (ring.peer, ring.until, ring.left) = (peer, until, GRANT);
            return ring.text(start);
        }
        if self.rings.len() >= MOST_QPS {
            return refuse(format_args!(
                "the packets of {MOST_QPS} other queue pairs of this device are being watched: \
                 end one of those, and try again after {} s",
                LEASE_NS / 1_000_000_000
            ));
        }
        let packets = VecDeque::with_capacity(DEPTH);
        let ring = Ring { qpn, peer, until, left: GRANT, recorded: 0, packets };
        let text = ring.text(start);
        self.rings.push(ring);
        text
    }

    /// Whether every ring has what one request grants it.
    pub(crate) fn is_full(&self) -> bool {
        self.rings.iter().all(|ring| ring.left == 0)
    }

    /// Whether nothing is recorded.
    pub(crate) fn is_empty(&self) -> bool {
        self.rings.is_empty()
    }

    /// Forgets the queue pairs that no process has asked for lately.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.rings.retain(|ring| ring.until > now);
    }

    /// The link has taken a train.
    pub(crate) fn sent(&mut self, now: Instant, train: &Train) {
        if self.is_full() {
            return;
        }
        let (src, dst) = (train.path.src.gid, train.path.dst.gid);
        let kept = |i: u32| {
            let mut head = [0; HEAD];
            let head_len = match &train.payload {
                Payload::Packets { bytes, len } => {
                    copy(bytes.get(i as usize * len..).unwrap_or(&[]), &mut head)
                }
                _ => {
                    let ext = train.ext(i).as_slice();
                    let (bth, rest) = head.split_at_mut(Bth::LEN);
                    if let Ok(bth) = bth.try_into() {
                        train.bth(i).emit(bth);
                    }
                    Bth::LEN as u8 + copy(ext, rest)
                }
            };
            let (at, direction, len) = (now, Direction::Sent, train.packet_len(i) as u64);
            Kept { at, direction, src, dst, is_congested: false, count: 1, len, head_len, head }
        };
        let first = kept(0);
        for ring in self.rings.iter_mut().filter(|ring| ring.is_of(&first)) {
            ring.count(train.count);
            let skipped = train.count.saturating_sub(DEPTH as u32);
            (skipped..train.count).for_each(|i| ring.keep(kept(i)));
        }
    }

    /// The link has taken a packet without a train.
    pub(crate) fn sent_single(&mut self, now: Instant, single: Single<'_>) {
        if self.is_full() {
            return;
        }
        let (src, dst) = (single.path.src.gid, single.path.dst.gid);
        self.one(|head| Kept {
            at: now,
            direction: Direction::Sent,
            src,
            dst,
            is_congested: false,
            count: 1,
            len: single.bytes.len() as u64,
            head_len: copy(single.bytes, head),
            head: *head,
        });
    }

    /// The link has received a train.
    pub(crate) fn received(&mut self, now: Instant, train: &RxTrain<'_>) {
        self.expire(now);
        if self.is_full() {
            return;
        }
        let meta = &train.meta;
        let (src, dst) = (meta.src.gid, meta.dst.gid);
        let is_congested = meta.ecn == Ecn::Congested;
        let (count, more) = train.remote.map_or((1, 0), |run| (run.packets, run.len as u64));
        for packet in train.packets() {
            self.one(|head| Kept {
                at: now,
                direction: Direction::Received,
                src,
                dst,
                is_congested,
                count,
                len: packet.len() as u64 + more,
                head_len: copy(packet, head),
                head: *head,
            });
        }
    }

    fn one(&mut self, make: impl Fn(&mut [u8; HEAD]) -> Kept) {
        for ring in &mut self.rings {
            let kept = make(&mut [0; HEAD]);
            if ring.is_of(&kept) {
                ring.count(kept.count);
                ring.keep(kept);
            }
        }
    }
}

/// Copies as much as there is room for, and says how much that is.
fn copy(from: &[u8], to: &mut [u8]) -> u8 {
    let len = from.len().min(to.len());
    to[..len].copy_from_slice(&from[..len]);
    len as u8
}

/// The answer where there is none.
pub(crate) fn refuse(why: std::fmt::Arguments<'_>) -> String {
    format!("refusal\t{why}\n{END}\n")
}

/// The last line: without it the text is not complete.
const END: &str = "end";

impl Ring {
    /// Whether a packet is of this queue pair, and may be recorded. A packet that is sent names the
    /// receiver alone, except a datagram.
    fn is_of(&self, packet: &Kept) -> bool {
        if self.left == 0 {
            return false;
        }
        let head = packet.head.get(..usize::from(packet.head_len)).unwrap_or(&[]);
        let Ok((bth, rest)) = Bth::parse(head) else { return false };
        if packet.direction == Direction::Received {
            return bth.dest_qp == self.qpn;
        }
        match bth.opcode.decode() {
            Some((Service::Ud, _)) => {
                Deth::parse(rest).is_ok_and(|(deth, _)| deth.src_qp == self.qpn)
            }
            _ => self.peer == Some((packet.dst, bth.dest_qp)),
        }
    }

    fn count(&mut self, packets: u32) {
        self.recorded += u64::from(packets);
        self.left = self.left.saturating_sub(packets.into());
    }

    fn keep(&mut self, packet: Kept) {
        if self.packets.len() >= DEPTH {
            self.packets.pop_front();
        }
        self.packets.push_back(packet);
    }

    fn text(&self, start: Instant) -> String {
        let mut text = format!("recorded\t{}\n", self.recorded);
        for kept in &self.packets {
            let Kept { src, dst, is_congested, count, len, .. } = kept;
            let (at_ns, way) = (kept.at.nanos_since(start), word(kept.direction));
            // Writing into a string does not fail.
            let _ = write!(text, "packet\t{at_ns}\t{way}\t{}\t{}\t", src.to_ip(), dst.to_ip());
            let _ = write!(text, "{}\t{count}\t{len}\t", u8::from(*is_congested));
            for byte in kept.head.iter().take(kept.head_len.into()) {
                let _ = write!(text, "{byte:02x}");
            }
            text.push('\n');
        }
        text.push_str(END);
        text.push('\n');
        text
    }
}

const fn word(direction: Direction) -> &'static str {
    match direction {
        Direction::Sent => "out",
        Direction::Received => "in",
    }
}

/// Reads the text that a device answers with.
impl FromStr for Packets {
    type Err = NotComplete;

    fn from_str(text: &str) -> Result<Self, NotComplete> {
        parse(text).ok_or(NotComplete)
    }
}

/// A text is not the whole answer of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct NotComplete;

impl std::fmt::Display for NotComplete {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("this is not the whole answer of a device, or of another version of feroce")
    }
}

impl std::error::Error for NotComplete {}

/// Reads what [`PacketLog::answer`] or [`refuse`] has written; `None` if it is not complete.
fn parse(text: &str) -> Option<Packets> {
    let mut found = Packets::default();
    for line in text.lines() {
        let (kind, rest) = line.split_once('\t').unwrap_or((line, ""));
        match kind {
            "recorded" => found.recorded = rest.parse().ok()?,
            "refusal" => found.refusal = Some(rest.to_owned()),
            "packet" if found.packets.len() < DEPTH => found.packets.push(packet(rest)?),
            END => return Some(found),
            _ => {}
        }
    }
    None
}

fn packet(line: &str) -> Option<PacketSnapshot> {
    let mut fields = line.split('\t');
    let at_ns = fields.next()?.parse().ok()?;
    let direction = match fields.next()? {
        "out" => Direction::Sent,
        "in" => Direction::Received,
        _ => return None,
    };
    let src = gid_of(fields.next()?.parse().ok()?);
    let dst = gid_of(fields.next()?.parse().ok()?);
    let is_congested = fields.next()? == "1";
    let (count, len) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let digits = fields.next()?.as_bytes();
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let byte = |pair: &[u8]| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?);
    let head = digits.chunks(2).take(HEAD).map(byte).collect::<Option<_>>()?;
    Some(PacketSnapshot { at_ns, direction, src, dst, is_congested, count, len, head })
}

#[cfg(test)]
mod tests {
    use feroce_train::{Ext, Path, PortAddr, RxMeta, TrainOps};
    use feroce_wire::{Op, Opcode, Psn};

    use super::*;

    const QP: Qpn = Qpn::new(0x12);
    const PEER: Qpn = Qpn::new(0x34);

    fn peer() -> Gid {
        Gid::from_ipv4([192, 0, 2, 9])
    }

    fn train(dest: Qpn, count: u32) -> Train {
        let opcode = Opcode::new(Service::Rc, Op::SendOnly);
        let path = Path { dst: PortAddr { gid: peer(), ..PortAddr::default() }, ..Path::default() };
        Train {
            path,
            bth: Bth::new(opcode, dest, Psn::new(9)),
            ops: TrainOps::all(opcode),
            count,
            stride: 0,
            payload_len: 0,
            head: Ext::NONE,
            body: Ext::NONE,
            tail: Ext::NONE,
            payload: Payload::Empty,
            revocation_epoch: None,
        }
    }

    fn received(dest: Qpn) -> [u8; Bth::LEN] {
        let mut bytes = [0; Bth::LEN];
        Bth::new(Opcode::new(Service::Rc, Op::SendOnly), dest, Psn::new(5)).emit(&mut bytes);
        bytes
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    fn ask(log: &mut PacketLog, now: Instant) -> Packets {
        parse(&log.answer(now, at(1), QP, Some((peer(), PEER)))).expect("complete")
    }

    #[test]
    fn packets_of_the_queue_pair_that_is_asked_for_are_recorded_and_no_others() {
        let mut log = PacketLog::default();
        log.sent(at(1), &train(PEER, 1));
        assert_eq!(ask(&mut log, at(1)), Packets::default(), "nothing was recorded before");
        log.sent(at(2), &train(PEER, 2));
        log.sent(at(2), &train(Qpn::new(0x35), 1));
        log.sent_single(at(2), Single { path: &Path::default(), dest: PEER, bytes: &[1; 3] });
        for dest in [QP, PEER] {
            log.received(at(3), &RxTrain::single(RxMeta::default(), &received(dest)));
        }
        let seen = ask(&mut log, at(3));
        let ways: Vec<_> = seen.packets.iter().map(|p| (p.direction, p.at_ns, p.len)).collect();
        let (out, second) = (Direction::Sent, 1_000_000_000);
        let expected =
            [(out, second, 12), (out, second, 12), (Direction::Received, 2 * second, 12)];
        assert_eq!((ways.as_slice(), seen.recorded), (expected.as_slice(), 3));
        assert_eq!(seen.packets[1].head[11], 10, "the PSN of the second");
        assert_eq!(seen.packets[2].head, received(QP));
    }

    #[test]
    fn rings_are_bounded_and_end_when_no_process_asks() {
        let mut log = PacketLog::default();
        ask(&mut log, at(1));
        log.sent(at(2), &train(PEER, 10_000));
        let seen = ask(&mut log, at(2));
        assert_eq!((seen.packets.len(), seen.recorded), (DEPTH, 10_000));
        let last = seen.packets.last().expect("some").head[9..12].to_vec();
        assert_eq!(last, (9u32 + 9_999).to_be_bytes()[1..], "the newest are kept");
        for n in 0..10 {
            log.answer(at(2), at(1), Qpn::new(100 + n), None);
        }
        let refused = parse(&log.answer(at(2), at(1), Qpn::new(200), None)).expect("complete");
        assert!(refused.refusal.is_some_and(|why| why.contains("try again")));
        assert_eq!(log.rings.len(), MOST_QPS);
        log.expire(at(9));
        assert!(log.is_empty());
    }

    #[test]
    fn a_request_grants_so_many_packets_and_the_next_one_as_many_again() {
        let mut log = PacketLog::default();
        ask(&mut log, at(1));
        assert!(!log.is_full());
        for _ in 0..GRANT + 7 {
            log.sent(at(1), &train(PEER, 1));
        }
        log.received(at(1), &RxTrain::single(RxMeta::default(), &received(QP)));
        assert!(log.is_full());
        assert_eq!(ask(&mut log, at(2)).recorded, GRANT);
        log.received(at(2), &RxTrain::single(RxMeta::default(), &received(QP)));
        assert_eq!(ask(&mut log, at(2)).recorded, GRANT + 1);
    }

    #[test]
    fn what_is_cut_short_or_wrong_is_refused() {
        let mut log = PacketLog::default();
        ask(&mut log, at(1));
        log.sent(at(2), &train(PEER, 1));
        let whole = log.answer(at(2), at(1), QP, None);
        assert_eq!(parse(whole.strip_suffix("end\n").expect("the last line")), None);
        for (from, to) in [("\tout\t", "\tup\t"), ("\t12\t04", "\t12\t0"), ("\t12\t04", "\tx\t04")]
        {
            assert!(whole.contains(from), "{whole}");
            assert_eq!(parse(&whole.replace(from, to)), None, "{to}");
        }
        assert_eq!(parse("packet\t\u{fe0f}\nend\n"), None);
        let many = "packet\t1\tout\t::1\t::1\t0\t1\t1\t00\n".repeat(1000) + "end\n";
        assert_eq!(parse(&many).expect("complete").packets.len(), DEPTH);
    }
}
