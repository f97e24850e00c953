//! ARCHITECTURE.md against the code: its tables name every crate, which crates use `std`, unsafe
//! code and each other, and functions at the seams that exist.

use super::graph::folder_of;
use super::policy::NO_STD;
use super::tree::{File, Problem, Tree};
use crate::manifest::Manifest;
use crate::source::words;

const PAGE: &str = "ARCHITECTURE.md";

/// A table of the page.
struct Table<'a> {
    headings: Vec<&'a str>,
    /// Lines and cells.
    rows: Vec<(usize, Vec<&'a str>)>,
}

impl<'a> Table<'a> {
    /// The table whose first heading is `first`; without rows if there is none.
    fn find(page: &'a File, first: &str) -> Self {
        let lines = page.text.lines().enumerate().map(|(index, line)| (index + 1, line));
        let mut rows = lines
            .skip_while(|(_, line)| !line.starts_with('|') || cells(line)[0] != first)
            .take_while(|(_, line)| line.starts_with('|'))
            .map(|(line, text)| (line, cells(text)));
        let headings = rows.next().map_or_else(Vec::new, |(_, headings)| headings);
        // The second line is a rule.
        Self { headings, rows: rows.skip(1).collect() }
    }

    /// The cell of a row under `heading`, or nothing.
    fn cell(&self, row: &[&'a str], heading: &str) -> &'a str {
        let column = self.headings.iter().position(|&name| name == heading);
        column.and_then(|column| row.get(column)).copied().unwrap_or_default()
    }
}

fn cells(line: &str) -> Vec<&str> {
    let inside = line.trim().trim_start_matches('|').trim_end_matches('|');
    inside.split('|').map(str::trim).collect()
}

/// The crate table has a row for each crate, and its columns `std`, `unsafe` and `uses` are true.
pub(crate) fn crates(tree: &Tree) -> Vec<Problem> {
    let Some(page) = tree.get(PAGE) else {
        return Vec::new();
    };
    let table = Table::find(page, "crate");
    let mut problems = Vec::new();
    for (name, manifest) in tree.crates() {
        let row = table.rows.iter().find(|(_, row)| row[0].trim_matches('`') == name);
        let Some((line, row)) = row else {
            let message = format!("`{name}` has no row in the crate table of {PAGE}");
            problems.push(Problem::new(&manifest.path, 1, message));
            continue;
        };
        let mut expect = |heading: &str, wanted: String| {
            let message = format!("`{name}`: the column `{heading}` must be `{wanted}`");
            problems.push(Problem::new(PAGE, *line, message));
        };
        let std = if NO_STD.contains(&name) { "no" } else { "yes" };
        if table.cell(row, "std") != std {
            expect("std", std.to_owned());
        }
        if !is_unsafe_as(tree, name, table.cell(row, "unsafe")) {
            expect("unsafe", how_unsafe(tree, name));
        }
        let used = used_by(&Manifest::parse(&manifest.text));
        let mut said: Vec<&str> = table.cell(row, "uses").split_whitespace().collect();
        said.retain(|name| *name != "–");
        said.sort_unstable();
        if said != used {
            expect("uses", if used.is_empty() { "–".to_owned() } else { used.join(" ") });
        }
    }
    for (line, row) in &table.rows {
        let name = row[0].trim_matches('`');
        if !tree.crates().any(|(known, _)| known == name) {
            problems.push(Problem::new(PAGE, *line, format!("there is no crate `{name}`")));
        }
    }
    problems
}

/// The crates of the project that a crate depends on, its tests aside, in alphabetical order.
fn used_by(manifest: &Manifest) -> Vec<String> {
    let dependencies = manifest.dependencies();
    let used = dependencies.iter().filter(|dependency| !dependency.dev);
    let mut used: Vec<String> =
        used.filter_map(|used| folder_of(used.package)).map(str::to_owned).collect();
    used.sort_unstable();
    used.dedup();
    used
}

/// Whether the column `unsafe` may say this: `forbidden`, `none`, `yes`, or the number of files.
fn is_unsafe_as(tree: &Tree, name: &str, said: &str) -> bool {
    match said {
        "none" => unsafe_files(tree, name) == 0,
        "yes" => unsafe_files(tree, name) > 0,
        _ => said == how_unsafe(tree, name),
    }
}

/// `forbidden`, or in how many files there is unsafe code.
fn how_unsafe(tree: &Tree, name: &str) -> String {
    if forbids_unsafe(tree, name) {
        "forbidden".to_owned()
    } else {
        count_of_files(unsafe_files(tree, name))
    }
}

fn count_of_files(count: usize) -> String {
    if count == 1 { "1 file".to_owned() } else { format!("{count} files") }
}

fn sources<'a>(tree: &'a Tree, name: &str) -> impl Iterator<Item = &'a File> {
    let folder = format!("crates/{name}/src");
    tree.rust_files().filter(move |file| file.is_under(&folder))
}

