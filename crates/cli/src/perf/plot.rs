//! A plot of the results.

use std::path::Path;

use super::measure::Row;
use super::spec::{Mode, Spec};
use crate::plot::{self, Axes, Line};

/// Plots latency or bandwidth over the size of messages.
pub(crate) fn draw(path: &Path, spec: &Spec, rows: &[Row]) -> anyhow::Result<()> {
    let line = |name, value: fn(&Row) -> f64| {
        let points = rows.iter().map(|row| (row.size as f64, value(row))).collect();
        Line { name, points }
    };
    let (what, y, lines) = match spec.mode {
        Mode::Bw => ("bandwidth", "Gb/s", vec![line("bandwidth", |row| row.gbit_per_s)]),
        Mode::Lat => (
            "latency",
            "microseconds",
            vec![
                line("median", |row| row.p50_us),
                line("99.9 %", |row| row.p999_us),
                line("99 %", |row| row.p99_us),
            ],
        ),
    };
    let title = format!("{} {what}", spec.op.name());
    plot::draw(path, &Axes { title: &title, x: "bytes in a message", y }, &lines)
}
