//! The parameters of a run that a seed decides.

use feroce_engine::{
    Config, CongestionConfig, ConnectXConfig, DcqcnConfig, SwiftConfig, TimelyConfig, WindowConfig,
};
use feroce_train::{Instant, LinkCaps};
use feroce_wire::Pmtu;

use crate::dice::Dice;
use crate::kernel::{Division, RxStyle, Style};
use crate::mesh::Faults;
use crate::swarm::node::Habits;

/// The most shards of a node.
pub(crate) const MOST_SHARDS: usize = 4;

/// The parameters of a run.
#[derive(Clone, Debug)]
pub(crate) struct Knobs {
    /// Engines.
    pub(crate) nodes: usize,
    /// How many shards each has.
    pub(crate) shards: Vec<usize>,
    /// Pairs of queue pairs.
    pub(crate) flows: usize,
    /// Work requests on each flow, about.
    pub(crate) steps: usize,
    /// Path MTU.
    pub(crate) pmtu: Pmtu,
    /// Longest message.
    pub(crate) longest: usize,
    /// Memory of a node.
    pub(crate) memory: usize,
    /// What the fabric does to packets.
    pub(crate) faults: Faults,
    /// When the faults stop.
    pub(crate) faults_until: Instant,
    /// Least latency, and the jitter that does not reorder packets.
    pub(crate) latency: (u64, u64),
    /// Addresses are IPv6 addresses.
    pub(crate) ipv6: bool,
    /// Forged packets.
    pub(crate) forged: usize,
    /// Receives are always posted in time and there are no mishaps, so that over a fabric without
    /// faults no packet is sent twice.
    pub(crate) calm: bool,
    /// Probability that a flow has a mishap.
    pub(crate) victims: f64,
    /// Probability that a queue pair takes its receives from a shared queue.
    pub(crate) shared_receives: f64,
}

impl Knobs {
    /// Draws them.
    pub(crate) fn new(dice: &mut Dice) -> Self {
        let pmtu = dice.pick(&Pmtu::ALL);
        let (longest, memory) = match dice.range(0..=99) {
            0..=59 => (4 * pmtu.bytes(), 384 << 10),
            60..=97 => (32 << 10, 1 << 20),
            _ => (512 << 10, 6 << 20),
        };
        let faults = faults(dice);
        let calm = dice.chance(0.25);
        Self {
            nodes: dice.size(2..=4),
            shards: Vec::new(),
            flows: dice.size(1..=6),
            steps: dice.pick(&[4, 16, 40, 80]),
            pmtu,
            longest,
            memory,
            faults,
            faults_until: Instant::from_nanos(dice.pick(&[1_000_000, 20_000_000, 10_000_000_000])),
            latency: (dice.range(500..=20_000), dice.pick(&[0, 500, 20_000])),
            ipv6: dice.chance(0.3),
            forged: if !calm && dice.chance(0.2) { dice.size(1..=40) } else { 0 },
            calm,
            victims: if !calm && dice.chance(0.35) { 0.4 } else { 0.0 },
            shared_receives: dice.pick(&[0.0, 0.0, 0.3, 0.8]),
        }
    }

    /// Draws how many shards each node has: in half of all runs, one.
    pub(crate) fn draw_shards(&mut self, dice: &mut Dice) {
        let is_plain = dice.chance(0.5);
        let mut count = || if is_plain { 1 } else { dice.size(1..=MOST_SHARDS) };
        self.shards = (0..self.nodes).map(|_| count()).collect();
    }

    /// How the kernel of a node divides packets among its shards. Where nothing may go wrong,
    /// packets of a queue pair stay in order.
    pub(crate) fn division(&self, keeps_order: bool, dice: &mut Dice) -> Division {
        let sometimes = Division::Sometimes(dice.pick(&[0.02, 0.2]));
        let any = [Division::ByQueuePair, Division::BySender, sometimes, sometimes];
        dice.pick(if keeps_order || self.is_clean() { &any[..2] } else { &any[..] })
    }

