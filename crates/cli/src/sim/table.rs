//! The figures of a sweep: files of its parts, and a table with confidence intervals.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Context as _;
use feroce_sim::scenario::{Outcome, percentile};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::grid::{Header, Point};

/// What a table shows of a run. Nothing here depends on the machine.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Figures {
    flows: usize,
    finished: usize,
    p50: Option<f64>,
    p95: Option<f64>,
    p99: Option<f64>,
    /// Until the last flow ended, in microseconds.
    us: f64,
    drops: u64,
    pauses: u64,
    pause_us: f64,
    marked: u64,
    queue_max: u64,
    /// Of the port with the greatest mean, in bytes.
    queue_mean: f64,
    is_deadlock: bool,
}

impl Figures {
    pub(super) fn of(outcome: &Outcome) -> Self {
        let slow = outcome.slowdowns();
        let ports = || outcome.ports.iter().map(|(_, stats)| stats);
        Self {
            flows: outcome.flows.len(),
            finished: slow.len(),
            p50: percentile(&slow, 0.5),
            p95: percentile(&slow, 0.95),
            p99: percentile(&slow, 0.99),
            us: outcome.at.ps_since(outcome.first_start()) as f64 / 1e6,
            drops: outcome.totals.dropped_all().packets,
            pauses: outcome.pause_count(),
            pause_us: ports().map(|stats| stats.paused_ps).sum::<u64>() as f64 / 1e6,
            marked: ports().map(|stats| stats.marked).sum(),
            queue_max: ports().map(|stats| stats.queue_max).max().unwrap_or(0),
            queue_mean: ports()
                .map(|stats| stats.queue_mean(outcome.first_start(), outcome.at))
                .fold(0.0, f64::max),
            is_deadlock: outcome.deadlock.is_some(),
        }
    }
}

/// A run of a sweep.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Row {
    #[serde(flatten)]
    pub(super) point: Point,
    pub(super) figures: Figures,
}

/// Writes the figures: a line for the sweep, and one for each run.
pub(super) fn write(file: &Path, header: &Header, rows: &[Row]) -> anyhow::Result<()> {
    let mut text = serde_json::to_string(header)? + "\n";
    for row in rows {
        text += &serde_json::to_string(row)?;
        text.push('\n');
    }
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// Reads what [`write`] has written.
pub(super) fn read(file: &Path) -> Result<(Header, Vec<Row>), String> {
    let text = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let error = |line: usize, what: &str| format!("{}:{line}: {what}", file.display());
    let mut lines = (1..).zip(text.lines());
    let (_, first) = lines.next().ok_or_else(|| error(1, "the file is empty"))?;
    let header = serde_json::from_str(first)
        .map_err(|e| error(1, &format!("not the first line of a sweep: {e}")))?;
    let row = |(n, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|e| error(n, &format!("not a run of a sweep: {e}")))
    };
    let rows: Result<Vec<Row>, String> = lines.map(row).collect();
    Ok((header, rows?))
}

/// A mean, and half of its 95 % confidence interval.
#[derive(Clone, Copy, Debug, Serialize)]
struct Estimate {
    mean: f64,
    /// Missing if one run says nothing about others.
    plus_minus: Option<f64>,
}

/// Student's distribution: 97.5 % of it are below these, for 1, 2, ... degrees of freedom.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];
/// The same for many.
const NORMAL: f64 = 1.960;

impl Estimate {
    fn of(values: &[f64]) -> Option<Self> {
        let n = values.len() as f64;
        if values.is_empty() {
            return None;
        }
        let mean = values.iter().sum::<f64>() / n;
        let plus_minus = (values.len() > 1).then(|| {
            let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
            let t = STUDENT.get(values.len() - 2).copied().unwrap_or(NORMAL);
            t * (squares / (n - 1.0) / n).sqrt()
        });
        Some(Self { mean, plus_minus })
    }
}

/// A column: its heading, its name in JSON, and the figure of a run.
type Column = (&'static str, &'static str, fn(&Figures) -> Option<f64>);

const COLUMNS: [Column; 10] = [
    ("p50", "slowdown_p50", |f| f.p50),
    ("p95", "slowdown_p95", |f| f.p95),
    ("p99", "slowdown_p99", |f| f.p99),
    ("us", "duration_us", |f| Some(f.us)),
    ("queue, KB", "queue_max_kb", |f| Some(f.queue_max as f64 / 1000.0)),
    ("mean, KB", "queue_mean_kb", |f| Some(f.queue_mean / 1000.0)),
    ("marked", "marked", |f| Some(f.marked as f64)),
    ("pauses", "pauses", |f| Some(f.pauses as f64)),
    ("paused, us", "pause_us", |f| Some(f.pause_us)),
    ("drops", "drops", |f| Some(f.drops as f64)),
];

