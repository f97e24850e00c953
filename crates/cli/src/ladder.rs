//! Ladder diagrams: two lifelines, and what passes between them, from top to bottom.
//!
//! ```text
//!       A 127.0.0.1                                            B 127.0.0.2
//!     post SEND ●                                              │
//!          0 µs ├─ SEND Only · PSN 100 · 64 B ────────────────▶│
//!         21 µs │◀───────────────────────── ACK · PSN 100 ─────┤
//! ```

use crate::style::{Ink, Style, columns, wrap};

/// One of the two lifelines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Left,
    Right,
}

/// One line of the diagram.
#[derive(Clone, Debug)]
pub(crate) enum Rung {
    /// A packet goes from one side to the other.
    Packet {
        /// The time, as printed.
        time: String,
        /// The sender.
        from: Side,
        /// The operation.
        label: String,
        /// Header fields, most important first. Those that fit stand on the arrow, the others below
        /// it.
        notes: Vec<String>,
        /// Its colour.
        ink: Ink,
    },
    /// An event on one side, without a packet.
    Event {
        /// The side.
        side: Side,
        /// The text.
        text: String,
        /// Its colour.
        ink: Ink,
    },
}

/// Draws rungs.
#[derive(Debug)]
pub(crate) struct Ladder {
    style: Style,
    /// Columns left of the left lifeline, between the two, and right of the right one.
    left: usize,
    middle: usize,
    right: usize,
}

impl Ladder {
    /// A ladder as wide as the output.
    pub(crate) fn new(style: Style) -> Self {
        let left = 14 + (style.width - 80) / 5;
        let right = 16 + (style.width - 80) / 5 * 2;
        Self { style, left, right, middle: style.width - left - right - 2 }
    }

    /// A ladder without room for events on the right.
    pub(crate) fn without_events(style: Style) -> Self {
        let left = 12;
        Self { style, left, right: 0, middle: style.width - left - 2 }
    }

    /// The header line with the names of the two sides.
    pub(crate) fn header(&self, left: &str, right: &str) -> Vec<String> {
        let left = cut(left, self.middle.saturating_sub(columns(right) + 1).max(self.middle / 2));
        let right = cut(right, self.middle.saturating_sub(columns(&left) + 1));
        let gap = self.middle.saturating_sub(columns(&left) + columns(&right)) + 2;
        let names = format!(
            "{}{}{}{}",
            " ".repeat(self.left),
            self.style.paint(Ink::Bold, &left),
            " ".repeat(gap),
            self.style.paint(Ink::Bold, &right)
        );
        vec![names, self.line("", "", "")]
    }

    /// The lines of one rung.
    pub(crate) fn rung(&self, rung: &Rung) -> Vec<String> {
        match rung {
            Rung::Packet { time, from, label, notes, ink } => {
                self.packet(time, *from, label, notes, *ink)
            }
            Rung::Event { side, text, ink } => self.event(*side, text, *ink),
        }
    }

    fn packet(
        &self,
        time: &str,
        from: Side,
        label: &str,
        notes: &[String],
        ink: Ink,
    ) -> Vec<String> {
        let mut label = cut(label, self.middle - 5);
        let mut below = Vec::new();
        for note in notes {
            if columns(&label) + 3 + columns(note) <= self.middle - 7 {
                label.push_str(&format!(" · {note}"));
            } else {
                below.push(note.as_str());
            }
        }
        let detail = below.join(", ");
        let shaft = "─".repeat(self.middle - columns(&label) - 4);
        let (arrow, start, end) = match from {
            Side::Left => (format!("─ {label} {shaft}▶"), "├", "│"),
            Side::Right => (format!("◀{shaft} {label} ─"), "│", "┤"),
        };
        let time = self.style.paint(Ink::Dim, &pad_left(time, self.left - 1));
        let arrow = self.style.paint(ink, &arrow);
        let mut lines = vec![format!("{time} {start}{arrow}{end}")];
        if !detail.is_empty() {
            for text in wrap(&detail, self.middle - 6) {
                let used = columns(&text);
                let (before, after) = match from {
                    Side::Left => (3, self.middle - 3 - used),
                    Side::Right => (self.middle - 3 - used, 3),
                };
                let text = self.style.paint(Ink::Dim, &text);
                lines.push(self.line(
                    "",
                    &format!("{}{text}", " ".repeat(before)),
                    &" ".repeat(after),
                ));
            }
        }
        lines
    }

    fn event(&self, side: Side, text: &str, ink: Ink) -> Vec<String> {
        let room = match side {
            Side::Left => self.left - 1,
            Side::Right => self.right - 1,
        };
        let blank = " ".repeat(self.middle);
        let lines = wrap(text, room);
        let rows = lines.iter().enumerate().map(|(i, line)| {
            let mark = if i == 0 { self.style.paint(ink, "●") } else { "│".to_owned() };
            match side {
                Side::Left => {
                    let text = self.style.paint(ink, &pad_left(line, self.left - 1));
                    format!("{text} {mark}{blank}│")
                }
                Side::Right => {
                    let text = self.style.paint(ink, line);
                    format!("{}│{blank}{mark} {text}", " ".repeat(self.left))
                }
            }
        });
        rows.collect()
    }

    /// The two lifelines, with something between them; together as wide as the middle.
    fn line(&self, left: &str, inside: &str, rest: &str) -> String {
        let inside = format!("{inside}{rest}");
        let inside = if inside.is_empty() { " ".repeat(self.middle) } else { inside };
        format!("{}│{inside}│", pad_left(left, self.left))
    }
}

/// `text` with spaces in front of it.
fn pad_left(text: &str, width: usize) -> String {
    format!("{}{text}", " ".repeat(width.saturating_sub(columns(text))))
}

/// `text`, cut if it is too long.
fn cut(text: &str, width: usize) -> String {
    if columns(text) <= width {
        return text.to_owned();
    }
    let mut out: String = text.chars().take(width.saturating_sub(2)).collect();
    out.push_str("..");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(from: Side, label: &str, note: &str) -> Rung {
        let (label, notes) = (label.to_owned(), vec![note.to_owned()]);
        Rung::Packet { time: "3 µs".to_owned(), from, label, notes, ink: Ink::Request }
    }

    #[test]
    fn lifelines_are_straight() {
        for width in 80..=100 {
            let ladder = Ladder::new(Style::plain(width));
            let long = "word ".repeat(40);
            let rungs = [
                packet(Side::Left, "SEND Only · PSN 1", "va 0x1 rkey 0x2"),
                packet(Side::Right, &long, &long),
                Rung::Event { side: Side::Left, text: long.clone(), ink: Ink::Event },
                Rung::Event { side: Side::Right, text: long.clone(), ink: Ink::Event },
            ];
            for line in rungs.iter().flat_map(|rung| ladder.rung(rung)) {
                let chars: Vec<char> = line.chars().collect();
                assert!(chars.len() <= width, "{width}: {line}");
                for at in [ladder.left, ladder.left + ladder.middle + 1] {
                    assert!("│├┤●".contains(chars[at]), "{width}: {line}");
                }
            }
        }
    }
}
