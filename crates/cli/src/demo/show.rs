//! Prints the demo on a terminal.

use std::io::{IsTerminal, Write};

use feroce::Direction;
use feroce::wire::Packet;
use serde_json::{Value, json};

use super::measure::{Kind, Measured, SIZES};
use super::record::Entry;
use super::scenes::{ALL, Scene};
use super::stage::Stage;
use super::{Outcome, code};
use crate::ladder::{Ladder, Rung, Side};
use crate::style::{Ink, Style, columns, wrap};
use crate::words;

/// Columns left of running text.
const INDENT: usize = 2;

/// Prints the demo.
#[derive(Debug)]
pub(super) struct Screen {
    style: Style,
}

impl Screen {
    pub(super) fn new(style: Style) -> Self {
        Self { style }
    }

    fn line(&self, text: &str) {
        // An error means that the reader of standard output has closed it: not a failure.
        println!("{}", self.style.finish(text.trim_end()));
    }

    /// A paragraph.
    fn text(&self, text: &str) {
        for line in wrap(text, self.style.width - 2 * INDENT) {
            self.line(&format!("{}{line}", " ".repeat(INDENT)));
        }
    }

    /// A paragraph behind a word in the margin.
    fn item(&self, ink: Ink, word: &str, margin: usize, text: &str) {
        for (i, line) in wrap(text, self.style.width - 2 * INDENT - margin).iter().enumerate() {
            let head = if i == 0 { word } else { "" };
            let gap = " ".repeat(margin.saturating_sub(columns(head)));
            let head = self.style.paint(ink, head);
            self.line(&format!("{}{head}{gap}{line}", " ".repeat(INDENT)));
        }
    }

    fn heading(&self, title: &str) {
        let rule = "━".repeat(self.style.width.saturating_sub(columns(title) + 4));
        self.line("");
        self.line(&self.style.paint(Ink::Bold, &format!("━━ {title} {rule}")));
    }

    /// The introduction.
    pub(super) fn intro(&self, stage: &Stage) {
        self.line(&self.style.paint(Ink::Bold, "feroce: RDMA without RDMA hardware"));
        self.line("");
        self.text(&format!(
            "Two adapters in this process, A on {} and B on {}, exchange real RoCEv2 packets over \
             the loopback: no special hardware, no kernel module, no root.",
            stage.a.addr, stage.b.addr
        ));
        self.line("");
        self.text(
            "In the pictures time runs downwards, A is on the left, B on the right. An arrow is a \
             packet: what it does, its number (PSN), its bytes. A dot ● is a program that posts \
             work, or hears that it is complete.",
        );
    }

    /// One scene.
    pub(super) fn scene(&self, number: usize, total: usize, outcome: &Outcome, stage: &Stage) {
        let scene = outcome.scene;
        self.heading(&format!("{number}/{total} [{}] {}", scene.name, scene.title));
        self.text(scene.story);
        if !scene.terms.is_empty() {
            self.line("");
            let margin = scene.terms.iter().map(|(term, _)| columns(term)).max().unwrap_or(0) + 2;
            for (term, meaning) in scene.terms {
                self.item(Ink::Bold, term, margin, meaning);
            }
        }
        self.line("");
        self.ladder(outcome, stage);
        self.line("");
        self.checks(outcome);
        self.item(Ink::Bold, "Notice", 8, scene.notice);
    }

    /// What the code of the scenes calls.
    pub(super) fn legend(&self) {
        self.line("");
        self.text(code::LEGEND);
    }

    /// The code of a scene.
    pub(super) fn code(&self, scene: &Scene) {
        let none = "(none: headers of rdma-core before version 46 have no ibv_wr_flush)\n";
        let c =
            Some(scene.code.in_c()).filter(|c| !c.is_empty()).unwrap_or_else(|| none.to_owned());
        for (language, code) in [("In Rust", scene.code.in_rust()), ("In C", c)] {
            self.line("");
            self.line(&format!("{}{}", " ".repeat(INDENT), self.style.paint(Ink::Bold, language)));
            for line in code.lines() {
                self.line(&format!("{}{line}", " ".repeat(2 * INDENT)));
            }
        }
    }

    fn ladder(&self, outcome: &Outcome, stage: &Stage) {
        let ladder = Ladder::new(self.style);
        let [left, right] = &outcome.names;
        let head = ladder
            .header(&format!("A {} {left}", stage.a.addr), &format!("B {} {right}", stage.b.addr));
        let rungs = rungs(outcome);
        for line in head.into_iter().chain(rungs.iter().flat_map(|rung| ladder.rung(rung))) {
            self.line(&line);
        }
    }

