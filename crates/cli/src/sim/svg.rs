//! Charts as SVG: lines and dots over axes, one chart below the other.

use std::fmt::Write as _;

/// An axis.
pub(super) struct Axis {
    pub(super) label: &'static str,
    pub(super) is_log: bool,
}

/// A line with a name.
pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// A chart.
pub(super) struct Chart {
    pub(super) title: String,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) lines: Vec<Line>,
    pub(super) dots: Vec<(f64, f64)>,
}

/// Size of a chart, and the room around its axes: left, right, above, below.
const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 150.0;
const ABOVE: f64 = 34.0;
const BELOW: f64 = 48.0;

/// Colours that people with any kind of colour vision can tell apart (Okabe and Ito).
const COLOURS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

/// How many steps a linear axis has, about.
const STEPS: f64 = 5.0;

/// Draws charts below each other.
pub(super) fn draw(charts: &[Chart]) -> String {
    let height = HEIGHT * charts.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for (i, chart) in charts.iter().enumerate() {
        let _ = writeln!(svg, "<g transform=\"translate(0 {})\">", HEIGHT * i as f64);
        chart.draw(&mut svg);
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    svg
}

impl Chart {
    fn draw(&self, svg: &mut String) {
        let points = || self.lines.iter().flat_map(|line| &line.points).chain(&self.dots);
        let x = Scale::new(self.x.is_log, points().map(|p| p.0), (LEFT, WIDTH - RIGHT));
        let y = Scale::new(self.y.is_log, points().map(|p| p.1), (HEIGHT - BELOW, ABOVE));
        let title = escape(&self.title);
        text(svg, (LEFT, 20.0), "start", "font-size=\"14\" font-weight=\"bold\"", &title);
        if points().next().is_none() {
            return text(svg, (LEFT, HEIGHT / 2.0), "start", "", "nothing to show");
        }
        let (left, right, top, bottom) = (LEFT, WIDTH - RIGHT, ABOVE, HEIGHT - BELOW);
        for (value, label) in x.ticks() {
            let at = x.place(value);
            rule(svg, (at, top), (at, bottom));
            text(svg, (at, bottom + 16.0), "middle", "", &label);
        }
        for (value, label) in y.ticks() {
            let at = y.place(value);
            rule(svg, (left, at), (right, at));
            text(svg, (left - 6.0, at + 4.0), "end", "", &label);
        }
        text(svg, ((left + right) / 2.0, HEIGHT - 12.0), "middle", "", self.x.label);
        let turned = format!("transform=\"rotate(-90 16 {})\"", (top + bottom) / 2.0);
        text(svg, (16.0, (top + bottom) / 2.0), "middle", &turned, self.y.label);
        for point in &self.dots {
            let _ = writeln!(
                svg,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"2\" fill=\"#777\" fill-opacity=\"0.45\"/>",
                x.place(point.0),
                y.place(point.1)
            );
        }
        for (i, line) in self.lines.iter().enumerate() {
            let colour = COLOURS[i % COLOURS.len()];
            // Names beyond the colours get a line of dashes.
            let dashes = if i < COLOURS.len() { "" } else { " stroke-dasharray=\"5 3\"" };
            let style = format!("fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\"{dashes}");
            let places: Vec<String> = line
                .points
                .iter()
                .map(|p| format!("{:.1},{:.1}", x.place(p.0), y.place(p.1)))
                .collect();
            let _ = writeln!(svg, "<polyline points=\"{}\" {style}/>", places.join(" "));
            let at = top + 10.0 + 16.0 * i as f64;
            let _ = writeln!(
                svg,
                "<line x1=\"{:.1}\" y1=\"{at:.1}\" x2=\"{:.1}\" y2=\"{at:.1}\" {style}/>",
                right + 10.0,
                right + 30.0
            );
            text(svg, (right + 36.0, at + 4.0), "start", "", &escape(&line.name));
        }
    }
}

/// From values to places in the picture.
struct Scale {
    is_log: bool,
    from: f64,
    to: f64,
    places: (f64, f64),
}

impl Scale {
    fn new(is_log: bool, values: impl Iterator<Item = f64>, places: (f64, f64)) -> Self {
        let values = values.filter(|v| v.is_finite() && (!is_log || *v > 0.0));
        let (low, high) =
            values.fold((f64::INFINITY, 0.0), |(a, b), v| (f64::min(a, v), f64::max(b, v)));
        let (from, to) = match is_log {
            _ if low.is_infinite() => (if is_log { 1.0 } else { 0.0 }, 10.0),
            // One value alone is in the middle.
            true if high < low * 1.5 => (low / 2.0, high * 2.0),
            true => (low / 1.2, high * 1.2),
            // Queues, rates and times begin at zero.
            false => (0.0, if high > 0.0 { high * 1.04 } else { 1.0 }),
        };
        Self { is_log, from, to, places }
    }

    fn place(&self, value: f64) -> f64 {
        let part = match self.is_log {
            true => (value.max(self.from) / self.from).ln() / (self.to / self.from).ln(),
            false => (value - self.from) / (self.to - self.from),
        };
        self.places.0 + part * (self.places.1 - self.places.0)
    }

    /// Round values on the axis, with their labels.
    fn ticks(&self) -> Vec<(f64, String)> {
        let labelled = |value: f64| (value, short(value));
        if !self.is_log {
            let step = round_step(self.to / STEPS);
            let count = (self.to / step) as u32;
            return (0..=count).map(|i| labelled(f64::from(i) * step)).collect();
        }
        let decades = (self.to / self.from).log10();
        // A short axis has more than its powers of ten.
        let factors: &[f64] = match decades {
            d if d < 0.7 => &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0],
            d if d < 2.0 => &[1.0, 2.0, 5.0],
            _ => &[1.0],
        };
        let first = self.from.log10().floor() as i32;
        (first..first + 20)
            .flat_map(|power| factors.iter().map(move |factor| factor * 10f64.powi(power)))
            .filter(|value| (self.from..=self.to).contains(value))
            .map(labelled)
            .collect()
    }
}

