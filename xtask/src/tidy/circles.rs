//! Files of a crate that import each other in a circle.
//!
//! An import leads to the file that defines the item, through re-exports. A submodule may import
//! from the modules around it, since it is a part of them: that is how one type is spread over
//! several files.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::tree::{File, Problem, Tree};
use crate::source::{is_word, line_of, lines_before_tests, words};

/// Folders of a crate that count as one file, because the types in them hold each other: an id its
/// channel and manager, a channel the events of ids, the service of a device all three.
const ONE: &[(&str, &[&str])] = &[("feroce", &["cm", "soft"])];

/// The path of a module or an item, from the root of its crate.
type Path = Vec<String>;

/// The imports of each module: the other module, and the line of the first import from there.
type Graph = BTreeMap<Path, BTreeMap<Path, usize>>;

pub(crate) fn check(tree: &Tree) -> Vec<Problem> {
    let crates = tree.crates().map(|(name, _)| name);
    crates.flat_map(|name| circles(tree, &format!("crates/{name}/src"), one_of(name))).collect()
}

/// The folder of a crate that counts as one file, if any.
fn one_of(name: &str) -> &'static [&'static str] {
    ONE.iter().find(|(of, _)| *of == name).map_or(&[], |(_, folder)| folder)
}

/// One problem for each set of files that all lead to each other.
fn circles(tree: &Tree, folder: &str, one: &[&str]) -> Vec<Problem> {
    let files = tree.rust_files().filter(|file| file.is_under(folder) && !file.is_unit_tests());
    let modules = Modules(files.map(|file| (path_of(file, folder), Module::of(file))).collect());
    let graph = with_one(modules.graph(), one);
    let (mut problems, mut told) = (Vec::new(), BTreeSet::new());
    for start in graph.keys() {
        let Some(circle) = shortest_circle(&graph, start) else { continue };
        if circle.iter().all(|module| told.insert(module.clone())) {
            let names: Vec<String> = circle.iter().chain([start]).map(|m| m.join("::")).collect();
            let line = graph[start][circle.get(1).unwrap_or(start)];
            let message = format!("files import each other in a circle: {}", names.join(" -> "));
            problems.push(Problem::new(&modules.0[start].file, line, message));
        }
    }
    problems
}

/// The graph in which the modules of a folder are one.
fn with_one(graph: Graph, one: &[&str]) -> Graph {
    if one.is_empty() {
        return graph;
    }
    let whole = |mut path: Path| {
        if path.iter().zip(one).filter(|(a, b)| a == b).count() == one.len() {
            path.truncate(one.len());
        }
        path
    };
    let mut joined = Graph::new();
    for (from, imports) in graph {
        let from = whole(from);
        for (to, line) in imports {
            let to = whole(to);
            if from != to {
                joined.entry(from.clone()).or_default().entry(to).or_insert(line);
            }
        }
    }
    joined
}

/// The shortest way from a module back to itself, without the arrival.
fn shortest_circle(graph: &Graph, start: &Path) -> Option<Vec<Path>> {
    let mut ways = VecDeque::from([vec![start.clone()]]);
    let mut seen = BTreeSet::new();
    while let Some(way) = ways.pop_front() {
        for next in graph.get(way.last()?).into_iter().flat_map(BTreeMap::keys) {
            if next == start {
                return Some(way);
            }
            if seen.insert(next) {
                ways.push_back(way.iter().chain([next]).cloned().collect());
            }
        }
    }
    None
}

/// The module of a file: `src/a/b.rs` and `src/a/b/mod.rs` are `a::b`.
fn path_of(file: &File, folder: &str) -> Path {
    let inside = file.path[folder.len() + 1..].trim_end_matches(".rs");
    let mut path: Path = inside.split('/').map(str::to_owned).collect();
    let is_root = path.len() == 1 && matches!(&*path[0], "lib" | "main");
    path.pop_if(|last| is_root || last == "mod");
    path
}