    /// The checks, several on a line where they fit.
    fn checks(&self, outcome: &Outcome) {
        let mut line = String::new();
        let mut used = 0;
        for (what, is_right) in &outcome.checks {
            let (mark, ink) = if *is_right { ("✓", Ink::Good) } else { ("✗ WRONG:", Ink::Bad) };
            let len = columns(mark) + 1 + columns(what);
            if used > 0 && used + 3 + len > self.style.width - 2 * INDENT {
                self.line(&format!("{}{line}", " ".repeat(INDENT)));
                line.clear();
                used = 0;
            }
            if used > 0 {
                line.push_str("   ");
                used += 3;
            }
            line.push_str(&format!("{} {what}", self.style.paint(ink, mark)));
            used += len;
        }
        if used > 0 {
            self.line(&format!("{}{line}", " ".repeat(INDENT)));
        }
        if let Some(error) = &outcome.error {
            self.item(Ink::Bad, "✗ FAILED", 10, error);
        }
    }

    /// The measurements.
    pub(super) fn table(&self, rows: &[Measured]) {
        self.heading("How fast: both ends in this process, on the loopback");
        self.text(
            "Left: one operation at a time, from posting it to its completion (the median). Right: \
             many under way at once. On one host, A's adapter reads and writes B's memory by \
             itself, with no packet; a SEND is a message that B must take. Across a network all \
             three are packets.",
        );
        if cfg!(debug_assertions) {
            self.text(
                "This program was built without optimisation: with `--release` it is faster.",
            );
        }
        self.line("");
        let column = |cell: &str| format!("{cell:>11}");
        let names: String = Kind::ALL.iter().map(|kind| column(kind.name())).collect();
        let blank = " ".repeat(12);
        self.line(&format!("{blank}{:^33}  {:^33}", "time of one", "bandwidth"));
        self.line(&self.style.paint(Ink::Bold, &format!("{:>12}{names}  {names}", "message")));
        for size in SIZES {
            let find = |kind| rows.iter().find(|row| row.kind == kind && row.size == size);
            let of_each = |show: &dyn Fn(&Measured) -> String| -> String {
                let cells = Kind::ALL.map(|kind| column(&find(kind).map(show).unwrap_or_default()));
                cells.concat()
            };
            let times = of_each(&|row| words::duration(row.latency_ns));
            let rates = of_each(&|row| rate(row.gbit_s));
            self.line(&format!("{:>12}{times}  {rates}", bytes_name(size)));
        }
    }

    /// The result, and what to try next.
    pub(super) fn outro(&self, outcomes: &[Outcome], seconds: f64) {
        if outcomes.len() == ALL.len() {
            self.heading("What next");
            for (command, what) in NEXT {
                self.item(Ink::Request, command, 40, what);
            }
        }
        self.line("");
        let checks: usize = outcomes.iter().map(|outcome| outcome.checks.len()).sum();
        let bad = outcomes.iter().filter(|outcome| !outcome.is_right()).count();
        let (ink, verdict) = if bad == 0 {
            (Ink::Good, "✓ every result is right".to_owned())
        } else {
            (Ink::Bad, format!("✗ {bad} scenes went wrong"))
        };
        let s = if outcomes.len() == 1 { "" } else { "s" };
        let verdict = self.style.paint(ink, &verdict);
        let scenes = outcomes.len();
        self.line(&format!("  {verdict}: {scenes} scene{s}, {checks} checks, {seconds:.1} s"));
    }
}

/// Commands, and what they are for.
const NEXT: &[(&str, &str)] = &[
    ("feroce demo --only write", "one scene again"),
    ("feroce demo --fast --pcap demo.pcapng", "its packets, for Wireshark or for ..."),
    ("feroce decode --ladder demo.pcapng", "... this: what a capture holds"),
    ("feroce rc-pingpong --both", "messages back and forth, as ibv_rc_pingpong"),
    ("feroce perf write bw --both", "bandwidth and latency, properly measured"),
    ("feroce devices", "the addresses that RDMA can use here"),
    ("feroce help", "everything else"),
];