/// The next of 1, 2, 5 times a power of ten.
fn round_step(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= value);
    factor.unwrap_or(10.0) * power
}

/// A number with the letter of its thousands.
fn short(value: f64) -> String {
    let (scaled, letter) = match value {
        v if v >= 1e9 => (v / 1e9, "G"),
        v if v >= 1e6 => (v / 1e6, "M"),
        v if v >= 1e3 => (v / 1e3, "k"),
        v => (v, ""),
    };
    let digits = format!("{scaled:.3}");
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    format!("{digits}{letter}")
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, style: &str, words: &str) {
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {style}>{words}</text>"
    );
}

fn rule(svg: &mut String, from: (f64, f64), to: (f64, f64)) {
    let _ = writeln!(
        svg,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"#dddddd\"/>",
        from.0, from.1, to.0, to.1
    );
}

fn escape(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_values() {
        let labels = |scale: &Scale| -> Vec<String> {
            scale.ticks().into_iter().map(|(_, label)| label).collect()
        };
        let linear = Scale::new(false, [0.0, 4_700_000.0].into_iter(), (0.0, 100.0));
        assert_eq!(labels(&linear), ["0", "1M", "2M", "3M", "4M"]);
        let log = Scale::new(true, [700.0, 30e6].into_iter(), (0.0, 100.0));
        assert_eq!(labels(&log), ["1k", "10k", "100k", "1M", "10M"]);
        let narrow = Scale::new(true, [1.0, 9.0].into_iter(), (0.0, 100.0));
        assert_eq!(labels(&narrow), ["1", "2", "5", "10"]);
        let one = Scale::new(true, [1e6].into_iter(), (0.0, 100.0));
        assert_eq!(labels(&one), ["500k", "600k", "800k", "1M", "1.5M", "2M"]);
        assert!((one.place(1e6) - 50.0).abs() < 1e-9);
        assert!((log.place(700.0 / 1.2)).abs() < 1e-9 && (log.place(36e6) - 100.0).abs() < 1e-9);
    }

    #[test]
    fn a_chart_without_values_says_so() {
        let axis = |label| Axis { label, is_log: true };
        let (lines, dots) = (Vec::new(), Vec::new());
        let chart = Chart { title: "a < b".into(), x: axis("x"), y: axis("y"), lines, dots };
        let svg = draw(&[chart]);
        assert!(svg.contains("nothing to show") && svg.contains("a &lt; b"), "{svg}");
    }
}
