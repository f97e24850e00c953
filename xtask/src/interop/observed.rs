//! Observations of the two ends: in some rows they must be the same in all cells, whether feroce is
//! the client or the server (`interop/random.c`, `interop/swarm.c`).

use std::collections::BTreeMap;

use super::cells::Cell;
use crate::{Failure, Outcome};

/// The lines of an end's output that tell what it observed.
pub(super) fn lines(output: &str) -> String {
    let lines = output.lines().filter(|line| line.starts_with("plan ") || line.starts_with("  "));
    lines.map(|line| format!("{line}\n")).collect()
}

/// What was observed in the first cell of each row, with the name of the cell.
#[derive(Default, Debug)]
pub(super) struct Observed {
    rows: BTreeMap<(&'static str, &'static str), (String, String)>,
}

impl Observed {
    /// Fails if something else was observed in a cell than in an earlier one of its row.
    pub(super) fn compare(&mut self, cell: &Cell, text: String) -> Outcome {
        if !cell.row.is_compared {
            return Ok(());
        }
        let first = self.rows.entry((cell.row.programs[0], cell.row.options));
        let (name, first) = first.or_insert_with(|| (cell.name(), text.clone()));
        match difference(first, &text) {
            None => Ok(()),
            Some(what) => Err(Failure::Failed(format!("compared with `{name}`:\n{what}"))),
        }
    }
}

/// The first line in which two texts differ, with the plan that it belongs to.
fn difference(there: &str, here: &str) -> Option<String> {
    let (mut there, mut here, mut plan) = (there.lines(), here.lines(), "");
    loop {
        match (there.next(), here.next()) {
            (None, None) => return None,
            (one, other) if one == other => {
                plan = one.filter(|line| line.starts_with("plan ")).unwrap_or(plan);
            }
            (there, here) => {
                let line = |line: Option<&str>| line.unwrap_or("nothing").trim().to_owned();
                return Some(format!("{plan}\n  there: {}\n  here: {}", line(there), line(here)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_observed_is_kept() {
        assert_eq!(lines("warning\nplan 1\n  0 status 0\nend\n"), "plan 1\n  0 status 0\n");
    }

    #[test]
    fn the_first_difference_is_named() {
        let text = "plan 0\n  0 status 0\nplan 1\n  0 status 10\n";
        assert_eq!(difference(text, text), None);
        let other = text.replace("10", "9");
        let wanted = "plan 1\n  there: 0 status 10\n  here: 0 status 9";
        assert_eq!(difference(text, &other).as_deref(), Some(wanted));
        let wanted = "plan 1\n  there: 0 status 10\n  here: nothing";
        let shorter = &text[..text.len() - "  0 status 10\n".len()];
        assert_eq!(difference(text, shorter).as_deref(), Some(wanted));
    }
}
