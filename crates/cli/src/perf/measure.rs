//! The results, and their presentation.

use hdrhistogram::Histogram;
use serde::Serialize;

use super::spec::{Mode, Op, Service, Spec};

/// Longest time that is recorded; longer times count as this one.
const LONGEST_NS: u64 = 60_000_000_000;

/// Times of single messages, in nanoseconds.
#[derive(Debug)]
pub(crate) struct Sample(Histogram<u64>);

impl Sample {
    /// An empty sample. Times are kept with three significant digits.
    pub(crate) fn new() -> Self {
        // The bounds and three digits are within the limits of the histogram.
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, 3);
        Self(histogram.unwrap_or_else(|_| unreachable!("constant bounds")))
    }

    /// Records one time.
    #[inline]
    pub(crate) fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns.max(1));
    }

    /// Adds the times of another sample.
    pub(crate) fn add(&mut self, other: &Self) {
        // All samples have the same bounds.
        let _ = self.0.add(&other.0);
    }

    /// A quantile in microseconds.
    pub(crate) fn us(&self, quantile: f64) -> f64 {
        round(self.0.value_at_quantile(quantile) as f64 / 1e3, 3)
    }
}

/// The result at one size.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) op: &'static str,
    pub(crate) mode: &'static str,
    pub(crate) service: Service,
    pub(crate) size: usize,
    pub(crate) qps: u32,
    pub(crate) threads: u32,
    pub(crate) mtu: usize,
    pub(crate) iterations: u64,
    pub(crate) elapsed_s: f64,
    pub(crate) gbit_per_s: f64,
    pub(crate) msg_per_s: f64,
    pub(crate) min_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p90_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) max_us: f64,
    /// Processor time of this process.
    pub(crate) cpu_s: f64,
    /// Processor time of the other process, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peer_cpu_s: Option<f64>,
    /// Share of the sent messages that did not arrive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lost: Option<f64>,
    /// Which way the messages took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<&'static str>,
}

/// The figures from which a row is computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    pub(crate) size: usize,
    pub(crate) mtu: usize,
    /// Messages measured, of both sides.
    pub(crate) messages: f64,
    pub(crate) elapsed_s: f64,
    pub(crate) cpu_s: f64,
    pub(crate) peer_cpu_s: Option<f64>,
    pub(crate) lost: Option<f64>,
}

impl Row {
    pub(crate) fn new(spec: &Spec, figures: Figures, sample: &Sample) -> Self {
        let Figures { size, mtu, messages, elapsed_s, cpu_s, peer_cpu_s, lost } = figures;
        let per_s = if elapsed_s > 0.0 { messages / elapsed_s } else { 0.0 };
        Self {
            op: spec.op.name(),
            mode: spec.mode.name(),
            service: spec.service,
            size,
            qps: spec.qps,
            threads: spec.threads,
            mtu,
            iterations: messages as u64,
            elapsed_s: round(elapsed_s, 6),
            gbit_per_s: round(per_s * size as f64 * 8.0 / 1e9, 6),
            msg_per_s: round(per_s, 1),
            min_us: round(sample.0.min() as f64 / 1e3, 3),
            p50_us: sample.us(0.5),
            p90_us: sample.us(0.9),
            p99_us: sample.us(0.99),
            p999_us: sample.us(0.999),
            max_us: round(sample.0.max() as f64 / 1e3, 3),
            cpu_s: round(cpu_s, 6),
            peer_cpu_s: peer_cpu_s.map(|s| round(s, 6)),
            lost: lost.map(|l| round(l, 6)),
            path: None,
        }
    }
}

/// A value with so many digits behind the point.
pub(crate) fn round(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}

/// Prints rows as they come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table {
    pub(crate) json: bool,
    pub(crate) mode: Mode,
}

impl Table {
    /// Which way the messages took, behind the last row.
    pub(crate) fn foot(self, rows: &[Row]) {
        let mut paths: Vec<&str> = rows.iter().filter_map(|row| row.path).collect();
        paths.dedup();
        if self.json || paths.is_empty() {
            return;
        }
        println!("path: {}", paths.join("; then "));
        if paths.iter().any(|path| path.starts_with("shared memory")) {
            println!("      (FEROCE_SHARED=off measures packets over UDP)");
        }
    }

    /// What is measured, and the heads of the columns.
    pub(crate) fn head(self, spec: &Spec, from: &str, to: &str, mtu: usize) {
        if self.json {
            return;
        }
        let service = format!("{:?}", spec.service).to_uppercase();
        let what = match (spec.op, self.mode) {
            (Op::Read | Op::Atomic, Mode::Lat) => "latency, there and back",
            (_, Mode::Lat) => "latency, half a round trip",
            (_, Mode::Bw) if spec.bidirectional => "bandwidth, both ways together",
            (_, Mode::Bw) => "bandwidth",
        };
        let threads = match spec.threads {
            1 => String::new(),
            n => format!(", {n} threads"),
        };
        println!(
            "{} {what}: {service}, {} QP{threads}, MTU {mtu}, {from} -> {to}",
            spec.op.name(),
            spec.qps
        );
        match self.mode {
            Mode::Bw => println!(
                "{:>9} {:>11} {:>10} {:>12} {:>10} {:>10} {:>8}",
                "#bytes", "#iterations", "BW[Gb/s]", "MsgRate[/s]", "p50[us]", "p99[us]", "CPU[s]"
            ),
            Mode::Lat => println!(
                "{:>9} {:>11} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8}",
                "#bytes",
                "#iterations",
                "min[us]",
                "p50[us]",
                "p90[us]",
                "p99[us]",
                "p99.9[us]",
                "max[us]",
                "CPU[s]"
            ),
        }
    }

    /// One result.
    pub(crate) fn row(self, row: &Row) -> anyhow::Result<()> {
        if self.json {
            println!("{}", serde_json::to_string(row)?);
            return Ok(());
        }
        let lost = match row.lost {
            Some(lost) if lost > 0.0 => format!("  ({:.3} % lost)", lost * 100.0),
            _ => String::new(),
        };
        match self.mode {
            Mode::Bw => println!(
                "{:>9} {:>11} {:>10.3} {:>12.0} {:>10.2} {:>10.2} {:>8.3}{lost}",
                row.size,
                row.iterations,
                row.gbit_per_s,
                row.msg_per_s,
                row.p50_us,
                row.p99_us,
                row.cpu_s
            ),
            Mode::Lat => println!(
                "{:>9} {:>11} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>8.3}{lost}",
                row.size,
                row.iterations,
                row.min_us,
                row.p50_us,
                row.p90_us,
                row.p99_us,
                row.p999_us,
                row.max_us,
                row.cpu_s
            ),
        }
        Ok(())
    }
}
