//! Text style: colours if the terminal supports them, and the width.

use std::env;
use std::io::IsTerminal;

/// The kind of a piece of text, which determines its colour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ink {
    /// Headings and names.
    Bold,
    /// Less important text.
    Dim,
    /// Packets of a requester.
    Request,
    /// Packets of a responder.
    Answer,
    /// Actions of an application or an adapter without a packet.
    Event,
    /// Success.
    Good,
    /// Failure.
    Bad,
}

impl Ink {
    const fn code(self) -> &'static str {
        match self {
            Self::Bold => "1",
            Self::Dim => "2",
            Self::Request => "36",
            Self::Answer => "32",
            Self::Event => "33",
            Self::Good => "32",
            Self::Bad => "31",
        }
    }
}

/// How to write to a terminal, or to a file or pipe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Style {
    /// Use escape sequences.
    color: bool,
    /// Use ASCII only.
    ascii: bool,
    /// Columns to fill.
    pub(crate) width: usize,
}

impl Style {
    /// Fewest columns that the output is made for, and most that it uses.
    const WIDTHS: (usize, usize) = (80, 100);

    /// The style for standard output: no escapes if it is not a terminal, or `NO_COLOR` is set.
    pub(crate) fn for_stdout(ascii: bool) -> Self {
        let is_set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
        let is_terminal = std::io::stdout().is_terminal();
        let columns = terminal_size::terminal_size().map_or(96, |(width, _)| usize::from(width.0));
        let width = if is_terminal { columns } else { 96 };
        Self {
            color: is_terminal && !is_dumb && !is_set("NO_COLOR"),
            ascii,
            width: width.clamp(Self::WIDTHS.0, Self::WIDTHS.1),
        }
    }

    /// No escapes.
    pub(crate) const fn plain(width: usize) -> Self {
        Self { color: false, ascii: false, width }
    }

    /// `text` in the colour of `ink`.
    pub(crate) fn paint(&self, ink: Ink, text: &str) -> String {
        if self.color && !text.is_empty() {
            format!("\x1b[{}m{text}\x1b[0m", ink.code())
        } else {
            text.to_owned()
        }
    }

    /// `text` in ASCII, if only that may be printed.
    pub(crate) fn finish(&self, text: &str) -> String {
        if !self.ascii {
            return text.to_owned();
        }
        let mut out = String::with_capacity(text.len());
        for c in text.chars() {
            match c {
                '─' | '━' | '–' => out.push('-'),
                '│' | '├' | '┤' => out.push('|'),
                '▶' => out.push('>'),
                '◀' => out.push('<'),
                '●' | '✓' => out.push('*'),
                '✗' => out.push('!'),
                '·' => out.push('.'),
                'µ' => out.push('u'),
                '×' => out.push('x'),
                '→' => out.push_str("->"),
                c if c.is_ascii() => out.push(c),
                _ => out.push('?'),
            }
        }
        out
    }
}

/// Columns that `text` takes; every character that we print takes one.
pub(crate) fn columns(text: &str) -> usize {
    text.chars().count()
}

/// `text` in lines of at most `width` columns, broken between words where possible.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let used = lines.last().map_or(0, |line| columns(line));
        if used > 0 && used + 1 + columns(word) > width {
            lines.push(String::new());
        }
        for (i, piece) in pieces(word, width).into_iter().enumerate() {
            if i > 0 {
                lines.push(String::new());
            }
            if let Some(line) = lines.last_mut() {
                if !line.is_empty() {
                    line.push(' ');
                }
                line.push_str(&piece);
            }
        }
    }
    lines
}

/// A word that is longer than a line, in lines.
fn pieces(word: &str, width: usize) -> Vec<String> {
    let chars: Vec<char> = word.chars().collect();
    chars.chunks(width).map(|part| part.iter().collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_wrapped_between_words() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("", 7), [""]);
        assert_eq!(wrap("abcdefgh ij", 3), ["abc", "def", "gh", "ij"]);
        for width in 1..20 {
            let lines = wrap("a bb ccc dddd eeeee ffffff", width);
            assert!(lines.iter().all(|line| columns(line) <= width), "{width}: {lines:?}");
        }
    }

    #[test]
    fn ascii_is_ascii() {
        let style = Style { ascii: true, ..Style::plain(80) };
        assert_eq!(style.finish("●│◀──▶ 3 µs × →"), "*|<--> 3 us x ->");
        assert!(style.finish("é").is_ascii());
        assert_eq!(style.paint(Ink::Bad, "x"), "x");
    }
}
