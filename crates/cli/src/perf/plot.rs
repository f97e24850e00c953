//! A plot of the results.

use std::path::Path;

use anyhow::ensure;
use plotters::prelude::*;

use super::measure::Row;
use super::spec::{Mode, Spec};

/// A line of the plot.
type Line = (&'static str, RGBColor, Vec<(f64, f64)>);

/// Plots latency or bandwidth over the size of messages.
pub(crate) fn draw(path: &Path, spec: &Spec, rows: &[Row]) -> anyhow::Result<()> {
    let of = |value: fn(&Row) -> f64| rows.iter().map(|r| (r.size as f64, value(r))).collect();
    let (what, unit, lines): (_, _, Vec<Line>) = match spec.mode {
        Mode::Bw => ("bandwidth", "Gb/s", vec![("bandwidth", BLUE, of(|r| r.gbit_per_s))]),
        Mode::Lat => (
            "latency",
            "microseconds",
            vec![
                ("99.9 %", RED, of(|r| r.p999_us)),
                ("99 %", MAGENTA, of(|r| r.p99_us)),
                ("median", BLUE, of(|r| r.p50_us)),
            ],
        ),
    };
    let all = || lines.iter().flat_map(|(_, _, points)| points.iter());
    let min = all().map(|p| p.1).fold(f64::INFINITY, f64::min).max(1e-3);
    let max = all().map(|p| p.1).fold(0.0, f64::max).max(min * 2.0);
    let sizes = rows.iter().map(|r| r.size as f64);
    let (least, most) = (sizes.clone().fold(f64::INFINITY, f64::min), sizes.fold(0.0, f64::max));
    ensure!(least.is_finite() && most > 0.0, "nothing was measured");
    let root = SVGBackend::new(path, (900, 540)).into_drawing_area();
    root.fill(&WHITE)?;
    let title = format!("{} {what}", spec.op.name());
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 24))
        .margin(14)
        .x_label_area_size(46)
        .y_label_area_size(70)
        .build_cartesian_2d(
            (least..most.max(least * 2.0)).log_scale().base(2.0),
            (min * 0.8..max * 1.25).log_scale(),
        )?;
    chart
        .configure_mesh()
        .x_desc("bytes in a message")
        .y_desc(unit)
        .x_label_formatter(&|n| bytes(*n))
        .draw()?;
    for (name, color, points) in &lines {
        chart
            .draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)))?
            .label(*name)
            .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        chart.draw_series(points.iter().map(|p| Circle::new(*p, 3, color.filled())))?;
    }
    if lines.len() > 1 {
        chart.configure_series_labels().border_style(BLACK).background_style(WHITE).draw()?;
    }
    root.present()?;
    Ok(())
}

/// A number of bytes, abbreviated.
fn bytes(n: f64) -> String {
    match n {
        n if n >= 1048576.0 => format!("{} M", n / 1048576.0),
        n if n >= 1024.0 => format!("{} K", n / 1024.0),
        n => format!("{n}"),
    }
}
