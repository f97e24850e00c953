//! Parameters of congestion control algorithms.

/// Parameters of DCQCN as ConnectX adapters run it. The defaults are for 100 Gb/s.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ConnectXConfig {
    /// Rate at the start and at most, in bits per second.
    pub line_rate_bps: u64,
    /// Rate at least.
    pub min_rate_bps: u64,
    /// Additive increase step.
    pub rate_ai_bps: u64,
    /// Hyper increase step.
    pub rate_hai_bps: u64,
    /// Gain of the congestion estimate.
    pub g: f64,
    /// The congestion estimate changes once in this time.
    pub alpha_timer_ns: u64,
    /// The rate is cut at most once in this time.
    pub decrease_timer_ns: u64,
    /// Time between two increases of the rate.
    pub increase_timer_ns: u64,
    /// Increases that only recover the rate before the cut.
    pub fast_recovery: u32,
    /// A cut right after another one lowers the rate to recover to as well.
    pub clamp_target: bool,
}

impl Default for ConnectXConfig {
    fn default() -> Self {
        Self {
            line_rate_bps: 100_000_000_000,
            min_rate_bps: 100_000_000,
            rate_ai_bps: 20_000_000,
            rate_hai_bps: 200_000_000,
            g: 1.0 / 256.0,
            alpha_timer_ns: 1000,
            decrease_timer_ns: 4000,
            increase_timer_ns: 300_000,
            fast_recovery: 1,
            clamp_target: false,
        }
    }
}

/// Parameters of DCQCN.
///
/// ```
/// # use feroce_engine::{Config, CongestionConfig, DcqcnConfig};
/// let slow = DcqcnConfig { line_rate_bps: 10_000_000_000, ..DcqcnConfig::default() };
/// let config = Config { congestion: CongestionConfig::Dcqcn(slow), ..Config::default() };
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DcqcnConfig {
    /// Rate at the start and at most, in bits per second.
    pub line_rate_bps: u64,
    /// Rate at least.
    pub min_rate_bps: u64,
    /// Additive increase step.
    pub rate_ai_bps: u64,
    /// Hyper increase step.
    pub rate_hai_bps: u64,
    /// Gain of the congestion estimate.
    pub g: f64,
    /// Without a notification for this long, the congestion estimate decays.
    pub alpha_timer_ns: u64,
    /// Rate increase by time.
    pub increase_timer_ns: u64,
    /// Rate increase by bytes.
    pub increase_bytes: u64,
    /// Rounds of fast recovery.
    pub fast_recovery: u32,
}

impl Default for DcqcnConfig {
    fn default() -> Self {
        Self {
            line_rate_bps: 100_000_000_000,
            min_rate_bps: 10_000_000,
            rate_ai_bps: 40_000_000,
            rate_hai_bps: 400_000_000,
            g: 1.0 / 256.0,
            alpha_timer_ns: 55_000,
            increase_timer_ns: 300_000,
            increase_bytes: 10 << 20,
            fast_recovery: 5,
        }
    }
}

/// Parameters of TIMELY. The defaults are those of the paper, for 100 Gb/s; thresholds and minimum
/// belong to a network whose round trip takes 20 us.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TimelyConfig {
    /// Rate at the start and at most, in bits per second.
    pub line_rate_bps: u64,
    /// Rate at least.
    pub min_rate_bps: u64,
    /// Additive increase step.
    pub rate_ai_bps: u64,
    /// Weight of a new difference of round trips in their average.
    pub alpha: f64,
    /// How strongly the rate is cut.
    pub beta: f64,
    /// Round trips below this always let the rate grow.
    pub t_low_ns: u64,
    /// Round trips above this always cut the rate.
    pub t_high_ns: u64,
    /// The shortest round trip: the unit of the gradient.
    pub min_rtt_ns: u64,
    /// After so many round trips that do not lengthen, the rate grows by five steps at a time.
    pub hyper_after: u32,
    /// A round trip is measured for every so many bytes.
    pub segment_bytes: u64,
}

impl Default for TimelyConfig {
    fn default() -> Self {
        Self {
            line_rate_bps: 100_000_000_000,
            min_rate_bps: 100_000_000,
            rate_ai_bps: 10_000_000,
            alpha: 0.875,
            beta: 0.8,
            t_low_ns: 50_000,
            t_high_ns: 500_000,
            min_rtt_ns: 20_000,
            hyper_after: 5,
            segment_bytes: 16 << 10,
        }
    }
}