/// Prints a line for each combination of settings.
pub(super) fn print(header: &Header, rows: &[Row], json: bool) -> anyhow::Result<()> {
    // By the place of the combination in the sweep.
    let mut groups: BTreeMap<usize, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        groups.entry(header.group_of(row.point.index)).or_default().push(row);
    }
    if json {
        let groups: Vec<_> = groups.values().map(|rows| group_json(rows)).collect();
        println!(
            "{}",
            serde_json::to_string_pretty(&json!({ "sweep": header, "groups": groups }))?
        );
        return Ok(());
    }
    let mut lines = vec![heading(header)];
    lines.extend(groups.values().map(|rows| line(rows)));
    print!("{}", aligned(&lines));
    Ok(())
}

fn estimates<'a>(rows: &'a [&Row]) -> impl Iterator<Item = (&'static str, Option<Estimate>)> + 'a {
    COLUMNS.iter().map(move |(_, name, figure)| {
        let values: Vec<f64> = rows.iter().filter_map(|row| figure(&row.figures)).collect();
        (*name, Estimate::of(&values))
    })
}

fn ended(rows: &[&Row]) -> (usize, usize, usize) {
    let sum = |value: fn(&Figures) -> usize| rows.iter().map(|row| value(&row.figures)).sum();
    (sum(|f| f.finished), sum(|f| f.flows), sum(|f| usize::from(f.is_deadlock)))
}

fn group_json(rows: &[&Row]) -> serde_json::Value {
    let settings: serde_json::Map<_, _> = rows
        .iter()
        .take(1)
        .flat_map(|row| &row.point.settings)
        .map(|(key, value)| (key.clone(), json!(value)))
        .collect();
    let figures: serde_json::Map<_, _> =
        estimates(rows).map(|(name, estimate)| (name.to_owned(), json!(estimate))).collect();
    let (finished, flows, deadlocks) = ended(rows);
    json!({
        "settings": settings,
        "runs": rows.len(),
        "flows": flows,
        "finished": finished,
        "deadlocks": deadlocks,
        "figures": figures,
    })
}

fn heading(header: &Header) -> Vec<String> {
    let keys = header.keys().map(str::to_owned);
    let fixed = ["runs", "ended", "deadlocks"].into_iter();
    let columns = COLUMNS.iter().map(|(heading, ..)| *heading);
    keys.chain(fixed.chain(columns).map(str::to_owned)).collect()
}

fn line(rows: &[&Row]) -> Vec<String> {
    let settings = rows.iter().take(1).flat_map(|row| &row.point.settings);
    let mut cells: Vec<String> = settings.map(|(_, value)| value.clone()).collect();
    let (finished, flows, deadlocks) = ended(rows);
    cells.push(rows.len().to_string());
    cells.push(format!("{:.1} %", 100.0 * finished as f64 / flows.max(1) as f64));
    cells.push(deadlocks.to_string());
    cells.extend(estimates(rows).map(|(_, estimate)| match estimate {
        None => "-".to_owned(),
        Some(Estimate { mean, plus_minus: None }) => figure(mean),
        Some(Estimate { mean, plus_minus: Some(half) }) => {
            format!("{} +- {}", figure(mean), figure(half))
        }
    }));
    cells
}

/// A number with three digits or more that matter.
fn figure(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        v if v < 10.0 => format!("{value:.2}"),
        v if v < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

fn aligned(lines: &[Vec<String>]) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |i: usize| lines.iter().filter_map(move |line| line.get(i)).map(|c| c.chars().count());
    let widths: Vec<usize> = (0..columns).map(|i| width(i).max().unwrap_or(0)).collect();
    let mut text = String::new();
    for line in lines {
        let mut row = String::new();
        for (cell, width) in line.iter().zip(&widths) {
            let _ = write!(row, "{cell:>width$}  ");
        }
        let _ = writeln!(text, "{}", row.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_have_confidence_intervals() {
        let one = Estimate::of(&[3.0]).expect("a mean");
        assert_eq!((one.mean, one.plus_minus), (3.0, None));
        // Standard deviation 1 of three values: 4.303 / sqrt(3).
        let three = Estimate::of(&[1.0, 2.0, 3.0]).expect("a mean");
        assert!((three.plus_minus.expect("an interval") - 4.303 / 3f64.sqrt()).abs() < 1e-9);
        assert!(Estimate::of(&[]).is_none());
    }
}
