//! What to measure: the options of the command line after checks, and the part of them that the
//! client sends to the server.

use anyhow::{bail, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Longest message of a sweep.
const SWEEP_MAX: usize = 8 << 20;

/// Most queue pairs of a measurement.
const MOST_QPS: u32 = 16_384;

/// The operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Op {
    /// RDMA write.
    Write,
    /// RDMA read.
    Read,
    /// Send and receive.
    Send,
    /// Fetch-and-add or compare-and-swap of eight bytes.
    Atomic,
}

impl Op {
    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Send => "send",
            Self::Atomic => "atomic",
        }
    }
}

/// The quantity to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// Bandwidth and message rate.
    Bw,
    /// Latency.
    Lat,
}

impl Mode {
    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bw => "bw",
            Self::Lat => "lat",
        }
    }
}

/// The service of the queue pairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Service {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

/// Which atomic.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum AtomicKind {
    /// Fetch and add.
    #[default]
    FetchAdd,
    /// Compare and swap.
    CmpSwap,
}

/// The kind of memory that holds the messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Memory {
    /// Memory that the adapter allocates; other processes of the host can map it.
    #[default]
    Shareable,
    /// Memory that programs allocate and register.
    Ordinary,
}

/// How much to measure at each size.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Amount {
    /// So many messages on each queue pair.
    Messages(u64),
    /// So many seconds.
    Seconds(f64),
}

/// Everything both sides must agree on.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) op: Op,
    pub(crate) mode: Mode,
    pub(crate) service: Service,
    pub(crate) atomic: AtomicKind,
    pub(crate) sizes: Vec<usize>,
    pub(crate) amount: Amount,
    pub(crate) tx_depth: u32,
    pub(crate) rx_depth: u32,
    /// One in so many sends is signaled; 0: chosen by size.
    pub(crate) cq_mod: u32,
    /// Sends posted with one call.
    pub(crate) post_list: u32,
    pub(crate) qps: u32,
    /// Threads of each side, which have as many queue pairs each.
    pub(crate) threads: u32,
    pub(crate) mtu: Option<u32>,
    /// Messages up to this size are sent inline.
    pub(crate) inline: u32,
    pub(crate) events: bool,
    pub(crate) bidirectional: bool,
    pub(crate) memory: Memory,
    /// An end that waits for a WRITE only reads its memory and makes no verbs call.
    pub(crate) no_poll: bool,
    /// Acknowledgement timeout of the queue pairs, as an exponent.
    pub(crate) qp_timeout: u8,
    /// The connection manager connects the queue pairs.
    pub(crate) by_cm: bool,
    /// The device of the client speaks iWARP.
    pub(crate) iwarp: bool,
}

/// Whether the user chose sizes, and which.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sizes {
    /// One size; `None` is the default of the operation.
    One(Option<usize>),
    /// Powers of two.
    Sweep,
}

impl Sizes {
    /// The list for an operation.
    pub(crate) fn list(self, op: Op, mode: Mode) -> anyhow::Result<Vec<usize>> {
        Ok(match (self, op) {
            (Self::Sweep, Op::Atomic) => bail!("-a: an atomic always has 8 bytes"),
            (Self::One(Some(n)), Op::Atomic) if n != 8 => {
                bail!("-s {n}: an atomic always has 8 bytes")
            }
            (Self::One(_), Op::Atomic) => vec![8],
            (Self::Sweep, _) => (1..).map(|i| 1 << i).take_while(|&n| n <= SWEEP_MAX).collect(),
            (Self::One(Some(n)), _) => vec![n],
            (Self::One(None), _) if mode == Mode::Lat => vec![2],
            (Self::One(None), _) => vec![65536],
        })
    }
}

