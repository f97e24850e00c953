//! What every Cargo.toml says, and the lock files beside them.

use super::tree::{Problem, Tree};
use crate::manifest::Manifest;

pub(crate) fn complete(tree: &Tree) -> Vec<Problem> {
    let own = tree.get("xtask/Cargo.toml").map(|file| ("xtask", file));
    let mut problems = Vec::new();
    for (_, file) in tree.crates().chain(own) {
        let manifest = Manifest::parse(&file.text);
        let mut complain = |message: &str| problems.push(Problem::new(&file.path, 1, message));
        if manifest.get("package", "description").is_none_or(|entry| entry.text().is_empty()) {
            complain("`description` is missing");
        }
        let is_published =
            manifest.get("package", "publish").is_none_or(|entry| entry.value.trim() != "false");
        let shared = ["license", "version", "edition", "rust-version", "keywords", "categories"];
        let needed = if is_published { &shared[..] } else { &shared[..1] };
        for key in needed {
            if !manifest.inherits("package", key) {
                complain(&format!("`{key}.workspace = true` is missing"));
            }
        }
        if manifest.get("lints", "workspace").is_none_or(|entry| entry.value != "true") {
            complain("`[lints] workspace = true` is missing");
        }
    }
    problems
}

/// A build from a commit is the same build tomorrow.
pub(crate) fn lock_file(tree: &Tree) -> Vec<Problem> {
    let workspaces = ["Cargo", "fuzz/Cargo", "bench/Cargo"];
    let present = workspaces.iter().filter(|stem| tree.get(&format!("{stem}.toml")).is_some());
    let locks = present.map(|stem| format!("{stem}.lock"));
    let missing = locks.filter(|lock| !tree.is_tracked(lock));
    missing.map(|lock| Problem::new(&lock, 1, "must be committed")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "[package]\nname = \"a\"\ndescription = \"An a.\"\n\
                        license.workspace = true\nversion.workspace = true\n\
                        edition.workspace = true\nrust-version.workspace = true\n\
                        keywords.workspace = true\ncategories.workspace = true\n\
                        [lints]\nworkspace = true\n";

    fn count(manifest: &str) -> usize {
        complete(&Tree::of(&[("crates/a/Cargo.toml", manifest)])).len()
    }

    #[test]
    fn manifests_are_complete() {
        assert_eq!(count(GOOD), 0);
        assert_eq!(count(&GOOD.replace("An a.", "")), 1);
        assert_eq!(count(&GOOD.replace("license.workspace = true", "license = \"MIT\"")), 1);
        assert_eq!(count(&GOOD.replace("[lints]", "[metadata]")), 1);
        assert_eq!(count(&GOOD.replace("keywords.workspace = true\n", "")), 1);
        assert_eq!(count(&GOOD.replace("keywords.workspace = true", "publish = false")), 0);
        assert_eq!(count(""), 8);
        assert_eq!(complete(&Tree::of(&[("xtask/Cargo.toml", "")])).len(), 8);
    }

    #[test]
    fn lock_files_are_there() {
        let count = |files: &[(&str, &str)]| lock_file(&Tree::of(files)).len();
        assert_eq!(count(&[("Cargo.toml", ""), ("Cargo.lock", "")]), 0);
        assert_eq!(count(&[("Cargo.toml", "")]), 1);
        assert_eq!(count(&[("Cargo.toml", ""), ("Cargo.lock", ""), ("fuzz/Cargo.toml", "")]), 1);
    }
}
