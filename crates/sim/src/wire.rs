//! The wire: carries packets between nodes, late, twice, damaged or not at all.
//!
//! How bad it may be is bounded, so that a reliable connection must survive: every request packet
//! is lost at most [`LOST_REQUEST`] times, counting retransmissions, and every answer at most
//! [`LOST_ANSWER`] times. With a retry count of 7 no requester then has an excuse to give up, and
//! one that does has a bug. Unreliable services are bounded the same way, which costs nothing.

use std::collections::BTreeMap;

use feroce_testkit::{Packet, packets};
use feroce_train::{Ecn, Instant, RxMeta, Train};
use feroce_wire::{Bth, Gid, Op, Opcode, Psn, Qpn, Service};

use crate::dice::Dice;
use crate::trace::{Fate, Happening, Head, Trace};

/// How often the same request packet may be lost.
pub const LOST_REQUEST: u8 = 2;
/// How often the same answer may be lost.
pub const LOST_ANSWER: u8 = 1;

/// Probabilities of what may happen to a packet.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Faults {
    /// It is lost.
    pub loss: f64,
    /// It arrives twice.
    pub duplicate: f64,
    /// Others overtake it.
    pub reorder: f64,
    /// It is damaged and so dropped by the receiving link.
    pub corrupt: f64,
    /// It is marked: congestion experienced.
    pub ecn: f64,
    /// How late a packet may be that others overtake.
    pub max_delay_ns: u64,
}

impl Faults {
    /// Whether packets may get lost, doubled, damaged or out of order.
    pub fn any(&self) -> bool {
        self.loss > 0.0 || self.duplicate > 0.0 || self.reorder > 0.0 || self.corrupt > 0.0
    }
}

/// Packets that arrive together.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Sending node.
    pub from: usize,
    /// What the receiving link knows of them.
    pub meta: RxMeta,
    /// From the BTH to the end of the padding.
    pub packets: Vec<Vec<u8>>,
}

/// A batch on its way.
#[derive(Debug)]
pub struct Delivery {
    /// When it arrives.
    pub at: Instant,
    /// Where.
    pub to: usize,
    /// What.
    pub batch: Batch,
}

/// What went over the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WireStats {
    /// Packets given to it.
    pub packets: u64,
    /// Lost.
    pub lost: u64,
    /// Doubled.
    pub duplicated: u64,
    /// Overtaken by others.
    pub reordered: u64,
    /// Damaged.
    pub corrupted: u64,
    /// Made up.
    pub forged: u64,
}

impl WireStats {
    /// Adds what another run saw.
    pub fn add(&mut self, other: &Self) {
        self.packets += other.packets;
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.corrupted += other.corrupted;
        self.forged += other.forged;
    }
}

/// The wire between all nodes.
#[derive(Debug)]
pub struct Wire {
    dice: Dice,
    gids: Vec<Gid>,
    faults: Faults,
    /// No faults from then on.
    faults_until: Instant,
    latency_ns: u64,
    jitter_ns: u64,
    /// When the last packet in order from one node arrives at another.
    in_order_until: BTreeMap<(usize, usize), Instant>,
    /// How often which packet was lost.
    losses: BTreeMap<(usize, Qpn2, u32, u8), u8>,
    /// Nodes that are gone.
    gone: Vec<bool>,
    /// Flip a payload byte of the first packet that has one, unnoticed by any checksum.
    pub(crate) sabotage: bool,
    /// What went over it.
    pub stats: WireStats,
}

/// A queue pair number that can be ordered.
type Qpn2 = u32;

impl Wire {
    /// A wire between the ports with these addresses.
    pub fn new(
        dice: Dice,
        gids: Vec<Gid>,
        faults: Faults,
        faults_until: Instant,
        latency: (u64, u64),
    ) -> Self {
        let gone = vec![false; gids.len()];
        let (latency_ns, jitter_ns) = latency;
        Self {
            dice,
            gids,
            faults,
            faults_until,
            latency_ns,
            jitter_ns,
            in_order_until: BTreeMap::new(),
            losses: BTreeMap::new(),
            gone,
            sabotage: false,
            stats: WireStats::default(),
        }
    }

    /// A node falls silent for ever.
    pub fn remove(&mut self, node: usize) {
        self.gone[node] = true;
    }

    /// Carries a train: says what arrives where and when.
    pub fn carry(
        &mut self,
        now: Instant,
        from: usize,
        train: &Train,
        trace: &mut Trace,
        out: &mut Vec<Delivery>,
    ) {
        let Some(to) = self.gids.iter().position(|&gid| gid == train.path.dst) else {
            return;
        };
        let calm = now >= self.faults_until;
        let marked = !calm && self.dice.chance(self.faults.ecn);
        let ecn = if marked { Ecn::Congested } else { Ecn::Capable };
        let meta = RxMeta { ecn, ..RxMeta::from(&train.path) };
        let mut together = Vec::with_capacity(train.count as usize);
        for (i, Packet { bytes, .. }) in (0..).zip(packets(train)) {
            self.stats.packets += 1;
            let bth = train.bth(i);
            let fate = self.fate(calm, to, bth.dest_qp, bth.psn, bth.opcode);
            let fate = if self.gone[from] || self.gone[to] { Fate::Gone } else { fate };
            trace.add(now, Happening::Packet { from, to, fate, head: Head::new(&bytes) });
            match fate {
                Fate::Lost => self.stats.lost += 1,
                Fate::Corrupted => self.stats.corrupted += 1,
                Fate::Gone => {}
                Fate::Delayed => {
                    self.stats.reordered += 1;
                    out.push(self.late(now, from, to, meta, bytes));
                }
                Fate::Duplicated => {
                    self.stats.duplicated += 1;
                    out.push(self.late(now, from, to, meta, bytes.clone()));
                    together.push(bytes);
                }
                _ => together.push(bytes),
            }
        }
        if together.is_empty() {
            return;
        }
        self.spoil(&mut together);
        let at = self.in_order(now, from, to);
        out.push(Delivery { at, to, batch: Batch { from, meta, packets: together } });
    }

