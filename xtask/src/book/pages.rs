//! The pages of the book: those of `docs/`, and the files outside of it that they link to, each as
//! a page of its own, so that the book is complete without the repository.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use super::{failed, read, write};
use crate::Outcome;

const DOCS: &str = "docs";

/// Where the pages of files outside of `docs/` are.
const FILES: &str = "files";

/// Copies the pages from the repository into a folder for mdBook.
pub(super) fn gather(root: &Path, to: &Path) -> Outcome {
    let mut wanted = BTreeSet::new();
    copy(root, Path::new(DOCS), to, &mut wanted)?;
    // Chapters that are not in a list have no number.
    let mut list = String::from("\n# Files\n\n");
    for file in wanted {
        let page = place(&file);
        let text = read(&root.join(&file))?;
        let text = match file.extension().is_some_and(|end| end == "md") {
            // Its own links to files that are not here stay what they are.
            true => text,
            false => page_of(&file, &text),
        };
        write(&to.join(&page), &text)?;
        list.push_str(&format!("[{}]({})\n\n", file.display(), page.display()));
    }
    let summary = to.join("SUMMARY.md");
    let text = read(&summary)?;
    write(&summary, &(text + &list))
}

fn copy(root: &Path, folder: &Path, to: &Path, wanted: &mut BTreeSet<PathBuf>) -> Outcome {
    let from = root.join(folder);
    let entries = fs::read_dir(&from).map_err(|e| failed("cannot list", &from, &e))?;
    for entry in entries {
        let entry = entry.map_err(|e| failed("cannot list", &from, &e))?;
        let file = folder.join(entry.file_name());
        if entry.path().is_dir() {
            copy(root, &file, to, wanted)?;
        } else if file.extension().is_some_and(|end| end == "md") {
            let text =
                relink(&file, &read(&entry.path())?, |path| root.join(path).is_file(), wanted);
            write(&to.join(place(&file)), &text)?;
        } else {
            let target = to.join(place(&file));
            let folder = target.parent().map_or(Ok(()), fs::create_dir_all);
            let copied = folder.and_then(|()| fs::copy(entry.path(), &target));
            copied.map_err(|e| failed("cannot copy to", &target, &e))?;
        }
    }
    Ok(())
}

/// Where a file of the repository is in the book.
fn place(file: &Path) -> PathBuf {
    match file.strip_prefix(DOCS) {
        Ok(inside) => inside.to_owned(),
        Err(_) if file.extension().is_some_and(|end| end == "md") => Path::new(FILES).join(file),
        Err(_) => Path::new(FILES).join(format!("{}.md", file.display())),
    }
}

/// A page that shows a file.
fn page_of(file: &Path, text: &str) -> String {
    let language = match file.extension().and_then(|end| end.to_str()) {
        Some("rs") => "rust",
        Some("py") => "python",
        Some("yml") => "yaml",
        Some(other) => other,
        None => "text",
    };
    let newline = if text.ends_with('\n') { "" } else { "\n" };
    format!("# {}\n\n`````{language}\n{text}{newline}`````\n", file.display())
}

/// The text of a page of `docs/`, with links out of it leading to pages of the book.
fn relink(
    page: &Path,
    text: &str,
    is_file: impl Fn(&Path) -> bool,
    wanted: &mut BTreeSet<PathBuf>,
) -> String {
    let folder = page.parent().unwrap_or_else(|| Path::new(""));
    let mut parts = text.split("](");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out.push_str("](");
        let (link, rest) = part.split_once(')').unwrap_or((part, ""));
        let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
        let file = normal(&folder.join(path));
        let is_ours = path.starts_with("../") && !file.starts_with(DOCS) && is_file(&file);
        if !is_ours {
            out.push_str(part);
            continue;
        }
        let up = "../".repeat(place(page).components().count() - 1);
        out.push_str(&format!("{up}{}", place(&file).display()));
        if !anchor.is_empty() {
            out.push_str(&format!("#{anchor}"));
        }
        out.push(')');
        out.push_str(rest);
        wanted.insert(file);
    }
    out
}

/// A path without `..` in it.
fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                out.pop();
            }
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_out_of_the_pages_lead_to_pages_of_files() {
        let mut wanted = BTreeSet::new();
        let text = "[a](../../examples/c/a.c), [b](../API.md#x) and [c](../../gone.rs) (see)";
        let page = Path::new("docs/tutorial/memory.md");
        let is_file = |path: &Path| path != Path::new("gone.rs");
        let relinked = relink(page, text, is_file, &mut wanted);
        let expected =
            "[a](../files/examples/c/a.c.md), [b](../API.md#x) and [c](../../gone.rs) (see)";
        assert_eq!(relinked, expected);
        assert_eq!(wanted.into_iter().collect::<Vec<_>>(), [Path::new("examples/c/a.c")]);
    }

    #[test]
    fn a_file_is_shown_as_it_is() {
        let page = page_of(Path::new("examples/c/a.c"), "int a; // ```\n");
        assert_eq!(page, "# examples/c/a.c\n\n`````c\nint a; // ```\n`````\n");
    }
}
