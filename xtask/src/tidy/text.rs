//! How files look, whatever they say.

use super::tree::{File, Problem, Tree};
use crate::source::{line_of, lines_before_tests, words};

const MAX_COLUMNS: usize = 100;
const MAX_LINES: usize = 600;

/// Files that people write by hand.
const WRITTEN: &[&str] = &["rs", "toml", "md", "sh", "py", "c", "h", "yml", "yaml"];

fn is_written(file: &&File) -> bool {
    WRITTEN.contains(&file.extension())
}

pub(crate) fn layout(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in tree.files().iter().filter(is_written) {
        for (index, line) in file.text.lines().enumerate() {
            let mut complain =
                |message: String| problems.push(Problem::new(&file.path, index + 1, message));
            let columns = line.chars().count();
            if file.is_rust() && columns > MAX_COLUMNS && !may_be_long(line) {
                complain(format!("{columns} columns, more than {MAX_COLUMNS}"));
            }
            if line.contains('\t') {
                complain("a tab".to_owned());
            }
            if line.ends_with(char::is_whitespace) {
                complain("white space at the end of the line".to_owned());
            }
        }
        if !file.text.is_empty() && !file.text.ends_with('\n') {
            let last = file.text.lines().count();
            problems.push(Problem::new(&file.path, last, "no newline at the end of the file"));
        }
    }
    problems
}

/// A line that cannot be broken well: an address, or a file that is included.
fn may_be_long(line: &str) -> bool {
    ["://", "include_str!(", "include_bytes!(", "include!("].iter().any(|sign| line.contains(sign))
}

pub(crate) fn size(tree: &Tree) -> Vec<Problem> {
    let files = tree.rust_files().filter(|file| !file.is_unit_tests());
    let sizes = files.map(|file| (file, lines_before_tests(&file.code)));
    let large = sizes.filter(|(_, lines)| *lines > MAX_LINES);
    large
        .map(|(file, lines)| {
            let message = format!("{lines} lines before the unit tests, more than {MAX_LINES}");
            Problem::new(&file.path, MAX_LINES, message)
        })
        .collect()
}

/// Notes to self, in any text. Spelled in halves so that this file passes its own rule.
const NOTES: &[&str] =
    &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX"), concat!("HA", "CK")];

/// Code that must not stay.
const LEFTOVERS: &[&str] = &["dbg!", "todo!", "unimplemented!"];

pub(crate) fn leftovers(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in tree.files().iter().filter(is_written) {
        for note in NOTES {
            for at in words(&file.text, note) {
                let message = format!("`{note}`: do it, or write down what is missing as a fact");
                problems.push(Problem::new(&file.path, line_of(&file.text, at), message));
            }
        }
        for name in LEFTOVERS {
            for at in words(&file.code, name.trim_end_matches('!')) {
                if file.code[at..].starts_with(name) {
                    let message = format!("`{name}` must not stay");
                    problems.push(Problem::new(&file.path, line_of(&file.code, at), message));
                }
            }
        }
        for at in words(&file.code, "ignore") {
            if file.code[..at].trim_end().ends_with("#[") {
                let message = "an ignored test: make it run or take it out";
                problems.push(Problem::new(&file.path, line_of(&file.code, at), message));
            }
        }
    }
    problems
}

/// Where people and machines keep their things. Spelled in halves, as above.
const MACHINE_PATHS: &[&str] =
    &[concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/wo", "rk/")];

pub(crate) fn machine_paths(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in tree.files() {
        for path in MACHINE_PATHS {
            for (at, _) in file.text.match_indices(path) {
                // `example/…/x` and `$HOME/…` are the tail of some other path.
                let before = file.text[..at].chars().next_back();
                if before.is_some_and(|c| c.is_alphanumeric() || "._-}*".contains(c)) {
                    continue;
                }
                let message = format!("`{path}` is a path of one machine");
                problems.push(Problem::new(&file.path, line_of(&file.text, at), message));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(rule: fn(&Tree) -> Vec<Problem>, path: &str, text: &str) -> usize {
        rule(&Tree::of(&[(path, text)])).len()
    }

    #[test]
    fn layout_of_lines() {
        let wide = "x".repeat(MAX_COLUMNS + 1);
        assert_eq!(count(layout, "a.rs", "fn main() {}\n"), 0);
        assert_eq!(count(layout, "a.rs", ""), 0);
        assert_eq!(count(layout, "a.rs", &format!("{wide}\n")), 1);
        assert_eq!(count(layout, "a.rs", &format!("{}\n", "é".repeat(MAX_COLUMNS))), 0);
        assert_eq!(count(layout, "a.md", &format!("{wide}\n")), 0);
        assert_eq!(count(layout, "a.rs", &format!("// https://example.org/{wide}\n")), 0);
        assert_eq!(count(layout, "a.rs", &format!("include_str!(\"{wide}\")\n")), 0);
        assert_eq!(count(layout, "a.rs", "a\tb\n"), 1);
        assert_eq!(count(layout, "a.toml", "a \n"), 1);
        assert_eq!(count(layout, "a.rs", "a\r\n"), 0, "lines() takes the carriage return");
        assert_eq!(count(layout, "a.rs", "a"), 1);
        assert_eq!(count(layout, "capture.txt", "a \t"), 0);
    }

    #[test]
    fn size_leaves_unit_tests_out() {
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "    x\n".repeat(MAX_LINES));
        assert_eq!(count(size, "a.rs", &"x\n".repeat(MAX_LINES)), 0);
        assert_eq!(count(size, "a.rs", &"x\n".repeat(MAX_LINES + 1)), 1);
        assert_eq!(count(size, "a.rs", &format!("{}{tests}", "x\n".repeat(MAX_LINES))), 0);
        assert_eq!(count(size, "crates/a/src/b/tests.rs", &"x\n".repeat(MAX_LINES + 1)), 0);
        assert_eq!(count(size, "crates/a/tests/b.rs", &"x\n".repeat(MAX_LINES + 1)), 1);
    }

    #[test]
    fn leftovers_are_found() {
        for note in NOTES {
            assert_eq!(count(leftovers, "a.rs", &format!("// {note}: later\n")), 1, "{note}");
            assert_eq!(count(leftovers, "a.rs", &format!("// {note}S and a{note}\n")), 0);
        }
        for name in LEFTOVERS {
            assert_eq!(count(leftovers, "a.rs", &format!("fn f() {{ {name}(1) }}")), 1, "{name}");
            assert_eq!(count(leftovers, "a.rs", &format!("// {name}(1)\n\"{name}\";")), 0);
        }
        assert_eq!(count(leftovers, "a.rs", "#[ignore]\n#[ignore = \"slow\"]\n"), 2);
        assert_eq!(count(leftovers, "a.rs", "let ignore = todo(1);\n"), 0);
    }

    #[test]
    fn paths_of_machines_are_found() {
        for path in MACHINE_PATHS {
            assert_eq!(count(machine_paths, "notes.txt", &format!("see {path}x\n")), 1, "{path}");
            assert_eq!(count(machine_paths, "a.rs", &format!("\"{path}x\"\n")), 1, "{path}");
            assert_eq!(count(machine_paths, "a.md", &format!("https://a.org{path}x\n")), 0);
        }
    }
}