    /// Decides what becomes of a packet.
    fn fate(&mut self, calm: bool, to: usize, qpn: Qpn, psn: Psn, opcode: Opcode) -> Fate {
        if calm || !self.faults.any() {
            return Fate::Sent;
        }
        let lost = self.dice.chance(self.faults.loss);
        let corrupted = self.dice.chance(self.faults.corrupt);
        if lost || corrupted {
            let is_request = opcode.decode().is_none_or(|(_, op)| op.is_request());
            let limit = if is_request { LOST_REQUEST } else { LOST_ANSWER };
            let key = (to, qpn.get(), psn.get(), opcode.0);
            let losses = self.losses.entry(key).or_insert(0);
            if *losses < limit {
                *losses += 1;
                return if lost { Fate::Lost } else { Fate::Corrupted };
            }
        }
        if self.dice.chance(self.faults.reorder) {
            return Fate::Delayed;
        }
        if self.dice.chance(self.faults.duplicate) { Fate::Duplicated } else { Fate::Sent }
    }

    /// When a packet arrives that overtakes none sent before it.
    fn in_order(&mut self, now: Instant, from: usize, to: usize) -> Instant {
        let at = now.plus_nanos(self.latency_ns + self.dice.range(0..=self.jitter_ns));
        let last = self.in_order_until.entry((from, to)).or_insert(at);
        *last = at.max(*last);
        *last
    }

    fn late(
        &mut self,
        now: Instant,
        from: usize,
        to: usize,
        meta: RxMeta,
        bytes: Vec<u8>,
    ) -> Delivery {
        let extra = self.dice.range(1..=self.faults.max_delay_ns.max(1));
        let at = now.plus_nanos(self.latency_ns + extra);
        Delivery { at, to, batch: Batch { from, meta, packets: vec![bytes] } }
    }

    /// The sabotage that proves the oracles awake: damage that no checksum catches.
    fn spoil(&mut self, packets: &mut [Vec<u8>]) {
        if !self.sabotage {
            return;
        }
        for packet in packets {
            let Ok((bth, rest)) = Bth::parse(packet) else { continue };
            let Some((_, op)) = bth.opcode.decode() else { continue };
            // Not of a write, which a later one may cover before anyone looks.
            let carries = op.is_send() || op.is_read_response();
            let headers = bth.opcode.header_len().unwrap_or(0);
            if carries && packet.len() - usize::from(bth.pad) > headers && !rest.is_empty() {
                packet[headers] ^= 0x10;
                self.sabotage = false;
                return;
            }
        }
    }

    /// Packets that nobody sent: garbage, and requests to existing queue pairs from strangers.
    pub fn forge(&mut self, to: usize, qpns: &[Qpn]) -> Batch {
        self.stats.forged += 1;
        let mut bytes = vec![0; self.dice.size(0..=80)];
        self.dice.fill(&mut bytes);
        let dst = self.gids[to];
        let mut src = Gid::from_ipv4([192, 0, 2, self.dice.small(1..=254)]);
        if self.dice.chance(0.7) && bytes.len() >= Bth::LEN && !qpns.is_empty() {
            // A well-formed header, to a queue pair that is there, from one who is not its peer.
            let service = self.dice.pick(&[0u8, 1, 3, 5]) << 5;
            let mut opcode = Opcode(service | self.dice.small(0..=0x1f));
            if self.dice.chance(0.1) {
                opcode = Opcode::new(Service::Cnp, Op::Cnp);
            }
            let psn = Psn::new(self.dice.any() as u32);
            let qpn = self.dice.pick(qpns);
            let bth = Bth { ack_req: true, ..Bth::new(opcode, qpn, psn) };
            if let Some(head) = bytes.first_chunk_mut() {
                bth.emit(head);
            }
            bytes.truncate(bytes.len() & !3);
        } else if bytes.len() >= Bth::LEN {
            // From a peer, but to a queue pair that is not there.
            src = self.gids[self.dice.size(0..=self.gids.len() - 1)];
            bytes[5..8].copy_from_slice(&[0, 0, 0]);
        }
        let ecn = self.dice.pick(&[Ecn::Capable, Ecn::Congested]);
        let meta = RxMeta { src, dst, ecn, hop_limit: 64, ..RxMeta::default() };
        Batch { from: to, meta, packets: vec![bytes] }
    }

    /// Whether the wire knows that `node` is gone.
    pub fn is_gone(&self, node: usize) -> bool {
        self.gone[node]
    }
}