fn unsafe_files(tree: &Tree, name: &str) -> usize {
    let has = |file: &&File| words(&file.code, concat!("uns", "afe")).next().is_some();
    sources(tree, name).filter(|file| !file.is_unit_tests()).filter(has).count()
}

fn forbids_unsafe(tree: &Tree, name: &str) -> bool {
    let library = tree.get(&format!("crates/{name}/src/lib.rs"));
    library.is_some_and(|file| file.code.contains("#![forbid(unsafe_code)]"))
}

/// Every function that the seam table names is in a crate that its row names.
pub(crate) fn seams(tree: &Tree) -> Vec<Problem> {
    let Some(page) = tree.get(PAGE) else {
        return Vec::new();
    };
    let mut problems = Vec::new();
    for (line, row) in &Table::find(page, "seam").rows {
        let named = |name: &&str| words(row[0], name).next().is_some();
        let crates: Vec<&str> = tree.crates().map(|(name, _)| name).filter(named).collect();
        for function in row[1..].iter().flat_map(|cell| functions(cell)) {
            let declared = format!("fn {function}");
            let is_there = crates.iter().any(|name| {
                sources(tree, name).any(|file| words(&file.code, &declared).next().is_some())
            });
            if !is_there {
                let message = format!("no `{declared}` in {}", crates.join(", "));
                problems.push(Problem::new(PAGE, *line, message));
            }
        }
    }
    problems
}

/// The functions that a cell names in backticks: `name`, `name(…)`, `Type::name(…)`.
fn functions(cell: &str) -> Vec<&str> {
    let quoted = cell.split('`').skip(1).step_by(2);
    quoted
        .filter_map(|text| {
            let path = text.split(['(', ' ']).next()?;
            let name = path.rsplit("::").next()?;
            let is_function = name.chars().all(|c| c == '_' || c.is_ascii_lowercase());
            (is_function && !name.is_empty()).then_some(name)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CRATES: &str = "\
| crate | std | unsafe | uses | owns |
|---|---|---|---|---|
| `mem` | no | 1 file | wire | memory |
| `wire` | no | forbidden | – | headers |
";

    fn tree(page: &str) -> Tree {
        Tree::of(&[
            (PAGE, page),
            ("crates/mem/Cargo.toml", "[dependencies]\nferoce-wire.workspace = true"),
            ("crates/mem/src/lib.rs", "unsafe fn copy() {}\npub fn poll_event() {}\n"),
            ("crates/wire/Cargo.toml", "[dev-dependencies]\nferoce-mem.workspace = true"),
            ("crates/wire/src/lib.rs", "#![forbid(unsafe_code)]\n"),
        ])
    }

    #[test]
    fn the_crate_table_is_true() {
        let count = |page: &str| crates(&tree(page)).len();
        assert_eq!(count(CRATES), 0);
        assert_eq!(count(&CRATES.replace("`mem` | no", "`mem` | yes")), 1);
        assert_eq!(count(&CRATES.replace("1 file", "2 files")), 1);
        assert_eq!(count(&CRATES.replace("1 file", "forbidden")), 1);
        assert_eq!(count(&CRATES.replace("1 file", "yes")), 0);
        assert_eq!(count(&CRATES.replace("| wire |", "| – |")), 1);
        assert_eq!(count(&CRATES.replace("| – |", "| mem |")), 1);
        assert_eq!(count(&CRATES.replace("`wire`", "`ring`")), 2);
        assert_eq!(count(""), 2);
    }

    #[test]
    fn seams_exist() {
        let page = |cell: &str| format!("| seam | in |\n|---|---|\n| mem – driver | {cell} |\n");
        let count = |cell: &str| seams(&tree(&page(cell))).len();
        assert_eq!(count("`poll_event`: events, `poll_event(now) -> Event`"), 0);
        assert_eq!(count("`Mem::copy(now)` as a `Single`, `create_…`"), 0);
        assert_eq!(count("`poll_events`"), 1);
        assert_eq!(count("`Mem::gone()`, `gone(now)`"), 2);
    }
}
