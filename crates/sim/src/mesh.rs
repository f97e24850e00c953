//! A full mesh: a direct path between any two ports, with latency, loss, duplication, reordering
//! and damage, but without limits on bandwidth.
//!
//! Faults are bounded, so that a reliable connection must survive: every request packet is lost at
//! most [`LOST_REQUEST`] times, counting retransmissions, and every answer at most [`LOST_ANSWER`]
//! times. A requester with a retry count of 7 that gives up has a bug. Unreliable services have
//! the same bounds.

use std::collections::BTreeMap;

use feroce_fabric::Agenda;
use feroce_train::{Ecn, Instant, RxMeta};
use feroce_wire::{Bth, Gid, Op, Opcode, Psn, Qpn, Service};

use crate::dice::Dice;
use crate::fabric::{Batch, Delivery, Fabric};
use crate::kernel::{Fate, Happening, Head, Trace};

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
    /// Later packets overtake it.
    pub reorder: f64,
    /// It is damaged and so dropped by the receiving link.
    pub corrupt: f64,
    /// It is marked: congestion experienced.
    pub ecn: f64,
    /// How long a packet may be held back that later ones overtake.
    pub max_delay_ns: u64,
}

impl Faults {
    /// Whether packets may be lost, duplicated, damaged or reordered.
    pub fn any(&self) -> bool {
        self.loss > 0.0 || self.duplicate > 0.0 || self.reorder > 0.0 || self.corrupt > 0.0
    }
}

/// What the mesh carried.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Packets that hosts sent.
    pub packets: u64,
    /// Lost.
    pub lost: u64,
    /// Duplicated.
    pub duplicated: u64,
    /// Overtaken by later packets.
    pub reordered: u64,
    /// Damaged.
    pub corrupted: u64,
    /// Forged.
    pub forged: u64,
}

