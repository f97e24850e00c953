//! Figures, and how they are printed.

use std::fmt::Write as _;

/// Samples of one figure, and what is expected of it.
pub(crate) struct Figure {
    name: String,
    unit: &'static str,
    samples: Vec<f64>,
    wanted: Option<Wanted>,
}

/// What a figure is expected to be.
#[derive(Clone, Copy)]
pub(crate) enum Wanted {
    AtLeast(f64),
    AtMost(f64),
}

impl Figure {
    pub(crate) fn new(name: impl Into<String>, unit: &'static str, samples: Vec<f64>) -> Self {
        assert!(!samples.is_empty(), "a figure without samples");
        let mut samples = samples;
        samples.sort_by(f64::total_cmp);
        Self { name: name.into(), unit, samples, wanted: None }
    }

    /// The same figure, with what is expected of its median.
    pub(crate) fn wanted(self, wanted: Wanted) -> Self {
        Self { wanted: Some(wanted), ..self }
    }

    fn min(&self) -> f64 {
        self.samples[0]
    }

    fn max(&self) -> f64 {
        self.samples[self.samples.len() - 1]
    }

    fn median(&self) -> f64 {
        let middle = self.samples.len() / 2;
        if self.samples.len() % 2 == 1 {
            self.samples[middle]
        } else {
            f64::midpoint(self.samples[middle - 1], self.samples[middle])
        }
    }

    /// Whether the median is as expected; `None` if nothing is.
    fn is_met(&self) -> Option<bool> {
        self.wanted.map(|wanted| match wanted {
            Wanted::AtLeast(least) => self.median() >= least,
            Wanted::AtMost(most) => self.median() <= most,
        })
    }

    fn expectation(&self) -> String {
        let Some(wanted) = self.wanted else {
            return String::new();
        };
        let text = match wanted {
            Wanted::AtLeast(least) => format!(">= {}", number(least)),
            Wanted::AtMost(most) => format!("<= {}", number(most)),
        };
        if self.is_met() == Some(true) { text } else { format!("{text}  NOT MET") }
    }
}

/// Prints a table.
pub(crate) fn table(figures: &[Figure]) {
    let width = figures.iter().map(|figure| figure.name.len()).max().unwrap_or(0);
    println!(
        "{:width$}  {:>9} {:>9} {:>9}  {:10}  {:>4}  wanted",
        "", "median", "min", "max", "unit", "runs"
    );
    for figure in figures {
        let line = format!(
            "{:width$}  {:>9} {:>9} {:>9}  {:10}  {:>4}  {}",
            figure.name,
            number(figure.median()),
            number(figure.min()),
            number(figure.max()),
            figure.unit,
            figure.samples.len(),
            figure.expectation(),
        );
        println!("{}", line.trim_end());
    }
}

/// Prints one JSON array with an object for each figure.
pub(crate) fn json(figures: &[Figure]) {
    let mut out = String::from("[");
    for (i, figure) in figures.iter().enumerate() {
        let comma = if i == 0 { "" } else { "," };
        // Names and units are ours and need no escapes.
        let _ = write!(
            out,
            "{comma}\n  {{\"name\": \"{}\", \"unit\": \"{}\", \"median\": {}, \"min\": {}, \
             \"max\": {}, \"runs\": {}, \"met\": {}}}",
            figure.name,
            figure.unit,
            figure.median(),
            figure.min(),
            figure.max(),
            figure.samples.len(),
            figure.is_met().map_or("null", |met| if met { "true" } else { "false" }),
        );
    }
    println!("{out}\n]");
}

/// Three or so digits that matter.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 1000.0 => 0,
        v if v >= 100.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}
