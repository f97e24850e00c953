//! The results, and their presentation.

use std::net::SocketAddr;
use std::path::Path;

use feroce_rpc::patterns::Pattern;
use serde::Serialize;

use super::task::Task;
use crate::perf::{Sample, round};
use crate::plot::{self, Axes, Line};

/// The result of one kind of call over one pattern.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    #[serde(serialize_with = "by_name")]
    pattern: Pattern,
    call: &'static str,
    size: usize,
    calls: u64,
    elapsed_s: f64,
    calls_per_s: f64,
    min_us: f64,
    p50_us: f64,
    p90_us: f64,
    p99_us: f64,
    p999_us: f64,
    max_us: f64,
    /// Processor time of the caller and of the server, for each call.
    cpu_us: f64,
    peer_cpu_us: f64,
}

fn by_name<S: serde::Serializer>(pattern: &Pattern, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(pattern.name())
}

impl Row {
    pub(super) fn new(
        pattern: Pattern,
        task: Task,
        calls: u64,
        elapsed_s: f64,
        (cpu_s, peer_cpu_s): (f64, f64),
        sample: &Sample,
    ) -> Self {
        let each = |s: f64| round(s * 1e6 / calls.max(1) as f64, 3);
        Self {
            pattern,
            call: task.name(),
            size: task.size(),
            calls,
            elapsed_s: round(elapsed_s, 3),
            calls_per_s: round(if elapsed_s > 0.0 { calls as f64 / elapsed_s } else { 0.0 }, 3),
            min_us: sample.us(0.0),
            p50_us: sample.us(0.5),
            p90_us: sample.us(0.9),
            p99_us: sample.us(0.99),
            p999_us: sample.us(0.999),
            max_us: sample.us(1.0),
            cpu_us: each(cpu_s),
            peer_cpu_us: each(peer_cpu_s),
        }
    }
}

/// Prints rows as they come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table {
    pub(super) json: bool,
}

impl Table {
    pub(super) fn head(self, to: SocketAddr) {
        if self.json {
            return;
        }
        println!("calls to {to}: one at a time, both ends poll");
        println!(
            "{:<10} {:>5} {:>8} {:>8} {:>9} {:>9} {:>10} {:>9} {:>10} {:>10}",
            "pattern",
            "call",
            "#bytes",
            "#calls",
            "p50[us]",
            "p99[us]",
            "p99.9[us]",
            "max[us]",
            "caller[us]",
            "server[us]"
        );
    }

    pub(super) fn row(self, row: &Row) -> anyhow::Result<()> {
        if self.json {
            println!("{}", serde_json::to_string(row)?);
            return Ok(());
        }
        println!(
            "{:<10} {:>5} {:>8} {:>8} {:>9.2} {:>9.2} {:>10.2} {:>9.1} {:>10.2} {:>10.2}",
            row.pattern,
            row.call,
            row.size,
            row.calls,
            row.p50_us,
            row.p99_us,
            row.p999_us,
            row.max_us,
            row.cpu_us,
            row.peer_cpu_us
        );
        Ok(())
    }

    /// What the figures say, and when each pattern is the one to choose.
    pub(super) fn words(self, rows: &[Row]) {
        if self.json || rows.is_empty() {
            return;
        }
        println!("caller, server: processor time for each call, of all threads and the kernel.\n");
        for text in findings(rows) {
            println!("{text}");
        }
        let mut patterns: Vec<Pattern> = rows.iter().map(|row| row.pattern).collect();
        patterns.dedup();
        println!();
        for pattern in patterns {
            println!("{pattern:<10} is for when {}.", pattern.wins());
        }
    }
}

/// Which pattern was best at each kind of call.
fn findings(rows: &[Row]) -> Vec<String> {
    let mut kinds: Vec<(&str, usize)> = rows.iter().map(|row| (row.call, row.size)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let mut texts = Vec::new();
    for (call, size) in kinds {
        let of = || rows.iter().filter(|row| (row.call, row.size) == (call, size));
        if of().count() < 2 {
            continue;
        }
        let least = |value: fn(&Row) -> f64| of().min_by(|a, b| value(a).total_cmp(&value(b)));
        let (Some(fast), Some(cheap), Some(spares)) = (
            least(|row| row.p50_us),
            least(|row| row.cpu_us + row.peer_cpu_us),
            least(|row| row.peer_cpu_us),
        ) else {
            continue;
        };
        texts.push(format!(
            "{call} of {size} bytes: {} is fastest ({:.2} us), {} takes the least processor time \
             of both ends ({:.2} us), {} of the server ({:.2} us).",
            fast.pattern,
            fast.p50_us,
            cheap.pattern,
            cheap.cpu_us + cheap.peer_cpu_us,
            spares.pattern,
            spares.peer_cpu_us
        ));
    }
    texts
}

/// Draws the median of echoes over their length.
pub(super) fn draw(path: &Path, rows: &[Row]) -> anyhow::Result<()> {
    let mut lines: Vec<Line<'_>> = Vec::new();
    for pattern in Pattern::ALL {
        let of = rows.iter().filter(|row| row.pattern == pattern && row.call == "echo");
        let points: Vec<(f64, f64)> =
            of.filter(|row| row.size > 0).map(|row| (row.size as f64, row.p50_us)).collect();
        if !points.is_empty() {
            lines.push(Line { name: pattern.name(), points });
        }
    }
    let axes = Axes { title: "echo, median", x: "bytes in a message", y: "microseconds" };
    plot::draw(path, &axes, &lines)
}