/// A file as a module.
struct Module {
    file: String,
    /// Its code without unit tests.
    code: String,
    imports: Vec<Import>,
}

/// One name of a `use` declaration.
struct Import {
    path: Path,
    /// What it is called here; `*` for everything.
    name: String,
    is_public: bool,
    line: usize,
}

impl Module {
    fn of(file: &File) -> Self {
        let end = lines_before_tests(&file.code);
        let code: String = file.code.split_inclusive('\n').take(end).collect();
        let mut imports = Vec::new();
        for at in words(&code, "use") {
            let (before, after) = (&code[..at], &code[at + 3..]);
            let Some((tree, _)) = after.split_once(';') else { continue };
            // `impl Trait + use<'a>` is not a declaration.
            if tree.trim_start().starts_with('<') {
                continue;
            }
            let statement = before.rsplit([';', '}', '{', ']']).next().unwrap_or_default();
            let is_public = statement.trim_start().starts_with("pub");
            let line = line_of(&code, at);
            expand(&[], tree, &mut |path, name| {
                imports.push(Import { path, name, is_public, line });
            });
        }
        Self { file: file.path.clone(), code, imports }
    }

    /// Whether an item of this name is declared here.
    fn declares(&self, item: &str) -> bool {
        const KINDS: [&str; 10] =
            ["fn", "struct", "enum", "trait", "type", "const", "static", "union", "mod", "mut"];
        words(&self.code, item).any(|at| {
            let before = self.code[..at].trim_end();
            let word = before.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next();
            before.ends_with("macro_rules!") || word.is_some_and(|word| KINDS.contains(&word))
        })
    }
}

/// Calls `found` for each path of a `use` tree and the name that it has there.
fn expand(prefix: &[String], tree: &str, found: &mut impl FnMut(Path, String)) {
    let tree = tree.trim();
    if let Some(list) = tree.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
        let (mut depth, mut start) = (0, 0);
        for (at, c) in list.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    expand(prefix, &list[start..at], found);
                    start = at + 1;
                }
                _ => {}
            }
        }
        return expand(prefix, &list[start..], found);
    }
    if let Some((head, rest)) = tree.split_once("::") {
        let prefix: Path = prefix.iter().cloned().chain([head.trim().to_owned()]).collect();
        return expand(&prefix, rest, found);
    }
    let (item, name) = tree.split_once(" as ").unwrap_or((tree, tree));
    if item.is_empty() {
        return;
    }
    // `a::{self}` is `a`.
    let is_self = item == "self" && !prefix.is_empty();
    let path: Path = prefix.iter().cloned().chain((!is_self).then(|| item.to_owned())).collect();
    let name = if is_self && name == "self" { path.last().cloned() } else { None };
    found(path, name.unwrap_or_else(|| tree.split(" as ").last().unwrap_or(tree).to_owned()));
}

/// The modules of a crate.
struct Modules(BTreeMap<Path, Module>);

impl Modules {
    fn graph(&self) -> Graph {
        let mut graph = Graph::new();
        for (here, module) in &self.0 {
            let mut edges = BTreeMap::new();
            for (target, line) in self.targets(here, module) {
                if !here.starts_with(&target) {
                    edges.entry(target).or_insert(line);
                }
            }
            graph.insert(here.clone(), edges);
        }
        graph
    }

