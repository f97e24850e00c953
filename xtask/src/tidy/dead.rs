//! Source files that nothing compiles.

use super::tree::{File, Problem, Tree};
use crate::manifest::Manifest;
use crate::source::{Child, children};

/// Every Rust file under a `src` folder is reached from the root of a target; and under `tests`, in
/// a package that names its tests.
pub(crate) fn check(tree: &Tree) -> Vec<Problem> {
    let packages = tree.crates().map(|(name, file)| (format!("crates/{name}"), file));
    let own = tree.get("xtask/Cargo.toml").map(|file| ("xtask".to_owned(), file));
    let (mut all_roots, mut folders) = (Vec::new(), Vec::new());
    for (package, manifest) in packages.chain(own) {
        let manifest = Manifest::parse(&manifest.text);
        folders.push(format!("{package}/src"));
        if manifest.get("package", "autotests").is_some_and(|entry| entry.value == "false") {
            folders.push(format!("{package}/tests"));
        }
        all_roots.extend(roots(tree, &package, &manifest));
    }
    // Tests of one package may be made of files of another.
    let reached = reachable(tree, all_roots);
    let is_inside = |file: &&File| folders.iter().any(|folder| file.is_under(folder));
    let is_reached = |file: &&File| reached.iter().any(|source| source.path == file.path);
    let dead = tree.rust_files().filter(is_inside).filter(|file| !is_reached(file));
    let message = "no `mod` leads to this file, so nothing compiles it";
    dead.map(|file| Problem::new(&file.path, 1, message)).collect()
}

/// A source file that is compiled.
struct Source {
    path: String,
    /// Its submodules lie beside it and not in a folder of its name.
    owns_folder: bool,
}

/// The files that cargo compiles by itself: libraries, programs, and what the manifest names.
fn roots(tree: &Tree, package: &str, manifest: &Manifest) -> Vec<Source> {
    let src = format!("{package}/src");
    let is_root = |path: &str| {
        let Some(inside) = path.strip_prefix(&src) else {
            return false;
        };
        let parts: Vec<&str> = inside.split('/').skip(1).collect();
        matches!(*parts, ["lib.rs" | "main.rs"] | ["bin", _] | ["bin", _, "main.rs"])
    };
    let found = tree.rust_files().map(|file| file.path.clone()).filter(|path| is_root(path));
    let named = manifest.target_paths().map(|path| resolve(package, path));
    let tests = manifest.tests().map(|name| format!("{package}/tests/{name}.rs"));
    found.chain(named).chain(tests).map(|path| Source { path, owns_folder: true }).collect()
}

/// The roots and everything that they pull in.
fn reachable(tree: &Tree, roots: Vec<Source>) -> Vec<Source> {
    let mut reached = roots;
    let mut next = 0;
    while next < reached.len() {
        for child in files_of(tree, &reached[next]) {
            if !reached.iter().any(|source| source.path == child.path) {
                reached.push(child);
            }
        }
        next += 1;
    }
    reached
}

/// The files that one file declares.
fn files_of(tree: &Tree, source: &Source) -> Vec<Source> {
    let Some(file) = tree.get(&source.path) else {
        return Vec::new();
    };
    let folder = source.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let modules = if source.owns_folder { folder } else { source.path.trim_end_matches(".rs") };
    let mut found = Vec::new();
    for child in children(&file.text, &file.code) {
        match child {
            Child::Path(path) => {
                found.push(Source { path: resolve(folder, &path), owns_folder: true });
            }
            Child::Module(names) => {
                let stem = format!("{modules}/{}", names.join("/"));
                found.push(Source { path: format!("{stem}.rs"), owns_folder: false });
                found.push(Source { path: format!("{stem}/mod.rs"), owns_folder: true });
            }
        }
    }
    found
}

/// `path` as seen from `folder`, without `.` and `..`.
fn resolve(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').collect();
    for part in path.split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_without_a_mod_are_dead() {
        let tree = Tree::of(&[
            ("crates/a/Cargo.toml", "[[bin]]\nname = \"x\"\npath = \"src/x.rs\"\n"),
            ("crates/a/src/lib.rs", "mod b;\nmod c { mod d; }\n#[path = \"odd/e.rs\"]\nmod e;\n"),
            ("crates/a/src/b.rs", "mod f;\nmod g;"),
            ("crates/a/src/b/f.rs", ""),
            ("crates/a/src/b/g/mod.rs", "mod h;"),
            ("crates/a/src/b/g/h.rs", ""),
            ("crates/a/src/c/d.rs", ""),
            ("crates/a/src/odd/e.rs", ""),
            ("crates/a/src/x.rs", "mod y;"),
            ("crates/a/src/y.rs", ""),
            ("crates/a/src/bin/z.rs", ""),
            ("crates/a/src/bin/w/main.rs", ""),
            ("crates/a/tests/t.rs", ""),
        ]);
        assert_eq!(check(&tree), []);
    }

    #[test]
    fn dead_files_are_found() {
        let tree = Tree::of(&[
            ("crates/a/Cargo.toml", ""),
            ("crates/a/src/lib.rs", "mod b;\n// mod dead;\n"),
            ("crates/a/src/b.rs", "mod f;"),
            ("crates/a/src/b/f.rs", ""),
            ("crates/a/src/f.rs", ""),
            ("crates/a/src/dead.rs", "mod deader;"),
            ("crates/a/src/dead/deader.rs", ""),
        ]);
        let paths: Vec<String> = check(&tree).iter().map(ToString::to_string).collect();
        assert_eq!(paths.len(), 3, "{paths:?}");
    }

    #[test]
    fn tests_that_nothing_compiles_are_found() {
        let manifest = "[package]\nautotests = false\n[[test]]\npath = \"tests/main.rs\"\n\
                        [[test]]\nname = \"other\"\n";
        let tree = Tree::of(&[
            ("crates/a/Cargo.toml", manifest),
            ("crates/a/tests/main.rs", "mod alive;"),
            ("crates/a/tests/alive.rs", ""),
            ("crates/a/tests/other.rs", ""),
            ("crates/a/tests/forgotten.rs", ""),
        ]);
        let paths: Vec<String> = check(&tree).iter().map(ToString::to_string).collect();
        assert!(matches!(&paths[..], [one] if one.contains("forgotten.rs")), "{paths:?}");
    }
}