impl TimelyConfig {
    /// For a line rate and the round trip of an empty network: steps and minimum in proportion to
    /// the rate, and thresholds of 2.5 and 25 round trips, as in the paper.
    pub fn for_path(line_rate_bps: u64, base_rtt_ns: u64) -> Self {
        Self {
            line_rate_bps,
            min_rate_bps: line_rate_bps / 100,
            rate_ai_bps: line_rate_bps / 500,
            t_low_ns: base_rtt_ns * 5 / 2,
            t_high_ns: base_rtt_ns * 25,
            min_rtt_ns: base_rtt_ns.max(1),
            ..Self::default()
        }
    }
}

/// Parameters of Swift. The defaults are for 100 Gb/s and packets of 4 KiB.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SwiftConfig {
    /// Rate at most, in bits per second.
    pub line_rate_bps: u64,
    /// Bytes of a full packet on the link: the unit of the window.
    pub packet_bytes: u64,
    /// Round trip that is aimed at by a large window.
    pub base_target_ns: u64,
    /// Additive increase per round trip, in packets.
    pub ai: f64,
    /// How strongly the window is cut.
    pub beta: f64,
    /// The greatest part of the window that one cut takes.
    pub max_mdf: f64,
    /// What flow scaling adds to the target at most.
    pub fs_range_ns: u64,
    /// Windows, in packets, at and below which flow scaling adds all of its range.
    pub fs_min_cwnd: f64,
    /// Windows at and above which it adds nothing.
    pub fs_max_cwnd: f64,
    /// The window at the start and at most, in packets.
    pub max_cwnd: f64,
    /// The window at least; below one packet, packets are spaced by time.
    pub min_cwnd: f64,
    /// So many timeouts in a row take the window to its minimum.
    pub reset_after: u32,
}

impl Default for SwiftConfig {
    fn default() -> Self {
        Self {
            line_rate_bps: 100_000_000_000,
            packet_bytes: 4178,
            base_target_ns: 25_000,
            ai: 1.0,
            beta: 0.8,
            max_mdf: 0.5,
            fs_range_ns: 50_000,
            fs_min_cwnd: 0.1,
            fs_max_cwnd: 100.0,
            max_cwnd: 256.0,
            min_cwnd: 0.001,
            reset_after: 5,
        }
    }
}

impl SwiftConfig {
    /// For a line rate, the round trip of an empty network and the size of a full packet: the
    /// target is 1.5 round trips, flow scaling adds up to twice as much, and the window starts with
    /// twice what the path holds.
    pub fn for_path(line_rate_bps: u64, base_rtt_ns: u64, packet_bytes: u64) -> Self {
        let bdp = line_rate_bps as f64 * base_rtt_ns as f64 / 8e9;
        let max_cwnd = (2.0 * bdp / packet_bytes.max(1) as f64).max(2.0);
        Self {
            line_rate_bps,
            packet_bytes,
            base_target_ns: base_rtt_ns * 3 / 2,
            fs_range_ns: base_rtt_ns * 3,
            max_cwnd,
            fs_max_cwnd: max_cwnd,
            ..Self::default()
        }
    }
}

/// Parameters of HPCC. The defaults are for 100 Gb/s.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HpccConfig {
    /// Rate at the start and at most, in bits per second.
    pub line_rate_bps: u64,
    /// Rate at least.
    pub min_rate_bps: u64,
    /// Additive increase step, as a rate: the step of the window divided by the round trip.
    pub rate_ai_bps: u64,
    /// The round trip of an empty network.
    pub base_rtt_ns: u64,
    /// Bytes that may be on their way at line rate: what the path holds, or a little more.
    pub line_window: u64,
    /// Utilization of links that is aimed at.
    pub eta: f64,
    /// Additive increases in a row before the utilization decides again.
    pub max_stage: u32,
}

impl Default for HpccConfig {
    fn default() -> Self {
        Self::for_path(100_000_000_000, 13_000)
    }
}

impl HpccConfig {
    /// For a line rate and the round trip of an empty network.
    pub fn for_path(line_rate_bps: u64, base_rtt_ns: u64) -> Self {
        let bits = u128::from(line_rate_bps) * u128::from(base_rtt_ns) / 1_000_000_000;
        Self {
            line_rate_bps,
            min_rate_bps: line_rate_bps / 1000,
            rate_ai_bps: line_rate_bps / 2500,
            base_rtt_ns: base_rtt_ns.max(1),
            line_window: u64::try_from(bits / 8).unwrap_or(u64::MAX),
            eta: 0.95,
            max_stage: 0,
        }
    }
}