    /// Restricts the run to what two real adapters can do in little time and memory.
    pub(crate) fn restrict(&mut self) {
        (self.nodes, self.calm, self.forged) = (2, true, 0);
        (self.flows, self.steps) = (self.flows.min(4), self.steps.min(16));
        (self.longest, self.memory) = (self.longest.min(8 << 10), 192 << 10);
    }

    /// Whether nothing goes wrong in this run.
    pub(crate) fn is_clean(&self) -> bool {
        self.calm && !self.faults.any() && self.faults.ecn == 0.0
    }

    /// How one engine is made.
    pub(crate) fn config(&self, dice: &mut Dice) -> Config {
        let initial = dice.pick(&[1 << 10, 8 << 10, 64 << 10, 256 << 10]);
        let min = dice.pick(&[1 << 10, 4 << 10, 16 << 10]);
        let window = WindowConfig { initial, min, max: dice.pick(&[64 << 10, 8 << 20]) };
        let (line_rate_bps, min_rate_bps) = (10_000_000_000, 500_000_000);
        let paper = DcqcnConfig { line_rate_bps, min_rate_bps, ..DcqcnConfig::default() };
        let connectx = ConnectXConfig { line_rate_bps, min_rate_bps, ..ConnectXConfig::default() };
        let timely = TimelyConfig { line_rate_bps, min_rate_bps, ..TimelyConfig::default() };
        // A round trip over a hostile wire takes long: half a packet in it is slow enough.
        let swift = SwiftConfig { line_rate_bps, min_cwnd: 0.5, ..SwiftConfig::default() };
        let congestion = match self.faults.ecn > 0.0 {
            true => dice.pick(&[
                CongestionConfig::None,
                CongestionConfig::Dcqcn(paper),
                CongestionConfig::ConnectX(connectx),
                CongestionConfig::Timely(timely),
                CongestionConfig::Swift(swift),
            ]),
            false => CongestionConfig::None,
        };
        let seed: u64 = dice.any();
        Config {
            seed,
            // Not drawn, so that every seed draws what it drew before there was a choice.
            selective_repeat: !seed.is_multiple_of(3),
            window,
            congestion,
            advertise_credits: dice.chance(0.6),
            read_chunk: dice.pick(&[256, 4 << 10, 256 << 10]),
            tail_probe: dice.chance(0.6),
            min_probe_ns: if self.is_clean() {
                2_000_000
            } else {
                dice.pick(&[100_000, 500_000, 2_000_000])
            },
            cnp_interval_ns: dice.pick(&[1_000, 50_000]),
            ..Config::default()
        }
    }

    /// How one engine is driven, and how its application uses it.
    pub(crate) fn style(dice: &mut Dice) -> (Style, Habits) {
        let max_packets = dice.pick(&[1, 2, 7, 16, 64]);
        let caps = LinkCaps { max_packets, max_bytes: dice.pick(&[9_000, 65_000]) };
        let rx = dice.pick(&[RxStyle::EachPacket, RxStyle::Packets, RxStyle::Train]);
        let one_train = dice.chance(0.3);
        let habits = Habits { sleeps: dice.chance(0.3), two_cqs: dice.chance(0.5) };
        let (acks_wait, fast_path) = (dice.chance(0.3), dice.chance(0.5));
        (Style { caps, rx, one_train, acks_wait, fast_path }, habits)
    }
}

/// Draws the faults: often none, often one kind, sometimes all.
fn faults(dice: &mut Dice) -> Faults {
    let max_delay_ns = dice.pick(&[5_000, 50_000, 200_000]);
    let mut rate =
        |p: f64| if dice.chance(p) { dice.pick(&[0.005, 0.02, 0.08, 0.25]) } else { 0.0 };
    let (quiet, loss, duplicate, reorder, corrupt, ecn) =
        (rate(0.8), rate(0.7), rate(0.4), rate(0.4), rate(0.25), rate(0.2));
    if quiet == 0.0 {
        return Faults::default();
    }
    Faults { loss, duplicate, reorder, corrupt, ecn, max_delay_ns }
}
