//! The files that the rules look at.

use core::fmt;
use std::path::Path;
use std::process::Command;

use crate::shell::ask;
use crate::source::code_only;
use crate::{Failure, Outcome};

/// A violation of a rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Problem {
    path: String,
    line: usize,
    message: String,
}

impl Problem {
    pub(crate) fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// A text file of the tree.
#[derive(Debug)]
pub(crate) struct File {
    /// Relative to the root, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
    /// For Rust files the text without comments and literals, otherwise empty.
    pub(crate) code: String,
}

impl File {
    fn new(path: &str, text: String) -> Self {
        let code = if path.ends_with(".rs") { code_only(&text) } else { String::new() };
        Self { path: path.to_owned(), text, code }
    }

    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// What follows the last dot of the name, or nothing.
    pub(crate) fn extension(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        name.rsplit_once('.').map_or("", |(_, extension)| extension)
    }

    /// Whether the file lies under `folder`.
    pub(crate) fn is_under(&self, folder: &str) -> bool {
        self.path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
    }

    /// Whether the whole file is unit tests, kept beside the code that they test.
    pub(crate) fn is_unit_tests(&self) -> bool {
        self.path.ends_with("/tests.rs")
            || self.path.contains("/src/") && self.path.contains("/tests/")
    }
}

/// Every text file of the project, in the order of their paths.
#[derive(Debug)]
pub(crate) struct Tree {
    files: Vec<File>,
    /// The files that are committed or about to be, if git could say.
    tracked: Option<Vec<String>>,
}

impl Tree {
    /// Reads the files that git tracks or would track, or all of them where there is no git.
    pub(crate) fn read(root: &Path) -> Outcome<Self> {
        let tracked = git_files(root, &["--cached"]);
        let mut paths = match git_files(root, &["--cached", "--others", "--exclude-standard"]) {
            Some(paths) => paths,
            None => {
                let mut paths = Vec::new();
                walk(root, "", &mut paths).map_err(|e| Failure::Failed(format!("tidy: {e}")))?;
                paths
            }
        };
        paths.sort();
        paths.dedup();
        let read = |path: &String| {
            let bytes = std::fs::read(root.join(path)).ok()?;
            let text = String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))?;
            Some(File::new(path, text))
        };
        Ok(Self { files: paths.iter().filter_map(read).collect(), tracked })
    }

    /// A tree made up for a test.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let files = files.iter().map(|(path, text)| File::new(path, (*text).to_owned())).collect();
        Self { files, tracked: None }
    }

    pub(crate) fn files(&self) -> &[File] {
        &self.files
    }

    pub(crate) fn rust_files(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.is_rust())
    }

    pub(crate) fn get(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Whether there is a file or folder of this path, text or not.
    pub(crate) fn has(&self, path: &str) -> bool {
        let is_it = |name: &str| {
            name.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let tracked = self.tracked.iter().flatten();
        path.is_empty()
            || self.files.iter().any(|file| is_it(&file.path))
            || tracked.into_iter().any(|name| is_it(name))
    }

    /// The folders directly under `crates/` that hold a manifest, with that manifest.
    pub(crate) fn crates(&self) -> impl Iterator<Item = (&str, &File)> {
        self.files.iter().filter_map(|file| {
            let name = file.path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml")?;
            (!name.contains('/')).then_some((name, file))
        })
    }

    /// Whether git tracks the file; where git cannot say, whether it is there.
    pub(crate) fn is_tracked(&self, path: &str) -> bool {
        match &self.tracked {
            Some(paths) => paths.iter().any(|tracked| tracked == path),
            None => self.get(path).is_some(),
        }
    }
}

fn git_files(root: &Path, which: &[&str]) -> Option<Vec<String>> {
    let mut git = Command::new("git");
    let listing = ask(git.current_dir(root).args(["ls-files", "-z"]).args(which))?;
    Some(listing.split_terminator('\0').map(str::to_owned).collect())
}

fn walk(folder: &Path, prefix: &str, paths: &mut Vec<String>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type()?;
        if kind.is_dir() && name != "target" && name != ".git" {
            walk(&entry.path(), &format!("{prefix}{name}/"), paths)?;
        } else if kind.is_file() {
            paths.push(format!("{prefix}{name}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_are_the_folders_with_a_manifest() {
        let tree = Tree::of(&[
            ("Cargo.toml", ""),
            ("crates/a/Cargo.toml", ""),
            ("crates/a/fixture/Cargo.toml", ""),
            ("crates/b/src/lib.rs", ""),
        ]);
        assert_eq!(tree.crates().map(|(name, _)| name).collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn folders_are_not_prefixes() {
        let tree = Tree::of(&[("crates/ringlet/src/lib.rs", "")]);
        assert!(!tree.files()[0].is_under("crates/ring"));
        assert!(tree.files()[0].is_under("crates/ringlet"));
    }

    #[test]
    fn problems_are_one_line() {
        assert_eq!(Problem::new("a/b.rs", 7, "too long").to_string(), "a/b.rs:7: too long");
    }
}