    /// Every module that a module names something of, with the line.
    fn targets(&self, here: &Path, module: &Module) -> Vec<(Path, usize)> {
        let mut targets = Vec::new();
        for import in &module.imports {
            let Some(path) = self.absolute(here, &import.path) else { continue };
            // Re-exporting a part of itself does not use it.
            if import.is_public && path.starts_with(here) {
                continue;
            }
            let uses = if self.0.contains_key(&path) {
                names_in(&module.code, &import.name)
            } else {
                Vec::new()
            };
            if uses.is_empty() {
                targets.extend(self.home_of(&path, 0).map(|home| (home, import.line)));
            }
            for (item, line) in uses {
                let path: Path = path.iter().cloned().chain(item).collect();
                targets.extend(self.home_of(&path, 0).map(|home| (home, line)));
            }
        }
        let children =
            self.0.keys().filter(|path| path.split_last().is_some_and(|(_, up)| up == here));
        let heads = children.filter_map(|path| path.last().map(String::as_str));
        for head in heads.chain(["crate", "super"]) {
            for (item, line) in names_in(&module.code, head) {
                let path: Path = [head.to_owned()].into_iter().chain(item).collect();
                let path = self.absolute(here, &path);
                targets
                    .extend(path.and_then(|path| self.home_of(&path, 0)).map(|home| (home, line)));
            }
        }
        targets
    }

    /// A path from the root of the crate; `None` if it leads to another crate.
    fn absolute(&self, here: &Path, path: &[String]) -> Option<Path> {
        let supers = path.iter().take_while(|part| *part == "super").count();
        let from =
            |base: &[String], skip: usize| base.iter().chain(&path[skip..]).cloned().collect();
        match &**path.first()? {
            "crate" => Some(from(&[], 1)),
            "self" => Some(from(here, 1)),
            "super" => Some(from(here.get(..here.len().checked_sub(supers)?)?, supers)),
            _ => {
                let child: Path = from(here, 0);
                self.0.contains_key(&child[..=here.len()]).then_some(child)
            }
        }
    }

    /// The module that declares what a path leads to, through re-exports.
    fn home_of(&self, path: &[String], depth: usize) -> Option<Path> {
        let len = (0..=path.len()).rev().find(|&len| self.0.contains_key(&path[..len]))?;
        let (module, rest) = (path[..len].to_vec(), &path[len..]);
        let Some(item) = rest.first() else { return Some(module) };
        // Re-exports that lead to each other would go on for ever.
        if item == "*" || depth > 8 || self.0[&module].declares(item) {
            return Some(module);
        }
        for import in &self.0[&module].imports {
            let Some(target) = self.absolute(&module, &import.path) else { continue };
            if import.name == *item {
                let target: Path = target.iter().chain(&rest[1..]).cloned().collect();
                return self.home_of(&target, depth + 1);
            }
            if import.name == "*" {
                let all = &target[..target.len() - 1];
                let found: Path = all.iter().chain(rest).cloned().collect();
                let home = self.home_of(&found, depth + 1);
                if home.as_ref().is_some_and(|home| self.0[home].declares(item)) {
                    return home;
                }
            }
        }
        Some(module)
    }
}

