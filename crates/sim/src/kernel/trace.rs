//! The trace of a run: its last events in readable form, and a hash of all of them.

use std::collections::VecDeque;
use std::fmt;

use feroce_engine::{Cqe, SendOp, WcStatus};
use feroce_train::Instant;
use feroce_wire::{Aeth, Bth, Op, Reth};

/// How many events are kept.
const KEPT: usize = 80;

/// What became of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Put on the wire.
    Sent,
    /// Lost.
    Lost,
    /// Damaged, so that the link of the receiver dropped it.
    Corrupted,
    /// A second copy was put on the wire.
    Duplicated,
    /// Held back, so that later packets overtake it.
    Delayed,
    /// Passed to an engine.
    Delivered,
    /// Forged: no host sent it.
    Forged,
    /// Sent to, or by, a port that is disconnected.
    Gone,
    /// Arrived at another shard than its own, which passes it on.
    Strayed,
}

/// The first bytes of a packet: its headers.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    bytes: [u8; 48],
    kept: u8,
    len: u32,
}

impl Head {
    /// The head of a packet that starts with its BTH.
    pub fn new(packet: &[u8]) -> Self {
        let mut bytes = [0; 48];
        let kept = packet.len().min(bytes.len());
        bytes[..kept].copy_from_slice(&packet[..kept]);
        Self { bytes, kept: kept as u8, len: packet.len() as u32 }
    }
}

/// Something that happened.
#[derive(Clone, Copy, Debug)]
pub enum Happening {
    /// A packet was sent, lost or delivered.
    Packet {
        /// Sending node.
        from: usize,
        /// Receiving node.
        to: usize,
        /// What became of it.
        fate: Fate,
        /// What it was.
        head: Head,
    },
    /// A send was posted.
    Posted {
        /// Where.
        node: usize,
        /// On which end of a flow.
        end: usize,
        /// Its number there.
        index: usize,
        /// What.
        op: SendOp,
        /// Bytes.
        len: u64,
    },
    /// Receives were posted.
    Receives {
        /// Where.
        node: usize,
        /// How many.
        count: usize,
    },
    /// A completion was polled.
    Completed {
        /// Where.
        node: usize,
        /// What.
        cqe: Cqe,
    },
    /// Something done to an end of a flow.
    Did {
        /// What.
        what: &'static str,
        /// To which end or node.
        whom: usize,
    },
}

/// The trace of one run.
#[derive(Debug)]
pub struct Trace {
    last: VecDeque<(Instant, Happening)>,
    print_all: bool,
    hash: u64,
}

impl Trace {
    /// An empty one. `print_all`: every event goes to standard output at once.
    pub fn new(print_all: bool) -> Self {
        Self { last: VecDeque::with_capacity(KEPT), print_all, hash: 0xcbf2_9ce4_8422_2325 }
    }

    /// Adds an event.
    pub fn add(&mut self, now: Instant, what: Happening) {
        self.mix(now.as_nanos());
        match &what {
            Happening::Packet { from, to, fate, head } => {
                self.mix((*from as u64) << 32 | (*to as u64) << 16 | *fate as u64);
                self.mix(u64::from(head.len));
                for word in head.bytes.chunks_exact(8) {
                    self.mix(word.iter().fold(0, |sum, &b| sum << 8 | u64::from(b)));
                }
            }
            Happening::Posted { end, index, len, .. } => {
                self.mix((*end as u64) << 32 | *index as u64);
                self.mix(*len);
            }
            Happening::Receives { node, count } => self.mix((*node as u64) << 32 | *count as u64),
            Happening::Completed { node, cqe } => {
                self.mix((*node as u64) << 32 | cqe.status as u64);
                self.mix(cqe.wr_id);
            }
            Happening::Did { whom, .. } => self.mix(*whom as u64),
        }
        if self.print_all {
            println!("{}", Line(now, &what));
        }
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back((now, what));
    }

    fn mix(&mut self, value: u64) {
        self.hash = (self.hash ^ value).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }

    /// The hash of everything so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The last events, one a line.
    pub fn tail(&self) -> String {
        self.last.iter().map(|(at, what)| format!("{}\n", Line(*at, what))).collect()
    }
}

struct Line<'a>(Instant, &'a Happening);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = self.0.as_nanos() as f64 / 1000.0;
        write!(f, "{us:>12.3} us  ")?;
        match self.1 {
            Happening::Packet { from, to, fate, head } => {
                let fate = format!("{fate:?}").to_lowercase();
                write!(f, "{from}->{to} {fate:<10} ")?;
                describe(f, head)
            }
            Happening::Posted { node, end, index, op, len } => {
                write!(f, "{node}     end {end} posts #{index} {op:?}, {len} bytes")
            }
            Happening::Receives { node, count } => write!(f, "{node}     posts {count} receives"),
            Happening::Completed { node, cqe } => {
                let side = if cqe.wr_id >> 63 == 1 { "receive" } else { "send" };
                write!(f, "{node}     {side} {:#x} done: ", cqe.wr_id)?;
                match cqe.status {
                    WcStatus::Success => write!(f, "{:?} {} bytes", cqe.opcode, cqe.byte_len)?,
                    status => write!(f, "{status}")?,
                }
                write!(f, ", qp {:#x}", cqe.qpn.get())
            }
            Happening::Did { what, whom } => write!(f, "      {what} {whom}"),
        }
    }
}

/// Describes a packet.
fn describe(f: &mut fmt::Formatter<'_>, head: &Head) -> fmt::Result {
    let bytes = &head.bytes[..usize::from(head.kept)];
    let Ok((bth, rest)) = Bth::parse(bytes) else {
        return write!(f, "{} bytes", head.len);
    };
    let ask = if bth.ack_req { " ask" } else { "" };
    let (qpn, psn) = (bth.dest_qp.get(), bth.psn.get());
    write!(f, "{:?} qp {qpn:#x} psn {psn:#x} {} bytes{ask}", bth.opcode, head.len)?;
    match bth.opcode.decode() {
        Some((_, op)) if op.has_aeth() => match Aeth::parse(rest) {
            Ok((aeth, _)) => write!(f, " {:?} msn {}", aeth.syndrome, aeth.msn.get()),
            Err(_) => Ok(()),
        },
        Some((_, op)) if op.has_reth() && op != Op::Flush => match Reth::parse(rest) {
            Ok((reth, _)) => write!(f, " va {:#x} len {}", reth.va, reth.len),
            Err(_) => Ok(()),
        },
        _ => Ok(()),
    }
}
