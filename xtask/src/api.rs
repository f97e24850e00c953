//! `cargo xtask api`: the public interface of `feroce`, as recorded in `crates/feroce/api.txt`.
//!
//! The listing is taken from the pages that rustdoc writes: one line for each declaration, method
//! and implemented trait. It needs neither a nightly toolchain nor a network.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::args::Args;
use crate::shell::{cargo, root, run, target_dir};
use crate::{Failure, Outcome};

pub(crate) const HELP: &str = "\
Compares the public interface of `feroce` with the record in crates/feroce/api.txt.

Usage: cargo xtask api [--record]

Options:
  --record   Write the record instead of comparing; commit it with the change
";

/// The record, from the root of the tree.
const RECORD: &str = "crates/feroce/api.txt";

/// Most differences that a message shows.
const SHOWN: usize = 20;

pub(crate) fn main(mut args: Args) -> Outcome {
    let record = args.flag("--record");
    args.finish()?;
    if !record {
        return check();
    }
    let text = listing()?;
    fs::write(root().join(RECORD), text).map_err(|e| failed(Path::new(RECORD), &e))
}

/// Compares the interface with the record.
pub(crate) fn check() -> Outcome {
    let path = root().join(RECORD);
    let recorded = fs::read_to_string(&path).map_err(|e| failed(&path, &e))?;
    let now = listing()?;
    let differences = differences(&recorded, &now);
    if differences.is_empty() {
        return Ok(());
    }
    let mut shown = differences.iter().take(SHOWN).cloned().collect::<Vec<_>>();
    if differences.len() > SHOWN {
        shown.push(format!("… and {} more", differences.len() - SHOWN));
    }
    Err(Failure::Failed(format!(
        "the public interface of `feroce` differs from {RECORD}:\n{}\nIf the change is intended, \
         run `cargo xtask api --record`, commit the record, and say so in CHANGELOG.md.",
        shown.join("\n")
    )))
}

fn failed(path: &Path, e: &std::io::Error) -> Failure {
    Failure::Failed(format!("{}: {e}", path.display()))
}

/// Lines that only one of the two has, marked as in a diff.
fn differences(recorded: &str, now: &str) -> Vec<String> {
    let (old, new): (BTreeSet<&str>, BTreeSet<&str>) =
        (recorded.lines().collect(), now.lines().collect());
    let removed = old.difference(&new).map(|line| format!("- {line}"));
    let added = new.difference(&old).map(|line| format!("+ {line}"));
    removed.chain(added).collect()
}

/// The interface as text, one sorted line for each item.
fn listing() -> Outcome<String> {
    let pages = target_dir().join("doc/feroce");
    // Pages of items that are gone would stay.
    if pages.exists() {
        fs::remove_dir_all(&pages).map_err(|e| failed(&pages, &e))?;
    }
    run(&mut cargo(["doc", "--quiet", "--package", "feroce", "--no-deps", "--all-features"]))?;
    let mut lines = BTreeSet::new();
    for page in html_under(&pages)? {
        let name = page.strip_prefix(&pages).unwrap_or(&page).to_string_lossy().into_owned();
        if let Some(item) = item_of(&name) {
            let html = fs::read_to_string(&page).map_err(|e| failed(&page, &e))?;
            lines.extend(declarations(&html).into_iter().map(|text| format!("{item}: {text}")));
        }
    }
    Ok(lines.into_iter().map(|line| line + "\n").collect())
}

fn html_under(folder: &Path) -> Outcome<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(|e| failed(folder, &e))?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(html_under(&path)?);
        } else if path.extension().is_some_and(|end| end == "html") {
            found.push(path);
        }
    }
    Ok(found)
}

/// The item of a page: `cm/struct.CmId.html` is `cm::CmId`. Modules and overviews have none.
fn item_of(page: &str) -> Option<String> {
    let (folder, file) = page.rsplit_once('/').unwrap_or(("", page));
    let (_, name) = file.strip_suffix(".html")?.split_once('.')?;
    let path = folder.replace('/', "::");
    Some(if path.is_empty() { name.to_owned() } else { format!("{path}::{name}") })
}

/// What a page declares: the item, its methods, and the traits that it implements.
fn declarations(html: &str) -> Vec<String> {
    // What the compiler implements for every type is no news.
    let end = [r#"id="synthetic-implementations""#, r#"id="blanket-implementations""#];
    let own = end.iter().filter_map(|mark| html.find(mark)).min().unwrap_or(html.len());
    let own = &html[..own];
    let traits = own.find(r#"id="trait-implementations""#).unwrap_or(own.len());
    let mut found = between(own, r#"<pre class="rust item-decl">"#, "</pre>");
    found.extend(between(&own[..traits], r#"<h4 class="code-header">"#, "</h4>"));
    found.extend(between(own, r#"<h3 class="code-header">"#, "</h3>"));
    found.iter().map(|piece| text_of(piece)).collect()
}

/// The pieces of `text` between two marks.
fn between<'a>(text: &'a str, begin: &str, end: &str) -> Vec<&'a str> {
    text.split(begin).skip(1).filter_map(|rest| rest.split(end).next()).collect()
}

/// HTML without tags and entities, with single spaces. What folds long lists is left out.
fn text_of(html: &str) -> String {
    let folded = between(html, "<summary", "</summary>");
    let html = folded.iter().fold(html.to_owned(), |html, piece| html.replace(piece, ">"));
    let mut text = String::new();
    let mut is_tag = false;
    for c in html.chars() {
        match c {
            '<' => is_tag = true,
            '>' if is_tag => is_tag = false,
            c if !is_tag => text.push(c),
            _ => {}
        }
    }
    let entities =
        [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&nbsp;", " ")];
    for (entity, c) in entities {
        text = text.replace(entity, c);
    }
    text.replace("&amp;", "&").split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_become_lines() {
        let page = r#"<pre class="rust item-decl"><code>pub struct <a>Qp</a> {
            <summary class="x">Show 9 fields</summary>a: u8 }</code></pre>
            <h4 class="code-header">pub fn post(&amp;mut self) -&gt; Option&lt;u8&gt;</h4>
            <h2 id="trait-implementations"></h2><h3 class="code-header">impl Debug for Qp</h3>
            <h4 class="code-header">fn fmt(&amp;self)</h4>
            <h2 id="synthetic-implementations"></h2><h3 class="code-header">impl Send</h3>"#;
        let lines = declarations(page);
        assert_eq!(lines[0], "pub struct Qp { a: u8 }");
        assert_eq!(lines[1..], ["pub fn post(&mut self) -> Option<u8>", "impl Debug for Qp"]);
    }

    #[test]
    fn items_have_the_paths_of_their_pages() {
        assert_eq!(item_of("cm/struct.CmId.html").as_deref(), Some("cm::CmId"));
        assert_eq!(item_of("struct.Qp.html").as_deref(), Some("Qp"));
        assert_eq!(item_of("cm/index.html"), None);
    }

    #[test]
    fn differences_are_marked() {
        assert_eq!(differences("a\nb\n", "b\nc\n"), ["- a", "+ c"]);
        assert!(differences("a\n", "a\n").is_empty());
    }
}