impl Stats {
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

/// See the module documentation.
#[derive(Debug)]
pub struct Mesh {
    dice: Dice,
    gids: Vec<Gid>,
    faults: Faults,
    /// No faults from this time on.
    faults_until: Instant,
    latency_ns: u64,
    jitter_ns: u64,
    /// When the last packet in order from one port arrives at another.
    in_order_until: BTreeMap<(usize, usize), Instant>,
    /// How often a packet was lost, by port, queue pair, PSN and opcode.
    losses: BTreeMap<(usize, u32, u32, u8), u8>,
    /// Ports that neither send nor receive any more.
    gone: Vec<bool>,
    /// What is on its way.
    in_flight: Agenda<Instant, Delivery>,
    /// Flip a payload byte of the first packet that has one. No checksum detects it.
    pub(crate) sabotage: bool,
    /// What it carried.
    pub stats: Stats,
}

impl Mesh {
    /// A mesh between the ports with these addresses.
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
            in_flight: Agenda::default(),
            sabotage: false,
            stats: Stats::default(),
        }
    }

    /// Disconnects a port for the rest of the run.
    pub fn remove(&mut self, port: usize) {
        self.gone[port] = true;
    }

    /// Decides what becomes of a packet.
    fn fate(&mut self, calm: bool, to: usize, bth: &Bth) -> Fate {
        if calm || !self.faults.any() {
            return Fate::Sent;
        }
        let lost = self.dice.chance(self.faults.loss);
        let corrupted = self.dice.chance(self.faults.corrupt);
        if lost || corrupted {
            let opcode = bth.opcode;
            let is_request = opcode.decode().is_none_or(|(_, op)| op.is_request());
            let limit = if is_request { LOST_REQUEST } else { LOST_ANSWER };
            let key = (to, bth.dest_qp.get(), bth.psn.get(), opcode.0);
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

    /// Puts a packet on its way that later ones may overtake.
    fn hold_back(
        &mut self,
        now: Instant,
        (from, to): (usize, usize),
        meta: RxMeta,
        bytes: Vec<u8>,
    ) {
        let extra = self.dice.range(1..=self.faults.max_delay_ns.max(1));
        let at = now.plus_nanos(self.latency_ns + extra);
        let batch = Batch { meta, packets: vec![bytes] };
        self.in_flight.push(at, Delivery { from, to, batch });
    }

    /// The sabotage that shows that the oracles can fail: damage that no checksum catches.
    fn spoil(&mut self, packets: &mut [Vec<u8>]) {
        if !self.sabotage {
            return;
        }
        for packet in packets {
            let Ok((bth, rest)) = Bth::parse(packet) else { continue };
            let Some((_, op)) = bth.opcode.decode() else { continue };
            // Not of a write: a later write may cover the damage before an oracle looks.
            let carries = op.is_send() || op.is_read_response();
            let headers = bth.opcode.header_len().unwrap_or(0);
            if carries && packet.len() - usize::from(bth.pad) > headers && !rest.is_empty() {
                packet[headers] ^= 0x10;
                self.sabotage = false;
                return;
            }
        }
    }

    /// Packets that no host sent: garbage, and requests to existing queue pairs from addresses
    /// that are not their peers'.
    pub fn forge(&mut self, to: usize, qpns: &[Qpn]) -> Batch {
        self.stats.forged += 1;
        let mut bytes = vec![0; self.dice.size(0..=80)];
        self.dice.fill(&mut bytes);
        let dst = self.gids[to];
        let mut src = Gid::from_ipv4([192, 0, 2, self.dice.small(1..=254)]);
        if self.dice.chance(0.7) && bytes.len() >= Bth::LEN && !qpns.is_empty() {
            // A well-formed header, to an existing queue pair, from an address that is not its
            // peer's.
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
            // From a peer, but to a queue pair that does not exist.
            src = self.gids[self.dice.size(0..=self.gids.len() - 1)];
            bytes[5..8].copy_from_slice(&[0, 0, 0]);
        }
        let ecn = self.dice.pick(&[Ecn::Capable, Ecn::Congested]);
        let meta =
            RxMeta { src: src.into(), dst: dst.into(), ecn, hop_limit: 64, ..RxMeta::default() };
        Batch { meta, packets: vec![bytes] }
    }
}

impl Fabric for Mesh {
    fn inject(&mut self, now: Instant, from: usize, batch: Batch, trace: &mut Trace) {
        let Some(to) = self.gids.iter().position(|&gid| gid == batch.meta.dst.gid) else {
            return;
        };
        let calm = now >= self.faults_until;
        let marked = !calm && self.dice.chance(self.faults.ecn);
        let ecn = if marked { Ecn::Congested } else { Ecn::Capable };
        let meta = RxMeta { ecn, ..batch.meta };
        let mut together = Vec::with_capacity(batch.packets.len());
        for bytes in batch.packets {
            self.stats.packets += 1;
            let (bth, _) = Bth::parse(&bytes).expect("an engine sends packets with a BTH");
            let fate = self.fate(calm, to, &bth);
            let fate = if self.gone[from] || self.gone[to] { Fate::Gone } else { fate };
            trace.add(now, Happening::Packet { from, to, fate, head: Head::new(&bytes) });
            match fate {
                Fate::Lost => self.stats.lost += 1,
                Fate::Corrupted => self.stats.corrupted += 1,
                Fate::Gone => {}
                Fate::Delayed => {
                    self.stats.reordered += 1;
                    self.hold_back(now, (from, to), meta, bytes);
                }
                Fate::Duplicated => {
                    self.stats.duplicated += 1;
                    self.hold_back(now, (from, to), meta, bytes.clone());
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
        let batch = Batch { meta, packets: together };
        self.in_flight.push(at, Delivery { from, to, batch });
    }

    fn poll(&mut self, now: Instant) -> (Option<Delivery>, Option<Instant>) {
        let mut delivery = None;
        if self.in_flight.next_at().is_some_and(|at| at <= now) {
            let next = self.in_flight.pop().map(|(_, next)| next);
            delivery = next.filter(|next| !self.gone[next.to]);
        }
        (delivery, self.in_flight.next_at())
    }
}
