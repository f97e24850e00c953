//! Plots of measurements: lines over the size of messages, both axes logarithmic.

use std::path::Path;

use anyhow::{Context as _, ensure};
use plotters::prelude::*;

/// Colours that people with any kind of colour vision can tell apart (Okabe and Ito).
const COLORS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x00, 0x00, 0x00),
];

/// What the axes show.
#[derive(Debug)]
pub(crate) struct Axes<'a> {
    pub(crate) title: &'a str,
    pub(crate) x: &'a str,
    pub(crate) y: &'a str,
}

/// A line of the plot.
#[derive(Debug)]
pub(crate) struct Line<'a> {
    pub(crate) name: &'a str,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Checks that the file can be written, before the measurement instead of after it.
pub(crate) fn prepare(path: &Path) -> anyhow::Result<()> {
    let is_svg = path.extension().is_some_and(|end| end.eq_ignore_ascii_case("svg"));
    ensure!(is_svg, "--plot draws SVG: give the file a name that ends with .svg");
    std::fs::File::create(path).with_context(|| cannot_draw(path))?;
    Ok(())
}

fn cannot_draw(path: &Path) -> String {
    format!("cannot write the drawing {}", path.display())
}

/// Draws lines.
pub(crate) fn draw(path: &Path, axes: &Axes<'_>, lines: &[Line<'_>]) -> anyhow::Result<()> {
    draw_lines(path, axes, lines).with_context(|| cannot_draw(path))
}

fn draw_lines(path: &Path, axes: &Axes<'_>, lines: &[Line<'_>]) -> anyhow::Result<()> {
    let all = || lines.iter().flat_map(|line| line.points.iter());
    let min = all().map(|p| p.1).fold(f64::INFINITY, f64::min).max(1e-3);
    let max = all().map(|p| p.1).fold(0.0, f64::max).max(min * 2.0);
    let least = all().map(|p| p.0).fold(f64::INFINITY, f64::min);
    let most = all().map(|p| p.0).fold(0.0, f64::max);
    ensure!(least.is_finite() && most > 0.0, "nothing was measured");
    let root = SVGBackend::new(path, (900, 540)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(axes.title, ("sans-serif", 24))
        .margin(14)
        .x_label_area_size(46)
        .y_label_area_size(70)
        .build_cartesian_2d(
            (least..most.max(least * 2.0)).log_scale().base(2.0),
            (min * 0.8..max * 1.25).log_scale(),
        )?;
    chart
        .configure_mesh()
        .x_desc(axes.x)
        .y_desc(axes.y)
        .x_label_formatter(&|n| bytes(*n))
        .draw()?;
    for (line, color) in lines.iter().zip(COLORS.iter().cycle()) {
        chart
            .draw_series(LineSeries::new(line.points.iter().copied(), color.stroke_width(2)))?
            .label(line.name)
            .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        chart.draw_series(line.points.iter().map(|p| Circle::new(*p, 3, color.filled())))?;
    }
    if lines.len() > 1 {
        let mut labels = chart.configure_series_labels();
        labels.position(SeriesLabelPosition::UpperLeft);
        labels.border_style(BLACK).background_style(WHITE).draw()?;
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