/// The paths that follow `head::` in code outside of `use`, with their lines.
fn names_in(code: &str, head: &str) -> Vec<(Path, usize)> {
    let mut found = Vec::new();
    for at in words(code, head) {
        let before = code[..at].trim_end();
        let statement = before.rsplit([';', '}', ']']).next().unwrap_or_default();
        // `a::head::b` is another path, and declarations are read elsewhere.
        if before.ends_with("::") || words(statement, "use").next().is_some() {
            continue;
        }
        let (mut rest, mut path) = (&code[at + head.len()..], Path::new());
        while let Some(after) = rest.strip_prefix("::") {
            let len = after.bytes().take_while(|&byte| is_word(byte)).count();
            if len == 0 {
                break;
            }
            path.push(after[..len].to_owned());
            rest = &after[len..];
        }
        if !path.is_empty() {
            found.push((path, line_of(code, at)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The problems of a crate with these files.
    fn problems(files: &[(&str, &str)]) -> Vec<String> {
        problems_of("a", files)
    }

    fn problems_of(name: &str, files: &[(&str, &str)]) -> Vec<String> {
        let manifest = format!("crates/{name}/Cargo.toml");
        let manifest = [(&*manifest, "")];
        let paths: Vec<(String, &str)> =
            files.iter().map(|(path, text)| (format!("crates/{name}/src/{path}"), *text)).collect();
        let files = paths.iter().map(|(path, text)| (&**path, *text));
        let tree = Tree::of(&manifest.into_iter().chain(files).collect::<Vec<_>>());
        check(&tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn files_that_import_each_other_are_a_circle() {
        let b = ("b.rs", "use std::fmt;\nuse crate::c::{C, Other as D};\npub struct B;");
        assert_eq!(
            problems(&[
                ("lib.rs", "mod b;\nmod c;"),
                b,
                ("c.rs", "use super::b::B;\npub struct C;")
            ]),
            ["crates/a/src/b.rs:2: files import each other in a circle: b -> c -> b"]
        );
        let root = ("lib.rs", "mod b;\nmod c;");
        assert_eq!(problems(&[root, b, ("c.rs", "pub struct C;")]), [""; 0]);
        assert_eq!(problems(&[root, b, ("c.rs", "fn f(b: crate::b::B) {}")]).len(), 1);
        assert_eq!(problems(&[root, b, ("c.rs", "use super::b;\nfn f(b: b::B) {}")]).len(), 1);
        assert_eq!(
            problems(&[root, b, ("c.rs", "// super::b::B\nconst N: &str = \"b::B\";")]).len(),
            0
        );
        let tests = "#[cfg(test)]\nmod tests {\n    use crate::b::B;\n}\n";
        assert_eq!(problems(&[root, b, ("c.rs", tests)]), [""; 0]);
    }

    #[test]
    fn an_import_leads_to_the_file_that_declares_the_item() {
        let root = ("lib.rs", "mod b;\nmod c;\nmod d;\npub use b::B;\npub(crate) use d::*;");
        let b = ("b.rs", "use crate::Deep;\npub struct B;");
        let d = |text| ("d/mod.rs", text);
        let deep = ("d/deep.rs", "use crate::c::C;\npub struct Deep;");
        let reexport = d("mod deep;\npub use deep::Deep;");
        let circle = problems(&[root, b, ("c.rs", "use crate::B;\npub struct C;"), reexport, deep]);
        assert_eq!(circle.len(), 1);
        assert!(circle[0].ends_with("b -> d::deep -> c -> b"), "{circle:?}");
        assert_eq!(problems(&[root, b, ("c.rs", "pub struct C;"), reexport, deep]), [""; 0]);
    }

    #[test]
    fn a_submodule_is_a_part_of_the_modules_around_it() {
        let outer = ("b.rs", "mod inner;\nuse inner::help;\npub struct B;");
        let inner = ("b/inner.rs", "use super::B;\npub(super) fn help() {}");
        assert_eq!(problems(&[("lib.rs", "mod b;\nmod c;"), outer, inner]), [""; 0]);
        let sibling = ("c.rs", "use crate::b::B;\npub struct C;");
        let inner = ("b/inner.rs", "use crate::c::C;\npub(super) fn help() {}");
        let circle = problems(&[("lib.rs", "mod b;\nmod c;"), outer, inner, sibling]);
        assert!(circle[0].ends_with("b -> b::inner -> c -> b"), "{circle:?}");
    }

    #[test]
    fn a_folder_whose_types_hold_each_other_is_one_file() {
        let b = ("cm/soft/b.rs", "use super::c::C;\npub struct B;");
        let c = ("cm/soft/c.rs", "use super::b::B;\npub struct C;");
        assert_eq!(problems_of("feroce", &[b, c]), [""; 0]);
        assert_eq!(problems_of("other", &[b, c]).len(), 1);
        let outside = ("d.rs", "use crate::cm::soft::c::C;\npub struct D;");
        let back = ("cm/soft/b.rs", "use crate::d::D;\npub struct B;");
        assert_eq!(problems_of("feroce", &[("cm/soft/mod.rs", ""), back, c, outside]).len(), 1);
    }
}