impl Spec {
    /// Longest message.
    pub(crate) fn max_size(&self) -> usize {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    /// Whether messages consume receives.
    pub(crate) fn takes_receives(&self) -> bool {
        self.op == Op::Send
    }

    /// Whether the two sides send in turn.
    pub(crate) fn is_ping_pong(&self) -> bool {
        self.mode == Mode::Lat && matches!(self.op, Op::Write | Op::Send)
    }

    /// One in how many sends of `size` bytes is signaled.
    pub(crate) fn signal_every(&self, size: usize) -> u64 {
        let chosen = match self.cq_mod {
            0 if size >= 8192 => 1,
            0 => self.tx_depth / 4,
            n => n.min(self.tx_depth),
        };
        u64::from(chosen.max(1))
    }

    /// Fails for combinations that cannot be measured, with the reason.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let lat = self.mode == Mode::Lat;
        match (self.service, self.op) {
            (Service::Rc, _) | (_, Op::Send) | (Service::Uc, Op::Write) => {}
            (Service::Uc, op) => bail!("-c UC: {} needs a reliable connection", op.name()),
            (Service::Ud, op) => bail!("-c UD: datagrams only send; {} needs RC", op.name()),
        }
        ensure!(!self.sizes.contains(&0), "-s 0: there is nothing to measure");
        ensure!(self.max_size() <= 1 << 30, "-s: at most {} bytes", 1 << 30);
        ensure!(self.tx_depth > 0 && self.rx_depth > 0, "a queue must have room for a message");
        ensure!((1..=MOST_QPS).contains(&self.qps), "-q: 1 to {MOST_QPS} queue pairs");
        ensure!((1..=256).contains(&self.threads), "--threads: 1 to 256");
        ensure!(!(lat && self.threads > 1), "--threads: latency is measured by one thread");
        ensure!(
            self.qps.is_multiple_of(self.threads),
            "-q {}: not as many queue pairs for each of {} threads",
            self.qps,
            self.threads
        );
        ensure!(self.post_list > 0, "--post-list: at least 1");
        ensure!(!(lat && self.bidirectional), "-b is for bandwidth: latency is both ways anyhow");
        ensure!(!(lat && self.qps > 1), "-q: latency is measured on one queue pair");
        ensure!(
            !(lat && self.op == Op::Write && self.events),
            "-e: write latency is measured by polling memory; nothing completes at the target"
        );
        ensure!(
            !self.no_poll || (lat && self.op == Op::Write),
            "--no-poll: only writes are waited for in memory, where latency is measured"
        );
        ensure!(
            self.inline == 0 || matches!(self.op, Op::Write | Op::Send),
            "-I: only writes and sends carry inline data"
        );
        ensure!(self.qp_timeout <= 31, "-u: at most 31");
        ensure!(
            !self.by_cm || self.service == Service::Rc,
            "-R: `perf` connects only reliable connections by the connection manager"
        );
        match self.amount {
            Amount::Messages(n) => ensure!(n > 0, "-n 0: there is nothing to measure"),
            Amount::Seconds(s) => {
                ensure!(s.is_finite() && s > 0.0, "-D {s}: not a duration to measure");
            }
        }
        Ok(())
    }

    /// The device speaks iWARP: there is one service, and only the connection manager connects.
    /// Fails for what it cannot do.
    pub(crate) fn fit_iwarp(&mut self, has_atomics: bool) -> anyhow::Result<()> {
        ensure!(self.service == Service::Rc, "-c: iWARP has reliable connections only");
        ensure!(
            has_atomics || self.op != Op::Atomic,
            "atomic: iWARP has no atomics; set `iwarp_extensions` at both ends (RFC 7306), or \
             `transport` to `roce`"
        );
        ensure!(
            self.threads == 1 || !self.takes_receives(),
            "--threads: over iWARP, one thread measures sends"
        );
        (self.by_cm, self.iwarp) = (true, true);
        Ok(())
    }

    /// Whether the receiver has to tell the sender how many receives it has posted: iWARP does not
    /// try again, a SEND that finds none ends the connection.
    pub(crate) fn needs_credits(&self) -> bool {
        self.iwarp && self.takes_receives()
    }

    /// Removes the sizes that do not fit into one packet, for services whose messages are one
    /// packet.
    pub(crate) fn fit_datagrams(&mut self, mtu: usize) -> anyhow::Result<()> {
        if self.service == Service::Ud {
            let asked = self.max_size();
            self.sizes.retain(|&n| n <= mtu);
            ensure!(
                !self.sizes.is_empty(),
                "-s {asked}: a datagram is one packet of at most {mtu} bytes here"
            );
        }
        Ok(())
    }
}
