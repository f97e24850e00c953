//! docs/SECURITY.md against the tests: every attack has a test, and every test that the page names
//! exists.

use super::tree::{File, Problem, Tree};
use crate::source::words;

const PAGE: &str = "docs/SECURITY.md";

/// Every cell under the heading `test` names tests: `crate: file: name`, or `crate: name`, with a
/// semicolon before the next crate. A test without a crate belongs to that of the test before it.
/// The cell says `none` where only the protocol or the program could prevent the attack.
pub(crate) fn check(tree: &Tree) -> Vec<Problem> {
    let Some(page) = tree.get(PAGE) else { return Vec::new() };
    let mut problems = Vec::new();
    let mut column = None;
    for (number, line) in page.text.lines().enumerate().map(|(index, line)| (index + 1, line)) {
        let cells: Vec<&str> = match line.strip_prefix('|') {
            Some(row) => row.trim_end_matches('|').split('|').map(str::trim).collect(),
            None => {
                column = None;
                continue;
            }
        };
        let Some(at) = column else {
            column = cells.iter().position(|cell| *cell == "test").or(Some(usize::MAX));
            continue;
        };
        let Some(cell) = cells.get(at).filter(|cell| !cell.starts_with("---")) else { continue };
        let complain = |why| Problem::new(PAGE, number, why);
        problems.extend(wrong(tree, cell).into_iter().map(complain));
    }
    problems
}

/// What is wrong with the tests that a cell names.
fn wrong(tree: &Tree, cell: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let (mut folder, mut count) = ("", 0);
    for clause in cell.split(';').map(str::trim) {
        let (head, names) = clause.split_once('`').unwrap_or((clause, ""));
        let mut places = head.split(':').map(str::trim).filter(|place| !place.is_empty());
        let first = places.next().unwrap_or_default();
        let place = match tree.crates().find(|(name, _)| *name == first) {
            Some((name, _)) => {
                folder = name;
                places.next().unwrap_or_default().replace("::", "/")
            }
            None => String::new(),
        };
        let is_name = |name: &&str| !name.is_empty() && !name.contains('/');
        for name in names.split('`').step_by(2).filter(is_name) {
            count += 1;
            if !tree.rust_files().any(|file| is_at(file, folder, &place) && has_test(file, name)) {
                problems.push(format!("there is no test `{name}` in {folder} {place}"));
            }
        }
    }
    if count == 0 && cell != "none" {
        problems.push("an attack without a test: name one, or say `none`".to_owned());
    }
    problems
}

/// Whether a file of a crate is `place` or lies under it; tests may lie beside the code.
fn is_at(file: &File, folder: &str, place: &str) -> bool {
    let Some(rest) = file.path.strip_prefix(&format!("crates/{folder}/")) else { return false };
    let is_it = |part: &str| part == place || part.strip_suffix(".rs") == Some(place);
    place.is_empty() || rest.split('/').any(is_it) || rest.contains(&format!("/{place}"))
}

/// Whether a file has a test of that name: the attribute stands above the function.
fn has_test(file: &File, name: &str) -> bool {
    let declared = format!("fn {name}");
    words(&file.code, &declared).any(|at| {
        let above = file.code.get(..at).unwrap_or_default().lines().rev();
        above.take_while(|line| !line.contains('}')).any(|line| line.contains("test]"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(cell: &str) -> usize {
        let page = format!("| cannot | test |\n|---|---|\n| sleep | {cell} |\n\n| a | b |\n");
        let source = "fn helper() {}\n#[test]\n#[cfg(x)]\nfn it_wakes() {}\n";
        let files = [
            (PAGE, page.as_str()),
            ("crates/cm/Cargo.toml", ""),
            ("crates/cm/tests/floods.rs", source),
            ("crates/mem/Cargo.toml", ""),
            ("crates/mem/src/table/tests.rs", "#[test]\nfn it_counts() {}\n"),
        ];
        check(&Tree::of(&files)).len()
    }

    #[test]
    fn tests_that_are_named_exist() {
        assert_eq!(count("cm: floods: `it_wakes`; mem: `it_counts`"), 0);
        assert_eq!(count("mem: table: `it_counts`, `it_counts`; the targets in `fuzz/`"), 0);
        assert_eq!(count("cm: floods: `it_wakes`; of the same: `it_wakes`"), 0);
        assert_eq!(count("none"), 0);
        assert_eq!(count(""), 1);
        assert_eq!(count("the targets in `fuzz/`"), 1);
        assert_eq!(count("cm: `helper`"), 1);
        assert_eq!(count("cm: stale: `it_wakes`"), 1);
        assert_eq!(count("mem: `it_wakes`, `it_sleeps`"), 2);
    }
}
