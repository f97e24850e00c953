//! A table with one line per packet, printed while the command reads the file.

use super::dissect::{IcrcState, NotRoce};
use super::view::View;
use crate::style::{Ink, Style, columns};
use crate::words;

/// Lines that are held back to find out how wide the columns must be.
const LOOK_AHEAD: usize = 200;

/// Columns with a limited width; the details come last and may have any length.
const TITLES: [&str; 8] =
    ["no", "time", "source → destination", "QP", "PSN", "operation", "bytes", "ICRC"];

/// Whether a column is aligned to the right.
const NUMERIC: [bool; 8] = [true, true, false, true, true, false, true, false];

/// A line: its cells, the rest, and its colour.
#[derive(Debug)]
struct Line {
    cells: [String; 8],
    rest: String,
    ink: Option<Ink>,
}

/// Collects lines until the widths of the columns are known.
#[derive(Debug)]
pub(crate) struct Table {
    style: Style,
    widths: [usize; 8],
    waiting: Vec<Line>,
    is_open: bool,
}

impl Table {
    pub(crate) fn new(style: Style) -> Self {
        Self { style, widths: TITLES.map(columns), waiting: Vec::new(), is_open: false }
    }

    /// Adds a packet; returns the lines that can be printed now.
    pub(crate) fn push(&mut self, view: &View) -> Vec<String> {
        let line = line(view);
        for (width, cell) in self.widths.iter_mut().zip(&line.cells) {
            *width = (*width).max(columns(cell));
        }
        self.waiting.push(line);
        if self.is_open || self.waiting.len() >= LOOK_AHEAD { self.finish() } else { Vec::new() }
    }

    /// Returns the lines that have been held back.
    pub(crate) fn finish(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        if !self.is_open && !self.waiting.is_empty() {
            let title = self.join(&TITLES.map(str::to_owned), "headers", None);
            lines.push(self.style.paint(Ink::Bold, title.trim_end()));
            self.is_open = true;
        }
        for line in std::mem::take(&mut self.waiting) {
            lines.push(self.join(&line.cells, &line.rest, line.ink));
        }
        lines
    }

    fn join(&self, cells: &[String; 8], rest: &str, ink: Option<Ink>) -> String {
        let mut text = String::new();
        for (i, cell) in cells.iter().enumerate() {
            let gap = " ".repeat(self.widths[i].saturating_sub(columns(cell)));
            let is_painted = matches!(i, 5 | 7) && (i == 5 || ink == Some(Ink::Bad));
            let cell = match ink.filter(|_| is_painted) {
                Some(ink) => self.style.paint(ink, cell),
                None => cell.clone(),
            };
            text.push_str(&if NUMERIC[i] { gap.clone() + &cell } else { cell + &gap });
            text.push_str("  ");
        }
        format!("{text}{rest}").trim_end().to_owned()
    }
}

fn line(view: &View) -> Line {
    match view {
        View::Roce(roce) => Line {
            cells: [
                roce.number.to_string(),
                seconds(roce.time_ns),
                format!("{} → {}", roce.src, roce.dst),
                words::qpn(roce.dest_qp),
                roce.psn.to_string(),
                roce.operation.clone(),
                roce.payload_len.to_string(),
                match roce.icrc {
                    IcrcState::Good => "ok",
                    IcrcState::Bad => "BAD",
                    IcrcState::Unknown => "cut",
                }
                .to_owned(),
            ],
            rest: roce.header_words(),
            ink: Some(roce.ink()),
        },
        View::Iwarp(iwarp) => Line {
            cells: [
                iwarp.number.to_string(),
                seconds(iwarp.time_ns),
                format!("{} → {}", iwarp.ends.0, iwarp.ends.1),
                String::new(),
                String::new(),
                iwarp.message.name.clone(),
                iwarp.message.payload.to_string(),
                String::new(),
            ],
            rest: iwarp.notes().join(", "),
            ink: Some(iwarp.ink()),
        },
        View::Other { number, time_ns, why } => {
            let (operation, rest, ink) = match why {
                NotRoce::Other(what) => ("not RoCE", what.as_str(), Ink::Dim),
                NotRoce::Broken(why) => ("malformed", *why, Ink::Bad),
            };
            let mut cells: [String; 8] = Default::default();
            cells[0] = number.to_string();
            cells[1] = seconds(*time_ns);
            cells[5] = operation.to_owned();
            Line { cells, rest: rest.to_owned(), ink: Some(ink) }
        }
    }
}

fn seconds(time_ns: Option<u64>) -> String {
    time_ns.map_or_else(String::new, |ns| {
        format!("{}.{:06}", ns / 1_000_000_000, ns % 1_000_000_000 / 1_000)
    })
}