/// A rate, in at most ten characters: what is rounded to the next power of ten has its digits.
fn rate(gbit_s: f64) -> String {
    match gbit_s {
        9.95.. => format!("{gbit_s:.0} Gbit/s"),
        0.9995.. => format!("{gbit_s:.1} Gbit/s"),
        _ => format!("{:.0} Mbit/s", gbit_s * 1e3),
    }
}

fn bytes_name(size: usize) -> String {
    match size {
        1_048_576.. => format!("{} MiB", size >> 20),
        1024.. => format!("{} KiB", size >> 10),
        _ => format!("{size} B"),
    }
}

/// The record of a scene, as rungs of a ladder.
fn rungs(outcome: &Outcome) -> Vec<Rung> {
    let start = outcome.start();
    let mut rungs = Vec::new();
    for entry in &outcome.entries {
        match entry {
            Entry::Packet { side, direction: Direction::Sent, wall, bytes, .. } => {
                let Ok(packet) = Packet::parse(bytes) else { continue };
                let label = words::label(&packet, packet.payload.len());
                let mut notes = words::notes(&packet);
                if outcome.many_qps {
                    notes.insert(0, format!("to QP {}", words::qpn(packet.bth.dest_qp.get())));
                }
                let since = start.map_or(0, |start| wall.duration_since(start).as_nanos());
                rungs.push(Rung::Packet {
                    time: words::duration(u64::try_from(since).unwrap_or(u64::MAX)),
                    from: *side,
                    label,
                    notes,
                    ink: words::ink(&packet),
                });
            }
            Entry::Packet { .. } => {}
            Entry::Note { side, text, ink } => {
                rungs.push(Rung::Event { side: *side, text: text.clone(), ink: *ink });
            }
        }
    }
    rungs
}

/// A scene, as JSON.
pub(super) fn scene_json(outcome: &Outcome, with_code: bool) -> Value {
    let start = outcome.start();
    let side_name = |side: Side| if side == Side::Left { "A" } else { "B" };
    let mut story = Vec::new();
    for entry in &outcome.entries {
        match entry {
            Entry::Packet { side, direction: Direction::Sent, wall, dst, bytes, .. } => {
                let Ok(packet) = Packet::parse(bytes) else { continue };
                let mut map = words::json(&packet, packet.payload.len());
                let since = start.map_or(0, |start| wall.duration_since(start).as_nanos());
                map.insert("from".to_owned(), json!(side_name(*side)));
                map.insert("to".to_owned(), json!(dst.to_string()));
                map.insert("time_ns".to_owned(), json!(u64::try_from(since).unwrap_or(u64::MAX)));
                story.push(json!({ "packet": map }));
            }
            Entry::Packet { .. } => {}
            Entry::Note { side, text, .. } => {
                story.push(json!({ "event": { "at": side_name(*side), "what": text } }));
            }
        }
    }
    let checks: Vec<Value> =
        outcome.checks.iter().map(|(what, ok)| json!({ "what": what, "ok": ok })).collect();
    let mut all = json!({
        "name": outcome.scene.name, "title": outcome.scene.title, "ok": outcome.is_right(),
        "error": outcome.error, "story": story, "checks": checks });
    if with_code {
        all["code"] =
            json!({ "rust": outcome.scene.code.in_rust(), "c": outcome.scene.code.in_c() });
    }
    all
}

/// A progress bar on standard error, if that is a terminal.
pub(super) fn progress(done: usize, total: usize, what: &str) {
    const WIDTH: usize = 30;
    let mut err = std::io::stderr();
    if !err.is_terminal() {
        return;
    }
    let filled = WIDTH * done / total.max(1);
    let bar = format!("{}{}", "#".repeat(filled), ".".repeat(WIDTH - filled));
    let text = match what {
        "" => String::new(),
        what => format!("  measuring [{bar}] {what}"),
    };
    // If standard error is closed, there is no place to report the error.
    let _ = write!(err, "\r{text:<70}\r{}", text.trim_end());
    let _ = err.flush();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_fit_their_column() {
        let rates = [0.0994, 0.9994, 0.9996, 1.04, 9.94, 9.96, 99.96, 999.4];
        let shown = rates.map(rate);
        assert_eq!(
            shown[1..6],
            ["999 Mbit/s", "1.0 Gbit/s", "1.0 Gbit/s", "9.9 Gbit/s", "10 Gbit/s"]
        );
        assert!(shown.iter().all(|text| text.len() <= 10), "{shown:?}");
    }
}
