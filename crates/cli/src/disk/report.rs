//! The results of `feroce disk bench`, and their presentation.

use std::net::SocketAddr;
use std::path::Path;

use serde::Serialize;

use super::load::Pattern;
use crate::perf::{Sample, round};
use crate::plot::{self, Axes, Line};

/// The result of one measurement.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pattern: &'static str,
    size: usize,
    depth: u16,
    queues: u16,
    commands: u64,
    elapsed_s: f64,
    commands_per_s: f64,
    mib_per_s: f64,
    min_us: f64,
    p50_us: f64,
    p90_us: f64,
    p99_us: f64,
    p999_us: f64,
    max_us: f64,
    /// Processor time of this process, for each command.
    cpu_us: f64,
}

/// The figures from which a row is computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figures {
    pub(super) commands: u64,
    pub(super) elapsed_s: f64,
    pub(super) cpu_s: f64,
}

impl Row {
    pub(super) fn new(
        pattern: Pattern,
        size: usize,
        depth: u16,
        queues: u16,
        figures: Figures,
        sample: &Sample,
    ) -> Self {
        let Figures { commands, elapsed_s, cpu_s } = figures;
        let per_s = if elapsed_s > 0.0 { commands as f64 / elapsed_s } else { 0.0 };
        Self {
            pattern: pattern.name(),
            size,
            depth,
            queues,
            commands,
            elapsed_s: round(elapsed_s, 3),
            commands_per_s: round(per_s, 3),
            mib_per_s: round(per_s * size as f64 / f64::from(1 << 20), 3),
            min_us: sample.us(0.0),
            p50_us: sample.us(0.5),
            p90_us: sample.us(0.9),
            p99_us: sample.us(0.99),
            p999_us: sample.us(0.999),
            max_us: sample.us(1.0),
            cpu_us: round(cpu_s * 1e6 / commands.max(1) as f64, 3),
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
        println!("disk at {to}; times of single commands, and processor time of this end for each");
        println!(
            "{:<9} {:>8} {:>5} {:>10} {:>9} {:>9} {:>9} {:>9} {:>10} {:>9} {:>8}",
            "pattern",
            "#bytes",
            "depth",
            "cmds/s",
            "MiB/s",
            "p50[us]",
            "p90[us]",
            "p99[us]",
            "p99.9[us]",
            "max[us]",
            "cpu[us]"
        );
    }

    pub(super) fn row(self, row: &Row) -> anyhow::Result<()> {
        if self.json {
            println!("{}", serde_json::to_string(row)?);
            return Ok(());
        }
        println!(
            "{:<9} {:>8} {:>5} {:>10.0} {:>9.1} {:>9.2} {:>9.2} {:>9.2} {:>10.2} {:>9.1} {:>8.2}",
            row.pattern,
            row.size,
            row.depth,
            row.commands_per_s,
            row.mib_per_s,
            row.p50_us,
            row.p90_us,
            row.p99_us,
            row.p999_us,
            row.max_us,
            row.cpu_us
        );
        Ok(())
    }
}

/// Draws commands per second: over the depth, with a line for each size, or over the size if only
/// one depth was measured.
pub(super) fn draw(path: &Path, rows: &[Row]) -> anyhow::Result<()> {
    let is_one_depth = rows.iter().all(|row| row.depth == rows[0].depth);
    let key = |row: &Row| if is_one_depth { row.depth.into() } else { row.size };
    let mut keys: Vec<usize> = rows.iter().map(key).collect();
    keys.sort_unstable();
    keys.dedup();
    let unit = if is_one_depth { "at a time" } else { "bytes" };
    let names: Vec<String> = keys.iter().map(|key| format!("{key} {unit}")).collect();
    let mut lines = Vec::new();
    for (&wanted, name) in keys.iter().zip(&names) {
        let of = rows.iter().filter(|row| key(row) == wanted);
        let x = |row: &Row| if is_one_depth { row.size as f64 } else { f64::from(row.depth) };
        lines.push(Line { name, points: of.map(|row| (x(row), row.commands_per_s)).collect() });
    }
    let x = if is_one_depth { "bytes in a command" } else { "commands at a time" };
    let title = rows.first().map_or("", |row| row.pattern);
    plot::draw(path, &Axes { title, x, y: "commands per second" }, &lines)
}
